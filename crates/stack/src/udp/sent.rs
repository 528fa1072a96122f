//! The flows of the datagrams and echo requests sent most recently. The quotes in "too big" messages
//! are checked against them (RFC 5927 4, applied to UDP and ICMP).

use alloc::vec::Vec;

/// Flows in a set, which is a cache line. In a full set, a new flow replaces the least recently
/// used one.
const WAYS: usize = 8;
/// Sets of the first table: 8 KiB.
const FIRST_SETS: usize = 128;
/// Maximum number of sets: 65,536 flows in 512 KiB. At 10 Gbit/s, full-sized datagrams to as many
/// peers take 79 ms, which is about a round trip.
const MAX_SETS: usize = 8192;

/// The table is enlarged when more than one flow for this many sets has been replaced.
const REPLACED_SHARE: usize = 32;

/// Marks an entry in use, as a hash may be zero.
const USED: u64 = 1 << 63;

/// Keyed hashes of flows in an LRU table: each set is ordered, the most recently used flow first.
#[derive(Debug)]
pub(super) struct SentFlows {
    /// Empty until the first flow is recorded; then its length is a power of two.
    sets: Vec<[u64; WAYS]>,
    /// Number of flows replaced since the table was enlarged or enlarging it failed.
    replaced: usize,
    max_sets: usize,
}

impl Default for SentFlows {
    fn default() -> Self {
        Self {
            sets: Vec::new(),
            replaced: 0,
            max_sets: MAX_SETS,
        }
    }
}

impl SentFlows {
    /// Limits the table to about `bytes` of memory, and at least its first size. While it grows, the
    /// smaller table exists, too.
    pub(super) fn limit_memory(&mut self, bytes: usize) {
        let sets = bytes * 2 / 3 / size_of::<[u64; WAYS]>();
        self.max_sets = sets.clamp(FIRST_SETS, MAX_SETS);
    }

    /// Records the keyed hash of a flow. The table grows only when flows are replaced, and only if
    /// memory is available.
    pub(super) fn record(&mut self, flow: u64) {
        if self.replaced > self.sets.len() / REPLACED_SHARE || self.sets.is_empty() {
            self.enlarge();
        }
        self.replaced += usize::from(self.insert(flow | USED));
    }

    /// Returns whether a flow was recorded and has not been replaced since.
    pub(super) fn contains(&self, flow: u64) -> bool {
        let set = self.sets.get(self.index(flow));
        set.is_some_and(|set| set.contains(&(flow | USED)))
    }

    const fn index(&self, flow: u64) -> usize {
        flow as usize & self.sets.len().wrapping_sub(1)
    }

    /// Inserts a flow at the front of its set. Returns whether another flow was replaced.
    fn insert(&mut self, flow: u64) -> bool {
        let index = self.index(flow);
        let Some(set) = self.sets.get_mut(index) else {
            return false;
        };
        let at = set.iter().position(|&recorded| recorded == flow);
        let replaced = at.is_none() && set[WAYS - 1] != 0;
        set[..=at.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = flow;
        replaced
    }

    fn enlarge(&mut self) {
        self.replaced = 0;
        let len = match self.sets.len() {
            0 => FIRST_SETS,
            len => len * 2,
        };
        let mut sets = Vec::new();
        if len > self.max_sets || sets.try_reserve_exact(len).is_err() {
            return;
        }
        sets.resize(len, [0; WAYS]);
        let old = core::mem::replace(&mut self.sets, sets);
        // The most recently used flow of a set is inserted last.
        for flow in old.iter().flat_map(|set| set.iter().rev()) {
            if *flow != 0 {
                self.insert(*flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{FIRST_SETS, MAX_SETS, SentFlows, WAYS};
    use crate::siphash::SipKey;

    fn hash(flow: u32) -> u64 {
        SipKey(1, 2).hash([0; 3], flow)
    }

    #[test]
    fn a_set_keeps_the_most_recently_used_flows() {
        let mut flows = SentFlows::default();
        assert!(!flows.contains(0) && !flows.contains(7));
        let of_one_set: Vec<u64> = (0..=WAYS as u64)
            .map(|n| 7 + n * FIRST_SETS as u64)
            .collect();
        for &flow in &of_one_set[..WAYS] {
            assert!(!flows.contains(flow));
            flows.record(flow);
        }
        flows.record(of_one_set[0]);
        flows.record(of_one_set[WAYS]);
        let contained: Vec<bool> = of_one_set
            .iter()
            .map(|&flow| flows.contains(flow))
            .collect();
        let mut expected = [true; WAYS + 1];
        expected[1] = false;
        assert_eq!(contained, expected);
        assert!(!flows.contains(0));
        flows.record(0);
        assert!(flows.contains(0));
    }

    /// A server that sends to 16,000 peers in rotation has all but a few of them in the table.
    #[test]
    fn the_table_grows_with_the_flows_of_a_busy_server() {
        let mut flows = SentFlows::default();
        for _ in 0..4 {
            (0..16_000).for_each(|flow| flows.record(hash(flow)));
        }
        let recorded = (0..16_000).filter(|&flow| flows.contains(hash(flow)));
        assert!(recorded.count() > 15_500);
        let unknown = (16_000..300_000).filter(|&flow| flows.contains(hash(flow)));
        assert_eq!(unknown.count(), 0);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_most_recently_used_flows() {
        let mut flows = SentFlows::default();
        for flow in 0..300_000 {
            flows.record(hash(flow));
        }
        assert_eq!(flows.sets.len(), MAX_SETS);
        let last = 300_000 - 16_000..300_000;
        let recorded = last.filter(|&flow| flows.contains(hash(flow)));
        assert!(recorded.count() > 15_900);
        // A socket with few flows does not make the table grow.
        let mut flows = SentFlows::default();
        for _ in 0..1000 {
            (0..100).for_each(|flow| flows.record(hash(flow)));
        }
        assert_eq!(flows.sets.len(), FIRST_SETS);
    }
}
