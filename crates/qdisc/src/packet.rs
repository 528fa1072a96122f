//! Queue properties of a host's packets.

use fullsend_offload::Packet;
use fullsend_wire::Instant;

use crate::QueuedPacket;

impl QueuedPacket for Packet {
    #[inline]
    fn wire_len(&self) -> u32 {
        u32::try_from(Self::wire_len(self)).unwrap_or(u32::MAX)
    }

    #[inline]
    fn segments(&self) -> u32 {
        Self::segments(self)
    }

    #[inline]
    fn flow(&self) -> u64 {
        self.tx.socket
    }

    #[inline]
    fn departure(&self) -> Instant {
        Instant::from_nanos(self.tx.departure_ns)
    }

    fn mark_ce(&mut self) -> bool {
        Self::mark_ce(self)
    }
}

#[cfg(test)]
mod tests;
