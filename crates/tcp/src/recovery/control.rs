//! When to go into recovery and out of it again, and what cwnd does meanwhile (RFC 6675,
//! RFC 6582 without SACK, RFC 9937).

use alloc::boxed::Box;

use fullsend_units::SeqNum;
use fullsend_wire::tcp::TcpRepr;

use super::{AckOutcome, Prr, SackOutcome, Undo};
use crate::congestion::{CongestionEvent, Cwnd};
use crate::{Connection, Cx};

/// More reordering than this is not believed (Linux's `tcp_max_reordering`).
pub(super) const MAX_REORDERING_SEGS: u32 = 300;

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

/// What is kept of a reduction of cwnd.
#[derive(Clone, Copy, Debug, Default)]
struct Reduction {
    prr: Prr,
    undo: Undo,
}

/// The state of recovery.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(super) phase: Phase,
    /// `snd_nxt` as the present phase began; it ends when that is acknowledged.
    high_seq: SeqNum,
    /// Duplicate ACKs in a row (without SACK).
    dupacks: u32,
    /// DupThresh, adapted to the reordering seen.
    pub(super) reordering_segs: u32,
    /// There from the first reduction on: most connections never lose anything.
    reduction: Option<Box<Reduction>>,
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
            dupacks: 0,
            reordering_segs: dupthresh,
            reduction: None,
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
            && let Some(reduction) = &mut self.reduction
        {
            reduction.prr.on_sent(segs);
        }
    }

    /// cwnd is reduced.
    fn begin_reduction(&mut self, prr: Prr, una: SeqNum, retrans_out: u32) {
        let reduction = self.reduction.get_or_insert_default();
        reduction.prr = prr;
        reduction.undo = reduction.undo.begin(una, retrans_out);
    }

    /// `segs` segments go out again, with this TSval.
    pub(crate) fn on_retransmit(&mut self, stamp: u32, segs: u32) {
        self.on_sent_in_recovery(segs);
        if let Some(undo) = self.undo_mut() {
            undo.on_retransmit(stamp, segs);
        }
    }

    /// What may be undone.
    #[inline]
    pub(super) fn undo_mut(&mut self) -> Option<&mut Undo> {
        self.reduction.as_mut().map(|r| &mut r.undo)
    }

    /// Nothing is to be undone any more.
    pub(crate) fn forget_undo(&mut self) {
        if let Some(undo) = self.undo_mut() {
            undo.disarm();
        }
    }
}

impl Connection {
    /// An ACK was entered into the scoreboard; draws the conclusions. `duplicate`: RFC 5681 2.
    /// Gives the segments that the ACK says have arrived.
    pub(crate) fn recover(
        &mut self,
        cx: &mut Cx<'_>,
        repr: &TcpRepr,
        ack: &AckOutcome,
        sack: &SackOutcome,
        advanced: bool,
        duplicate: bool,
    ) -> u32 {
        let seen = sack.reordering_segs.max(ack.reordering_segs);
        let dupthresh = self.recovery.reordering_segs;
        let dupthresh = dupthresh.max(seen.min(MAX_REORDERING_SEGS));
        self.recovery.reordering_segs = dupthresh;
        self.try_undo(cx, repr, sack.dsack, advanced);
        let delivered = self.count_delivered(ack, sack, advanced, duplicate);
        if let Some(delivery) = self.snd.rtx.delivery_mut() {
            delivery.on_delivered(cx.now, delivered);
        }
        let newly_lost = if self.agreed.sack && self.snd.rtx.sacked_out() > 0 {
            self.snd.rtx.mark_lost_by_sack(dupthresh) + self.mark_lost_retransmissions(cx, sack)
        } else {
            0
        };
        let echo = self.is_ecn_echo(repr);
        if echo {
            self.take_echo(cx, delivered);
        }
        let repaired = self.snd.una.after_eq(self.recovery.high_seq);
        match self.recovery.phase {
            Phase::Open | Phase::Disorder | Phase::Cwr => {
                let lost =
                    newly_lost > 0 || (!self.agreed.sack && self.recovery.dupacks >= dupthresh);
                if lost && self.extras.is_some() && self.mtu_probe_lost(cx) {
                    self.resend_probe();
                } else if lost {
                    self.enter_recovery(cx, delivered);
                } else if echo && self.recovery.phase != Phase::Cwr {
                    self.enter_cwr(cx);
                    self.reduce_cwnd(delivered, advanced);
                } else {
                    self.go_on_without_loss(delivered, advanced);
                }
            }
            Phase::Recovery if repaired => {
                if !self.cc.owns_cwnd() {
                    // RFC 9937: leave with cwnd = ssthresh.
                    self.cwnd.cwnd = self.cwnd.ssthresh.min(self.cwnd.prior_cwnd).max(1);
                }
                self.leave_recovery();
                self.cc.on_repaired(&mut self.cwnd);
            }
            Phase::Recovery => {
                let more_lost = if advanced && !self.agreed.sack {
                    // RFC 6582 3.2 (5): a partial ACK tells the next hole.
                    self.snd.rtx.mark_head_lost()
                } else {
                    newly_lost
                };
                self.reduce_cwnd(delivered, advanced && more_lost == 0);
            }
            Phase::Loss if repaired => {
                self.leave_recovery();
                self.cc.on_repaired(&mut self.cwnd);
            }
            Phase::Loss => {}
        }
        self.tell_lost_if_sampled(cx);
        delivered
    }

    #[inline]
    pub(super) fn tell_lost_if_sampled(&mut self, cx: &Cx<'_>) {
        if self.snd.rtx.delivery().is_some() {
            self.tell_lost(cx);
        }
    }

    /// A retransmission that something overtook which was sent a reordering window (RFC 8985 6.2:
    /// a quarter of the least round trip) later: waiting for the timer would cost all.
    fn mark_lost_retransmissions(&mut self, cx: &mut Cx<'_>, sack: &SackOutcome) -> u32 {
        let (Some(rtt), Some(min_rtt)) = (sack.rtt, self.rtt.min_rtt()) else {
            return 0;
        };
        let newest_sent = cx.now - rtt;
        let lost = self
            .snd
            .rtx
            .mark_lost_retransmissions(newest_sent - min_rtt / 4);
        cx.mib.lost_retransmit += u64::from(lost);
        lost
    }

    /// Segments this ACK says have arrived. Without SACK each duplicate ACK stands for one.
    fn count_delivered(
        &mut self,
        ack: &AckOutcome,
        sack: &SackOutcome,
        advanced: bool,
        duplicate: bool,
    ) -> u32 {
        if self.agreed.sack {
            return ack.delivered_segs + sack.delivered_segs;
        }
        if advanced {
            self.recovery.dupacks = 0;
            return ack.delivered_segs;
        }
        if duplicate && !self.snd.rtx.is_empty() {
            self.recovery.dupacks += 1;
            self.snd.rtx.on_dupack();
            return 1;
        }
        0
    }

    /// Nothing is known to be lost: Open, Disorder or CWR.
    fn go_on_without_loss(&mut self, delivered: u32, advanced: bool) {
        if self.recovery.phase == Phase::Cwr {
            // The peer hears of CWR with what was sent behind it.
            if !self.snd.una.after(self.recovery.high_seq) {
                self.reduce_cwnd(delivered, advanced);
                return;
            }
            if !self.cc.owns_cwnd() {
                self.cwnd.cwnd = self.cwnd.ssthresh;
            }
        }
        let disorder = self.snd.rtx.sacked_out() > 0 || self.snd.rtx.retrans_out() > 0;
        self.recovery.phase = if disorder {
            Phase::Disorder
        } else {
            Phase::Open
        };
    }

    /// Congestion without loss (RFC 3168 6.1.2: an echoed mark; loss that a probe repaired): cwnd
    /// comes down to ssthresh over one round trip. Does nothing if it is coming down already.
    #[cold]
    pub(crate) fn enter_cwr(&mut self, cx: &Cx<'_>) {
        if self.recovery.phase >= Phase::Cwr {
            return;
        }
        self.lower_ssthresh(cx, CongestionEvent::Ecn);
        let in_flight = self.snd.rtx.packets_out();
        let retrans_out = self.snd.rtx.retrans_out();
        let una = self.snd.una;
        self.recovery
            .begin_reduction(Prr::begin(in_flight), una, retrans_out);
        self.recovery.forget_undo();
        self.recovery.phase = Phase::Cwr;
        self.recovery.high_seq = self.snd.nxt;
    }

    fn enter_recovery(&mut self, cx: &mut Cx<'_>, delivered: u32) {
        if self.agreed.sack {
            cx.mib.sack_recovery += 1;
        } else {
            cx.mib.reno_recovery += 1;
            self.snd.rtx.mark_head_lost();
        }
        let in_flight_at_start = self.snd.rtx.packets_out();
        // The path has told already: one reduction for one window of data.
        if self.recovery.phase != Phase::Cwr {
            self.lower_ssthresh(cx, CongestionEvent::Loss);
            self.recovery.high_seq = self.snd.nxt;
            self.recovery.begin_reduction(
                Prr::begin(in_flight_at_start),
                self.snd.una,
                self.snd.rtx.retrans_out(),
            );
        }
        self.recovery.phase = Phase::Recovery;
        self.reduce_cwnd(delivered, false);
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
    fn tell_lost(&mut self, cx: &Cx<'_>) {
        let lost = self.snd.rtx.take_lost();
        for unit in &lost {
            self.cc.on_lost(&self.cwnd, unit, cx.now);
        }
        self.snd.rtx.recycle_lost(lost);
    }

    fn reduce_cwnd(&mut self, delivered: u32, safe: bool) {
        if self.cc.owns_cwnd() {
            return;
        }
        let in_flight = self.snd.rtx.in_flight();
        let ssthresh = self.cwnd.ssthresh;
        if let Some(r) = &mut self.recovery.reduction {
            self.cwnd.cwnd = r.prr.on_ack(delivered, in_flight, ssthresh, safe);
        }
    }

    pub(super) fn leave_recovery(&mut self) {
        self.recovery.phase = Phase::Open;
        self.recovery.dupacks = 0;
        self.snd.rtx.forget_dupacks();
    }

    /// RFC 5681 3.1, RFC 6298 5.4: everything in flight is lost, and cwnd is one segment.
    pub(crate) fn enter_loss(&mut self, cx: &Cx<'_>) {
        // One reduction for one window of data, however it was lost.
        let repeated =
            self.recovery.phase >= Phase::Recovery && self.snd.una.before(self.recovery.high_seq);
        if !repeated {
            let retrans_out = self.snd.rtx.retrans_out();
            self.recovery
                .begin_reduction(Prr::default(), self.snd.una, retrans_out);
            self.lower_ssthresh(cx, CongestionEvent::Rto);
        }
        self.cwnd.cwnd = 1;
        self.recovery.phase = Phase::Loss;
        self.recovery.high_seq = self.snd.nxt;
        self.recovery.dupacks = 0;
        self.snd.rtx.mark_all_lost();
        self.tell_lost(cx);
    }

    /// What is marked lost was a probe of the path's MTU: nothing is known of congestion.
    #[cold]
    fn resend_probe(&mut self) {
        if !self.agreed.sack {
            self.snd.rtx.mark_head_lost();
        }
        self.recovery.phase = Phase::Loss;
        self.recovery.high_seq = self.snd.nxt;
        self.recovery.forget_undo();
        let not_congestion = self.snd.rtx.take_lost();
        self.snd.rtx.recycle_lost(not_congestion);
        self.out.any = true;
    }

    /// What is in flight was too large for the path: it is sent again in smaller pieces, and
    /// congestion is not to blame.
    pub(crate) fn resend_too_big(&mut self) {
        if self.recovery.phase < Phase::Recovery {
            self.recovery.phase = Phase::Loss;
            self.recovery.high_seq = self.snd.nxt;
            self.recovery.forget_undo();
        }
        self.snd.rtx.mark_all_lost();
        let not_congestion = self.snd.rtx.take_lost();
        self.snd.rtx.recycle_lost(not_congestion);
        self.out.any = true;
    }
}
