//! Packets that wait for the resolution of their next hop.

use alloc::collections::VecDeque;

use fullsend_offload::Packet;

use crate::ip::compact;

/// Maximum number of bytes of memory that packets waiting for one neighbour hold; beyond it the
/// oldest are dropped. The default of Linux's `unres_qlen_bytes`. A single packet that exceeds it
/// is kept alone.
pub(super) const MAX_PENDING_BYTES: usize = 212_992;
/// Bytes that a waiting packet is charged besides its header and the memory of its payload.
pub(super) const OVERHEAD: usize = size_of::<Packet>();

/// Packets that wait for a neighbour's hardware address.
#[derive(Debug, Default)]
pub(super) struct PendingPackets {
    packets: VecDeque<Packet>,
    /// Bytes that the packets are charged.
    bytes: usize,
}

impl PendingPackets {
    /// Queues `packet`, or a copy if it keeps much more memory allocated than its length. Drops the
    /// oldest packets while more than [`MAX_PENDING_BYTES`] would wait. Drops the new packet if
    /// then more than `room` bytes would wait, or if there is no memory for the copy. Returns the
    /// number of dropped packets.
    pub(super) fn push(&mut self, mut packet: Packet, room: usize) -> u64 {
        // An echo reply shares the buffer of its request.
        let Some(payload) = compact(core::mem::take(&mut packet.payload)) else {
            return 1;
        };
        packet.payload = payload;
        let cost = cost(&packet);
        let mut dropped = 0;
        while self.bytes + cost > MAX_PENDING_BYTES
            && let Some(oldest) = self.packets.pop_front()
        {
            self.bytes -= self::cost(&oldest);
            dropped += 1;
        }
        if self.bytes + cost > room {
            return dropped + 1;
        }
        self.bytes += cost;
        self.packets.push_back(packet);
        dropped
    }

    /// Returns the bytes that the packets are charged.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the memory of the packets' payload, in bytes.
    #[cfg(test)]
    pub(super) fn pinned(&self) -> usize {
        self.packets.iter().map(|p| p.payload.pinned()).sum()
    }

    /// Takes all packets, in their order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Packet> {
        self.bytes = 0;
        self.packets.drain(..)
    }
}

/// Returns the bytes that a waiting packet is charged.
fn cost(packet: &Packet) -> usize {
    packet.header.len() + packet.payload.pinned() + OVERHEAD
}
