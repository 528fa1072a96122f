//! The table of held packets: buckets of up to eight, indexed by a hash of the flow.
//!
//! A bucket is one cache line with the hashes of its flows, so that a packet of a new flow does not
//! access the records of others. The number of buckets grows with the number of flows held.

use alloc::vec;
use alloc::vec::Vec;
use core::array;

use fullsend_wire::Instant;

use super::held::HeldPacket;
use super::predict::HeaderKind;
use crate::{Encap, Packet};

#[cfg(test)]
mod tests;

/// Packets per bucket.
const DEPTH: usize = 8;
/// The initial number of buckets.
const MIN_BUCKETS: usize = 8;
/// The maximum number of buckets. With 1,000 interleaved flows hardly ever more than eight share
/// one.
const MAX_BUCKETS: usize = 512;

/// The first `len` entries are the held packets, oldest first, if `poll` is the current device
/// poll. The hashes after them are 0, which is no flow's hash.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    hashes: [u32; DEPTH],
    records: [u16; DEPTH],
    poll: u32,
    len: u8,
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// The position of a held packet's record; valid until the packet is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeldRef {
    hash: u32,
    record: u16,
}

/// The table of held packets.
#[derive(Debug, Default)]
pub(super) struct HeldTable {
    /// The buckets: a power of two in number, or none before the first packet is held.
    buckets: Vec<Bucket>,
    /// The number of this device poll; buckets with another number are empty.
    poll: u32,
    /// Allocated records, which are reused in later polls.
    records: Vec<HeldPacket>,
    /// The length of the part of `records` that is in use or in `free`.
    allocated: usize,
    /// Unused records in that part.
    free: Vec<u16>,
}

impl HeldTable {
    /// Returns whether no packet is held.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.allocated == self.free.len()
    }

    #[inline]
    pub(super) fn held(&self, held_ref: HeldRef) -> &HeldPacket {
        &self.records[usize::from(held_ref.record)]
    }

    #[inline]
    pub(super) fn held_mut(&mut self, held_ref: HeldRef) -> &mut HeldPacket {
        &mut self.records[usize::from(held_ref.record)]
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & self.buckets.len().wrapping_sub(1)
    }

    /// Returns the record, after reading the packet's headers into it if that was not done before.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        held_ref: HeldRef,
        packets: &[Packet],
        max_size: u32,
    ) -> &HeldPacket {
        let held = &mut self.records[usize::from(held_ref.record)];
        if held.state.header_kind == HeaderKind::Unknown {
            held.read(&packets[held.index()], max_size);
        }
        held
    }

    /// Returns the newest held packet with this hash for which `select` returns `Some`, and that
    /// value.
    #[inline(always)]
    pub(super) fn find<T>(
        &self,
        hash: u32,
        select: impl Fn(&HeldPacket) -> Option<T>,
    ) -> Option<(HeldRef, T)> {
        let bucket = self.buckets.get(self.bucket(hash))?;
        if bucket.poll != self.poll {
            return None;
        }
        // Compares all eight without branches: each byte is 1 if the hash is equal.
        let matching: [u8; DEPTH] = array::from_fn(|i| u8::from(bucket.hashes[i] == hash));
        let mut matching = u64::from_le_bytes(matching);
        while matching != 0 {
            let bit = matching.ilog2();
            let record = bucket.records[bit as usize / 8];
            if let Some(found) = select(&self.records[usize::from(record)]) {
                return Some((HeldRef { hash, record }, found));
            }
            matching ^= 1 << bit;
        }
        None
    }

    /// Returns the held packets and their indices, in index order.
    pub(super) fn by_index(&self) -> Vec<(usize, HeldRef)> {
        let all = self.buckets.iter().flat_map(|b| b.held(self.poll));
        let refs = all.map(|(hash, record)| HeldRef { hash, record });
        let mut indices: Vec<_> = refs
            .map(|held_ref| (self.held(held_ref).index(), held_ref))
            .collect();
        indices.sort_unstable_by_key(|(index, _)| *index);
        indices
    }

    /// Holds the packet with this hash at index `index`. A full bucket completes its oldest packet.
    #[inline]
    pub(super) fn insert(&mut self, hash: u32, index: usize, now: Instant, packets: &mut [Packet]) {
        let full = |b: &Bucket| b.poll == self.poll && usize::from(b.len) == DEPTH;
        if self.buckets.get(self.bucket(hash)).is_none_or(full) {
            self.make_room(hash, packets);
        }
        let record = self.free.pop().unwrap_or_else(|| {
            if self.allocated == self.records.len() {
                self.records.push(HeldPacket::default());
            }
            self.allocated += 1;
            (self.allocated - 1) as u16
        });
        self.records[usize::from(record)].hold(index, now);
        let number = self.bucket(hash);
        self.buckets[number].push(hash, record, self.poll);
    }

    /// Doubles the number of buckets if a quarter of all entries is in use. If this bucket remains
    /// full, completes its oldest packet.
    fn make_room(&mut self, hash: u32, packets: &mut [Packet]) {
        let count = self.buckets.len();
        let held = self.allocated - self.free.len();
        if count == 0 {
            self.buckets = vec![Bucket::default(); MIN_BUCKETS];
        } else if count < MAX_BUCKETS && held >= count * DEPTH / 4 {
            self.rehash(count * 2);
        }
        let bucket = &self.buckets[self.bucket(hash)];
        if usize::from(bucket.len) == DEPTH {
            let oldest = HeldRef {
                hash: bucket.hashes[0],
                record: bucket.records[0],
            };
            self.complete(oldest, packets);
        }
    }

    /// Distributes the held packets to more buckets. Packets of one bucket keep their order.
    fn rehash(&mut self, buckets: usize) {
        let old = core::mem::replace(&mut self.buckets, vec![Bucket::default(); buckets]);
        for bucket in old {
            for (hash, record) in bucket.held(self.poll) {
                let number = self.bucket(hash);
                self.buckets[number].push(hash, record, self.poll);
            }
        }
    }

    /// Completes a packet, which is then no longer held.
    pub(super) fn complete(&mut self, held_ref: HeldRef, packets: &mut [Packet]) {
        let number = self.bucket(held_ref.hash);
        self.held_mut(held_ref).complete(packets);
        self.buckets[number].remove(held_ref.record);
        self.free.push(held_ref.record);
    }

    /// Completes all packets.
    pub(super) fn complete_all(&mut self, packets: &mut [Packet]) {
        for held in &mut self.records[..self.allocated] {
            held.complete(packets);
        }
        self.allocated = 0;
        self.free.clear();
        self.poll = self.poll.wrapping_add(1);
        if self.poll == 0 {
            // After a wrap-around, old buckets must not appear to be of the current poll.
            self.buckets.fill(Bucket::default());
            self.poll = 1;
        }
    }

    /// Completes all tunnelled packets.
    pub(super) fn complete_tunnelled(&mut self, packets: &mut [Packet]) {
        self.complete_if(packets, |_, packet| packet.layers.encap != Encap::None);
    }

    /// Completes all packets held since before `before`.
    pub(super) fn complete_older_than(&mut self, before: Instant, packets: &mut [Packet]) {
        self.complete_if(packets, |held, _| held.since() < before);
    }

    fn complete_if(
        &mut self,
        packets: &mut [Packet],
        should_complete: impl Fn(&HeldPacket, &Packet) -> bool,
    ) {
        for number in 0..self.buckets.len() {
            let bucket = self.buckets[number];
            for (hash, record) in bucket.held(self.poll) {
                let held_ref = HeldRef { hash, record };
                let held = self.held(held_ref);
                if should_complete(held, &packets[held.index()]) {
                    self.complete(held_ref, packets);
                }
            }
        }
    }
}

impl Bucket {
    /// Returns the hashes and records of the held packets, oldest first.
    #[inline]
    fn held(&self, poll: u32) -> impl Iterator<Item = (u32, u16)> + use<> {
        let len = if self.poll == poll { self.len } else { 0 };
        let both = self.hashes.into_iter().zip(self.records);
        both.take(usize::from(len))
    }

    #[inline]
    fn push(&mut self, hash: u32, record: u16, poll: u32) {
        if self.poll != poll {
            *self = Self {
                poll,
                ..Self::default()
            };
        }
        let end = usize::from(self.len) % DEPTH;
        self.hashes[end] = hash;
        self.records[end] = record;
        self.len += 1;
    }

    fn remove(&mut self, record: u16) {
        let len = usize::from(self.len);
        let position = self.records[..len].iter().position(|r| *r == record);
        if let Some(position) = position {
            self.hashes.copy_within(position + 1..len, position);
            self.records.copy_within(position + 1..len, position);
            self.hashes[len - 1] = 0;
            self.len -= 1;
        }
    }
}
