//! Taking a reduction back that proved unnecessary: the Eifel algorithm (RFC 3522, RFC 4015) with
//! timestamps, DSACK (RFC 3708) without.

use fullsend_units::SeqNum;
use fullsend_wire::tcp::{SackBlock, TcpRepr};

use super::{MAX_REORDERING_SEGS, Phase};
use crate::{Connection, Cx};

/// What is remembered of a reduction for as long as it may be undone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undo {
    /// There is something to undo.
    armed: bool,
    /// `snd_una` as the reduction began.
    marker: SeqNum,
    /// TSval of the first retransmission since.
    first_stamp: u32,
    /// Segments retransmitted since that no DSACK has reported as duplicates.
    unconfirmed_segs: u32,
    /// Something was retransmitted.
    retransmitted: bool,
}

impl Undo {
    /// A reduction begins. What an earlier one sent again, and is still out, can fill the first
    /// hole of this one; its echo must not be taken for that of the original.
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

    /// Nothing is to be undone any more.
    pub(super) const fn disarm(&mut self) {
        self.armed = false;
    }

    /// `segs` segments go out again, with this TSval.
    pub(crate) fn on_retransmit(&mut self, stamp: u32, segs: u32) {
        if !self.retransmitted {
            self.first_stamp = stamp;
        }
        self.unconfirmed_segs = self.unconfirmed_segs.saturating_add(segs);
        self.retransmitted = true;
    }

    /// The peer got this range twice.
    fn on_dsack(&mut self, range: SackBlock, mss: u32) {
        if self.armed && range.left.after_eq(self.marker) {
            let segs = range.right.since(range.left).div_ceil(mss);
            self.unconfirmed_segs = self.unconfirmed_segs.saturating_sub(segs);
        }
    }

    /// RFC 3522 3.2 (4): the ACK echoes a timestamp older than the first retransmission's, so it
    /// is the original that arrived.
    fn original_arrived(&self, ecr: u32) -> bool {
        let older = (ecr.wrapping_sub(self.first_stamp) as i32) < 0;
        self.armed && self.retransmitted && older
    }

    /// Every retransmission arrived beside its original.
    fn all_were_duplicates(&self) -> bool {
        self.armed && self.retransmitted && self.unconfirmed_segs == 0
    }
}

impl Connection {
    /// Looks for proof that the last reduction was unnecessary, and takes it back then. True if
    /// so.
    pub(super) fn try_undo(
        &mut self,
        cx: &mut Cx<'_>,
        repr: &TcpRepr,
        dsack: Option<SackBlock>,
        advanced: bool,
    ) -> bool {
        let phase = self.recovery.phase;
        let Some(undo) = self.recovery.undo_mut() else {
            return false;
        };
        if let Some(range) = dsack {
            undo.on_dsack(range, self.snd.mss.bytes());
        }
        let echo = repr.options.timestamps.filter(|_| self.agreed.timestamps);
        let by_echo = advanced
            && phase >= Phase::Recovery
            && echo.is_some_and(|ts| undo.original_arrived(ts.ecr));
        if !by_echo && !undo.all_were_duplicates() {
            return false;
        }
        match phase {
            Phase::Loss => cx.mib.loss_undo += 1,
            _ if by_echo => cx.mib.full_undo += 1,
            _ => cx.mib.dsack_undo += 1,
        }
        if phase != Phase::Loss {
            // What looked like loss was order: be slower to judge.
            let patient = (2 * self.recovery.reordering_segs).min(MAX_REORDERING_SEGS);
            self.recovery.reordering_segs = patient;
        }
        let cwnd = self.cc.undo(&self.cwnd);
        self.cwnd.undo(cwnd);
        self.cc.on_spurious(cx.now);
        if let Some(ecn) = &mut self.ecn {
            ecn.withdraw_cwr();
        }
        self.snd.rtx.unmark_lost();
        self.recovery.forget_undo();
        self.leave_recovery();
        true
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::SeqNum;

    use super::Undo;

    #[test]
    fn an_earlier_recoverys_retransmission_is_not_the_original() {
        let una = SeqNum::new(1000);
        let mut undo = Undo::default().begin(una, 0);
        undo.on_retransmit(50, 1);
        assert!(undo.original_arrived(49) && !undo.original_arrived(50));
        // The next recovery begins while that one is still out, and it fills the first hole.
        let mut undo = undo.begin(una + 5000, 1);
        undo.on_retransmit(60, 1);
        assert!(!undo.original_arrived(50));
        // With nothing out it begins anew.
        let mut undo = undo.begin(una + 9000, 0);
        undo.on_retransmit(70, 1);
        assert!(undo.original_arrived(60));
    }
}
