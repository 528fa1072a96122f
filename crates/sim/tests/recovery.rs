//! Time to recover from losses, in virtual time: short flows whose tails are lost, paths that
//! reorder, loss of every kind. The same flows without the mechanism show its effect.

mod common;

use common::{Outcome, Scenario, netem, run};
use fullsend_wire::Nanos;

/// Runs a short flow from the client, over a path of 20 ms.
fn flow(seed: u64, bytes: u64, spec: &str, disabled_sysctls: &[&'static str]) -> Outcome {
    run(&Scenario {
        seed,
        bytes: [bytes, 0],
        netem: netem(spec),
        disabled_sysctls: disabled_sysctls.to_vec(),
        ..Scenario::default()
    })
}

/// Returns the mean duration of flows of 100 seeds in milliseconds, and all their retransmissions.
fn over_seeds(bytes: u64, spec: &str, disabled_sysctls: &[&'static str]) -> (u64, u64) {
    let outcomes = (0..100).map(|seed| flow(seed, bytes, spec, disabled_sysctls));
    let (took, again) = outcomes.fold((Nanos::ZERO, 0), |(took, again), outcome| {
        (took + outcome.took, again + outcome.retransmitted[0])
    });
    (took.as_millis() / 100, again)
}

/// RFC 8985 7: a lost tail of a few segments waits for two round trips, not for the timeout.
#[test]
fn tail_loss_probes_shorten_short_flows() {
    let spec = "delay 10ms loss 10%";
    let (with, _) = over_seeds(6_000, spec, &[]);
    let (without, _) = over_seeds(6_000, spec, &["tcp_early_retrans"]);
    println!("flows of 6 KB at 10 % loss: {with} ms with probes, {without} ms without");
    assert!(with < without, "{with} {without}");
}

/// RFC 8985 6: on a path that reorders, late segments are not retransmitted.
#[test]
fn rack_distinguishes_reordering_from_loss() {
    let spec = "delay 50ms 5ms rate 50mbit";
    let (_, by_time) = over_seeds(300_000, spec, &[]);
    let (_, by_number) = over_seeds(300_000, spec, &["tcp_recovery"]);
    println!("sent again without need: {by_time} segments by time, {by_number} by number");
    assert!(2 * by_time < by_number, "{by_time} {by_number}");
}

/// Loss of every kind and degree, reordering, duplicates: all data arrives within a time limit.
#[test]
fn heavy_loss_is_recovered_in_time() {
    for (spec, most_ms) in [
        ("delay 10ms loss 1%", 500),
        ("delay 10ms loss 5%", 1_500),
        ("delay 10ms loss 20%", 30_000),
        ("delay 10ms loss gemodel 2% 20%", 5_000),
        ("delay 50ms 50ms loss 2% duplicate 2%", 8_000),
    ] {
        let outcomes = (0..21).map(|seed| flow(seed, 200_000, spec, &[]).took.as_millis());
        let mut took: Vec<_> = outcomes.collect();
        took.sort_unstable();
        println!("{spec}: 200 KB in {} ms, {} ms at most", took[10], took[20]);
        assert!(took[10] < most_ms, "{spec}: {took:?}");
    }
}
