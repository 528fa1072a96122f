//! The pacing rate, and the times of departure when somebody asked for them.

use fullsend_units::{Instant, Nanos, Rate};

use crate::{Connection, Sysctl};

/// So many segments leave unpaced as a connection starts: nothing is known of the path yet.
const UNPACED_SEGS: u32 = 10;

/// Enforces a rate inside of TCP (where no queueing discipline does). Only connections with
/// `SO_MAX_PACING_RATE`, or a congestion control that paces, have one.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    /// `SO_MAX_PACING_RATE`.
    pub(crate) max_rate: Rate,
    /// When the next transmit unit may leave.
    next: Instant,
    /// When to try again; `FAR_FUTURE` when nothing waits.
    pub(crate) wake_at: Instant,
}

impl Pacing {
    pub(crate) fn new(max_rate: Rate) -> Self {
        Self {
            max_rate,
            next: Instant::ZERO,
            wake_at: Instant::FAR_FUTURE,
        }
    }

    /// The next unit must wait; sees to it that somebody calls again.
    #[inline]
    pub(crate) fn holds(&mut self, now: Instant) -> bool {
        let holds = now < self.next;
        self.wake_at = if holds {
            self.next
        } else {
            Instant::FAR_FUTURE
        };
        holds
    }

    /// `bytes` leave: the next may follow when they have passed at `rate`. Lateness is made good,
    /// but never more than half of a gap.
    fn on_sent(&mut self, now: Instant, bytes: u64, rate: Rate) {
        let gap = rate.time_for(bytes);
        let late = if self.next == Instant::ZERO {
            Nanos::ZERO
        } else {
            now.since(self.next)
        };
        let credit = late.min(gap / 2);
        self.next = now + gap.saturating_sub(credit);
    }
}

impl Connection {
    /// cwnd per round trip, and a margin so that pacing does not hold growth back. Unlimited
    /// before the first round-trip sample.
    pub(crate) fn pacing_rate(&self, sysctl: &Sysctl) -> Rate {
        let max = self.snd.pacing.as_ref().map_or(u64::MAX, |p| p.max_rate.0);
        if let Some(rate) = self.cc.pacing_rate() {
            return Rate(rate.0.min(max));
        }
        let Some(srtt) = self.rtt.srtt() else {
            return Rate(max);
        };
        let percent = if self.cwnd.cwnd < self.cwnd.ssthresh / 2 {
            sysctl.tcp_pacing_ss_ratio
        } else {
            sysctl.tcp_pacing_ca_ratio
        };
        let segs = self.cwnd.cwnd.max(self.snd.rtx.packets_out());
        let bytes = u64::from(self.snd.mss.bytes()) * u64::from(segs) * u64::from(percent);
        let per_second = bytes.saturating_mul(10_000_000) / srtt.as_nanos().max(1);
        Rate(per_second.min(max))
    }

    /// Text leaves; `len` counts it with its headers.
    pub(crate) fn pace(&mut self, now: Instant, sysctl: &Sysctl, len: u64) {
        if self.snd.pacing.is_none() || self.stats.data_segs_out <= UNPACED_SEGS {
            return;
        }
        let rate = self.pacing_rate(sysctl);
        if let Some(pacing) = &mut self.snd.pacing {
            pacing.on_sent(now, len, rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Nanos, Rate};

    use super::Pacing;

    #[test]
    fn departures_keep_the_rate_and_make_up_for_half_a_gap() {
        let at = |us| Instant::ZERO + Nanos::from_micros(us);
        let mut pacing = Pacing::new(Rate::UNLIMITED);
        let rate = Rate(1_000_000);
        pacing.on_sent(at(1000), 1000, rate);
        assert!(pacing.holds(at(1999)));
        assert_eq!(pacing.wake_at, at(2000));
        assert!(!pacing.holds(at(2000)));
        pacing.on_sent(at(2300), 1000, rate);
        assert!(pacing.holds(at(2999)) && !pacing.holds(at(3000)));
        pacing.on_sent(at(9000), 1000, rate);
        assert!(pacing.holds(at(9499)) && !pacing.holds(at(9500)));
    }
}
