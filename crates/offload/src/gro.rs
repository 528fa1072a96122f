//! Generic receive offload (GRO): coalesces consecutive packets of a flow.
//!
//! A packet joins a super-segment only if [`segment`](crate::segment) restores exactly the packets
//! that were received, IP IDs and checksums included. At most one packet per flow is held, until
//! the end of the device poll.

use alloc::vec::Vec;

use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{Instant, cold_path};

use crate::bytes::be16;
use crate::checksum::{ChecksumResult, verify};
use crate::parse::ParsedHeaders;
use crate::{Checksum, Encap, Layers, Link, Packet, Tunnels};

mod candidate;
mod fast_path;
mod flow;
mod held;
mod ids;
mod predict;
mod super_segment;
mod table;
#[cfg(test)]
mod tests;

use candidate::Candidate;
use fast_path::{Layout, LookupMiss, layout_index};
use flow::{FlowHeaders, HashKeys};
use ids::{IpIds, LayerIds, NoId, OneId};
use predict::HeaderKind;
use table::{HeldRef, HeldTable};

/// The upper bound of [`GroConfig::max_size`], in bytes.
const MAX_SIZE: u32 = 8 * 65_535;

/// The configuration of a [`Gro`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroConfig {
    /// The kind of the frames.
    pub link: Link,
    /// Whether to coalesce; packets are parsed and their checksums verified in any case.
    pub enabled: bool,
    /// Upper bound (exclusive) of a coalesced packet, in bytes, IP header included: 65,536, or more
    /// if the receiver accepts super-segments whose IP length field is 0.
    ///
    /// Only TCP that is not tunnelled is coalesced beyond 65,536. Values above 524,280 have the
    /// effect of 524,280.
    pub max_size: u32,
    /// Encapsulations to coalesce through.
    pub tunnels: Tunnels,
}

impl GroConfig {
    /// Returns a configuration that coalesces up to 64 KiB, and not through tunnels.
    ///
    /// It suits a host that terminates connections and tunnels; see [`Tunnels`] for gateways.
    pub const fn new(link: Link) -> Self {
        Self {
            link,
            enabled: true,
            max_size: 65_536,
            tunnels: Tunnels::NONE,
        }
    }
}

/// Packet counters of a [`Gro`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct GroStats {
    /// Packets received.
    pub received: u64,
    /// Packets whose headers were parsed. A packet that continues a held one is not parsed: a
    /// comparison of the two headers is enough.
    pub parsed: u64,
    /// Packets that were merged into another.
    pub merged: u64,
    /// Packets that could not be parsed and were dropped.
    pub malformed: u64,
    /// Packets whose transport checksum was wrong: passed on unmerged, and still `Unverified`.
    pub bad_checksum: u64,
}

/// Generic receive offload: coalesces TCP and UDP packets of one flow.
///
/// [`receive`](Self::receive) and [`receive_batch`](Self::receive_batch) accept packets. At the end
/// of the device poll [`flush`](Self::flush) returns all of them, or
/// [`flush_older_than`](Self::flush_older_than) all but those that may still grow. Packets are
/// returned in the order in which they were received, each super-segment at the position of its
/// first packet.
///
/// Every TCP and UDP packet that is returned has its checksum `Valid` or `Partial`; an `Unverified`
/// one is a fragment, or its checksum is wrong.
#[derive(Debug)]
pub struct Gro {
    config: GroConfig,
    stats: GroStats,
    /// The packets that are held.
    table: HeldTable,
    keys: HashKeys,
    /// The layout of the packet parsed last, by kind.
    layouts: [Layout; 2],
    /// The packets received since the last flush. They are parsed, held and completed in place.
    packets: Vec<Packet>,
    /// An empty vector, reused for packets that stay held over a flush.
    spare: Vec<Packet>,
}

impl Gro {
    /// Returns an empty `Gro` for packets of trusted senders.
    ///
    /// The flow hash has a fixed key: a sender that knows it can choose flows that collide, and so
    /// prevent each other from being coalesced.
    pub fn new(config: GroConfig) -> Self {
        Self::with_seed(config, 0)
    }

    /// Returns an empty `Gro` for packets of untrusted senders, with a flow hash keyed with `seed`.
    ///
    /// Use a secret random number for each instance.
    pub fn with_seed(config: GroConfig, seed: u64) -> Self {
        Self {
            config: GroConfig {
                max_size: config.max_size.min(MAX_SIZE),
                ..config
            },
            stats: GroStats::default(),
            table: HeldTable::default(),
            keys: HashKeys::new(seed),
            layouts: [Layout::default(); 2],
            packets: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Accepts one packet received from the device.
    pub fn receive(&mut self, now: Instant, packet: Packet) {
        let from = self.packets.len();
        self.packets.push(packet);
        self.coalesce(now, from);
    }

    /// Accepts and drains `packets`; cheaper than [`receive`](Self::receive) for each.
    pub fn receive_batch(&mut self, now: Instant, packets: &mut Vec<Packet>) {
        let from = self.packets.len();
        if from == 0 {
            core::mem::swap(&mut self.packets, packets);
        } else {
            self.packets.append(packets);
        }
        self.coalesce(now, from);
    }

    /// Ends the device poll: completes all packets and appends them to `out`.
    pub fn flush(&mut self, out: &mut Vec<Packet>) {
        if !self.table.is_empty() {
            self.table.complete_all(&mut self.packets);
        }
        if out.is_empty() {
            core::mem::swap(&mut self.packets, out);
        } else {
            out.append(&mut self.packets);
        }
    }

    /// Ends a device poll after which the device has more packets.
    ///
    /// Packets held since `before` or later stay held and may grow in the next poll. All others are
    /// completed and appended to `out`.
    pub fn flush_older_than(&mut self, before: Instant, out: &mut Vec<Packet>) {
        self.table.complete_older_than(before, &mut self.packets);
        if self.table.is_empty() {
            return self.flush(out);
        }
        let mut held = self.table.by_index().into_iter().peekable();
        for (index, packet) in self.packets.drain(..).enumerate() {
            if let Some((_, held_ref)) = held.next_if(|(held_index, _)| *held_index == index) {
                self.table.held_mut(held_ref).move_to(self.spare.len());
                self.spare.push(packet);
            } else {
                out.push(packet);
            }
        }
        core::mem::swap(&mut self.packets, &mut self.spare);
    }

    /// Returns the counters.
    pub fn stats(&self) -> GroStats {
        self.stats
    }

    /// Accepts the only packet of a device poll, which nothing can join, so that it is not held.
    ///
    /// The packet is parsed and verified in place. Returns false if it was malformed and must be
    /// dropped.
    ///
    /// # Panics
    /// In debug builds, if other packets are held.
    pub fn receive_single(&mut self, packet: &mut Packet) -> bool {
        debug_assert!(self.packets.is_empty(), "others are held");
        self.stats.received += 1;
        let Some((headers, _)) = self.parse_and_verify(packet) else {
            return false;
        };
        packet.take_headers(&headers);
        true
    }

    /// Parses and coalesces the packets from index `from` on, and compacts those that remain.
    fn coalesce(&mut self, now: Instant, from: usize) {
        let mut packets = core::mem::take(&mut self.packets);
        self.stats.received += (packets.len() - from) as u64;
        let mut kept = from;
        for index in from..packets.len() {
            let (before, rest) = packets.split_at_mut(index);
            let is_kept = match self.merge_predicted(&mut before[..kept], &mut rest[0]) {
                Ok(()) => false,
                Err(miss) => self.parse(now, &mut before[..kept], &mut rest[0], miss),
            };
            if is_kept {
                if kept != index {
                    packets.swap(kept, index);
                }
                kept += 1;
            }
        }
        packets.truncate(kept);
        self.packets = packets;
    }

    /// Parses a packet, and then merges it into a held one, holds it, or passes it on. Returns
    /// whether it remains in the list. `kept` are the packets before it.
    fn parse(
        &mut self,
        now: Instant,
        kept: &mut [Packet],
        packet: &mut Packet,
        miss: Option<LookupMiss>,
    ) -> bool {
        let Some((headers, is_checksum_trusted)) = self.parse_and_verify(packet) else {
            return false;
        };
        if is_checksum_trusted && self.config.enabled && is_mergeable(packet, &headers) {
            if !(self.table.is_empty() && candidate::ends_super_segment(packet, &headers)) {
                return self.coalesce_parsed(now, kept, packet, &headers, miss);
            }
            // It has nothing to join, and nothing can join it.
        } else if headers.opaque && self.config.tunnels != Tunnels::NONE {
            // It may belong to any tunnelled flow, and must not be overtaken by one.
            self.table.complete_tunnelled(kept);
        }
        packet.take_headers(&headers);
        true
    }

    /// Parses a packet and verifies its checksum. Returns `None` if it is malformed, otherwise the
    /// result of the parse and whether the checksum is trusted.
    #[inline(always)]
    fn parse_and_verify(&mut self, packet: &mut Packet) -> Option<(ParsedHeaders, bool)> {
        let config = &self.config;
        let Ok(headers) =
            packet.parse_headers(config.link, &config.tunnels, &mut self.stats.parsed)
        else {
            cold_path();
            self.stats.malformed += 1;
            return None;
        };
        let is_checksum_trusted = self.verify_checksum(packet);
        Some((headers, is_checksum_trusted))
    }

    /// Verifies the transport checksum unless the device did. Returns false if it is wrong.
    #[inline(always)]
    fn verify_checksum(&mut self, packet: &mut Packet) -> bool {
        is_checksum_trusted_by_device(packet, &packet.layers) || self.verify_in_software(packet)
    }

    fn verify_in_software(&mut self, packet: &mut Packet) -> bool {
        match verify(
            packet.leading_bytes(),
            packet.remaining_slices(),
            &packet.layers,
        ) {
            ChecksumResult::Good => packet.offload.checksum = Checksum::Valid,
            ChecksumResult::Unknown => {}
            ChecksumResult::Bad => {
                packet.offload.checksum = Checksum::Unverified;
                self.stats.bad_checksum += 1;
                return false;
            }
        }
        true
    }

    /// Merges a packet that is eligible for coalescing into a held one, or holds it. Returns
    /// whether it remains in the list.
    fn coalesce_parsed(
        &mut self,
        now: Instant,
        kept: &mut [Packet],
        packet: &mut Packet,
        headers: &ParsedHeaders,
        miss: Option<LookupMiss>,
    ) -> bool {
        let header = &packet.leading_bytes()[..headers.header_len];
        // The parser removed link-layer padding, which is not part of the packet. Bytes after a
        // UDP datagram are part of it, and segmentation would not restore them.
        let (layers, flush) = (packet.layers, headers.has_trailer);
        let found = self.find_held(kept, header, &layers, miss);
        let transport = usize::from(layers.transport);
        match HeaderKind::of(&layers, header.len()) {
            HeaderKind::TcpV4 => {
                let ids = OneId::read(header, layers.network[0]);
                let candidate = Candidate::from_tcp(header, transport, packet, ids, flush);
                self.merge_or_hold(now, &found, &candidate, kept, packet, headers)
            }
            HeaderKind::TcpV6 => {
                let candidate = Candidate::from_tcp(header, transport, packet, NoId, flush);
                self.merge_or_hold(now, &found, &candidate, kept, packet, headers)
            }
            HeaderKind::OtherTcp | HeaderKind::Udp | HeaderKind::Unknown => {
                let candidate = Candidate::<LayerIds>::from_packet(header, &layers, packet, flush);
                self.merge_or_hold(now, &found, &candidate, kept, packet, headers)
            }
        }
    }

    /// Finds the held packet of this packet's flow.
    #[inline]
    fn find_held(
        &mut self,
        kept: &[Packet],
        header: &[u8],
        layers: &Layers,
        miss: Option<LookupMiss>,
    ) -> Lookup {
        let layout = Layout::of(layers);
        if let Some(miss) = miss.filter(|miss| miss.has_layout(layout)) {
            let hash = miss.hash;
            return Lookup { hash, held: None };
        }
        self.layouts[layout_index(header, self.config.link)] = layout;
        let hash = layout.hash(header, &self.keys).unwrap_or(flow::HASH_BIT);
        let mut found = Lookup { hash, held: None };
        if self.table.is_empty() {
            return found;
        }
        let Some(flow) = FlowHeaders::new(header, layers) else {
            return found;
        };
        found.held = self.table.find(hash, |held| {
            let head = &kept[held.index()];
            let head = FlowHeaders::new(&head.header, &head.layers)?;
            flow.is_same_flow(&head).then(|| flow.matches_head(&head))
        });
        found
    }

    #[inline]
    fn merge_or_hold<I: IpIds>(
        &mut self,
        now: Instant,
        found: &Lookup,
        candidate: &Candidate<I>,
        kept: &mut [Packet],
        packet: &mut Packet,
        headers: &ParsedHeaders,
    ) -> bool {
        if let Some((held_ref, matches_head)) = found.held {
            let held = self.table.read(held_ref, kept, self.config.max_size);
            if let Some(merge) = held.accepts(candidate).filter(|_| matches_head) {
                self.merge(held_ref, merge, kept, packet);
                return false;
            }
            self.table.complete(held_ref, kept);
        }
        packet.take_headers(headers);
        if candidate.is_holdable() {
            self.table.insert(found.hash, kept.len(), now, kept);
        }
        true
    }
}

/// The result of a flow lookup.
struct Lookup {
    hash: u32,
    /// The held packet of the flow, and whether its headers match this packet's.
    held: Option<(HeldRef, bool)>,
}

/// Returns whether the device verified the checksum. For a UDP tunnel its result may apply to the
/// outer checksum only.
#[inline]
fn is_checksum_trusted_by_device(packet: &Packet, layers: &Layers) -> bool {
    match packet.offload.checksum {
        Checksum::Unverified => false,
        Checksum::Partial => true,
        Checksum::Valid => {
            layers.encap != Encap::Udp || has_no_outer_checksum(packet, layers.tunnel)
        }
    }
}

#[inline(never)]
fn has_no_outer_checksum(packet: &Packet, udp: u16) -> bool {
    be16(packet.leading_bytes(), usize::from(udp) + 6) == 0
}

/// Returns whether a packet is eligible for coalescing: TCP and UDP over IPv4 without options or
/// over IPv6, and tunnels of these.
#[inline]
fn is_mergeable(packet: &Packet, headers: &ParsedHeaders) -> bool {
    let layers = &packet.layers;
    let upper = if layers.encap == Encap::None {
        layers.transport
    } else {
        layers.tunnel
    };
    let plain = match layers.ethertype {
        ethertype::IPV4 => upper - layers.network[0] == 20,
        ethertype::IPV6 => true,
        _ => false,
    };
    plain
        && !headers.opaque
        && matches!(layers.protocol, protocol::TCP | protocol::UDP)
        && !layers.fragment
}
