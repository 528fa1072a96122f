//! Building segments: the header that every segment carries.

use fullsend_offload::Chain;
use fullsend_wire::tcp::{SackBlocks, TcpFlags, TcpOptions, TcpRepr, Timestamps};
use fullsend_wire::{EcnField, Instant, SeqNum, WireWindow, cold_path};

use super::Connection;
use crate::recv::HostWindowLimits;
use crate::send::Reset;
use crate::{Cx, SegmentOut};

/// A segment about to be built.
pub(crate) struct SegmentPlan {
    pub(crate) seq: SeqNum,
    pub(crate) flags: TcpFlags,
    pub(crate) payload: Chain,
    pub(crate) segs: u32,
    pub(crate) truesize: u32,
    /// Departure time; zero means at once.
    pub(crate) departure: Instant,
    /// Ticks by which its TSval is behind the clock.
    pub(crate) tsval_lag: u32,
    /// The data is not a retransmission.
    pub(crate) is_new_data: bool,
}

impl SegmentPlan {
    /// Returns an ACK without data.
    pub(super) fn empty(seq: SeqNum) -> Self {
        Self {
            seq,
            flags: TcpFlags::ACK,
            payload: Chain::new(),
            segs: 1,
            truesize: 0,
            departure: Instant::ZERO,
            tsval_lag: 0,
            is_new_data: false,
        }
    }
}

impl Connection {
    /// Builds a segment: adds the acknowledgement, the window, the options and the ECN field.
    #[inline(always)]
    pub(super) fn build(&mut self, cx: &Cx<'_>, plan: SegmentPlan) -> SegmentOut {
        let rcv_nxt = self.rcv.nxt();
        let window = self.window_field(cx);
        let sack = self.sack_blocks(plan.payload.len());
        // SACK blocks that did not fit are sent with a pure ACK.
        if sack.is_some() || !self.rcv.is_ack_due() {
            self.rcv.on_ack_sent();
        }
        if !self.negotiated.sack {
            cold_path();
            self.rcv.repeat_dupack();
        }
        self.stats.segs_out = self.stats.segs_out.wrapping_add(plan.segs);
        let options = TcpOptions {
            timestamps: self.timestamps(cx, plan.tsval_lag),
            sack: sack.unwrap_or_default(),
            ..TcpOptions::default()
        };
        let mut segment = SegmentOut {
            repr: TcpRepr {
                src_port: self.local_port,
                dst_port: self.remote_port,
                seq: plan.seq,
                ack: rcv_nxt,
                flags: plan.flags,
                window,
                urgent: 0,
                options,
            },
            gso_size: if plan.segs > 1 {
                self.snd.mss().get()
            } else {
                0
            },
            gso_segs: plan.segs as u16,
            payload: plan.payload,
            ecn: EcnField::NotEct,
            repeats_cwr: false,
            departure: plan.departure,
            truesize: plan.truesize,
        };
        if self.ecn.is_some() {
            cold_path();
            self.mark_ecn(cx, &mut segment, plan.is_new_data);
        }
        if self.uncommon.is_some() {
            cold_path();
            self.set_urgent_pointer(&mut segment.repr);
        }
        segment
    }

    /// RFC 7323 3.2.
    #[inline(always)]
    fn timestamps(&self, cx: &Cx<'_>, lag: u32) -> Option<Timestamps> {
        self.negotiated.timestamps.then(|| Timestamps {
            val: self.ts.value(cx.now).wrapping_sub(lag),
            ecr: self.ts.recent,
        })
    }

    /// Returns the SACK blocks for a segment with `len` bytes of payload; `None` if there are
    /// blocks to send and no room for them.
    #[inline]
    fn sack_blocks(&mut self, len: usize) -> Option<SackBlocks> {
        if self.negotiated.sack && !self.rcv.is_in_order() {
            cold_path();
            self.fitting_sack_blocks(len)
        } else {
            Some(SackBlocks::default())
        }
    }

    fn fitting_sack_blocks(&mut self, len: usize) -> Option<SackBlocks> {
        // Beside timestamps three blocks fit into the header's 40 bytes of options.
        let max = if self.negotiated.timestamps { 3 } else { 4 };
        if len > 0 && len + 4 + 8 * max > self.snd.mss().bytes() as usize {
            let nothing_new = self.rcv.ofo_bytes() == 0;
            return nothing_new.then(SackBlocks::default);
        }
        Some(self.rcv.take_sack_blocks(max))
    }

    /// Returns the window field for a segment that leaves now.
    #[inline]
    pub(crate) fn window_field(&mut self, cx: &Cx<'_>) -> WireWindow {
        let limits = HostWindowLimits::new(cx.mem, cx.sysctl, self.mem_window);
        let (field, former_edge) = self.rcv.advertise(limits);
        if let Some(edge) = former_edge {
            cold_path();
            self.record_former_edge(edge);
            self.wake_reader_if_enough(cx.mem);
        }
        field
    }

    /// RFC 9293 3.10.7.1, 3.10.5.
    pub(super) fn build_reset(&mut self, cx: &mut Cx<'_>, reset: Reset) -> SegmentOut {
        cx.mib.out_rsts += 1;
        cx.mib.out_segs += 1;
        let mut options = TcpOptions::default();
        let mut window = WireWindow::default();
        let (seq, ack, flags) = match reset {
            Reset::WithSeq(seq) => (seq, SeqNum::new(0), TcpFlags::RST),
            Reset::Abort => {
                options.timestamps = self.timestamps(cx, 0);
                window = self.window_field(cx);
                // The peer accepts a RST only within its window (RFC 9293 3.10.7.4).
                (
                    self.snd.acceptable_seq(),
                    self.rcv.nxt(),
                    TcpFlags::RST.union(TcpFlags::ACK),
                )
            }
        };
        SegmentOut {
            repr: TcpRepr {
                src_port: self.local_port,
                dst_port: self.remote_port,
                seq,
                ack,
                flags,
                window,
                options,
                ..TcpRepr::default()
            },
            payload: Chain::new(),
            gso_size: 0,
            gso_segs: 1,
            ecn: EcnField::NotEct,
            repeats_cwr: false,
            departure: Instant::ZERO,
            truesize: 0,
        }
    }
}
