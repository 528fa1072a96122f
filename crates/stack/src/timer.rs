//! A hierarchical timer wheel: arms, moves and disarms in O(1), for as many timers as the table
//! that it serves has slots.
//!
//! Level 0 has a slot for each tick; a slot of each further level spans one whole revolution of the
//! level below. A timer is in the level of the highest digit (base 64) in which its tick differs
//! from the current one. So nothing wraps, and the lowest occupied level holds the next timer to
//! fire.

use alloc::vec::Vec;

use fullsend_wire::{Instant, prefetch};

/// A tick is 2^13 ns (8.2 us): fine enough for pacing, and eight levels reach 71 years.
const TICK_SHIFT: u32 = 13;
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 8;
/// The tick of a timer that is not armed.
const UNARMED: u64 = (1 << (LEVEL_BITS * LEVELS as u32)) - 1;
const NIL: u32 = u32::MAX;

/// A timer, linked with the others of its slot; 24 bytes for each connection.
#[derive(Clone, Copy, Debug)]
struct TimerNode {
    /// The tick at which it is inspected, or `UNARMED`; in the low bits, its level and slot.
    position: u64,
    /// The tick at which it fires, equal to or later than that of the inspection.
    due: u64,
    prev: u32,
    next: u32,
}

impl TimerNode {
    const IDLE: Self = Self::at(UNARMED, 0, 0);

    const fn at(tick: u64, level: u8, slot: u8) -> Self {
        Self {
            position: tick << 16 | (level as u64) << 8 | slot as u64,
            due: tick,
            prev: NIL,
            next: NIL,
        }
    }

    #[inline]
    const fn tick(self) -> u64 {
        self.position >> 16
    }

    const fn level_and_slot(self) -> (u8, u8) {
        ((self.position >> 8) as u8, self.position as u8)
    }
}

#[derive(Clone, Debug)]
struct Level {
    occupied: u64,
    heads: [u32; SLOTS],
}

/// Timers, by the index of the table entry that they belong to.
#[derive(Clone, Debug)]
pub(crate) struct TimerWheel {
    /// All ticks before this one have been processed.
    current: u64,
    /// A bit for each level that holds a timer.
    occupied: u8,
    /// The result of `next`. It may be earlier than the first timer after that timer was removed.
    next: Instant,
    levels: [Level; LEVELS],
    nodes: Vec<TimerNode>,
}

/// Returns the first tick at or after `at`, so that no timer fires early. A time beyond all ticks
/// maps to `UNARMED` and never fires.
#[inline]
fn tick_at_or_after(at: Instant) -> u64 {
    let ns = at.as_nanos();
    let up = u64::from(ns & ((1 << TICK_SHIFT) - 1) != 0);
    ((ns >> TICK_SHIFT) + up).min(UNARMED)
}

/// Returns the time at which a tick begins.
const fn begin_of(tick: u64) -> Instant {
    Instant::from_nanos(tick << TICK_SHIFT)
}

#[inline]
fn level_of(current: u64, tick: u64) -> usize {
    let differing = (current ^ tick) | (SLOTS as u64 - 1);
    (differing.ilog2() / LEVEL_BITS) as usize
}

impl TimerWheel {
    pub(crate) fn new() -> Self {
        Self {
            current: 0,
            occupied: 0,
            next: Instant::FAR_FUTURE,
            levels: core::array::from_fn(|_| Level {
                occupied: 0,
                heads: [NIL; SLOTS],
            }),
            nodes: Vec::new(),
        }
    }

    /// Arms timer `index` to fire at `at`, or never if that is the far future. A timer whose slot
    /// is earlier stays there and is moved when the wheel reaches that slot, without a call to its
    /// owner. So the common case, a deadline that is pushed back by each ACK, costs a comparison
    /// and a store.
    #[inline]
    pub(crate) fn arm(&mut self, index: u32, at: Instant) {
        let tick = tick_at_or_after(at);
        if let Some(node) = self.nodes.get_mut(index as usize)
            && node.tick() <= tick
        {
            node.due = tick;
            return;
        }
        self.rearm(index, tick);
    }

    #[inline(never)]
    fn rearm(&mut self, index: u32, tick: u64) {
        if tick == UNARMED {
            return;
        }
        if self.nodes.len() <= index as usize {
            self.nodes.resize(index as usize + 1, TimerNode::IDLE);
        }
        self.disarm(index);
        self.link(index, tick.max(self.current));
    }

    /// Prefetches timer `index`.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(node) = self.nodes.get(index as usize) {
            prefetch(&node.due);
        }
    }

    /// Disarms timer `index`.
    pub(crate) fn disarm(&mut self, index: u32) {
        let Some(&node) = self.nodes.get(index as usize) else {
            return;
        };
        if node.tick() == UNARMED {
            return;
        }
        if node.next != NIL {
            self.nodes[node.next as usize].prev = node.prev;
        }
        if node.prev == NIL {
            let (level, slot) = node.level_and_slot();
            self.set_head(level, slot, node.next);
        } else {
            self.nodes[node.prev as usize].next = node.next;
        }
        self.nodes[index as usize] = TimerNode::IDLE;
        if self.occupied == 0 {
            self.next = Instant::FAR_FUTURE;
        }
    }

    /// Frees the memory of timers at and beyond `len`, none of which may be armed.
    pub(crate) fn shrink(&mut self, len: usize) {
        self.nodes.truncate(len);
        self.nodes.shrink_to(len + len / 4);
    }

    fn set_head(&mut self, level: u8, slot: u8, head: u32) {
        let l = &mut self.levels[level as usize];
        l.heads[slot as usize] = head;
        if head == NIL {
            l.occupied &= !(1 << slot);
            if l.occupied == 0 {
                self.occupied &= !(1 << level);
            }
        } else {
            l.occupied |= 1 << slot;
            self.occupied |= 1 << level;
        }
    }

    fn link(&mut self, index: u32, tick: u64) {
        let level = level_of(self.current, tick);
        let slot = (tick >> (LEVEL_BITS * level as u32)) as usize % SLOTS;
        let head = self.levels[level].heads[slot];
        self.nodes[index as usize] = TimerNode {
            next: head,
            ..TimerNode::at(tick, level as u8, slot as u8)
        };
        if head != NIL {
            self.nodes[head as usize].prev = index;
        }
        self.set_head(level as u8, slot as u8, index);
        let shift = LEVEL_BITS * level as u32;
        let first = (tick >> shift << shift).max(self.current);
        self.next = self.next.min(begin_of(first));
    }

    /// Returns the earliest occupied slot: its level, its number and its first tick.
    fn first_slot(&self) -> Option<(usize, usize, u64)> {
        if self.occupied == 0 {
            return None;
        }
        let level = self.occupied.trailing_zeros() as usize;
        let slot = self.levels[level].occupied.trailing_zeros() as usize;
        let shift = LEVEL_BITS * level as u32;
        let revolution = (self.current >> (shift + LEVEL_BITS)) << (shift + LEVEL_BITS);
        Some((level, slot, revolution | (slot as u64) << shift))
    }

    /// Returns when [`expire`](Self::expire) must be called next; the far future if no timer is
    /// armed. It is never later than the next timer, and earlier when timers must move down a level
    /// or the next timer was removed. Applications' calls read it every time, so it is precomputed.
    #[inline]
    pub(crate) const fn next(&self) -> Instant {
        self.next
    }

    /// Disarms the timers that are due and appends them to `due`.
    pub(crate) fn expire(&mut self, now: Instant, due: &mut Vec<u32>) {
        let target = now.as_nanos() >> TICK_SHIFT;
        while let Some((level, slot, first)) = self.first_slot() {
            if first > target {
                break;
            }
            self.current = self.current.max(first);
            let mut index = self.levels[level].heads[slot];
            self.set_head(level as u8, slot as u8, NIL);
            while index != NIL {
                let node = core::mem::replace(&mut self.nodes[index as usize], TimerNode::IDLE);
                if node.due <= target {
                    due.push(index);
                } else if node.due != UNARMED {
                    self.link(index, node.due);
                }
                index = node.next;
            }
        }
        self.current = self.current.max(target);
        self.next = match self.first_slot() {
            Some((_, _, tick)) => begin_of(tick.max(self.current)),
            None => Instant::FAR_FUTURE,
        };
    }
}

#[cfg(test)]
mod tests;
