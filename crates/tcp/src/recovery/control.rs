//! When to go into recovery and out of it again, and what cwnd does meanwhile (RFC 6675,
//! RFC 6582 without SACK, RFC 9937).

use alloc::boxed::Box;

use fullsend_units::SeqNum;
use fullsend_wire::tcp::TcpRepr;

use super::{AckOutcome, Adaptation, CopyStamp, Frto, Prr, SackOutcome, TailProbe, Undo};
use crate::congestion::{CongestionEvent, Cwnd};
use crate::{Connection, Cx};

/// The sender's opinion of the path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// All is well.
    Open,
    /// Something arrived out of order, or was sent again: loss or reordering, not yet known.
    Disorder,
    /// cwnd comes down though nothing is lost: congestion was signalled.
    Cwr,
    /// Fast recovery: cwnd comes down while losses are repaired.
    Recovery,
    /// After a timeout: slow start from one segment.
    Loss,
}

/// What only connections have that something happened to.
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
    /// Most connections never lose anything.
    past: Option<Box<Past>>,
    /// The window was what limited sending in the present round, which ends at this point.
    cwnd_limited: bool,
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

    /// Nothing is suspected, and no probe is out.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.phase == Phase::Open && self.past().is_none_or(|past| past.probe.is_none())
    }

    /// RFC 5681: cwnd grows, but not while it is being reduced.
    #[inline]
    pub(crate) fn may_grow(&self) -> bool {
        !self.is_reducing()
    }

    /// Proportional rate reduction steers cwnd.
    #[inline]
    pub(crate) fn is_reducing(&self) -> bool {
        matches!(self.phase, Phase::Cwr | Phase::Recovery)
    }

    /// Segments left; notes whether cwnd is used to the full.
    #[inline]
    pub(crate) fn on_sent(&mut self, una: SeqNum, nxt: SeqNum, packets_out: u32, limited: bool) {
        let new_round = una.after_eq(self.round_end);
        if new_round || limited || (!self.cwnd_limited && packets_out > self.max_packets_out) {
            self.cwnd_limited = limited;
            self.max_packets_out = packets_out;
            self.round_end = nxt;
        }
    }

    /// cwnd is what keeps unsent text back.
    #[inline]
    pub(crate) fn on_cwnd_blocked(&mut self, nxt: SeqNum, packets_out: u32) {
        self.cwnd_limited = true;
        self.max_packets_out = packets_out;
        self.round_end = nxt;
    }

    /// RFC 7661: a window that is not used proves nothing; in slow start half of it is enough.
    #[inline]
    pub(crate) fn was_cwnd_limited(&self, cwnd: &Cwnd) -> bool {
        self.cwnd_limited
            || (cwnd.in_slow_start() && cwnd.cwnd < self.max_packets_out.saturating_mul(2))
    }

    /// The window was what kept text back in the present round.
    #[inline]
    pub(crate) fn is_cwnd_limited(&self) -> bool {
        self.cwnd_limited
    }

    /// Sent while cwnd is being reduced.
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

    /// What happened so far.
    #[inline]
    pub(super) fn past(&self) -> Option<&Past> {
        self.past.as_deref()
    }

    /// The same, to change it.
    #[inline]
    pub(super) fn past_mut(&mut self) -> Option<&mut Past> {
        self.past.as_deref_mut()
    }

    /// Nothing is to be undone any more.
    pub(crate) fn forget_undo(&mut self) {
        if let Some(past) = self.past_mut() {
            past.undo.disarm();
        }
    }

    /// Something happened.
    #[cold]
    pub(super) fn remember(&mut self) -> &mut Past {
        self.past.get_or_insert_default()
    }
}

/// What an ACK told.
pub(crate) struct AckNews<'a> {
    pub(crate) repr: &'a TcpRepr,
    pub(crate) ack: &'a AckOutcome,
    pub(crate) sack: &'a SackOutcome,
    /// `snd_una` before it.
    pub(crate) prior_una: SeqNum,
    /// It moved `snd_una`.
    pub(crate) advanced: bool,
    /// RFC 5681 2.
    pub(crate) duplicate: bool,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Verdict {
    /// Segments that the ACK says have arrived.
    pub(crate) delivered: u32,
    /// A timer was set that the retransmission timer must not take the place of.
    pub(crate) timer_is_set: bool,
    /// Segments found lost.
    pub(super) lost_segs: u32,
    /// Of these, sent again before.
    pub(super) resent_segs: u32,
    /// The peer tells of marks.
    echo: bool,
}

impl Connection {
    /// An ACK was entered into the scoreboard; draws the conclusions.
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

    /// The state machine: which phase begins, goes on, ends.
    fn conclude(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>, verdict: &mut Verdict) {
        let una = self.snd.una;
        let (phase, high_seq) = (self.recovery.phase, self.recovery.high_seq);
        // The peer hears of CWR with what was sent behind it.
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
        // What the host itself dropped has been paid for.
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

    /// What was out as recovery began is acknowledged. True: it does not end yet.
    pub(super) fn leave_repaired(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>) -> bool {
        let was_loss = self.recovery.phase == Phase::Loss;
        if !self.agreed.sack {
            self.snd.rtx.forget_dupacks();
        }
        self.try_undo_repaired(cx, news);
        // RFC 6582 3.2: duplicates of what was sent twice must not begin another recovery.
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

    /// RFC 9937: a reduction ends with cwnd at ssthresh, unless it was taken back.
    fn end_reduction(&mut self) {
        let undone = self.recovery.past().is_none_or(|p| !p.undo.is_armed());
        let stands = self.recovery.phase == Phase::Cwr || !undone;
        if stands && !self.cc.owns_cwnd() && self.cwnd.ssthresh != u32::MAX {
            self.cwnd.cwnd = self.cwnd.ssthresh;
        }
    }

    /// Nothing is known to be lost: Open, or Disorder as long as something is amiss.
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

    /// Congestion without loss (RFC 3168 6.1.2: an echoed mark): cwnd comes down to ssthresh over
    /// one round trip. Does nothing if it is coming down already.
    #[cold]
    pub(crate) fn enter_cwr(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        if self.recovery.phase >= Phase::Cwr {
            return;
        }
        self.begin_reduction(cx, event);
        self.recovery.remember().undo.disarm();
        self.recovery.phase = Phase::Cwr;
    }

    /// cwnd comes down from here on: by proportional rate reduction, or at once.
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
            // It is coming down already, and rightly so.
            self.recovery.remember().undo.disarm();
            self.cwnd.ssthresh = self.cc.ssthresh_of_loss_after_mark(&self.cwnd);
        } else {
            self.begin_reduction(cx, CongestionEvent::Loss);
        }
        self.recovery.phase = Phase::Recovery;
    }

    /// A reduction of cwnd begins; RFC 3168 6.1.2: the peer is told, whatever the reason.
    fn lower_ssthresh(&mut self, cx: &Cx<'_>, event: CongestionEvent) {
        let ssthresh = self.cc.ssthresh(&self.cwnd, event, cx.now);
        self.cwnd.reduce(ssthresh);
        if let Some(ecn) = &mut self.ecn {
            ecn.owe_cwr();
        }
    }

    /// The congestion control that models the path hears of each loss.
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

    /// RFC 5681 3.1, RFC 6298 5.4: what is in flight is lost, and cwnd is one segment.
    pub(crate) fn enter_loss(&mut self, cx: &mut Cx<'_>) {
        let before = self.recovery.phase;
        // RFC 8985 6.3: what was sent less than a round trip ago may still arrive.
        let sent_by = cx.now - self.rtt.srtt().unwrap_or_default();
        let sacked_before = self.snd.rtx.sacked_out();
        cx.mib.sack_reneging += u64::from(self.snd.rtx.mark_timed_out(sent_by));
        // One reduction for one window of data, however it was lost.
        let again = before >= Phase::Cwr
            && self.snd.una.before(self.recovery.high_seq)
            && (before != Phase::Loss || self.timers.retransmits > 0);
        if !again {
            self.begin_reduction(cx, CongestionEvent::Rto);
        } else if before == Phase::Cwr {
            self.cwnd.ssthresh = self.cc.ssthresh_of_loss_after_mark(&self.cwnd);
        }
        self.cwnd.cwnd = self.snd.rtx.in_flight() + 1;
        // So many duplicates, and it was loss: reordering was overrated.
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

    /// What is marked lost was a probe of the path's MTU: nothing is known of congestion.
    #[cold]
    fn resend_probe(&mut self) {
        self.begin_repair_of_size();
        let not_congestion = self.snd.rtx.take_lost();
        self.snd.rtx.recycle_lost(not_congestion);
        self.out.any = true;
    }

    /// What is lost is sent again as after a timeout, but cwnd does not pay for it.
    fn begin_repair_of_size(&mut self) {
        self.recovery.phase = Phase::Loss;
        self.recovery.high_seq = self.snd.nxt;
        let past = self.recovery.remember();
        past.undo.disarm();
        past.frto = Frto::default();
    }

    /// What is in flight was too large for the path: it is sent again in smaller pieces, and
    /// congestion is not to blame.
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
