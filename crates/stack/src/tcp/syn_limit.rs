//! A limit of SYN-ACKs that bring no connection, for each source and for all, and its exception for
//! SYNs that are sent again.
//!
//! A SYN costs its sender little and the host a SYN-ACK, which often draws a RST that has to be
//! received, too. A SYN cookie takes a token and returns it when it comes back. A half-open connection
//! takes one when it is reset; the backlog bounds those that wait. So the limit is one of handshakes
//! that are under way or abandoned, not of those that complete. A SYN without a token is dropped and
//! recorded; a retransmission of it takes a token of a second budget, which SYNs that are sent once
//! cannot empty.

use fullsend_units::{Instant, Rng, SeqNum};

use super::cookie;
use super::dropped_syns::DroppedSyns;
use crate::demux::{Addr, FlowKey};
use crate::rate::{Rate, SourceBuckets};
use crate::siphash::SipKey;

/// Of one source, as an address that many clients share: so many handshakes may be under way, and so
/// many more begin in each second. A flood of one address has 230,000 SYNs a second.
const SOURCE: Rate = Rate {
    per_second: 4096,
    burst: 4096,
};
/// Of all sources. Sending one over a TUN takes the kernel some 2 us, so 8192 are 2 % of a core.
const ALL: Rate = Rate {
    per_second: 8192,
    burst: 16_384,
};
/// Buckets of sources, of 8 bytes.
const SOURCES: usize = 4096;

/// Decides which SYNs are answered.
#[derive(Debug)]
pub(super) struct SynLimit {
    key: SipKey,
    first: SourceBuckets,
    repeated: SourceBuckets,
    dropped: DroppedSyns,
}

impl SynLimit {
    /// The keys are made from `secret`, a key for something else.
    pub(super) fn new(secret: SipKey) -> Self {
        let budget = |label| SourceBuckets::new(secret.derive(label), SOURCES, SOURCE, ALL);
        Self {
            key: secret.derive(u64::MAX - 1),
            first: budget(u64::MAX - 2),
            repeated: budget(u64::MAX - 3),
            dropped: DroppedSyns::default(),
        }
    }

    /// Returns whether the SYN of `flow` at `irs` is answered: with a cookie, or by a half-open
    /// connection.
    pub(super) fn admits(
        &mut self,
        now: Instant,
        (flow, irs): (&FlowKey, SeqNum),
        with_cookie: bool,
        rng: &mut Rng,
    ) -> bool {
        let source = (flow.remote, cookie::slot(now));
        let admitted = if with_cookie {
            self.first.take(now, source, rng)
        } else {
            self.first.has(now, source)
        };
        if admitted {
            return true;
        }
        let hash = self.key.hash([flow.hash(self.key)], irs.raw());
        self.dropped.is_repetition(now, hash) && self.repeated.take(now, source, rng)
    }

    /// The peer reset a half-open connection: takes the tokens of its SYN-ACK.
    pub(super) fn on_reset(&mut self, now: Instant, source: Addr) {
        self.first.charge(now, (source, cookie::slot(now)));
    }

    /// A connection was made of a cookie that went to `source` in the slot `made`: returns the
    /// cookie's tokens.
    pub(super) fn on_return(&mut self, now: Instant, source: Addr, made: u64) {
        self.first.give_back(now, (source, made));
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use core::net::SocketAddr;

    use fullsend_units::{Instant, Nanos, Rng, Seed, SeqNum};

    use super::{ALL, SOURCE, SynLimit};
    use crate::demux::FlowKey;
    use crate::siphash::SipKey;
    use crate::tcp::cookie;

    struct Flood {
        limit: SynLimit,
        rng: Rng,
    }

    fn flow(ip: u32, port: u16) -> FlowKey {
        let remote = SocketAddr::from((ip.to_be_bytes(), port));
        FlowKey::new("10.0.0.1:80".parse().unwrap(), remote)
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    impl Flood {
        fn new(seed: u64) -> Self {
            Self {
                limit: SynLimit::new(SipKey(1, 2)),
                rng: Rng::new(Seed::from_u64(seed)),
            }
        }

        fn syn(&mut self, ms: u64, flow: &FlowKey, irs: u32) -> bool {
            let irs = SeqNum::new(irs);
            self.limit.admits(at(ms), (flow, irs), true, &mut self.rng)
        }

        /// Sends 230 SYNs in each millisecond; returns how many are answered.
        fn run(&mut self, ip: impl Fn(&mut Rng) -> u32, ms: core::ops::Range<u64>) -> usize {
            let mut answered = 0;
            for ms in ms {
                for _ in 0..230 {
                    let (ip, port) = (ip(&mut self.rng), self.rng.next_u32() as u16);
                    let irs = self.rng.next_u32();
                    answered += usize::from(self.syn(ms, &flow(ip, port), irs));
                }
            }
            answered
        }
    }

    #[test]
    fn one_source_gets_its_share_and_no_other_less() {
        let mut flood = Flood::new(1);
        let answered = flood.run(|_| 7, 0..3000);
        let first = SOURCE.burst + 3 * SOURCE.per_second;
        // The hashes of few others are those of SYNs that were dropped.
        let most = first as usize + 3 * 230_000 / 200;
        assert!((first as usize..=most).contains(&answered), "{answered}");
        for ip in 100..120 {
            assert!(flood.syn(3000, &flow(ip, 1), 1), "{ip}");
        }
    }

    #[test]
    fn random_sources_get_the_share_of_all() {
        let mut flood = Flood::new(2);
        let answered = flood.run(Rng::next_u32, 0..3000);
        let first = ALL.burst + 3 * ALL.per_second;
        let most = first as usize + first as usize / 50 + 3 * 230_000 / 200;
        let least = first as usize - first as usize / 50;
        assert!((least..=most).contains(&answered), "{answered}");
    }

    #[test]
    fn a_syn_sent_again_is_answered_though_its_address_floods() {
        for start in [500, 777, 999, 1250] {
            for seconds in [1, 2] {
                let mut flood = Flood::new(3);
                // With the tokens of this millisecond.
                flood.run(|_| 7, 0..start + 1);
                let honest = flow(7, 999);
                assert!(!flood.syn(start, &honest, 77), "{start}");
                let again = start + 1000 * seconds;
                flood.run(|_| 7, start + 1..again + 1);
                assert!(flood.syn(again, &honest, 77), "{start} + {seconds} s");
            }
        }
    }

    #[test]
    fn syns_that_are_all_sent_again_have_a_limit_too() {
        let mut flood = Flood::new(4);
        let mut answered = 0;
        for ms in 0..4000 {
            for n in 0..100 {
                let n = (ms % 1000) as u32 * 100 + n;
                answered += u32::from(flood.syn(ms, &flow(7, n as u16), n));
            }
        }
        let most = 2 * (SOURCE.burst + 4 * SOURCE.per_second);
        assert!(answered <= most, "{answered}");
    }

    #[test]
    fn half_open_connections_that_are_reset_have_the_limit_of_cookies() {
        let mut flood = Flood::new(7);
        let mut answered = 0;
        for ms in 0..2000 {
            for n in 0..230 {
                let flow = flow(7, (ms * 230 + n) as u16);
                let irs = SeqNum::new(flood.rng.next_u32());
                let (limit, rng) = (&mut flood.limit, &mut flood.rng);
                if limit.admits(at(ms), (&flow, irs), false, rng) {
                    limit.on_reset(at(ms), flow.remote);
                    answered += 1;
                }
            }
        }
        let most = SOURCE.burst + 2 * SOURCE.per_second + 2 * 230_000 / 200;
        assert!(answered <= most, "{answered}");
        assert!(flood.syn(2000, &flow(8, 1), 1));
    }

    /// 8000 clients a second connect from one address with a round trip of 400 ms, in two slots.
    #[test]
    fn clients_behind_one_address_are_not_limited() {
        let (mut flood, mut under_way) = (Flood::new(5), VecDeque::new());
        for ms in 60_000..68_000 {
            for n in 0..8 {
                let port = (ms * 8 + n) as u16;
                assert!(flood.syn(ms, &flow(7, port), n as u32), "{ms} ms");
                under_way.push_back((ms + 400, cookie::slot(at(ms))));
            }
            while let Some((_, made)) = under_way.pop_front_if(|(due, _)| *due <= ms) {
                flood.limit.on_return(at(ms), flow(7, 1).remote, made);
            }
        }
    }

    #[test]
    fn a_token_comes_back_to_the_slot_it_was_taken_in() {
        let mut flood = Flood::new(6);
        let (before, after) = (63_999, 64_001);
        let taken = (0..u32::MAX).take_while(|n| flood.syn(before, &flow(7, 1), *n));
        let taken = taken.count();
        let made = cookie::slot(at(before));
        assert_ne!(made, cookie::slot(at(after)));
        let source = flow(7, 1).remote;
        let (limit, rng) = (&mut flood.limit, &mut flood.rng);
        for _ in 0..taken {
            limit.on_return(at(after), source, made);
        }
        let again = (0..).take_while(|_| limit.first.take(at(after), (source, made), rng));
        assert!(again.count() >= taken);
    }
}
