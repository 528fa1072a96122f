//! Which packets are held: buckets of up to eight, by a hash of their flows.
//!
//! A bucket is a cache line that says which of its flows may be meant, so that a packet of a new
//! flow costs no look at the others. Where many flows are held, there are more buckets.

use alloc::vec;
use alloc::vec::Vec;

use fullsend_units::Instant;

use super::held::Held;
use crate::{Encap, Packet};

/// Packets that a bucket holds.
const DEPTH: usize = 8;
/// Buckets at first.
const MIN_BUCKETS: usize = 8;
/// Buckets at most: of 1,000 flows in turn, hardly ever more than eight meet in one.
const MAX_BUCKETS: usize = 512;

/// What is held, oldest first. Only the first `len` are meaningful.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    hashes: [u32; DEPTH],
    records: [u16; DEPTH],
    len: u8,
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// A held packet's record; good until the packet is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    hash: u32,
    record: u16,
}

/// The packets held.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// A power of two of them; none before the first packet is held.
    buckets: Vec<Bucket>,
    /// A bit for each bucket that holds something.
    used: [u64; MAX_BUCKETS / 64],
    records: Vec<Held>,
    /// Records in the middle that are free.
    free: Vec<u16>,
    /// The one touched last.
    recent: Option<At>,
}

impl Table {
    /// Nothing is held.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.records.len() == self.free.len()
    }

    /// The packet that was found or inserted last, if it is still held.
    #[inline]
    pub(super) fn recent(&self) -> Option<At> {
        self.recent
    }

    #[inline]
    pub(super) fn held(&self, at: At) -> &Held {
        &self.records[usize::from(at.record)]
    }

    #[inline]
    pub(super) fn held_mut(&mut self, at: At) -> &mut Held {
        &mut self.records[usize::from(at.record)]
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & self.buckets.len().wrapping_sub(1)
    }

    /// The latest held with this hash of which `what` knows something.
    #[inline]
    pub(super) fn find<T>(
        &mut self,
        hash: u32,
        what: impl Fn(&Held) -> Option<T>,
    ) -> Option<(At, T)> {
        let bucket = self.buckets.get(self.bucket(hash))?;
        // Of all eight, without a branch for each.
        let mut same = 0u32;
        for (position, other) in bucket.hashes.iter().enumerate() {
            same |= u32::from(*other == hash) << position;
        }
        same &= (1 << bucket.len) - 1;
        while same != 0 {
            let position = same.ilog2();
            let record = bucket.records[position as usize % DEPTH];
            if let Some(found) = what(&self.records[usize::from(record)]) {
                let at = At { hash, record };
                self.recent = Some(at);
                return Some((at, found));
            }
            same ^= 1 << position;
        }
        None
    }

    /// What is held, in the order of the packets' places.
    pub(super) fn in_order(&self) -> Vec<(usize, At)> {
        let all = self.buckets.iter().flat_map(Bucket::held);
        let at = all.map(|(hash, record)| At { hash, record });
        let mut places: Vec<_> = at.map(|at| (self.held(at).place(), at)).collect();
        places.sort_unstable_by_key(|(place, _)| *place);
        places
    }

    /// Holds a packet of this hash; a full bucket completes its oldest.
    #[inline]
    pub(super) fn insert(&mut self, hash: u32, held: Held, packets: &mut [Packet]) {
        let full = |bucket: Option<&Bucket>| bucket.is_none_or(|b| usize::from(b.len) == DEPTH);
        if full(self.buckets.get(self.bucket(hash))) {
            self.make_room(hash, packets);
        }
        let record = self.store(held);
        let number = self.bucket(hash);
        let bucket = &mut self.buckets[number];
        bucket.push(hash, record);
        self.used[number / 64] |= 1 << (number % 64);
        self.recent = Some(At { hash, record });
    }

    #[inline]
    fn store(&mut self, held: Held) -> u16 {
        if let Some(record) = self.free.pop() {
            self.records[usize::from(record)] = held;
            return record;
        }
        self.records.push(held);
        (self.records.len() - 1) as u16
    }

    /// More buckets where a quarter of all places are taken, else the oldest of this one goes.
    #[cold]
    fn make_room(&mut self, hash: u32, packets: &mut [Packet]) {
        let count = self.buckets.len();
        let held = self.records.len() - self.free.len();
        if count == 0 {
            self.buckets = vec![Bucket::default(); MIN_BUCKETS];
        } else if count < MAX_BUCKETS && held >= count * DEPTH / 4 {
            self.spread(count * 2);
        }
        let bucket = &self.buckets[self.bucket(hash)];
        if usize::from(bucket.len) == DEPTH {
            let oldest = At {
                hash: bucket.hashes[0],
                record: bucket.records[0],
            };
            self.complete(oldest, packets);
        }
    }

    /// Spreads what is held over more buckets. What was in one bucket stays in its order.
    fn spread(&mut self, buckets: usize) {
        let old = core::mem::replace(&mut self.buckets, vec![Bucket::default(); buckets]);
        self.used = Default::default();
        for bucket in old {
            for (hash, record) in bucket.held() {
                let number = self.bucket(hash);
                self.buckets[number].push(hash, record);
                self.used[number / 64] |= 1 << (number % 64);
            }
        }
    }

    /// Completes a packet: it is held no longer.
    pub(super) fn complete(&mut self, at: At, packets: &mut [Packet]) {
        let held = self.held(at);
        held.complete(&mut packets[held.place()]);
        self.recent = None;
        let number = self.bucket(at.hash);
        let bucket = &mut self.buckets[number];
        bucket.remove(at.record);
        if bucket.len == 0 {
            self.used[number / 64] &= !(1 << (number % 64));
        }
        self.free.push(at.record);
    }

    /// Completes all.
    pub(super) fn complete_all(&mut self, packets: &mut [Packet]) {
        for word in 0..self.used.len() {
            let mut left = core::mem::take(&mut self.used[word]);
            while left != 0 {
                let bucket = &mut self.buckets[word * 64 + left.trailing_zeros() as usize];
                for (_, record) in bucket.held() {
                    let held = &self.records[usize::from(record)];
                    held.complete(&mut packets[held.place()]);
                }
                bucket.len = 0;
                left &= left - 1;
            }
        }
        self.records.clear();
        self.free.clear();
        self.recent = None;
    }

    /// Completes all that is tunnelled.
    #[cold]
    pub(super) fn complete_tunnelled(&mut self, packets: &mut [Packet]) {
        self.complete_if(packets, |_, packet| packet.layers.encap != Encap::None);
    }

    /// Completes all that is held since before `than`.
    pub(super) fn complete_older(&mut self, than: Instant, packets: &mut [Packet]) {
        self.complete_if(packets, |held, _| held.since() < than);
    }

    fn complete_if(&mut self, packets: &mut [Packet], goes: impl Fn(&Held, &Packet) -> bool) {
        for number in 0..self.buckets.len() {
            let bucket = self.buckets[number];
            for (hash, record) in bucket.held() {
                let at = At { hash, record };
                let held = self.held(at);
                if goes(held, &packets[held.place()]) {
                    self.complete(at, packets);
                }
            }
        }
    }
}

impl Bucket {
    /// Hashes and records of what is held, oldest first.
    #[inline]
    fn held(&self) -> impl Iterator<Item = (u32, u16)> + use<> {
        let both = self.hashes.into_iter().zip(self.records);
        both.take(usize::from(self.len))
    }

    #[inline]
    fn push(&mut self, hash: u32, record: u16) {
        let at = usize::from(self.len) % DEPTH;
        self.hashes[at] = hash;
        self.records[at] = record;
        self.len += 1;
    }

    fn remove(&mut self, record: u16) {
        let len = usize::from(self.len);
        let position = self.records[..len].iter().position(|r| *r == record);
        if let Some(position) = position {
            self.hashes.copy_within(position + 1..len, position);
            self.records.copy_within(position + 1..len, position);
            self.len -= 1;
        }
    }
}
