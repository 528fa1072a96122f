//! Flows that were sent lately, by which a "too big" about a socket without a peer is told from one
//! that is made up (RFC 5927 4, for UDP).

use alloc::vec;
use alloc::vec::Vec;

/// Flows remembered: those of a busy server in about a round trip.
const SLOTS: usize = 1024;

/// Hashes of flows, each in the slot that it names; a later flow takes the place of an earlier one.
#[derive(Debug, Default)]
pub(super) struct SentFlows {
    /// Empty until the first flow is recorded.
    slots: Vec<u64>,
}

const fn slot(flow: u64) -> usize {
    flow as usize % SLOTS
}

impl SentFlows {
    /// Remembers the keyed hash of a flow.
    pub(super) fn record(&mut self, flow: u64) {
        if self.slots.is_empty() {
            // A hash that belongs into another slot stands for none.
            self.slots = vec![1; SLOTS];
            self.slots[slot(1)] = 0;
        }
        self.slots[slot(flow)] = flow;
    }

    /// Returns whether a flow was recorded and no other took its slot since.
    pub(super) fn contains(&self, flow: u64) -> bool {
        self.slots.get(slot(flow)) == Some(&flow)
    }
}

#[cfg(test)]
mod tests {
    use super::{SLOTS, SentFlows};

    #[test]
    fn the_last_flow_of_each_slot_is_remembered() {
        let mut flows = SentFlows::default();
        for flow in 0..2 * SLOTS as u64 {
            assert!(!flows.contains(flow));
        }
        flows.record(7);
        for flow in [0, 1, 2, 1024, 1031] {
            assert!(!flows.contains(flow), "{flow}");
        }
        assert!(flows.contains(7));
        flows.record(7 + SLOTS as u64);
        assert!(!flows.contains(7) && flows.contains(7 + SLOTS as u64));
    }
}
