//! The rate limit of a guest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time by which data may be ahead of the configured rate after a pause.
const BURST: Duration = Duration::from_millis(50);
/// Time by which datagrams may be ahead of the configured rate; later ones are dropped.
const MAX_DEBT: Duration = Duration::from_millis(50);
/// The duration of one piece of a stream at the configured rate.
const QUANTUM: Duration = Duration::from_millis(10);
/// Smallest piece of a stream, bytes.
const MIN_QUANTUM: usize = 1500;

/// A limit of the payload in one direction.
///
/// Streams wait, datagrams do not. One stream at a time reserves its piece, and the others wait in their
/// order, so that a datagram finds little reserved time before it.
pub(crate) struct RateLimit {
    /// The limit in bytes per second; 0 for no limit.
    rate: AtomicU64,
    /// The time until which the data so far takes at the configured rate.
    next: Mutex<Instant>,
    /// The queue of the streams that wait.
    turn: tokio::sync::Mutex<()>,
}

/// A reserved piece of a stream, which returns its time to the limit if it is dropped before it passes.
struct Reservation<'a> {
    limit: &'a RateLimit,
    duration: Duration,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        *self.limit.next.lock() -= self.duration;
    }
}

impl RateLimit {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            rate: AtomicU64::new(bytes_per_second.map_or(0, |rate| rate.max(1))),
            next: Mutex::new(Instant::now()),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Changes the limit. Waiting data keeps its reserved time.
    pub(crate) fn set(&self, bytes_per_second: Option<u64>) {
        let rate = bytes_per_second.map_or(0, |rate| rate.max(1));
        self.rate.store(rate, Ordering::Relaxed);
    }

    fn rate(&self) -> Option<u64> {
        let rate = self.rate.load(Ordering::Relaxed);
        (rate != 0).then_some(rate)
    }

    /// Returns whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate().is_some()
    }

    /// Returns the number of bytes that a stream should pass at once, at most `max`.
    pub(crate) fn quantum(&self, max: usize) -> usize {
        let Some(rate) = self.rate() else {
            return max;
        };
        let bytes = u128::from(rate) * QUANTUM.as_millis() / 1000;
        usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .max(MIN_QUANTUM)
            .min(max)
    }

    /// Waits until `n` bytes of a stream may pass, and counts them.
    ///
    /// Cancel safe: nothing is counted if the future is dropped.
    pub(crate) async fn take(&self, n: usize) {
        let Some(rate) = self.rate() else {
            return;
        };
        let _turn = self.turn.lock().await;
        let duration = duration(n, rate);
        let at = self.reserve(duration);
        let mut reservation = Reservation {
            limit: self,
            duration,
        };
        if at > Instant::now() {
            sleep_until(at).await;
        }
        reservation.duration = Duration::ZERO;
    }

    /// Returns whether a datagram of `n` bytes may pass now, and counts it if so.
    pub(crate) fn try_take(&self, n: usize) -> bool {
        let Some(rate) = self.rate() else {
            return true;
        };
        let now = Instant::now();
        let mut next = self.next.lock();
        if *next > now + MAX_DEBT {
            return false;
        }
        *next = (*next).max(earliest(now)) + duration(n, rate);
        true
    }

    /// Reserves `duration` for data, and returns the start of the reservation.
    fn reserve(&self, duration: Duration) -> Instant {
        let mut next = self.next.lock();
        let at = (*next).max(earliest(Instant::now()));
        *next = at + duration;
        at
    }
}

fn earliest(now: Instant) -> Instant {
    now.checked_sub(BURST).unwrap_or(now)
}

/// Returns the duration of `n` bytes, at most a day, so that the sum stays a valid time.
fn duration(n: usize, bytes_per_second: u64) -> Duration {
    let seconds = n as f64 / bytes_per_second as f64;
    Duration::from_secs_f64(seconds.min(86_400.0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
        assert_eq!(limit.quantum(1 << 20), 1 << 20);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    /// Starts streams that always have data, and returns their counts of bytes.
    fn start_streams(limit: &Arc<RateLimit>, count: usize) -> Vec<Arc<Mutex<usize>>> {
        let counts: Vec<_> = (0..count).map(|_| Arc::default()).collect();
        for passed in &counts {
            let (limit, passed) = (limit.clone(), Arc::<Mutex<usize>>::clone(passed));
            tokio::spawn(async move {
                let quantum = limit.quantum(256 << 10);
                loop {
                    limit.take(quantum).await;
                    *passed.lock() += quantum;
                }
            });
        }
        counts
    }

    #[tokio::test(start_paused = true)]
    async fn datagrams_pass_beside_many_streams() {
        let limit = Arc::new(RateLimit::new(Some(1_000_000)));
        let streams = start_streams(&limit, 100);
        tokio::time::sleep(Duration::from_secs(1)).await;
        // A tenth of the rate.
        for n in 0..100 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(limit.try_take(1000), "{n}");
        }
        let passed: usize = streams.iter().map(|passed| *passed.lock()).sum();
        assert!((1_800_000..=2_000_000).contains(&passed), "{passed} bytes");
        let (least, most) = (
            streams.iter().map(|passed| *passed.lock()).min().unwrap(),
            streams.iter().map(|passed| *passed.lock()).max().unwrap(),
        );
        assert!(most <= least + 20_000, "{least} to {most} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn streams_pass_beside_a_flood_of_datagrams() {
        let limit = Arc::new(RateLimit::new(Some(1_000_000)));
        let streams = start_streams(&limit, 2);
        for _ in 0..10_000 {
            tokio::time::sleep(Duration::from_micros(100)).await;
            limit.try_take(1000);
        }
        let passed: usize = streams.iter().map(|passed| *passed.lock()).sum();
        assert!(passed >= 100_000, "{passed} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_cancelled_piece_is_given_back() {
        let limit = Arc::new(RateLimit::new(Some(1_000_000)));
        limit.take(1_000_000).await;
        for _ in 0..100 {
            let cancelled = tokio::time::timeout(Duration::from_millis(1), limit.take(1_000_000));
            assert!(cancelled.await.is_err());
        }
        let start = Instant::now();
        limit.take(1).await;
        assert!(start.elapsed() <= Duration::from_secs(1));
    }
}
