//! What the next call on a connection will want, read ahead of it: of many connections the
//! processor then waits for the memory of several at a time. The sums mean nothing.

use super::Connection;

impl Connection {
    /// Reads a little of each part of the connection itself.
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

    /// The same of what it points to; after [`fetch`](Self::fetch).
    #[inline]
    pub fn fetch_far(&self) -> u64 {
        let flow = self.snd.flow.as_ref().map_or(0, |flow| flow.fetch());
        flow ^ self.snd.rtx.head_pins() as u64
    }
}
