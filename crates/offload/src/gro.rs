//! GRO: joins packets of a flow that follow each other (spec 5.2).

use alloc::vec::Vec;

use fullsend_units::Instant;

use crate::{Link, Packet};

/// How to coalesce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroConfig {
    /// What frames begin with.
    pub link: Link,
    /// Coalesce at all; parsing and checksum verification happen either way.
    pub enabled: bool,
    /// The device has verified checksums marked so; others are verified in software.
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
#[derive(Debug)]
pub struct Gro {
    stats: GroStats,
}

#[allow(unused_variables)]
impl Gro {
    /// An engine that holds nothing yet.
    pub fn new(config: GroConfig) -> Self {
        todo!()
    }

    /// Takes one packet fresh from the device, parses it, and appends to `out` whatever is
    /// complete: the packet itself, held packets that it ends, or nothing while it is held.
    pub fn receive(&mut self, now: Instant, packet: Packet, out: &mut Vec<Packet>) {
        todo!()
    }

    /// End of the device poll: everything held goes.
    pub fn flush(&mut self, out: &mut Vec<Packet>) {
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> GroStats {
        self.stats
    }
}
