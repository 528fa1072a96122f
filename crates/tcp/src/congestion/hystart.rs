//! HyStart++ (RFC 9406): leaves slow start when the round-trip time shows that a queue builds,
//! before that queue overflows.

use fullsend_units::{Nanos, SeqNum};

use super::{AckSample, Cwnd};

/// A rise of the round trip below this is noise, above the other a queue for sure.
const RTT_THRESH: (u32, u32) = (4_000_000, 16_000_000);
const MIN_RTT_DIVISOR: u32 = 8;
/// Samples of a round before it is judged.
const N_RTT_SAMPLE: u8 = 8;
/// Conservative slow start grows by this part of what slow start would.
const CSS_GROWTH_DIVISOR: u32 = 4;
/// Rounds of conservative slow start before congestion avoidance.
const CSS_ROUNDS: u8 = 5;
/// No sample yet.
const NONE: u32 = u32::MAX;

/// The state of the first slow start. Round-trip times in nanoseconds, at most 4.3 s.
///
/// RFC 9406's bound on how much one ACK may add is left out: acknowledgements of whole
/// super-segments are what we want to see.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    window_end: SeqNum,
    last_round_min_rtt: u32,
    current_round_min_rtt: u32,
    /// Round trip at which conservative slow start began; `NONE` outside of it.
    css_baseline: u32,
    samples: u8,
    css_rounds: u8,
    started: bool,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self {
            window_end: SeqNum::new(0),
            last_round_min_rtt: NONE,
            current_round_min_rtt: NONE,
            css_baseline: NONE,
            samples: 0,
            css_rounds: 0,
            started: false,
        }
    }

    /// How many of `ack`'s segments slow start may count. May end slow start by setting
    /// `ssthresh`.
    pub(super) fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample) -> u32 {
        if !self.started || ack.snd_una.after_eq(self.window_end) {
            self.begin_round(window, ack.snd_nxt);
        }
        if let Some(rtt) = ack.rtt {
            self.take_sample(rtt);
        }
        self.judge();
        if self.css_baseline == NONE {
            ack.acked_segs
        } else {
            ack.acked_segs.div_ceil(CSS_GROWTH_DIVISOR)
        }
    }

    fn begin_round(&mut self, window: &mut Cwnd, snd_nxt: SeqNum) {
        self.started = true;
        self.window_end = snd_nxt;
        self.last_round_min_rtt = self.current_round_min_rtt;
        self.current_round_min_rtt = NONE;
        self.samples = 0;
        if self.css_baseline != NONE {
            self.css_rounds += 1;
            if self.css_rounds >= CSS_ROUNDS {
                window.ssthresh = window.cwnd;
            }
        }
    }

    fn take_sample(&mut self, rtt: Nanos) {
        let rtt = u32::try_from(rtt.as_nanos()).unwrap_or(NONE - 1);
        self.current_round_min_rtt = self.current_round_min_rtt.min(rtt);
        self.samples = self.samples.saturating_add(1);
    }

    fn judge(&mut self) {
        let (last, current) = (self.last_round_min_rtt, self.current_round_min_rtt);
        if self.samples < N_RTT_SAMPLE || last == NONE {
            return;
        }
        if self.css_baseline == NONE {
            let (low, high) = RTT_THRESH;
            let thresh = (last / MIN_RTT_DIVISOR).clamp(low, high);
            if current >= last.saturating_add(thresh) {
                self.css_baseline = current;
                self.css_rounds = 0;
            }
        } else if current < self.css_baseline {
            // It was a passing delay.
            self.css_baseline = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Mss, Nanos, SeqNum};

    use super::super::{AckSample, CongestionControl, Cubic, Cwnd};

    /// A sender in slow start, an ACK for each two segments.
    struct Flow {
        cubic: Cubic,
        window: Cwnd,
        una: SeqNum,
        now: Instant,
    }

    impl Flow {
        fn new() -> Self {
            Self {
                cubic: Cubic::new(),
                window: Cwnd::default(),
                una: SeqNum::new(u32::MAX - 100),
                now: Instant::ZERO,
            }
        }

        fn round(&mut self, rtt_ms: u64) -> u32 {
            let mss = Mss::clamped(1448);
            let end = self.una + self.window.cwnd * mss.bytes();
            let rtt = Nanos::from_millis(rtt_ms);
            self.now += rtt;
            for _ in 0..self.window.cwnd / 2 {
                self.una += 2 * mss.bytes();
                let sample = AckSample {
                    now: self.now,
                    prior: self.now,
                    acked_segs: 2,
                    rtt: Some(rtt),
                    srtt: rtt,
                    snd_una: self.una,
                    snd_nxt: end + self.window.cwnd * mss.bytes(),
                };
                self.cubic.on_ack(&mut self.window, &sample);
            }
            self.window.cwnd
        }
    }

    #[test]
    fn a_steady_round_trip_lets_slow_start_go_on() {
        let mut flow = Flow::new();
        for rtt in [50, 51, 50, 52, 53, 51, 52] {
            let before = flow.window.cwnd;
            assert_eq!(flow.round(rtt), 2 * before);
        }
        assert_eq!(flow.window.ssthresh, u32::MAX);
    }

    #[test]
    fn a_growing_queue_ends_slow_start_after_five_careful_rounds() {
        let mut flow = Flow::new();
        (0..4).for_each(|_| _ = flow.round(50));
        let full = flow.window.cwnd;
        assert_eq!(full, 160);
        let mut rounds = 0;
        while flow.window.ssthresh == u32::MAX {
            flow.round(60);
            rounds += 1;
            assert!(rounds < 20);
        }
        assert!((5..=7).contains(&rounds), "{rounds}");
        assert!(flow.window.cwnd < 32 * full, "{}", flow.window.cwnd);
        assert_eq!(flow.window.ssthresh / 100, flow.window.cwnd / 100);
    }

    #[test]
    fn a_passing_delay_is_forgiven() {
        let mut flow = Flow::new();
        (0..4).for_each(|_| _ = flow.round(50));
        flow.round(60);
        flow.round(50);
        let before = flow.window.cwnd;
        assert!(flow.round(50) > 2 * before - 20);
        assert_eq!(flow.window.ssthresh, u32::MAX);
    }

    /// The threshold is 4 ms at least: paths of microseconds are never held back by their noise.
    #[test]
    fn noise_of_a_short_path_means_nothing() {
        let mut flow = Flow::new();
        for rtt in [0, 1, 3, 0, 3, 2, 3] {
            let before = flow.window.cwnd;
            assert_eq!(flow.round(rtt), 2 * before);
        }
    }
}
