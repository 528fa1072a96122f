//! The state machine of recovery: when its phases begin and end, and cwnd meanwhile (RFC 6675, RFC
//! 6582 without SACK, RFC 9937).

use alloc::boxed::Box;

use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::{Instant, Mss, Nanos, SeqNum, cold_path};

use super::{
    AckOutcome, CwrAction, Frto, Prr, RecoveryCx, RecoveryTimer, ReorderingState, RetransTsval,
    RtxQueue, SackOutcome, TailProbe, Undo,
};
use crate::congestion::CongestionEvent;

/// The phase of recovery (Linux's `tcp_ca_state`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CaState {
    /// No sign of loss or reordering.
    Open,
    /// Data arrived out of order or was retransmitted: loss or reordering, undecided.
    Disorder,
    /// cwnd is being reduced after a congestion signal without loss.
    Cwr,
    /// Fast recovery: cwnd is being reduced while losses are retransmitted.
    Recovery,
    /// After a timeout: slow start from one segment.
    Loss,
}

/// The state of connections that have seen loss, reordering or marks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColdState {
    pub(super) prr: Prr,
    pub(super) undo: Undo,
    pub(super) reordering: ReorderingState,
    pub(super) probe: Option<TailProbe>,
    pub(super) frto: Frto,
    pub(super) retrans_tsval: RetransTsval,
}

/// The state of recovery.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// The data in flight.
    pub(crate) rtx: RtxQueue,
    pub(super) ca_state: CaState,
    /// `snd_nxt` as the present phase began; it ends when that is acknowledged.
    pub(super) high_seq: SeqNum,
    /// DupThresh, adapted to the reordering seen.
    reordering_segs: u16,
    /// Boxed, since most connections never lose data.
    cold: Option<Box<ColdState>>,
}

impl Recovery {
    pub(crate) fn new(mss: Mss, dupthresh: u32) -> Self {
        Self {
            rtx: RtxQueue::new(mss),
            ca_state: CaState::Open,
            high_seq: SeqNum::new(0),
            reordering_segs: dupthresh.try_into().unwrap_or(u16::MAX),
            cold: None,
        }
    }

    #[inline]
    pub(crate) fn ca_state(&self) -> CaState {
        self.ca_state
    }

    /// Returns DupThresh, adapted to the reordering seen, in segments.
    #[inline]
    pub(crate) fn reordering_segs(&self) -> u32 {
        self.reordering_segs.into()
    }

    /// Sets the adapted DupThresh in segments.
    pub(super) fn set_reordering_segs(&mut self, segs: u32) {
        self.reordering_segs = segs.try_into().unwrap_or(u16::MAX);
    }

    /// Returns whether the phase is Open and no tail loss probe is in flight.
    #[inline]
    pub(crate) fn allows_fast_path(&self) -> bool {
        let is_probing = match self.cold() {
            None => false,
            Some(cold) => {
                cold_path();
                cold.probe.is_some()
            }
        };
        self.ca_state == CaState::Open && !is_probing
    }

    /// Returns whether cwnd may grow (RFC 5681): not while it is being reduced.
    #[inline]
    pub(crate) fn may_grow(&self) -> bool {
        !self.is_reducing()
    }

    /// Returns whether proportional rate reduction controls cwnd.
    #[inline]
    pub(crate) fn is_reducing(&self) -> bool {
        matches!(self.ca_state, CaState::Cwr | CaState::Recovery)
    }

    /// Counts segments sent while cwnd is being reduced.
    #[inline]
    pub(crate) fn on_sent_in_recovery(&mut self, segs: u32) {
        if self.is_reducing()
            && let Some(cold) = &mut self.cold
        {
            cold_path();
            cold.prr.on_sent(segs);
        }
    }

    /// Records that `segs` segments are sent again with the TSval `tsval`, which is `lag` ticks
    /// behind the clock. `others`: earlier retransmissions are in flight.
    pub(crate) fn on_retransmit(&mut self, tsval: u32, lag: u32, segs: u32, others: bool) {
        self.on_sent_in_recovery(segs);
        if let Some(cold) = &mut self.cold {
            cold.retrans_tsval.on_retransmit(tsval, lag, others);
            cold.undo.on_retransmit(tsval, segs);
        }
    }

    /// Returns the state that exists after the first loss, reordering or mark.
    #[inline]
    pub(super) fn cold(&self) -> Option<&ColdState> {
        self.cold.as_deref()
    }

    /// Returns the state of [`cold`](Self::cold), mutable.
    #[inline]
    pub(super) fn cold_mut(&mut self) -> Option<&mut ColdState> {
        self.cold.as_deref_mut()
    }

    /// Gives up the undo of the present reduction.
    pub(crate) fn disarm_undo(&mut self) {
        if let Some(cold) = self.cold_mut() {
            cold.undo.disarm();
        }
    }

    /// Returns the state of [`cold`](Self::cold), and creates it if need be.
    #[cold]
    pub(super) fn cold_or_default(&mut self) -> &mut ColdState {
        self.cold.get_or_insert_default()
    }
}

/// An ACK, and its effects on the scoreboard.
pub(crate) struct AckSummary<'a> {
    pub(crate) repr: &'a TcpRepr,
    pub(crate) ack: &'a AckOutcome,
    pub(crate) sack: &'a SackOutcome,
    /// Retransmitted segments, in flight until this ACK, that its DSACK reports.
    pub(crate) dsacked_retrans_segs: u32,
    /// `snd_una` before the ACK.
    pub(crate) prior_una: SeqNum,
    /// The ACK moved `snd_una`.
    pub(crate) advanced: bool,
    /// The ACK is a duplicate ACK (RFC 5681 2).
    pub(crate) duplicate: bool,
}

impl AckSummary<'_> {
    /// Returns the number of segments that the ACK newly reports as delivered.
    #[inline]
    pub(crate) fn delivered_segs(&self) -> u32 {
        self.ack.delivered_segs + self.sack.delivered_segs
    }

    /// Returns the bytes that the ACK newly reports as delivered.
    pub(crate) fn delivered_bytes(&self, mss: Mss) -> u32 {
        let bytes_of = |segs: u32| segs.saturating_mul(mss.bytes());
        // Of data SACKed earlier only the number of segments is known.
        let acked = if self.ack.acked_segs == self.ack.delivered_segs {
            self.ack.acked_bytes
        } else {
            self.ack.acked_bytes.min(bytes_of(self.ack.delivered_segs))
        };
        acked.saturating_add(bytes_of(self.sack.delivered_segs))
    }
}

/// The conclusions from an ACK or a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RecoveryOutcome {
    /// Segments newly reported as delivered.
    delivered: u32,
    /// Segments newly marked lost.
    pub(super) lost_segs: u32,
    /// Retransmissions in `lost_segs`.
    pub(super) lost_retrans_segs: u32,
    /// The ACK reports congestion marks.
    echo: bool,
}

impl Recovery {
    /// Returns whether an ACK only advances `snd_una`, while nothing is lost, SACKed or probed for.
    #[inline]
    pub(crate) fn is_plain_ack(&self, summary: &AckSummary<'_>) -> bool {
        self.allows_fast_path()
            && !self.rtx.has_scoreboard()
            && summary.advanced
            && !summary.ack.retransmitted
            && summary.repr.options.sack.as_slice().is_empty()
    }

    /// Counts `segs` segments as delivered in the delivery-rate sample.
    #[inline]
    pub(crate) fn on_delivered(&mut self, now: Instant, segs: u32) {
        if let Some(delivery) = self.rtx.delivery_mut() {
            delivery.on_delivered(now, segs);
        }
    }

    /// Processes an ACK after the scoreboard was updated: detects loss, and changes phase and cwnd.
    /// `echo`: it reports congestion marks. Returns the number of segments newly reported as
    /// delivered.
    #[cold]
    pub(crate) fn on_ack(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
        echo: bool,
    ) -> u32 {
        let mut outcome = RecoveryOutcome {
            delivered: summary.delivered_segs(),
            echo,
            ..RecoveryOutcome::default()
        };
        let dsack = self.process_dsack(cx, summary);
        outcome.delivered += dsack.segs;
        self.check_reordering(cx, summary);
        self.process_tail_probe_ack(cx, summary, dsack);
        if !cx.sack && summary.duplicate && !self.rtx.is_empty() {
            self.count_dupack(cx);
            outcome.delivered += 1;
        }
        self.on_delivered(cx.now, outcome.delivered);
        if summary.ack.reneged && summary.advanced {
            // RFC 2018 8: the receiver SACKed the head without acknowledging it. If that persists
            // for half a round trip, it has discarded the data.
            let timeout = cx.rtt.srtt().unwrap_or_default() / 2;
            let at = cx.now + timeout.max(Nanos::from_millis(10));
            cx.actions.timer = Some(RecoveryTimer::Reneging(at));
        } else {
            self.update_phase(cx, summary, &mut outcome);
        }
        if self.is_reducing() {
            let safe = summary.advanced && outcome.lost_segs == 0;
            self.reduce_cwnd(cx, outcome.delivered, safe);
        }
        self.report_lost_if_sampled(cx);
        outcome.delivered
    }

    #[inline]
    pub(super) fn report_lost_if_sampled(&mut self, cx: &mut RecoveryCx<'_>) {
        if self.rtx.delivery().is_some() {
            self.report_lost(cx);
        }
    }

    /// Runs the state machine: ends, continues or begins a phase.
    fn update_phase(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
        outcome: &mut RecoveryOutcome,
    ) {
        let una = cx.snd.una;
        let (ca_state, high_seq) = (self.ca_state, self.high_seq);
        // CWR ends once data sent after the reduction, with the CWR flag, is acknowledged.
        if ca_state == CaState::Cwr && una.after(high_seq) {
            self.end_reduction(cx);
            self.ca_state = CaState::Open;
        }
        if ca_state == CaState::Recovery && una.after_eq(high_seq) && self.end_recovery(cx, summary)
        {
            return;
        }
        let ca_state = self.ca_state;
        match ca_state {
            CaState::Recovery => {
                if summary.advanced && self.try_undo_partial(cx, summary) {
                    return;
                }
                if self.try_undo_dsack(cx) {
                    self.try_to_open(cx);
                }
                self.identify_loss(cx, summary, outcome);
                if self.ca_state == CaState::Recovery || self.rtx.lost_out() == 0 {
                    return;
                }
            }
            CaState::Loss => {
                self.process_loss(cx, summary);
                self.identify_loss(cx, summary, outcome);
                if self.ca_state == CaState::Loss && outcome.lost_retrans_segs == 0 {
                    return;
                }
            }
            CaState::Open | CaState::Disorder | CaState::Cwr => {
                if !cx.sack && summary.advanced {
                    self.rtx.forget_dupacks();
                }
                if self.ca_state <= CaState::Disorder {
                    self.try_undo_dsack(cx);
                }
                self.identify_loss(cx, summary, outcome);
            }
        }
        // cwnd was already reduced for what the host itself dropped.
        let already_reduced = ca_state <= CaState::Cwr && outcome.lost_segs == 0;
        if self.rtx.lost_out() == 0 || already_reduced {
            if outcome.echo {
                self.enter_cwr(cx, CongestionEvent::Ecn);
            }
            self.try_to_open(cx);
        } else if cx.snd.mtu_probe == Some(cx.snd.una) {
            // RFC 4821 7.3: the loss of the probe is no sign of congestion.
            cx.actions.mtu_probe_lost = true;
            self.enter_loss_for_mtu(cx.snd.nxt);
            self.discard_loss_reports();
        } else {
            self.enter_recovery(cx);
        }
    }

    /// Ends recovery after all data in flight at its begin is acknowledged. Returns whether it does
    /// not end yet.
    pub(super) fn end_recovery(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
    ) -> bool {
        let was_loss = self.ca_state == CaState::Loss;
        if !cx.sack {
            self.rtx.forget_dupacks();
        }
        self.try_undo_recovery(cx, summary);
        // RFC 6582 3.2: duplicate ACKs of data that was sent twice must not begin another recovery.
        if !cx.sack && cx.snd.una == self.high_seq {
            return true;
        }
        if !was_loss {
            self.end_reduction(cx);
        }
        self.ca_state = CaState::Open;
        cx.congestion.on_recovered();
        false
    }

    /// Ends a reduction with cwnd at ssthresh (RFC 9937), unless it was undone.
    fn end_reduction(&self, cx: &mut RecoveryCx<'_>) {
        let undone = self.cold().is_none_or(|p| !p.undo.is_armed());
        let keeps_reduction = self.ca_state == CaState::Cwr || !undone;
        if keeps_reduction {
            cx.congestion.set_cwnd_to_ssthresh();
        }
    }

    /// Enters Open, or Disorder while data is SACKed, lost or retransmitted.
    pub(super) fn try_to_open(&mut self, cx: &RecoveryCx<'_>) {
        if self.ca_state == CaState::Cwr {
            return;
        }
        let rtx = &self.rtx;
        let has_marks = rtx.sacked_out() > 0 || rtx.lost_out() > 0 || rtx.head_was_retransmitted();
        let ca_state = if has_marks || rtx.retrans_out() > 0 {
            CaState::Disorder
        } else {
            CaState::Open
        };
        if self.ca_state != ca_state {
            self.ca_state = ca_state;
            self.high_seq = cx.snd.nxt;
        }
    }

    /// Reduces cwnd to ssthresh over a round trip after congestion without loss (RFC 3168 6.1.2: an
    /// echoed mark). Does nothing during a reduction.
    #[cold]
    pub(crate) fn enter_cwr(&mut self, cx: &mut RecoveryCx<'_>, event: CongestionEvent) {
        if self.ca_state >= CaState::Cwr {
            return;
        }
        self.begin_reduction(cx, event);
        self.cold_or_default().undo.disarm();
        self.ca_state = CaState::Cwr;
    }

    /// Begins a reduction of cwnd, by proportional rate reduction or at once.
    fn begin_reduction(&mut self, cx: &mut RecoveryCx<'_>, event: CongestionEvent) {
        cx.congestion.reduce(event, cx.now);
        // The peer gets CWR, whatever the reason (RFC 3168 6.1.2).
        cx.actions.cwr = Some(CwrAction::Queue);
        self.high_seq = cx.snd.nxt;
        let (una, rtx) = (cx.snd.una, &self.rtx);
        let (packets_out, retrans_out) = (rtx.packets_out(), rtx.retrans_out());
        let cold = self.cold_or_default();
        cold.prr = Prr::begin(packets_out);
        let probed = cold.probe.take().is_some_and(|probe| probe.is_retransmit);
        cold.undo = cold.undo.begin(una, retrans_out + u32::from(probed));
    }

    pub(super) fn enter_recovery(&mut self, cx: &mut RecoveryCx<'_>) {
        if cx.sack {
            cx.mib.sack_recovery += 1;
        } else {
            cx.mib.reno_recovery += 1;
        }
        if self.ca_state == CaState::Cwr {
            // The reduction after a mark goes on, and cannot be undone.
            self.cold_or_default().undo.disarm();
            cx.congestion.reduce_for_loss_after_mark();
        } else {
            self.begin_reduction(cx, CongestionEvent::Loss);
        }
        self.ca_state = CaState::Recovery;
    }

    /// Reports each loss to a congestion control that models the path.
    pub(super) fn report_lost(&mut self, cx: &mut RecoveryCx<'_>) {
        let lost = self.rtx.take_lost();
        cx.congestion.on_lost(&lost, cx.now);
        self.rtx.recycle_lost(lost);
    }

    pub(super) fn reduce_cwnd(&mut self, cx: &mut RecoveryCx<'_>, delivered: u32, safe: bool) {
        if cx.congestion.algorithm().owns_cwnd() || delivered == 0 {
            return;
        }
        let in_flight = self.rtx.in_flight();
        let ssthresh = cx.congestion.ssthresh();
        if self.ca_state == CaState::Cwr && cx.congestion.algorithm().reduces_at_once() {
            cx.congestion.set_cwnd(cx.congestion.cwnd().min(ssthresh));
            return;
        }
        if let Some(cold) = self.cold_mut() {
            let cwnd = cold.prr.on_ack(delivered, in_flight, ssthresh, safe);
            cx.congestion.set_cwnd(cwnd);
        }
    }

    /// Processes a retransmission timeout (RFC 5681 3.1, RFC 6298 5.4): data in flight is lost, and
    /// cwnd is one segment.
    pub(crate) fn on_timeout(&mut self, cx: &mut RecoveryCx<'_>) {
        let before = self.ca_state;
        // RFC 8985 6.3: data sent less than a round trip ago may still arrive.
        let cutoff = cx.now - cx.rtt.srtt().unwrap_or_default();
        let sacked_before = self.rtx.sacked_out();
        cx.mib.sack_reneging += u64::from(self.rtx.mark_timed_out(cutoff));
        // One reduction for each window of data.
        let again = before >= CaState::Cwr
            && cx.snd.una.before(self.high_seq)
            && (before != CaState::Loss || cx.snd.timed_out);
        if !again {
            self.begin_reduction(cx, CongestionEvent::Rto);
        } else if before == CaState::Cwr {
            cx.congestion.reduce_for_loss_after_mark();
        }
        // Before cwnd is set: the report may change it.
        self.report_lost(cx);
        cx.congestion.set_cwnd(self.rtx.in_flight() + 1);
        // The timeout shows loss after many SACKs, so the reordering degree was overestimated.
        if before <= CaState::Disorder && sacked_before >= cx.sysctl.tcp_reordering {
            self.set_reordering_segs(self.reordering_segs().min(cx.sysctl.tcp_reordering));
        }
        self.ca_state = CaState::Loss;
        self.high_seq = cx.snd.nxt;
        let recurring = before < CaState::Recovery || cx.snd.timed_out;
        let cold = self.cold_or_default();
        cold.probe = None;
        cold.frto = Frto::begin(cx.sysctl.tcp_frto > 0 && recurring);
    }

    /// Begins the Loss phase without a reduction of cwnd, for data that was too large for the path.
    fn enter_loss_for_mtu(&mut self, nxt: SeqNum) {
        self.ca_state = CaState::Loss;
        self.high_seq = nxt;
        let cold = self.cold_or_default();
        cold.undo.disarm();
        cold.frto = Frto::default();
    }

    /// Retransmits all data in flight in smaller segments, since it was too large for the path,
    /// without a reduction of cwnd.
    pub(crate) fn retransmit_too_big(&mut self, nxt: SeqNum) {
        if self.ca_state < CaState::Recovery {
            self.enter_loss_for_mtu(nxt);
        }
        self.rtx.mark_all_lost();
        self.discard_loss_reports();
    }

    /// Withholds losses that are no sign of congestion from the congestion control.
    fn discard_loss_reports(&mut self) {
        let lost = self.rtx.take_lost();
        self.rtx.recycle_lost(lost);
    }
}

#[cfg(test)]
mod tests;
