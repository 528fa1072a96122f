//! Reports of duplicates (DSACK, RFC 2883), which show unnecessary retransmissions (RFC 3708).

use super::{AckSummary, Recovery, RecoveryCx};

/// The credible report of an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Dsack {
    /// Segments that arrived twice.
    pub(super) segs: u32,
    /// The report is about the tail loss probe, which was unnecessary.
    pub(super) is_of_tail_probe: bool,
}

impl Recovery {
    /// Processes the ACK's report of a duplicate, and returns it if it is credible.
    pub(super) fn process_dsack(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
    ) -> Dsack {
        let Some(range) = summary.sack.dsack else {
            return Dsack::default();
        };
        if range.left.before(cx.snd.una) {
            cx.mib.dsack_recv += 1;
        } else {
            cx.mib.dsack_ofo_recv += 1;
        }
        let (mss, nxt) = (cx.snd.mss.bytes(), cx.snd.nxt);
        let len = range.right.since(range.left);
        let segs = len.div_ceil(mss);
        let total_retrans = cx.snd.total_retrans;
        let cold = self.cold_or_default();
        cold.reordering.dsack_dups = cold.reordering.dsack_dups.saturating_add(segs);
        // A report of more than the window, or of more than was ever retransmitted, is not
        // credible.
        if len > cx.snd.max_wnd || cold.reordering.dsack_dups > total_retrans {
            cx.mib.dsack_ignored_dubious += 1;
            return Dsack::default();
        }
        cx.mib.dsack_recv_segs += u64::from(segs);
        let probe = cold.probe.is_some_and(|p| p.end == range.right);
        let is_of_tail_probe = probe && len <= mss;
        // The reordering window was too short, except where the timer of the probe was the reason.
        if cold.reordering.reord_seen > 0 && !is_of_tail_probe {
            cold.reordering.widen_reo_wnd(nxt);
        }
        // Of the data in flight until this ACK, only segments that were retransmitted count: the
        // network made the copy of a segment that was sent once. Which of the earlier data was
        // retransmitted is no longer known, so each of its segments counts, also one reported in
        // part.
        let retransmitted = if range.right.after(summary.prior_una) {
            summary.dsacked_retrans_segs
        } else {
            segs
        };
        cold.undo.on_dsack(range, retransmitted);
        Dsack {
            segs,
            is_of_tail_probe,
        }
    }
}
