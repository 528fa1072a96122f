//! Taking new data from the queue to send it.

use fullsend_offload::Chain;
use fullsend_wire::tcp::TcpFlags;
use fullsend_wire::{Instant, SeqNum, cold_path};

use super::{FinState, SendCx, SendDecision, Sender};
use crate::Cx;

/// New data that is sent now.
pub(crate) struct NewData {
    pub(crate) seq: SeqNum,
    pub(crate) payload: Chain,
    /// The flags of each segment; only the last one has PSH and FIN.
    pub(crate) flags: TcpFlags,
    /// The writer requested PSH within the data, or a record ends with it.
    pub(crate) push: bool,
    /// Bytes to be charged to the host's queues.
    pub(crate) truesize: u32,
    /// The number of this super-segment in the host's queues.
    pub(crate) number: u16,
    /// Departure time for fq to enforce; zero means at once.
    pub(crate) departure: Instant,
    /// The departure time, or the present time if that is later.
    pub(crate) sent_at: Instant,
}

impl Sender {
    /// Returns the number of segments that carry the data of a decision.
    #[inline]
    pub(crate) fn segments(&self, decision: &SendDecision) -> u32 {
        if decision.is_mtu_probe {
            // An MTU probe is one packet of any size.
            1
        } else {
            self.mss.segments(decision.len).max(1)
        }
    }

    /// Takes the data of a decision from the queue, to be sent in `segs` segments. `sent_segs`
    /// segments of data were sent, including these.
    #[inline(always)]
    pub(crate) fn take_data(
        &mut self,
        cx: &Cx<'_>,
        send: SendCx<'_>,
        decision: &SendDecision,
        (segs, sent_segs): (u32, u32),
    ) -> NewData {
        let (len, seq) = (decision.len, self.nxt);
        // PSH where the writer paused or a record ends.
        let push = self.is_push_requested(len) || send.record_left == len;
        let flags = self.data_flags(cx, len, segs, push);
        let taken = self.queue.take(len as usize);
        // A FIN without data is not charged, so it needs no completion.
        let (number, truesize) = if len == 0 {
            cold_path();
            (0, 0)
        } else {
            let size = (len, segs);
            let number = self.report_sent(cx.now, size, decision.headroom, decision.limit);
            (number, taken.truesize)
        };
        let departure = self.schedule_departure(cx, send.path, (len, segs), sent_segs);
        let sent_at = cx.now.max(departure);
        self.nxt = seq + len;
        // Minshall's mark: the data ends in a segment of less than the MSS. An MTU probe is one
        // segment of more than the MSS and sets no mark.
        if len < segs * self.mss.bytes() {
            self.sml = self.nxt;
        }
        if flags.contains(TcpFlags::FIN) {
            cold_path();
            self.fin = FinState::Sent;
            self.nxt += 1;
        }
        self.pending.on_sent(self.nxt);
        self.last_sent = sent_at;
        self.charge_wmem(truesize);
        NewData {
            seq,
            payload: taken.payload,
            flags,
            push,
            truesize,
            number,
            departure,
            sent_at,
        }
    }

    /// Adds a segment to the bytes passed to the device.
    #[inline]
    pub(crate) fn charge_wmem(&mut self, truesize: u32) {
        self.wmem_inflight = self.wmem_inflight.saturating_add(truesize);
    }

    /// Returns whether the writer requested PSH within the next `len` bytes.
    #[inline]
    fn is_push_requested(&self, len: u32) -> bool {
        let (pushed, nxt) = (self.pushed_seq, self.nxt);
        pushed.after(nxt) && pushed.before_eq(nxt + len)
    }

    /// Returns the flags of a segment with the next `len` bytes.
    #[inline]
    fn data_flags(&self, cx: &Cx<'_>, len: u32, segs: u32, push: bool) -> TcpFlags {
        let mut flags = TcpFlags::ACK;
        // With PSH the peer's GRO delivers a run of segments at once.
        if (segs > 1 && !cx.legacy.in_force().split_tail) || push {
            flags = flags.union(TcpFlags::PSH);
        }
        if self.fin == FinState::Queued {
            cold_path();
            let ends = len as usize == self.queue.len();
            // A FIN waits until the peer's window admits it (RFC 9293 3.8.6.1).
            if ends && len < self.usable_window() {
                flags = flags.union(TcpFlags::FIN);
            }
        }
        flags
    }
}
