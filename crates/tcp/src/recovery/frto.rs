//! F-RTO (RFC 5682, with and without SACK): detects spurious timeouts by the ACKs that new data draws
//! before more data is retransmitted.

use super::{AckNews, Phase, Recovery};
use crate::{Connection, Cx};

/// The state of F-RTO.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Frto {
    /// The timeout is being examined.
    on: bool,
    /// RFC 5682 3.1 (2b): new data is sent before retransmissions.
    sends_new: bool,
}

impl Frto {
    /// Begins after the retransmission of the head (RFC 5682 3.1 (1)), if `on`.
    pub(super) const fn begin(on: bool) -> Self {
        Self {
            on,
            sends_new: false,
        }
    }
}

impl Recovery {
    /// Returns whether new data is sent before retransmissions.
    #[inline]
    pub(crate) fn sends_new_first(&self) -> bool {
        let past = self.past();
        self.phase == Phase::Loss && past.is_some_and(|p| p.frto.sends_new)
    }
}

impl Connection {
    /// Processes an ACK in the Loss phase.
    pub(super) fn process_loss(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>) {
        let recovered = self.snd.una.after_eq(self.recovery.high_seq);
        if news.advanced && self.try_undo_loss(cx, news, false) {
            return;
        }
        if self.asks_frto() && self.ask_frto(cx, news, recovered) {
            return;
        }
        if recovered {
            self.leave_repaired(cx, news);
        } else if !self.agreed.sack && news.advanced {
            self.snd.rtx.forget_dupacks();
        }
    }

    fn asks_frto(&self) -> bool {
        self.recovery.past().is_some_and(|p| p.frto.on)
    }

    /// Runs steps (2) and (3) of RFC 5682 3.1. Returns whether the ACK needs no further processing.
    fn ask_frto(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>, recovered: bool) -> bool {
        let high_seq = self.recovery.high_seq;
        let original = [news.ack.original, news.sack.original];
        let mut originals = original.into_iter().flatten();
        // Without SACK, an ACK that covers a retransmission does not show whether the original arrived.
        let clear = self.agreed.sack || !news.ack.retransmitted;
        if clear && originals.any(|seq| seq.before(high_seq)) && self.try_undo_loss(cx, news, true)
        {
            return true;
        }
        let may_send = self.snd.has_unsent() && self.snd.usable_window() > 0;
        let nxt = self.snd.nxt;
        let news_of_more = news.sack.delivered_segs > 0 || news.duplicate;
        let frto = &mut self.recovery.remember().frto;
        frto.sends_new = false;
        if nxt.after(high_seq) {
            // (3a) A duplicate ACK: the loss was real.
            frto.on = !news_of_more;
        } else if news.advanced && !recovered {
            // (2b)
            frto.on = may_send;
            frto.sends_new = may_send;
            self.recovery.high_seq = nxt;
            return may_send;
        }
        false
    }

    /// Gives up F-RTO where no new data could be sent, so that retransmissions continue.
    pub(crate) fn give_up_frto(&mut self) {
        if self.snd.nxt == self.recovery.high_seq
            && let Some(past) = self.recovery.past_mut()
        {
            past.frto = Frto::default();
        }
    }
}
