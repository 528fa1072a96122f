//! How often errors may be sent (RFC 1812 4.3.2.8, RFC 4443 2.4 f): a token bucket.

use fullsend_units::{Instant, Nanos};

/// One token in this time: 1000 a second, Linux's `icmp_msgs_per_sec`.
const INTERVAL: Nanos = Nanos::from_millis(1);
/// Tokens saved up at most: `icmp_msgs_burst`.
const BURST: u64 = 50;

/// A bucket, as the time at which it will be full again.
#[derive(Debug, Default)]
pub(super) struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let allowed = self.full_at <= now + INTERVAL * (BURST - 1);
        if allowed {
            self.full_at = self.full_at.max(now) + INTERVAL;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Nanos};

    use super::TokenBucket;

    #[test]
    fn a_burst_then_one_a_millisecond() {
        let mut bucket = TokenBucket::default();
        let mut now = Instant::ZERO;
        let mut taken = |now| (0..1000).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(now), 50);
        now += Nanos::from_millis(1);
        assert_eq!(taken(now), 1);
        now += Nanos::from_millis(10);
        assert_eq!(taken(now), 10);
        now += Nanos::from_secs(100);
        assert_eq!(taken(now), 50);
    }
}
