//! Log lines about refusals, limited so that a guest cannot fill the log.

use std::hash::Hash;
use std::sync::atomic::AtomicU64;

use fullsend_device::LogLimit;
use tokio::time::Instant;

use crate::counters::add;

/// The log lines of the refusals of one guest.
#[derive(Default)]
pub(crate) struct RefusalLog(LogLimit);

impl RefusalLog {
    /// Logs the refusal of `subject`. If that has been logged recently, or there have been too many
    /// lines for one of `parts` shares, counts it in `suppressed` instead.
    pub(crate) fn write(
        &self,
        (now, parts): (Instant, u32),
        suppressed: &AtomicU64,
        subject: impl Hash,
        line: impl FnOnce() -> String,
    ) {
        if self.0.admits_share(now.into_std(), subject, parts) {
            tracing::warn!("{}", line());
        } else {
            add(suppressed, 1);
        }
    }

    /// Returns the number of refusals that had no line, once a minute; `at_once` without waiting.
    pub(crate) fn take_suppressed(&self, now: Instant, at_once: bool) -> u64 {
        let number = self.0.take_suppressed(now.into_std(), at_once);
        number.unwrap_or(0)
    }
}
