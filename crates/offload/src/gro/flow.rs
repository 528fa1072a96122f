//! Flow identity: which fields identify a flow, and which must be equal to coalesce.

use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpFlags;

use crate::bytes::{be16, be32, ne64};
use crate::{Encap, Layers};

#[cfg(test)]
mod tests;

/// Mask of IPv6's version and flow label, without the traffic class between them.
const VERSION_AND_LABEL: u32 = 0xf00f_ffff;

/// The keys of the flow hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashKeys([u64; 4]);

impl HashKeys {
    /// Derives the four keys from one seed.
    pub(super) const fn new(seed: u64) -> Self {
        const ODD: [u64; 4] = [
            0x9e37_79b9_7f4a_7c15,
            0xc2b2_ae3d_27d4_eb4f,
            0x1656_67b1_9e37_79f9,
            0x27d4_eb2f_1656_67c5,
        ];
        let mut keys = ODD;
        let mut at = 0;
        while at < keys.len() {
            keys[at] ^= fold(seed ^ ODD[at], ODD[(at + 1) % 4]);
            at += 1;
        }
        Self(keys)
    }
}

/// A bit that is set in every hash, so that none is 0.
pub(super) const HASH_BIT: u32 = 1 << 31;

/// Returns a keyed hash of addresses and ports, or `None` if the header is too short. A sender that
/// does not know the keys cannot choose flows that collide.
#[inline(always)]
pub(super) fn hash(
    header: &[u8],
    network: usize,
    transport: usize,
    keys: &HashKeys,
) -> Option<u32> {
    let HashKeys(keys) = keys;
    let ports = u32::from_ne_bytes(*header.get(transport..)?.first_chunk()?);
    let ports = keys[0] ^ u64::from(ports);
    let ip = header.get(network..)?;
    let mix = match (ip.first_chunk::<40>(), ip.first_chunk::<20>()) {
        (Some(ip), _) if ip[0] >> 4 == 6 => {
            let source_hash = fold(ne64(ip, 8) ^ keys[1], ne64(ip, 16) ^ ports);
            source_hash ^ fold(ne64(ip, 24) ^ keys[2], ne64(ip, 32) ^ keys[3])
        }
        (_, Some(ip)) => fold(ne64(ip, 12) ^ keys[1], ports),
        _ => return None,
    };
    Some(mix as u32 | HASH_BIT)
}

/// Combines both halves of a product: each bit of a factor affects many bits of the result.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// The headers of a packet, by layer.
#[derive(Clone, Copy)]
pub(super) struct FlowHeaders<'a> {
    layers: &'a Layers,
    link: &'a [u8],
    outer: IpHeader<'a>,
    /// The GRE header, or the UDP header and the bytes after it up to the inner IP header.
    tunnel: &'a [u8],
    /// Equal to `outer` when not encapsulated.
    inner: IpHeader<'a>,
    transport: &'a [u8],
}

/// An IP header with its extension headers.
#[derive(Clone, Copy)]
struct IpHeader<'a> {
    bytes: &'a [u8],
    v6: bool,
}

impl<'a> FlowHeaders<'a> {
    /// Returns `None` if the layers do not match `header`.
    #[inline]
    pub(super) fn new(header: &'a [u8], layers: &'a Layers) -> Option<Self> {
        let at = |n: u16| usize::from(n);
        let (below, transport) = header.split_at_checked(at(layers.transport))?;
        let (link, network) = below.split_at_checked(at(layers.network[0]))?;
        let v6 = layers.ethertype == ethertype::IPV6;
        let mut outer = IpHeader { bytes: network, v6 };
        let (mut inner, mut tunnel) = (outer, &[][..]);
        if layers.encap != Encap::None {
            let v6 = layers.inner_v6(header);
            outer.bytes = below.get(at(layers.network[0])..at(layers.tunnel))?;
            tunnel = below.get(at(layers.tunnel)..at(layers.network[1]))?;
            inner = IpHeader {
                bytes: below.get(at(layers.network[1])..)?,
                v6,
            };
        }
        let min_len = if layers.protocol == protocol::TCP {
            20
        } else {
            8
        };
        (outer.is_complete() && inner.is_complete() && transport.len() >= min_len).then_some(Self {
            layers,
            link,
            outer,
            tunnel,
            inner,
            transport,
        })
    }

    /// Returns whether both packets belong to one flow, of which only one packet may be held.
    #[inline]
    pub(super) fn is_same_flow(&self, other: &Self) -> bool {
        self.transport[..4] == other.transport[..4]
            && self.outer.is_same_flow(&other.outer)
            && self.layers == other.layers
            && self.link == other.link
            && (self.layers.encap == Encap::None
                || self.inner.is_same_flow(&other.inner) && self.is_same_tunnel(other))
    }

    /// Returns whether the tunnel headers are equal, except a UDP tunnel's length and checksum,
    /// which differ from packet to packet.
    fn is_same_tunnel(&self, other: &Self) -> bool {
        if self.layers.encap != Encap::Udp {
            return self.tunnel == other.tunnel;
        }
        self.tunnel[..4] == other.tunnel[..4] && self.tunnel[8..] == other.tunnel[8..]
    }

    /// Returns whether the packets of one flow differ only in lengths, IP ID, sequence number, FIN,
    /// PSH and checksums.
    #[inline]
    pub(super) fn matches_head(&self, head: &Self) -> bool {
        let udp_checksum = |flow: &Self| be16(flow.tunnel, 6) != 0;
        self.outer.matches_head(&head.outer)
            && match self.layers.encap {
                Encap::None => true,
                Encap::Ip | Encap::Gre => self.inner.matches_head(&head.inner),
                Encap::Udp => {
                    self.inner.matches_head(&head.inner) && udp_checksum(self) == udp_checksum(head)
                }
            }
            && (self.layers.protocol != protocol::TCP || self.tcp_matches_head(head))
    }

    #[inline]
    fn tcp_matches_head(&self, head: &Self) -> bool {
        let (received, held) = (self.transport, head.transport);
        let may_differ = u32::from(TcpFlags::FIN.0 | TcpFlags::PSH.0) << 16;
        let flags_and_window = be32(received, 12) ^ be32(held, 12);
        received[8..12] == held[8..12]
            && flags_and_window & !may_differ == 0
            && received[18..] == held[18..]
    }
}

impl IpHeader<'_> {
    fn is_complete(&self) -> bool {
        self.bytes.len() >= if self.v6 { 40 } else { 20 }
    }

    /// Returns whether addresses and protocol are equal, and in IPv6 the flow label and extension
    /// headers.
    #[inline]
    fn is_same_flow(&self, other: &Self) -> bool {
        let (received, other_bytes) = (self.bytes, other.bytes);
        if self.v6 != other.v6 {
            return false;
        }
        if self.v6 {
            let label = |bytes| be32(bytes, 0) & VERSION_AND_LABEL;
            received[8..] == other_bytes[8..]
                && label(received) == label(other_bytes)
                && received[6] == other_bytes[6]
        } else {
            received[12..] == other_bytes[12..] && received[9] == other_bytes[9]
        }
    }

    #[inline]
    fn matches_head(&self, head: &Self) -> bool {
        let (received, held) = (self.bytes, head.bytes);
        if self.v6 {
            // Version, traffic class and flow label; hop limit.
            received[..4] == held[..4] && received[7] == held[7]
        } else {
            // Version, header length and TOS; fragmentation field and TTL.
            received[..2] == held[..2] && received[6..9] == held[6..9]
        }
    }
}
