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
use crate::checksum::{Verdict, verify};
use crate::parse::Walk;
use crate::{Checksum, Link, Packet};

mod flow;
mod held;
mod predict;
mod table;
#[cfg(test)]
mod tests;

use flow::Flow;
use held::{Held, LAST, Step};
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
    pub max_size: u32,
}

/// What GRO did, in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroStats {
    /// Packets in.
    pub received: u64,
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
        let Ok(walk) = packet.walk(self.config.link) else {
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
        let Ok(walk) = packet.walk(self.config.link) else {
            self.stats.malformed += 1;
            return;
        };
        let trusted = self.check(packet);
        if !(trusted && self.config.enabled && joins(packet, &walk)) {
            return pass(packet, &walk, out);
        }
        self.coalesce(now, packet, &walk, out);
    }

    /// Joins a packet to the one that was touched last if it plainly follows it. This decides
    /// nothing that the long way would decide otherwise.
    #[inline]
    fn follow(&mut self, packet: &mut Packet, out: &mut Vec<Packet>) -> bool {
        let Some(at) = self.table.recent() else {
            return false;
        };
        let held = self.table.held_mut(at);
        let Some(header_len) = held.predicts(packet) else {
            return false;
        };
        let step = Step::new(&packet.front()[..header_len], held.layers(), packet, false);
        let joins = held.accepts(&step, self.config.max_size)
            && (packet.offload.checksum != Checksum::Unverified
                || verify(packet.front(), packet.rest(), held.layers()) == Verdict::Good);
        if joins {
            self.join(at, &step, packet, header_len, out);
        }
        joins
    }

    #[inline]
    fn join(
        &mut self,
        at: At,
        step: &Step,
        packet: &mut Packet,
        header_len: usize,
        out: &mut Vec<Packet>,
    ) {
        self.stats.merged += 1;
        let held = self.table.held_mut(at);
        let ends = step.flush_now() || step.is_short_for(held);
        held.join(step, packet, header_len);
        if ends {
            self.table.complete(at, out);
        }
    }

    /// Verifies the transport checksum if nobody has; false when it is wrong.
    #[inline]
    fn check(&mut self, packet: &mut Packet) -> bool {
        if packet.offload.checksum != Checksum::Unverified {
            return true;
        }
        match verify(packet.front(), packet.rest(), &packet.layers) {
            Verdict::Good => packet.offload.checksum = Checksum::Valid,
            Verdict::Unknown => {}
            Verdict::Bad => {
                self.stats.bad_checksum += 1;
                return false;
            }
        }
        true
    }

    /// A packet that may join another: it joins, or ends the one held, and is held or goes by.
    fn coalesce(&mut self, now: Instant, packet: &mut Packet, walk: &Walk, out: &mut Vec<Packet>) {
        let header = &packet.front()[..walk.header_len];
        let Some(flow) = Flow::new(header, &packet.layers) else {
            return pass(packet, walk, out);
        };
        let step = Step::new(header, &packet.layers, packet, walk.padded);
        let hash = flow.hash();
        if let Some(at) = self.table.find(hash, &flow) {
            let held = self.table.held_mut(at);
            if held.accepts(&step, self.config.max_size) && held.is_like(&flow) {
                return self.join(at, &step, packet, walk.header_len, out);
            }
            self.table.complete(at, out);
        }
        if step.may_be_held() {
            packet.take_headers(walk);
            let held = Held::new(core::mem::take(packet), &step, hash, now);
            self.table.insert(held, out);
        } else {
            pass(packet, walk, out);
        }
    }
}

/// Sends a packet on as it is.
#[inline]
fn pass(packet: &mut Packet, walk: &Walk, out: &mut Vec<Packet>) {
    packet.take_headers(walk);
    out.push(core::mem::take(packet));
}

/// A TCP packet that nothing may follow in a super-segment.
#[inline]
fn is_last(packet: &Packet, walk: &Walk) -> bool {
    let flags = TcpFlags(be16(
        packet.front(),
        usize::from(walk.layers.transport) + 12,
    ));
    packet.len() == walk.header_len || flags.intersects(LAST)
}

/// The protocols and headers that coalescing knows: TCP over IPv4 without options or over IPv6.
/// Encapsulated packets, and UDP, have their place here.
#[inline]
fn joins(packet: &Packet, walk: &Walk) -> bool {
    let layers = &packet.layers;
    let plain = match layers.ethertype {
        ethertype::IPV4 => layers.transport - layers.network[0] == 20,
        ethertype::IPV6 => !walk.opaque,
        _ => false,
    };
    plain && layers.protocol == protocol::TCP && !layers.fragment && layers.encap == 0
}
