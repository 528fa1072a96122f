//! Path MTUs learnt from ICMP (RFC 1191, RFC 8201).

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;

use fullsend_units::{Instant, Nanos};
use fullsend_wire::numbers::protocol;

use crate::net_config::IPV6_MIN_MTU;

/// How long a path's MTU is believed (RFC 1191 6.3); Linux's `mtu_expires`.
const LIFETIME: Nanos = Nanos::from_secs(600);
/// Most destinations remembered; then the oldest goes.
const MAX_ENTRIES: usize = 4096;
/// The least we go down to over IPv4, whatever is claimed; Linux's `min_pmtu`.
const MIN_V4: u32 = 552;
/// RFC 1191 7.1: MTUs that links have, for routers that do not tell theirs.
const PLATEAUS: [u32; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, MIN_V4];

/// The path MTUs that each transport protocol has learnt by messages about its own packets.
///
/// TCP checks quotes against the sequence numbers in flight (RFC 5927 4.1). A datagram has nothing
/// as hard to guess, so a message that quotes one must not make TCP's segments smaller.
#[derive(Debug, Default)]
pub(crate) struct LearntMtus {
    tcp: PathMtus,
    datagrams: PathMtus,
}

impl LearntMtus {
    /// Those that packets of an IP protocol keep to.
    pub(crate) const fn of(&self, protocol: u8) -> &PathMtus {
        match protocol {
            protocol::TCP => &self.tcp,
            _ => &self.datagrams,
        }
    }

    /// Mutable access to those that packets of an IP protocol keep to.
    pub(crate) const fn of_mut(&mut self, protocol: u8) -> &mut PathMtus {
        match protocol {
            protocol::TCP => &mut self.tcp,
            _ => &mut self.datagrams,
        }
    }
}

/// Path MTUs that are smaller than the interface's, by destination.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    entries: BTreeMap<IpAddr, Entry>,
    /// In the order in which they expire; superseded ones included, up to as many as there are
    /// entries.
    order: VecDeque<(Instant, IpAddr)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mtu: u32,
    expires: Instant,
}

impl PathMtus {
    /// Believes that the path to `to` takes packets of `mtu` bytes at most. The caller has made
    /// sure that the message is about a packet of ours. The MTU to use now, if that is news.
    pub(crate) fn lower(&mut self, now: Instant, to: IpAddr, mtu: u32) -> Option<u32> {
        let mtu = believable(to, mtu);
        if self.get(now, to).is_some_and(|known| known <= mtu) {
            return None;
        }
        let expires = now + LIFETIME;
        self.entries.insert(to, Entry { mtu, expires });
        self.order.push_back((expires, to));
        self.trim(now);
        Some(mtu)
    }

    /// The path's MTU, if it is known to be smaller than the interface's.
    pub(crate) fn get(&self, now: Instant, to: IpAddr) -> Option<u32> {
        let entry = self.entries.get(&to)?;
        (now < entry.expires).then_some(entry.mtu)
    }

    /// Forgets entries that are too old or too many.
    fn trim(&mut self, now: Instant) {
        while let Some(&(expires, to)) = self.order.front() {
            if now < expires && self.entries.len() <= MAX_ENTRIES {
                break;
            }
            self.order.pop_front();
            if self.entries.get(&to).is_some_and(|e| e.expires == expires) {
                self.entries.remove(&to);
            }
        }
        // A path whose MTU falls step by step must neither fill the queue nor push others out.
        if self.order.len() > 2 * MAX_ENTRIES {
            let entries = &self.entries;
            self.order
                .retain(|(expires, to)| entries.get(to).is_some_and(|e| e.expires == *expires));
        }
    }
}

/// The path MTU that a claim stands for: at least the smallest that is accepted.
pub(crate) fn believable(to: IpAddr, mtu: u32) -> u32 {
    mtu.max(least(to))
}

/// The smallest path MTU that is accepted: no shorter packet can be too big.
pub(crate) const fn least(to: IpAddr) -> u32 {
    if to.is_ipv4() { MIN_V4 } else { IPV6_MIN_MTU }
}

/// The MTU to try when a router said "too big" about a packet of `len` bytes but not what fits.
pub(crate) fn plateau_below(len: u32) -> u32 {
    PLATEAUS
        .into_iter()
        .find(|&plateau| plateau < len)
        .unwrap_or(MIN_V4)
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use fullsend_units::{Instant, Nanos};

    use super::{MAX_ENTRIES, PathMtus, plateau_below};

    const T0: Instant = Instant::from_nanos(5);

    fn host(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn only_downwards_and_for_ten_minutes() {
        let mut paths = PathMtus::default();
        assert_eq!(paths.get(T0, host(1)), None);
        assert_eq!(paths.lower(T0, host(1), 1400), Some(1400));
        assert_eq!(paths.lower(T0, host(1), 1450), None);
        assert_eq!(paths.lower(T0, host(1), 1300), Some(1300));
        let later = T0 + Nanos::from_secs(599);
        assert_eq!(paths.get(later, host(1)), Some(1300));
        assert_eq!(paths.get(later, host(2)), None);
        let aged = T0 + Nanos::from_secs(600);
        assert_eq!(paths.get(aged, host(1)), None);
        assert_eq!(paths.lower(aged, host(1), 1450), Some(1450));
    }

    #[test]
    fn tiny_claims_are_raised() {
        let mut paths = PathMtus::default();
        assert_eq!(paths.lower(T0, host(1), 68), Some(552));
        assert_eq!(paths.lower(T0, "fd00::1".parse().unwrap(), 68), Some(1280));
        assert_eq!(plateau_below(1500), 1492);
        assert_eq!(plateau_below(1492), 1006);
        assert_eq!(plateau_below(100), 552);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut paths = PathMtus::default();
        for n in 0..=MAX_ENTRIES as u32 {
            paths.lower(T0, host(n), 1400);
        }
        assert_eq!(paths.get(T0, host(0)), None);
        assert_eq!(paths.get(T0, host(1)), Some(1400));
        assert_eq!(paths.entries.len(), MAX_ENTRIES);
    }

    /// Destinations that lower their path's MTU by a byte a time leave those of others alone.
    #[test]
    fn one_destination_does_not_crowd_out_the_others() {
        let mut paths = PathMtus::default();
        paths.lower(T0, host(0), 1400);
        for n in 1..100 {
            for mtu in (600..1500).rev() {
                let now = T0 + Nanos::from_micros(u64::from(1500 - mtu));
                assert_eq!(paths.lower(now, host(n), mtu), Some(mtu));
            }
        }
        assert_eq!(paths.get(T0, host(0)), Some(1400));
        assert!(paths.order.len() <= 2 * MAX_ENTRIES);
    }
}
