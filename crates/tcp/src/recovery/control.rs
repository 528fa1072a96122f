//! The state machine of recovery: when its phases begin and end, and cwnd meanwhile (RFC 6675, RFC 6582
//! without SACK, RFC 9937).

use alloc::boxed::Box;

use fullsend_units::SeqNum;
use fullsend_wire::tcp::TcpRepr;

use super::{AckOutcome, Adaptation, CopyStamp, Frto, Prr, SackOutcome, TailProbe, Undo};
use crate::congestion::{CongestionEvent, Cwnd};
use crate::{Connection, Cx};

/// The phase of recovery (Linux's `tcp_ca_state`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
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
pub(super) struct Past {
    pub(super) prr: Prr,
    pub(super) undo: Undo,
    pub(super) adaptation: Adaptation,
    pub(super) probe: Option<TailProbe>,
    pub(super) frto: Frto,
    pub(super) stamp: CopyStamp,
}

/// The state of recovery.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(super) phase: Phase,
    /// `snd_nxt` as the present phase began; it ends when that is acknowledged.
    pub(super) high_seq: SeqNum,
    /// DupThresh, adapted to the reordering seen.
    pub(super) reordering_segs: u32,
    /// Boxed, since most connections never lose data.
    past: Option<Box<Past>>,
    /// cwnd limited sending in the present round.
    cwnd_limited: bool,
    /// `snd_nxt` at which the present round ends.
    round_end: SeqNum,
    max_packets_out: u32,
}

impl Recovery {
    pub(crate) fn new(dupthresh: u32) -> Self {
        Self {
            phase: Phase::Open,
            high_seq: SeqNum::new(0),
            reordering_segs: dupthresh,
            past: None,
            cwnd_limited: false,
            round_end: SeqNum::new(0),
            max_packets_out: 0,
        }
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn reordering_segs(&self) -> u32 {
        self.reordering_segs
    }

    /// Returns whether the phase is Open and no tail loss probe is in flight.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.phase == Phase::Open && self.past().is_none_or(|past| past.probe.is_none())
    }

    /// Returns whether cwnd may grow (RFC 5681): not while it is being reduced.
    #[inline]
    pub(crate) fn may_grow(&self) -> bool {
        !self.is_reducing()
    }

    /// Returns whether proportional rate reduction controls cwnd.
    #[inline]
    pub(crate) fn is_reducing(&self) -> bool {
        matches!(self.phase, Phase::Cwr | Phase::Recovery)
    }

    /// Records a send, and whether cwnd limits sending.
    #[inline]
    pub(crate) fn on_sent(&mut self, una: SeqNum, nxt: SeqNum, packets_out: u32, limited: bool) {
        let new_round = una.after_eq(self.round_end);
        if new_round || limited || (!self.cwnd_limited && packets_out > self.max_packets_out) {
            self.cwnd_limited = limited;
            self.max_packets_out = packets_out;
            self.round_end = nxt;
        }
    }

    /// Records that cwnd holds unsent data back.
    #[inline]
    pub(crate) fn on_cwnd_blocked(&mut self, nxt: SeqNum, packets_out: u32) {
        self.cwnd_limited = true;
        self.max_packets_out = packets_out;
        self.round_end = nxt;
    }

    /// Returns whether cwnd may grow because it was used (RFC 7661): all of it, in slow start half.
    #[inline]
    pub(crate) fn was_cwnd_limited(&self, cwnd: &Cwnd) -> bool {
        self.cwnd_limited
            || (cwnd.in_slow_start() && cwnd.cwnd < self.max_packets_out.saturating_mul(2))
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
            && let Some(past) = &mut self.past
        {
            past.prr.on_sent(segs);
        }
    }

    /// Records that `segs` segments are sent again with the TSval `stamp`, which is `lag` ticks behind
    /// the clock. `others`: earlier retransmissions are in flight.
    pub(crate) fn on_retransmit(&mut self, stamp: u32, lag: u32, segs: u32, others: bool) {
        self.on_sent_in_recovery(segs);
        if let Some(past) = &mut self.past {
            past.stamp.on_retransmit(stamp, lag, others);
            past.undo.on_retransmit(stamp, segs);
        }
    }

    /// Returns the state that exists after the first loss, reordering or mark.
    #[inline]
    pub(super) fn past(&self) -> Option<&Past> {
        self.past.as_deref()
    }

    /// Returns the state of [`past`](Self::past), mutable.
    #[inline]
    pub(super) fn past_mut(&mut self) -> Option<&mut Past> {
        self.past.as_deref_mut()
    }

    /// Gives up the undo of the present reduction.
    pub(crate) fn forget_undo(&mut self) {
        if let Some(past) = self.past_mut() {
            past.undo.disarm();
        }
    }

    /// Returns the state of [`past`](Self::past), and creates it if need be.
    #[cold]
    pub(super) fn remember(&mut self) -> &mut Past {
        self.past.get_or_insert_default()
    }
}

/// An ACK, and its effects on the scoreboard.
pub(crate) struct AckNews<'a> {
    pub(crate) repr: &'a TcpRepr,
    pub(crate) ack: &'a AckOutcome,
    pub(crate) sack: &'a SackOutcome,
    /// `snd_una` before the ACK.
    pub(crate) prior_una: SeqNum,
    /// The ACK moved `snd_una`.
    pub(crate) advanced: bool,
    /// It is a duplicate ACK (RFC 5681 2).
    pub(crate) duplicate: bool,
}

/// The conclusions from an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Verdict {
    /// Segments newly reported as delivered.
    pub(crate) delivered: u32,
    /// A timer was set that the retransmission timer must not replace.
    pub(crate) timer_is_set: bool,
    /// Segments newly marked lost.
    pub(super) lost_segs: u32,
    /// Of these, retransmissions.
    pub(super) resent_segs: u32,
    /// The ACK reports congestion marks.
    echo: bool,
}

impl Connection {
    /// Processes an ACK after the scoreboard was updated: detects loss, and changes phase and cwnd.
    #[inline]
    pub(crate) fn recover(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>) -> Verdict {
        let echo = self.ecn.is_some() && self.take_feedback(cx, news);
        let quiet = self.recovery.is_quiet()
            && !self.snd.rtx.is_marked()
            && news.advanced
            && !news.ack.retransmitted
            && !echo
            && news.repr.options.sack.as_slice().is_empty();
        if quiet {
            let delivered = news.ack.delivered_segs;
            if let Some(delivery) = self.snd.rtx.delivery_mut() {
                delivery.on_delivered(cx.now, delivered);
            }
            return Verdict {
                delivered,
                ..Verdict::default()
            };
        }
        self.recover_from_trouble(cx, news, echo)
    }

    #[cold]
    fn recover_from_trouble(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>, echo: bool) -> Verdict {
        let mut verdict = Verdict {
            delivered: news.ack.delivered_segs + news.sack.delivered_segs,
            echo,
            ..Verdict::default()
        };
        let dsack = self.hear_dsack(cx, news);
        verdict.delivered += dsack.segs;
        self.note_reordering_of(cx, news);
        self.hear_of_probe(cx, news, dsack);
        if !self.agreed.sack && news.duplicate && !self.snd.rtx.is_empty() {
            self.count_dupack(cx);
            verdict.delivered += 1;
        }
        if let Some(delivery) = self.snd.rtx.delivery_mut() {
            delivery.on_delivered(cx.now, verdict.delivered);
        }
        if news.ack.reneged && news.advanced {
            self.suspect_reneging(cx);
            verdict.timer_is_set = true;
        } else {
            self.conclude(cx, news, &mut verdict);
        }
        if self.recovery.is_reducing() {
            let safe = news.advanced && verdict.lost_segs == 0;
            self.reduce_cwnd(verdict.delivered, safe);
        }
        self.tell_lost_if_sampled(cx);
        verdict
    }

    #[inline]
    pub(super) fn tell_lost_if_sampled(&mut self, cx: &Cx<'_>) {
        if self.snd.rtx.delivery().is_some() {
            self.tell_lost(cx);
        }
    }

    /// Runs the state machine: ends, continues or begins a phase.
    fn conclude(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>, verdict: &mut Verdict) {
        let una = self.snd.una;
        let (phase, high_seq) = (self.recovery.phase, self.recovery.high_seq);
        // CWR ends once data sent after the reduction, with the CWR flag, is acknowledged.
        if phase == Phase::Cwr && una.after(high_seq) {
            self.end_reduction();
            self.recovery.phase = Phase::Open;
        }
        if phase == Phase::Recovery && una.after_eq(high_seq) && self.leave_repaired(cx, news) {
            return;
        }
        let phase = self.recovery.phase;
        match phase {
            Phase::Recovery => {
                if news.advanced && self.try_undo_partial(cx, news) {
                    return;
                }
                if self.try_undo_dsack(cx) {
                    self.try_to_open();
                }
                self.identify_loss(cx, news, verdict);
                if self.recovery.phase == Phase::Recovery || self.snd.rtx.lost_out() == 0 {
                    return;
                }
            }
            Phase::Loss => {
                self.process_loss(cx, news);
                self.identify_loss(cx, news, verdict);
                if self.recovery.phase == Phase::Loss && verdict.resent_segs == 0 {
                    return;
                }
            }
            Phase::Open | Phase::Disorder | Phase::Cwr => {
                if !self.agreed.sack && news.advanced {
                    self.snd.rtx.forget_dupacks();
                }
                if self.recovery.phase <= Phase::Disorder {
                    self.try_undo_dsack(cx);
                }
                self.identify_loss(cx, news, verdict);
            }
        }
        // cwnd was already reduced for what the host itself dropped.
        let paid = phase <= Phase::Cwr && verdict.lost_segs == 0;
        if self.snd.rtx.lost_out() == 0 || paid {
            if verdict.echo {
                self.enter_cwr(cx, CongestionEvent::Ecn);
            }
            self.try_to_open();
        } else if self.extras.is_some() && self.mtu_probe_lost(cx) {
            self.resend_probe();
        } else {
            self.enter_recovery(cx);
        }
    }

    /// Ends recovery after all data in flight at its begin is acknowledged. Returns whether it does not
    /// end yet.
    pub(super) fn leave_repaired(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>) -> bool {
        let was_loss = self.recovery.phase == Phase::Loss;
        if !self.agreed.sack {
            self.snd.rtx.forget_dupacks();
        }
        self.try_undo_repaired(cx, news);
        // RFC 6582 3.2: duplicate ACKs of data that was sent twice must not begin another recovery.
        if !self.agreed.sack && self.snd.una == self.recovery.high_seq {
            return true;
        }
        if !was_loss {
            self.end_reduction();
        }
        self.recovery.phase = Phase::Open;
        self.cc.on_repaired(&mut self.cwnd);
        false
    }

    /// Ends a reduction with cwnd at ssthresh (RFC 9937), unless it was undone.
    fn end_reduction(&mut self) {
        let undone = self.recovery.past().is_none_or(|p| !p.undo.is_armed());
        let stands = self.recovery.phase == Phase::Cwr || !undone;
        if stands && !self.cc.owns_cwnd() && self.cwnd.ssthresh != u32::MAX {
            self.cwnd.cwnd = self.cwnd.ssthresh;
        }
    }

    /// Enters Open, or Disorder while data is SACKed, lost or retransmitted.
    pub(super) fn try_to_open(&mut self) {
        if self.recovery.phase == Phase::Cwr {
            return;
        }
        let rtx = &self.snd.rtx;
        let amiss = rtx.sacked_out() > 0 || rtx.lost_out() > 0 || rtx.head_was_resent();
        let phase = if amiss || rtx.retrans_out() > 0 {
            Phase::Disorder
        } else {
            Phase::Open
        };
        if self.recovery.phase != phase {
            self.recovery.phase = phase;
            self.recovery.high_seq = self.snd.nxt;
        }
    }

    /// Reduces cwnd to ssthresh over a round trip after congestion without loss (RFC 3168 6.1.2: an
    /// echoed mark). Does nothing during a reduction.
    #[cold]
    pub(crate) fn enter_cwr(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        if self.recovery.phase >= Phase::Cwr {
            return;
        }
        self.begin_reduction(cx, event);
        self.recovery.remember().undo.disarm();
        self.recovery.phase = Phase::Cwr;
    }

    /// Begins a reduction of cwnd, by proportional rate reduction or at once.
    fn begin_reduction(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        self.lower_ssthresh(cx, event);
        self.recovery.high_seq = self.snd.nxt;
        let (una, rtx) = (self.snd.una, &self.snd.rtx);
        let (packets_out, retrans_out) = (rtx.packets_out(), rtx.retrans_out());
        let past = self.recovery.remember();
        past.prr = Prr::begin(packets_out);
        let probed = past.probe.take().is_some_and(|probe| probe.resent);
        past.undo = past.undo.begin(una, retrans_out + u32::from(probed));
    }

    pub(super) fn enter_recovery(&mut self, cx: &mut Cx<'_>) {
        if self.agreed.sack {
            cx.mib.sack_recovery += 1;
        } else {
            cx.mib.reno_recovery += 1;
        }
        if self.recovery.phase == Phase::Cwr {
            // The reduction after a mark goes on, and cannot be undone.
            self.recovery.remember().undo.disarm();
            self.cwnd.ssthresh = self.cc.ssthresh_of_loss_after_mark(&self.cwnd);
        } else {
            self.begin_reduction(cx, CongestionEvent::Loss);
        }
        self.recovery.phase = Phase::Recovery;
    }

    /// Lowers ssthresh. The peer gets CWR, whatever the reason (RFC 3168 6.1.2).
    fn lower_ssthresh(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        let ssthresh = self.cc.ssthresh(&self.cwnd, event, cx.now);
        self.cwnd.reduce(ssthresh);
        if let Some(ecn) = &mut self.ecn {
            ecn.owe_cwr();
        }
    }

    /// Reports each loss to a congestion control that models the path.
    pub(super) fn tell_lost(&mut self, cx: &Cx<'_>) {
        let lost = self.snd.rtx.take_lost();
        for unit in &lost {
            self.cc.on_lost(&self.cwnd, unit, cx.now);
        }
        self.snd.rtx.recycle_lost(lost);
    }

    pub(super) fn reduce_cwnd(&mut self, delivered: u32, safe: bool) {
        if self.cc.owns_cwnd() || delivered == 0 {
            return;
        }
        let in_flight = self.snd.rtx.in_flight();
        let ssthresh = self.cwnd.ssthresh;
        if self.recovery.phase == Phase::Cwr && self.cc.reduces_at_once() {
            self.cwnd.cwnd = self.cwnd.cwnd.min(ssthresh);
            return;
        }
        if let Some(past) = self.recovery.past_mut() {
            self.cwnd.cwnd = past.prr.on_ack(delivered, in_flight, ssthresh, safe);
        }
    }

    /// Processes a retransmission timeout (RFC 5681 3.1, RFC 6298 5.4): data in flight is lost, and
    /// cwnd is one segment.
    pub(crate) fn enter_loss(&mut self, cx: &mut Cx<'_>) {
        let before = self.recovery.phase;
        // RFC 8985 6.3: data sent less than a round trip ago may still arrive.
        let sent_by = cx.now - self.rtt.srtt().unwrap_or_default();
        let sacked_before = self.snd.rtx.sacked_out();
        cx.mib.sack_reneging += u64::from(self.snd.rtx.mark_timed_out(sent_by));
        // One reduction for each window of data.
        let again = before >= Phase::Cwr
            && self.snd.una.before(self.recovery.high_seq)
            && (before != Phase::Loss || self.timers.retransmits > 0);
        if !again {
            self.begin_reduction(cx, CongestionEvent::Rto);
        } else if before == Phase::Cwr {
            self.cwnd.ssthresh = self.cc.ssthresh_of_loss_after_mark(&self.cwnd);
        }
        self.cwnd.cwnd = self.snd.rtx.in_flight() + 1;
        // The timeout shows loss after many SACKs, so the reordering degree was overestimated.
        if before <= Phase::Disorder && sacked_before >= cx.sysctl.tcp_reordering {
            let reordering = &mut self.recovery.reordering_segs;
            *reordering = (*reordering).min(cx.sysctl.tcp_reordering);
        }
        self.recovery.phase = Phase::Loss;
        self.recovery.high_seq = self.snd.nxt;
        let recurring = before < Phase::Recovery || self.timers.retransmits > 0;
        let past = self.recovery.remember();
        past.probe = None;
        past.frto = Frto::begin(cx.sysctl.tcp_frto > 0 && recurring);
        self.tell_lost(cx);
    }

    /// Retransmits a lost MTU probe, which does not indicate congestion.
    #[cold]
    fn resend_probe(&mut self) {
        self.begin_repair_of_size();
        let not_congestion = self.snd.rtx.take_lost();
        self.snd.rtx.recycle_lost(not_congestion);
        self.out.any = true;
    }

    /// Begins the Loss phase without a reduction of cwnd, for data that was too large for the path.
    fn begin_repair_of_size(&mut self) {
        self.recovery.phase = Phase::Loss;
        self.recovery.high_seq = self.snd.nxt;
        let past = self.recovery.remember();
        past.undo.disarm();
        past.frto = Frto::default();
    }

    /// Retransmits all data in flight in smaller segments, since it was too large for the path, without
    /// a reduction of cwnd.
    pub(crate) fn resend_too_big(&mut self) {
        if self.recovery.phase < Phase::Recovery {
            self.begin_repair_of_size();
        }
        self.snd.rtx.mark_all_lost();
        let not_congestion = self.snd.rtx.take_lost();
        self.snd.rtx.recycle_lost(not_congestion);
        self.out.any = true;
    }
}

#[cfg(test)]
mod tests;
