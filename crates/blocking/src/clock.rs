//! What time it is.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time;

use fullsend_units::Instant;

/// Where a stack takes its time from.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Real(time::Instant),
    Manual(Arc<AtomicU64>),
    Asked(Arc<dyn Fn() -> u64 + Send + Sync>),
}

impl Clock {
    /// The system's monotonic clock, from now on.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where a driven stack's time comes from"
    )]
    pub fn real() -> Self {
        Self(Source::Real(time::Instant::now()))
    }

    /// A clock that stands still until [`Clock::advance_to`].
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::default()))
    }

    /// Asks `now` for the time, ns since anything that does not change. It must not go back.
    pub fn asked(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Source::Asked(Arc::new(now)))
    }

    /// What time it is.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::Real(start) => {
                let span = start.elapsed();
                // 64 bits of nanoseconds are 584 years.
                Instant::from_nanos(span.as_secs() * 1_000_000_000 + u64::from(span.subsec_nanos()))
            }
            Source::Manual(ns) => Instant::from_nanos(ns.load(Ordering::Acquire)),
            Source::Asked(now) => Instant::from_nanos(now()),
        }
    }

    /// Sets a manual clock, if that is later than what it shows. The stack notices at its next
    /// turn. Other clocks go by themselves.
    pub fn advance_to(&self, at: Instant) {
        if let Source::Manual(ns) = &self.0 {
            ns.fetch_max(at.as_nanos(), Ordering::AcqRel);
        }
    }

    /// A sleep of so and so long is as long on this clock.
    pub(crate) const fn is_real(&self) -> bool {
        matches!(self.0, Source::Real(_))
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
