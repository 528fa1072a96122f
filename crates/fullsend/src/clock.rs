//! The stack's clock. No other module reads the time.

#[cfg(feature = "control")]
use std::time::SystemTime;

use fullsend_wire::Instant;
use tokio::time;

/// Time since the stack's start. It uses tokio's clock, so that pausing the runtime's time pauses
/// the stack too. The two ends of an in-process link share one clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: time::Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            start: time::Instant::now(),
        }
    }

    // Not inlined: its callers read the time in branches that few packets take.
    #[inline(never)]
    pub(crate) fn now(self) -> Instant {
        let span = time::Instant::now() - self.start;
        // 64 bits of nanoseconds last 584 years.
        Instant::from_nanos(span.as_secs() * 1_000_000_000 + u64::from(span.subsec_nanos()))
    }

    /// Returns the time at which the runtime's timer should fire for `at`.
    pub(crate) fn timer(self, at: Instant) -> time::Instant {
        // Tokio's timer wheel ends at about two years.
        let last = u64::from(u32::MAX) * 10_000_000;
        self.runtime_instant(at.min(Instant::from_nanos(last)))
    }

    /// Returns the runtime's instant of `at`.
    pub(crate) fn runtime_instant(self, at: Instant) -> time::Instant {
        self.start + at.since(Instant::ZERO).into()
    }
}

impl fullsend_driver::Clock for Clock {
    #[inline]
    fn now(&self) -> Instant {
        Self::now(*self)
    }
}

/// Returns the time of day, in ns since the Unix epoch.
#[cfg(feature = "control")]
#[allow(
    clippy::disallowed_methods,
    reason = "tools and recordings show real times"
)]
pub(crate) fn wall_clock_ns() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
