//! Log lines about refusals, as many as a log can hold whatever the guest does.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::counters::add;

/// Most lines at once.
const BURST: u32 = 20;
/// Interval between lines in the long run: ten a minute, about 2 MB a day.
const INTERVAL: Duration = Duration::from_secs(6);
/// For how long a refusal is not logged again, and how often the others are summed up.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Most refusals that are remembered for that.
const RECENT_MAX: usize = 64;

/// The log lines of a guest's refusals.
pub(crate) struct RefusalLog(Mutex<State>);

struct State {
    /// Lines that may be written.
    lines: u32,
    /// When the last of them was added.
    refilled: Option<Instant>,
    /// The last refusals with a line: a hash of what was refused, and when.
    recent: VecDeque<(u64, Instant)>,
    /// Refusals without a line since the last summary.
    suppressed: u64,
    /// When the first of them was.
    suppressed_since: Option<Instant>,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self(Mutex::new(State {
            lines: BURST,
            refilled: None,
            recent: VecDeque::new(),
            suppressed: 0,
            suppressed_since: None,
        }))
    }
}

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
        let mut hasher = DefaultHasher::new();
        subject.hash(&mut hasher);
        let has_line = self.0.lock().take_line(now, hasher.finish());
        if has_line {
            tracing::warn!("{}", line());
        } else {
            add(suppressed, 1);
        }
    }

    /// Logs once a minute the number of refusals that had no line; `at_once` without waiting.
    pub(crate) fn write_suppressed(&self, now: Instant, at_once: bool) {
        let number = self.0.lock().take_suppressed(now, at_once);
        if let Some(number) = number {
            tracing::warn!("{number} more refusals, which are counted and not logged one by one");
        }
    }
}

impl State {
    /// Returns whether a refusal of this subject may be logged.
    fn take_line(&mut self, now: Instant, subject: u64) -> bool {
        self.refill(now);
        let is_recent = |(other, at): &(u64, Instant)| {
            *other == subject && now.duration_since(*at) < REPEAT_INTERVAL
        };
        if self.lines == 0 || self.recent.iter().any(is_recent) {
            self.suppressed += 1;
            self.suppressed_since.get_or_insert(now);
            return false;
        }
        self.lines -= 1;
        self.recent.truncate(RECENT_MAX - 1);
        self.recent.push_front((subject, now));
        true
    }

    fn take_suppressed(&mut self, now: Instant, at_once: bool) -> Option<u64> {
        let since = self.suppressed_since?;
        if !at_once && now.duration_since(since) < REPEAT_INTERVAL {
            return None;
        }
        self.suppressed_since = None;
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
            if state.take_line(now, ms) {
                lines += 1;
            }
            if ms % 1000 == 0
                && let Some(number) = state.take_suppressed(now, false)
            {
                summaries += 1;
                counted += number;
            }
        }
        assert!((110..=121).contains(&lines), "{lines}");
        assert_eq!(summaries, 9);
        assert_eq!(lines + counted + state.suppressed, 600_000);
        assert_eq!(state.recent.len(), RECENT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_pause_there_are_lines_again() {
        let mut state = RefusalLog::default().0.into_inner();
        let mut lines_at = |now| (0..100).filter(|n| state.take_line(now, *n)).count();
        let start = Instant::now();
        assert_eq!(lines_at(start), 20);
        assert_eq!(lines_at(start + Duration::from_secs(3600)), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_not_logged_again_for_a_minute() {
        let mut state = RefusalLog::default().0.into_inner();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(state.take_line(start, 1));
        assert!(!state.take_line(at(1), 1));
        assert!(state.take_line(at(1), 2));
        assert!(!state.take_line(at(59), 1));
        assert_eq!(state.take_suppressed(at(60), false), None);
        assert!(state.take_line(at(60), 1));
        assert_eq!(state.take_suppressed(at(61), false), Some(2));
        assert_eq!(state.take_suppressed(at(200), true), None);
        assert!(!state.take_line(at(61), 1));
        assert_eq!(state.take_suppressed(at(61), true), Some(1));
    }
}
