//! Processing of a segment's payload and FIN (RFC 9293 3.10.7.4, seventh and eighth), after the checks
//! of `input.rs`.

use fullsend_offload::Chain;
use fullsend_wire::tcp::{SackBlock, TcpFlags};
use fullsend_wire::{SeqNum, cold_path};

use super::{Connection, State};
use crate::recv::{DataArrival, InsertOutcome};
use crate::send::Reset;
use crate::{Cx, SegmentIn, TcpError};

impl Connection {
    /// Processes the data of a Fast Open server's SYN-ACK (RFC 7413 4.2.2).
    #[cold]
    pub(super) fn on_syn_ack_payload(&mut self, cx: &mut Cx<'_>, segment: &mut SegmentIn) {
        let payload = core::mem::take(&mut segment.payload);
        segment.repr.seq += 1;
        let fin = segment.repr.flags.contains(TcpFlags::FIN);
        self.on_payload(cx, segment, payload, fin);
    }

    /// Processes the payload and FIN of a segment (RFC 9293 3.10.7.4, seventh and eighth).
    #[inline(always)]
    pub(super) fn on_payload(
        &mut self,
        cx: &mut Cx<'_>,
        segment: &SegmentIn,
        payload: Chain,
        fin: bool,
    ) {
        if self.rcv.fin_received() {
            cold_path();
            return;
        }
        let seq = segment.repr.seq;
        let end = seq + payload.len() as u32;
        // RFC 2525 2.17: the data will never be read, and a RST informs the peer.
        if (self.user.orphan || self.user.resets_on_data)
            && end.after(self.rcv.nxt())
            && self.accepts_no_data()
        {
            return self.abort_on_data(cx, segment.repr.ack);
        }
        let (len, segs) = (payload.len(), u32::from(segment.gso_segs.max(1)));
        let rcv_nxt = self.rcv.nxt();
        // Some peers send a FIN into a closed window, and would retransmit it for ever.
        let is_bare_fin = len == 0 && seq == rcv_nxt;
        if self.rcv.is_closed_at(seq) && !is_bare_fin && !self.rcv.is_blocked_by_hole(seq, end) {
            return self.drop_beyond_window(cx, segment, segs);
        }
        if self.rcv.is_overfull() && len > 0 {
            return self.close_window(cx, segs);
        }
        let (mut payload, mut fin, mut len, mut seq) = (payload, fin, len, seq);
        if cx.mem.is_exhausted(cx.sysctl) {
            cold_path();
            fin &= self.limit_to_memory(cx, &mut seq, &mut payload, segs);
            if payload.is_empty() && !fin {
                self.rcv.ack_now();
                return;
            }
            len = payload.len();
        }
        let outcome = self.rcv.insert(cx.pool, seq, payload, fin);
        if self.ecn.is_some() && len > 0 {
            cold_path();
            self.on_data_ecn(segment, outcome, rcv_nxt);
        }
        if len > 0 {
            self.stats.data_segs_in = self.stats.data_segs_in.wrapping_add(segs);
        }
        let segment_len = match segment.gso_size {
            // A run without a segment size has no segments longer than this.
            0 => (len as u32).min(self.snd.mss_clamp().into()),
            size => size.into(),
        };
        self.after_arrival(cx, outcome, segment, (len as u32, segment_len, segs));
        if self.rcv.fin_received() {
            cold_path();
            self.on_fin(cx);
        }
        self.rcv.ack_if_over_rcvbuf();
    }

    /// Returns whether the connection accepts no more data: an application that has shut down both
    /// directions has closed the connection as far as the peer is concerned (RFC 1122 4.2.2.13).
    #[cold]
    fn accepts_no_data(&self) -> bool {
        self.user.orphan || matches!(self.state, State::FinWait1 | State::FinWait2)
    }

    #[cold]
    fn abort_on_data(&mut self, cx: &mut Cx<'_>, ack: SeqNum) {
        cx.mib.abort_on_data += 1;
        self.snd.pending_mut().request_reset(Reset::WithSeq(ack));
        if self.user.orphan {
            self.transition(State::Closed);
            // No ACK follows a RST.
            self.rcv.cancel_ack();
            self.finish();
        } else {
            self.fail(TcpError::ConnectionReset);
        }
    }

    /// Drops data beyond the window or while it is closed: a window probe, or data sent before the
    /// window shrank.
    #[cold]
    fn drop_beyond_window(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn, segs: u32) {
        let rcv_nxt = self.rcv.nxt();
        let left = segment.repr.seq;
        if left.after(rcv_nxt) {
            cx.mib.beyond_window += u64::from(segs);
        } else {
            cx.mib.zero_window_drop += u64::from(segs);
            if self.negotiated.sack && cx.sysctl.tcp_dsack {
                let right = rcv_nxt;
                self.rcv.record_duplicate(SackBlock { left, right });
            }
        }
        self.rcv.enter_quickack();
        self.wake_reader_if_enough(cx.mem);
    }

    /// Closes the window because more data waits for the reader than the buffer may hold: the
    /// buffer was made smaller.
    #[cold]
    fn close_window(&mut self, cx: &mut Cx<'_>, segs: u32) {
        cx.mib.rcv_q_drop += u64::from(segs);
        let before = self.rcv.close_window();
        self.record_former_edge(before);
        self.wake_reader_if_enough(cx.mem);
    }

    /// Records that the window shrank from `edge`: data sent before may still arrive.
    #[cold]
    pub(crate) fn record_former_edge(&mut self, edge: SeqNum) {
        let furthest = &mut self.uncommon_mut().former_right_edge;
        *furthest = Some(furthest.map_or(edge, |known| known.latest(edge)));
    }

    /// Forgets the former right edge of a window once received data has passed it. It would seem to
    /// lie ahead again after half of the sequence space.
    fn drop_former_edge(&mut self, rcv_nxt: SeqNum) {
        if let Some(uncommon) = &mut self.uncommon {
            uncommon
                .former_right_edge
                .take_if(|edge| edge.before(rcv_nxt));
        }
    }

    /// Limits received data while the host's memory is exhausted. Keeps the connection's minimum,
    /// in memory of that size, so that every connection makes progress; the peer retransmits the
    /// rest. Removes bytes received before. Returns whether all new bytes were kept.
    #[cold]
    fn limit_to_memory(
        &mut self,
        cx: &mut Cx<'_>,
        seq: &mut SeqNum,
        payload: &mut Chain,
        segs: u32,
    ) -> bool {
        let rcv_nxt = self.rcv.nxt();
        if seq.after(rcv_nxt) {
            cx.mib.prune_called += 1;
            cx.mib.ofo_drop += u64::from(segs);
            payload.clear();
            self.wake_reader_if_enough(cx.mem);
            return false;
        }
        let old = rcv_nxt.since(*seq).min(payload.len() as u32);
        *seq += old;
        payload.advance(old as usize);
        if payload.is_empty() {
            // A FIN needs no memory.
            return true;
        }
        cx.mib.prune_called += 1;
        self.charge(cx);
        if self.rcv.prune(cx.mem.excess_bytes(cx.sysctl)) {
            cx.mib.ofo_pruned += 1;
            self.charge(cx);
        }
        let least = cx.mem.minimum(cx.sysctl, cx.sysctl.tcp_rmem[0]);
        if !cx.mem.is_exhausted(cx.sysctl) {
            return true;
        }
        let new = payload.len();
        let buf = if self.rcv.truesize() < least {
            cx.pool.try_alloc_from_reserve(new.min(least))
        } else {
            None
        };
        // Copied, as a reference would pin the whole block that the device read into.
        let Some(mut buf) = buf else {
            cx.mib.rcv_pruned += 1;
            cx.mib.rcv_q_drop += u64::from(segs);
            payload.clear();
            self.wake_reader_if_enough(cx.mem);
            return false;
        };
        for slice in payload.slices() {
            if buf.write(slice) < slice.len() {
                break;
            }
        }
        *payload = buf.freeze().into();
        payload.truncate(least);
        if payload.len() < new {
            self.rcv.ack_now();
        }
        payload.len() == new
    }

    /// Grows the window by the data received above holes. Only with SACK: without it, the peer
    /// counts duplicate ACKs, and an ACK with a different window is none (RFC 5681 2).
    fn grow_window_for_out_of_order(&mut self, cx: &Cx<'_>) {
        if cx.sysctl.tcp_moderate_rcvbuf && !cx.mem.is_under_pressure() {
            self.rcv.grow_for_out_of_order(cx.sysctl.tcp_rmem[2]);
        }
    }

    /// Updates window, ACK policy and wake-ups after `len` bytes arrived in segments of
    /// `segment_len`.
    #[inline(always)]
    fn after_arrival(
        &mut self,
        cx: &mut Cx<'_>,
        outcome: InsertOutcome,
        segment: &SegmentIn,
        (len, segment_len, segs): (u32, u32, u32),
    ) {
        if len > 0
            && matches!(
                outcome,
                InsertOutcome::InOrder { .. } | InsertOutcome::OutOfOrder
            )
        {
            let may_grow = !cx.mem.is_under_pressure();
            self.rcv.on_stored(len, segment_len, self.adv_mss, may_grow);
        }
        match outcome {
            InsertOutcome::InOrder { bytes, had_gap } => {
                self.stats.bytes_received += u64::from(bytes);
                self.rcv.on_in_order(&DataArrival {
                    now: cx.now,
                    adv_mss: self.adv_mss,
                    segs,
                    pushed: segment.repr.flags.contains(TcpFlags::PSH),
                    bytes,
                    had_gap,
                });
                if self.uncommon.is_some() {
                    cold_path();
                    self.record_rx_time(cx.now);
                    self.drop_former_edge(self.rcv.nxt());
                }
                if self.user.read_shut {
                    cold_path();
                    self.rcv.discard();
                } else {
                    self.wake_reader_if_enough(cx.mem);
                }
            }
            InsertOutcome::OutOfOrder => {
                cold_path();
                cx.mib.ofo_queue += u64::from(segs);
                let count = &mut self.uncommon_mut().rcv_ooopack;
                *count = count.wrapping_add(segs);
                if self.negotiated.sack {
                    self.grow_window_for_out_of_order(cx);
                } else {
                    self.rcv.add_dupack();
                }
                self.rcv.enter_quickack();
                cx.mib.ofo_pruned += u64::from(self.rcv.bound_out_of_order());
                // Out-of-order data takes room that `SO_RCVLOWAT` may be waiting for.
                self.wake_reader_if_enough(cx.mem);
            }
            InsertOutcome::Duplicate => {
                cold_path();
                cx.mib.delayed_ack_lost += 1;
                self.rcv.enter_quickack();
            }
            InsertOutcome::Pruned => {
                cold_path();
                cx.mib.ofo_drop += u64::from(segs);
                self.rcv.enter_quickack();
            }
        }
    }
}
