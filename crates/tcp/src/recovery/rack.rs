//! Loss detection (RFC 8985, RFC 6582 without SACK, RFC 6675 with RACK off), and the reordering
//! window.

use fullsend_wire::{Nanos, SeqNum};

use super::{AckSummary, CaState, Recovery, RecoveryCx, RecoveryOutcome, RecoveryTimer};

/// Bits of `tcp_recovery`.
const RACK: u32 = 1;
const STATIC_REO_WND: u32 = 2;
const NO_DUPTHRESH: u32 = 4;

/// Recoveries for which a widened reordering window persists (RFC 8985 6.2 step 4).
const REO_WND_PERSIST: u8 = 16;

/// Slack of timers for the granularity of both hosts' clocks.
pub(super) const TIMER_SLACK: Nanos = Nanos::from_millis(2);

/// The reordering observed on the path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReorderingState {
    /// Times that reordering was seen.
    pub(crate) reord_seen: u32,
    /// Segments that DSACKs reported.
    pub(crate) dsack_dups: u32,
    /// `RACK.reo_wnd_mult` beyond 1.
    extra_steps: u8,
    persist: u8,
    /// `RACK.dsack_round`: until this is acknowledged the window does not widen again.
    round: Option<SeqNum>,
}

impl ReorderingState {
    /// Widens the reordering window, once for each round trip with a DSACK (RFC 8985 6.2 step 4).
    pub(super) fn widen_reo_wnd(&mut self, nxt: SeqNum) {
        if self.round.is_none() {
            self.round = Some(nxt);
            self.extra_steps = self.extra_steps.saturating_add(1);
            self.persist = REO_WND_PERSIST;
        }
    }

    fn end_round(&mut self, una: SeqNum) {
        if self.round.is_some_and(|round| una.after_eq(round)) {
            self.round = None;
        }
    }

    /// Records the end of a recovery; `undone`: it was unnecessary.
    pub(super) fn on_recovered(&mut self, undone: bool) {
        if undone {
            self.persist = REO_WND_PERSIST.min(self.persist + 1);
        } else {
            self.persist = self.persist.saturating_sub(1);
        }
        if self.persist == 0 {
            self.extra_steps = 0;
        }
    }
}

impl Recovery {
    /// Marks segments that the ACK shows to be lost. Sets the reordering timer if more may be.
    pub(super) fn identify_loss(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
        outcome: &mut RecoveryOutcome,
    ) {
        if self.rtx.is_empty() {
            return;
        }
        let dupthresh = self.reordering_segs();
        if !cx.sack {
            // RFC 6582 3.2: three duplicate ACKs show the first hole, a partial ACK (step 5) the
            // next.
            let ca_state = self.ca_state;
            let first = ca_state < CaState::Recovery && self.rtx.sacked_out() >= dupthresh;
            if first || (ca_state == CaState::Recovery && summary.advanced) {
                outcome.lost_segs += self.rtx.mark_head_lost();
            }
        } else if cx.sysctl.tcp_recovery & RACK == 0 {
            outcome.lost_segs += self.rtx.mark_lost_by_sack(dupthresh);
        } else {
            self.rack(cx, outcome);
        }
    }

    fn rack(&mut self, cx: &mut RecoveryCx<'_>, outcome: &mut RecoveryOutcome) {
        if let Some(cold) = self.cold_mut() {
            cold.reordering.end_round(cx.snd.una);
        }
        let reo_wnd = self.reo_wnd(cx);
        let found = self
            .rtx
            .mark_overdue(cx.now, reo_wnd, self.min_rack_rtt(cx));
        cx.mib.lost_retransmit += u64::from(found.lost_retrans_segs);
        outcome.lost_segs += found.lost_segs;
        outcome.lost_retrans_segs += found.lost_retrans_segs;
        if let Some(at) = found.next_loss_at {
            let at = at.max(cx.now) + TIMER_SLACK;
            cx.actions.timer = Some(RecoveryTimer::Reordering(at));
        }
    }

    /// Returns the reordering window: how long an overtaken segment may be late (RFC 8985 6.2 step
    /// 4).
    fn reo_wnd(&self, cx: &RecoveryCx<'_>) -> Nanos {
        let reordering = self.cold().map(|p| p.reordering);
        let reordering = reordering.unwrap_or_default();
        if reordering.reord_seen == 0 {
            let dupthresh = self.rtx.sacked_out() >= self.reordering_segs()
                && cx.sysctl.tcp_recovery & NO_DUPTHRESH == 0;
            if self.ca_state >= CaState::Recovery || dupthresh {
                return Nanos::ZERO;
            }
        }
        let fixed = cx.sysctl.tcp_recovery & STATIC_REO_WND != 0;
        let times = if fixed {
            1
        } else {
            u64::from(reordering.extra_steps) + 1
        };
        let min_rtt = cx.rtt.min_rtt().unwrap_or(Nanos::ZERO);
        (min_rtt / 4 * times).min(cx.rtt.srtt().unwrap_or(Nanos::ZERO))
    }

    /// Returns the least round trip time for RACK. RFC 8985 6.2 uses the latest sample. On a path
    /// that reorders, that may be of a packet that overtook others, which would be marked lost
    /// though they are not late. RFC 9002 6.1.2 uses at least the smoothed time.
    fn min_rack_rtt(&self, cx: &RecoveryCx<'_>) -> Nanos {
        let (seen, _) = self.reordering_stats();
        let srtt = cx.rtt.srtt().filter(|_| seen > 0);
        srtt.unwrap_or(Nanos::ZERO)
    }

    /// Processes the reordering timer: overtaken segments have not arrived. Returns whether any are
    /// lost.
    #[cold]
    pub(crate) fn on_reordering_timer(&mut self, cx: &mut RecoveryCx<'_>) -> bool {
        let mut outcome = RecoveryOutcome::default();
        self.rack(cx, &mut outcome);
        if outcome.lost_segs > 0 {
            if self.ca_state != CaState::Recovery {
                self.enter_recovery(cx);
                self.reduce_cwnd(cx, 1, false);
            }
            self.report_lost(cx);
        }
        outcome.lost_segs > 0
    }

    /// Records reordering where a segment arrived late that was sent only once.
    pub(super) fn check_reordering(&mut self, cx: &mut RecoveryCx<'_>, summary: &AckSummary<'_>) {
        let armed = self.cold().is_some_and(|p| p.undo.is_armed());
        let by_sack = summary.sack.reordering_segs;
        let by_sack = if self.ca_state != CaState::Loss || armed {
            by_sack
        } else {
            0
        };
        let late = by_sack.max(summary.ack.reordering_segs);
        if late > 0 {
            cx.mib.sack_reorder += 1;
            self.update_reordering(cx, late);
        }
    }

    /// Raises the reordering degree to `late_segs` segments.
    pub(super) fn update_reordering(&mut self, cx: &RecoveryCx<'_>, late_segs: u32) {
        let most = cx.sysctl.tcp_max_reordering;
        self.set_reordering_segs(self.reordering_segs().max(late_segs.min(most)));
        let seen = &mut self.cold_or_default().reordering.reord_seen;
        *seen = seen.saturating_add(1);
    }

    /// Counts a duplicate ACK on a connection without SACK.
    pub(super) fn count_dupack(&mut self, cx: &mut RecoveryCx<'_>) {
        if !self.rtx.on_dupack() {
            // There are more than segments above the hole: packets were duplicated or reordered.
            cx.mib.reno_reorder += 1;
            let packets_out = self.rtx.packets_out();
            self.update_reordering(cx, packets_out);
        }
    }

    /// Returns how often reordering was seen, and the segments that DSACKs reported (`tcp_info`).
    pub(crate) fn reordering_stats(&self) -> (u32, u32) {
        let reordering = self.cold().map(|p| p.reordering);
        reordering.map_or((0, 0), |a| (a.reord_seen, a.dsack_dups))
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::SeqNum;

    use super::ReorderingState;

    /// RFC 8985 6.2 step 4: the window stays wider for 16 recoveries. One that was undone adds one.
    #[test]
    fn a_wider_window_lasts_for_sixteen_recoveries() {
        let wide_after = |undone: &[bool]| {
            let mut reordering = ReorderingState::default();
            reordering.widen_reo_wnd(SeqNum::new(1));
            for undone in undone {
                reordering.on_recovered(*undone);
            }
            reordering.extra_steps == 1
        };
        assert!(wide_after(&[false; 15]));
        assert!(!wide_after(&[false; 16]));
        let mut undone_second = [false; 17];
        undone_second[1] = true;
        assert!(wide_after(&undone_second));
        // The number never exceeds 16.
        let mut undone_first = [false; 17];
        undone_first[0] = true;
        assert!(!wide_after(&undone_first));
    }
}
