//! Router advertisements (RFC 4861 4.2, RFC 8106).

use std::net::Ipv6Addr;

const ROUTER_ADVERT: u8 = 134;
/// Hop limit that the advertisement gives to hosts.
const HOP_LIMIT: u8 = 64;
/// M flag: addresses come from DHCPv6. O flag: other settings come from DHCPv6.
const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;
/// Flags of a prefix: it is on the link (L), and hosts may form addresses in it (A).
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
/// The only prefix length with which hosts on Ethernet form addresses (RFC 4862 5.5.3, RFC 2464 4).
const AUTONOMOUS_PREFIX: u8 = 64;

mod option {
    pub(super) const SOURCE_MAC: u8 = 1;
    pub(super) const PREFIX: u8 = 3;
    pub(super) const MTU: u8 = 5;
    pub(super) const RDNSS: u8 = 25;
    pub(super) const DNSSL: u8 = 31;
}

/// The contents of an advertisement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouterAdvert {
    /// The router's Ethernet address.
    pub mac: [u8; 6],
    /// An address in the link's prefix, and the length of the prefix, bits.
    pub prefix: (Ipv6Addr, u8),
    /// MTU, bytes.
    pub mtu: u32,
    /// Whether hosts get their addresses by DHCPv6.
    pub managed: bool,
    /// Whether hosts get other settings by DHCPv6.
    pub other: bool,
    /// Addresses of the resolvers.
    pub dns: Vec<Ipv6Addr>,
    /// Domains to search.
    pub search: Vec<String>,
    /// Seconds for which the router is a default router, and its resolvers and domains are valid.
    pub lifetime_s: u16,
}

impl RouterAdvert {
    /// Builds the ICMPv6 message, without its checksum.
    pub fn emit(&self) -> Vec<u8> {
        let flags = (u8::from(self.managed) * MANAGED) | (u8::from(self.other) * OTHER);
        let mut out = vec![ROUTER_ADVERT, 0, 0, 0, HOP_LIMIT, flags];
        out.extend(self.lifetime_s.to_be_bytes());
        // The reachable time and the retransmission timer are unspecified.
        out.extend([0; 8]);
        push(&mut out, option::SOURCE_MAC, &self.mac);
        push(&mut out, option::PREFIX, &self.prefix_data());
        push(
            &mut out,
            option::MTU,
            &[&[0, 0], &self.mtu.to_be_bytes()[..]].concat(),
        );
        let lifetime = u32::from(self.lifetime_s).to_be_bytes();
        if !self.dns.is_empty() {
            let mut data = [&[0, 0], &lifetime[..]].concat();
            data.extend(self.dns.iter().take(8).flat_map(Ipv6Addr::octets));
            push(&mut out, option::RDNSS, &data);
        }
        let search = super::names(&self.search, 1024);
        if !search.is_empty() {
            push(
                &mut out,
                option::DNSSL,
                &[&[0, 0], &lifetime[..], &search].concat(),
            );
        }
        out
    }

    fn prefix_data(&self) -> Vec<u8> {
        let (address, len) = self.prefix;
        let len = len.min(128);
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        let autonomous = u8::from(len == AUTONOMOUS_PREFIX) * AUTONOMOUS;
        let mut data = vec![len, ON_LINK | autonomous];
        // The prefix is valid and preferred for ever.
        data.extend([0xff; 8]);
        data.extend([0; 4]);
        data.extend((address.to_bits() & mask).to_be_bytes());
        data
    }
}

/// Appends an option, padded to a multiple of 8 bytes.
fn push(out: &mut Vec<u8>, code: u8, data: &[u8]) {
    let units = (2 + data.len()).div_ceil(8);
    out.extend([code, units as u8]);
    out.extend(data);
    out.resize(out.len() + units * 8 - 2 - data.len(), 0);
}

#[cfg(test)]
mod tests {
    use fullsend_wire::icmpv6::Icmpv6Repr;
    use fullsend_wire::ndp::NdpRepr;

    use super::*;

    fn advert() -> RouterAdvert {
        RouterAdvert {
            mac: [2, 0, 0, 0, 0, 1],
            prefix: ("fd00::2".parse().unwrap(), 64),
            mtu: 1500,
            managed: true,
            other: true,
            dns: vec!["fd00::3".parse().unwrap()],
            search: vec!["example.com".into()],
            lifetime_s: 1800,
        }
    }

    #[test]
    fn an_advertisement_is_one_for_the_parser() {
        let message = advert().emit();
        assert_eq!(message.len() % 8, 0);
        let Ok(Icmpv6Repr::Ndp(NdpRepr::RouterAdvert {
            hop_limit,
            flags,
            lifetime_s,
            ..
        })) = Icmpv6Repr::parse(&message)
        else {
            panic!("{message:?}");
        };
        assert_eq!((hop_limit, flags, lifetime_s), (64, 0xc0, 1800));
    }

    #[test]
    fn the_prefix_is_without_host_bits_and_autonomous_at_64_bits() {
        let data = advert().prefix_data();
        assert_eq!(data[..2], [64, 0xc0]);
        let prefix: Ipv6Addr = "fd00::".parse().unwrap();
        assert_eq!(data[14..], prefix.octets());
        for len in [0, 56, 128, 255] {
            let mut advert = advert();
            advert.prefix.1 = len;
            assert_eq!(advert.prefix_data()[1], 0x80, "{len}");
        }
    }

    #[test]
    fn options_without_contents_are_left_out() {
        let long = advert().emit().len();
        let short = RouterAdvert {
            dns: Vec::new(),
            search: Vec::new(),
            ..advert()
        };
        // RDNSS has 24 bytes and DNSSL 24.
        assert_eq!(short.emit().len(), long - 48);
    }
}
