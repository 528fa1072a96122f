//! The state machine of recovery: when its phases begin and end, and cwnd meanwhile (RFC 6675, RFC 6582
//! without SACK, RFC 9937).

use alloc::boxed::Box;

use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::{Mss, SeqNum};

use super::{
    AckOutcome, Frto, Prr, ReorderingState, RetransTsval, RtxQueue, SackOutcome, TailProbe, Undo,
};
use crate::congestion::{Congestion, CongestionEvent};
use crate::{Connection, Cx};

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
    pub(super) reordering_segs: u32,
    /// Boxed, since most connections never lose data.
    cold: Option<Box<ColdState>>,
    /// cwnd limited sending in the present round.
    cwnd_limited: bool,
    /// `snd_nxt` at which the present round ends.
    round_end: SeqNum,
}

impl Recovery {
    pub(crate) fn new(mss: Mss, dupthresh: u32) -> Self {
        Self {
            rtx: RtxQueue::new(mss),
            ca_state: CaState::Open,
            high_seq: SeqNum::new(0),
            reordering_segs: dupthresh,
            cold: None,
            cwnd_limited: false,
            round_end: SeqNum::new(0),
        }
    }

    #[inline]
    pub(crate) fn ca_state(&self) -> CaState {
        self.ca_state
    }

    pub(crate) fn reordering_segs(&self) -> u32 {
        self.reordering_segs
    }

    /// Returns whether the phase is Open and no tail loss probe is in flight.
    #[inline]
    pub(crate) fn allows_fast_path(&self) -> bool {
        self.ca_state == CaState::Open && self.cold().is_none_or(|cold| cold.probe.is_none())
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

    /// Records a send, and whether cwnd limits sending.
    #[inline]
    pub(crate) fn on_sent(
        &mut self,
        congestion: &mut Congestion,
        una: SeqNum,
        nxt: SeqNum,
        packets_out: u32,
        limited: bool,
    ) {
        let is_maximum = packets_out > congestion.max_packets_out();
        if una.after_eq(self.round_end) || limited || (!self.cwnd_limited && is_maximum) {
            self.cwnd_limited = limited;
            congestion.set_max_packets_out(packets_out);
            self.round_end = nxt;
        }
    }

    /// Records that cwnd holds unsent data back.
    #[inline]
    pub(crate) fn on_cwnd_blocked(
        &mut self,
        congestion: &mut Congestion,
        nxt: SeqNum,
        packets_out: u32,
    ) {
        self.cwnd_limited = true;
        congestion.set_max_packets_out(packets_out);
        self.round_end = nxt;
    }

    /// Returns whether cwnd may grow because it was used (RFC 7661): all of it, in slow start half.
    #[inline]
    pub(crate) fn was_cwnd_limited(&self, congestion: &Congestion) -> bool {
        self.cwnd_limited || congestion.is_slow_start_fed()
    }

    /// Returns whether cwnd held data back in the present round.
    #[inline]
    pub(crate) fn is_cwnd_limited(&self) -> bool {
        self.cwnd_limited
    }

    /// Counts segments sent while cwnd is being reduced.
    #[inline]
    pub(crate) fn on_sent_in_recovery(&mut self, segs: u32) {
        if self.is_reducing()
            && let Some(cold) = &mut self.cold
        {
            cold.prr.on_sent(segs);
        }
    }

    /// Records that `segs` segments are sent again with the TSval `tsval`, which is `lag` ticks behind
    /// the clock. `others`: earlier retransmissions are in flight.
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
    /// It is a duplicate ACK (RFC 5681 2).
    pub(crate) duplicate: bool,
}

/// The conclusions from an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RecoveryOutcome {
    /// Segments newly reported as delivered.
    pub(crate) delivered: u32,
    /// A timer was set that the retransmission timer must not replace.
    pub(crate) timer_is_set: bool,
    /// Segments newly marked lost.
    pub(super) lost_segs: u32,
    /// Of these, retransmissions.
    pub(super) lost_retrans_segs: u32,
    /// The ACK reports congestion marks.
    echo: bool,
}

impl Connection {
    /// Processes an ACK after the scoreboard was updated: detects loss, and changes phase and cwnd.
    #[inline]
    pub(crate) fn update_recovery(
        &mut self,
        cx: &mut Cx<'_>,
        summary: &AckSummary<'_>,
    ) -> RecoveryOutcome {
        let echo = self.ecn.is_some() && self.on_ecn_feedback(cx, summary);
        let fast_path = self.recovery.allows_fast_path()
            && !self.recovery.rtx.has_scoreboard()
            && summary.advanced
            && !summary.ack.retransmitted
            && !echo
            && summary.repr.options.sack.as_slice().is_empty();
        if fast_path {
            let delivered = summary.ack.delivered_segs;
            if let Some(delivery) = self.recovery.rtx.delivery_mut() {
                delivery.on_delivered(cx.now, delivered);
            }
            return RecoveryOutcome {
                delivered,
                ..RecoveryOutcome::default()
            };
        }
        self.update_recovery_slow(cx, summary, echo)
    }

    #[cold]
    fn update_recovery_slow(
        &mut self,
        cx: &mut Cx<'_>,
        summary: &AckSummary<'_>,
        echo: bool,
    ) -> RecoveryOutcome {
        let mut outcome = RecoveryOutcome {
            delivered: summary.ack.delivered_segs + summary.sack.delivered_segs,
            echo,
            ..RecoveryOutcome::default()
        };
        let dsack = self.process_dsack(cx, summary);
        outcome.delivered += dsack.segs;
        self.check_reordering(cx, summary);
        self.process_tail_probe_ack(cx, summary, dsack);
        if !self.negotiated.sack && summary.duplicate && !self.recovery.rtx.is_empty() {
            self.count_dupack(cx);
            outcome.delivered += 1;
        }
        if let Some(delivery) = self.recovery.rtx.delivery_mut() {
            delivery.on_delivered(cx.now, outcome.delivered);
        }
        if summary.ack.reneged && summary.advanced {
            self.suspect_reneging(cx);
            outcome.timer_is_set = true;
        } else {
            self.update_phase(cx, summary, &mut outcome);
        }
        if self.recovery.is_reducing() {
            let safe = summary.advanced && outcome.lost_segs == 0;
            self.reduce_cwnd(outcome.delivered, safe);
        }
        self.report_lost_if_sampled(cx);
        outcome
    }

    #[inline]
    pub(super) fn report_lost_if_sampled(&mut self, cx: &Cx<'_>) {
        if self.recovery.rtx.delivery().is_some() {
            self.report_lost(cx);
        }
    }

    /// Runs the state machine: ends, continues or begins a phase.
    fn update_phase(
        &mut self,
        cx: &mut Cx<'_>,
        summary: &AckSummary<'_>,
        outcome: &mut RecoveryOutcome,
    ) {
        let una = self.snd.una();
        let (ca_state, high_seq) = (self.recovery.ca_state, self.recovery.high_seq);
        // CWR ends once data sent after the reduction, with the CWR flag, is acknowledged.
        if ca_state == CaState::Cwr && una.after(high_seq) {
            self.end_reduction();
            self.recovery.ca_state = CaState::Open;
        }
        if ca_state == CaState::Recovery && una.after_eq(high_seq) && self.end_recovery(cx, summary)
        {
            return;
        }
        let ca_state = self.recovery.ca_state;
        match ca_state {
            CaState::Recovery => {
                if summary.advanced && self.try_undo_partial(cx, summary) {
                    return;
                }
                if self.try_undo_dsack(cx) {
                    self.try_to_open();
                }
                self.identify_loss(cx, summary, outcome);
                if self.recovery.ca_state == CaState::Recovery || self.recovery.rtx.lost_out() == 0
                {
                    return;
                }
            }
            CaState::Loss => {
                self.process_loss(cx, summary);
                self.identify_loss(cx, summary, outcome);
                if self.recovery.ca_state == CaState::Loss && outcome.lost_retrans_segs == 0 {
                    return;
                }
            }
            CaState::Open | CaState::Disorder | CaState::Cwr => {
                if !self.negotiated.sack && summary.advanced {
                    self.recovery.rtx.forget_dupacks();
                }
                if self.recovery.ca_state <= CaState::Disorder {
                    self.try_undo_dsack(cx);
                }
                self.identify_loss(cx, summary, outcome);
            }
        }
        // cwnd was already reduced for what the host itself dropped.
        let already_reduced = ca_state <= CaState::Cwr && outcome.lost_segs == 0;
        if self.recovery.rtx.lost_out() == 0 || already_reduced {
            if outcome.echo {
                self.enter_cwr(cx, CongestionEvent::Ecn);
            }
            self.try_to_open();
        } else if self.uncommon.is_some() && self.on_mtu_probe_lost(cx) {
            self.retransmit_mtu_probe();
        } else {
            self.enter_recovery(cx);
        }
    }

    /// Ends recovery after all data in flight at its begin is acknowledged. Returns whether it does not
    /// end yet.
    pub(super) fn end_recovery(&mut self, cx: &mut Cx<'_>, summary: &AckSummary<'_>) -> bool {
        let was_loss = self.recovery.ca_state == CaState::Loss;
        if !self.negotiated.sack {
            self.recovery.rtx.forget_dupacks();
        }
        self.try_undo_recovery(cx, summary);
        // RFC 6582 3.2: duplicate ACKs of data that was sent twice must not begin another recovery.
        if !self.negotiated.sack && self.snd.una() == self.recovery.high_seq {
            return true;
        }
        if !was_loss {
            self.end_reduction();
        }
        self.recovery.ca_state = CaState::Open;
        self.congestion.on_recovered();
        false
    }

    /// Ends a reduction with cwnd at ssthresh (RFC 9937), unless it was undone.
    fn end_reduction(&mut self) {
        let undone = self.recovery.cold().is_none_or(|p| !p.undo.is_armed());
        let keeps_reduction = self.recovery.ca_state == CaState::Cwr || !undone;
        if keeps_reduction {
            self.congestion.set_cwnd_to_ssthresh();
        }
    }

    /// Enters Open, or Disorder while data is SACKed, lost or retransmitted.
    pub(super) fn try_to_open(&mut self) {
        if self.recovery.ca_state == CaState::Cwr {
            return;
        }
        let rtx = &self.recovery.rtx;
        let has_marks = rtx.sacked_out() > 0 || rtx.lost_out() > 0 || rtx.head_was_retransmitted();
        let ca_state = if has_marks || rtx.retrans_out() > 0 {
            CaState::Disorder
        } else {
            CaState::Open
        };
        if self.recovery.ca_state != ca_state {
            self.recovery.ca_state = ca_state;
            self.recovery.high_seq = self.snd.nxt();
        }
    }

    /// Reduces cwnd to ssthresh over a round trip after congestion without loss (RFC 3168 6.1.2: an
    /// echoed mark). Does nothing during a reduction.
    #[cold]
    pub(crate) fn enter_cwr(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        if self.recovery.ca_state >= CaState::Cwr {
            return;
        }
        self.begin_reduction(cx, event);
        self.recovery.cold_or_default().undo.disarm();
        self.recovery.ca_state = CaState::Cwr;
    }

    /// Begins a reduction of cwnd, by proportional rate reduction or at once.
    fn begin_reduction(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        self.lower_ssthresh(cx, event);
        self.recovery.high_seq = self.snd.nxt();
        let (una, rtx) = (self.snd.una(), &self.recovery.rtx);
        let (packets_out, retrans_out) = (rtx.packets_out(), rtx.retrans_out());
        let cold = self.recovery.cold_or_default();
        cold.prr = Prr::begin(packets_out);
        let probed = cold.probe.take().is_some_and(|probe| probe.is_retransmit);
        cold.undo = cold.undo.begin(una, retrans_out + u32::from(probed));
    }

    pub(super) fn enter_recovery(&mut self, cx: &mut Cx<'_>) {
        if self.negotiated.sack {
            cx.mib.sack_recovery += 1;
        } else {
            cx.mib.reno_recovery += 1;
        }
        if self.recovery.ca_state == CaState::Cwr {
            // The reduction after a mark goes on, and cannot be undone.
            self.recovery.cold_or_default().undo.disarm();
            self.congestion.reduce_for_loss_after_mark();
        } else {
            self.begin_reduction(cx, CongestionEvent::Loss);
        }
        self.recovery.ca_state = CaState::Recovery;
    }

    /// Lowers ssthresh. The peer gets CWR, whatever the reason (RFC 3168 6.1.2).
    fn lower_ssthresh(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        self.congestion.reduce(event, cx.now);
        if let Some(ecn) = &mut self.ecn {
            ecn.queue_cwr();
        }
    }

    /// Reports each loss to a congestion control that models the path.
    pub(super) fn report_lost(&mut self, cx: &Cx<'_>) {
        let lost = self.recovery.rtx.take_lost();
        self.congestion.on_lost(&lost, cx.now);
        self.recovery.rtx.recycle_lost(lost);
    }

    pub(super) fn reduce_cwnd(&mut self, delivered: u32, safe: bool) {
        if self.congestion.algorithm().owns_cwnd() || delivered == 0 {
            return;
        }
        let in_flight = self.recovery.rtx.in_flight();
        let ssthresh = self.congestion.ssthresh();
        if self.recovery.ca_state == CaState::Cwr && self.congestion.algorithm().reduces_at_once() {
            self.congestion
                .set_cwnd(self.congestion.cwnd().min(ssthresh));
            return;
        }
        if let Some(cold) = self.recovery.cold_mut() {
            let cwnd = cold.prr.on_ack(delivered, in_flight, ssthresh, safe);
            self.congestion.set_cwnd(cwnd);
        }
    }

    /// Processes a retransmission timeout (RFC 5681 3.1, RFC 6298 5.4): data in flight is lost, and
    /// cwnd is one segment.
    pub(crate) fn enter_loss(&mut self, cx: &mut Cx<'_>) {
        let before = self.recovery.ca_state;
        // RFC 8985 6.3: data sent less than a round trip ago may still arrive.
        let cutoff = cx.now - self.rtt.srtt().unwrap_or_default();
        let sacked_before = self.recovery.rtx.sacked_out();
        cx.mib.sack_reneging += u64::from(self.recovery.rtx.mark_timed_out(cutoff));
        // One reduction for each window of data.
        let again = before >= CaState::Cwr
            && self.snd.una().before(self.recovery.high_seq)
            && (before != CaState::Loss || self.timers.retransmits > 0);
        if !again {
            self.begin_reduction(cx, CongestionEvent::Rto);
        } else if before == CaState::Cwr {
            self.congestion.reduce_for_loss_after_mark();
        }
        self.congestion.set_cwnd(self.recovery.rtx.in_flight() + 1);
        // The timeout shows loss after many SACKs, so the reordering degree was overestimated.
        if before <= CaState::Disorder && sacked_before >= cx.sysctl.tcp_reordering {
            let reordering = &mut self.recovery.reordering_segs;
            *reordering = (*reordering).min(cx.sysctl.tcp_reordering);
        }
        self.recovery.ca_state = CaState::Loss;
        self.recovery.high_seq = self.snd.nxt();
        let recurring = before < CaState::Recovery || self.timers.retransmits > 0;
        let cold = self.recovery.cold_or_default();
        cold.probe = None;
        cold.frto = Frto::begin(cx.sysctl.tcp_frto > 0 && recurring);
        self.report_lost(cx);
    }

    /// Retransmits a lost MTU probe, which does not indicate congestion.
    #[cold]
    fn retransmit_mtu_probe(&mut self) {
        self.enter_loss_for_mtu();
        let not_congestion = self.recovery.rtx.take_lost();
        self.recovery.rtx.recycle_lost(not_congestion);
        self.snd.pending_mut().retry();
    }

    /// Begins the Loss phase without a reduction of cwnd, for data that was too large for the path.
    fn enter_loss_for_mtu(&mut self) {
        self.recovery.ca_state = CaState::Loss;
        self.recovery.high_seq = self.snd.nxt();
        let cold = self.recovery.cold_or_default();
        cold.undo.disarm();
        cold.frto = Frto::default();
    }

    /// Retransmits all data in flight in smaller segments, since it was too large for the path, without
    /// a reduction of cwnd.
    pub(crate) fn retransmit_too_big(&mut self) {
        if self.recovery.ca_state < CaState::Recovery {
            self.enter_loss_for_mtu();
        }
        self.recovery.rtx.mark_all_lost();
        let not_congestion = self.recovery.rtx.take_lost();
        self.recovery.rtx.recycle_lost(not_congestion);
        self.snd.pending_mut().retry();
    }
}

#[cfg(test)]
mod tests;
