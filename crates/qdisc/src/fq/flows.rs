//! Flows: the round robin between them, and the eviction of idle ones.

use alloc::vec::Vec;

use fullsend_wire::{Instant, Nanos};
use hashbrown::HashTable;

use super::slab::{Fifo, NIL};
use crate::FqConfig;

/// Idle time after which a flow is evicted when another flow is inserted.
const EVICT_AFTER: Nanos = Nanos::from_secs(3);
/// Most idle flows that are kept.
const IDLE_LIMIT: u32 = 65_536;
/// Idle flows inspected per insertion: two, so that their number can fall.
const EVICTIONS_PER_INSERT: u32 = 2;
/// Idle time after which a flow has a whole quantum again, whatever it sent before.
const REFILL_AFTER: Nanos = Nanos::from_millis(40);

/// A flow. The list that it is in is its state; a throttled flow is in none.
#[derive(Clone, Debug)]
pub(super) struct FlowQueue {
    key: u64,
    /// Earliest next departure under a flow's `maxrate`.
    pub(super) next_at: Instant,
    idle_since: Instant,
    /// Bytes that the flow may send before its quantum is used up.
    pub(super) credit: i64,
    pub(super) fifo: Fifo,
    prev: u32,
    next: u32,
    idle: bool,
}

// One cache line.
const _: () = assert!(size_of::<FlowQueue>() <= 64);

/// A doubly linked list of flows.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
        len: 0,
    };

    fn push(&mut self, flows: &mut [FlowQueue], index: u32) {
        let flow = &mut flows[index as usize];
        flow.prev = self.tail;
        flow.next = NIL;
        match flows.get_mut(self.tail as usize) {
            Some(tail) => tail.next = index,
            None => self.head = index,
        }
        self.tail = index;
        self.len += 1;
    }

    fn remove(&mut self, flows: &mut [FlowQueue], index: u32) {
        let (prev, next) = (flows[index as usize].prev, flows[index as usize].next);
        match flows.get_mut(prev as usize) {
            Some(flow) => flow.next = next,
            None => self.head = next,
        }
        match flows.get_mut(next as usize) {
            Some(flow) => flow.prev = prev,
            None => self.tail = prev,
        }
        self.len -= 1;
    }
}

/// The flow to serve, and the list that it is in.
#[derive(Clone, Copy)]
pub(super) struct ReadyFlow {
    pub(super) index: u32,
    new: bool,
}

#[derive(Debug)]
pub(super) struct Flows {
    all: Vec<FlowQueue>,
    by_key: HashTable<u32>,
    /// Unused entries of `all`, linked by `next`.
    free: u32,
    /// Flows with packets that have not used up their first quantum.
    new: List,
    /// Other flows with packets, and flows that became empty but must not be new again yet.
    old: List,
    /// Flows without packets, the one idle longest first.
    idle: List,
    quantum: i64,
    initial_quantum: i64,
    evicted: u64,
}

/// Mixes a key: handles have small numbers in both halves, and hashbrown uses the top and the
/// bottom bits.
#[inline]
const fn hash(key: u64) -> u64 {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

impl Flows {
    pub(super) fn new(config: &FqConfig) -> Self {
        Self {
            all: Vec::new(),
            by_key: HashTable::new(),
            free: NIL,
            new: List::EMPTY,
            old: List::EMPTY,
            idle: List::EMPTY,
            quantum: i64::from(config.quantum.max(1)),
            initial_quantum: i64::from(config.initial_quantum),
            evicted: 0,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut FlowQueue {
        &mut self.all[index as usize]
    }

    pub(super) fn len(&self) -> u32 {
        self.by_key.len() as u32
    }

    pub(super) const fn idle(&self) -> u32 {
        self.idle.len
    }

    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the flow of `key`, to which a packet will be added.
    #[inline]
    pub(super) fn find_or_insert(&mut self, now: Instant, key: u64) -> &mut FlowQueue {
        let flows = &self.all;
        let found = self
            .by_key
            .find(hash(key), |index| flows[*index as usize].key == key);
        let index = match found {
            Some(&index) => {
                if self.all[index as usize].idle {
                    self.make_new(now, index);
                }
                index
            }
            None => self.insert(now, key),
        };
        &mut self.all[index as usize]
    }

    /// Makes an idle flow new, as a packet will be added to it.
    fn make_new(&mut self, now: Instant, index: u32) {
        self.idle.remove(&mut self.all, index);
        let flow = &mut self.all[index as usize];
        flow.idle = false;
        if now.since(flow.idle_since) > REFILL_AFTER {
            flow.credit = flow.credit.max(self.quantum);
        }
        self.new.push(&mut self.all, index);
    }

    fn insert(&mut self, now: Instant, key: u64) -> u32 {
        self.evict_idle(now);
        let flow = FlowQueue {
            key,
            next_at: Instant::ZERO,
            idle_since: Instant::ZERO,
            credit: self.initial_quantum,
            fifo: Fifo::EMPTY,
            prev: NIL,
            next: NIL,
            idle: false,
        };
        let index = self.free;
        let index = if let Some(entry) = self.all.get_mut(index as usize) {
            self.free = entry.next;
            *entry = flow;
            index
        } else {
            self.all.push(flow);
            self.all.len() as u32 - 1
        };
        let flows = &self.all;
        self.by_key
            .insert_unique(hash(key), index, |index| hash(flows[*index as usize].key));
        self.new.push(&mut self.all, index);
        index
    }

    /// Evicts flows that were idle for long.
    fn evict_idle(&mut self, now: Instant) {
        for _ in 0..EVICTIONS_PER_INSERT {
            let index = self.idle.head;
            let Some(flow) = self.all.get_mut(index as usize) else {
                return;
            };
            let old = now.since(flow.idle_since) >= EVICT_AFTER;
            if !old && self.idle.len < IDLE_LIMIT {
                return;
            }
            if let Ok(entry) = self.by_key.find_entry(hash(flow.key), |i| *i == index) {
                entry.remove();
            }
            self.idle.remove(&mut self.all, index);
            self.all[index as usize].next = self.free;
            self.free = index;
            self.evicted += 1;
        }
    }

    /// Returns whether a flow is ready to be served.
    #[inline]
    pub(super) const fn has_ready(&self) -> bool {
        self.new.head != NIL || self.old.head != NIL
    }

    /// Returns the next flow to serve; it has a packet and bytes left of its quantum.
    #[inline]
    pub(super) fn next_ready(&mut self, now: Instant) -> Option<ReadyFlow> {
        loop {
            let new = self.new.head != NIL;
            let index = if new { self.new.head } else { self.old.head };
            let flow = self.all.get_mut(index as usize)?;
            let ready = ReadyFlow { index, new };
            if flow.fifo.len == 0 {
                self.on_empty(now, ready);
            } else if flow.credit <= 0 {
                self.refill_quantum(ready);
            } else {
                return Some(ready);
            }
        }
    }

    /// Gives a flow that has used up its quantum a new one, and moves it behind the other flows.
    #[inline]
    fn refill_quantum(&mut self, ready: ReadyFlow) {
        let is_only_flow = self.new.len + self.old.len == 1;
        let flow = &mut self.all[ready.index as usize];
        // Without other flows, all rounds until the credit is positive pass at once.
        let quanta = if is_only_flow {
            1 - flow.credit / self.quantum
        } else {
            1
        };
        flow.credit += quanta * self.quantum;
        self.remove_ready(ready);
        self.old.push(&mut self.all, ready.index);
    }

    /// Removes a flow without packets from the ready lists.
    fn on_empty(&mut self, now: Instant, ready: ReadyFlow) {
        self.remove_ready(ready);
        // RFC 8290 4.2: the flow becomes old once, or sparse flows would starve the others.
        if ready.new && self.old.head != NIL {
            self.old.push(&mut self.all, ready.index);
            return;
        }
        let flow = &mut self.all[ready.index as usize];
        flow.idle = true;
        flow.idle_since = now;
        self.idle.push(&mut self.all, ready.index);
    }

    /// Removes a flow from the list of ready flows that it is in.
    #[inline]
    pub(super) fn remove_ready(&mut self, ready: ReadyFlow) {
        let list = if ready.new {
            &mut self.new
        } else {
            &mut self.old
        };
        list.remove(&mut self.all, ready.index);
    }

    /// Appends a flow to the old flows.
    #[inline]
    pub(super) fn push_old(&mut self, index: u32) {
        self.old.push(&mut self.all, index);
    }
}
