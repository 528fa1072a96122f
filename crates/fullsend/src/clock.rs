//! The one place that reads the time.

use fullsend_units::{Instant, Nanos};
use tokio::time;

/// Time since the stack's start. Tokio's clock, so that a paused runtime pauses the stack too.
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

    #[inline]
    pub(crate) fn now(self) -> Instant {
        Instant::ZERO + Nanos::from(time::Instant::now() - self.start)
    }

    /// When the runtime's timer should fire for `at`.
    pub(crate) fn timer(self, at: Instant) -> time::Instant {
        // Tokio's wheel ends at about two years.
        let span = at.as_nanos().min(u64::from(u32::MAX) * 10_000_000);
        self.start + Nanos::from_nanos(span).into()
    }
}
