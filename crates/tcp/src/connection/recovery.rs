//! Recovery within the connection: the values that it reads of other parts, and what it requires of
//! them.

use fullsend_wire::SeqNum;

use crate::recovery::{CwrAction, Recovery, RecoveryActions, RecoveryCx, RecoveryTimer, SendVars};
use crate::{Connection, Cx};

impl Connection {
    /// Returns recovery, and the parts and values that it uses.
    #[inline]
    pub(super) fn recovery_parts<'a>(
        &'a mut self,
        cx: &'a mut Cx<'_>,
    ) -> (&'a mut Recovery, RecoveryCx<'a>) {
        let mtu_probe = if self.uncommon.is_some() {
            self.mtu_probe_start()
        } else {
            None
        };
        let snd = SendVars {
            una: self.snd.una(),
            nxt: self.snd.nxt(),
            max_wnd: self.snd.max_wnd(),
            mss: self.snd.mss(),
            may_send: self.snd.has_unsent() && self.snd.usable_window() > 0,
            total_retrans: self.stats.total_retrans,
            timed_out: self.timers.retransmits > 0,
            mtu_probe,
        };
        let parts = RecoveryCx {
            now: cx.now,
            sysctl: cx.sysctl,
            mib: &mut *cx.mib,
            congestion: &mut self.congestion,
            rtt: &self.rtt,
            sack: self.negotiated.sack,
            timestamps: self.negotiated.timestamps,
            snd,
            actions: RecoveryActions::default(),
        };
        (&mut self.recovery, parts)
    }

    /// Performs what recovery requires of other parts. Returns whether it set a timer that the
    /// retransmission timer must not replace.
    pub(super) fn apply_recovery_actions(
        &mut self,
        cx: &mut Cx<'_>,
        actions: RecoveryActions,
    ) -> bool {
        if let Some(ecn) = &mut self.ecn {
            match actions.cwr {
                Some(CwrAction::Queue) => ecn.queue_cwr(),
                Some(CwrAction::Withdraw) => ecn.withdraw_cwr(),
                None => {}
            }
        }
        if actions.forget_timeouts {
            self.timers.retransmits = 0;
        }
        if actions.mtu_probe_lost {
            self.on_mtu_probe_lost(cx);
            self.snd.pending_mut().retry();
        }
        match actions.timer {
            Some(RecoveryTimer::Reordering(at)) => self.arm_reordering(cx, at),
            Some(RecoveryTimer::Reneging(at)) => self.arm_rto_at(cx, at),
            None => return false,
        }
        true
    }

    /// Handles the drop, by a queue of the host, of a segment with the sequence numbers from `seq`
    /// up to `end` that was charged with `truesize` bytes. Called in place of
    /// [`handle_tx_complete`](Self::handle_tx_complete).
    ///
    /// Reduces cwnd as for an echoed mark and marks the data lost, so that it is retransmitted. The
    /// call itself sends nothing, since the queue is still full.
    #[cold]
    pub fn handle_tx_dropped(&mut self, cx: &mut Cx<'_>, truesize: u32, seq: SeqNum, end: SeqNum) {
        self.snd.uncharge_wmem(truesize);
        let (recovery, mut parts) = self.recovery_parts(cx);
        recovery.on_host_drop(&mut parts, seq, end);
        let actions = parts.actions;
        self.apply_recovery_actions(cx, actions);
        if self.recovery.rtx.has_lost() {
            self.snd.pending_mut().retry();
        }
    }

    /// Passes a retransmission timeout to recovery.
    pub(super) fn on_recovery_timeout(&mut self, cx: &mut Cx<'_>) {
        let (recovery, mut parts) = self.recovery_parts(cx);
        recovery.on_timeout(&mut parts);
        let actions = parts.actions;
        self.apply_recovery_actions(cx, actions);
    }

    /// Processes the reordering timer.
    #[cold]
    pub(super) fn on_reordering_timer(&mut self, cx: &mut Cx<'_>) {
        let (recovery, mut parts) = self.recovery_parts(cx);
        let lost = recovery.on_reordering_timer(&mut parts);
        let actions = parts.actions;
        if lost {
            self.snd.pending_mut().retry();
        }
        if !self.apply_recovery_actions(cx, actions) {
            self.rearm_rto(cx);
        }
    }

    /// Processes the timer of the tail loss probe. If more data was sent since it was set, the
    /// timeout counts from then.
    #[cold]
    pub(super) fn on_tail_probe_timer(&mut self, cx: &mut Cx<'_>) {
        if self.recovery.rtx.is_empty() {
            return;
        }
        let rto_at = self.recovery.head_rto_at(&self.rtt, cx.now);
        let parts = (&self.rtt, self.negotiated.sack);
        let due = self
            .recovery
            .tail_probe_at(cx, parts, self.snd.last_sent(), rto_at);
        if let Some(at) = due.filter(|at| *at > cx.now && rto_at > cx.now) {
            self.set_tail_probe_timer(cx, at);
            return;
        }
        if !self.recovery.is_tail_probing() {
            self.snd.pending_mut().request_tail_probe();
        }
        // For the case that no probe can be sent now.
        self.arm_rto_at(cx, rto_at);
    }
}
