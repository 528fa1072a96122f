//! The clock of a stack.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time;

use fullsend_wire::Instant;

/// A source of time for a stack.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    Real(time::Instant),
    Manual(Arc<AtomicU64>),
    Callback(Arc<dyn Fn() -> u64 + Send + Sync>),
}

impl Clock {
    /// Returns the system's monotonic clock, starting at zero now.
    #[allow(
        clippy::disallowed_methods,
        reason = "the driver reads the clock for the sans-IO core"
    )]
    pub fn real() -> Self {
        Self(ClockSource::Real(time::Instant::now()))
    }

    /// Returns a clock that starts at zero and only changes by [`Clock::advance_to`].
    pub fn manual() -> Self {
        Self(ClockSource::Manual(Arc::default()))
    }

    /// Returns a clock that calls `now` for the time in ns since any fixed point. `now` must never return
    /// less than before.
    pub fn from_fn(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(ClockSource::Callback(Arc::new(now)))
    }

    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            ClockSource::Real(start) => {
                let span = start.elapsed();
                // 64 bits of nanoseconds last 584 years.
                Instant::from_nanos(span.as_secs() * 1_000_000_000 + u64::from(span.subsec_nanos()))
            }
            ClockSource::Manual(ns) => Instant::from_nanos(ns.load(Ordering::Acquire)),
            ClockSource::Callback(now) => Instant::from_nanos(now()),
        }
    }

    /// Advances a manual clock to `at` if that is later. The stack notices at its next call of
    /// [`Stack::run_timers`](crate::Stack::run_timers). Has no effect on other clocks.
    pub fn advance_to(&self, at: Instant) {
        if let ClockSource::Manual(ns) = &self.0 {
            ns.fetch_max(at.as_nanos(), Ordering::AcqRel);
        }
    }

    /// Returns whether a sleep of the system takes the same time on this clock.
    pub(crate) const fn is_real(&self) -> bool {
        matches!(self.0, ClockSource::Real(_))
    }
}

impl fullsend_driver::Clock for Clock {
    #[inline]
    fn now(&self) -> Instant {
        Self::now(self)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}
