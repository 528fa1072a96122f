//! Tail loss probes (RFC 8985 7): when ACKs stop coming, one more segment draws an ACK that shows what
//! is missing of the tail, long before the retransmission timeout.

use fullsend_wire::{Instant, Nanos, SeqNum};

use super::dsack::Dsack;
use super::rack::TIMER_SLACK;
use super::{AckSummary, CaState};
use crate::congestion::CongestionEvent;
use crate::rtt::Rto;
use crate::{Connection, Cx};

/// The probe in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TailProbe {
    /// `TLP.end_seq`: `snd_nxt` as it was sent.
    pub(super) end: SeqNum,
    /// It retransmits the last segment; otherwise it is new data.
    pub(super) is_retransmit: bool,
}

impl Connection {
    /// Returns whether a probe may be sent (RFC 8985 7.2). Without SACK its ACK shows nothing.
    #[inline]
    fn may_send_tail_probe(&self, cx: &Cx<'_>) -> bool {
        matches!(self.recovery.ca_state, CaState::Open | CaState::Cwr)
            && self.negotiated.sack
            && matches!(cx.sysctl.tcp_early_retrans, 3 | 4)
    }

    /// Returns the probe timeout (RFC 8985 7.2): two round trips, and with a single segment in flight
    /// the time by which its ACK may be delayed.
    #[inline]
    fn tail_probe_timeout(&self) -> Nanos {
        let Some(srtt) = self.rtt.srtt() else {
            return Rto::INITIAL.nanos();
        };
        let slack = if self.recovery.rtx.packets_out() == 1 {
            self.rtt.rto_min()
        } else {
            TIMER_SLACK
        };
        srtt * 2 + slack
    }

    /// Arms the probe timer, counted from `from`, if a probe may be sent; never later than `rto_at`, the
    /// retransmission timeout. Returns whether it did.
    #[inline]
    pub(crate) fn arm_tail_probe(&mut self, cx: &Cx<'_>, from: Instant, rto_at: Instant) -> bool {
        if !self.may_send_tail_probe(cx) {
            return false;
        }
        let at = from + self.tail_probe_timeout();
        let at = if rto_at > cx.now { at.min(rto_at) } else { at };
        self.set_tail_probe_timer(cx, at);
        true
    }

    /// Returns when the retransmission timer fires, counted from the head's last departure.
    pub(crate) fn head_rto_at(&self, now: Instant) -> Instant {
        self.recovery.rtx.head_sent_at().unwrap_or(now) + self.rtt.rto().nanos()
    }

    /// Processes the probe timer. If more data was sent since it was set, the timeout counts from then.
    #[cold]
    pub(crate) fn on_tail_probe_timer(&mut self, cx: &mut Cx<'_>) {
        if self.recovery.rtx.is_empty() {
            return;
        }
        let rto_at = self.head_rto_at(cx.now);
        let due = (self.snd.last_sent() + self.tail_probe_timeout()).min(rto_at);
        if due > cx.now && self.may_send_tail_probe(cx) {
            self.set_tail_probe_timer(cx, due);
            return;
        }
        // At most one at a time.
        if self.recovery.cold().is_some_and(|p| p.probe.is_some()) {
            self.arm_rto_at(cx, rto_at);
            return;
        }
        self.snd.pending_mut().request_tail_probe();
        // For the case that no probe can be sent now.
        self.arm_rto_at(cx, rto_at);
    }

    /// Records that a probe was sent; `is_retransmit`: it retransmits the last segment.
    pub(crate) fn on_tail_probe_sent(&mut self, cx: &mut Cx<'_>, is_retransmit: bool) {
        cx.mib.loss_probes += 1;
        let end = self.snd.nxt();
        self.recovery.cold_or_default().probe = Some(TailProbe { end, is_retransmit });
        self.arm_rto(cx);
    }

    /// Determines whether the probe retransmitted lost data (RFC 8985 7.4.2). Then cwnd is reduced.
    pub(super) fn process_tail_probe_ack(
        &mut self,
        cx: &mut Cx<'_>,
        summary: &AckSummary<'_>,
        dsack: Dsack,
    ) {
        let Some(cold) = self.recovery.cold_mut() else {
            return;
        };
        let Some(TailProbe { end, is_retransmit }) = cold.probe else {
            return;
        };
        let ack = summary.repr.ack;
        if ack.before(end) {
            return;
        }
        let is_plain_dupack = summary.duplicate && summary.sack.delivered_segs == 0;
        if !is_retransmit || dsack.is_of_tail_probe {
            // New data arrived, or both the original and the probe did.
            cold.probe = None;
        } else if ack.after(end) {
            cold.probe = None;
            cx.mib.loss_probe_recovery += 1;
            self.reduce_for_tail_probe(cx);
        } else if is_plain_dupack {
            cold.probe = None;
        }
    }

    fn reduce_for_tail_probe(&mut self, cx: &Cx<'_>) {
        self.enter_cwr(cx, CongestionEvent::Loss);
        if self.recovery.ca_state == CaState::Cwr {
            self.congestion.set_cwnd_to_ssthresh();
            self.recovery.ca_state = CaState::Open;
            self.try_to_open();
        }
    }
}
