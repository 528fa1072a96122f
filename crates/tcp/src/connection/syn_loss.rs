//! The effect of lost SYNs and SYN-ACKs on the initial window and the first timeout (RFC 5681 3.1,
//! RFC 6298 5.7); matches Linux.

use fullsend_wire::tcp::TcpRepr;

use super::Connection;
use crate::Cx;

impl Connection {
    /// Returns how often our SYN or SYN-ACK timed out; 0 if the first one was merely delayed. Reads
    /// state that [`establish`](Self::establish) resets. `repr` is the segment that acknowledges
    /// it.
    pub(super) fn syn_timeouts(&self, repr: &TcpRepr) -> u8 {
        if self.echoes_first_syn(repr) {
            return 0;
        }
        // The SYN that follows a RST to a half-open peer replaces one that arrived.
        let early = u8::from(self.timers.syn_after_reset);
        self.timers.retransmits.saturating_sub(early)
    }

    /// Returns whether `repr` echoes the timestamp of the first SYN or SYN-ACK, so that the timeout
    /// was spurious (RFC 3522 3.2).
    fn echoes_first_syn(&self, repr: &TcpRepr) -> bool {
        let echo = repr
            .options
            .timestamps
            .filter(|_| self.negotiated.timestamps);
        // Nothing was acknowledged since the first one was sent, so `progress_at` is its time.
        echo.is_some_and(|ts| ts.ecr == self.ts.value(self.timers.progress_at))
    }

    /// Sets the initial window and timeout at the end of the handshake. `timeouts` is the result of
    /// [`syn_timeouts`](Self::syn_timeouts).
    pub(super) fn begin_transfer(&mut self, cx: &mut Cx<'_>, timeouts: u8) {
        if self.is_fastopen_child() {
            // Its transfer began with the SYN. A second timeout has already reduced cwnd.
            let (recovery, mut parts) = self.recovery_parts(cx);
            recovery.end_syn_ack_loss(&mut parts, timeouts > 0);
            let actions = parts.actions;
            self.apply_recovery_actions(cx, actions);
        } else if timeouts > 1 && self.stats.total_retrans > 1 {
            // RFC 5681 3.1: one segment. RFC 6928 2: only after a second retransmission, as the
            // first comes after 1 s since RFC 6298 and no longer after 3 s. A retransmission in
            // answer to the peer's retransmitted SYN does not count: one lost SYN-ACK causes that
            // SYN and the timeout at the same time. Nor does a timeout at which a deferred accept
            // sends nothing.
            self.congestion.on_syn_lost(cx.now);
        }
        // RFC 6298 5.7.
        self.rtt.use_fallback_rto();
    }
}
