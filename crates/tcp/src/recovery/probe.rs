//! Tail loss probes (RFC 8985 7): when ACKs stop coming, one more segment draws an ACK that shows what
//! is missing of the tail, long before the retransmission timeout.

use fullsend_units::{Instant, Nanos, SeqNum};

use super::dsack::Dsack;
use super::rack::TIMER_SLACK;
use super::{AckNews, Phase};
use crate::congestion::CongestionEvent;
use crate::rtt::Rto;
use crate::{Connection, Cx};

/// The probe in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TailProbe {
    /// `TLP.end_seq`: `snd_nxt` as it was sent.
    pub(super) end: SeqNum,
    /// It retransmits the last segment; otherwise it is new data.
    pub(super) resent: bool,
}

impl Connection {
    /// Returns whether a probe may be sent (RFC 8985 7.2). Without SACK its ACK shows nothing.
    #[inline]
    fn may_probe(&self, cx: &Cx<'_>) -> bool {
        matches!(self.recovery.phase, Phase::Open | Phase::Cwr)
            && self.agreed.sack
            && matches!(cx.sysctl.tcp_early_retrans, 3 | 4)
    }

    /// Returns the probe timeout (RFC 8985 7.2): two round trips, and with a single segment in flight
    /// the time by which its ACK may be delayed.
    #[inline]
    fn probe_timeout(&self) -> Nanos {
        let Some(srtt) = self.rtt.srtt() else {
            return Rto::INITIAL.nanos();
        };
        let slack = if self.snd.rtx.packets_out() == 1 {
            self.rtt.rto_min()
        } else {
            TIMER_SLACK
        };
        srtt * 2 + slack
    }

    /// Arms the probe timer, counted from `from`, if a probe may be sent; never later than `rto_at`, the
    /// retransmission timeout. Returns whether it did.
    #[inline]
    pub(crate) fn arm_probe_of_tail(
        &mut self,
        cx: &Cx<'_>,
        from: Instant,
        rto_at: Instant,
    ) -> bool {
        if !self.may_probe(cx) {
            return false;
        }
        let at = from + self.probe_timeout();
        let at = if rto_at > cx.now { at.min(rto_at) } else { at };
        self.set_probe_timer(cx, at);
        true
    }

    /// Returns when the retransmission timer fires, counted from the head's last departure.
    pub(crate) fn head_rto_at(&self, now: Instant) -> Instant {
        self.snd.rtx.head_sent_at().unwrap_or(now) + self.rtt.rto().nanos()
    }

    /// Processes the probe timer. If more data was sent since it was set, the timeout counts from then.
    #[cold]
    pub(crate) fn on_probe_of_tail_timer(&mut self, cx: &mut Cx<'_>) {
        if self.snd.rtx.is_empty() {
            return;
        }
        let rto_at = self.head_rto_at(cx.now);
        let due = (self.snd.last_sent + self.probe_timeout()).min(rto_at);
        if due > cx.now && self.may_probe(cx) {
            self.set_probe_timer(cx, due);
            return;
        }
        // At most one at a time.
        if self.recovery.past().is_some_and(|p| p.probe.is_some()) {
            self.arm_rto_at(cx, rto_at);
            return;
        }
        self.out.tail_probe = true;
        self.out.any = true;
        // For the case that no probe can be sent now.
        self.arm_rto_at(cx, rto_at);
    }

    /// Records that a probe was sent; `resent`: it retransmits the last segment.
    pub(crate) fn on_tail_probed(&mut self, cx: &mut Cx<'_>, resent: bool) {
        cx.mib.loss_probes += 1;
        let end = self.snd.nxt;
        self.recovery.remember().probe = Some(TailProbe { end, resent });
        self.arm_rto(cx);
    }

    /// Determines whether the probe retransmitted lost data (RFC 8985 7.4.2). Then cwnd is reduced.
    pub(super) fn hear_of_probe(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>, dsack: Dsack) {
        let Some(past) = self.recovery.past_mut() else {
            return;
        };
        let Some(TailProbe { end, resent }) = past.probe else {
            return;
        };
        let ack = news.repr.ack;
        if ack.before(end) {
            return;
        }
        let plain = news.duplicate && news.sack.delivered_segs == 0;
        if !resent || dsack.of_probe {
            // New data arrived, or both the original and the probe did.
            past.probe = None;
        } else if ack.after(end) {
            past.probe = None;
            cx.mib.loss_probe_recovery += 1;
            self.pay_for_probe(cx);
        } else if plain {
            past.probe = None;
        }
    }

    fn pay_for_probe(&mut self, cx: &Cx<'_>) {
        self.enter_cwr(cx, CongestionEvent::Loss);
        if self.recovery.phase == Phase::Cwr {
            if !self.cc.owns_cwnd() {
                self.cwnd.cwnd = self.cwnd.ssthresh;
            }
            self.recovery.phase = Phase::Open;
            self.try_to_open();
        }
    }
}
