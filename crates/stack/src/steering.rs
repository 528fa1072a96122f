//! Steering: the shard of a stack that processes a packet.
//!
//! A stack with several shards has a host for each queue of its device. Each TCP flow belongs to
//! one shard for its whole life, by a keyed hash of its 4-tuple that is the same in both directions.
//! Everything else (UDP, ICMP requests, ARP, unknown protocols) belongs to shard 0.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use fullsend_offload::{Link, Packet};
use fullsend_wire::ethernet::{self, EthernetView};
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{Rng, Seed, extension, ipv4, ipv6};

use crate::demux::{Addr, FlowKey};
use crate::ip::LinkHeader;
use crate::siphash::SipKey;
use crate::{Host, StackError};

#[cfg(test)]
mod tests;

/// Bytes of a frame that are inspected: the IP headers, the TCP ports, and in an ICMP error those
/// of the packet that it quotes. A chain of IPv6 extension headers may be longer; the first shard
/// passes such a segment on, like one that it has reassembled.
const INSPECTED: usize = 512;
/// Bytes of an ICMP message before the packet that it quotes.
const ICMP_HEADER: usize = 8;

/// The assignment of packets to the shards of a stack.
///
/// ```
/// use fullsend_stack::Steering;
/// use fullsend_wire::Seed;
///
/// let steering = Steering::new(Seed::from_u64(1), 4);
/// let (a, b) = ("10.0.0.1:80".parse()?, "10.0.0.2:40000".parse()?);
/// assert!(steering.flow_shard(a, b) < 4);
/// assert_eq!(steering.flow_shard(a, b), steering.flow_shard(b, a));
/// # Ok::<(), core::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Steering {
    /// The keys of the hash. It is cheaper than that of the flow table, as it runs for each packet
    /// in addition. A peer that finds flows with one value loads one shard more than the others; the
    /// hash of a network card (RSS) protects no better against that.
    keys: [u64; 4],
    shards: u32,
}

/// Returns both halves of a product, combined.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product >> 64) as u64 ^ product as u64
}

impl Steering {
    /// Returns the assignment to `shards` shards (at least one) under a secret key from `seed`: a
    /// peer that knows the key can choose flows that all belong to one shard.
    pub fn new(seed: Seed, shards: usize) -> Self {
        let mut rng = Rng::new(seed);
        let (a, b) = (rng.next_u64(), rng.next_u64());
        Self {
            keys: [1, 2, 3, 4].map(|label| SipKey(a, b).hash([label], 0)),
            shards: u32::try_from(shards).unwrap_or(u32::MAX).max(1),
        }
    }

    /// Returns the number of shards.
    pub const fn shards(&self) -> usize {
        self.shards as usize
    }

    /// Returns the index of the shard that a TCP flow between two addresses belongs to.
    pub fn flow_shard(&self, a: SocketAddr, b: SocketAddr) -> usize {
        let (a, b) = (
            (a.ip().to_canonical(), a.port()),
            (b.ip().to_canonical(), b.port()),
        );
        self.shard_of((a.0.into(), a.1), (b.0.into(), b.1))
    }

    fn shard_of(&self, a: (Addr, u16), b: (Addr, u16)) -> usize {
        let [hi, lo] = [a, b].map(|(addr, port)| self.endpoint(addr, port));
        self.shard_of_endpoints(hi, lo)
    }

    /// Returns a value for one end of a flow: for IPv4, its address and port.
    #[inline]
    fn endpoint(&self, addr: Addr, port: u16) -> u64 {
        let [hi, lo] = addr.words();
        if addr.is_v4() {
            lo << 16 | u64::from(port)
        } else {
            let [k0, k1, ..] = self.keys;
            fold(fold(hi ^ k0, lo ^ k1) ^ k0, u64::from(port) ^ k1)
        }
    }

    /// Returns the shard of a flow between two endpoints, in any order.
    #[inline]
    fn shard_of_endpoints(&self, a: u64, b: u64) -> usize {
        let [k0, k1, k2, k3] = self.keys;
        let hash = fold(fold(a.min(b) ^ k0, a.max(b) ^ k1) ^ k2, k3) >> 32;
        // The high half of the product is uniform without a division.
        ((hash * u64::from(self.shards)) >> 32) as usize
    }

    /// Returns the index of the shard that receives a frame of a device with the link layer `link`,
    /// parsed or not. Fragments are for the first shard, whose host passes a reassembled segment of
    /// another shard's flow on ([`Host::take_misdirected`]).
    #[inline]
    pub fn target(&self, link: Link, frame: &Packet) -> usize {
        let first = frame.slices().next().unwrap_or(&[]);
        let plain = match link {
            Link::Ip => self.plain_segment(first),
            Link::Ethernet => first
                .split_first_chunk()
                .and_then(|(header, packet)| self.plain_segment_of_frame(header, packet)),
        };
        plain.unwrap_or_else(|| self.other_target(link, frame, first))
    }

    /// Returns the shard of a TCP segment over IPv4 without options, in an Ethernet frame without
    /// tags.
    #[inline]
    fn plain_segment_of_frame(
        &self,
        header: &[u8; ethernet::HEADER_LEN],
        packet: &[u8],
    ) -> Option<usize> {
        let is_v4 = header[12..] == ethertype::IPV4.to_be_bytes();
        is_v4.then(|| self.plain_segment(packet)).flatten()
    }

    /// Returns the shard of a TCP segment over IPv4 without options.
    #[inline]
    fn plain_segment(&self, bytes: &[u8]) -> Option<usize> {
        let header: &[u8; 24] = bytes.first_chunk()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        if header[0] != 0x45 || header[9] != protocol::TCP || fragment {
            return None;
        }
        let [.., s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1] = *header;
        let end = |addr, port| self.endpoint(Addr::v4(addr), u16::from_be_bytes(port));
        let (src, dst) = (
            end([s0, s1, s2, s3], [p0, p1]),
            end([d0, d1, d2, d3], [q0, q1]),
        );
        Some(self.shard_of_endpoints(src, dst))
    }

    #[inline(never)]
    fn other_target(&self, link: Link, frame: &Packet, first: &[u8]) -> usize {
        // The headers of almost every frame are in its first slice.
        if first.len() >= INSPECTED || first.len() == frame.len() {
            return self.target_of_bytes(link, &first[..first.len().min(INSPECTED)]);
        }
        let mut bytes = Vec::new();
        for slice in frame.slices() {
            let rest = INSPECTED.saturating_sub(bytes.len());
            bytes.extend_from_slice(&slice[..slice.len().min(rest)]);
        }
        self.target_of_bytes(link, &bytes)
    }

    fn target_of_bytes(&self, link: Link, frame: &[u8]) -> usize {
        let packet = match link {
            Link::Ip => frame,
            Link::Ethernet => match EthernetView::new(frame) {
                Ok(view) if matches!(view.ethertype(), ethertype::IPV4 | ethertype::IPV6) => {
                    view.payload()
                }
                _ => return 0,
            },
        };
        let shard = IpHeader::parse(packet).and_then(|ip| match ip.protocol {
            _ if ip.fragment => None,
            protocol::TCP => self.ports_shard(&ip),
            protocol::ICMP | protocol::ICMPV6 if ip.is_icmp_error() => {
                // The flow that the error is about, seen from this host. The first fragment of a
                // segment has the ports, too.
                let quoted = IpHeader::parse(ip.payload.get(ICMP_HEADER..)?)?;
                let has_ports = quoted.protocol == protocol::TCP && !quoted.later_fragment;
                has_ports.then(|| self.ports_shard(&quoted)).flatten()
            }
            _ => None,
        });
        shard.unwrap_or(0)
    }

    fn ports_shard(&self, ip: &IpHeader<'_>) -> Option<usize> {
        let &[s0, s1, d0, d1] = ip.payload.first_chunk()?;
        let (src, dst) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        Some(self.shard_of((ip.src, src), (ip.dst, dst)))
    }
}

/// The parts of an IP header that steering uses.
struct IpHeader<'a> {
    src: Addr,
    dst: Addr,
    /// The protocol after IPv6 extension headers.
    protocol: u8,
    fragment: bool,
    /// A fragment other than the first.
    later_fragment: bool,
    /// The bytes after the IP headers, as far as they are there.
    payload: &'a [u8],
}

impl<'a> IpHeader<'a> {
    fn parse(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let header: &[u8; ipv4::HEADER_LEN] = packet.first_chunk()?;
                let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
                let len = usize::from(header[0] & 15) * 4;
                let fragment = u16::from_be_bytes([header[6], header[7]]);
                Some(Self {
                    src: Addr::v4([s0, s1, s2, s3]),
                    dst: Addr::v4([d0, d1, d2, d3]),
                    protocol: header[9],
                    fragment: fragment & 0x3fff != 0,
                    later_fragment: fragment & 0x1fff != 0,
                    payload: packet.get(len.max(ipv4::HEADER_LEN)..)?,
                })
            }
            6 => {
                let (header, rest) = packet.split_first_chunk::<{ ipv6::HEADER_LEN }>()?;
                let (_, addrs) = header.split_at(8);
                let (src, dst) = addrs.split_at(16);
                let upper = extension::parse_headers(header[6], rest).ok()?;
                Some(Self {
                    src: Addr::v6(src.try_into().ok()?),
                    dst: Addr::v6(dst.try_into().ok()?),
                    protocol: upper.protocol,
                    fragment: upper.fragment.is_some(),
                    later_fragment: upper.fragment.is_some_and(|fragment| fragment.offset != 0),
                    payload: rest.get(upper.offset..)?,
                })
            }
            _ => None,
        }
    }

    /// Returns whether an ICMP message is an error that quotes a packet. `self.protocol` is one of
    /// the two ICMPs.
    fn is_icmp_error(&self) -> bool {
        let kind = self.payload.first().copied();
        match self.protocol {
            // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
            protocol::ICMP => matches!(kind, Some(3 | 4 | 5 | 11 | 12)),
            // RFC 4443 2.1: the first bit of an informational message is set.
            _ => kind.is_some_and(|kind| kind < 128),
        }
    }
}

/// The place of a host among the shards of its stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardIndex {
    steering: Steering,
    index: usize,
}

impl ShardIndex {
    /// Returns the shard that the flow belongs to, or `None` if it is this one.
    pub(crate) fn other_owner(&self, flow: &FlowKey) -> Option<usize> {
        let (a, b) = (
            (flow.local, flow.local_port),
            (flow.remote, flow.remote_port),
        );
        let shard = self.steering.shard_of(a, b);
        (shard != self.index).then_some(shard)
    }
}

impl Host {
    /// Makes the host shard `index` of a stack: it sets segments of other shards' flows aside, and
    /// chooses ephemeral ports so that the flow is its own. On Ethernet the first shard resolves the
    /// neighbours of all, and detects duplicate addresses
    /// ([`take_neighbour_messages`](Self::take_neighbour_messages)); the number of shards is then at
    /// most 64. Call it before the host has interfaces and sockets.
    pub fn set_shard(&mut self, steering: Steering, index: usize) {
        self.tcp.shard = (steering.shards > 1).then_some(ShardIndex { steering, index });
    }

    /// Returns whether the host is the first or only shard of its stack.
    pub(crate) const fn is_first_shard(&self) -> bool {
        self.later_shard().is_none()
    }

    /// Returns the index of the host's shard, or `None` if it is the first or only one.
    pub(crate) const fn later_shard(&self) -> Option<usize> {
        match self.tcp.shard {
            Some(ShardIndex { index, .. }) if index != 0 => Some(index),
            _ => None,
        }
    }

    /// Returns the number of shards of the host's stack.
    pub(crate) const fn shard_count(&self) -> usize {
        match &self.tcp.shard {
            Some(ShardIndex { steering, .. }) => steering.shards(),
            None => 1,
        }
    }

    /// Sets a segment of another shard's flow aside. It gets the link header that the interfaces of
    /// its stack expect, if it has been reassembled and has none.
    #[cold]
    pub(crate) fn set_aside(&mut self, shard: usize, iface: u16, mut packet: Packet) {
        if let Some(interface) = self.ifaces.get(usize::from(iface))
            && interface.neighbours.is_some()
            && packet.layers.network[0] == 0
        {
            LinkHeader::to(interface.config.mac, packet.layers.ethertype).prepend_to(&mut packet);
        }
        self.tcp.misdirected.push((shard, packet));
    }

    /// Returns whether [`take_misdirected`](Self::take_misdirected) has packets to return.
    #[inline]
    pub fn has_misdirected(&self) -> bool {
        !self.tcp.misdirected.is_empty()
    }

    /// Takes the segments of other shards' flows that were received since the last call, each with
    /// the index of its shard: those that the host has reassembled, or whose IPv6 extension headers
    /// hid the ports from [`Steering::target`]. The caller passes them to that shard's host.
    pub fn take_misdirected(&mut self) -> Vec<(usize, Packet)> {
        core::mem::take(&mut self.tcp.misdirected)
    }

    /// Returns the index of the shard that a connection from `local`, whose port is not 0, to
    /// `remote` belongs to: the value is the same on each shard. An unspecified address of `local`
    /// stands for the one that the host chooses.
    ///
    /// # Errors
    /// [`NoRoute`](StackError::NoRoute) if the host has no address towards `remote`.
    pub fn tcp_flow_shard(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<usize, StackError> {
        let Some(ShardIndex { steering, .. }) = &self.tcp.shard else {
            return Ok(0);
        };
        let ip: IpAddr = if local.ip().is_unspecified() {
            self.source_for(remote.ip().to_canonical())?
        } else {
            local.ip()
        };
        Ok(steering.flow_shard(SocketAddr::new(ip, local.port()), remote))
    }
}
