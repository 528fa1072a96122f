//! Round-trip time and the retransmission timeout (RFC 6298).

use fullsend_wire::{Instant, Nanos, cold_path};

/// A retransmission timeout, always within its bounds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rto(Nanos);

impl Rto {
    /// Linux's `tcp_rto_min`; RFC 6298 (2.4) requires 1 s, which suits no data centre.
    pub(crate) const MIN: Nanos = Nanos::from_millis(200);
    /// The timeout before the first sample (RFC 6298 2.1).
    pub(crate) const INITIAL: Self = Self(Nanos::from_secs(1));
    /// The timeout if the handshake gave no sample (RFC 6298 5.7).
    const FALLBACK: Self = Self(Nanos::from_secs(3));

    /// Returns the timeout in nanoseconds.
    #[inline]
    pub(crate) const fn nanos(self) -> Nanos {
        self.0
    }

    /// Returns the timeout doubled `times` times (RFC 6298 5.5), at most `max`.
    #[inline]
    fn doubled(self, times: u8, max: Nanos) -> Self {
        Self((self.0 * (1 << times.min(31))).min(max))
    }
}

/// An estimator of a path's round-trip time, from which the timeout follows.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    srtt: Nanos,
    /// Before the first sample this holds the timeout (as Linux's `mdev_us`).
    rttvar: Nanos,
    min_rtt: WindowedMin,
    /// Whether there was a sample. A zero `srtt` does not show this: a round trip within one
    /// process can take no time at all.
    sampled: bool,
    backoff: u8,
    /// `tcp_rto_min_us`.
    rto_min_us: u32,
    /// `TCP_RTO_MAX_MS`, in steps of 2 ms.
    rto_max_2ms: u16,
}

impl RttEstimator {
    /// Creates an estimator without samples.
    pub(crate) const fn new(rto_min_us: u32, rto_max_ms: u32) -> Self {
        Self {
            rto_min_us,
            rto_max_2ms: (rto_max_ms / 2) as u16,
            srtt: Nanos::ZERO,
            rttvar: Rto::INITIAL.nanos(),
            min_rtt: WindowedMin::new(),
            sampled: false,
            backoff: 0,
        }
    }

    /// Processes an RTT sample (never of a retransmitted segment: Karn's algorithm) and ends any
    /// backoff. The sample of a segment that `overtook` others does not lower the minimum RTT.
    #[inline]
    pub(crate) fn on_sample(&mut self, now: Instant, rtt: Nanos, overtook: bool) {
        self.backoff = 0;
        if !overtook || !self.sampled {
            self.min_rtt.update(now, rtt);
        }
        if !self.sampled {
            cold_path();
            // RFC 6298 (2.2).
            self.sampled = true;
            self.srtt = rtt;
            self.rttvar = rtt / 2;
            return;
        }
        // RFC 6298 (2.3) with alpha 1/8 and beta 1/4. The mean rounds towards the sample, so that
        // differences of a few nanoseconds decay too.
        let error = self.srtt.abs_diff(rtt);
        self.rttvar = self.rttvar.saturating_sub(self.rttvar / 4) + error / 4;
        let step = Nanos::from_nanos(error.as_nanos().div_ceil(8));
        self.srtt = if rtt < self.srtt {
            self.srtt.saturating_sub(step)
        } else {
            self.srtt + step
        };
    }

    /// Returns the timeout, backoff included. Four times the variance counts as at least the
    /// minimum timeout, as on Linux: the round trip of a steady path still includes a delayed ACK
    /// now and then.
    #[inline]
    pub(crate) fn rto(&self) -> Rto {
        self.rto_backed_off(self.backoff)
    }

    /// Returns the timeout after it was doubled `backoff` times.
    #[inline]
    fn rto_backed_off(&self, backoff: u8) -> Rto {
        let base = if self.sampled {
            Rto(self.srtt + (self.rttvar * 4).max(self.rto_min()))
        } else {
            cold_path();
            Rto(self.rttvar)
        };
        base.doubled(backoff, self.rto_max())
    }

    /// Returns the maximum timeout. RFC 6298 (2.5) requires at least 60 s; applications may want to
    /// detect a dead path sooner.
    #[inline]
    pub(crate) fn rto_max(&self) -> Nanos {
        Nanos::from_millis(2 * u64::from(self.rto_max_2ms))
    }

    /// Sets the maximum timeout (`TCP_RTO_MAX_MS`).
    pub(crate) fn set_rto_max(&mut self, max: Nanos) {
        self.rto_max_2ms = (max.as_millis() / 2) as u16;
    }

    /// Returns the least time that a timeout adds to the round trip (`tcp_rto_min_us`).
    #[inline]
    pub(crate) fn rto_min(&self) -> Nanos {
        Nanos::from_micros(self.rto_min_us.into())
    }

    /// Returns [`rto`](Self::rto) without backoff.
    #[inline]
    pub(crate) fn base_rto(&self) -> Rto {
        self.rto_backed_off(0)
    }

    /// Doubles the next timeout after the timer fired (RFC 6298 5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Ends the backoff after new data was acknowledged.
    #[inline]
    pub(crate) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Returns how often the timer fired since the last progress.
    pub(crate) const fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Returns the smoothed round-trip time; `None` before the first sample.
    #[inline]
    pub(crate) fn srtt(&self) -> Option<Nanos> {
        self.sampled.then_some(self.srtt)
    }

    /// Returns the round-trip time variation; before the first sample a quarter of the timeout, as
    /// Linux reports it.
    pub(crate) fn rttvar(&self) -> Nanos {
        if self.sampled {
            self.rttvar
        } else {
            self.rttvar / 4
        }
    }

    /// Sets the timeout to 3 s if the handshake gave no sample (RFC 6298 5.7): the SYN or SYN-ACK
    /// was sent more than once, or the connection was created from a cookie. The first sample
    /// replaces it.
    pub(crate) fn use_fallback_rto(&mut self) {
        if !self.sampled {
            self.rttvar = Rto::FALLBACK.nanos();
        }
    }

    /// Returns the minimum round-trip time of about the last five minutes; `None` before the first
    /// sample.
    #[inline]
    pub(crate) fn min_rtt(&self) -> Option<Nanos> {
        self.sampled.then(|| self.min_rtt.get())
    }
}

/// A round-trip time and the time of its measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Saturates at 4.3 s.
    rtt_ns: u32,
    at_ms: u32,
}

/// The minimum over a sliding window, kept as the best, second best and third best of its parts
/// (Kathleen Nichols' algorithm).
#[derive(Clone, Copy, Debug)]
struct WindowedMin {
    best: [Sample; 3],
}

impl WindowedMin {
    /// Linux's `tcp_min_rtt_wlen`.
    const WINDOW_MS: u32 = 300_000;

    const fn new() -> Self {
        let none = Sample {
            rtt_ns: u32::MAX,
            at_ms: 0,
        };
        Self { best: [none; 3] }
    }

    #[inline]
    fn get(&self) -> Nanos {
        Nanos::from_nanos(u64::from(self.best[0].rtt_ns))
    }

    #[inline]
    fn update(&mut self, now: Instant, rtt: Nanos) {
        let new = Sample {
            rtt_ns: u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX),
            at_ms: now.as_millis() as u32,
        };
        let age = |s: &Sample| new.at_ms.wrapping_sub(s.at_ms);
        if new.rtt_ns <= self.best[0].rtt_ns || age(&self.best[2]) > Self::WINDOW_MS {
            cold_path();
            self.best = [new; 3];
            return;
        }
        if new.rtt_ns <= self.best[1].rtt_ns {
            cold_path();
            self.best[1] = new;
            self.best[2] = new;
        } else if new.rtt_ns <= self.best[2].rtt_ns {
            cold_path();
            self.best[2] = new;
        }
        self.expire(new);
    }

    /// Removes the best sample when it is too old, and ensures that the other two come from later
    /// parts of the window.
    fn expire(&mut self, new: Sample) {
        let age = |s: &Sample| new.at_ms.wrapping_sub(s.at_ms);
        if age(&self.best[0]) > Self::WINDOW_MS {
            cold_path();
            self.best = [self.best[1], self.best[2], new];
            if age(&self.best[0]) > Self::WINDOW_MS {
                self.best = [self.best[1], self.best[2], new];
            }
            return;
        }
        let same = |a: &Sample, b: &Sample| a.at_ms == b.at_ms;
        if same(&self.best[1], &self.best[0]) && age(&self.best[1]) > Self::WINDOW_MS / 4 {
            cold_path();
            self.best[1] = new;
            self.best[2] = new;
        } else if same(&self.best[2], &self.best[1]) && age(&self.best[2]) > Self::WINDOW_MS / 2 {
            cold_path();
            self.best[2] = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos, Rng, Seed};

    use super::{Rto, RttEstimator};

    fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    fn at(n: u64) -> Instant {
        Instant::ZERO + ms(n)
    }

    #[test]
    fn before_any_sample_the_timeout_is_one_second() {
        let mut rtt = RttEstimator::new(200_000, 120_000);
        assert_eq!(
            (rtt.rto().nanos(), rtt.srtt(), rtt.min_rtt()),
            (ms(1000), None, None)
        );
        rtt.back_off();
        assert_eq!(rtt.rto().nanos(), ms(2000));
    }

    /// RFC 6298 (2.2) and (2.3), computed by hand.
    #[test]
    fn follows_the_formulas() {
        let mut rtt = RttEstimator::new(200_000, 120_000);
        rtt.on_sample(at(0), ms(400), false);
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(400)), ms(200)));
        assert_eq!(rtt.rto().nanos(), ms(1200));
        rtt.on_sample(at(1), ms(480), false);
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(410)), ms(170)));
        assert_eq!(rtt.rto().nanos(), ms(410 + 680));
    }

    #[test]
    fn a_steady_path_keeps_the_minimum_above_its_round_trip() {
        let mut rtt = RttEstimator::new(200_000, 120_000);
        (0..100).for_each(|i| rtt.on_sample(at(i), ms(190), false));
        assert_eq!(rtt.rto().nanos(), ms(390));
    }

    #[test]
    fn backoff_doubles_up_to_the_bound_and_ends_with_a_sample() {
        let mut rtt = RttEstimator::new(200_000, 120_000);
        rtt.on_sample(at(0), ms(100), false);
        let first = rtt.rto().nanos();
        rtt.back_off();
        assert_eq!(rtt.rto().nanos(), first * 2);
        (0..255).for_each(|_| rtt.back_off());
        assert_eq!((rtt.rto(), rtt.backoff()), (Rto(rtt.rto_max()), 255));
        rtt.on_sample(at(1), ms(100), false);
        assert_eq!((rtt.rto().nanos(), rtt.backoff()), (first, 0));
    }

    #[test]
    fn round_trips_of_no_time_are_round_trips() {
        let mut rtt = RttEstimator::new(200_000, 120_000);
        for i in 0..100 {
            rtt.on_sample(at(i), Nanos::from_nanos(i % 3), false);
        }
        assert_eq!(rtt.min_rtt(), Some(Nanos::ZERO));
        assert!(rtt.rto().nanos() < Rto::MIN + Nanos::from_micros(1));
        rtt.on_sample(at(200), Nanos::MAX, false);
        assert_eq!(rtt.rto().nanos(), rtt.rto_max());
    }

    #[test]
    fn the_minimum_of_five_minutes_is_kept() {
        let mut rtt = RttEstimator::new(200_000, 120_000);
        rtt.on_sample(at(0), ms(10), false);
        for s in 1..299 {
            rtt.on_sample(at(s * 1000), ms(50 + s % 7), false);
            assert_eq!(rtt.min_rtt(), Some(ms(10)));
        }
        for s in 299..700 {
            rtt.on_sample(at(s * 1000), ms(50 + s % 7), false);
        }
        assert_eq!(rtt.min_rtt(), Some(ms(50)));
    }

    /// The RTT of a segment that overtook others is not a property of the path.
    #[test]
    fn a_segment_that_overtook_others_does_not_lower_the_minimum() {
        let mut rtt = RttEstimator::new(200_000, 120_000);
        rtt.on_sample(at(0), ms(80), true);
        assert_eq!(rtt.min_rtt(), Some(ms(80)), "the first is all there is");
        rtt.on_sample(at(1), ms(40), true);
        assert_eq!((rtt.min_rtt(), rtt.srtt()), (Some(ms(80)), Some(ms(75))));
        rtt.on_sample(at(2), ms(40), false);
        assert_eq!(rtt.min_rtt(), Some(ms(40)));
    }

    /// The estimate lies between the true minimum of the window and that of its last quarter.
    #[test]
    fn the_windowed_minimum_is_close_to_the_true_one() {
        let mut rng = Rng::new(Seed::from_u64(3));
        let mut rtt = RttEstimator::new(200_000, 120_000);
        let mut seen = alloc::vec::Vec::new();
        for s in 0..3000u64 {
            let sample = ms(20 + rng.below(100) + if s > 1500 { 200 } else { 0 });
            rtt.on_sample(at(s * 1000), sample, false);
            seen.push(sample);
            let last = |n: usize| seen.iter().rev().take(n).min().copied();
            let min = rtt.min_rtt();
            assert!(min >= last(302) && min <= last(75), "{s}: {min:?}");
        }
    }
}
