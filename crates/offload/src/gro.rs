//! Generic receive offload (GRO): coalesces consecutive packets of a flow.
//!
//! A packet joins a super-segment only if [`segment`](crate::segment) restores exactly the packets
//! that were received, IP IDs and checksums included. At most one packet per flow is held, until
//! the end of the device poll.

use alloc::vec::Vec;

use fullsend_units::Instant;
use fullsend_wire::numbers::{ethertype, protocol};

use crate::bytes::be16;
use crate::checksum::{Verdict, verify};
use crate::parse::Walk;
use crate::{Checksum, Encap, Layers, Link, Packet, Tunnels};

mod flow;
mod follow;
mod held;
mod ids;
mod predict;
mod step;
mod super_segment;
mod table;
#[cfg(test)]
mod tests;

use flow::{Flow, Keys};
use follow::{Absent, Layout, kind};
use ids::{Ids, LayerIds, NoId, OneId};
use predict::Shape;
use step::Step;
use table::{At, Table};

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
pub struct GroStats {
    /// Packets received.
    pub received: u64,
    /// Packets whose headers were parsed. A packet that continues a held one is not parsed: a
    /// comparison of the two headers is enough.
    pub walks: u64,
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
/// [`flush_older`](Self::flush_older) all but those that may still grow. Packets are returned in
/// the order in which they were received, each super-segment at the position of its first packet.
///
/// Every TCP and UDP packet that is returned has its checksum `Valid` or `Partial`; an `Unverified`
/// one is a fragment, or its checksum is wrong.
#[derive(Debug)]
pub struct Gro {
    config: GroConfig,
    stats: GroStats,
    /// The packets that are held.
    table: Table,
    keys: Keys,
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
            table: Table::default(),
            keys: Keys::new(seed),
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
    /// Packets held since `than` or later stay held and may grow in the next poll. All others are
    /// completed and appended to `out`.
    pub fn flush_older(&mut self, than: Instant, out: &mut Vec<Packet>) {
        self.table.complete_older(than, &mut self.packets);
        if self.table.is_empty() {
            return self.flush(out);
        }
        let mut held = self.table.in_order().into_iter().peekable();
        for (place, packet) in self.packets.drain(..).enumerate() {
            if let Some((_, at)) = held.next_if(|(held_place, _)| *held_place == place) {
                self.table.held_mut(at).move_to(self.spare.len());
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
    pub fn receive_alone(&mut self, packet: &mut Packet) -> bool {
        debug_assert!(self.packets.is_empty(), "others are held");
        self.stats.received += 1;
        let Some((walk, _)) = self.look_at(packet) else {
            return false;
        };
        packet.take_headers(&walk);
        true
    }

    /// Parses and coalesces the packets from index `from` on, and compacts those that remain.
    fn coalesce(&mut self, now: Instant, from: usize) {
        let mut packets = core::mem::take(&mut self.packets);
        self.stats.received += (packets.len() - from) as u64;
        let mut kept = from;
        for place in from..packets.len() {
            let (before, rest) = packets.split_at_mut(place);
            let stays = match self.follow(&mut before[..kept], &mut rest[0]) {
                Ok(()) => false,
                Err(guess) => self.parse(now, &mut before[..kept], &mut rest[0], guess),
            };
            if stays {
                if kept != place {
                    packets.swap(kept, place);
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
        guess: Option<Absent>,
    ) -> bool {
        let Some((walk, trusted)) = self.look_at(packet) else {
            return false;
        };
        if trusted && self.config.enabled && joins(packet, &walk) {
            if !(self.table.is_empty() && step::is_last(packet, &walk)) {
                return self.place(now, kept, packet, &walk, guess);
            }
            // It has nothing to join, and nothing can join it.
        } else if walk.opaque && self.config.tunnels != Tunnels::NONE {
            // It may belong to any tunnelled flow, and must not be overtaken by one.
            self.table.complete_tunnelled(kept);
        }
        packet.take_headers(&walk);
        true
    }

    /// Parses a packet and verifies its checksum. Returns `None` if it is malformed, otherwise the
    /// result of the parse and whether the checksum is trusted.
    #[inline(always)]
    fn look_at(&mut self, packet: &mut Packet) -> Option<(Walk, bool)> {
        let config = &self.config;
        let Ok(walk) = packet.walk(config.link, &config.tunnels, &mut self.stats.walks) else {
            self.stats.malformed += 1;
            return None;
        };
        let trusted = self.check(packet);
        Some((walk, trusted))
    }

    /// Verifies the transport checksum unless the device did. Returns false if it is wrong.
    #[inline(always)]
    fn check(&mut self, packet: &mut Packet) -> bool {
        is_trusted(packet, &packet.layers) || self.verify_now(packet)
    }

    #[inline(never)]
    fn verify_now(&mut self, packet: &mut Packet) -> bool {
        match verify(packet.front(), packet.rest(), &packet.layers) {
            Verdict::Good => packet.offload.checksum = Checksum::Valid,
            Verdict::Unknown => {}
            Verdict::Bad => {
                packet.offload.checksum = Checksum::Unverified;
                self.stats.bad_checksum += 1;
                return false;
            }
        }
        true
    }

    /// Merges a packet that is eligible for coalescing into a held one, or holds it. Returns
    /// whether it remains in the list.
    fn place(
        &mut self,
        now: Instant,
        kept: &mut [Packet],
        packet: &mut Packet,
        walk: &Walk,
        guess: Option<Absent>,
    ) -> bool {
        let header = &packet.front()[..walk.header_len];
        // The parser removed link-layer padding, which is not part of the packet. Bytes behind a
        // UDP datagram are part of it, and segmentation would not restore them.
        let (layers, flush) = (packet.layers, walk.surplus);
        let found = self.look_up(kept, header, &layers, guess);
        let transport = usize::from(layers.transport);
        match Shape::of(&layers, header.len()) {
            Shape::V4 => {
                let ids = OneId::at(header, layers.network[0]);
                let step = Step::tcp(header, transport, packet, ids, flush);
                self.join_or_hold(now, &found, &step, kept, packet, walk)
            }
            Shape::V6 => {
                let step = Step::tcp(header, transport, packet, NoId, flush);
                self.join_or_hold(now, &found, &step, kept, packet, walk)
            }
            Shape::Tcp | Shape::Udp | Shape::Unread => {
                let step = Step::<LayerIds>::any(header, &layers, packet, flush);
                self.join_or_hold(now, &found, &step, kept, packet, walk)
            }
        }
    }

    /// Finds the held packet of this packet's flow.
    #[inline]
    fn look_up(
        &mut self,
        kept: &[Packet],
        header: &[u8],
        layers: &Layers,
        guess: Option<Absent>,
    ) -> Found {
        let layout = Layout::of(layers);
        if let Some(absent) = guess.filter(|guess| guess.is_of(layout)) {
            let hash = absent.hash;
            return Found { hash, held: None };
        }
        self.layouts[kind(header, self.config.link)] = layout;
        let hash = layout.hash(header, &self.keys).unwrap_or(flow::SOME);
        let mut found = Found { hash, held: None };
        if self.table.is_empty() {
            return found;
        }
        let Some(flow) = Flow::new(header, layers) else {
            return found;
        };
        found.held = self.table.find(hash, |held| {
            let head = &kept[held.place()];
            let head = Flow::new(&head.header, &head.layers)?;
            flow.is_same_flow(&head).then(|| flow.is_like(&head))
        });
        found
    }

    #[inline]
    fn join_or_hold<I: Ids>(
        &mut self,
        now: Instant,
        found: &Found,
        step: &Step<I>,
        kept: &mut [Packet],
        packet: &mut Packet,
        walk: &Walk,
    ) -> bool {
        if let Some((at, is_like)) = found.held {
            let held = self.table.read(at, kept, self.config.max_size);
            if let Some(joining) = held.accepts(step).filter(|_| is_like) {
                self.join(at, joining, kept, packet);
                return false;
            }
            self.table.complete(at, kept);
        }
        packet.take_headers(walk);
        if step.may_be_held() {
            self.table.insert(found.hash, kept.len(), now, kept);
        }
        true
    }
}

/// The result of a flow lookup.
struct Found {
    hash: u32,
    /// The held packet of the flow, and whether its headers match this packet's.
    held: Option<(At, bool)>,
}

/// Returns whether the device verified the checksum. For a UDP tunnel its result may apply to the
/// outer checksum only.
#[inline]
fn is_trusted(packet: &Packet, layers: &Layers) -> bool {
    match packet.offload.checksum {
        Checksum::Unverified => false,
        Checksum::Partial => true,
        Checksum::Valid => {
            layers.encap != Encap::Udp || be16(packet.front(), usize::from(layers.tunnel) + 6) == 0
        }
    }
}

/// Returns whether a packet is eligible for coalescing: TCP and UDP over IPv4 without options or
/// over IPv6, and tunnels of these.
#[inline]
fn joins(packet: &Packet, walk: &Walk) -> bool {
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
        && !walk.opaque
        && matches!(layers.protocol, protocol::TCP | protocol::UDP)
        && !layers.fragment
}
