use super::{CASES, EXPERIMENT, jain};
use crate::testing::quick;

#[test]
fn fairness_index_is_one_for_equal_shares_and_a_half_for_one_starved_flow() {
    assert_eq!(jain([3.0, 3.0]), 1.0);
    assert_eq!(jain([3.0, 0.0]), 0.5);
    assert_eq!(jain([0.0, 0.0]), 1.0);
}

/// With a small link and a short time, every case has the properties that its name says; the full
/// scale judges it.
#[test]
fn no_flow_starves_and_ecn_marks_replace_losses() {
    for (number, case) in CASES.iter().enumerate() {
        let measures = quick(&EXPERIMENT, number);
        let [first, second, link] =
            ["first_mbps", "second_mbps", "link_mbps"].map(|name| measures.get(name));
        assert!(first > 0.0 && second > 0.0, "{}", case.name);
        assert!(first + second <= link, "{}", case.name);
        if case.ce_threshold_ms.is_some() {
            assert_eq!(measures.get("retransmitted"), 0.0, "{}", case.name);
        }
    }
}
