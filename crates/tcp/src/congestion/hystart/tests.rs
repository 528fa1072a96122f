use fullsend_wire::{Instant, Mss, Nanos, SeqNum};

use super::super::{AckSample, Cwnd};
use super::{HyStart, NONE};

/// A sender that always fills its window.
struct Flow {
    hystart: HyStart,
    window: Cwnd,
    una: SeqNum,
    /// The end of the data in flight.
    nxt: SeqNum,
    now: Instant,
    /// Number of segments that one ACK covers.
    per_ack: u32,
}

impl Flow {
    /// Creates a flow with an ACK for each two segments.
    fn new() -> Self {
        Self::with_ack_for_each(2)
    }

    fn with_ack_for_each(per_ack: u32) -> Self {
        let (window, una) = (Cwnd::default(), SeqNum::new(u32::MAX - 100));
        Self {
            hystart: HyStart::new(),
            window,
            una,
            nxt: una + window.cwnd * Self::MSS.bytes(),
            now: Instant::ZERO,
            per_ack,
        }
    }

    const MSS: Mss = Mss::clamped(1448);

    /// Returns the number of segments that the next ACK covers.
    fn next_acked(&self) -> u32 {
        let in_flight = self.nxt.since(self.una) / Self::MSS.bytes();
        self.per_ack.min(in_flight)
    }

    /// Processes one ACK and fills the window again.
    fn ack(&mut self, rtt: Nanos) {
        let acked_segs = self.next_acked();
        self.una += acked_segs * Self::MSS.bytes();
        let sample = AckSample {
            now: self.now,
            prior: self.now,
            acked_segs,
            rtt: Some(rtt),
            srtt: rtt,
            snd_una: self.una,
            snd_nxt: self.nxt,
        };
        let growth = self.hystart.on_ack(&mut self.window, &sample);
        self.window.slow_start(growth);
        let end = self.una + self.window.cwnd * Self::MSS.bytes();
        self.nxt = self.nxt.latest(end);
    }

    /// Runs one round of HyStart with this round-trip time. Returns the segments acknowledged, and
    /// the segments that the window grew by.
    fn round_of(&mut self, rtt: Nanos) -> (u32, u32) {
        self.now += rtt;
        let (una, cwnd) = (self.una, self.window.cwnd);
        self.ack(rtt);
        while (self.una + self.next_acked() * Self::MSS.bytes()).before(self.hystart.window_end) {
            self.ack(rtt);
        }
        let acked = self.una.since(una) / Self::MSS.bytes();
        (acked, self.window.cwnd - cwnd)
    }

    fn round(&mut self, rtt_ms: u64) -> (u32, u32) {
        self.round_of(Nanos::from_millis(rtt_ms))
    }

    fn is_conservative(&self) -> bool {
        self.hystart.css_baseline != NONE
    }
}

#[test]
fn a_steady_round_trip_continues_slow_start() {
    let mut flow = Flow::new();
    for rtt in [50, 51, 50, 52, 53, 51, 52] {
        let (acked, grown) = flow.round(rtt);
        assert_eq!(grown, acked);
    }
    assert_eq!(flow.window.ssthresh, u32::MAX);
}

/// RFC 9406 4.2: the round that shows the delay is the first of the five.
#[test]
fn a_growing_queue_ends_slow_start_after_five_css_rounds() {
    let mut flow = Flow::new();
    (0..4).for_each(|_| _ = flow.round(50));
    for round in 1..=5 {
        assert_eq!(flow.window.ssthresh, u32::MAX, "round {round}");
        flow.round(60);
        assert!(flow.is_conservative());
    }
    let last = flow.window.cwnd;
    flow.ack(Nanos::from_millis(60));
    assert_eq!(flow.window.ssthresh, last);
}

#[test]
fn a_transient_delay_resumes_slow_start() {
    let mut flow = Flow::new();
    (0..4).for_each(|_| _ = flow.round(50));
    flow.round(60);
    flow.round(50);
    let (acked, grown) = flow.round(50);
    assert_eq!(grown, acked);
    assert_eq!(flow.window.ssthresh, u32::MAX);
}

/// RFC 9406 4.2: `cwnd + N / CSS_GROWTH_DIVISOR`, so a round grows by a quarter however many
/// segments one ACK covers.
#[test]
fn conservative_growth_does_not_depend_on_how_often_the_peer_acknowledges() {
    for per_ack in [1, 2, 3, 5, 7, 45] {
        let mut flow = Flow::with_ack_for_each(per_ack);
        while flow.window.cwnd < 1000 {
            flow.round(50);
        }
        flow.round(60);
        assert!(flow.is_conservative(), "{per_ack}");
        for _ in 0..3 {
            let (acked, grown) = flow.round(60);
            // Up to three acknowledged segments may remain from the previous round.
            assert!(
                (acked / 4..=acked.div_ceil(4)).contains(&grown),
                "{per_ack}: {acked} acknowledged, {grown} more"
            );
        }
    }
}

/// Returns whether an RTT increase from one round to the next begins conservative slow start.
fn ends_with_rise(last_us: u64, current_us: u64) -> bool {
    let mut flow = Flow::new();
    flow.round_of(Nanos::from_micros(last_us));
    flow.round_of(Nanos::from_micros(last_us));
    flow.round_of(Nanos::from_micros(current_us));
    flow.is_conservative()
}

/// RFC 9406 4.2: `max(MIN_RTT_THRESH, min(lastRoundMinRTT / MIN_RTT_DIVISOR, MAX_RTT_THRESH))`,
/// with 4 ms, 8 and 16 ms (4.3).
#[test]
fn the_threshold_is_an_eighth_of_the_round_trip_from_4_to_16_ms() {
    for (last_ms, threshold_ms) in [
        (1, 4),
        (32, 4),
        (40, 5),
        (80, 10),
        (128, 16),
        (136, 16),
        (400, 16),
    ] {
        let (last, threshold) = (last_ms * 1000, threshold_ms * 1000);
        assert!(ends_with_rise(last, last + threshold), "{last_ms} ms");
        assert!(!ends_with_rise(last, last + threshold - 1), "{last_ms} ms");
    }
}

/// RFC 9406 4.3: N_RTT_SAMPLE is 8.
#[test]
fn a_round_is_evaluated_at_its_eighth_sample() {
    let mut flow = Flow::with_ack_for_each(1);
    flow.round(50);
    flow.round(50);
    for sample in 1..=8 {
        assert!(!flow.is_conservative(), "before sample {sample}");
        flow.ack(Nanos::from_millis(100));
    }
    assert!(flow.is_conservative());
}

/// The threshold is at least 4 ms: the noise of a path of microseconds never slows it down.
#[test]
fn jitter_of_a_short_path_is_ignored() {
    let mut flow = Flow::new();
    for rtt in [0, 1, 3, 0, 3, 2, 3] {
        let (acked, grown) = flow.round(rtt);
        assert_eq!(grown, acked);
    }
}
