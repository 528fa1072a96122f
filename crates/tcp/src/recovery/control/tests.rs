use fullsend_wire::{Instant, Mss, SeqNum};

use super::Recovery;
use crate::congestion::{Congestion, CongestionEvent};

fn seq(n: u32) -> SeqNum {
    SeqNum::new(u32::MAX - 60) + n
}

#[test]
fn a_new_connection_is_not_in_recovery() {
    let recovery = Recovery::new(Mss::clamped(1000), 3);
    assert!(recovery.allows_fast_path() && recovery.may_grow());
}

struct Rounds {
    recovery: Recovery,
    congestion: Congestion,
}

impl Rounds {
    /// Returns the state in a round that ends at `seq(100)` and began with `packets_out` segments.
    fn new(packets_out: u32, limited: bool) -> Self {
        let mut recovery = Recovery::new(Mss::clamped(1000), 3);
        recovery.round_end = seq(0);
        let congestion = Congestion::new("cubic");
        let mut rounds = Self {
            recovery,
            congestion,
        };
        rounds.on_sent(0, 100, packets_out, limited);
        rounds
    }

    fn on_sent(&mut self, una: u32, nxt: u32, packets_out: u32, limited: bool) {
        let congestion = &mut self.congestion;
        self.recovery
            .on_sent(congestion, seq(una), seq(nxt), packets_out, limited);
    }

    fn max_packets_out(&self) -> u32 {
        self.congestion.max_packets_out()
    }
}

#[test]
fn a_round_limited_once_by_cwnd_stays_limited_to_its_end() {
    let mut rounds = Rounds::new(4, true);
    rounds.on_sent(50, 150, 9, false);
    assert!(rounds.recovery.is_cwnd_limited());
    assert_eq!(rounds.max_packets_out(), 4);
    // The data that ended the round is acknowledged.
    rounds.on_sent(100, 200, 2, false);
    assert!(!rounds.recovery.is_cwnd_limited());
    assert_eq!(rounds.max_packets_out(), 2);
    // Within the round, with fewer segments in flight than before.
    rounds.on_sent(120, 210, 1, true);
    assert!(rounds.recovery.is_cwnd_limited());
}

#[test]
fn only_a_new_maximum_lengthens_a_round_that_cwnd_does_not_limit() {
    let mut rounds = Rounds::new(3, false);
    rounds.on_sent(10, 200, 3, false);
    assert_eq!(rounds.recovery.round_end, seq(100));
    rounds.on_sent(20, 210, 4, false);
    assert_eq!(rounds.recovery.round_end, seq(210));
    assert_eq!(rounds.max_packets_out(), 4);
}

#[test]
fn data_blocked_by_cwnd_makes_the_round_limited() {
    let mut rounds = Rounds::new(3, false);
    rounds
        .recovery
        .on_cwnd_blocked(&mut rounds.congestion, seq(130), 7);
    assert!(rounds.recovery.is_cwnd_limited());
    assert_eq!(
        (rounds.max_packets_out(), rounds.recovery.round_end),
        (7, seq(130))
    );
}

/// In slow start cwnd grows while more than half of it is in use.
#[test]
fn half_of_the_window_is_not_more_than_half() {
    let mut rounds = Rounds::new(5, false);
    let mut limited = |cwnd| {
        rounds.congestion.set_cwnd(cwnd);
        rounds.recovery.was_cwnd_limited(&rounds.congestion)
    };
    assert!(limited(9));
    assert!(!limited(10));
    let now = Instant::ZERO;
    rounds.congestion.reduce(CongestionEvent::Loss, now);
    let ssthresh = rounds.congestion.ssthresh();
    rounds.congestion.set_cwnd(ssthresh);
    assert!(
        !rounds.recovery.was_cwnd_limited(&rounds.congestion),
        "congestion avoidance with cwnd {ssthresh}"
    );
}
