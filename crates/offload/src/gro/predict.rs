//! Header prediction: a single comparison of headers recognizes that a packet continues the one
//! before it, without parsing it.
//!
//! The comparison ignores the fields that may differ between packets that are coalesced. A packet
//! recognized so has the layers of the one that it continues. All other packets are parsed.

use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpFlags;

use super::held::HeldState;
use crate::bytes::{be16, ne32, ne64};
use crate::{Encap, Layers};

/// The kind of a held packet's headers; the common kinds have specialized code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum HeaderKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6, with or without extension headers.
    TcpV6,
    /// TCP in a tunnel, or with longer headers than [`HeldHeaders`] holds.
    OtherTcp,
    /// UDP, tunnelled or not.
    Udp,
    /// Not determined until a second packet of the flow arrives.
    #[default]
    Unknown,
}

impl HeaderKind {
    #[inline]
    pub(super) fn of(layers: &Layers, header_len: usize) -> Self {
        if layers.protocol != protocol::TCP {
            return Self::Udp;
        }
        let v6 = layers.ethertype == ethertype::IPV6;
        let least = usize::from(layers.network[0]) + if v6 { 60 } else { 40 };
        if layers.encap != Encap::None || header_len > least + REST {
            return Self::OtherTcp;
        }
        if v6 { Self::TcpV6 } else { Self::TcpV4 }
    }
}

/// Bytes of TCP options and extension headers in a held packet's record: timestamps, and 16 bytes
/// of extension headers.
const REST: usize = 28;

/// Offset in `HeldHeaders::ip` of the sum of the fields that vary (IPv4).
const SUM: usize = 20;

/// A held packet's headers, from the network header on. An IPv4 header is in the first half of
/// `ip`, followed by the sum of the fields that vary.
#[derive(Debug)]
pub(super) struct HeldHeaders {
    ip: [u8; 40],
    tcp: [u8; 20],
    /// TCP options, followed by IPv6 extension headers.
    rest: [u8; REST],
}

impl Default for HeldHeaders {
    fn default() -> Self {
        Self {
            ip: [0; 40],
            tcp: [0; 20],
            rest: [0; REST],
        }
    }
}

impl HeldHeaders {
    /// Copies headers whose shape is `TcpV4` or `TcpV6`.
    pub(super) fn of(header: &[u8], layers: &Layers) -> Self {
        let ip_len = if layers.ethertype == ethertype::IPV6 {
            40
        } else {
            20
        };
        let (below, tcp) = header.split_at(usize::from(layers.transport));
        let (ip, extensions) = below[usize::from(layers.network[0])..].split_at(ip_len);
        let (tcp, options) = tcp.split_at(20);
        let mut head = Self::default();
        head.ip[..ip_len].copy_from_slice(ip);
        if let Ok(ip) = <&[u8; 20]>::try_from(ip) {
            head.ip[SUM..SUM + 2].copy_from_slice(&sum_of_varying(ip).to_ne_bytes());
        }
        head.tcp.copy_from_slice(tcp);
        let (first, then) = head.rest.split_at_mut(options.len());
        first.copy_from_slice(options);
        then[..extensions.len()].copy_from_slice(extensions);
        head
    }
}

/// The headers of a TCP packet without a tunnel, from the network header on.
pub(super) struct TcpHeaders<'a, const IP: usize> {
    pub(super) ip: &'a [u8; IP],
    extensions: &'a [u8],
    pub(super) tcp: &'a [u8; 20],
    options: &'a [u8],
}

impl<'a, const IP: usize> TcpHeaders<'a, IP> {
    /// Splits `header` at the offsets of the held packet's headers.
    #[inline(always)]
    pub(super) fn new(header: &'a [u8], held: &HeldState) -> Option<Self> {
        let network = usize::from(held.network[0]);
        let transport = usize::from(held.transport);
        let (below, upper) = header.split_at_checked(transport)?;
        let (tcp, options) = upper.split_first_chunk()?;
        let (ip, extensions) = below.get(network..)?.split_first_chunk()?;
        Some(Self {
            ip,
            extensions,
            tcp,
            options,
        })
    }

    /// Returns whether these headers equal those of the held packet, except the fields that vary
    /// from packet to packet, and agree with the packet's length: `len` bytes from the network
    /// header on.
    #[inline(always)]
    pub(super) fn continues(&self, held: &HeldHeaders, len: usize) -> bool {
        let is_ip = if IP == 40 {
            ipv6_continues(self.ip, &held.ip, len)
        } else {
            let sum = u16::from_ne_bytes([held.ip[SUM], held.ip[SUM + 1]]);
            ipv4_continues(self.ip, &held.ip[..20], len, |_| sum)
        };
        is_ip && tcp_continues(self.tcp, &held.tcp) && self.rest_is_equal(&held.rest)
    }

    #[inline(always)]
    fn rest_is_equal(&self, rest: &[u8; REST]) -> bool {
        let (received, extensions) = (self.options, self.extensions);
        // The common case: 12 bytes of timestamps.
        let same_options = match <&[u8; 12]>::try_from(received) {
            Ok(received) => rest.first_chunk() == Some(received),
            Err(_) => rest
                .get(..received.len())
                .is_some_and(|held| equal_words(received, held)),
        };
        same_options
            && (extensions.is_empty()
                || rest
                    .get(received.len()..received.len() + extensions.len())
                    .is_some_and(|held| equal_words(extensions, held)))
    }
}

/// Returns whether a packet's headers equal those of the held packet, for any shape. Equal bytes
/// imply equal layers.
pub(super) fn continues_any(front: &[u8], total: usize, head: &[u8], layers: &Layers) -> bool {
    let at = |n: u16| usize::from(n);
    let Some(front) = front.get(..head.len()) else {
        return false;
    };
    let transport = at(layers.transport);
    let upper = transport_continues(&front[transport..], &head[transport..], total - transport);
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
        let (received, held) = (&front[start..end], &head[start..end]);
        if v6 {
            ipv6_continues(received, held, total - start)
                && (received.len() == 40 || equal_words(&received[40..], &held[40..]))
        } else {
            ipv4_continues(received, held, total - start, sum_of_varying)
        }
    };
    is_network(at(layers.network[0]), outer_end, v6)
        && (layers.encap == Encap::None
            || tunnel_continues(front, head, layers, total)
                && is_network(at(layers.network[1]), transport, layers.inner_v6(head)))
}

/// Compares transport headers; `len` is the length of the packet from there on.
#[inline]
fn transport_continues(received: &[u8], held: &[u8], len: usize) -> bool {
    match (received.split_first_chunk(), held.split_first_chunk()) {
        (Some(received), Some(held)) => {
            tcp_continues(received.0, held.0) && equal_words(received.1, held.1)
        }
        _ => {
            received[..4] == held[..4]
                && usize::from(be16(received, 4)) == len
                && be16(received, 6) != 0
        }
    }
}

/// Compares the headers between two IP headers: equal, except the length and checksum of a UDP
/// tunnel.
#[inline]
fn tunnel_continues(front: &[u8], head: &[u8], layers: &Layers, total: usize) -> bool {
    let start = usize::from(layers.tunnel);
    let range = start..usize::from(layers.network[1]);
    let (received, held) = (&front[range.clone()], &head[range]);
    if layers.encap != Encap::Udp {
        return received == held;
    }
    received[..4] == held[..4]
        && usize::from(be16(received, 4)) == total - start
        && (be16(received, 6) == 0) == (be16(held, 6) == 0)
        && received[8..] == held[8..]
}

/// Compares ports, acknowledgement number, data offset, flags, window and urgent pointer.
#[inline(always)]
fn tcp_continues(received: &[u8; 20], held: &[u8; 20]) -> bool {
    const FLAGS: u8 = !(TcpFlags::FIN.0 | TcpFlags::PSH.0) as u8;
    const MASK: u64 = u64::from_ne_bytes([255, 255, 255, 255, 255, FLAGS, 255, 255]);
    const URGENT: u32 = 0xffff_u32.to_be();
    diff32(received, held, 0) == 0
        && (diff64(received, held, 8) & MASK) | u64::from(diff32(received, held, 16) & URGENT) == 0
}

/// Compares TCP options or extension headers, which are multiples of 32 bits and equally long.
#[inline]
fn equal_words(received: &[u8], held: &[u8]) -> bool {
    let words = received
        .as_chunks::<4>()
        .0
        .iter()
        .zip(held.as_chunks::<4>().0);
    words.fold(0, |all, (a, b)| {
        all | (u32::from_ne_bytes(*a) ^ u32::from_ne_bytes(*b))
    }) == 0
}

/// Returns the bits in which two fields differ, in memory order.
#[inline(always)]
fn diff32<const N: usize>(received: &[u8; N], held: &[u8; N], at: usize) -> u32 {
    ne32(received, at) ^ ne32(held, at)
}

#[inline(always)]
fn diff64<const N: usize>(received: &[u8; N], held: &[u8; N], at: usize) -> u64 {
    ne64(received, at) ^ ne64(held, at)
}

/// Compares IPv4 headers: equal except length, ID and checksum, with a correct length, and a
/// checksum that is correct if that of the other is.
#[inline(always)]
fn ipv4_continues(
    received: &[u8],
    held: &[u8],
    len: usize,
    sum_of_held: impl FnOnce(&[u8; 20]) -> u16,
) -> bool {
    const FIRST: u64 = u64::from_ne_bytes([255, 255, 0, 0, 0, 0, 255, 255]);
    const SECOND: u64 = u64::from_ne_bytes([255, 255, 0, 0, 255, 255, 255, 255]);
    let (Some(received), Some(held)) = (received.first_chunk::<20>(), held.first_chunk::<20>())
    else {
        return false;
    };
    (diff64(received, held, 0) & FIRST)
        | (diff64(received, held, 8) & SECOND)
        | u64::from(diff32(received, held, 16))
        == 0
        && usize::from(be16(received, 2)) == len
        && sum_of_varying(received) == sum_of_held(held)
}

/// Returns the ones' complement sum of length, ID and checksum, in memory byte order. If all other
/// fields are equal, correct checksums give equal sums (RFC 1624). The representation is unique: as
/// the length is not 0, the sum is never 0.
#[inline(always)]
fn sum_of_varying(ip: &[u8; 20]) -> u16 {
    let word = |at: usize| u32::from(u16::from_ne_bytes([ip[at], ip[at + 1]]));
    let sum = word(2) + word(4) + word(10);
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded + (folded >> 16)) as u16
}

/// Compares IPv6 headers: equal except the length, which must be correct.
#[inline(always)]
fn ipv6_continues(received: &[u8], held: &[u8], len: usize) -> bool {
    const LOW: u32 = 0xffff_u32.to_be();
    let (Some(received), Some(held)) = (received.first_chunk::<40>(), held.first_chunk::<40>())
    else {
        return false;
    };
    (diff32(received, held, 0) | (diff32(received, held, 4) & LOW)) == 0
        && received.last_chunk::<32>() == held.last_chunk::<32>()
        && usize::from(be16(received, 4)) + 40 == len
}
