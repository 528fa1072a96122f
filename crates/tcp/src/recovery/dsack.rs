//! Reports of duplicates (DSACK, RFC 2883), which show unnecessary retransmissions (RFC 3708).

use super::AckNews;
use crate::{Connection, Cx};

/// The credible report of an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Dsack {
    /// Segments that arrived twice.
    pub(super) segs: u32,
    /// It reports the tail loss probe, which was unnecessary.
    pub(super) of_probe: bool,
}

impl Connection {
    /// Processes the ACK's report of a duplicate, and returns it if it is credible.
    pub(super) fn hear_dsack(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>) -> Dsack {
        let Some(range) = news.sack.dsack else {
            return Dsack::default();
        };
        if range.left.before(self.snd.una) {
            cx.mib.dsack_recv += 1;
        } else {
            cx.mib.dsack_ofo_recv += 1;
        }
        let (mss, nxt) = (self.snd.mss.bytes(), self.snd.nxt);
        let len = range.right.since(range.left);
        let segs = len.div_ceil(mss);
        let total_retrans = self.stats.total_retrans;
        let past = self.recovery.remember();
        past.adaptation.dsack_dups = past.adaptation.dsack_dups.saturating_add(segs);
        // A report of more than the window, or of more than was ever retransmitted, is not credible.
        if len > self.snd.max_wnd || past.adaptation.dsack_dups > total_retrans {
            cx.mib.dsack_ignored_dubious += 1;
            return Dsack::default();
        }
        cx.mib.dsack_recv_segs += u64::from(segs);
        let probe = past.probe.is_some_and(|p| p.end == range.right);
        let of_probe = probe && len <= mss;
        // The reordering window was too short, except where the timer of the probe was the reason.
        if past.adaptation.reord_seen > 0 && !of_probe {
            past.adaptation.widen(nxt);
        }
        past.undo.on_dsack(range, segs, news.prior_una);
        Dsack { segs, of_probe }
    }
}
