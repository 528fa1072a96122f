//! Log lines about refusals, limited so that a guest cannot fill the log.

use std::hash::Hash;
use std::sync::atomic::AtomicU64;

use fullsend_device::LogLimit;
use tokio::time::Instant;

use crate::counters::add;

/// The log lines of a guest's refusals.
#[derive(Default)]
pub(crate) struct RefusalLog(LogLimit);

impl RefusalLog {
    /// Logs the refusal of `subject`. Counts it in `suppressed` instead if it was logged recently or
    /// there were too many lines.
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

    /// Logs the number of suppressed refusals, at most once a minute, or now if `at_once` is set.
    pub(crate) fn write_suppressed(&self, now: Instant, at_once: bool) {
        if let Some(number) = self.0.take_suppressed(now.into_std(), at_once) {
            tracing::warn!("{number} more refusals, which are counted and not logged one by one");
        }
    }
}
