//! What lost SYNs and SYN-ACKs say about the path: the initial window and the first timeout
//! (RFC 5681 3.1, RFC 6298 5.7), as Linux applies them.

use fullsend_wire::tcp::TcpRepr;

use super::Connection;
use crate::Cx;

impl Connection {
    /// Returns whether our SYN or SYN-ACK timed out and was not merely late. Reads state that
    /// [`establish`](Self::establish) resets. `repr` is the segment that acknowledges it.
    pub(super) fn lost_its_syn(&self, repr: &TcpRepr) -> bool {
        self.timers.retransmits > 0 && !self.echoes_first_syn(repr)
    }

    /// The timestamp that `repr` echoes is that of the first SYN or SYN-ACK, so the timeout was
    /// spurious (RFC 3522 3.2).
    fn echoes_first_syn(&self, repr: &TcpRepr) -> bool {
        let echo = repr.options.timestamps.filter(|_| self.agreed.timestamps);
        // Nothing has been acknowledged since the first one left.
        echo.is_some_and(|ts| ts.ecr == self.ts.value(self.timers.progress_at))
    }

    /// The handshake is over: sets what transmission begins with. `lost` is the result of
    /// [`lost_its_syn`](Self::lost_its_syn).
    pub(super) fn begin_transfer(&mut self, cx: &mut Cx<'_>, lost: bool) {
        if self.is_fastopen_child() {
            // Its transfer began with the SYN. A second timeout has lowered cwnd already.
            self.end_syn_ack_loss(cx, lost);
        } else if lost && self.stats.total_retrans > 1 {
            // RFC 5681 3.1: one segment. RFC 6928 2: only after a second retransmission, as the
            // first comes after 1 s since RFC 6298 and no longer after 3 s.
            self.cwnd.cwnd = 1;
        }
        // RFC 6298 5.7.
        self.rtt.distrust_initial_rto();
    }
}
