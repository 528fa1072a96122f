//! Log lines about refusals, as many as a log can hold whatever the guest does.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::counters::add;

/// Most lines at once.
const BURST: u32 = 20;
/// Interval between lines in the long run: ten a minute, about 2 MB a day.
const INTERVAL: Duration = Duration::from_secs(6);

/// The log lines of a guest's refusals.
pub(crate) struct RefusalLog(Mutex<State>);

struct State {
    /// Lines that may be written.
    lines: u32,
    /// When the last of them was added.
    refilled: Option<Instant>,
    /// Refusals without a line since the last summary.
    suppressed: u64,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self(Mutex::new(State {
            lines: BURST,
            refilled: None,
            suppressed: 0,
        }))
    }
}

impl RefusalLog {
    /// Logs a refusal, or counts it in `suppressed` if there have been too many lines.
    pub(crate) fn write(
        &self,
        now: Instant,
        suppressed: &AtomicU64,
        line: impl FnOnce() -> String,
    ) {
        let has_line = self.0.lock().take_line(now);
        if has_line {
            tracing::warn!("{}", line());
        } else {
            add(suppressed, 1);
        }
    }

    /// Logs the number of refusals that had no line, once there may be lines again.
    pub(crate) fn write_suppressed(&self, now: Instant) {
        let number = self.0.lock().take_suppressed(now);
        if let Some(number) = number {
            tracing::warn!("{number} more refusals, which are counted and not logged one by one");
        }
    }
}

impl State {
    /// Returns whether a refusal may be logged.
    fn take_line(&mut self, now: Instant) -> bool {
        self.refill(now);
        // The last line is that of the summary.
        let has_line = self.lines > 1;
        if has_line {
            self.lines -= 1;
        } else {
            self.suppressed += 1;
        }
        has_line
    }

    fn take_suppressed(&mut self, now: Instant) -> Option<u64> {
        self.refill(now);
        if self.suppressed == 0 || self.lines == 0 {
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    fn refill(&mut self, now: Instant) {
        let refilled = *self.refilled.get_or_insert(now);
        let intervals = now.duration_since(refilled).as_nanos() / INTERVAL.as_nanos();
        let new = u32::try_from(intervals).unwrap_or(BURST).min(BURST);
        self.lines = BURST.min(self.lines + new);
        self.refilled = Some(match self.lines {
            BURST => now,
            _ => refilled + INTERVAL * new,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_has_few_lines_and_each_is_counted() {
        let mut state = RefusalLog::default().0.into_inner();
        let start = Instant::now();
        let (mut lines, mut summaries, mut counted) = (0, 0, 0);
        for ms in 0..600_000 {
            let now = start + Duration::from_millis(ms);
            if state.take_line(now) {
                lines += 1;
            }
            if ms % 1000 == 0
                && let Some(number) = state.take_suppressed(now)
            {
                summaries += 1;
                counted += number;
            }
        }
        assert!(
            (100..=120).contains(&(lines + summaries)),
            "{lines} {summaries}"
        );
        assert_eq!(lines + counted + state.suppressed, 600_000);
        assert!(state.suppressed <= 6000 && lines >= 19, "{lines}");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_pause_there_are_lines_again() {
        let mut state = RefusalLog::default().0.into_inner();
        let start = Instant::now();
        assert_eq!((0..100).filter(|_| state.take_line(start)).count(), 19);
        assert_eq!(state.take_suppressed(start), Some(81));
        assert_eq!(state.take_suppressed(start), None);
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..100).filter(|_| state.take_line(later)).count(), 19);
        assert_eq!(state.take_suppressed(later), Some(81));
    }
}
