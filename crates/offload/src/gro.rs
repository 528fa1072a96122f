//! GRO: joins packets of a flow that follow each other.
//!
//! Packets of one flow that stand in a row become one super-segment. What may join is decided so
//! that [`segment`](crate::segment) gives back the very packets that came in, IP IDs and checksums
//! included. Only one packet per flow is held, for the length of a device poll.

use alloc::vec::Vec;

use fullsend_units::Instant;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpFlags;

use crate::bytes::be16;
use crate::checksum::is_right;
use crate::checksum::{Verdict, verify};
use crate::parse::Walk;
use crate::{Checksum, Encap, Layers, Link, Packet, Tunnels};

mod flow;
mod held;
mod ids;
mod predict;
mod super_segment;
mod table;
#[cfg(test)]
mod tests;

use flow::Flow;
use held::{LAST, Step};
use ids::{Ids, LayerIds, NoId, OneId};
use predict::Shape;
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
    /// Coalesces up to 64 KiB, and looks into no tunnels.
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
    /// Walks over a packet's headers. A packet that plainly continues the one before it needs none:
    /// one comparison of the two says so.
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
/// Every TCP and UDP packet that comes out has its checksum `Valid` or `Partial`; one that comes
/// out `Unverified` is a fragment, or its checksum is wrong.
#[derive(Debug)]
pub struct Gro {
    config: GroConfig,
    table: Table,
    stats: GroStats,
    /// Packets held in a row whose flow was not: beyond what the table holds, guessing a packet's
    /// flow before its parse does not pay.
    strangers: u8,
}

impl Gro {
    /// An engine that holds nothing yet.
    pub fn new(config: GroConfig) -> Self {
        Self {
            config: GroConfig {
                max_size: config.max_size.min(MAX_SIZE),
                ..config
            },
            table: Table::new(),
            stats: GroStats::default(),
            strangers: 0,
        }
    }

    /// Takes one packet fresh from the device, parses it, and appends to `out` whatever is
    /// complete: the packet itself, held packets that it ends, or nothing while it is held.
    #[inline]
    pub fn receive(&mut self, now: Instant, mut packet: Packet, out: &mut Vec<Packet>) {
        self.receive_mut(now, &mut packet, out);
    }

    /// Takes all of `packets` (drained); cheaper than one by one.
    pub fn receive_batch(
        &mut self,
        now: Instant,
        packets: &mut Vec<Packet>,
        out: &mut Vec<Packet>,
    ) {
        if out.is_empty() && self.table.is_empty() {
            let joining = packets.iter_mut().position(|p| !self.goes_alone(p));
            let Some(alone) = joining else {
                // Nothing to join: the packets stay where they are.
                return core::mem::swap(packets, out);
            };
            out.extend(packets.drain(..alone));
        }
        for packet in packets.iter_mut() {
            self.receive_mut(now, packet, out);
        }
        packets.clear();
    }

    /// End of the device poll: everything held goes.
    pub fn flush(&mut self, out: &mut Vec<Packet>) {
        self.table.drain(|_| true, out);
    }

    /// End of a device poll that leaves more to read: only what is held since before `than` goes.
    pub fn flush_older(&mut self, than: Instant, out: &mut Vec<Packet>) {
        self.table.drain(|held| held.since() < than, out);
    }

    /// Counters.
    pub fn stats(&self) -> GroStats {
        self.stats
    }

    /// Takes a packet that, while nothing is held, goes on as it is; any other is left to the
    /// long way.
    #[inline]
    fn goes_alone(&mut self, packet: &mut Packet) -> bool {
        self.stats.walks += 1;
        let Ok(walk) = packet.walk(self.config.link, &self.config.tunnels) else {
            return false;
        };
        let alone =
            !self.config.enabled || walk.padded || !joins(packet, &walk) || is_last(packet, &walk);
        if alone {
            self.stats.received += 1;
            self.check(packet);
            packet.take_headers(&walk);
        }
        alone
    }

    /// Leaves an empty packet behind.
    fn receive_mut(&mut self, now: Instant, packet: &mut Packet, out: &mut Vec<Packet>) {
        self.stats.received += 1;
        if self.follow(packet, out) {
            return;
        }
        self.stats.walks += 1;
        let Ok(walk) = packet.walk(self.config.link, &self.config.tunnels) else {
            self.stats.malformed += 1;
            return;
        };
        let trusted = self.check(packet);
        if !(trusted && self.config.enabled && joins(packet, &walk)) {
            if walk.opaque && self.config.tunnels != Tunnels::NONE {
                // It may be of any flow in a tunnel, and must not overtake it.
                self.table.drain_tunnelled(out);
            }
            return pass(packet, &walk, out);
        }
        self.coalesce(now, packet, &walk, out);
    }

    /// Joins a packet to one that it plainly follows: the one that was touched last, or else the
    /// one of its flow if its headers lie as there. This decides nothing that the long way would
    /// decide otherwise.
    #[inline]
    fn follow(&mut self, packet: &mut Packet, out: &mut Vec<Packet>) -> bool {
        let Some(at) = self.table.recent() else {
            return false;
        };
        self.follow_at(at, packet, out)
            || self.strangers <= table::CAPACITY && self.follow_other(packet, out)
    }

    #[inline(never)]
    fn follow_other(&mut self, packet: &mut Packet, out: &mut Vec<Packet>) -> bool {
        match self.table.guess(packet.front()) {
            Some(at) => self.follow_at(at, packet, out),
            None => false,
        }
    }

    #[inline(always)]
    fn follow_at(&mut self, at: At, packet: &mut Packet, out: &mut Vec<Packet>) -> bool {
        match self.table.held_mut(at).shape() {
            Shape::V4 => self.follow_tcp::<false, false, _>(at, packet, OneId::new, out),
            Shape::V6 => self.follow_tcp::<true, false, _>(at, packet, |_, _| NoId, out),
            Shape::V6Ext => self.follow_tcp::<true, true, _>(at, packet, |_, _| NoId, out),
            Shape::Other => self.follow_any(at, packet, out),
        }
    }

    /// TCP without a tunnel.
    #[inline(always)]
    fn follow_tcp<const V6: bool, const EXT: bool, I: Ids>(
        &mut self,
        at: At,
        packet: &mut Packet,
        ids: impl FnOnce(&[u8], usize) -> I,
        out: &mut Vec<Packet>,
    ) -> bool {
        let held = self.table.held_mut(at);
        let Some(header_len) = held.predicts::<V6, EXT>(packet) else {
            return false;
        };
        let layers = held.layers();
        let header = &packet.front()[..header_len];
        let ids = ids(header, usize::from(layers.network[0]));
        let step = Step::tcp(header, usize::from(layers.transport), packet, ids, false);
        let Some(fixed) = held.accepts(&step) else {
            return false;
        };
        let good = packet.offload.checksum != Checksum::Unverified
            || is_right(packet.front(), packet.rest(), layers, V6);
        if good {
            self.join(at, &step, fixed, packet, header_len, out);
        }
        good
    }

    /// Tunnels and UDP.
    #[inline(never)]
    fn follow_any(&mut self, at: At, packet: &mut Packet, out: &mut Vec<Packet>) -> bool {
        let held = self.table.held_mut(at);
        let Some(header_len) = held.predicts_any(packet) else {
            return false;
        };
        let layers = *held.layers();
        let step = step(&packet.front()[..header_len], &layers, packet, false);
        let Some(fixed) = held.accepts(&step) else {
            return false;
        };
        let good = is_trusted(packet, &layers)
            || verify(packet.front(), packet.rest(), &layers) == Verdict::Good;
        if good {
            self.join(at, &step, fixed, packet, header_len, out);
        }
        good
    }

    #[inline(always)]
    fn join<I: Ids>(
        &mut self,
        at: At,
        step: &Step<I>,
        fixed_id: [bool; 2],
        packet: &mut Packet,
        header_len: usize,
        out: &mut Vec<Packet>,
    ) {
        self.stats.merged += 1;
        let held = self.table.held_mut(at);
        let ends = step.flush_now() || step.is_short_for(held);
        held.join(step, fixed_id, packet, header_len);
        if ends {
            self.table.complete(at, out);
        }
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

    /// A packet that may join another: it joins, or ends the one held, and is held or goes by.
    fn coalesce(&mut self, now: Instant, packet: &mut Packet, walk: &Walk, out: &mut Vec<Packet>) {
        let header = &packet.front()[..walk.header_len];
        let flow = Flow::new(header, &packet.layers);
        let hashed = flow.and_then(|f| Some((f, flow::hash(header, &packet.layers, f.v6())?)));
        let Some((flow, hash)) = hashed else {
            return pass(packet, walk, out);
        };
        let found = self.table.find(hash, &flow);
        let found = found.map(|at| (at, self.table.held_mut(at).is_like(&flow)));
        let (layers, flush) = (packet.layers, walk.padded);
        let (network, transport) = (
            usize::from(layers.network[0]),
            usize::from(layers.transport),
        );
        let hold = Hold { hash, now, found };
        match Shape::of(&layers) {
            Shape::V4 => {
                let ids = OneId::new(header, network);
                let step = Step::tcp(header, transport, packet, ids, flush);
                self.join_or_hold(&hold, &step, packet, walk, out);
            }
            Shape::V6 | Shape::V6Ext => {
                let step = Step::tcp(header, transport, packet, NoId, flush);
                self.join_or_hold(&hold, &step, packet, walk, out);
            }
            Shape::Other => {
                let step = step(header, &layers, packet, flush);
                self.join_or_hold(&hold, &step, packet, walk, out);
            }
        }
    }

    #[inline]
    fn join_or_hold<I: Ids>(
        &mut self,
        hold: &Hold,
        step: &Step<I>,
        packet: &mut Packet,
        walk: &Walk,
        out: &mut Vec<Packet>,
    ) {
        if let Some((at, is_like)) = hold.found {
            self.strangers = 0;
            let accepted = self.table.held_mut(at).accepts(step);
            if let Some(fixed) = accepted.filter(|_| is_like) {
                return self.join(at, step, fixed, packet, walk.header_len, out);
            }
            self.table.complete(at, out);
        }
        if step.may_be_held() {
            self.strangers = self.strangers.saturating_add(1);
            packet.take_headers(walk);
            let held = self.table.insert(hold.hash, out);
            held.hold(packet, step, hold.now, self.config.max_size);
        } else {
            pass(packet, walk, out);
        }
    }
}

/// Where a packet belongs.
struct Hold {
    hash: u32,
    now: Instant,
    /// The held packet of its flow, and whether its headers are like that one's.
    found: Option<(At, bool)>,
}

/// What a packet of any shape would do.
#[inline]
fn step(header: &[u8], layers: &Layers, packet: &Packet, flush: bool) -> Step<LayerIds> {
    let ids = LayerIds::new(header, layers);
    let transport = usize::from(layers.transport);
    // Of a tunnelled packet whose checksum is not complete, nobody says which one that is.
    let unclear = layers.encap != Encap::None
        && packet.offload.checksum == Checksum::Partial
        && packet.offload.gso_size == 0;
    if layers.protocol == protocol::UDP {
        Step::udp(header, transport, packet, ids, flush || unclear)
    } else {
        Step::tcp(header, transport, packet, ids, flush || unclear)
    }
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

/// Sends a packet on as it is.
#[inline]
fn pass(packet: &mut Packet, walk: &Walk, out: &mut Vec<Packet>) {
    packet.take_headers(walk);
    out.push(core::mem::take(packet));
}

/// A packet that nothing may follow in a super-segment.
#[inline]
fn is_last(packet: &Packet, walk: &Walk) -> bool {
    if packet.len() == walk.header_len {
        return true;
    }
    let at = usize::from(walk.layers.transport) + 12;
    walk.layers.protocol == protocol::TCP && TcpFlags(be16(packet.front(), at)).intersects(LAST)
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
