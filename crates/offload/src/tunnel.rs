//! Encapsulations that the parser supports, and where their inner packet begins.

use fullsend_wire::numbers::ethertype;
use fullsend_wire::numbers::protocol::{GRE, IPIP, IPV6};

use crate::bytes::be16;

#[cfg(test)]
mod tests;

/// EtherType of a bridged Ethernet frame in GRE (RFC 7637 3.2) and Geneve (RFC 8926 3.4).
const BRIDGED: u16 = 0x6558;

/// The encapsulations whose inner packets are parsed and coalesced, one level deep.
///
/// A gateway or VPN that forwards tunnelled packets uses [`STANDARD`](Self::STANDARD) or selects
/// the encapsulations that it carries. A host that terminates the tunnels itself, or has none, uses
/// [`NONE`](Self::NONE): it handles them as other protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tunnels {
    /// Whether to parse IP in IP: protocols 4 and 41 (RFC 2003, RFC 2473).
    pub ip: bool,
    /// Whether to parse GRE (RFC 2784, RFC 2890).
    pub gre: bool,
    /// Destination UDP port of VXLAN (RFC 7348), or `None` not to parse it.
    pub vxlan: Option<u16>,
    /// Destination UDP port of Geneve (RFC 8926), or `None` not to parse it.
    pub geneve: Option<u16>,
    /// Foo over UDP: destination UDP port, and the IP protocol of its payload (4, 41 or 47); or
    /// `None` not to parse it.
    pub fou: Option<(u16, u8)>,
    /// Destination UDP port of Generic UDP Encapsulation (draft-ietf-intarea-gue), or `None` not to
    /// parse it.
    pub gue: Option<u16>,
}

impl Tunnels {
    /// No encapsulation.
    pub const NONE: Self = Self {
        ip: false,
        gre: false,
        vxlan: None,
        geneve: None,
        fou: None,
        gue: None,
    };

    /// All encapsulations with an assigned protocol number or UDP port, so without FOU and GUE.
    pub const STANDARD: Self = Self {
        ip: true,
        gre: true,
        vxlan: Some(4789),
        geneve: Some(6081),
        fou: None,
        gue: None,
    };
}

/// The encapsulation of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encap {
    /// Not encapsulated.
    #[default]
    None,
    /// IP directly in IP (protocols 4 and 41).
    Ip,
    /// GRE in IP.
    Gre,
    /// A UDP tunnel: VXLAN, Geneve, FOU, GUE.
    Udp,
}

/// The kind of an inner packet, and the offset at which it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inner {
    /// An IP packet; `v6` for IPv6.
    Ip { at: usize, v6: bool },
    /// An Ethernet frame.
    Ethernet { at: usize },
}

/// Returns the inner packet of an IP or GRE tunnel whose header begins at `at`, after the outer IP
/// header. Returns `None` if `protocol` is no enabled tunnel, or if its header cannot be coalesced.
/// Bytes beyond the end of `bytes` are read as zeros.
pub(crate) fn inner(
    bytes: &[u8],
    at: usize,
    protocol: u8,
    tunnels: &Tunnels,
) -> Option<(Encap, Inner)> {
    match protocol {
        IPIP | IPV6 if tunnels.ip => Some((Encap::Ip, inner_by_protocol(bytes, at, protocol)?)),
        GRE if tunnels.gre => Some((Encap::Gre, inner_by_protocol(bytes, at, protocol)?)),
        _ => None,
    }
}

/// Returns the inner packet of the UDP tunnel whose UDP header is at `at`, or `None` as [`inner`]
/// does.
pub(crate) fn udp_inner(bytes: &[u8], at: usize, tunnels: &Tunnels) -> Option<Inner> {
    let port = Some(field(bytes, at + 2));
    let at = at + 8;
    if port == tunnels.vxlan {
        // RFC 7348 5: the I flag must be the only flag.
        (bytes.get(at) == Some(&0x08)).then_some(Inner::Ethernet { at: at + 8 })
    } else if port == tunnels.geneve {
        geneve(bytes, at)
    } else if port == tunnels.gue {
        // Version 0, no control message, no flags: the optional fields are not supported.
        let plain = bytes.get(at) == Some(&0) && field(bytes, at + 2) == 0;
        let protocol = bytes.get(at + 1).filter(|_| plain)?;
        inner_by_protocol(bytes, at + 4, *protocol)
    } else {
        let (_, protocol) = tunnels.fou.filter(|(fou, _)| port == Some(*fou))?;
        inner_by_protocol(bytes, at, protocol)
    }
}

/// Returns the inner packet of a Geneve header (RFC 8926 3.4). GRO compares the options byte by
/// byte; a control packet has no inner packet.
fn geneve(bytes: &[u8], at: usize) -> Option<Inner> {
    let [first, flags] = field(bytes, at).to_be_bytes();
    if first >> 6 != 0 || flags & 0x80 != 0 {
        return None;
    }
    let inner = at + 8 + usize::from(first & 0x3f) * 4;
    inner_by_ethertype(field(bytes, at + 2), inner)
}

fn inner_by_protocol(bytes: &[u8], at: usize, protocol: u8) -> Option<Inner> {
    match protocol {
        IPIP => Some(Inner::Ip { at, v6: false }),
        IPV6 => Some(Inner::Ip { at, v6: true }),
        // RFC 2784 2: version 0. RFC 2890: the key may be present, and GRO compares it. Packets
        // with a checksum or a sequence number, which differ from packet to packet, are not
        // coalesced.
        GRE => match field(bytes, at) {
            0 => inner_by_ethertype(field(bytes, at + 2), at + 4),
            0x2000 => inner_by_ethertype(field(bytes, at + 2), at + 8),
            _ => None,
        },
        _ => None,
    }
}

fn inner_by_ethertype(ethertype: u16, at: usize) -> Option<Inner> {
    match ethertype {
        ethertype::IPV4 => Some(Inner::Ip { at, v6: false }),
        ethertype::IPV6 => Some(Inner::Ip { at, v6: true }),
        BRIDGED => Some(Inner::Ethernet { at }),
        _ => None,
    }
}

/// Reads a 16-bit field; zero beyond the end, which the parser reports.
fn field(bytes: &[u8], at: usize) -> u16 {
    if bytes.len() < at + 2 {
        return 0;
    }
    be16(bytes, at)
}
