//! How many SYN cookies go out unanswered: a bucket for each source, and a memory of the SYNs that
//! found theirs empty, so that a SYN sent again is answered.
//!
//! A cookie costs its sender nothing to provoke and the host a packet, which often draws a RST that
//! has to be received, too. Sources that answer are not limited: a cookie that comes back gives its
//! token back. A flood from one address gets [`SOURCE`] of answers, one from random addresses
//! [`SOURCES`] times as many. Who shares a bucket with a flood (its address, or its keyed hash for
//! a second) has a SYN dropped, and the next one answered: [`Repeats`].

use alloc::vec::Vec;
use core::mem;

use fullsend_units::{Instant, Nanos, SeqNum};

use crate::demux::{Addr, FlowKey};
use crate::rate::{Rate, SourceBuckets};
use crate::siphash::SipKey;

/// Unanswered cookies of one source.
const SOURCE: Rate = Rate {
    per_second: 128,
    burst: 128,
};
/// Buckets of sources: 131,072 cookies a second for all.
const SOURCES: usize = 1024;
/// How long a key of the buckets and a generation of repeats lasts: the first repetition of a SYN,
/// after a second (RFC 6298 2.1), finds another bucket and its predecessor's generation.
const EPOCH: Nanos = Nanos::from_secs(1);

/// Decides which SYNs are answered with a cookie.
#[derive(Debug)]
pub(super) struct CookieLimit {
    key: SipKey,
    sources: SourceBuckets,
    repeats: Repeats,
}

impl CookieLimit {
    /// The key is made from `secret`, a key for something else.
    pub(super) fn new(secret: SipKey) -> Self {
        let key = secret.derive(u64::MAX - 1);
        Self {
            key,
            sources: SourceBuckets::new(key, SOURCES),
            repeats: Repeats::default(),
        }
    }

    /// Returns whether the SYN of `flow` at `irs` is answered with a cookie.
    pub(super) fn admits(&mut self, now: Instant, flow: &FlowKey, irs: SeqNum) -> bool {
        let epoch = epoch(now);
        if self.sources.take(now, (flow.remote, epoch), SOURCE) {
            return true;
        }
        let hash = self.key.hash([flow.hash(self.key)], irs.raw());
        self.repeats.contains_or_insert(epoch, hash)
    }

    /// A cookie of `source` came back: it does not count.
    pub(super) fn on_return(&mut self, now: Instant, source: Addr) {
        self.sources.give_back(now, (source, epoch(now)), SOURCE);
    }
}

fn epoch(now: Instant) -> u64 {
    now.as_nanos() / EPOCH.as_nanos()
}

/// Bits of a generation. A flood of 230,000 SYNs a second sets a fifth of them, so that one SYN in
/// 25 passes for a repetition.
const BITS: usize = 1 << 21;
const WORDS: usize = BITS / 64;

/// The SYNs that were dropped in this epoch and in the one before: Bloom filters of two bits for
/// each. They have no memory before the first drop.
#[derive(Debug, Default)]
struct Repeats {
    epoch: u64,
    current: Vec<u64>,
    previous: Vec<u64>,
}

impl Repeats {
    /// Returns whether a SYN of this hash was dropped in the epoch before; notes it otherwise.
    fn contains_or_insert(&mut self, epoch: u64, hash: u64) -> bool {
        self.advance(epoch);
        let bits = [hash as usize % BITS, (hash >> 32) as usize % BITS];
        let has = |words: &[u64]| {
            let is_set = |bit: usize| {
                words
                    .get(bit / 64)
                    .is_some_and(|w| w >> (bit % 64) & 1 != 0)
            };
            bits.into_iter().all(is_set)
        };
        if has(&self.previous) {
            return true;
        }
        if self.current.is_empty() && self.current.try_reserve_exact(WORDS).is_ok() {
            self.current.resize(WORDS, 0);
        }
        for bit in bits {
            if let Some(word) = self.current.get_mut(bit / 64) {
                *word |= 1 << (bit % 64);
            }
        }
        false
    }

    fn advance(&mut self, epoch: u64) {
        match epoch - self.epoch {
            0 => return,
            1 => mem::swap(&mut self.current, &mut self.previous),
            _ => self.previous.clear(),
        }
        self.current.clear();
        self.epoch = epoch;
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use fullsend_units::{Instant, Nanos, Rng, Seed, SeqNum};

    use super::{CookieLimit, SOURCE, SOURCES};
    use crate::demux::FlowKey;
    use crate::siphash::SipKey;

    fn limit() -> CookieLimit {
        CookieLimit::new(SipKey(1, 2))
    }

    fn flow(ip: u32, port: u16) -> FlowKey {
        let remote = SocketAddr::from((ip.to_be_bytes(), port));
        FlowKey::new("10.0.0.1:80".parse().unwrap(), remote)
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    /// SYNs of one source, 230 in each millisecond of `ms`; how many are answered.
    fn flood(limit: &mut CookieLimit, rng: &mut Rng, ip: u32, ms: core::ops::Range<u64>) -> usize {
        let syns = ms.flat_map(|ms| (0..230).map(move |n| (ms, n)));
        syns.filter(|&(ms, n)| {
            let port = (ms * 230 + n) as u16;
            limit.admits(at(ms), &flow(ip, port), SeqNum::new(rng.next_u32()))
        })
        .count()
    }

    #[test]
    fn one_source_gets_its_share_and_no_other_less() {
        let (mut limit, mut rng) = (limit(), Rng::new(Seed::from_u64(1)));
        let first = flood(&mut limit, &mut rng, 7, 0..1000);
        let most = (SOURCE.burst + 2 * SOURCE.per_second) as usize;
        assert!(first <= most, "{first}");
        // One in 25 passes for a repetition.
        let later = flood(&mut limit, &mut rng, 7, 1000..3000);
        assert!(later < 460_000 / 16, "{later}");
        let others = (100..120).filter(|&ip| limit.admits(at(3000), &flow(ip, 1), SeqNum::new(1)));
        assert_eq!(others.count(), 20);
    }

    #[test]
    fn a_syn_sent_again_is_answered_though_its_address_floods() {
        let (mut limit, mut rng) = (limit(), Rng::new(Seed::from_u64(2)));
        flood(&mut limit, &mut rng, 7, 0..500);
        let honest = (flow(7, 999), SeqNum::new(77));
        assert!(!limit.admits(at(499), &honest.0, honest.1));
        flood(&mut limit, &mut rng, 7, 500..1500);
        assert!(limit.admits(at(1499), &honest.0, honest.1));
    }

    #[test]
    fn who_answers_is_not_limited() {
        let mut limit = limit();
        for n in 0..100_000u32 {
            let flow = flow(7, n as u16);
            assert!(limit.admits(at(1), &flow, SeqNum::new(n)), "{n}");
            limit.on_return(at(1), flow.remote);
        }
    }

    #[test]
    fn random_sources_get_no_more_than_their_buckets() {
        let (mut limit, mut rng) = (limit(), Rng::new(Seed::from_u64(3)));
        let mut answered = 0;
        for ms in 1000..2000 {
            for _ in 0..1000 {
                let flow = flow(rng.next_u32(), 1);
                answered += usize::from(limit.admits(at(ms), &flow, SeqNum::new(rng.next_u32())));
            }
        }
        let most = SOURCES * (SOURCE.burst + SOURCE.per_second) as usize;
        assert!((most / 2..=most).contains(&answered), "{answered}");
    }
}
