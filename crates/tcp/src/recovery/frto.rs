//! F-RTO (RFC 5682, with and without SACK): detects spurious timeouts by the ACKs that new data
//! draws before more data is retransmitted.

use fullsend_wire::SeqNum;

use super::{AckSummary, CaState, Recovery, RecoveryCx};

/// The state of F-RTO.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Frto {
    /// The timeout is being examined.
    active: bool,
    /// RFC 5682 3.1 (2b): new data is sent before retransmissions.
    new_data_first: bool,
}

impl Frto {
    /// Begins after the retransmission of the head (RFC 5682 3.1 (1)), if `active`.
    pub(super) const fn begin(active: bool) -> Self {
        Self {
            active,
            new_data_first: false,
        }
    }
}

impl Recovery {
    /// Returns whether new data is sent before retransmissions.
    #[inline]
    pub(crate) fn sends_new_data_first(&self) -> bool {
        let cold = self.cold();
        self.ca_state == CaState::Loss && cold.is_some_and(|p| p.frto.new_data_first)
    }

    /// Processes an ACK in the Loss phase.
    pub(super) fn process_loss(&mut self, cx: &mut RecoveryCx<'_>, summary: &AckSummary<'_>) {
        let recovered = cx.snd.una.after_eq(self.high_seq);
        if summary.advanced && self.try_undo_loss(cx, summary, false) {
            return;
        }
        if self.is_frto_active() && self.process_frto(cx, summary, recovered) {
            return;
        }
        if recovered {
            self.end_recovery(cx, summary);
        } else if !cx.sack && summary.advanced {
            self.rtx.forget_dupacks();
        }
    }

    fn is_frto_active(&self) -> bool {
        self.cold().is_some_and(|p| p.frto.active)
    }

    /// Runs steps (2) and (3) of RFC 5682 3.1. Returns whether the ACK needs no further processing.
    fn process_frto(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
        recovered: bool,
    ) -> bool {
        let high_seq = self.high_seq;
        let original = [summary.ack.original, summary.sack.original];
        let mut originals = original.into_iter().flatten();
        // Without SACK, an ACK that covers a retransmission does not show whether the original
        // arrived.
        let is_unambiguous = cx.sack || !summary.ack.retransmitted;
        if is_unambiguous
            && originals.any(|seq| seq.before(high_seq))
            && self.try_undo_loss(cx, summary, true)
        {
            return true;
        }
        let (nxt, may_send) = (cx.snd.nxt, cx.snd.may_send);
        let is_dupack = summary.sack.delivered_segs > 0 || summary.duplicate;
        let frto = &mut self.cold_or_default().frto;
        frto.new_data_first = false;
        if nxt.after(high_seq) {
            // (3a) A duplicate ACK: the loss was real.
            frto.active = !is_dupack;
        } else if summary.advanced && !recovered {
            // (2b)
            frto.active = may_send;
            frto.new_data_first = may_send;
            self.high_seq = nxt;
            return may_send;
        }
        false
    }

    /// Gives up F-RTO where no new data could be sent, so that retransmissions continue.
    pub(crate) fn end_frto(&mut self, nxt: SeqNum) {
        if nxt == self.high_seq
            && let Some(cold) = self.cold_mut()
        {
            cold.frto = Frto::default();
        }
    }
}
