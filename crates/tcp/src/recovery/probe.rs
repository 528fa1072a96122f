//! Tail loss probes (RFC 8985 7): when ACKs stop coming, one more segment draws an ACK that shows
//! what is missing of the tail, long before the retransmission timeout.

use fullsend_wire::{Instant, SeqNum, cold_path};

use super::dsack::Dsack;
use super::rack::TIMER_SLACK;
use super::{AckSummary, CaState, Recovery, RecoveryCx};
use crate::Cx;
use crate::congestion::CongestionEvent;
use crate::rtt::{Rto, RttEstimator};

/// The probe in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TailProbe {
    /// `TLP.end_seq`: `snd_nxt` as it was sent.
    pub(super) end: SeqNum,
    /// The probe retransmits the last segment; otherwise it is new data.
    pub(super) is_retransmit: bool,
}

impl Recovery {
    /// Returns when the probe is due, counted from `from`, if one may be sent (RFC 8985 7.2): after
    /// two round trips, and with a single segment in flight the time by which its ACK may be
    /// delayed. Never later than `rto_at`, the retransmission timeout. Without SACK, which `sack`
    /// states, the ACK of a probe shows nothing.
    #[inline]
    pub(crate) fn tail_probe_at(
        &self,
        cx: &Cx<'_>,
        (rtt, sack): (&RttEstimator, bool),
        from: Instant,
        rto_at: Instant,
    ) -> Option<Instant> {
        let may_send = matches!(self.ca_state, CaState::Open | CaState::Cwr)
            && sack
            && matches!(cx.sysctl.tcp_early_retrans, 3 | 4);
        if !may_send {
            cold_path();
            return None;
        }
        let timeout = match rtt.srtt() {
            None => {
                cold_path();
                Rto::INITIAL.nanos()
            }
            Some(srtt) if self.rtx.packets_out() == 1 => srtt * 2 + rtt.rto_min(),
            Some(srtt) => srtt * 2 + TIMER_SLACK,
        };
        let at = from + timeout;
        Some(if rto_at > cx.now { at.min(rto_at) } else { at })
    }

    /// Returns when the retransmission timer fires, counted from the head's last departure.
    pub(crate) fn head_rto_at(&self, rtt: &RttEstimator, now: Instant) -> Instant {
        self.rtx.head_sent_at().unwrap_or(now) + rtt.rto().nanos()
    }

    /// Returns whether a probe is in flight. There is at most one at a time.
    pub(crate) fn is_tail_probing(&self) -> bool {
        self.cold().is_some_and(|cold| cold.probe.is_some())
    }

    /// Records that a probe was sent, after which `nxt` is `snd_nxt`; `is_retransmit`: it
    /// retransmits the last segment.
    pub(crate) fn on_tail_probe_sent(&mut self, nxt: SeqNum, is_retransmit: bool) {
        self.cold_or_default().probe = Some(TailProbe {
            end: nxt,
            is_retransmit,
        });
    }

    /// Determines whether the probe retransmitted lost data (RFC 8985 7.4.2). Then cwnd is reduced.
    pub(super) fn process_tail_probe_ack(
        &mut self,
        cx: &mut RecoveryCx<'_>,
        summary: &AckSummary<'_>,
        dsack: Dsack,
    ) {
        let Some(cold) = self.cold_mut() else {
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

    fn reduce_for_tail_probe(&mut self, cx: &mut RecoveryCx<'_>) {
        self.enter_cwr(cx, CongestionEvent::Loss);
        if self.ca_state == CaState::Cwr {
            cx.congestion.set_cwnd_to_ssthresh();
            self.ca_state = CaState::Open;
            self.try_to_open(cx);
        }
    }
}
