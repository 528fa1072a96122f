use fullsend_wire::SeqNum;

use super::{Cwnd, CwndUsage};

fn seq(n: u32) -> SeqNum {
    SeqNum::new(u32::MAX - 60) + n
}

impl CwndUsage {
    /// Returns the usage of a round that ends at `seq(100)` and began with `packets_out` segments.
    fn of_round(packets_out: u32, limited: bool) -> Self {
        let mut usage = Self::new();
        usage.round_end = seq(0);
        usage.on_sent(seq(0), seq(100), packets_out, limited);
        usage
    }
}

#[test]
fn a_round_limited_once_by_cwnd_stays_limited_to_its_end() {
    let mut usage = CwndUsage::of_round(4, true);
    usage.on_sent(seq(50), seq(150), 9, false);
    assert!(usage.is_limited());
    assert_eq!(usage.max_packets_out, 4);
    // The data that ended the round is acknowledged.
    usage.on_sent(seq(100), seq(200), 2, false);
    assert!(!usage.is_limited());
    assert_eq!(usage.max_packets_out, 2);
    // Within the round, with fewer segments in flight than before.
    usage.on_sent(seq(120), seq(210), 1, true);
    assert!(usage.is_limited());
}

#[test]
fn only_a_new_maximum_lengthens_a_round_that_cwnd_does_not_limit() {
    let mut usage = CwndUsage::of_round(3, false);
    usage.on_sent(seq(10), seq(200), 3, false);
    assert_eq!(usage.round_end, seq(100));
    usage.on_sent(seq(20), seq(210), 4, false);
    assert_eq!(usage.round_end, seq(210));
    assert_eq!(usage.max_packets_out, 4);
}

#[test]
fn data_blocked_by_cwnd_makes_the_round_limited() {
    let mut usage = CwndUsage::of_round(3, false);
    usage.on_blocked(seq(130), 7);
    assert!(usage.is_limited());
    assert_eq!((usage.max_packets_out, usage.round_end), (7, seq(130)));
}

/// In slow start cwnd grows while more than half of it is in use.
#[test]
fn half_of_the_window_is_not_more_than_half() {
    let usage = CwndUsage::of_round(5, false);
    let window = |cwnd, ssthresh| Cwnd {
        cwnd,
        ssthresh,
        ..Cwnd::default()
    };
    assert!(usage.is_enough(&window(9, 100)));
    assert!(!usage.is_enough(&window(10, 100)));
    assert!(!usage.is_enough(&window(9, 9)), "congestion avoidance");
}
