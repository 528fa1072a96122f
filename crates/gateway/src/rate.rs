//! The rate limit of a guest.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// How much earlier than at the configured rate data may pass.
const BURST: Duration = Duration::from_millis(50);

/// A limit of the payload in one direction.
pub(crate) struct RateLimit {
    bytes_per_second: Option<u64>,
    /// When the data so far would have passed at the configured rate.
    next: Mutex<Instant>,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second: bytes_per_second.map(|rate| rate.max(1)),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `n` bytes may pass, and counts them.
    pub(crate) async fn take(&self, n: usize) {
        if let Some(at) = self.count(n) {
            sleep_until(at).await;
        }
    }

    /// Returns whether `n` bytes may pass now, and counts them if so.
    pub(crate) fn try_take(&self, n: usize) -> bool {
        let Some(rate) = self.bytes_per_second else {
            return true;
        };
        let now = Instant::now();
        let mut next = self.next.lock();
        if *next > now {
            return false;
        }
        *next = (*next).max(now - BURST) + duration(n, rate);
        true
    }

    /// Counts `n` bytes. Returns when they may pass, or `None` if that is now.
    fn count(&self, n: usize) -> Option<Instant> {
        let rate = self.bytes_per_second?;
        let now = Instant::now();
        let mut next = self.next.lock();
        let at = (*next).max(now.checked_sub(BURST).unwrap_or(now));
        *next = at + duration(n, rate);
        (at > now).then_some(at)
    }
}

fn duration(n: usize, bytes_per_second: u64) -> Duration {
    Duration::from_secs_f64(n as f64 / bytes_per_second as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn data_passes_at_the_configured_rate() {
        let limit = RateLimit::new(Some(1_000_000));
        let start = Instant::now();
        for _ in 0..100 {
            limit.take(100_000).await;
        }
        let seconds = start.elapsed().as_secs_f64();
        assert!((9.7..=10.0).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_nothing_waits() {
        let limit = RateLimit::new(None);
        let start = Instant::now();
        limit.take(usize::MAX).await;
        assert!(limit.try_take(usize::MAX));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
