//! The path to one destination: the interface, the MTU and a template of the headers below
//! transport, which is built once and copied to every packet.

use core::net::{Ipv4Addr, Ipv6Addr};

use fullsend_offload::{Encap, HeaderBuf, Layers};
use fullsend_tcp::{IpSettings, MtuDiscover};
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::numbers::{DEFAULT_TTL, ethertype};
use fullsend_wire::{ipv4, ipv6};

use crate::demux::Addr;

/// Maximum length of the template, bytes: Ethernet and IPv6 headers.
const MAX_HEADER: usize = 14 + ipv6::HEADER_LEN;

/// The Don't Fragment bit in the seventh byte of an IPv4 header.
const DF: u8 = 0x40;

/// A path; 72 bytes for each connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The version of the routing state that the path was built from.
    pub(crate) version: u32,
    pub(crate) iface: u16,
    /// Whether the template has the link header; if not, the neighbour must be resolved first.
    pub(crate) resolved: bool,
    link_len: u8,
    len: u8,
    /// Checksum of the IPv4 header without length, ID and ECN field, not inverted.
    header_sum: u16,
    /// Checksum of the pseudo-header without length, not inverted.
    pseudo_sum: u16,
    header: [u8; MAX_HEADER],
    /// Path MTU, bytes.
    pub(crate) mtu: u32,
}

/// Folds `sum`, the plain sum of a few words, to their one's complement sum (RFC 1071).
#[inline]
const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

const fn ethertype_of(addr: Addr) -> u16 {
    if addr.is_v4() {
        ethertype::IPV4
    } else {
        ethertype::IPV6
    }
}

impl Path {
    /// Builds a path for `protocol` between two addresses of one family. `link` holds the link
    /// header without its EtherType; `None` means that the neighbour is not resolved yet.
    pub(crate) fn new(
        (iface, mtu, version): (u16, u32, u32),
        link: Option<&[u8]>,
        (local, remote): (Addr, Addr),
        (protocol, flow_label): (u8, u32),
    ) -> Self {
        let mut path = Self {
            version,
            iface,
            resolved: link.is_some(),
            link_len: 0,
            len: 0,
            header_sum: 0,
            pseudo_sum: 0,
            header: [0; MAX_HEADER],
            mtu,
        };
        let link = link.unwrap_or(&[]);
        if !link.is_empty() {
            path.header[..link.len()].copy_from_slice(link);
            path.header[link.len()..][..2].copy_from_slice(&ethertype_of(remote).to_be_bytes());
            path.link_len = link.len() as u8 + 2;
        }
        let start = path.link_len as usize;
        let network_len = if remote.is_v4() {
            let header = &mut path.header[start..][..ipv4::HEADER_LEN];
            header[0] = 0x45;
            // RFC 6864: with DF set, the ID need not be unique.
            header[6] = DF;
            header[8] = DEFAULT_TTL;
            header[9] = protocol;
            header[12..16].copy_from_slice(&local.v4_octets());
            header[16..20].copy_from_slice(&remote.v4_octets());
            path.header_sum = sum(header).fold();
            let (src, dst) = (Ipv4Addr::from(local.v4_octets()), remote.v4_octets().into());
            path.pseudo_sum = Sum::pseudo_v4(src, dst, protocol, 0).fold();
            ipv4::HEADER_LEN
        } else {
            let header = &mut path.header[start..][..ipv6::HEADER_LEN];
            header[..4].copy_from_slice(&(6 << 28 | flow_label & 0xf_ffff).to_be_bytes());
            header[6] = protocol;
            header[7] = DEFAULT_TTL;
            header[8..24].copy_from_slice(&local.v6_octets());
            header[24..40].copy_from_slice(&remote.v6_octets());
            let (src, dst) = (Ipv6Addr::from(local.v6_octets()), remote.v6_octets().into());
            path.pseudo_sum = Sum::pseudo_v6(src, dst, protocol, 0).fold();
            ipv6::HEADER_LEN
        };
        path.len = path.link_len + network_len as u8;
        path
    }

    /// Sets the fields of the network header that a socket has chosen.
    pub(crate) fn apply(&mut self, settings: IpSettings) {
        let IpSettings {
            tos,
            ttl,
            mtu_discover,
        } = settings;
        let ttl = ttl.unwrap_or(DEFAULT_TTL);
        let network = &mut self.header[usize::from(self.link_len)..];
        if usize::from(self.len - self.link_len) == ipv4::HEADER_LEN {
            network[1] = tos;
            network[6] = match mtu_discover {
                MtuDiscover::Dont => 0,
                _ => DF,
            };
            network[8] = ttl;
            self.header_sum = sum(&network[..ipv4::HEADER_LEN]).fold();
        } else {
            network[0] = 6 << 4 | tos >> 4;
            network[1] = tos << 4 | network[1] & 0xf;
            network[7] = ttl;
        }
    }

    #[inline]
    pub(crate) const fn is_v4(&self) -> bool {
        (self.len - self.link_len) as usize == ipv4::HEADER_LEN
    }

    /// Returns the length of the network header, bytes.
    #[inline]
    pub(crate) const fn network_len(&self) -> u16 {
        (self.len - self.link_len) as u16
    }

    /// Returns the initial value of a `Partial` checksum field, for `len` bytes of transport header
    /// and payload.
    #[inline]
    pub(crate) const fn partial_checksum(&self, len: usize) -> u16 {
        let len = len as u32;
        fold(self.pseudo_sum as u32 + (len >> 16) + (len & 0xffff))
    }

    /// Returns the length of link and network header, bytes.
    #[inline]
    pub(crate) const fn headers_len(&self) -> usize {
        self.len as usize
    }

    /// Prepends the link and network headers to a packet with `len` bytes of transport header and
    /// payload.
    #[inline]
    pub(crate) fn prepend(&self, header: &mut HeaderBuf, len: usize, ident: u16, ecn: u8) {
        self.fill(header.prepend(self.headers_len()), len, ident, ecn);
    }

    /// Writes the link and network headers to `all`, which has [`headers_len`](Self::headers_len)
    /// bytes.
    #[inline]
    pub(crate) fn fill(&self, all: &mut [u8], len: usize, ident: u16, ecn: u8) {
        all.copy_from_slice(&self.header[..self.len as usize]);
        let network = &mut all[self.link_len as usize..];
        if self.is_v4() {
            // A length that the field cannot hold is sent as zero, as for jumbograms (RFC 2675).
            let total = u16::try_from(len + ipv4::HEADER_LEN).unwrap_or(0);
            let words = u32::from(total) + u32::from(ident) + u32::from(ecn);
            let checksum = !fold(u32::from(self.header_sum) + words);
            network[1] |= ecn;
            network[2..4].copy_from_slice(&total.to_be_bytes());
            network[4..6].copy_from_slice(&ident.to_be_bytes());
            network[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            let len = u16::try_from(len).unwrap_or(0);
            network[1] |= ecn << 4;
            network[4..6].copy_from_slice(&len.to_be_bytes());
        }
    }

    /// Returns the layers of a packet with this path's headers.
    #[inline]
    pub(crate) const fn layers(&self, protocol: u8) -> Layers {
        Layers {
            network: [self.link_len as u16; 2],
            transport: self.len as u16,
            ethertype: if self.is_v4() {
                ethertype::IPV4
            } else {
                ethertype::IPV6
            },
            protocol,
            tunnel: 0,
            encap: Encap::None,
            fragment: false,
        }
    }
}
