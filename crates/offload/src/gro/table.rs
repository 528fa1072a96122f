//! Eight buckets of eight held packets.

use alloc::vec::Vec;

use super::flow::{self, Flow};
use super::held::Held;
use crate::{Encap, Packet};

const BUCKETS: usize = 8;
const DEPTH: usize = 8;
/// Packets held at most.
pub(super) const CAPACITY: u8 = (BUCKETS * DEPTH) as u8;

/// A bucket's slots by age. The first `len` are taken, oldest first; the rest are free.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    order: [u8; DEPTH],
    /// Of what each slot holds: most lookups end here.
    hashes: [u32; DEPTH],
    len: u8,
}

/// Where a held packet is; good until the table changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    bucket: u8,
    /// Position in the bucket's order.
    position: u8,
}

/// The packets held.
#[derive(Debug)]
pub(super) struct Table {
    buckets: [Bucket; BUCKETS],
    slots: Vec<Held>,
    /// A bit for each bucket that holds something.
    used: u8,
    /// The one touched last.
    recent: Option<At>,
}

impl Table {
    pub(super) fn new() -> Self {
        let mut slots = Vec::new();
        slots.resize_with(BUCKETS * DEPTH, Held::default);
        let empty = Bucket {
            order: core::array::from_fn(|i| i as u8),
            hashes: [0; DEPTH],
            len: 0,
        };
        Self {
            buckets: [empty; BUCKETS],
            slots,
            used: 0,
            recent: None,
        }
    }

    /// Nothing is held.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The packet that was found or inserted last, if it is still held.
    #[inline]
    pub(super) fn recent(&self) -> Option<At> {
        self.recent
    }

    /// A packet whose flow is that of these bytes, if they lie as those of the recent one.
    pub(super) fn guess(&mut self, front: &[u8]) -> Option<At> {
        let layers = self.held_mut(self.recent?).layers();
        let v6 = layers.inner_v6(front);
        let hash = flow::hash(front, layers, v6)?;
        let found = self.with_hash(hash).next();
        if found.is_some() {
            self.recent = found;
        }
        found
    }

    /// The held packet of this flow.
    #[inline]
    pub(super) fn find(&mut self, hash: u32, flow: &Flow<'_>) -> Option<At> {
        let found = self.position(hash, flow);
        self.recent = found;
        found
    }

    #[inline]
    fn position(&self, hash: u32, flow: &Flow<'_>) -> Option<At> {
        self.with_hash(hash).find(|&at| {
            let held = &self.slots[self.slot(at)];
            held.flow().is_some_and(|head| flow.is_same_flow(&head))
        })
    }

    /// Where packets with this hash are held, the latest first.
    #[inline]
    fn with_hash(&self, hash: u32) -> impl Iterator<Item = At> {
        let bucket = (hash as usize % BUCKETS) as u8;
        let taken = &self.buckets[usize::from(bucket)];
        let order = taken.order[..usize::from(taken.len)].iter().enumerate();
        order.rev().filter_map(move |(position, &slot)| {
            let at = At {
                bucket,
                position: position as u8,
            };
            (taken.hashes[usize::from(slot)] == hash).then_some(at)
        })
    }

    #[inline]
    fn slot(&self, at: At) -> usize {
        let bucket = usize::from(at.bucket);
        bucket * DEPTH + usize::from(self.buckets[bucket].order[usize::from(at.position)])
    }

    #[inline]
    pub(super) fn held_mut(&mut self, at: At) -> &mut Held {
        let slot = self.slot(at);
        &mut self.slots[slot]
    }

    /// Sends one on.
    pub(super) fn complete(&mut self, at: At, out: &mut Vec<Packet>) {
        out.push(self.held_mut(at).complete());
        self.recent = None;
        let bucket = &mut self.buckets[usize::from(at.bucket)];
        bucket.order[usize::from(at.position)..usize::from(bucket.len)].rotate_left(1);
        bucket.len -= 1;
        if bucket.len == 0 {
            self.used &= !(1 << at.bucket);
        }
    }

    /// Where to hold a packet with this hash; a full bucket sends its oldest on.
    #[inline]
    pub(super) fn insert(&mut self, hash: u32, out: &mut Vec<Packet>) -> &mut Held {
        let bucket = (hash as usize % BUCKETS) as u8;
        if usize::from(self.buckets[usize::from(bucket)].len) == DEPTH {
            self.complete(
                At {
                    bucket,
                    position: 0,
                },
                out,
            );
        }
        let position = self.buckets[usize::from(bucket)].len;
        self.buckets[usize::from(bucket)].len += 1;
        self.used |= 1 << bucket;
        let at = At { bucket, position };
        let slot = self.slot(at);
        self.buckets[usize::from(bucket)].hashes[slot % DEPTH] = hash;
        self.recent = Some(at);
        &mut self.slots[slot]
    }

    /// Sends on all that is tunnelled.
    pub(super) fn drain_tunnelled(&mut self, out: &mut Vec<Packet>) {
        for bucket in 0..BUCKETS {
            let mut at = At {
                bucket: bucket as u8,
                position: 0,
            };
            while at.position < self.buckets[bucket].len {
                if self.held_mut(at).layers().encap == Encap::None {
                    at.position += 1;
                } else {
                    self.complete(at, out);
                }
            }
        }
    }

    /// Sends on all that `leaves` says, oldest first in each bucket.
    pub(super) fn drain(&mut self, leaves: impl Fn(&Held) -> bool, out: &mut Vec<Packet>) {
        let mut left = self.used;
        while left != 0 {
            let oldest = At {
                bucket: left.trailing_zeros() as u8,
                position: 0,
            };
            left &= left - 1;
            while self.used & (1 << oldest.bucket) != 0 && leaves(self.held_mut(oldest)) {
                self.complete(oldest, out);
            }
        }
    }
}
