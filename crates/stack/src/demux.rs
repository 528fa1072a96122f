//! Demultiplexing: finds the connection of a segment by its 4-tuple.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hashbrown::HashTable;

use crate::siphash::SipKey;

/// An IP address as two 64-bit words. An IPv4 address is kept in its mapped form (RFC 4291
/// 2.5.5.2), which is never accepted in an IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Addr {
    // 32-bit halves, the low one first, so that a 4-tuple needs no padding.
    hi: [u32; 2],
    lo: [u32; 2],
}

const MAPPED: u64 = 0xffff_0000_0000;

#[inline]
const fn join_halves([low, high]: [u32; 2]) -> u64 {
    (high as u64) << 32 | low as u64
}

impl Addr {
    #[inline]
    const fn new(hi: u64, lo: u64) -> Self {
        Self {
            hi: [hi as u32, (hi >> 32) as u32],
            lo: [lo as u32, (lo >> 32) as u32],
        }
    }

    #[inline]
    pub(crate) const fn v4(octets: [u8; 4]) -> Self {
        Self::new(0, MAPPED | u32::from_be_bytes(octets) as u64)
    }

    #[inline]
    pub(crate) const fn v6(octets: [u8; 16]) -> Self {
        let all = u128::from_be_bytes(octets);
        Self::new((all >> 64) as u64, all as u64)
    }

    #[inline]
    pub(crate) const fn words(self) -> [u64; 2] {
        [join_halves(self.hi), join_halves(self.lo)]
    }

    #[inline]
    pub(crate) const fn is_v4(self) -> bool {
        let [hi, lo] = self.words();
        hi == 0 && lo >> 32 == MAPPED >> 32
    }

    #[inline]
    const fn v4_bits(self) -> u32 {
        self.lo[0]
    }

    const fn v6_bits(self) -> u128 {
        let [hi, lo] = self.words();
        (hi as u128) << 64 | lo as u128
    }

    pub(crate) const fn v4_octets(self) -> [u8; 4] {
        self.v4_bits().to_be_bytes()
    }

    pub(crate) const fn v6_octets(self) -> [u8; 16] {
        self.v6_bits().to_be_bytes()
    }

    /// Returns whether the address is in 127/8 or is ::1.
    #[inline]
    pub(crate) const fn is_loopback(self) -> bool {
        let [hi, lo] = self.words();
        hi == 0 && (lo == 1 || lo >> 24 == (MAPPED | 127 << 24) >> 24)
    }

    /// Returns whether the address is 0.0.0.0 or ::.
    #[inline]
    pub(crate) const fn is_unspecified(self) -> bool {
        let [hi, lo] = self.words();
        hi == 0 && (lo == 0 || lo == MAPPED)
    }

    pub(crate) const fn to_ip(self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from_bits(self.v4_bits()))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(self.v6_bits()))
        }
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::v4(ip.octets()),
            IpAddr::V6(ip) => Self::v6(ip.octets()),
        }
    }
}

/// A 4-tuple, from the local point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowKey {
    pub(crate) local: Addr,
    pub(crate) remote: Addr,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

impl FlowKey {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local: local.ip().into(),
            remote: remote.ip().into(),
            local_port: local.port(),
            remote_port: remote.port(),
        }
    }

    pub(crate) const fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local.to_ip(), self.local_port)
    }

    pub(crate) const fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.remote.to_ip(), self.remote_port)
    }

    #[inline]
    const fn ports(&self) -> u32 {
        (self.local_port as u32) << 16 | self.remote_port as u32
    }

    /// Returns a keyed hash of the 4-tuple.
    #[inline]
    pub(crate) fn hash(&self, key: SipKey) -> u64 {
        if self.remote.is_v4() {
            let (local, remote) = (self.local.v4_bits(), self.remote.v4_bits());
            let both = u64::from(local) << 32 | u64::from(remote);
            key.hash([both], self.ports())
        } else {
            let ([a, b], [c, d]) = (self.local.words(), self.remote.words());
            key.hash([a, b, c, d], self.ports())
        }
    }
}

/// The owner of a 4-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlowOwner {
    /// An entry of the socket table: a connection, or a deferred SYN.
    Socket(u32),
    /// An entry of the TIME-WAIT table.
    TimeWait(u32),
}

/// Top bit of a packed target, set for `TimeWait`.
const TIME_WAIT: u32 = 1 << 31;

impl FlowOwner {
    #[inline]
    const fn pack(self) -> u32 {
        match self {
            Self::Socket(index) => index,
            Self::TimeWait(index) => index | TIME_WAIT,
        }
    }

    #[inline]
    const fn unpack(packed: u32) -> Self {
        if packed & TIME_WAIT == 0 {
            Self::Socket(packed)
        } else {
            Self::TimeWait(packed & !TIME_WAIT)
        }
    }
}

/// An entry of eight bytes for each flow; the 4-tuple itself is stored with its owner.
#[derive(Clone, Copy, Debug)]
struct FlowEntry {
    hash: u32,
    owner: u32,
}

/// Widens the half of a hash that an entry keeps. The hash table takes its bucket from the low bits
/// and its tag from the top ones. Half of the hash is enough for both, and lets the table grow
/// without visiting the owners.
#[inline]
const fn widen_hash(hash: u32) -> u64 {
    (hash as u64) << 32 | hash as u64
}

/// Flows by 4-tuple, hashed with a secret key against hash flooding.
#[derive(Debug)]
pub(crate) struct FlowTable {
    key: SipKey,
    table: HashTable<FlowEntry>,
    /// A cache of recently used flows, indexed by ports. An entry is a guess that the owner's
    /// 4-tuple must confirm.
    recent: Vec<RecentFlow>,
}

/// A recently used flow.
#[derive(Clone, Copy, Debug)]
struct RecentFlow {
    /// Distinguishes flows in the same slot without reading their owners, which are not in the CPU
    /// cache where there are many flows.
    ports: u32,
    owner: u32,
}

/// The parts of a 4-tuple that [`FlowTable::probable_owner`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupKey {
    hash: u32,
    ports: u32,
    slot: u32,
}

const RECENT_SLOTS: usize = 1024;
/// About the number of flows that fit into a CPU cache, at a few kilobytes each.
const LARGE_TABLE: usize = 4096;
/// An empty slot. No target packs to this value, as tables end at 2^24 entries.
const EMPTY_SLOT: RecentFlow = RecentFlow {
    ports: 0,
    owner: u32::MAX,
};

/// Returns the slot of a flow among the recent ones.
#[inline]
const fn recent_slot(key: &FlowKey) -> usize {
    (key.local_port ^ key.remote_port) as usize % RECENT_SLOTS
}

impl FlowTable {
    pub(crate) fn new(key: SipKey) -> Self {
        Self {
            key,
            table: HashTable::new(),
            recent: alloc::vec![EMPTY_SLOT; RECENT_SLOTS],
        }
    }

    /// Returns the owner of `key`. `is_owner` compares the 4-tuple of a candidate with `key`.
    #[inline]
    pub(crate) fn find(
        &mut self,
        key: &FlowKey,
        is_owner: impl Fn(FlowOwner) -> bool,
    ) -> Option<FlowOwner> {
        let recent = self.recent[recent_slot(key)];
        if recent.ports == key.ports()
            && recent.owner != EMPTY_SLOT.owner
            && is_owner(FlowOwner::unpack(recent.owner))
        {
            return Some(FlowOwner::unpack(recent.owner));
        }
        self.find_in_table(key, is_owner)
    }

    #[inline(never)]
    fn find_in_table(
        &mut self,
        key: &FlowKey,
        is_owner: impl Fn(FlowOwner) -> bool,
    ) -> Option<FlowOwner> {
        let hash = key.hash(self.key) as u32;
        let entry = self.table.find(widen_hash(hash), |e| {
            e.hash == hash && is_owner(FlowOwner::unpack(e.owner))
        })?;
        let owner = FlowOwner::unpack(entry.owner);
        self.recent[recent_slot(key)] = RecentFlow {
            ports: key.ports(),
            owner: entry.owner,
        };
        Some(owner)
    }

    /// Returns what [`probable_owner`](Self::probable_owner) needs of `key`.
    #[inline]
    pub(crate) fn lookup_key(&self, key: &FlowKey) -> LookupKey {
        LookupKey {
            hash: key.hash(self.key) as u32,
            ports: key.ports(),
            slot: recent_slot(key) as u32,
        }
    }

    /// Records for [`find`](Self::find) the probable target of a flow and returns it, without
    /// reading the owner.
    #[inline]
    pub(crate) fn probable_owner(&mut self, lookup_key: &LookupKey) -> Option<FlowOwner> {
        let entry = self
            .table
            .find(widen_hash(lookup_key.hash), |e| e.hash == lookup_key.hash)?;
        self.recent[lookup_key.slot as usize % RECENT_SLOTS] = RecentFlow {
            ports: lookup_key.ports,
            owner: entry.owner,
        };
        Some(FlowOwner::unpack(entry.owner))
    }

    /// Returns whether the flows are too many to fit into a CPU cache.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.table.len() > LARGE_TABLE
    }

    /// Adds a flow that is not in the table yet.
    pub(crate) fn insert(&mut self, key: &FlowKey, owner: FlowOwner) {
        let hash = key.hash(self.key) as u32;
        let entry = FlowEntry {
            hash,
            owner: owner.pack(),
        };
        self.table
            .insert_unique(widen_hash(hash), entry, |e| widen_hash(e.hash));
    }

    /// Removes the flow `key`, which `owner` owns.
    pub(crate) fn remove(&mut self, key: &FlowKey, owner: FlowOwner) {
        self.recent[recent_slot(key)] = EMPTY_SLOT;
        let hash = key.hash(self.key) as u32;
        if let Ok(entry) = self
            .table
            .find_entry(widen_hash(hash), |e| e.owner == owner.pack())
        {
            entry.remove();
        }
        if self.table.capacity() > 256 && self.table.len() < self.table.capacity() / 8 {
            let keep = self.table.len() * 2;
            self.table.shrink_to(keep, |e| widen_hash(e.hash));
        }
    }

    /// Moves the flow `key` from one owner to another.
    pub(crate) fn replace(&mut self, key: &FlowKey, from: FlowOwner, to: FlowOwner) {
        self.recent[recent_slot(key)] = EMPTY_SLOT;
        let hash = key.hash(self.key) as u32;
        if let Some(entry) = self
            .table
            .find_mut(widen_hash(hash), |e| e.owner == from.pack())
        {
            entry.owner = to.pack();
        }
    }
}

#[cfg(test)]
mod tests;
