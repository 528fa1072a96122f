//! Scheduled events, by time and, at one time, in order of scheduling.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use fullsend_offload::Packet;
use fullsend_wire::Instant;

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PortId {
    pub(crate) link: usize,
    pub(crate) port: usize,
}

#[derive(Debug)]
pub(crate) enum Event {
    /// A card has sent a packet.
    Sent(PortId, Packet),
    /// A packet from that end reaches the switch.
    AtSwitch(PortId, Packet),
    /// A packet reaches that end's card.
    Arrives(PortId, Packet),
    /// A card passes the packets it gathered to its host.
    Receive(PortId),
    /// A card reports the packets it has sent to its host.
    Complete(PortId),
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Compares in reverse: the heap returns its greatest entry first, which is the earliest event.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Entry>,
    scheduled: u64,
}

impl Events {
    pub(crate) fn schedule(&mut self, at: Instant, event: Event) {
        self.scheduled += 1;
        self.heap.push(Entry {
            at,
            number: self.scheduled,
            event,
        });
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|entry| entry.event)
    }
}
