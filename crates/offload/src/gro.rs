//! GRO: joins packets of a flow that follow each other.
//!
//! Packets of one flow that stand in a row become one super-segment. What may join is decided so
//! that [`segment`](crate::segment) gives back the very packets that came in, IP IDs and checksums
//! included. Only one packet per flow is held, for the length of a device poll.

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

/// The most a coalesced TCP packet may span where its receiver takes more than 64 KiB.
const MAX_SIZE: u32 = 8 * 65_535;

/// How to coalesce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroConfig {
    /// What frames begin with.
    pub link: Link,
    /// Coalesce at all; parsing and checksum verification happen either way.
    pub enabled: bool,
    /// A coalesced packet stays below this many bytes, IP header included: 65536, or more where
    /// the receiver takes an IP length field of 0 in a super-segment.
    ///
    /// Only TCP without a tunnel around it grows beyond 65536.
    pub max_size: u32,
    /// Encapsulations to coalesce through.
    pub tunnels: Tunnels,
}

impl GroConfig {
    /// Coalesces up to 64 KiB, and looks into no tunnels: what a host wants, who is their end.
    /// See [`Tunnels`] for who forwards them.
    pub const fn new(link: Link) -> Self {
        Self {
            link,
            enabled: true,
            max_size: 65_536,
            tunnels: Tunnels::NONE,
        }
    }
}

/// What GRO did, in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroStats {
    /// Packets in.
    pub received: u64,
    /// Walks over a packet's headers, on receive and at completion. A packet that continues a held
    /// one needs none: comparing the two headers is enough.
    pub walks: u64,
    /// Packets that joined another.
    pub merged: u64,
    /// Packets that could not be parsed and were dropped.
    pub malformed: u64,
    /// Packets whose transport checksum was wrong: passed on unmerged, still `Unverified`.
    pub bad_checksum: u64,
}

/// The engine.
///
/// Packets go in by [`receive`](Self::receive) and [`receive_batch`](Self::receive_batch), and come
/// out at the end of the device poll: by [`flush`](Self::flush) all of them, or by
/// [`flush_older`](Self::flush_older) all but those that may still grow. They come out in the order
/// in which they came, each super-segment where its first packet stood.
///
/// Every TCP and UDP packet that comes out has its checksum `Valid` or `Partial`; one that comes
/// out `Unverified` is a fragment, or its checksum is wrong.
#[derive(Debug)]
pub struct Gro {
    config: GroConfig,
    stats: GroStats,
    /// Which of the packets are held.
    table: Table,
    keys: Keys,
    /// Of the packet parsed last, by kind.
    layouts: [Layout; 2],
    /// What came since the last flush. Packets are parsed, held and completed where they lie.
    packets: Vec<Packet>,
    /// Empty memory for packets that a flush leaves.
    spare: Vec<Packet>,
}

impl Gro {
    /// An engine that holds nothing yet, for packets of whoever is trusted: whoever knows how flows
    /// are told apart can choose some that crowd each other out.
    pub fn new(config: GroConfig) -> Self {
        Self::with_seed(config, 0)
    }

    /// The same for packets of strangers, who do not know `seed`: best a number drawn at random for
    /// each engine.
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

    /// Takes one packet fresh from the device.
    pub fn receive(&mut self, now: Instant, packet: Packet) {
        let from = self.packets.len();
        self.packets.push(packet);
        self.coalesce(now, from);
    }

    /// Takes all of `packets` (drained); cheaper than one by one.
    pub fn receive_batch(&mut self, now: Instant, packets: &mut Vec<Packet>) {
        let from = self.packets.len();
        if from == 0 {
            core::mem::swap(&mut self.packets, packets);
        } else {
            self.packets.append(packets);
        }
        self.coalesce(now, from);
    }

    /// End of the device poll: everything is appended to `out`.
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

    /// End of a device poll that leaves more to read: what is held since `than` or later stays, and
    /// may grow in the next poll.
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

    /// Counters.
    pub fn stats(&self) -> GroStats {
        self.stats
    }

    /// Takes a poll's only packet while none is held: nothing can join it, so it is parsed and
    /// verified where it is, and never held. False if nothing is left of it.
    pub fn receive_alone(&mut self, packet: &mut Packet) -> bool {
        debug_assert!(self.packets.is_empty(), "others are held");
        self.stats.received += 1;
        let Some((walk, _)) = self.look_at(packet) else {
            return false;
        };
        packet.take_headers(&walk);
        true
    }

    /// Takes in what lies from `from` on; what stays is moved together.
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

    /// Parses a packet, which then joins one that is held, is held itself, or goes by; false if
    /// nothing is left of it. `kept` are the packets before it.
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
            // There is nothing to join, and nothing will join it.
        } else if walk.opaque && self.config.tunnels != Tunnels::NONE {
            // It may be of any flow in a tunnel, and must not be overtaken.
            self.table.complete_tunnelled(kept);
        }
        packet.take_headers(&walk);
        true
    }

    /// The one look at a packet: where its headers are, and whether its checksum may be trusted.
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

    /// Verifies the transport checksum if nobody has; false when it is wrong.
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

    /// A packet that may join another.
    fn place(
        &mut self,
        now: Instant,
        kept: &mut [Packet],
        packet: &mut Packet,
        walk: &Walk,
        guess: Option<Absent>,
    ) -> bool {
        let header = &packet.front()[..walk.header_len];
        // Link-layer padding is cut off by now and not part of the packet. What UDP's length leaves
        // out is: cutting a super-segment would not write it again.
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

    /// Looks for the packet that is held of this one's flow.
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

/// What is known of a packet's flow.
struct Found {
    hash: u32,
    /// The held packet of its flow, and whether its headers are like that one's.
    held: Option<(At, bool)>,
}

/// The checksum needs no look. What a device says of a tunnelled packet may be of the outer one.
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

/// The protocols and headers that coalescing knows: TCP and UDP over IPv4 without options or over
/// IPv6, and tunnels of these.
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
