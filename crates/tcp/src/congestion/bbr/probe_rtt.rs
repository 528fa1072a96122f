//! The minimum RTT of the path, and the `ProbeRTT` periods that reveal it (draft 5.3.4, 5.5.7).

use fullsend_wire::{Instant, Nanos};

use super::{Ack, Bbr, State};
use crate::congestion::Cwnd;

/// `BBR.MinRTTFilterLen`.
const MIN_RTT_FILTER: Nanos = Nanos::from_secs(10);
/// `BBR.ProbeRTTInterval`; the same for all flows, so that they drain the queue together.
const PROBE_RTT_INTERVAL: Nanos = Nanos::from_secs(5);
/// `BBR.ProbeRTTDuration`.
const PROBE_RTT_DURATION: Nanos = Nanos::from_millis(200);

/// The minimum RTT of the last ten seconds, and of the last five.
#[derive(Clone, Debug)]
pub(super) struct MinRtt {
    /// `MAX` before the first sample.
    long: Nanos,
    long_at: Instant,
    short: Nanos,
    short_at: Instant,
    /// The previous sample; zero at first.
    last: Nanos,
    /// Whether `ProbeRTT` is due because no lower sample came for an interval.
    expired: bool,
}

impl MinRtt {
    pub(super) const fn new() -> Self {
        Self {
            long: Nanos::MAX,
            long_at: Instant::ZERO,
            short: Nanos::MAX,
            short_at: Instant::ZERO,
            last: Nanos::ZERO,
            expired: false,
        }
    }

    pub(super) fn get(&self) -> Option<Nanos> {
        (self.long != Nanos::MAX).then_some(self.long)
    }

    /// Filters a sample against a single packet that took a shorter path without overtaking
    /// another: two samples in a row are needed for an RTT much lower than the known minimum.
    fn filter_outlier(&mut self, rtt: Nanos) -> Nanos {
        let last = core::mem::replace(&mut self.last, rtt);
        if rtt < self.short / 4 * 3 {
            rtt.max(last)
        } else {
            rtt
        }
    }

    fn update(&mut self, now: Instant, rtt: Option<Nanos>) {
        let known = self.short != Nanos::MAX;
        self.expired = known && now.since(self.short_at) > PROBE_RTT_INTERVAL;
        let rtt = rtt.map(|rtt| self.filter_outlier(rtt));
        if let Some(rtt) = rtt
            && (rtt < self.short || self.expired)
        {
            self.short = rtt;
            self.short_at = now;
        }
        let long_expired = now.since(self.long_at) > MIN_RTT_FILTER;
        if self.short < self.long || long_expired {
            self.long = self.short;
            self.long_at = self.short_at;
        }
    }
}

/// The present `ProbeRTT` period.
#[derive(Clone, Debug)]
pub(super) struct ProbeRtt {
    /// The time at which the period may end; `None` until the amount in flight is low enough.
    done_at: Option<Instant>,
    round_done: bool,
}

impl ProbeRtt {
    pub(super) const fn new() -> Self {
        Self {
            done_at: None,
            round_done: false,
        }
    }
}

impl Bbr {
    pub(super) fn update_min_rtt(&mut self, ack: &Ack<'_>) {
        self.min_rtt.update(ack.sample.now, ack.sample.rtt);
    }

    /// Performs `CheckProbeRTT`.
    pub(super) fn check_probe_rtt(&mut self, window: &mut Cwnd, ack: &Ack<'_>) {
        if self.state != State::ProbeRtt && self.min_rtt.expired && !self.idle_restart {
            self.save_cwnd(window);
            self.state = State::ProbeRtt;
            self.probe_rtt = ProbeRtt::new();
            self.probe_bw.stop();
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(window, ack);
        }
        if ack.delivered > 0 {
            self.idle_restart = false;
        }
    }

    /// Performs `HandleProbeRTT`. [`is_self_limited`](crate::congestion::Algorithm::is_self_limited)
    /// marks the rate samples of this period as application-limited.
    fn handle_probe_rtt(&mut self, window: &mut Cwnd, ack: &Ack<'_>) {
        let now = ack.sample.now;
        if self.probe_rtt.done_at.is_none() {
            if ack.sample.in_flight_segs <= self.probe_rtt_cwnd() {
                self.probe_rtt.done_at = Some(now + PROBE_RTT_DURATION);
                self.start_round();
            }
            return;
        }
        self.probe_rtt.round_done |= self.rounds.start;
        if self.probe_rtt.round_done {
            self.check_probe_rtt_done(window, now);
        }
    }

    pub(super) fn check_probe_rtt_done(&mut self, window: &mut Cwnd, now: Instant) {
        if self.probe_rtt.done_at.is_none_or(|at| now <= at) {
            return;
        }
        // The next period is due one interval from now.
        self.min_rtt.short_at = now;
        self.restore_cwnd(window);
        self.short_term.reset();
        if self.full.reached {
            self.start_down(now);
            self.state = State::Cruise;
        } else {
            self.state = State::Startup;
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos};

    use super::MinRtt;

    #[test]
    fn the_least_round_trip_is_kept_for_ten_seconds() {
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let ms = Nanos::from_millis;
        let mut min = MinRtt::new();
        min.update(at(100), Some(ms(40)));
        assert_eq!((min.get(), min.expired), (Some(ms(40)), false));
        min.update(at(5000), Some(ms(60)));
        assert_eq!((min.get(), min.expired), (Some(ms(40)), false));
        min.update(at(5101), Some(ms(60)));
        assert_eq!((min.get(), min.expired), (Some(ms(40)), true));
        min.update(at(10_000), Some(ms(55)));
        assert_eq!(min.get(), Some(ms(40)));
        min.update(at(10_101), Some(ms(70)));
        assert_eq!(min.get(), Some(ms(55)), "the best of the last five seconds");
        min.update(at(10_102), Some(ms(30)));
        assert_eq!(min.get(), Some(ms(55)), "one may have jumped the way");
        min.update(at(10_103), Some(ms(31)));
        assert_eq!(min.get(), Some(ms(31)), "two are the path's");
    }
}
