//! Limits of log lines that a guest or another program can cause.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Most lines at once.
const BURST: u32 = 20;
/// Interval between lines in the long run: ten per minute, about 2 MB per day.
const INTERVAL: Duration = Duration::from_secs(6);
/// Time during which a subject is not logged again, and after which [`LogLimit::take_suppressed`] returns
/// a number.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// Most subjects that are remembered for [`REPEAT_INTERVAL`].
const RECENT_MAX: usize = 64;

/// A limit of log lines: 20 at once, ten per minute in the long run, and one per minute about the same
/// subject.
///
/// A limit applies to one kind of event, for all guests and connections of the process: a client that
/// reconnects repeatedly gets no further lines.
#[derive(Debug)]
pub struct LogLimit(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The number of lines that may be written now.
    lines: u32,
    /// The time at which a line was last added.
    refilled: Option<Instant>,
    /// The last subjects with a line: a hash, and the time of the line.
    recent: VecDeque<(u64, Instant)>,
    /// The number of events without a line since it was last reported.
    suppressed: u64,
    /// The time of the first of these events.
    suppressed_since: Option<Instant>,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl LogLimit {
    /// Returns a limit that allows the first 20 lines.
    pub const fn new() -> Self {
        Self(Mutex::new(State {
            lines: BURST,
            refilled: None,
            recent: VecDeque::new(),
            suppressed: 0,
            suppressed_since: None,
        }))
    }

    /// Logs a warning about `subject`, unless there was one recently or there were too many lines. The
    /// line also has the number of earlier suppressed events.
    pub fn warn(&self, subject: impl Hash, line: impl FnOnce() -> String) {
        #[allow(
            clippy::disallowed_methods,
            reason = "devices have no clock of their own, and only the log depends on it"
        )]
        let now = Instant::now();
        if !self.admits(now, subject) {
            return;
        }
        match self.take_suppressed(now, true) {
            None => tracing::warn!("{}", line()),
            Some(more) => tracing::warn!("{} ({more} more lines were left out)", line()),
        }
    }

    /// Returns whether a line about `subject` may be written at `now`, and counts it. Otherwise counts
    /// the event for [`take_suppressed`](Self::take_suppressed).
    pub fn admits(&self, now: Instant, subject: impl Hash) -> bool {
        self.admits_share(now, subject, 1)
    }

    /// Returns whether a line may be written, as [`admits`](Self::admits) does, where only one of `parts`
    /// equal shares of the lines, at least one line at once, is for this limit.
    pub fn admits_share(&self, now: Instant, subject: impl Hash, parts: u32) -> bool {
        let mut hasher = DefaultHasher::new();
        subject.hash(&mut hasher);
        self.0.lock().take_line(now, hasher.finish(), parts.max(1))
    }

    /// Returns the number of suppressed events and resets it, at most once per minute unless `at_once` is
    /// set. Returns `None` if there are none.
    pub fn take_suppressed(&self, now: Instant, at_once: bool) -> Option<u64> {
        self.0.lock().take_suppressed(now, at_once)
    }
}

impl State {
    fn take_line(&mut self, now: Instant, subject: u64, parts: u32) -> bool {
        self.refill(now, parts);
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

    fn refill(&mut self, now: Instant, parts: u32) {
        let (burst, interval) = ((BURST / parts).max(1), INTERVAL.saturating_mul(parts));
        let refilled = *self.refilled.get_or_insert(now);
        let intervals = now.duration_since(refilled).as_nanos() / interval.as_nanos();
        let new = u32::try_from(intervals).unwrap_or(burst).min(burst);
        self.lines = burst.min(self.lines + new);
        self.refilled = Some(if self.lines == burst {
            now
        } else {
            refilled + interval * new
        });
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the start of a test's times")]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_has_few_lines_and_each_is_counted() {
        let limit = LogLimit::new();
        let start = Instant::now();
        let (mut lines, mut summaries, mut counted) = (0, 0, 0);
        for ms in 0..600_000_u64 {
            let now = start + Duration::from_millis(ms);
            if limit.admits(now, ms) {
                lines += 1;
            }
            if ms % 1000 == 0
                && let Some(number) = limit.take_suppressed(now, false)
            {
                summaries += 1;
                counted += number;
            }
        }
        assert!((110..=121).contains(&lines), "{lines}");
        assert_eq!(summaries, 9);
        let state = limit.0.into_inner();
        assert_eq!(lines + counted + state.suppressed, 600_000);
        assert_eq!(state.recent.len(), RECENT_MAX);
    }

    #[test]
    fn a_share_has_its_part_of_the_lines() {
        let limit = LogLimit::new();
        let start = Instant::now();
        let lines_at = |seconds, parts| {
            let now = start + Duration::from_secs(seconds);
            let admitted = |n: &u64| limit.admits_share(now, (seconds, n), parts);
            (0..100).filter(admitted).count()
        };
        assert_eq!(lines_at(0, 4), 5);
        assert_eq!(lines_at(23, 4), 0);
        assert_eq!(lines_at(24, 4), 1);
        assert_eq!(lines_at(3600, 4), 5);
        assert_eq!(lines_at(3600 + 26 * 6, 26), 1);
        assert_eq!(lines_at(10_000, 1), 20);
    }

    #[test]
    fn after_a_pause_there_are_lines_again() {
        let limit = LogLimit::new();
        let lines_at = |now| (0..100).filter(|n| limit.admits(now, n)).count();
        let start = Instant::now();
        assert_eq!(lines_at(start), 20);
        assert_eq!(lines_at(start + Duration::from_secs(3600)), 20);
    }

    #[test]
    fn a_subject_is_not_logged_again_for_a_minute() {
        let limit = LogLimit::new();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(limit.admits(start, 1));
        assert!(!limit.admits(at(1), 1));
        assert!(limit.admits(at(1), 2));
        assert!(!limit.admits(at(59), 1));
        assert_eq!(limit.take_suppressed(at(60), false), None);
        assert!(limit.admits(at(60), 1));
        assert_eq!(limit.take_suppressed(at(61), false), Some(2));
        assert_eq!(limit.take_suppressed(at(200), true), None);
        assert!(!limit.admits(at(61), 1));
        assert_eq!(limit.take_suppressed(at(61), true), Some(1));
    }
}
