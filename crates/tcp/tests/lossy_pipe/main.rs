//! Two connections over a network that loses, delays, reorders, duplicates and segments packets, in
//! virtual time. Every byte must arrive in order, and both sides must close.

mod pipe;

use fullsend_wire::Nanos;
use proptest::prelude::*;

use pipe::{Outcome, Path, run};

fn kib(n: usize) -> usize {
    n << 10
}

const LOSSLESS: Path = Path {
    delay_us: 5_000,
    jitter_us: 0,
    loss: 0.0,
    repeat: 0.0,
    cut: true,
    queue_bytes: usize::MAX,
    rate: 0,
    sack: true,
    timestamps: true,
    window_scale: true,
    congestion: "cubic",
    nodelay: false,
    rcvbuf: None,
    simultaneous: false,
};

#[test]
fn a_lossless_path_needs_no_retransmission() {
    for cut in [false, true] {
        let outcome = run(1, Path { cut, ..LOSSLESS }, kib(3000), kib(100));
        assert_eq!(outcome.retransmitted, 0);
        assert!(outcome.took < Nanos::from_secs(2), "{:?}", outcome.took);
    }
}

#[test]
fn no_delay_at_all() {
    let path = Path {
        delay_us: 0,
        ..LOSSLESS
    };
    let outcome = run(2, path, kib(3000), kib(3000));
    assert_eq!(outcome.retransmitted, 0);
}

/// With SACK, 2 % of loss hardly ever causes a timeout.
#[test]
fn sack_recovers_two_percent_loss_without_timeouts() {
    let path = Path {
        loss: 0.02,
        ..LOSSLESS
    };
    let outcomes: Vec<Outcome> = (0..20).map(|seed| run(seed, path, kib(1000), 0)).collect();
    let timeouts: u64 = outcomes.iter().map(|o| o.timeouts).sum();
    let lost: u64 = outcomes.iter().map(|o| o.lost).sum();
    let again: u64 = outcomes.iter().map(|o| o.retransmitted).sum();
    assert!(lost > 300);
    assert!(
        timeouts < lost / 10,
        "{timeouts} timeouts for {lost} losses"
    );
    assert!(
        again < lost + lost / 4,
        "{again} retransmissions for {lost} losses"
    );
}

/// Without SACK (RFC 6582) one hole is filled per round trip, but a single loss causes no timeout.
#[test]
fn newreno_recovers_without_sack() {
    let path = Path {
        loss: 0.005,
        sack: false,
        congestion: "reno",
        ..LOSSLESS
    };
    let outcomes: Vec<Outcome> = (0..20).map(|seed| run(seed, path, kib(1000), 0)).collect();
    let timeouts: u64 = outcomes.iter().map(|o| o.timeouts).sum();
    let lost: u64 = outcomes.iter().map(|o| o.lost).sum();
    assert!(timeouts < lost / 3, "{timeouts} timeouts for {lost} losses");
}

/// Jitter of a few segments raises the reordering threshold and soon causes no retransmissions.
#[test]
fn reordering_is_not_mistaken_for_loss_for_long() {
    let path = Path {
        jitter_us: 2_000,
        rate: 12_500_000,
        ..LOSSLESS
    };
    let outcome = run(3, path, kib(4000), 0);
    assert!(outcome.retransmitted * 10 < 4000, "{outcome:?}");
    assert_eq!(outcome.timeouts, 0);
}

/// With a bottleneck queue smaller than a window the sender still fills the link.
#[test]
fn a_shallow_bottleneck_is_kept_busy() {
    let path = Path {
        rate: 1_250_000,
        queue_bytes: 20_000,
        ..LOSSLESS
    };
    for congestion in ["cubic", "reno"] {
        let outcome = run(4, Path { congestion, ..path }, kib(5000), 0);
        let rate = 5000.0 * 1024.0 / outcome.took.as_secs_f64();
        assert!(
            rate > 0.75 * 1_250_000.0,
            "{congestion}: {rate} {outcome:?}"
        );
        assert_eq!(outcome.timeouts, 0, "{congestion}");
    }
}

fn path() -> impl Strategy<Value = Path> {
    let network = (
        prop_oneof![Just(0u64), 1..30_000u64],
        prop_oneof![Just(0u64), 1..20_000u64],
        prop_oneof![Just(0.0), 0.0..0.15f64],
        prop_oneof![Just(0.0), 0.0..0.15f64],
        any::<bool>(),
        prop_oneof![Just(usize::MAX), 3_000..100_000usize],
        prop_oneof![Just(0u64), 100_000..100_000_000u64],
    );
    let options = (
        any::<[bool; 4]>(),
        any::<bool>(),
        prop_oneof![3 => Just(None), 1 => (1_000..40_000u32).prop_map(Some)],
        prop_oneof![3 => Just(false), 1 => Just(true)],
    );
    (network, options).prop_map(|(network, options)| {
        let (delay_us, jitter_us, loss, repeat, cut, queue_bytes, rate) = network;
        let ([sack, timestamps, window_scale, cubic], nodelay, rcvbuf, simultaneous) = options;
        Path {
            delay_us,
            jitter_us,
            loss,
            repeat,
            cut,
            queue_bytes,
            rate,
            sack,
            timestamps,
            window_scale,
            congestion: if cubic { "cubic" } else { "reno" },
            nodelay,
            rcvbuf,
            simultaneous,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]
    #[test]
    fn every_byte_arrives_over_any_path(
        seed: u64,
        path in path(),
        there in 0..300_000usize,
        back in 0..100_000usize,
    ) {
        run(seed, path, there, back);
    }
}
