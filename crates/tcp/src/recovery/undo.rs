//! The undo of unnecessary reductions: the Eifel algorithm (RFC 3522, RFC 4015) with timestamps,
//! DSACK (RFC 3708), and F-RTO after timeouts.

use fullsend_wire::SeqNum;
use fullsend_wire::tcp::SackBlock;

use super::{AckSummary, CaState, CwrAction, Recovery, RecoveryCx};

/// The state of a reduction that may be undone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undo {
    /// The reduction may be undone.
    armed: bool,
    /// `snd_una` as the reduction began.
    marker: SeqNum,
    /// TSval of the first retransmission since.
    first_tsval: u32,
    /// Segments retransmitted since that no DSACK has reported as duplicates.
    unconfirmed_segs: u32,
    /// Data was retransmitted.
    retransmitted: bool,
}

impl Undo {
    /// Begins a reduction. A retransmission of an earlier reduction that is still in flight can
    /// fill the first hole of this one. Its echo must not count as that of the original.
    pub(super) fn begin(self, una: SeqNum, retrans_out: u32) -> Self {
        let earlier = if retrans_out > 0 {
            self
        } else {
            Self::default()
        };
        Self {
            armed: true,
            marker: una,
            unconfirmed_segs: retrans_out,
            ..earlier
        }
    }

    /// Gives up the undo of the reduction.
    pub(super) const fn disarm(&mut self) {
        self.armed = false;
    }

    pub(super) const fn is_armed(&self) -> bool {
        self.armed
    }

    /// Records that `segs` segments are retransmitted with the TSval `tsval`.
    pub(crate) fn on_retransmit(&mut self, tsval: u32, segs: u32) {
        if !self.retransmitted {
            self.first_tsval = tsval;
        }
        self.unconfirmed_segs = self.unconfirmed_segs.saturating_add(segs);
        self.retransmitted = true;
    }

    /// Records a DSACK of `range`, which reports `segs` segments that were retransmitted.
    pub(super) fn on_dsack(&mut self, range: SackBlock, segs: u32) {
        if self.armed && range.right.after(self.marker) {
            self.unconfirmed_segs = self.unconfirmed_segs.saturating_sub(segs);
        }
    }

    /// Returns whether the original arrived (RFC 3522 3.2 (4)): the ACK echoes a timestamp older
    /// than that of the first retransmission.
    fn original_arrived(&self, ecr: Option<u32>) -> bool {
        let older = ecr.is_some_and(|ecr| (ecr.wrapping_sub(self.first_tsval) as i32) < 0);
        self.armed && (older || !self.retransmitted)
    }

    /// Returns whether every retransmission was a duplicate of an original that arrived.
    fn all_were_duplicates(&self) -> bool {
        self.armed && self.retransmitted && self.unconfirmed_segs == 0
    }
}

impl Recovery {
    /// Returns the timestamp that the ACK echoes. As on Linux, 0 is no echo.
    fn echo(cx: &RecoveryCx<'_>, summary: &AckSummary<'_>) -> Option<u32> {
        let echo = summary.repr.options.timestamps;
        echo.filter(|ts| cx.timestamps && ts.ecr != 0)
            .map(|ts| ts.ecr)
    }

    fn may_undo(&self, cx: &RecoveryCx<'_>, summary: &AckSummary<'_>) -> bool {
        let echo = Self::echo(cx, summary);
        let undo = self.cold().map(|p| p.undo);
        undo.is_some_and(|u| u.all_were_duplicates() || u.original_arrived(echo))
    }

    /// Undoes the reduction at the end of a recovery that proved unnecessary.
    pub(super) fn try_undo_recovery(&mut self, cx: &mut RecoveryCx<'_>, summary: &AckSummary<'_>) {
        if self.may_undo(cx, summary) {
            match self.ca_state {
                CaState::Loss => cx.mib.loss_undo += 1,
                _ => cx.mib.full_undo += 1,
            }
            self.undo(cx, false);
        } else if let Some(cold) = self.cold_mut() {
            cold.reordering.on_recovered(false);
        }
    }

    /// Undoes the reduction within fast recovery if the original filled a hole. Returns whether,
    /// with retransmissions in flight, neither undo nor loss can be concluded yet.
    pub(super) fn try_undo_partial(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
    ) -> bool {
        let echo = Self::echo(cx, summary);
        let undo = self.cold().map(|p| p.undo);
        if !undo.is_some_and(|u| u.original_arrived(echo)) {
            return false;
        }
        let late = self.rtx.segs_to_highest_sacked(summary.prior_una);
        if late > 0 {
            cx.mib.ts_reorder += 1;
            self.update_reordering(cx, late);
        }
        if self.rtx.retrans_out() > 0 {
            return true;
        }
        cx.mib.partial_undo += 1;
        self.undo(cx, true);
        self.try_to_open(cx);
        false
    }

    /// Undoes the reduction if DSACKs report all retransmissions as duplicates (RFC 3708). Returns
    /// whether it did.
    pub(super) fn try_undo_dsack(&mut self, cx: &mut RecoveryCx<'_>) -> bool {
        let Some(cold) = self.cold_mut() else {
            return false;
        };
        if !cold.undo.all_were_duplicates() {
            return false;
        }
        cold.reordering.on_recovered(true);
        cx.mib.dsack_undo += 1;
        self.undo(cx, false);
        true
    }

    /// Undoes the reduction of a spurious timeout, shown by an echo, by DSACKs, or `by_frto`.
    /// Returns whether it did.
    pub(super) fn try_undo_loss(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
        by_frto: bool,
    ) -> bool {
        if !by_frto && !self.may_undo(cx, summary) {
            return false;
        }
        cx.mib.loss_undo += 1;
        cx.mib.spurious_rtos += u64::from(by_frto);
        self.undo(cx, true);
        cx.actions.forget_timeouts = true;
        let stays_in_loss = !cx.sack && cx.snd.una == self.high_seq;
        if !stays_in_loss && (by_frto || cx.sack) {
            self.ca_state = CaState::Open;
        }
        true
    }

    /// Ends, with the handshake, the Loss phase that the second timeout of a Fast Open server's
    /// SYN-ACK began. `lost`: the timeouts were not spurious. With data in flight, its
    /// acknowledgement decides.
    #[cold]
    pub(crate) fn end_syn_ack_loss(&mut self, cx: &mut RecoveryCx<'_>, lost: bool) {
        if self.ca_state != CaState::Loss || !self.rtx.is_empty() {
            return;
        }
        if !lost {
            cx.mib.loss_undo += 1;
            self.undo(cx, false);
        }
        self.disarm_undo();
        // RFC 6582 3.2: without SACK only new data ends the phase.
        if cx.sack {
            self.ca_state = CaState::Open;
            cx.congestion.on_recovered();
        }
    }

    /// Undoes the reduction. `unmark`: segments marked lost are not lost.
    fn undo(&mut self, cx: &mut RecoveryCx<'_>, unmark: bool) {
        if unmark {
            self.rtx.unmark_lost();
        }
        let Some(cold) = self.cold_mut() else {
            return;
        };
        if !cold.undo.is_armed() {
            return;
        }
        cold.undo.disarm();
        cx.congestion.undo(cx.now);
        cx.actions.cwr = Some(CwrAction::Withdraw);
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::SeqNum;

    use super::Undo;

    /// RFC 3708: without retransmissions there are no duplicates.
    #[test]
    fn a_recovery_without_retransmissions_had_no_duplicates() {
        let mut undo = Undo::default().begin(SeqNum::new(1000), 0);
        assert!(!undo.all_were_duplicates());
        undo.on_retransmit(50, 1);
        assert!(!undo.all_were_duplicates());
        undo.unconfirmed_segs = 0;
        assert!(undo.all_were_duplicates());
        undo.disarm();
        assert!(!undo.all_were_duplicates());
    }

    #[test]
    fn an_earlier_recoverys_retransmission_is_not_the_original() {
        let una = SeqNum::new(1000);
        let mut undo = Undo::default().begin(una, 0);
        undo.on_retransmit(50, 1);
        assert!(undo.original_arrived(Some(49)) && !undo.original_arrived(Some(50)));
        // The next recovery begins while that retransmission is in flight, which fills the first
        // hole.
        let mut undo = undo.begin(una + 5000, 1);
        undo.on_retransmit(60, 1);
        assert!(!undo.original_arrived(Some(50)));
        // With no retransmission in flight it starts anew.
        let mut undo = undo.begin(una + 9000, 0);
        undo.on_retransmit(70, 1);
        assert!(undo.original_arrived(Some(60)) && !undo.original_arrived(None));
    }
}
