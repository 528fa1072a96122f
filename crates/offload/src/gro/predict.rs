//! Header prediction: most packets follow the one before them, and one comparison of the headers
//! says so without a parse.
//!
//! What the comparison passes over is what may differ between packets that join; a packet found
//! so has the layers of the one it follows. Everything else takes the way of the parse.

use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpFlags;

use crate::bytes::{be16, ne32};
use crate::{Encap, Layers};

/// What stands in front of a held packet's payload; the usual shapes have ways of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Shape {
    /// TCP over IPv4.
    V4,
    /// TCP over IPv6.
    V6,
    /// TCP over IPv6 with extension headers.
    V6Ext,
    /// TCP in a tunnel, or behind longer headers than the record keeps.
    #[default]
    Tcp,
    /// UDP, tunnelled or not.
    Udp,
}

impl Shape {
    #[inline]
    pub(super) fn of(layers: &Layers, header_len: usize) -> Self {
        if layers.protocol != protocol::TCP {
            return Self::Udp;
        }
        let network = usize::from(layers.network[0]);
        let plain = layers.encap == Encap::None && header_len - network <= HEAD;
        match (plain, layers.ethertype) {
            (true, ethertype::IPV4) => Self::V4,
            (true, ethertype::IPV6) if layers.transport - layers.network[0] == 40 => Self::V6,
            (true, ethertype::IPV6) => Self::V6Ext,
            _ => Self::Tcp,
        }
    }
}

/// Bytes of a held packet's headers, from the network header on, that are kept in its record: IPv6
/// with 16 bytes of extension headers, TCP with timestamps.
pub(super) const HEAD: usize = 88;

/// The headers of a TCP packet without a tunnel, from the network header on.
pub(super) struct Plain<'a, const IP: usize> {
    pub(super) ip: &'a [u8; IP],
    extensions: &'a [u8],
    pub(super) tcp: &'a [u8; 20],
    options: &'a [u8],
}

impl<'a, const IP: usize> Plain<'a, IP> {
    #[inline(always)]
    pub(super) fn new(header: &'a [u8], extensions: usize) -> Option<Self> {
        let (ip, rest) = header.split_first_chunk()?;
        let (extensions, rest) = rest.split_at_checked(extensions)?;
        let (tcp, options) = rest.split_first_chunk()?;
        Some(Self {
            ip,
            extensions,
            tcp,
            options,
        })
    }

    /// These headers of a packet of `len` bytes from there on are those of the one held, but for
    /// the fields that count on from packet to packet; and they agree with the length.
    #[inline(always)]
    pub(super) fn continues(&self, held: &'a [u8; HEAD], len: usize) -> bool {
        let more = self.extensions.len();
        let Some(heads) = Self::new(held, more) else {
            return false;
        };
        let Some(heads_options) = heads.options.get(..self.options.len()) else {
            return false;
        };
        let is_ip = if IP == 40 {
            ipv6(self.ip, heads.ip, len)
        } else {
            ipv4(self.ip, heads.ip, len)
        };
        tcp(self.tcp, heads.tcp)
            && is_ip
            && (more == 0 || words(self.extensions, heads.extensions))
            && options(self.options, heads_options)
    }
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

/// Ports, ACK, offset, flags, window and urgent pointer.
#[inline(always)]
fn tcp(mine: &[u8; 20], heads: &[u8; 20]) -> bool {
    const FLAGS: u32 = !(((TcpFlags::FIN.0 | TcpFlags::PSH.0) as u32) << 16).to_be();
    const URGENT: u32 = 0xffff_u32.to_be();
    differs(mine, heads, 0)
        | differs(mine, heads, 8)
        | (differs(mine, heads, 12) & FLAGS)
        | (differs(mine, heads, 16) & URGENT)
        == 0
}

/// TCP options: mostly timestamps, and as long as each other.
#[inline(always)]
fn options(mine: &[u8], heads: &[u8]) -> bool {
    match (mine.as_array::<12>(), heads.as_array::<12>()) {
        (Some(mine), Some(heads)) => mine == heads,
        _ => words(mine, heads),
    }
}

/// TCP options and extension headers: both are whole words, and as long as each other.
#[inline]
fn words(mine: &[u8], heads: &[u8]) -> bool {
    let words = mine.as_chunks::<4>().0.iter().zip(heads.as_chunks::<4>().0);
    words.fold(0, |all, (a, b)| {
        all | (u32::from_ne_bytes(*a) ^ u32::from_ne_bytes(*b))
    }) == 0
}

/// The bits that set two fields apart, as they lie in memory.
#[inline(always)]
fn differs<const N: usize>(mine: &[u8; N], heads: &[u8; N], at: usize) -> u32 {
    ne32(mine, at) ^ ne32(heads, at)
}

/// Equal but for length, ID and checksum; the length is right, and so is the checksum, as it is in
/// the other.
#[inline(always)]
fn ipv4(mine: &[u8], heads: &[u8], len: usize) -> bool {
    const HIGH: u32 = 0xffff_0000_u32.to_be();
    const LOW: u32 = 0xffff_u32.to_be();
    let (Some(mine), Some(heads)) = (mine.first_chunk::<20>(), heads.first_chunk::<20>()) else {
        return false;
    };
    let first = differs(mine, heads, 0) & HIGH;
    let fragment = differs(mine, heads, 4) & LOW;
    let ttl_protocol = differs(mine, heads, 8) & HIGH;
    (first | fragment | ttl_protocol) == 0
        && mine.last_chunk::<8>() == heads.last_chunk::<8>()
        && usize::from(be16(mine, 2)) == len
        && sum_of_varying(mine) == sum_of_varying(heads)
}

/// RFC 1624: where all else is equal, length, ID and checksum add up to the same. Of the sum's two
/// zeros neither comes up.
#[inline(always)]
fn sum_of_varying(ip: &[u8; 20]) -> u32 {
    let sum = u32::from(be16(ip, 2)) + u32::from(be16(ip, 4)) + u32::from(be16(ip, 10));
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16)
}

/// Equal but for the length, which is right.
#[inline(always)]
fn ipv6(mine: &[u8], heads: &[u8], len: usize) -> bool {
    const LOW: u32 = 0xffff_u32.to_be();
    let (Some(mine), Some(heads)) = (mine.first_chunk::<40>(), heads.first_chunk::<40>()) else {
        return false;
    };
    (differs(mine, heads, 0) | (differs(mine, heads, 4) & LOW)) == 0
        && mine.last_chunk::<32>() == heads.last_chunk::<32>()
        && usize::from(be16(mine, 4)) + 40 == len
}
