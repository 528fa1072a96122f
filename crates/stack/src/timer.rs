//! Hierarchical timer wheel: arm, move and disarm in O(1), for as many timers as there are slots
//! in the table that it serves.
//!
//! Level 0 has a slot per tick; a slot of each further level spans a whole turn of the level
//! below. A timer stands in the level of the highest digit (base 64) in which its tick differs
//! from the present one, so nothing wraps and the lowest occupied level holds the next to fire.

use alloc::vec::Vec;

use fullsend_units::Instant;

/// A tick is 2^13 ns (8.2 us): fine enough for pacing, and eight levels reach 71 years.
const TICK_SHIFT: u32 = 13;
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 8;
/// The tick of a timer that does not run.
const UNARMED: u64 = (1 << (LEVEL_BITS * LEVELS as u32)) - 1;
const NIL: u32 = u32::MAX;

/// One timer, linked with the others of its slot; 24 bytes, one for each connection.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// When it is looked at, or `UNARMED`; below that, level and slot.
    place: u64,
    /// The tick at which it fires: then or later.
    due: u64,
    prev: u32,
    next: u32,
}

impl Node {
    const IDLE: Self = Self::at(UNARMED, 0, 0);

    const fn at(tick: u64, level: u8, slot: u8) -> Self {
        Self {
            place: tick << 16 | (level as u64) << 8 | slot as u64,
            due: tick,
            prev: NIL,
            next: NIL,
        }
    }

    #[inline]
    const fn tick(self) -> u64 {
        self.place >> 16
    }

    const fn level_and_slot(self) -> (u8, u8) {
        ((self.place >> 8) as u8, self.place as u8)
    }
}

#[derive(Clone, Debug)]
struct Level {
    occupied: u64,
    heads: [u32; SLOTS],
}

/// Timers by the index of what they belong to.
#[derive(Clone, Debug)]
pub(crate) struct Wheel {
    /// Everything before this tick has fired.
    current: u64,
    /// Bit per level that holds anything.
    occupied: u8,
    /// What `next` says, as a tick; `UNARMED` for nothing. May lie before the first timer once
    /// that one was taken out.
    first: u64,
    levels: [Level; LEVELS],
    nodes: Vec<Node>,
}

/// The first tick at or after `at`, so that nothing fires early. What lies beyond all ticks never
/// fires.
#[inline]
fn tick_at_or_after(at: Instant) -> u64 {
    let ns = at.as_nanos();
    let up = u64::from(ns & ((1 << TICK_SHIFT) - 1) != 0);
    ((ns >> TICK_SHIFT) + up).min(UNARMED)
}

#[inline]
fn level_of(current: u64, tick: u64) -> usize {
    let differing = (current ^ tick) | (SLOTS as u64 - 1);
    (differing.ilog2() / LEVEL_BITS) as usize
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            current: 0,
            occupied: 0,
            first: UNARMED,
            levels: core::array::from_fn(|_| Level {
                occupied: 0,
                heads: [NIL; SLOTS],
            }),
            nodes: Vec::new(),
        }
    }

    /// Timer `index` fires at `at`, or never if that is the far future. A timer that stands earlier
    /// is left where it is and takes its new place when that time comes, without its owner. That
    /// makes the common case, a deadline that moves away with each ACK, a comparison and a store.
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
            self.nodes.resize(index as usize + 1, Node::IDLE);
        }
        self.disarm(index);
        self.link(index, tick.max(self.current));
    }

    /// Timer `index` runs.
    #[inline]
    pub(crate) fn is_armed(&self, index: u32) -> bool {
        let node = self.nodes.get(index as usize);
        node.is_some_and(|node| node.due != UNARMED)
    }

    /// Takes timer `index` out.
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
        self.nodes[index as usize] = Node::IDLE;
        if self.occupied == 0 {
            self.first = UNARMED;
        }
    }

    /// Forgets the room of timers at and beyond `len`, none of which may be armed.
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
        self.nodes[index as usize] = Node {
            next: head,
            ..Node::at(tick, level as u8, slot as u8)
        };
        if head != NIL {
            self.nodes[head as usize].prev = index;
        }
        self.set_head(level as u8, slot as u8, index);
        let shift = LEVEL_BITS * level as u32;
        self.first = self.first.min(tick >> shift << shift);
    }

    /// The earliest occupied slot: its level, number and first tick.
    fn first_slot(&self) -> Option<(usize, usize, u64)> {
        if self.occupied == 0 {
            return None;
        }
        let level = self.occupied.trailing_zeros() as usize;
        let slot = self.levels[level].occupied.trailing_zeros() as usize;
        let shift = LEVEL_BITS * level as u32;
        let turn = (self.current >> (shift + LEVEL_BITS)) << (shift + LEVEL_BITS);
        Some((level, slot, turn | (slot as u64) << shift))
    }

    /// When [`expire`](Self::expire) has something to do: never later than the next timer, earlier
    /// when timers must move down a level or the next one was taken out. Asked after every call of
    /// a user, so it is only looked up here.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        (self.first != UNARMED)
            .then(|| Instant::from_nanos(self.first.max(self.current) << TICK_SHIFT))
    }

    /// Appends the timers that are due to `due`, disarmed.
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
                let node = core::mem::replace(&mut self.nodes[index as usize], Node::IDLE);
                if node.due <= target {
                    due.push(index);
                } else if node.due != UNARMED {
                    self.link(index, node.due);
                }
                index = node.next;
            }
        }
        self.current = self.current.max(target);
        self.first = self.first_slot().map_or(UNARMED, |(_, _, tick)| tick);
    }
}

#[cfg(test)]
mod tests;
