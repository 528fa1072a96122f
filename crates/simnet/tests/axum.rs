//! The example with axum: the same report for the same seed.

#[path = "../examples/axum_lossy.rs"]
#[allow(dead_code, reason = "its `main` is not used")]
mod axum_lossy;

#[test]
fn the_report_of_a_seed_is_always_the_same() {
    let first = axum_lossy::report(1).unwrap();
    assert!(first.starts_with("seed 1: 1000 requests in "), "{first}");
    assert_eq!(first, axum_lossy::report(1).unwrap());
    assert_ne!(first, axum_lossy::report(2).unwrap());
}
