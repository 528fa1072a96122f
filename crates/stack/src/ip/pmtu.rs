//! Path MTUs learned from ICMP messages (RFC 1191, RFC 8201).

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use fullsend_wire::numbers::protocol;
use fullsend_wire::{Instant, Nanos};

use crate::net_config::IPV6_MIN_MTU;

/// Lifetime of a learned path MTU (RFC 1191 6.3); Linux's `mtu_expires`.
const LIFETIME: Nanos = Nanos::from_secs(600);
/// Maximum number of destinations with a learned MTU; a further one replaces the one that expires
/// first.
const MAX_ENTRIES: usize = 4096;
/// Most memory of an entry, in bytes: twice its size, as the nodes of a tree may be half full.
const ENTRY_BYTES: usize = 2 * (size_of::<(IpAddr, PmtuEntry)>() + size_of::<(Instant, IpAddr)>());
/// The smallest path MTU that is accepted over IPv4, whatever the message claims; Linux's
/// `min_pmtu`.
const MIN_V4: u32 = 552;
/// RFC 1191 7.1: common MTUs, for routers that do not report theirs.
const PLATEAUS: [u32; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, MIN_V4];

/// The path MTUs, separate for each transport protocol whose own packets the messages quoted.
///
/// TCP checks quotes against the sequence numbers in flight (RFC 5927 4.1). A datagram has nothing
/// that is as hard to guess, so a message that quotes one must not reduce TCP's segment size.
#[derive(Debug, Default)]
pub(crate) struct LearnedMtus {
    tcp: PathMtus,
    datagrams: PathMtus,
}

impl LearnedMtus {
    /// Limits each table to about `bytes` of memory.
    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.tcp.limit_memory(bytes);
        self.datagrams.limit_memory(bytes);
    }

    /// Returns the path MTUs for packets of an IP protocol.
    pub(crate) const fn of(&self, protocol: u8) -> &PathMtus {
        match protocol {
            protocol::TCP => &self.tcp,
            _ => &self.datagrams,
        }
    }

    /// Returns the path MTUs for packets of an IP protocol, mutably.
    pub(crate) const fn of_mut(&mut self, protocol: u8) -> &mut PathMtus {
        match protocol {
            protocol::TCP => &mut self.tcp,
            _ => &mut self.datagrams,
        }
    }
}

/// Path MTUs that are smaller than the interface's, by destination.
#[derive(Debug)]
pub(crate) struct PathMtus {
    max_entries: usize,
    entries: BTreeMap<IpAddr, PmtuEntry>,
    /// One key for each entry, in the order of expiry.
    order: BTreeSet<(Instant, IpAddr)>,
}

#[derive(Clone, Copy, Debug)]
struct PmtuEntry {
    mtu: u32,
    expires: Instant,
}

impl Default for PathMtus {
    fn default() -> Self {
        Self {
            max_entries: MAX_ENTRIES,
            entries: BTreeMap::new(),
            order: BTreeSet::new(),
        }
    }
}

impl PathMtus {
    /// Limits the table to about `bytes` of memory.
    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.max_entries = (bytes / ENTRY_BYTES).clamp(16, MAX_ENTRIES);
    }

    /// Records that the path to `to` carries packets of at most `mtu` bytes, and returns the MTU to
    /// use from now on. Returns `None` if that is not less than `current`, the MTU in use. The
    /// caller has verified that the message quotes a packet of this host.
    pub(crate) fn reduce(
        &mut self,
        now: Instant,
        to: IpAddr,
        (current, mtu): (u32, u32),
    ) -> Option<u32> {
        let mtu = clamp_path_mtu(to, mtu);
        if mtu
            >= self
                .get(now, to)
                .map_or(current, |known| known.min(current))
        {
            return None;
        }
        let expires = now + LIFETIME;
        if let Some(old) = self.entries.insert(to, PmtuEntry { mtu, expires }) {
            self.order.remove(&(old.expires, to));
        }
        self.order.insert((expires, to));
        self.trim(now);
        Some(mtu)
    }

    /// Returns the path MTU if it is known to be smaller than the interface's.
    pub(crate) fn get(&self, now: Instant, to: IpAddr) -> Option<u32> {
        let entry = self.entries.get(&to)?;
        (now < entry.expires).then_some(entry.mtu)
    }

    /// Removes the expired entries, and those that expire first while there are too many.
    fn trim(&mut self, now: Instant) {
        while let Some(&(expires, to)) = self.order.first()
            && (now >= expires || self.entries.len() > self.max_entries)
        {
            self.order.pop_first();
            self.entries.remove(&to);
        }
    }
}

/// Returns the path MTU to use for a reported one: at least the smallest that is accepted.
pub(crate) fn clamp_path_mtu(to: IpAddr, mtu: u32) -> u32 {
    mtu.max(min_path_mtu(to))
}

/// Returns the smallest path MTU that is accepted. No packet of that length or less can be too big.
pub(crate) const fn min_path_mtu(to: IpAddr) -> u32 {
    if to.is_ipv4() { MIN_V4 } else { IPV6_MIN_MTU }
}

/// Returns the MTU to try when a router reported that a packet of `len` bytes was too big, but not
/// the MTU.
pub(crate) fn plateau_below(len: u32) -> u32 {
    PLATEAUS
        .into_iter()
        .find(|&plateau| plateau < len)
        .unwrap_or(MIN_V4)
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use fullsend_wire::{Instant, Nanos};

    use super::{MAX_ENTRIES, PathMtus, plateau_below};

    const T0: Instant = Instant::from_nanos(5);
    /// The interface's MTU.
    const MTU: u32 = 1500;

    fn host(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn a_learned_mtu_only_decreases_and_expires_after_ten_minutes() {
        let mut paths = PathMtus::default();
        assert_eq!(paths.get(T0, host(1)), None);
        assert_eq!(paths.reduce(T0, host(1), (MTU, 1400)), Some(1400));
        assert_eq!(paths.reduce(T0, host(1), (MTU, 1450)), None);
        assert_eq!(paths.reduce(T0, host(1), (MTU, 1300)), Some(1300));
        let later = T0 + Nanos::from_secs(599);
        assert_eq!(paths.get(later, host(1)), Some(1300));
        assert_eq!(paths.get(later, host(2)), None);
        let expired = T0 + Nanos::from_secs(600);
        assert_eq!(paths.get(expired, host(1)), None);
        assert_eq!(paths.reduce(expired, host(1), (MTU, 1450)), Some(1450));
    }

    #[test]
    fn tiny_reported_mtus_are_raised_to_the_minimum() {
        let mut paths = PathMtus::default();
        assert_eq!(paths.reduce(T0, host(1), (MTU, 68)), Some(552));
        let v6 = "fd00::1".parse().unwrap();
        assert_eq!(paths.reduce(T0, v6, (MTU, 68)), Some(1280));
        assert_eq!(plateau_below(1500), 1492);
        assert_eq!(plateau_below(1492), 1006);
        assert_eq!(plateau_below(100), 552);
    }

    #[test]
    fn the_oldest_entry_is_evicted_when_the_table_is_full() {
        let mut paths = PathMtus::default();
        for n in 0..=MAX_ENTRIES as u32 {
            paths.reduce(T0, host(n), (MTU, 1400));
        }
        assert_eq!(paths.get(T0, host(0)), None);
        assert_eq!(paths.get(T0, host(1)), Some(1400));
        assert_eq!(paths.entries.len(), MAX_ENTRIES);
    }

    /// Destinations whose path MTU falls by a byte at a time, at one instant or at several, leave
    /// the entries of others alone and add no keys.
    #[test]
    fn one_destination_does_not_evict_the_others() {
        for step in [0, 1] {
            let mut paths = PathMtus::default();
            paths.reduce(T0, host(0), (MTU, 1400));
            for n in 1..100 {
                for mtu in (600..MTU).rev() {
                    let now = T0 + Nanos::from_micros(u64::from(step * (MTU - mtu)));
                    assert_eq!(paths.reduce(now, host(n), (MTU, mtu)), Some(mtu));
                }
                assert_eq!(paths.order.len(), n as usize + 1);
            }
            assert_eq!(paths.get(T0, host(0)), Some(1400));
            assert_eq!(paths.entries.len(), 100);
        }
    }

    #[test]
    fn an_mtu_not_below_the_one_in_use_is_ignored() {
        let mut paths = PathMtus::default();
        for mtu in [MTU, MTU + 1, 65_535] {
            assert_eq!(paths.reduce(T0, host(1), (MTU, mtu)), None);
        }
        // The interface's MTU is below the reported one, or equal to the smallest that is accepted.
        assert_eq!(paths.reduce(T0, host(1), (1400, 1450)), None);
        assert_eq!(paths.reduce(T0, host(1), (552, 68)), None);
        assert!(paths.entries.is_empty() && paths.order.is_empty());
        assert_eq!(paths.reduce(T0, host(1), (MTU, MTU - 1)), Some(MTU - 1));
    }
}
