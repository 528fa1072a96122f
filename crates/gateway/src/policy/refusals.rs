//! Log lines about refusals, as many as a log can hold whatever the guest does.

use std::hash::Hash;
use std::sync::atomic::AtomicU64;

use fullsend_device::LogLimit;
use tokio::time::Instant;

use crate::counters::add;

/// The log lines of a guest's refusals.
#[derive(Default)]
pub(crate) struct RefusalLog(LogLimit);

impl RefusalLog {
    /// Logs the refusal of `subject`. If that has been logged recently, or there have been too many
    /// lines, counts it in `suppressed` instead.
    pub(crate) fn write(
        &self,
        now: Instant,
        suppressed: &AtomicU64,
        subject: impl Hash,
        line: impl FnOnce() -> String,
    ) {
        if self.0.admits(now.into_std(), subject) {
            tracing::warn!("{}", line());
        } else {
            add(suppressed, 1);
        }
    }

    /// Logs once a minute the number of refusals that had no line; `at_once` without waiting.
    pub(crate) fn write_suppressed(&self, now: Instant, at_once: bool) {
        if let Some(number) = self.0.take_suppressed(now.into_std(), at_once) {
            tracing::warn!("{number} more refusals, which are counted and not logged one by one");
        }
    }
}
