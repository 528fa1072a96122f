//! The host's addresses, and the selection of source addresses.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use crate::demux::Addr;

/// An address with its prefix length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    /// The address, which may have host bits.
    pub addr: IpAddr,
    /// Length of the network prefix, bits.
    pub prefix: u8,
}

/// The error for a string that is not an address with a prefix length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseCidrError(String);

impl fmt::Display for ParseCidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            f,
            "{text:?} is not an address with a prefix length; write e.g. 10.9.0.2/24 or fd09::2/64"
        )
    }
}

impl core::error::Error for ParseCidrError {}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Self, ParseCidrError> {
        let parse = || {
            let (addr, prefix) = text.split_once('/')?;
            let (addr, prefix) = (addr.parse().ok()?, prefix.parse().ok()?);
            Some(Self { addr, prefix }).filter(Self::is_valid)
        };
        parse().ok_or_else(|| ParseCidrError(text.to_owned()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

impl Cidr {
    /// Returns the network of all addresses of the family of `addr`: the destination of a default
    /// route.
    pub const fn default_route_for(addr: IpAddr) -> Self {
        let addr = match addr {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Self { addr, prefix: 0 }
    }

    /// Returns whether `ip` is in this network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        common_prefix(self.addr, ip).is_some_and(|bits| bits >= self.prefix)
    }

    /// Returns whether the prefix length is valid for the address family.
    pub(crate) const fn is_valid(&self) -> bool {
        self.prefix <= if self.addr.is_ipv4() { 32 } else { 128 }
    }
}

/// Returns the number of leading bits that two addresses share, or `None` if their families differ.
fn common_prefix(a: IpAddr, b: IpAddr) -> Option<u8> {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros() as u8),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros() as u8),
        _ => None,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[derive(Clone, Copy, Debug)]
struct AddressEntry {
    cidr: Cidr,
    key: Addr,
    iface: u16,
}

impl AddressEntry {
    /// Returns whether `ip` is the first or the last address of the IPv4 network. Neither is a
    /// host's address, except in networks of two addresses (RFC 3021).
    fn is_edge_of_network(&self, ip: Ipv4Addr) -> bool {
        match self.cidr.addr {
            IpAddr::V4(own) if self.cidr.prefix < 31 => {
                let host_bits = u32::MAX.checked_shr(self.cidr.prefix.into()).unwrap_or(0);
                let first = own.to_bits() & !host_bits;
                ip.to_bits() == first || ip.to_bits() == first | host_bits
            }
            _ => false,
        }
    }
}

/// The host's addresses.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    entries: Vec<AddressEntry>,
}

impl Addresses {
    /// Adds an address. Returns `false` if the host already has it.
    pub(crate) fn add(&mut self, iface: u16, cidr: Cidr) -> bool {
        let key = Addr::from(cidr.addr);
        if self.entries.iter().any(|e| e.key == key) {
            return false;
        }
        self.entries.push(AddressEntry { cidr, key, iface });
        true
    }

    /// Iterates over the addresses and their interfaces.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, Cidr)> {
        self.entries.iter().map(|e| (e.iface, e.cidr))
    }

    /// Returns whether the address is local. All of 127/8 and ::1 are.
    pub(crate) fn is_local(&self, addr: Addr) -> bool {
        self.entries.iter().any(|e| e.key == addr) || addr.to_ip().is_loopback()
    }

    /// Returns whether the interface has an IPv6 address.
    pub(crate) fn has_v6(&self, iface: u16) -> bool {
        let mut own = self.entries.iter().filter(|e| e.iface == iface);
        own.any(|e| e.cidr.addr.is_ipv6())
    }

    /// Returns whether `ip` is the limited broadcast address, or the directed broadcast address of
    /// a local IPv4 network.
    pub(crate) fn is_broadcast(&self, ip: IpAddr) -> bool {
        let IpAddr::V4(ip) = ip else { return false };
        ip.is_broadcast()
            || self.entries.iter().any(|e| match e.cidr.addr {
                IpAddr::V4(own) if e.cidr.prefix < 31 => {
                    let host_bits = u32::MAX.checked_shr(e.cidr.prefix.into()).unwrap_or(0);
                    own.to_bits() | host_bits == ip.to_bits()
                }
                _ => false,
            })
    }

    /// Returns whether `src` can be the address of a single host: not a group or the limited
    /// broadcast address, nor the first or the last address of a local network (RFC 1122 3.2.1.3,
    /// RFC 4291 2.7).
    pub(crate) fn is_host(&self, src: IpAddr) -> bool {
        let IpAddr::V4(ip) = src else {
            return !src.is_multicast();
        };
        !ip.is_multicast()
            && !ip.is_broadcast()
            && !self.entries.iter().any(|e| e.is_edge_of_network(ip))
    }

    /// Returns the source address towards `to` on `iface`: preferably of the same scope, then of
    /// that interface, then with the longest common prefix (RFC 6724 5 rules 2, 5 and 8). For a group,
    /// preferably of that interface: its members answer on that link.
    pub(crate) fn source_for(&self, to: IpAddr, iface: u16) -> Option<IpAddr> {
        if to.is_loopback() {
            return Some(to);
        }
        let to_link = is_link_local(to) || is_link_local_group(to);
        let rank = |e: &&AddressEntry| {
            let same_scope = is_link_local(e.cidr.addr) == to_link;
            let same_iface = e.iface == iface;
            let (first, second) = if to.is_multicast() {
                (same_iface, same_scope)
            } else {
                (same_scope, same_iface)
            };
            (first, second, common_prefix(e.cidr.addr, to))
        };
        self.entries
            .iter()
            .filter(|e| e.cidr.addr.is_ipv4() == to.is_ipv4())
            .max_by_key(rank)
            .map(|e| e.cidr.addr)
    }
}

/// Returns whether `to` is an IPv6 group of the link-local scope (RFC 4291 2.7).
fn is_link_local_group(to: IpAddr) -> bool {
    matches!(to, IpAddr::V6(to) if to.segments()[0] & 0xff0f == 0xff02)
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;

    use super::{Addresses, Cidr};

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn the_source_for_a_group_is_of_its_interface() {
        let mut addresses = Addresses::default();
        for (iface, text) in [
            (0, "10.0.0.2/24"),
            (0, "2001:db8::2/64"),
            (0, "fe80::1/64"),
            (1, "169.254.1.2/16"),
            (1, "fe80::2/64"),
            (2, "2001:db8:2::2/64"),
            (2, "fe80::3/64"),
        ] {
            assert!(addresses.add(iface, cidr(text)));
        }
        for (to, iface, source) in [
            ("224.0.0.251", 0, "10.0.0.2"),
            ("224.0.0.251", 1, "169.254.1.2"),
            ("ff02::fb", 0, "fe80::1"),
            ("ff02::fb", 1, "fe80::2"),
            ("ff05::1", 1, "fe80::2"),
            ("ff05::1", 2, "2001:db8:2::2"),
        ] {
            let found = addresses.source_for(to.parse().unwrap(), iface);
            assert_eq!(found, Some(source.parse().unwrap()), "{to} on {iface}");
        }
    }

    #[test]
    fn networks_contain_their_addresses() {
        assert!(cidr("10.1.0.0/16").contains("10.1.255.3".parse().unwrap()));
        assert!(!cidr("10.1.0.0/16").contains("10.2.0.1".parse().unwrap()));
        assert!(cidr("0.0.0.0/0").contains("1.2.3.4".parse().unwrap()));
        assert!(!cidr("0.0.0.0/0").contains("::1".parse().unwrap()));
        assert!(cidr("fd00::/64").contains("fd00::9".parse().unwrap()));
    }

    #[test]
    fn only_addresses_with_a_prefix_length_are_parsed() {
        assert_eq!(cidr("10.0.0.1/24").prefix, 24);
        assert_eq!(cidr("fd00::1/128").to_string(), "fd00::1/128");
        for wrong in [
            "10.0.0.1",
            "10.0.0.1/33",
            "fd00::1/129",
            "x/1",
            "10.0.0.1/-1",
            "",
        ] {
            let error = wrong.parse::<Cidr>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn the_source_address_matches_scope_interface_and_prefix() {
        let mut own = Addresses::default();
        for (iface, text) in [
            (0, "10.0.0.1/24"),
            (1, "192.168.0.1/24"),
            (0, "fe80::1/64"),
            (0, "fd00::1/64"),
        ] {
            assert!(own.add(iface, cidr(text)));
        }
        assert!(!own.add(1, cidr("10.0.0.1/24")));
        let source = |to: &str, iface| own.source_for(to.parse().unwrap(), iface).unwrap();
        assert_eq!(source("10.0.0.9", 0), cidr("10.0.0.1/24").addr);
        assert_eq!(source("8.8.8.8", 1), cidr("192.168.0.1/24").addr);
        assert_eq!(source("fe80::77", 0), cidr("fe80::1/64").addr);
        assert_eq!(source("fd01::77", 0), cidr("fd00::1/64").addr);
        assert_eq!(source("127.0.0.9", 0), cidr("127.0.0.9/8").addr);
    }

    #[test]
    fn groups_and_network_edges_are_not_host_addresses() {
        let mut own = Addresses::default();
        own.add(0, cidr("10.0.0.1/24"));
        own.add(0, cidr("10.9.0.0/31"));
        let may = |own: &Addresses, text: &str| own.is_host(text.parse().unwrap());
        for text in [
            "10.0.0.2",
            "10.1.0.0",
            "10.1.0.255",
            "10.9.0.1",
            "10.9.0.0",
            "fd00::1",
        ] {
            assert!(may(&own, text), "{text}");
        }
        for text in [
            "10.0.0.0",
            "10.0.0.255",
            "224.0.0.1",
            "239.1.2.3",
            "255.255.255.255",
            "ff02::1",
        ] {
            assert!(!may(&own, text), "{text}");
        }
    }

    #[test]
    fn broadcast_addresses_are_recognized() {
        let mut own = Addresses::default();
        own.add(0, cidr("10.0.0.1/24"));
        own.add(0, cidr("10.9.0.1/32"));
        assert!(own.is_broadcast("10.0.0.255".parse().unwrap()));
        assert!(own.is_broadcast("255.255.255.255".parse().unwrap()));
        assert!(!own.is_broadcast("10.9.0.1".parse().unwrap()));
        assert!(!own.is_broadcast("ff02::1".parse().unwrap()));
    }
}
