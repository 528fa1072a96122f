//! Segments that a full queue of the host drops: congestion that is known at once and for sure.

use fullsend_wire::SeqNum;

use crate::congestion::CongestionEvent;
use crate::{Connection, Cx};

impl Connection {
    /// Handles the drop, by a queue of the host, of a segment with the sequence numbers from `seq` up to
    /// `end` that was charged with `truesize` bytes. Called in place of
    /// [`handle_tx_complete`](Self::handle_tx_complete).
    ///
    /// Reduces cwnd as for an echoed mark and marks the data lost, so that it is retransmitted. The call
    /// itself sends nothing, since the queue is still full.
    #[cold]
    pub fn handle_tx_dropped(&mut self, cx: &mut Cx<'_>, truesize: u32, seq: SeqNum, end: SeqNum) {
        self.snd.uncharge_wmem(truesize);
        if self.recovery.rtx.mark_dropped(seq, end) > 0 {
            cx.mib.host_drops += 1;
            self.enter_cwr(cx, CongestionEvent::Ecn);
            self.report_lost_if_sampled(cx);
        }
        if self.recovery.rtx.has_lost() {
            self.snd.pending_mut().retry();
        }
    }
}
