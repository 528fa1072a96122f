//! Transmission: chooses the next segment to send, checks the limits on new data, and records in
//! each part that it is sent.

use fullsend_wire::cold_path;
use fullsend_wire::tcp::TcpFlags;

use super::build::SegmentPlan;
use super::{Connection, MtuProbeDecision, State};
use crate::recovery::SuperSegment;
use crate::send::{BlockedBy, SendDecision};
use crate::{Cx, SegmentOut, SendLimit};

impl Connection {
    /// Returns the next segment that may be sent now. Call until it returns `None`.
    #[inline]
    pub fn poll_transmit(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if !self.needs_transmit() {
            return None;
        }
        if !self.state.is_synchronized() || self.snd.pending().has_reset() {
            let segment = self.unsynchronized_segment(cx);
            self.after_transmit(cx, segment.is_some());
            return segment;
        }
        let Some(plan) = self.next_plan(cx) else {
            self.after_transmit(cx, false);
            return None;
        };
        let segment = self.build(cx, plan);
        self.after_transmit(cx, true);
        Some(segment)
    }

    #[inline(always)]
    fn after_transmit(&mut self, cx: &mut Cx<'_>, sent: bool) {
        let unsent = self.snd.has_unsent();
        if !unsent {
            self.snd.report_limit(cx.now, SendLimit::Application);
            // A writer that waits for the handshake does not wait for room in the send buffer.
            let opened = self.user.writer_waiting && self.state.is_synchronized();
            if opened && !self.recovery.rtx.is_empty() {
                cold_path();
                self.snd.begin_sndbuf_limited(cx.now);
            }
        }
        let more = unsent || self.recovery.rtx.has_lost();
        self.snd.pending_mut().end_attempt(sent, more);
        // Data that was sent no longer counts against TCP_NOTSENT_LOWAT.
        self.wake_writer_if_room(cx);
        self.charge(cx);
    }

    /// Handles the completion of a segment that was charged with `truesize` bytes.
    pub fn handle_tx_complete(&mut self, cx: &mut Cx<'_>, truesize: u32) {
        if truesize == 0 {
            return;
        }
        self.snd.uncharge_wmem(truesize);
        if self.uncommon.is_some() {
            cold_path();
            self.watch_sent(cx);
        }
        self.snd.on_tx_complete();
    }

    /// Returns a RST, or the next segment of a connection that is not synchronized.
    #[cold]
    fn unsynchronized_segment(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if let Some(reset) = self.snd.pending_mut().take_reset() {
            return Some(self.build_reset(cx, reset));
        }
        let syn = match self.state {
            State::SynSent => return self.syn_segment(cx),
            State::SynReceived => self.syn_segment(cx),
            _ => None,
        };
        if syn.is_some() {
            return syn;
        }
        // Until the SYN-ACK is acknowledged, it alone is retransmitted.
        let new_data = if self.state == State::SynReceived && self.is_fastopen_child() {
            self.new_data(cx)
        } else {
            None
        };
        let plan = match new_data {
            Some(decision) => Some(self.send_data(cx, &decision)),
            None => self.due_ack(cx),
        };
        plan.map(|plan| self.build(cx, plan))
    }

    /// Returns the next segment: retransmissions come before new data, and a pure ACK is sent only
    /// if no other segment carried the acknowledgement.
    #[inline(always)]
    fn next_plan(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        if self.snd.pending().has_tail_probe()
            && let Some(plan) = self.tail_probe(cx)
        {
            return Some(plan);
        }
        let mut new_first = false;
        if self.recovery.rtx.has_lost() {
            cold_path();
            new_first = self.recovery.sends_new_data_first();
            if !new_first && let Some(plan) = self.retransmission(cx) {
                return Some(plan);
            }
        }
        if let Some(decision) = self.new_data(cx) {
            return Some(self.send_data(cx, &decision));
        }
        if new_first && let Some(plan) = self.retransmit_after_frto(cx) {
            return Some(plan);
        }
        self.probe(cx).or_else(|| self.due_ack(cx))
    }

    /// Returns the new data to send now, if the limits admit any.
    #[inline(always)]
    pub(crate) fn new_data(&mut self, cx: &mut Cx<'_>) -> Option<SendDecision> {
        let is_probe = self.snd.pending_mut().take_probe_data();
        if !self.snd.has_unsent() {
            self.snd.end_wait();
            return None;
        }
        let decision = match self.may_send(cx) {
            Err(BlockedBy::Nagle) if is_probe || self.snd.pending().is_pushed() => {
                self.snd.force_one(self.record_left())
            }
            Err(_) if is_probe && self.recovery.rtx.is_empty() => {
                self.snd.force_one(self.record_left())
            }
            decision => decision,
        };
        match decision {
            Ok(decision) => {
                self.snd.on_admitted();
                Some(decision)
            }
            Err(reason) => {
                self.on_blocked(cx, reason);
                if is_probe {
                    cold_path();
                    self.snd.pending_mut().request_probe();
                }
                None
            }
        }
    }

    /// Checks the limits in their order and returns how much may be sent now.
    #[inline(always)]
    pub(crate) fn may_send(&mut self, cx: &Cx<'_>) -> Result<SendDecision, BlockedBy> {
        if self.pacing_holds(cx) {
            return Err(BlockedBy::Pacing);
        }
        if self.recovery.rtx.is_empty() && self.snd.usable_window() > 0 {
            self.restart_after_idle(cx);
        }
        if self.uncommon.is_some() {
            cold_path();
            if let Some(decision) = self.may_send_mtu_probe(cx) {
                return decision;
            }
        }
        let (snd, send) = self.sender_and_cx();
        let decision = snd.check_windows(send)?;
        if snd.unsent_bytes() == 0 || snd.is_sendable_whole(cx, send, decision.headroom) {
            // A FIN, or all data.
            let len = snd.unsent_bytes() as u32;
            return Ok(SendDecision { len, ..decision });
        }
        snd.size_super_segment(cx, send, decision)
    }

    /// Returns whether the next data is sent as a probe of the path's MTU, or waits for that;
    /// `None` if it is sent without regard to probes.
    #[cold]
    fn may_send_mtu_probe(&mut self, cx: &Cx<'_>) -> Option<Result<SendDecision, BlockedBy>> {
        let (snd, send) = self.sender_and_cx();
        let decision = snd.check_windows(send).ok()?;
        if snd.unsent_bytes() == 0 {
            return None;
        }
        match self.decide_mtu_probe(cx) {
            MtuProbeDecision::Skip => None,
            MtuProbeDecision::Wait => Some(Err(BlockedBy::Cwnd)),
            MtuProbeDecision::Send(len) => Some(Ok(SendDecision {
                len,
                is_mtu_probe: true,
                ..decision
            })),
        }
    }

    /// Returns whether data must wait for its departure time here, and arms the timer for it.
    #[inline]
    pub(crate) fn pacing_holds(&mut self, cx: &Cx<'_>) -> bool {
        let (snd, path) = self.sender_and_path();
        snd.pacing_holds(cx, path)
    }

    /// Reduces cwnd after an idle period, which no longer validates it (RFC 2861, RFC 5681 4.1).
    #[inline]
    pub(crate) fn restart_after_idle(&mut self, cx: &Cx<'_>) {
        if self.recovery.rtx.is_app_limited() {
            cold_path();
            self.congestion.on_tx_start(cx.now);
        }
        let idle = cx.now.since(self.snd.last_sent());
        let rto = self.rtt.base_rto().nanos();
        if idle <= rto {
            return;
        }
        cold_path();
        if cx.sysctl.tcp_slow_start_after_idle && !self.congestion.algorithm().owns_cwnd() {
            self.congestion.restart_after_idle(idle, rto);
            // Once for each idle period, even if the data is held by another limit.
            self.snd.end_idle(cx.now);
        }
    }

    /// Records the reason why unsent data waits. It always needs a pending event that sends it: an
    /// ACK, a completion, or a timer.
    pub(crate) fn on_blocked(&mut self, cx: &mut Cx<'_>, reason: BlockedBy) {
        let (snd, send) = self.sender_and_cx();
        let limit = snd.on_blocked(cx, send, reason);
        let is_cwnd_limited =
            limit == SendLimit::Cwnd && (reason == BlockedBy::Cwnd || snd.is_cwnd_short(send));
        if is_cwnd_limited {
            let (nxt, packets_out) = (self.snd.nxt(), self.recovery.rtx.packets_out());
            self.congestion.on_cwnd_blocked(nxt, packets_out);
        }
        let waits_for_timer = limit == SendLimit::Cork || reason == BlockedBy::Pacing;
        if self.recovery.rtx.is_empty() && !waits_for_timer {
            self.arm_window_probe(cx);
        }
    }

    /// Takes the data of a decision from the queue and records that it is sent.
    #[inline(always)]
    pub(super) fn send_data(&mut self, cx: &mut Cx<'_>, decision: &SendDecision) -> SegmentPlan {
        let len = decision.len;
        let was_idle = self.recovery.rtx.is_empty();
        let segs = self.snd.segments(decision);
        if len > 0 {
            self.stats.data_segs_out = self.stats.data_segs_out.wrapping_add(segs);
        }
        let sent_segs = self.stats.data_segs_out;
        let (snd, send) = self.sender_and_cx();
        let data = snd.take_data(cx, send, decision, (segs, sent_segs));
        self.recovery.rtx.push(SuperSegment {
            seq: data.seq,
            payload: data.payload.clone(),
            syn: false,
            fin: data.flags.contains(TcpFlags::FIN),
            push: data.push,
            sent_at: data.sent_at,
            truesize: data.truesize,
            number: data.number,
        });
        cx.mib.out_segs += u64::from(segs);
        self.recovery.on_sent_in_recovery(segs);
        let rtx = &self.recovery.rtx;
        let (packets_out, in_flight) = (rtx.packets_out(), rtx.in_flight());
        let (una, nxt) = (self.snd.una(), self.snd.nxt());
        self.congestion.on_sent(una, nxt, packets_out, in_flight);
        if was_idle {
            self.snd.begin_busy(cx.now);
            if self.timers.is_window_probing() {
                cold_path();
                self.rtt.reset_backoff();
            }
            self.timers.progress_at = cx.now;
            self.set_xmit_timer(cx);
        } else if self.recovery.rtx.len() == 2 {
            self.advance_tail_probe_timer(cx);
        }
        if !self.snd.has_fin() {
            self.rcv.on_data_sent(cx.now);
        }
        if self.uncommon.is_some() {
            cold_path();
            let records = self.uncommon.as_mut().and_then(|u| u.records.as_mut());
            if let Some(records) = records {
                records.drop_sent(self.snd.nxt());
            }
            self.watch_scheduled(cx, data.number);
            if decision.is_mtu_probe {
                self.on_mtu_probe_sent(data.seq, len);
            }
        }
        SegmentPlan {
            seq: data.seq,
            flags: data.flags,
            payload: data.payload,
            segs,
            truesize: data.truesize,
            departure: data.departure,
            tsval_lag: 0,
            is_new_data: true,
        }
    }

    /// Returns a window or keepalive probe: an empty segment just left of the peer's window, which
    /// the peer must answer (RFC 9293 3.8.6.1, 3.8.4).
    fn probe(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        if !self.snd.pending_mut().take_probe() {
            return None;
        }
        cx.mib.win_probe += u64::from(self.snd.has_unsent());
        cx.mib.out_segs += 1;
        let seq = self.snd.una() - 1;
        Some(SegmentPlan::empty(seq))
    }

    fn due_ack(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        if !self.rcv.is_ack_due() {
            return None;
        }
        cx.mib.out_segs += 1;
        Some(SegmentPlan::empty(self.snd.acceptable_seq()))
    }
}
