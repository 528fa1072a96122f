//! Segments that a full queue of the host drops: congestion that is known at once and for sure.

use fullsend_wire::SeqNum;

use super::{Recovery, RecoveryCx};
use crate::congestion::CongestionEvent;

impl Recovery {
    /// Processes the drop of the data from `seq` up to `end`: marks it lost, and reduces cwnd as
    /// for an echoed mark.
    #[cold]
    pub(crate) fn on_host_drop(&mut self, cx: &mut RecoveryCx<'_>, seq: SeqNum, end: SeqNum) {
        if self.rtx.mark_dropped(seq, end) > 0 {
            cx.mib.host_drops += 1;
            self.enter_cwr(cx, CongestionEvent::Ecn);
            self.report_lost_if_sampled(cx);
        }
    }
}
