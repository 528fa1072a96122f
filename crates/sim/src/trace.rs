//! The view of a watcher, and the hash over all packets.

use fullsend_offload::Packet;
use fullsend_wire::Instant;

use crate::{HostId, Loss};

/// The point at which a packet is observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TracePoint {
    /// A card accepts the packet from its host, which is where a capture on the host sees it.
    Queued,
    /// A card sends the packet.
    Sent,
    /// The packet reaches a card; GRO follows.
    Arrived,
    /// The link lost the packet.
    Lost(Loss),
}

/// An observed packet.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// The time.
    pub at: Instant,
    /// The host of the card; for a lost packet, the host at the end of the cable that lost it.
    pub host: HostId,
    /// The point.
    pub point: TracePoint,
    /// The packet; a super-segment if the card accepts them.
    pub packet: &'a Packet,
}

/// A running hash over packets: the same bytes at the same times give the same value.
///
/// Packets at [`TracePoint::Queued`] are not part of it: they are sent later, and hashed then.
#[derive(Clone, Copy, Debug)]
pub struct TraceHash {
    value: u64,
    payload: bool,
}

impl Default for TraceHash {
    fn default() -> Self {
        Self::new()
    }
}

impl TraceHash {
    /// Returns the hash of no packets.
    pub const fn new() -> Self {
        Self {
            value: 0x2545_f491_4f6c_dd1d,
            payload: true,
        }
    }

    /// Returns the hash over the packets so far.
    pub const fn value(self) -> u64 {
        self.value
    }

    /// Excludes payload from the hash from now on, to save time in long runs.
    pub const fn headers_only(&mut self) {
        self.payload = false;
    }

    fn word(&mut self, word: u64) {
        let mixed = (self.value ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.value = mixed ^ (mixed >> 29);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    /// Adds a packet to the hash.
    pub fn update(&mut self, event: &TraceEvent<'_>) {
        let point = match event.point {
            TracePoint::Queued => return,
            TracePoint::Sent => 0,
            TracePoint::Arrived => 1,
            TracePoint::Lost(Loss::Random) => 2,
            TracePoint::Lost(Loss::QueueFull) => 3,
            TracePoint::Lost(Loss::TooBig) => 5,
            TracePoint::Lost(Loss::LinkDown) => 6,
        };
        self.word(event.at.as_nanos());
        self.word((event.host.0 as u64) << 8 | point);
        self.word(u64::from(event.packet.offload.gso_size));
        if !self.payload {
            self.word(event.packet.payload.len() as u64);
            return;
        }
        // The division of the payload into slices is not visible on a wire.
        self.bytes(&event.packet.header);
        let mut carry = Vec::new();
        match event.packet.payload.slices() {
            [one] => self.bytes(one),
            many => {
                for slice in many {
                    carry.extend_from_slice(slice);
                }
                self.bytes(&carry);
            }
        }
    }
}
