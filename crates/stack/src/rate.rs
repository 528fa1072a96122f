//! Rate limits of unsolicited answers: token buckets for the whole host and for each remote host
//! (RFC 1812 4.3.2.8, RFC 4443 2.4 f).

use alloc::vec::Vec;

use fullsend_wire::{Instant, Nanos, Rng};

use crate::demux::Addr;
use crate::siphash::SipKey;

/// A rate per second, and the burst that is allowed after an idle time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RateLimit {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

impl RateLimit {
    fn interval(self) -> Nanos {
        Nanos::from_nanos(1_000_000_000 / u64::from(self.per_second.max(1)))
    }
}

/// A token bucket, stored as the time at which it will be full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    fn has_token_at(self, now: Instant, interval: Nanos, burst: u32) -> bool {
        burst > 0 && self.full_at <= now + interval * (u64::from(burst) - 1)
    }

    /// Returns whether there is a token.
    pub(crate) fn has_token(self, now: Instant, rate: RateLimit) -> bool {
        rate.per_second > 0 && self.has_token_at(now, rate.interval(), rate.burst)
    }

    /// Takes a token that costs `cost` and returns whether there was one.
    fn take_at(&mut self, now: Instant, interval: Nanos, burst: u32, cost: Nanos) -> bool {
        let allowed = self.has_token_at(now, interval, burst);
        if allowed {
            self.full_at = self.full_at.max(now) + cost;
        }
        allowed
    }

    /// Takes a token even if the bucket has none. The debt is limited to one second's worth of
    /// tokens; returns `false` if it was that already.
    fn charge(&mut self, now: Instant, rate: RateLimit) -> bool {
        let interval = rate.interval();
        let max_full_at = now + interval * (u64::from(rate.burst) + u64::from(rate.per_second));
        let before = self.full_at;
        self.full_at = (before.max(now) + interval).min(max_full_at);
        self.full_at != before
    }

    /// Puts back a token that was taken.
    fn refund(&mut self, now: Instant, interval: Nanos) {
        let debt = self.full_at.since(now);
        self.full_at = now + debt.saturating_sub(interval);
    }

    /// Takes a token that unauthenticated peers compete for, and returns whether there was one. A
    /// token costs a random amount between 0.5 and 1.5: a peer that counts the remaining tokens
    /// learns little of what others took.
    pub(crate) fn take(&mut self, now: Instant, rate: RateLimit, rng: &mut Rng) -> bool {
        let interval = rate.interval();
        let cost = Nanos::from_nanos(interval.as_nanos() / 2 + rng.below(interval.as_nanos() + 1));
        rate.per_second > 0 && self.take_at(now, interval, rate.burst, cost)
    }
}

/// Returns the words of an IPv4 address, or of the /64 of an IPv6 address: one host may have a
/// whole /64.
fn host_words(addr: Addr) -> [u64; 2] {
    let [hi, lo] = addr.words();
    [hi, if addr.is_v4() { lo } else { 0 }]
}

/// Buckets of remote hosts: a fixed number, selected by a keyed hash of the address, so that hosts
/// may share one.
#[derive(Debug, Default)]
pub(crate) struct HostBuckets {
    key: SipKey,
    /// Empty before the first use.
    buckets: Vec<TokenBucket>,
}

const HOSTS: usize = 512;
/// Burst of one host; Linux's `XRLIM_BURST_FACTOR`.
const HOST_BURST: u32 = 6;

impl HostBuckets {
    pub(crate) const fn new(key: SipKey) -> Self {
        Self {
            key,
            buckets: Vec::new(),
        }
    }

    /// Takes a token of the host `to`, or of its /64, and returns whether there was one. A token is
    /// added every `interval`; zero means no limit.
    pub(crate) fn take(&mut self, now: Instant, to: Addr, interval: Nanos) -> bool {
        if interval == Nanos::ZERO {
            return true;
        }
        if self.buckets.is_empty() {
            self.buckets.resize(HOSTS, TokenBucket::default());
        }
        let slot = self.key.hash(host_words(to), 0) as usize % HOSTS;
        self.buckets[slot].take_at(now, interval, HOST_BURST, interval)
    }
}

/// Buckets of sources, and one bucket shared by all of them. The mapping of sources to buckets
/// changes with each epoch, so two sources share a bucket for one epoch only.
#[derive(Debug)]
pub(crate) struct SourceBuckets {
    key: SipKey,
    count: usize,
    each: RateLimit,
    all: RateLimit,
    /// Empty before the first use.
    buckets: Vec<TokenBucket>,
    shared: TokenBucket,
}

impl SourceBuckets {
    /// Creates `count` buckets, with the rates of each source and of all together. Memory is
    /// allocated at the first use.
    pub(crate) const fn new(key: SipKey, count: usize, [each, all]: [RateLimit; 2]) -> Self {
        Self {
            key,
            count,
            each,
            all,
            buckets: Vec::new(),
            shared: TokenBucket {
                full_at: Instant::ZERO,
            },
        }
    }

    /// Sets the rates of each source and of all. Tokens taken before are charged at the rate of
    /// that time.
    pub(crate) fn set_rates(&mut self, [each, all]: [RateLimit; 2]) {
        (self.each, self.all) = (each, all);
    }

    /// Returns whether the source (or its /64) has a token in this epoch, and the shared bucket as
    /// well.
    pub(crate) fn has_token(&mut self, now: Instant, source: (Addr, u64)) -> bool {
        let each = self.each;
        // Before the first use all buckets are full.
        self.shared.has_token(now, self.all)
            && self.bucket(source).is_none_or(|b| b.has_token(now, each))
    }

    /// Takes a token of the source and one of the shared bucket; takes none if either lacks one.
    pub(crate) fn take(&mut self, now: Instant, source: (Addr, u64), rng: &mut Rng) -> bool {
        self.allocate();
        let RateLimit { burst, .. } = self.each;
        let interval = self.each.interval();
        self.shared.has_token(now, self.all)
            && self
                .bucket(source)
                .is_some_and(|bucket| bucket.take_at(now, interval, burst, interval))
            && self.shared.take(now, self.all, rng)
    }

    /// Takes a token of the source and one of the shared bucket, even if they have none.
    pub(crate) fn charge(&mut self, now: Instant, source: (Addr, u64)) {
        self.allocate();
        let each = self.each;
        // Other sources do not pay for resets beyond the source's own debt.
        let charged = self
            .bucket(source)
            .is_none_or(|bucket| bucket.charge(now, each));
        if charged {
            self.shared.charge(now, self.all);
        }
    }

    /// Returns whether the source has all its tokens in this epoch.
    pub(crate) fn is_full(&mut self, now: Instant, source: (Addr, u64)) -> bool {
        self.bucket(source).is_none_or(|b| b.full_at <= now)
    }

    fn allocate(&mut self) {
        if self.buckets.is_empty() && self.buckets.try_reserve_exact(self.count).is_ok() {
            self.buckets.resize(self.count, TokenBucket::default());
        }
    }

    /// Puts back a token that the source took in this epoch, and one of the shared bucket.
    pub(crate) fn refund(&mut self, now: Instant, source: (Addr, u64)) {
        let interval = self.each.interval();
        if let Some(bucket) = self.bucket(source) {
            bucket.refund(now, interval);
            self.shared.refund(now, self.all.interval());
        }
    }

    fn bucket(&mut self, (source, epoch): (Addr, u64)) -> Option<&mut TokenBucket> {
        let [hi, lo] = host_words(source);
        let slot = self.key.hash([hi, lo, epoch], 0) as usize % self.count;
        self.buckets.get_mut(slot)
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos, Rng, Seed};

    use super::{HostBuckets, RateLimit, TokenBucket};
    use crate::demux::Addr;
    use crate::siphash::SipKey;

    #[test]
    fn a_burst_is_followed_by_one_token_a_millisecond() {
        let mut rng = Rng::new(Seed::from_u64(1));
        let rate = RateLimit {
            per_second: 1000,
            burst: 50,
        };
        let mut bucket = TokenBucket::default();
        let mut take_many = |now| {
            (0..1000)
                .filter(|_| bucket.take(now, rate, &mut rng))
                .count()
        };
        let first = take_many(Instant::ZERO);
        assert!((40..60).contains(&first), "{first}");
        let mut later = 0;
        for ms in 1..1000 {
            later += take_many(Instant::ZERO + Nanos::from_millis(ms));
        }
        assert!((950..1050).contains(&later), "{later}");
    }

    #[test]
    fn a_rate_of_zero_allows_nothing() {
        let mut rng = Rng::new(Seed::from_u64(1));
        let rate = RateLimit {
            per_second: 0,
            burst: 50,
        };
        assert!(!TokenBucket::default().take(Instant::ZERO, rate, &mut rng));
    }

    #[test]
    fn a_burst_of_zero_allows_nothing() {
        let rate = RateLimit {
            per_second: 1000,
            burst: 0,
        };
        let later = Instant::ZERO + Nanos::from_secs(10);
        assert!(!TokenBucket::default().has_token(later, rate));
    }

    #[test]
    fn the_debt_of_a_charged_bucket_is_at_most_one_second() {
        let rate = RateLimit {
            per_second: 1000,
            burst: 50,
        };
        let mut bucket = TokenBucket::default();
        let now = Instant::ZERO + Nanos::from_secs(1);
        for _ in 0..49 {
            bucket.charge(now, rate);
        }
        assert!(bucket.has_token(now, rate));
        // The last token, and a debt of ten.
        for _ in 0..11 {
            bucket.charge(now, rate);
        }
        assert!(!bucket.has_token(now + rate.interval() * 10, rate));
        assert!(bucket.has_token(now + rate.interval() * 11, rate));
        for _ in 0..10_000 {
            bucket.charge(now, rate);
        }
        assert!(!bucket.has_token(now + rate.interval() * 1000, rate));
        assert!(bucket.has_token(now + rate.interval() * 1001, rate));
    }

    #[test]
    fn one_host_does_not_use_the_tokens_of_another() {
        let mut hosts = HostBuckets::new(SipKey(1, 2));
        let second = Nanos::from_secs(1);
        let mut take_many = |ip: [u8; 4], times| {
            let take = |_| hosts.take(Instant::ZERO, Addr::v4(ip), second);
            (0..times).map(take).filter(|&t| t).count()
        };
        assert_eq!(take_many([10, 0, 0, 1], 1000), 6);
        assert_eq!(take_many([10, 0, 0, 2], 3), 3);
    }
}
