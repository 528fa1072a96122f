//! Prefetching of the fields that the next call on a connection uses, so that the cache misses of
//! many connections overlap.

use fullsend_wire::prefetch;

use super::Connection;

impl Connection {
    /// Prefetches a field of each part of the connection itself.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(&self.snd.una());
        prefetch(&self.snd.sndbuf());
        prefetch(&self.snd.unsent_bytes());
        prefetch(&self.recovery.rtx.packets_out());
        prefetch(&self.rcv.nxt());
        prefetch(&self.rcv.rcvbuf());
        prefetch(&self.rcv.last_acked());
        prefetch(&self.ts.recent);
        prefetch(&self.congestion.cwnd());
        prefetch(&self.recovery.reordering_segs());
        prefetch(&self.timers.rejected_at_ms);
        prefetch(&self.timers.received_at);
        prefetch(&self.stats.segs_in);
        prefetch(&self.stats.bytes_received);
        prefetch(&self.mem_units);
    }

    /// Prefetches the memory that the connection points to; called after
    /// [`prefetch`](Self::prefetch).
    #[inline]
    pub fn prefetch_indirect(&self) {
        self.snd.prefetch();
        prefetch(&self.recovery.rtx.head_pinned_bytes());
    }
}
