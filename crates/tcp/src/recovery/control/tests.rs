use fullsend_wire::{Mss, SeqNum};

use super::Recovery;
use crate::congestion::Cwnd;

fn seq(n: u32) -> SeqNum {
    SeqNum::new(u32::MAX - 60) + n
}

#[test]
fn a_new_connection_is_not_in_recovery() {
    let recovery = Recovery::new(Mss::clamped(1000), 3);
    assert!(recovery.allows_fast_path() && recovery.may_grow());
}

/// Returns the state in a round that ends at `seq(100)` and began with `packets_out` segments.
fn round(packets_out: u32, limited: bool) -> Recovery {
    let mut recovery = Recovery::new(Mss::clamped(1000), 3);
    recovery.round_end = seq(0);
    recovery.on_sent(seq(0), seq(100), packets_out, limited);
    recovery
}

#[test]
fn a_round_limited_once_by_cwnd_stays_limited_to_its_end() {
    let mut recovery = round(4, true);
    recovery.on_sent(seq(50), seq(150), 9, false);
    assert!(recovery.is_cwnd_limited());
    assert_eq!(recovery.max_packets_out, 4);
    // The data that ended the round is acknowledged.
    recovery.on_sent(seq(100), seq(200), 2, false);
    assert!(!recovery.is_cwnd_limited());
    assert_eq!(recovery.max_packets_out, 2);
    // Within the round, with fewer segments in flight than before.
    recovery.on_sent(seq(120), seq(210), 1, true);
    assert!(recovery.is_cwnd_limited());
}

#[test]
fn only_a_new_maximum_lengthens_a_round_that_cwnd_does_not_limit() {
    let mut recovery = round(3, false);
    recovery.on_sent(seq(10), seq(200), 3, false);
    assert_eq!(recovery.round_end, seq(100));
    recovery.on_sent(seq(20), seq(210), 4, false);
    assert_eq!(recovery.round_end, seq(210));
    assert_eq!(recovery.max_packets_out, 4);
}

#[test]
fn data_blocked_by_cwnd_makes_the_round_limited() {
    let mut recovery = round(3, false);
    recovery.on_cwnd_blocked(seq(130), 7);
    assert!(recovery.is_cwnd_limited());
    assert_eq!(
        (recovery.max_packets_out, recovery.round_end),
        (7, seq(130))
    );
}

/// In slow start cwnd grows while more than half of it is in use.
#[test]
fn half_of_the_window_is_not_more_than_half() {
    let recovery = round(5, false);
    let limited = |cwnd, ssthresh| {
        recovery.was_cwnd_limited(&Cwnd {
            cwnd,
            ssthresh,
            ..Cwnd::default()
        })
    };
    assert!(limited(9, u32::MAX));
    assert!(!limited(10, u32::MAX));
    assert!(!limited(9, 9), "congestion avoidance");
}
