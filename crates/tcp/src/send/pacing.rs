//! The pacing rate and departure times, which the fq queueing discipline enforces, or without it a
//! timer of the connection.

use alloc::boxed::Box;

use fullsend_wire::{Instant, Nanos, Rate, cold_path};

use super::Sender;
use crate::congestion::{Congestion, Cwnd, HEADERS_BYTES};
use crate::recovery::Recovery;
use crate::rtt::RttEstimator;
use crate::{Cx, Sysctl};

/// A super-segment, and the amount in the host's queues, is about what the pacing rate carries in
/// 2^-10 s.
pub(super) const PACING_SHIFT: u32 = 10;

/// The first segments of a connection, which are not paced: the path is not measured yet.
const UNPACED_SEGS: u32 = 10;

/// The most lateness of its own timer that a connection compensates: the horizon of data in fq.
const MAX_CATCH_UP: Nanos = Nanos::from_millis(1);

/// The departure times of a paced connection: its packets pass fq, its congestion control paces, or
/// `SO_MAX_PACING_RATE` is set.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    /// `SO_MAX_PACING_RATE`.
    pub(crate) max_rate: Rate,
    /// The time at which the next super-segment may leave.
    next: Instant,
    /// The connection waits for its own timer.
    is_waiting: bool,
    /// Delay of departures because that timer was late.
    timer_lateness: Nanos,
}

impl Pacing {
    pub(crate) const fn new(max_rate: Rate) -> Self {
        Self {
            max_rate,
            next: Instant::ZERO,
            is_waiting: false,
            timer_lateness: Nanos::ZERO,
        }
    }

    /// Returns whether the next super-segment must wait for the connection's own timer.
    fn holds(&mut self, now: Instant) -> bool {
        let holds = now < self.next;
        if self.is_waiting && !holds {
            self.timer_lateness = now.since(self.next).min(MAX_CATCH_UP);
        }
        self.is_waiting = holds;
        holds
    }

    /// Returns the departure time of `bytes`, and schedules the next departure one gap later: the
    /// time that `bytes` take at `rate`. Compensates late senders by up to half a gap. Compensates
    /// the lateness of the connection's own timer whole, since at 10 Gbit/s a process's timer is
    /// late by about a gap, and BBR would take that for the path's rate. (fq gets departure times
    /// in advance.)
    fn schedule_departure(&mut self, now: Instant, bytes: u32, rate: Rate) -> Instant {
        let departure = now.max(self.next);
        let gap = rate.time_for(bytes.into());
        let late = if self.next == Instant::ZERO {
            Nanos::ZERO
        } else {
            departure.since(self.next)
        };
        let timer_lateness = late.min(self.timer_lateness);
        let idle = late.saturating_sub(timer_lateness).min(gap / 2);
        self.next = departure - timer_lateness + gap.saturating_sub(idle);
        self.timer_lateness = departure.since(self.next);
        departure
    }
}

/// Returns the pacing rate in percent of cwnd per round trip. Slow start's ratio ends at half of
/// `ssthresh`, a round trip before slow start does.
fn ratio_percent(window: &Cwnd, sysctl: &Sysctl) -> u32 {
    if window.cwnd < window.ssthresh / 2 {
        sysctl.tcp_pacing_ss_ratio
    } else {
        sysctl.tcp_pacing_ca_ratio
    }
}

/// The state of the connection's other parts that pacing and the size of super-segments depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<'a> {
    pub(super) congestion: &'a Congestion,
    pub(super) rtt: &'a RttEstimator,
    /// Segments in flight, lost ones included.
    pub(super) packets_out: u32,
}

impl<'a> Path<'a> {
    /// Returns the estimates of the path by `congestion`, `rtt` and `recovery`.
    #[inline]
    pub(crate) fn new(
        congestion: &'a Congestion,
        rtt: &'a RttEstimator,
        recovery: &Recovery,
    ) -> Self {
        Self {
            congestion,
            rtt,
            packets_out: recovery.rtx.packets_out(),
        }
    }
}

impl Sender {
    /// Returns the pacing rate: cwnd per round trip, times a ratio that leaves cwnd room to grow.
    /// Unlimited before the first round-trip sample.
    pub(crate) fn pacing_rate(&self, path: Path<'_>, sysctl: &Sysctl) -> Rate {
        let max = self.pacing.as_ref().map_or(u64::MAX, |p| p.max_rate.0);
        if let Some(rate) = path.congestion.algorithm().pacing_rate() {
            return Rate(rate.0.min(max));
        }
        let Some(srtt) = path.rtt.srtt() else {
            return Rate(max);
        };
        let percent = ratio_percent(path.congestion.window(), sysctl);
        let segs = path.congestion.cwnd().max(path.packets_out);
        let bytes = u64::from(self.mss.bytes()) * u64::from(segs) * u64::from(percent);
        let per_second = bytes.saturating_mul(10_000_000) / srtt.as_nanos().max(1);
        Rate(per_second.min(max))
    }

    /// Returns whether the connection's own timer enforces departure times.
    #[inline]
    fn is_self_paced(&self, cx: &Cx<'_>, path: Path<'_>) -> bool {
        match &self.pacing {
            Some(pacing) if !cx.device.fq => {
                cold_path();
                pacing.max_rate != Rate::UNLIMITED
                    || path.congestion.algorithm().pacing_rate().is_some()
            }
            _ => false,
        }
    }

    /// Returns whether departure times are enforced, by fq or by the connection.
    #[inline]
    pub(super) fn is_paced(&self, cx: &Cx<'_>, path: Path<'_>) -> bool {
        cx.device.fq || self.is_self_paced(cx, path)
    }

    /// Returns whether data must wait for its departure time here, and arms the timer for it.
    #[inline]
    pub(crate) fn pacing_holds(&mut self, cx: &Cx<'_>, path: Path<'_>) -> bool {
        if !self.is_self_paced(cx, path) {
            return false;
        }
        let Some(pacing) = &mut self.pacing else {
            return false;
        };
        if !pacing.holds(cx.now) {
            return false;
        }
        let next = pacing.next;
        self.flow(cx.now).set_send_timer(next);
        true
    }

    /// Returns how long the next super-segment has to wait for its departure: the retransmission
    /// timer is extended by it.
    pub(crate) fn pacing_delay(&self, now: Instant) -> Nanos {
        let next = self.pacing.as_ref().map(|p| p.next);
        next.map_or(Nanos::ZERO, |next| next.since(now))
    }

    /// Returns when a super-segment that is sent now leaves: with fq, not before earlier ones.
    pub(super) fn departure_time(&self, cx: &Cx<'_>) -> Instant {
        let next = self.pacing.as_ref().filter(|_| cx.device.fq);
        next.map_or(cx.now, |pacing| cx.now.max(pacing.next))
    }

    /// Returns the departure time of a super-segment with `len` bytes of payload in `segs`
    /// segments, for fq to enforce; zero means at once. `sent` segments of data were sent, including
    /// these.
    #[inline]
    pub(crate) fn schedule_departure(
        &mut self,
        cx: &Cx<'_>,
        path: Path<'_>,
        (len, segs): (u32, u32),
        sent: u32,
    ) -> Instant {
        // Congestion control that paces has allocated it.
        if self.pacing.is_none() && !cx.device.fq {
            return Instant::ZERO;
        }
        cold_path();
        self.schedule_paced_departure(cx, path, len + segs * HEADERS_BYTES, sent)
    }

    fn schedule_paced_departure(
        &mut self,
        cx: &Cx<'_>,
        path: Path<'_>,
        bytes: u32,
        sent: u32,
    ) -> Instant {
        if !self.is_paced(cx, path) {
            return Instant::ZERO;
        }
        let rate = if sent < UNPACED_SEGS {
            Rate::UNLIMITED
        } else {
            self.pacing_rate(path, cx.sysctl)
        };
        let new_pacing = || Box::new(Pacing::new(Rate::UNLIMITED));
        let pacing = self.pacing.get_or_insert_with(new_pacing);
        let departure = pacing.schedule_departure(cx.now, bytes, rate);
        if cx.device.fq {
            departure
        } else {
            Instant::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos, Rate};

    use super::{Pacing, ratio_percent};
    use crate::Sysctl;
    use crate::congestion::Cwnd;

    /// Spec 1.7: 200 % below half of ssthresh, 120 % from there on.
    #[test]
    fn slow_starts_ratio_ends_at_half_of_ssthresh() {
        let percent = |cwnd, ssthresh| {
            let window = Cwnd {
                cwnd,
                ssthresh,
                ..Cwnd::default()
            };
            ratio_percent(&window, &Sysctl::default())
        };
        assert_eq!(percent(10, u32::MAX), 200);
        assert_eq!(percent(49, 100), 200);
        assert_eq!(percent(50, 100), 120);
        assert_eq!(percent(99, 100), 120);
        assert_eq!(percent(100, 100), 120);
    }

    #[test]
    fn departures_keep_the_rate_and_compensate_half_a_gap() {
        let at = |us| Instant::ZERO + Nanos::from_micros(us);
        let mut pacing = Pacing::new(Rate::UNLIMITED);
        let mut schedule_departure = |us| {
            let departure = pacing.schedule_departure(at(us), 1000, Rate(1_000_000));
            (departure, pacing.next)
        };
        assert_eq!(schedule_departure(1000), (at(1000), at(2000)));
        assert_eq!(
            schedule_departure(1000),
            (at(2000), at(3000)),
            "ahead of time"
        );
        assert_eq!(
            schedule_departure(3300),
            (at(3300), at(4000)),
            "late by 0.3 of a gap"
        );
        assert_eq!(
            schedule_departure(9000),
            (at(9000), at(9500)),
            "late by five gaps"
        );
    }
    #[test]
    fn timer_lateness_is_compensated_up_to_a_millisecond() {
        let at = |us| Instant::ZERO + Nanos::from_micros(us);
        let mut pacing = Pacing::new(Rate::UNLIMITED);
        // Each departure takes 50 us.
        let mut schedule_departure = |us| {
            assert!(!pacing.holds(at(us)));
            let departure = pacing.schedule_departure(at(us), 50, Rate(1_000_000));
            let holds = pacing.holds(at(us));
            (departure, pacing.next, holds)
        };
        assert_eq!(schedule_departure(1000), (at(1000), at(1050), true));
        assert_eq!(
            schedule_departure(1090),
            (at(1090), at(1100), true),
            "late by 40 us"
        );
        assert_eq!(
            schedule_departure(1230),
            (at(1230), at(1150), false),
            "late by 130 us"
        );
        assert_eq!(
            schedule_departure(1230),
            (at(1230), at(1200), false),
            "80 left"
        );
        assert_eq!(
            schedule_departure(1230),
            (at(1230), at(1250), true),
            "30 left"
        );
        // A whole millisecond, and half a gap of the rest.
        assert_eq!(
            schedule_departure(9250),
            (at(9250), at(8275), false),
            "late by 8 ms"
        );
        for n in 1..=20 {
            let next = at(8275 + n * 50);
            assert_eq!(schedule_departure(9250), (at(9250), next, n == 20), "{n}");
        }
    }

    /// A sender that is late without having waited recovers at most half a gap: only the delay of
    /// the connection's own timer counts in full.
    #[test]
    fn only_the_timers_delay_counts_in_full() {
        let at = |us| Instant::ZERO + Nanos::from_micros(us);
        let next = |waited: bool| {
            let mut pacing = Pacing::new(Rate::UNLIMITED);
            // Each departure takes 50 us.
            pacing.schedule_departure(at(1000), 50, Rate(1_000_000));
            assert!(!waited || pacing.holds(at(1049)));
            assert!(!pacing.holds(at(1090)));
            pacing.schedule_departure(at(1090), 50, Rate(1_000_000));
            pacing.next
        };
        assert_eq!(next(true), at(1100));
        assert_eq!(next(false), at(1115));
    }
}
