//! Reads ahead of the fields that the next call on a connection uses, so that the cache misses of
//! many connections overlap. The returned sums have no meaning.

use super::Connection;

impl Connection {
    /// Reads a field of each part of the connection itself.
    #[inline]
    pub fn prefetch(&self) -> u64 {
        let fields = [
            self.snd.una().raw(),
            self.snd.sndbuf(),
            self.snd.unsent_bytes() as u32,
            self.snd.rtx.packets_out(),
            self.rcv.nxt().raw(),
            self.rcv.rcvbuf(),
            self.rcv.last_acked().raw(),
            self.ts.recent,
            self.cwnd.cwnd,
            self.recovery.reordering_segs(),
            self.timers.rejected_at_ms,
            self.stats.segs_in,
            self.mem_pages,
        ];
        let sum = fields.into_iter().fold(0, |sum, field| sum ^ field);
        u64::from(sum) ^ self.timers.received_at.as_nanos() ^ self.stats.bytes_received
    }

    /// Reads the memory that the connection points to; called after [`prefetch`](Self::prefetch).
    #[inline]
    pub fn prefetch_indirect(&self) -> u64 {
        let flow = self.snd.prefetch();
        flow ^ self.snd.rtx.head_pinned_bytes() as u64
    }
}
