//! A limit of the SYN-ACKs that lead to no connection, for each source and for all sources, with an
//! exception for retransmitted SYNs.
//!
//! A SYN costs its sender little, but it costs the host a SYN-ACK and often the reception of a RST.
//! A SYN cookie takes a token and returns it when the handshake completes. A half-open connection
//! takes a token when it is reset, even one that the bucket does not have: resets arrive a round
//! trip after the SYNs were admitted. The backlog bounds the half-open connections that wait. So
//! the limit applies to handshakes in progress or abandoned, not to completed ones.
//!
//! A SYN without a token is dropped and recorded. Its retransmission takes a token of a second
//! budget, which SYNs that are sent only once cannot exhaust. A half-open connection records which
//! budget admitted it. A cookie cannot: its token returns to the second budget while the source's
//! bucket there is not full, otherwise to the first.

use fullsend_wire::{Instant, Rng, SeqNum};

use super::cookie;
use super::dropped_syns::DroppedSyns;
use crate::demux::{Addr, FlowKey};
use crate::rate::{RateLimit, SourceBuckets};
use crate::siphash::SipKey;

/// Number of buckets for sources, of 8 bytes each.
const SOURCES: usize = 4096;

/// Returns the rates of one source and of all sources for `tcp_syn_limit`. A source, which may be
/// an address that many clients share, has half of the limit as its rate and as its burst.
const fn rates(limit: u32) -> [RateLimit; 2] {
    // Rounded up, as a rate of 0 would admit nothing.
    let half = limit.div_ceil(2);
    let each = RateLimit {
        per_second: half,
        burst: half,
    };
    let all = RateLimit {
        per_second: limit,
        burst: limit.saturating_mul(2),
    };
    [each, all]
}

/// The budget that admitted a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SynBudget {
    /// The budget of all SYNs.
    All,
    /// The budget of retransmitted SYNs.
    Retransmitted,
}

/// The limit of SYN-ACKs; it decides which SYNs are answered.
#[derive(Debug)]
pub(super) struct SynLimit {
    key: SipKey,
    /// `tcp_syn_limit`; 0 means no limit.
    limit: u32,
    all: SourceBuckets,
    retransmitted: SourceBuckets,
    dropped: DroppedSyns,
}

impl SynLimit {
    /// Derives the keys from `secret`, which is also used for other purposes.
    pub(super) fn new(secret: SipKey) -> Self {
        let budget = |label| SourceBuckets::new(secret.derive(label), SOURCES, rates(0));
        Self {
            key: secret.derive(u64::MAX - 1),
            limit: 0,
            all: budget(u64::MAX - 2),
            retransmitted: budget(u64::MAX - 3),
            dropped: DroppedSyns::default(),
        }
    }

    /// Limits the record of dropped SYNs to about `bytes` of memory.
    pub(super) fn limit_memory(&mut self, bytes: usize) {
        self.dropped.limit_memory(bytes);
    }

    /// Sets `tcp_syn_limit`. No SYN is limited before the first call.
    pub(super) fn set_limit(&mut self, limit: u32) {
        if self.limit != limit {
            self.limit = limit;
            self.all.set_rates(rates(limit));
            self.retransmitted.set_rates(rates(limit));
        }
    }

    /// Returns the budget that admits the SYN of `flow` with sequence number `irs`, to be answered
    /// with a cookie or by a half-open connection. Returns `None` if the SYN is to be dropped.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        (flow, irs): (&FlowKey, SeqNum),
        with_cookie: bool,
        rng: &mut Rng,
    ) -> Option<SynBudget> {
        if self.limit == 0 {
            return Some(SynBudget::All);
        }
        let source = (flow.remote, cookie::slot(now));
        let mut admit = |budget: &mut SourceBuckets| {
            if with_cookie {
                budget.take(now, source, rng)
            } else {
                budget.has_token(now, source)
            }
        };
        if admit(&mut self.all) {
            return Some(SynBudget::All);
        }
        let hash = self.key.hash([flow.hash(self.key)], irs.raw());
        let is_retransmission = self.dropped.record(now, hash) && admit(&mut self.retransmitted);
        is_retransmission.then_some(SynBudget::Retransmitted)
    }

    /// Charges the SYN-ACK of a half-open connection that the peer has reset to the budget that
    /// admitted it.
    pub(super) fn on_reset(&mut self, now: Instant, source: Addr, budget: SynBudget) {
        if self.limit == 0 {
            return;
        }
        let budget = match budget {
            SynBudget::All => &mut self.all,
            SynBudget::Retransmitted => &mut self.retransmitted,
        };
        budget.charge(now, (source, cookie::slot(now)));
    }

    /// Returns the tokens of a cookie that was sent to `source` in slot `issue_slot` and from which a
    /// connection was made: to the budget of retransmitted SYNs while the source's bucket there is
    /// not full, otherwise to the first budget.
    pub(super) fn on_cookie_returned(&mut self, now: Instant, source: Addr, issue_slot: u64) {
        let source = (source, issue_slot);
        if self.retransmitted.is_full(now, source) {
            self.all.refund(now, source);
        } else {
            self.retransmitted.refund(now, source);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use core::net::SocketAddr;

    use fullsend_wire::{Instant, Nanos, Rng, Seed, SeqNum};

    use super::{SynBudget, SynLimit, rates};
    use crate::demux::FlowKey;
    use crate::rate::RateLimit;
    use crate::siphash::SipKey;
    use crate::tcp::cookie;

    const LIMIT: u32 = 8192;
    const SOURCE: RateLimit = rates(LIMIT)[0];
    const ALL: RateLimit = rates(LIMIT)[1];

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
            let mut limit = SynLimit::new(SipKey(1, 2));
            limit.set_limit(LIMIT);
            let rng = Rng::new(Seed::from_u64(seed));
            Self { limit, rng }
        }

        fn syn(&mut self, ms: u64, flow: &FlowKey, irs: u32) -> bool {
            self.admit(ms, flow, irs, true).is_some()
        }

        fn admit(&mut self, ms: u64, flow: &FlowKey, irs: u32, cookie: bool) -> Option<SynBudget> {
            let syn = (flow, SeqNum::new(irs));
            self.limit.admit(at(ms), syn, cookie, &mut self.rng)
        }

        /// Answers the source's SYNs with cookies until the first budget has no token for it.
        fn drain(&mut self, ms: u64, flow: &FlowKey) {
            let mut irs = 1_000_000 + 100_000 * ms as u32;
            while self.admit(ms, flow, irs, true) == Some(SynBudget::All) {
                irs += 1;
            }
        }

        /// Sends 230 SYNs in each millisecond. Returns how many are answered.
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
    fn one_source_gets_its_share_and_others_lose_nothing() {
        let mut flood = Flood::new(1);
        let answered = flood.run(|_| 7, 0..3000);
        let first = SOURCE.burst + 3 * SOURCE.per_second;
        // A few SYNs have the same hash as a dropped one and are mistaken for its retransmission.
        let most = first as usize + 3 * 230_000 / 200;
        assert!((first as usize..=most).contains(&answered), "{answered}");
        for ip in 100..120 {
            assert!(flood.syn(3000, &flow(ip, 1), 1), "{ip}");
        }
    }

    #[test]
    fn random_sources_share_the_total_limit() {
        let mut flood = Flood::new(2);
        let answered = flood.run(Rng::next_u32, 0..3000);
        let first = ALL.burst + 3 * ALL.per_second;
        let most = first as usize + first as usize / 50 + 3 * 230_000 / 200;
        let least = first as usize - first as usize / 50;
        assert!((least..=most).contains(&answered), "{answered}");
    }

    #[test]
    fn a_retransmitted_syn_is_answered_while_its_address_floods() {
        for start in [500, 777, 999, 1250] {
            for seconds in [1, 2] {
                let mut flood = Flood::new(3);
                // Including the tokens of this millisecond.
                flood.run(|_| 7, 0..start + 1);
                let honest = flow(7, 999);
                assert!(!flood.syn(start, &honest, 77), "{start}");
                let retry = start + 1000 * seconds;
                flood.run(|_| 7, start + 1..retry + 1);
                assert!(flood.syn(retry, &honest, 77), "{start} + {seconds} s");
            }
        }
    }

    #[test]
    fn retransmitted_syns_have_a_limit_too() {
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
    fn reset_half_open_connections_have_the_same_limit_as_cookies() {
        let mut flood = Flood::new(7);
        let mut answered = 0;
        for ms in 0..2000 {
            for n in 0..230 {
                let flow = flow(7, (ms * 230 + n) as u16);
                let irs = flood.rng.next_u32();
                if let Some(budget) = flood.admit(ms, &flow, irs, false) {
                    flood.limit.on_reset(at(ms), flow.remote, budget);
                    answered += 1;
                }
            }
        }
        let most = SOURCE.burst + 2 * SOURCE.per_second + 2 * 230_000 / 200;
        assert!(answered <= most, "{answered}");
        assert!(flood.syn(2000, &flow(8, 1), 1));
    }

    /// 8000 clients a second connect from one address with a round-trip time of 400 ms, across two
    /// slots.
    #[test]
    fn clients_behind_one_address_are_not_limited() {
        let (mut flood, mut under_way) = (Flood::new(5), VecDeque::new());
        for ms in 60_000..68_000 {
            for n in 0..8 {
                let port = (ms * 8 + n) as u16;
                assert!(flood.syn(ms, &flow(7, port), n as u32), "{ms} ms");
                under_way.push_back((ms + 400, cookie::slot(at(ms))));
            }
            while let Some((_, issue_slot)) = under_way.pop_front_if(|(due, _)| *due <= ms) {
                flood
                    .limit
                    .on_cookie_returned(at(ms), flow(7, 1).remote, issue_slot);
            }
        }
    }

    /// Half-open connections are charged when they are reset, and there may be many by then.
    #[test]
    fn the_debt_of_a_reset_backlog_lasts_one_second() {
        let mut flood = Flood::new(8);
        for ip in 0..65_536 {
            let source = flow(ip, 1).remote;
            flood.limit.on_reset(at(0), source, SynBudget::All);
        }
        let other = flow(1 << 24, 1);
        assert_eq!(flood.admit(999, &other, 1, false), None);
        assert!(flood.admit(1001, &other, 2, false).is_some());
    }

    /// A source that resets the backlogs of many listeners at once takes no more than its share.
    #[test]
    fn resets_of_one_source_leave_tokens_for_other_sources() {
        let mut flood = Flood::new(13);
        for round in 0..10 {
            for _ in 0..65_536 {
                let source = flow(7, 1).remote;
                flood
                    .limit
                    .on_reset(at(1000 * round), source, SynBudget::All);
            }
            let (ms, irs) = (1000 * round, round as u32);
            assert_eq!(flood.admit(ms, &flow(7, 1), irs, false), None);
            let other = flood.admit(ms, &flow(8, 1), irs, false);
            assert_eq!(other, Some(SynBudget::All));
        }
    }

    /// A RST arrives 10 ms after its SYN; until then nothing is charged for the connection.
    #[test]
    fn late_resets_do_not_raise_the_limit() {
        let (mut flood, mut half_open) = (Flood::new(12), VecDeque::new());
        let mut answered = 0;
        for ms in 0..5000 {
            while let Some((_, budget)) = half_open.pop_front_if(|(due, _)| *due <= ms) {
                flood.limit.on_reset(at(ms), flow(7, 1).remote, budget);
            }
            for n in 0..230 {
                let irs = flood.rng.next_u32();
                if half_open.len() < 1000
                    && let Some(budget) = flood.admit(ms, &flow(7, n), irs, false)
                {
                    half_open.push_back((ms + 10, budget));
                    answered += 1;
                }
            }
        }
        let least = SOURCE.burst + 4 * SOURCE.per_second;
        let most = least + SOURCE.per_second + 1000 + 5 * 230_000 / 200;
        assert!((least..=most).contains(&answered), "{answered}");
    }

    #[test]
    fn a_reset_is_charged_to_the_budget_that_admitted_the_syn() {
        let mut flood = Flood::new(9);
        let (flow, source) = (flow(7, 1), flow(7, 1).remote);
        for n in 0..SOURCE.burst {
            assert_eq!(flood.admit(0, &flow, n, false), Some(SynBudget::All));
            flood.limit.on_reset(at(0), source, SynBudget::All);
        }
        assert_eq!(flood.admit(0, &flow, 77, false), None);
        for _ in 0..SOURCE.burst {
            flood
                .limit
                .on_reset(at(500), source, SynBudget::Retransmitted);
        }
        // Half of the first budget's tokens are back, and none of the second's.
        let admitted_count = (1000..).take_while(|n| {
            let admitted = flood.admit(500, &flow, *n, true);
            assert_ne!(admitted, Some(SynBudget::Retransmitted));
            admitted.is_some()
        });
        assert_eq!(admitted_count.count() as u32, SOURCE.per_second / 2);
        assert_eq!(flood.admit(500, &flow, 77, false), None);
    }

    #[test]
    fn a_cookie_of_a_retransmitted_syn_refunds_the_retransmission_budget() {
        let mut flood = Flood::new(10);
        let flow = flow(7, 1);
        flood.drain(0, &flow);
        assert_eq!(flood.admit(0, &flow, 77, true), None);
        flood.drain(1000, &flow);
        let retry = flood.admit(1000, &flow, 77, true);
        assert_eq!(retry, Some(SynBudget::Retransmitted));
        let issue_slot = cookie::slot(at(1000));
        flood
            .limit
            .on_cookie_returned(at(1000), flow.remote, issue_slot);
        // No token is back in the first budget.
        assert_ne!(flood.admit(1000, &flow, 78, true), Some(SynBudget::All));
        // The second budget is full, so the next token returns to the first.
        flood
            .limit
            .on_cookie_returned(at(1000), flow.remote, issue_slot);
        assert_eq!(flood.admit(1000, &flow, 79, true), Some(SynBudget::All));
    }

    #[test]
    fn a_limit_of_zero_means_unlimited() {
        let mut flood = Flood::new(11);
        flood.limit.set_limit(0);
        assert_eq!(flood.run(|_| 7, 0..1000), 230_000);
        flood.limit.set_limit(2 * LIMIT);
        let answered = flood.run(|_| 7, 1000..2000);
        assert!(answered as u32 >= 3 * SOURCE.burst, "{answered}");
    }

    #[test]
    fn a_token_is_refunded_to_the_slot_it_was_taken_from() {
        let mut flood = Flood::new(6);
        let (before, after) = (63_999, 64_001);
        let taken = (0..u32::MAX).take_while(|n| flood.syn(before, &flow(7, 1), *n));
        let taken = taken.count();
        let issue_slot = cookie::slot(at(before));
        assert_ne!(issue_slot, cookie::slot(at(after)));
        let source = flow(7, 1).remote;
        let (limit, rng) = (&mut flood.limit, &mut flood.rng);
        for _ in 0..taken {
            limit.on_cookie_returned(at(after), source, issue_slot);
        }
        let retry = (0..).take_while(|_| limit.all.take(at(after), (source, issue_slot), rng));
        assert!(retry.count() >= taken);
    }
}
