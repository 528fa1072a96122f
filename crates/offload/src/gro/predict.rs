//! Header prediction: most packets follow the one before them, and one comparison of the headers
//! says so without a parse.
//!
//! What the comparison passes over is what may differ between packets that join; a packet found
//! so has the layers of the one it follows. Everything else takes the way of the parse.

use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpFlags;

use crate::bytes::{be16, be32};
use crate::{Encap, Layers};

/// What stands in front of a held packet's transport header; the usual shapes have ways of their
/// own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Shape {
    /// TCP over IPv4.
    V4,
    /// TCP over IPv6.
    V6,
    /// TCP over IPv6 with extension headers.
    V6Ext,
    /// Tunnels and UDP.
    #[default]
    Other,
}

impl Shape {
    pub(super) fn of(layers: &Layers) -> Self {
        let plain = layers.encap == Encap::None && layers.protocol == protocol::TCP;
        match (plain, layers.ethertype) {
            (true, ethertype::IPV4) => Self::V4,
            (true, ethertype::IPV6) if layers.transport - layers.network[0] == 40 => Self::V6,
            (true, ethertype::IPV6) => Self::V6Ext,
            _ => Self::Other,
        }
    }
}

/// The headers at the front of a packet of `total` bytes are those of `head`, but for the fields
/// that count on from packet to packet; they are whole and agree with the length.
#[inline(always)]
pub(super) fn continues<const V6: bool, const EXT: bool>(
    front: &[u8],
    total: usize,
    head: &[u8],
    layers: &Layers,
) -> bool {
    let network = usize::from(layers.network[0]);
    let fixed = network + if V6 { 40 } else { 20 };
    let transport = if EXT {
        usize::from(layers.transport)
    } else {
        fixed
    };
    let Some(front) = front.get(..head.len()) else {
        return false;
    };
    let (Some(mine), Some(heads)) = (split(front, transport), split(head, transport)) else {
        return false;
    };
    let (mine_network, heads_network) = (&front[network..fixed], &head[network..fixed]);
    let len = total - network;
    tcp(mine.0, heads.0)
        && if V6 {
            ipv6(mine_network, heads_network, len)
        } else {
            ipv4(mine_network, heads_network, len)
        }
        && (!EXT || words(&front[fixed..transport], &head[fixed..transport]))
        && words(mine.1, heads.1)
        // Without a link header, spare the call that compares nothing.
        && (network == 0 || front[..network] == head[..network])
}

/// The same for any shape, layer by layer. Equal bytes lead to equal layers.
#[inline(never)]
pub(super) fn continues_any(front: &[u8], total: usize, head: &[u8], layers: &Layers) -> bool {
    let at = |n: u16| usize::from(n);
    let Some(front) = front.get(..head.len()) else {
        return false;
    };
    let transport = at(layers.transport);
    let upper = upper(&front[transport..], &head[transport..], total - transport);
    if !upper || front[..at(layers.network[0])] != head[..at(layers.network[0])] {
        return false;
    }
    let v6 = layers.ethertype == ethertype::IPV6;
    let outer_end = if layers.encap == Encap::None {
        transport
    } else {
        at(layers.tunnel)
    };
    let is_network = |start: usize, end: usize, v6| {
        let (mine, heads) = (&front[start..end], &head[start..end]);
        if v6 {
            ipv6(mine, heads, total - start) && words(&mine[40..], &heads[40..])
        } else {
            ipv4(mine, heads, total - start)
        }
    };
    is_network(at(layers.network[0]), outer_end, v6)
        && (layers.encap == Encap::None
            || tunnel(front, head, layers, total)
                && is_network(at(layers.network[1]), transport, layers.inner_v6(head)))
}

/// The transport headers, of a packet with `len` bytes from there on.
#[inline]
fn upper(mine: &[u8], heads: &[u8], len: usize) -> bool {
    match (mine.split_first_chunk(), heads.split_first_chunk()) {
        (Some(mine), Some(heads)) => tcp(mine.0, heads.0) && words(mine.1, heads.1),
        _ => mine[..4] == heads[..4] && usize::from(be16(mine, 4)) == len && be16(mine, 6) != 0,
    }
}

/// What lies between two IP headers: equal, but for the length and checksum of a UDP tunnel.
#[inline]
fn tunnel(front: &[u8], head: &[u8], layers: &Layers, total: usize) -> bool {
    let start = usize::from(layers.tunnel);
    let range = start..usize::from(layers.network[1]);
    let (mine, heads) = (&front[range.clone()], &head[range]);
    if layers.encap != Encap::Udp {
        return mine == heads;
    }
    mine[..4] == heads[..4]
        && usize::from(be16(mine, 4)) == total - start
        && (be16(mine, 6) == 0) == (be16(heads, 6) == 0)
        && mine[8..] == heads[8..]
}

/// The TCP header and its options.
#[inline]
fn split(header: &[u8], transport: usize) -> Option<(&[u8; 20], &[u8])> {
    header.get(transport..)?.split_first_chunk()
}

/// Ports, ACK, offset, flags, window and urgent pointer.
#[inline]
fn tcp(mine: &[u8; 20], heads: &[u8; 20]) -> bool {
    const MAY_DIFFER: u32 = ((TcpFlags::FIN.0 | TcpFlags::PSH.0) as u32) << 16;
    let differs = |at| be32(mine, at) ^ be32(heads, at);
    let urgent = differs(16) & 0xffff;
    differs(0) | differs(8) | (differs(12) & !MAY_DIFFER) | urgent == 0
}

/// TCP options and extension headers: both are whole words, and as long as each other.
#[inline]
fn words(mine: &[u8], heads: &[u8]) -> bool {
    let words = mine.as_chunks::<4>().0.iter().zip(heads.as_chunks::<4>().0);
    words.fold(0, |all, (a, b)| {
        all | (u32::from_ne_bytes(*a) ^ u32::from_ne_bytes(*b))
    }) == 0
}

/// Equal but for length, ID and checksum; the length is right, and so is the checksum.
#[inline]
fn ipv4(mine: &[u8], heads: &[u8], len: usize) -> bool {
    let (Some(mine), Some(heads)) = (mine.first_chunk::<20>(), heads.first_chunk::<20>()) else {
        return false;
    };
    let differs = |at| be32(mine, at) ^ be32(heads, at);
    let first = differs(0) & 0xffff_0000;
    let fragment = differs(4) & 0xffff;
    let ttl_protocol = differs(8) & 0xffff_0000;
    (first | fragment | ttl_protocol | differs(12) | differs(16)) == 0
        && usize::from(be16(mine, 2)) == len
        && sum(mine).is_valid()
}

/// Equal but for the length, which is right.
#[inline]
fn ipv6(mine: &[u8], heads: &[u8], len: usize) -> bool {
    let (Some(mine), Some(heads)) = (mine.first_chunk::<40>(), heads.first_chunk::<40>()) else {
        return false;
    };
    let differs = |at| be32(mine, at) ^ be32(heads, at);
    let addresses = (8..40).step_by(4).fold(0, |all, at| all | differs(at));
    (differs(0) | (differs(4) & 0xffff) | addresses) == 0 && usize::from(be16(mine, 4)) + 40 == len
}
