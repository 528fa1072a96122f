//! Reads ahead of the fields that the next call on a connection uses, so that the cache misses of
//! many connections overlap. The returned sums have no meaning.

use super::Connection;

impl Connection {
    /// Reads a field of each part of the connection itself.
    #[inline]
    pub fn fetch(&self) -> u64 {
        let words = [
            self.snd.una.raw(),
            self.snd.sndbuf,
            self.snd.queue.len() as u32,
            self.snd.rtx.packets_out(),
            self.rcv.queue.rcv_nxt().raw(),
            self.rcv.window.rcvbuf(),
            self.rcv.ack.last_acked().raw(),
            self.ts.recent,
            self.cwnd.cwnd,
            self.recovery.reordering_segs(),
            self.timers.complained_at_ms,
            self.stats.segs_in,
            self.mem_pages,
        ];
        let sum = words.into_iter().fold(0, |sum, word| sum ^ word);
        u64::from(sum) ^ self.timers.heard_at.as_nanos() ^ self.stats.bytes_received
    }

    /// Reads the memory that the connection points to; called after [`fetch`](Self::fetch).
    #[inline]
    pub fn fetch_far(&self) -> u64 {
        let flow = self.snd.flow.as_ref().map_or(0, |flow| flow.fetch());
        flow ^ self.snd.rtx.head_pins() as u64
    }
}
