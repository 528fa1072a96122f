//! Which encapsulations the parse looks into, and where their payload begins.

use fullsend_wire::numbers::ethertype;
use fullsend_wire::numbers::protocol::{GRE, IPIP, IPV6};

use crate::bytes::be16;

#[cfg(test)]
mod tests;

/// GRE's EtherType of bridged Ethernet (RFC 7637 3.2), Geneve's too (RFC 8926 3.4).
const BRIDGED: u16 = 0x6558;

/// Encapsulations to look into, one level deep.
///
/// Who forwards tunnelled packets, as a gateway or a VPN does, takes
/// [`STANDARD`](Self::STANDARD) or names what it carries. A host that is itself an end of the
/// tunnels, or knows none, takes [`NONE`](Self::NONE): to it they are protocols like others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tunnels {
    /// IP in IP: protocols 4 and 41 (RFC 2003, RFC 2473).
    pub ip: bool,
    /// GRE (RFC 2784, RFC 2890).
    pub gre: bool,
    /// VXLAN (RFC 7348) to this UDP port.
    pub vxlan: Option<u16>,
    /// Geneve (RFC 8926) to this UDP port.
    pub geneve: Option<u16>,
    /// Foo over UDP: what follows a UDP header to this port is of this IP protocol (4, 41 or 47).
    pub fou: Option<(u16, u8)>,
    /// Generic UDP Encapsulation (draft-ietf-intarea-gue) to this UDP port.
    pub gue: Option<u16>,
}

impl Tunnels {
    /// None at all.
    pub const NONE: Self = Self {
        ip: false,
        gre: false,
        vxlan: None,
        geneve: None,
        fou: None,
        gue: None,
    };

    /// All that have a number of their own: FOU and GUE have no port unless one is given.
    pub const STANDARD: Self = Self {
        ip: true,
        gre: true,
        vxlan: Some(4789),
        geneve: Some(6081),
        fou: None,
        gue: None,
    };
}

/// How a packet is encapsulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encap {
    /// It is not.
    #[default]
    None,
    /// IP directly in IP.
    Ip,
    /// GRE in IP.
    Gre,
    /// A UDP tunnel: VXLAN, Geneve, FOU, GUE.
    Udp,
}

/// What a tunnel header leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inner {
    /// An IP packet, IPv6 if so.
    Ip { at: usize, v6: bool },
    /// An Ethernet frame.
    Ethernet { at: usize },
}

/// What follows the outer IP header of this protocol at `at`; `None` if that is no tunnel that is
/// looked into, or one that cannot be coalesced. Bytes beyond the end are zeros.
pub(crate) fn inner(
    bytes: &[u8],
    at: usize,
    protocol: u8,
    tunnels: &Tunnels,
) -> Option<(Encap, Inner)> {
    match protocol {
        IPIP | IPV6 if tunnels.ip => Some((Encap::Ip, carried(bytes, at, protocol)?)),
        GRE if tunnels.gre => Some((Encap::Gre, carried(bytes, at, protocol)?)),
        _ => None,
    }
}

/// What follows a UDP header at `at`.
pub(crate) fn inner_of_udp(bytes: &[u8], at: usize, tunnels: &Tunnels) -> Option<Inner> {
    let port = Some(field(bytes, at + 2));
    let at = at + 8;
    if port == tunnels.vxlan {
        // RFC 7348 5: the I flag, and only it.
        (bytes.get(at) == Some(&0x08)).then_some(Inner::Ethernet { at: at + 8 })
    } else if port == tunnels.geneve {
        geneve(bytes, at)
    } else if port == tunnels.gue {
        // Version 0, no control message, no optional fields; their meaning is not known here.
        let plain = bytes.get(at) == Some(&0) && field(bytes, at + 2) == 0;
        let protocol = bytes.get(at + 1).filter(|_| plain)?;
        carried(bytes, at + 4, *protocol)
    } else {
        let (_, protocol) = tunnels.fou.filter(|(fou, _)| port == Some(*fou))?;
        carried(bytes, at, protocol)
    }
}

/// RFC 8926 3.4: options are compared as they are; a control packet carries no data.
fn geneve(bytes: &[u8], at: usize) -> Option<Inner> {
    let [first, flags] = field(bytes, at).to_be_bytes();
    if first >> 6 != 0 || flags & 0x80 != 0 {
        return None;
    }
    let inner = at + 8 + usize::from(first & 0x3f) * 4;
    by_ethertype(field(bytes, at + 2), inner)
}

fn carried(bytes: &[u8], at: usize, protocol: u8) -> Option<Inner> {
    match protocol {
        IPIP => Some(Inner::Ip { at, v6: false }),
        IPV6 => Some(Inner::Ip { at, v6: true }),
        // RFC 2784 2: version 0. RFC 2890: a key is like for like; a checksum and a sequence
        // number differ from packet to packet and are left alone.
        GRE => match field(bytes, at) {
            0 => by_ethertype(field(bytes, at + 2), at + 4),
            0x2000 => by_ethertype(field(bytes, at + 2), at + 8),
            _ => None,
        },
        _ => None,
    }
}

fn by_ethertype(ethertype: u16, at: usize) -> Option<Inner> {
    match ethertype {
        ethertype::IPV4 => Some(Inner::Ip { at, v6: false }),
        ethertype::IPV6 => Some(Inner::Ip { at, v6: true }),
        BRIDGED => Some(Inner::Ethernet { at }),
        _ => None,
    }
}

/// A field, zero beyond the end: the walk behind it finds the end in any case.
fn field(bytes: &[u8], at: usize) -> u16 {
    if bytes.len() < at + 2 {
        return 0;
    }
    be16(bytes, at)
}
