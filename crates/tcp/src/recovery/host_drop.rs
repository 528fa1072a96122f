//! The host itself drops a segment: its queue is full. Congestion like any other, but known at
//! once, and known for sure.

use fullsend_units::SeqNum;

use crate::congestion::CongestionEvent;
use crate::{Connection, Cx};

impl Connection {
    /// A queue of the host did not take a segment with the sequence numbers from `seq` up to `end`
    /// that was charged with `truesize`: in place of
    /// [`handle_tx_complete`](Self::handle_tx_complete).
    ///
    /// cwnd is reduced as for an echoed mark, and the text is lost: it goes again by the rules of
    /// retransmission. Nothing is sent because of the call itself: the queue is full still.
    #[cold]
    pub fn handle_tx_dropped(&mut self, cx: &mut Cx<'_>, truesize: u32, seq: SeqNum, end: SeqNum) {
        self.forget_handed_out(truesize);
        if self.snd.rtx.mark_dropped(seq, end) > 0 {
            cx.mib.host_drops += 1;
            self.enter_cwr(cx, CongestionEvent::Ecn);
            self.tell_lost_if_sampled(cx);
        }
        self.out.any |= self.snd.rtx.has_lost();
    }
}
