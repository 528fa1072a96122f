//! The transmit loop: chooses the next segment to send.

use fullsend_wire::tcp::TcpFlags;

use super::build::Draft;
use super::gates::Grant;
use crate::connection::{Connection, Fin, State};
use crate::recovery::TransmitUnit;
use crate::{Cx, SegmentOut, SendLimit};

impl Connection {
    #[inline(always)]
    pub(crate) fn transmit(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if !self.state.is_synchronized() || self.out.reset.is_some() {
            let segment = self.unusual_segment(cx);
            self.after_transmit(cx, segment.is_some());
            return segment;
        }
        let Some(draft) = self.next_draft(cx) else {
            self.after_transmit(cx, false);
            return None;
        };
        let segment = self.build(cx, draft);
        self.after_transmit(cx, true);
        Some(segment)
    }

    #[inline(always)]
    fn after_transmit(&mut self, cx: &mut Cx<'_>, sent: bool) {
        let unsent = self.snd.has_unsent();
        if !unsent {
            self.report_held(cx.now, SendLimit::Application);
            // A writer that waits for the handshake does not wait for room in the send buffer.
            let opened = self.user.wants_write && self.state.is_synchronized();
            if opened && !self.snd.rtx.is_empty() {
                self.flow(cx.now).begin_sndbuf(cx.now);
            }
        }
        self.out.any = sent && (unsent || self.has_more());
        // Data that was sent no longer counts against TCP_NOTSENT_LOWAT.
        self.wake_writer_if_room(cx);
        self.charge(cx);
    }

    /// Returns whether a segment without new data may follow the segment that was just built.
    #[inline]
    fn has_more(&self) -> bool {
        self.rcv.ack.is_due() || self.snd.rtx.has_lost() || self.out.has_extras()
    }

    /// Returns a RST, or the next segment of a connection that is not synchronized.
    #[cold]
    #[inline(never)]
    fn unusual_segment(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if let Some(reset) = self.out.reset.take() {
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
        let text = if self.state == State::SynReceived && self.is_fastopen_child() {
            self.new_text(cx)
        } else {
            None
        };
        let draft = match text {
            Some(grant) => Some(self.send_text(cx, &grant)),
            None => self.due_ack(cx),
        };
        draft.map(|draft| self.build(cx, draft))
    }

    /// Returns the next segment: retransmissions come before new data, and a pure ACK is sent only if
    /// no other segment carried the acknowledgement.
    #[inline(always)]
    fn next_draft(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        if self.out.tail_probe
            && let Some(draft) = self.tail_probe(cx)
        {
            return Some(draft);
        }
        let repairs = self.snd.rtx.has_lost();
        let new_first = repairs && self.recovery.sends_new_first();
        if repairs
            && !new_first
            && let Some(draft) = self.retransmission(cx)
        {
            return Some(draft);
        }
        if let Some(grant) = self.new_text(cx) {
            return Some(self.send_text(cx, &grant));
        }
        if new_first && let Some(draft) = self.repair_after_all(cx) {
            return Some(draft);
        }
        self.probe(cx).or_else(|| self.due_ack(cx))
    }

    #[inline(always)]
    pub(super) fn send_text(&mut self, cx: &mut Cx<'_>, grant: &Grant) -> Draft {
        let len = grant.len;
        let was_idle = self.snd.rtx.is_empty();
        let seq = self.snd.nxt;
        let segs = if grant.probes {
            // An MTU probe is one packet of any size.
            1
        } else {
            self.snd.mss.segments(len).max(1)
        };
        let push = self.is_pushed(len);
        let flags = self.text_flags(cx, len, segs, push);
        let fin = flags.contains(TcpFlags::FIN);
        let taken = self.snd.queue.take(len as usize);
        // A FIN without data is not charged, so it needs no completion.
        let (number, truesize) = if len == 0 {
            (0, 0)
        } else {
            self.stats.data_segs_out = self.stats.data_segs_out.wrapping_add(segs);
            let number = self.report_sent(cx, (len, segs), grant.headroom, grant.limit);
            (number, taken.truesize)
        };
        let departure = self.depart(cx, len, segs);
        let sent_at = cx.now.max(departure);
        let snd = &mut self.snd;
        if fin {
            snd.fin = Fin::Sent;
        }
        let end = seq + len;
        snd.nxt = end + u32::from(fin);
        // Minshall's mark: the data ends in a segment of less than the MSS. An MTU probe is one segment
        // of more than the MSS and sets no mark.
        if len < segs * snd.mss.bytes() {
            snd.sml = end;
        }
        snd.rtx.push(TransmitUnit {
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
        self.after_text_sent(cx, segs, was_idle);
        if self.extras.is_some() {
            self.pass_records();
            self.watch_scheduled(cx, number);
            if grant.probes {
                self.on_mtu_probe_sent(seq, len);
            }
        }
        Draft {
            seq,
            flags,
            payload: taken.payload,
            segs,
            truesize,
            departure,
            stamp_lag: 0,
            fresh: true,
        }
    }

    /// Returns whether the next `len` bytes get PSH: the writer paused or a record ends within them.
    #[inline]
    fn is_pushed(&self, len: u32) -> bool {
        let (pushed, nxt) = (self.snd.pushed, self.snd.nxt);
        let asked = pushed.after(nxt) && pushed.before_eq(nxt + len);
        asked || self.record_left() == len
    }

    /// Returns the flags of a segment with the next `len` bytes.
    #[inline]
    fn text_flags(&self, cx: &Cx<'_>, len: u32, segs: u32, push: bool) -> TcpFlags {
        let snd = &self.snd;
        let mut flags = TcpFlags::ACK;
        // With PSH the peer's GRO delivers a run of segments at once.
        if (segs > 1 && !cx.legacy.split_tail) || push {
            flags = flags.union(TcpFlags::PSH);
        }
        let ends = snd.fin == Fin::Queued && len as usize == snd.queue.len();
        // A FIN waits until the peer's window admits it (RFC 9293 3.8.6.1).
        if ends && len < snd.usable_window() {
            flags = flags.union(TcpFlags::FIN);
        }
        flags
    }

    #[inline(always)]
    fn after_text_sent(&mut self, cx: &mut Cx<'_>, segs: u32, was_idle: bool) {
        cx.mib.out_segs += u64::from(segs);
        self.recovery.on_sent_in_recovery(segs);
        let (packets_out, in_flight) = (self.snd.rtx.packets_out(), self.snd.rtx.in_flight());
        let limited = in_flight >= self.cwnd.cwnd;
        self.recovery
            .on_sent(self.snd.una, self.snd.nxt, packets_out, limited);
        if was_idle {
            if let Some(flow) = &mut self.snd.flow {
                flow.begin_busy(cx.now);
            }
            if self.timers.is_probing() {
                self.rtt.reset_backoff();
            }
            self.timers.progress_at = cx.now;
            self.set_xmit_timer(cx);
        } else if self.snd.rtx.units() == 2 {
            self.hasten_probe(cx);
        }
        if self.snd.fin == Fin::No {
            self.rcv.ack.on_text_sent(cx.now);
        }
    }

    /// Returns a window or keepalive probe: an empty segment just left of the peer's window, which the
    /// peer must answer (RFC 9293 3.8.6.1, 3.8.4).
    fn probe(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        if !core::mem::take(&mut self.out.probe) {
            return None;
        }
        cx.mib.win_probe += u64::from(self.snd.has_unsent());
        cx.mib.out_segs += 1;
        let seq = self.snd.una - 1;
        Some(Draft::empty(seq))
    }

    fn due_ack(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        if !self.rcv.ack.is_due() {
            return None;
        }
        cx.mib.out_segs += 1;
        Some(Draft::empty(self.snd.acceptable_seq()))
    }
}
