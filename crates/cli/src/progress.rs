//! The line that shows a test's throughput on a terminal while it runs.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The progress of a test, updated by its flows.
#[derive(Clone, Default)]
pub(crate) struct TestProgress(Arc<ProgressState>);

#[derive(Default)]
pub(crate) struct ProgressState {
    /// Payload bytes transferred.
    pub(crate) bytes: AtomicU64,
    transactions: AtomicU64,
    started: OnceLock<Instant>,
    over: AtomicBool,
}

impl std::ops::Deref for TestProgress {
    type Target = ProgressState;
    fn deref(&self) -> &ProgressState {
        &self.0
    }
}

impl ProgressState {
    /// Records the start of the test.
    pub(crate) fn start(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// Adds bytes and transactions.
    pub(crate) fn add(&self, bytes: u64, transactions: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.transactions.fetch_add(transactions, Ordering::Relaxed);
    }

    fn line(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64();
        let bits = self.bytes.load(Ordering::Relaxed) as f64 * 8.0 / seconds;
        match self.transactions.load(Ordering::Relaxed) {
            0 => format!("{seconds:5.1} s  {:.2} 10^6bits/s", bits / 1e6),
            n => format!("{seconds:5.1} s  {:.0} transactions/s", n as f64 / seconds),
        }
    }
}

/// The progress line, removed on drop.
pub(crate) struct ProgressLine {
    progress: TestProgress,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Shows `progress` once a second on standard error if that is a terminal.
    pub(crate) fn new(progress: &TestProgress) -> Self {
        let progress = progress.clone();
        let thread = std::io::stderr().is_terminal().then(|| {
            let progress = progress.clone();
            std::thread::spawn(move || show(&progress))
        });
        Self { progress, thread }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.progress.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread only writes to a terminal; its failure does not affect the test's result.
            let _ = thread.join();
            err!("\r\x1b[K");
        }
    }
}

fn show(progress: &ProgressState) {
    while !progress.over.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_secs(1));
        if let Some(started) = progress.started.get() {
            err!("\r\x1b[K{}", progress.line(started.elapsed()));
            // If the terminal was closed, only the line is lost.
            let _ = std::io::stderr().flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::TestProgress;

    #[test]
    fn shows_the_rate_so_far() {
        let progress = TestProgress::default();
        progress.add(1_000_000, 0);
        assert_eq!(
            progress.line(Duration::from_secs(2)),
            "  2.0 s  4.00 10^6bits/s"
        );
        progress.add(0, 500);
        assert_eq!(
            progress.line(Duration::from_secs(2)),
            "  2.0 s  250 transactions/s"
        );
    }
}
