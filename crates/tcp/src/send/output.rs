//! The transmit loop: chooses the next segment to send.

use fullsend_wire::tcp::TcpFlags;

use super::build::SegmentPlan;
use super::limits::SendDecision;
use super::{FinState, Sender};
use crate::connection::{Connection, State};
use crate::recovery::SuperSegment;
use crate::{Cx, SegmentOut, SendLimit};

impl Connection {
    #[inline(always)]
    pub(crate) fn transmit(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if !self.state.is_synchronized() || self.snd.pending.has_reset() {
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
                self.snd.flow(cx.now).begin_sndbuf_limited(cx.now);
            }
        }
        let more = unsent || self.recovery.rtx.has_lost();
        self.snd.pending.end_attempt(sent, more);
        // Data that was sent no longer counts against TCP_NOTSENT_LOWAT.
        self.wake_writer_if_room(cx);
        self.charge(cx);
    }

    /// Returns a RST, or the next segment of a connection that is not synchronized.
    #[cold]
    #[inline(never)]
    fn unsynchronized_segment(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if let Some(reset) = self.snd.pending.take_reset() {
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

    /// Returns the next segment: retransmissions come before new data, and a pure ACK is sent only if
    /// no other segment carried the acknowledgement.
    #[inline(always)]
    fn next_plan(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        if self.snd.pending.has_tail_probe()
            && let Some(plan) = self.tail_probe(cx)
        {
            return Some(plan);
        }
        let has_lost = self.recovery.rtx.has_lost();
        let new_first = has_lost && self.recovery.sends_new_data_first();
        if has_lost
            && !new_first
            && let Some(plan) = self.retransmission(cx)
        {
            return Some(plan);
        }
        if let Some(decision) = self.new_data(cx) {
            return Some(self.send_data(cx, &decision));
        }
        if new_first && let Some(plan) = self.retransmit_after_frto(cx) {
            return Some(plan);
        }
        self.probe(cx).or_else(|| self.due_ack(cx))
    }

    #[inline(always)]
    pub(super) fn send_data(&mut self, cx: &mut Cx<'_>, decision: &SendDecision) -> SegmentPlan {
        let len = decision.len;
        let was_idle = self.recovery.rtx.is_empty();
        let seq = self.snd.nxt;
        let segs = if decision.is_mtu_probe {
            // An MTU probe is one packet of any size.
            1
        } else {
            self.snd.mss.segments(len).max(1)
        };
        // PSH where the writer paused or a record ends.
        let push = self.snd.is_push_requested(len) || self.record_left() == len;
        let flags = self.snd.data_flags(cx, len, segs, push);
        let fin = flags.contains(TcpFlags::FIN);
        let taken = self.snd.queue.take(len as usize);
        // A FIN without data is not charged, so it needs no completion.
        let (number, truesize) = if len == 0 {
            (0, 0)
        } else {
            self.stats.data_segs_out = self.stats.data_segs_out.wrapping_add(segs);
            let number =
                self.snd
                    .report_sent(cx.now, (len, segs), decision.headroom, decision.limit);
            (number, taken.truesize)
        };
        let sent_segs = self.stats.data_segs_out;
        let (snd, path) = self.sender_and_path();
        let departure = snd.schedule_departure(cx, path, (len, segs), sent_segs);
        let sent_at = cx.now.max(departure);
        let snd = &mut self.snd;
        if fin {
            snd.fin = FinState::Sent;
        }
        let end = seq + len;
        snd.nxt = end + u32::from(fin);
        // Minshall's mark: the data ends in a segment of less than the MSS. An MTU probe is one segment
        // of more than the MSS and sets no mark.
        if len < segs * snd.mss.bytes() {
            snd.sml = end;
        }
        self.recovery.rtx.push(SuperSegment {
            seq,
            payload: taken.payload.clone(),
            syn: false,
            fin,
            push,
            sent_at,
            truesize,
            number,
        });
        snd.last_sent = sent_at;
        snd.wmem_inflight = snd.wmem_inflight.saturating_add(truesize);
        self.after_data_sent(cx, segs, was_idle);
        if self.uncommon.is_some() {
            let records = self.uncommon.as_mut().and_then(|u| u.records.as_mut());
            if let Some(records) = records {
                records.drop_sent(self.snd.nxt);
            }
            self.watch_scheduled(cx, number);
            if decision.is_mtu_probe {
                self.on_mtu_probe_sent(seq, len);
            }
        }
        SegmentPlan {
            seq,
            flags,
            payload: taken.payload,
            segs,
            truesize,
            departure,
            tsval_lag: 0,
            is_new_data: true,
        }
    }

    #[inline(always)]
    fn after_data_sent(&mut self, cx: &mut Cx<'_>, segs: u32, was_idle: bool) {
        cx.mib.out_segs += u64::from(segs);
        self.recovery.on_sent_in_recovery(segs);
        let (packets_out, in_flight) = (
            self.recovery.rtx.packets_out(),
            self.recovery.rtx.in_flight(),
        );
        let limited = in_flight >= self.congestion.cwnd();
        self.recovery.on_sent(
            &mut self.congestion,
            self.snd.una,
            self.snd.nxt,
            packets_out,
            limited,
        );
        if was_idle {
            if let Some(flow) = &mut self.snd.flow {
                flow.begin_busy(cx.now);
            }
            if self.timers.is_window_probing() {
                self.rtt.reset_backoff();
            }
            self.timers.progress_at = cx.now;
            self.set_xmit_timer(cx);
        } else if self.recovery.rtx.len() == 2 {
            self.advance_tail_probe_timer(cx);
        }
        if self.snd.fin == FinState::None {
            self.rcv.on_data_sent(cx.now);
        }
    }

    /// Returns a window or keepalive probe: an empty segment just left of the peer's window, which the
    /// peer must answer (RFC 9293 3.8.6.1, 3.8.4).
    fn probe(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        if !self.snd.pending.take_probe() {
            return None;
        }
        cx.mib.win_probe += u64::from(self.snd.has_unsent());
        cx.mib.out_segs += 1;
        let seq = self.snd.una - 1;
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

impl Sender {
    /// Returns whether the writer requested PSH within the next `len` bytes.
    #[inline]
    fn is_push_requested(&self, len: u32) -> bool {
        let (pushed, nxt) = (self.pushed_seq, self.nxt);
        pushed.after(nxt) && pushed.before_eq(nxt + len)
    }

    /// Returns the flags of a segment with the next `len` bytes.
    #[inline]
    fn data_flags(&self, cx: &Cx<'_>, len: u32, segs: u32, push: bool) -> TcpFlags {
        let mut flags = TcpFlags::ACK;
        // With PSH the peer's GRO delivers a run of segments at once.
        if (segs > 1 && !cx.legacy.in_force().split_tail) || push {
            flags = flags.union(TcpFlags::PSH);
        }
        let ends = self.fin == FinState::Queued && len as usize == self.queue.len();
        // A FIN waits until the peer's window admits it (RFC 9293 3.8.6.1).
        if ends && len < self.usable_window() {
            flags = flags.union(TcpFlags::FIN);
        }
        flags
    }
}
