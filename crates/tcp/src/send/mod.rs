//! The sending side: unsent data, when it may leave, and how it is cut into super-segments.

mod autosize;
mod buffer;
mod data;
mod flow;
mod limits;
mod nagle;
mod pacing;
mod pending;
#[cfg(test)]
mod properties;
mod push;
mod records;
mod report;
mod retransmit;
mod small_queue;
mod split;
mod write_queue;

use flow::FlowState;
pub(crate) use limits::{BlockedBy, SendCx, SendDecision};
pub(crate) use nagle::Nagle;
use pacing::Pacing;
pub(crate) use pacing::Path;
use pending::Pending;
pub(crate) use pending::Reset;
pub use push::AppendOutcome;
pub(crate) use push::WriteCx;
pub(crate) use records::Records;
pub use report::{FlowReport, Histogram, SendLimit};
pub(crate) use small_queue::Transmission;
use write_queue::{SUPER_SEGMENT_OVERHEAD_BYTES, TakenData, WriteQueue};

use alloc::boxed::Box;

use fullsend_wire::{Instant, Mss, Rate, SeqNum, Window, WindowScale};

use crate::Cx;

/// The state of our FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FinState {
    None,
    Queued,
    Sent,
}

/// The variables of the send side (RFC 9293 3.3.1), unsent data, and what limits its transmission.
#[derive(Debug)]
pub(crate) struct Sender {
    una: SeqNum,
    nxt: SeqNum,
    /// `SND.WL1`: sequence number of the last window update.
    wl1: SeqNum,
    /// Window that the peer offered, in bytes from `una`.
    wnd: u32,
    /// The largest window that the peer ever offered.
    max_wnd: u32,
    scale: WindowScale,
    /// End of the last write that ended in a short segment (Minshall).
    sml: SeqNum,
    /// Sequence number up to which the writer last requested PSH.
    pushed_seq: SeqNum,
    /// Payload bytes of a full segment.
    mss: Mss,
    /// Limit of the peer and the application on a segment's payload and options, in bytes.
    mss_clamp: u16,
    /// Path MTU in bytes, IP header included.
    pmtu: u32,
    ip_header_len: u16,
    fin: FinState,
    blocked_by: BlockedBy,
    /// The last write announced more data (`MSG_MORE`).
    msg_more: bool,
    /// The device's next completion triggers an attempt to send.
    throttled: bool,
    sndbuf_locked: bool,
    sndbuf: u32,
    /// Bytes passed to the device and not completed (spec: `sk_wmem_alloc`).
    wmem_inflight: u32,
    /// Size to which a write fills a super-segment, and the device limit that it was computed for.
    size_goal: u32,
    size_goal_for: u32,
    queue: WriteQueue,
    pending: Pending,
    /// The time at which data was last sent.
    last_sent: Instant,
    pacing: Option<Box<Pacing>>,
    /// Created when data is first sent.
    flow: Option<Box<FlowState>>,
}

impl Sender {
    /// Returns the sender of a new connection, whose SYN or SYN-ACK is to be sent.
    pub(crate) fn new(cx: &Cx<'_>, iss: SeqNum, mss: Mss, ip_header_len: u16) -> Self {
        Self {
            una: iss,
            nxt: iss,
            wl1: SeqNum::new(0),
            wnd: 0,
            max_wnd: 0,
            scale: WindowScale::ZERO,
            sml: iss,
            pushed_seq: iss,
            mss,
            mss_clamp: u16::MAX,
            pmtu: cx.device.mtu,
            ip_header_len,
            fin: FinState::None,
            blocked_by: BlockedBy::Nothing,
            msg_more: false,
            throttled: false,
            sndbuf_locked: false,
            sndbuf: cx.sysctl.tcp_wmem[1],
            wmem_inflight: 0,
            size_goal: mss.bytes(),
            size_goal_for: 0,
            queue: WriteQueue::new(),
            pending: Pending::with_syn(),
            last_sent: cx.now,
            pacing: None,
            flow: None,
        }
    }

    /// Returns the oldest sequence number that is not acknowledged (`SND.UNA`).
    #[inline]
    pub(crate) fn una(&self) -> SeqNum {
        self.una
    }

    /// Returns the next sequence number to send (`SND.NXT`).
    #[inline]
    pub(crate) fn nxt(&self) -> SeqNum {
        self.nxt
    }

    /// Returns the bytes that the peer's window admits from `una` on (`SND.WND`).
    #[inline]
    pub(crate) fn wnd(&self) -> u32 {
        self.wnd
    }

    /// Returns the largest window that the peer ever offered, in bytes.
    #[inline]
    pub(crate) fn max_wnd(&self) -> u32 {
        self.max_wnd
    }

    /// Returns the scale of the windows that the peer sends.
    #[inline]
    pub(crate) fn scale(&self) -> WindowScale {
        self.scale
    }

    /// Returns the payload bytes of a full segment.
    #[inline]
    pub(crate) fn mss(&self) -> Mss {
        self.mss
    }

    /// Returns the limit of the peer and the application on a segment's payload and options.
    #[inline]
    pub(crate) fn mss_clamp(&self) -> u16 {
        self.mss_clamp
    }

    /// Limits a segment's payload and options to `most` bytes.
    pub(crate) fn limit_mss_clamp(&mut self, most: u16) {
        self.mss_clamp = self.mss_clamp.min(most);
    }

    /// Sets the payload bytes of a full segment. Returns whether they changed.
    pub(crate) fn set_mss(&mut self, mss: Mss) -> bool {
        let changed = mss != self.mss;
        self.mss = mss;
        changed
    }

    /// Returns the path MTU in bytes, IP header included.
    pub(crate) fn pmtu(&self) -> u32 {
        self.pmtu
    }

    /// Reduces the path MTU. Returns `false` if it is not larger than `mtu` already.
    pub(crate) fn shrink_pmtu(&mut self, mtu: u32) -> bool {
        let smaller = mtu < self.pmtu;
        self.pmtu = self.pmtu.min(mtu);
        smaller
    }

    /// Returns the bytes of the IP header.
    pub(crate) fn ip_header_len(&self) -> u16 {
        self.ip_header_len
    }

    /// Returns when data was last sent.
    pub(crate) fn last_sent(&self) -> Instant {
        self.last_sent
    }

    /// Returns the bytes that the window admits from `nxt` on; 0 if the peer shrank its window.
    #[inline]
    pub(crate) fn usable_window(&self) -> u32 {
        (self.una + self.wnd).distance(self.nxt).max(0) as u32
    }

    /// Returns whether data beyond the peer's window was sent: as a probe, or before the peer
    /// shrank it.
    pub(crate) fn exceeds_window(&self) -> bool {
        self.nxt.after(self.una + self.wnd)
    }

    /// Returns the sequence number of a segment without payload. If the peer shrank its window,
    /// `nxt` lies outside it: two peers that both did so would drop each other's ACKs for ever.
    #[inline]
    pub(crate) fn acceptable_seq(&self) -> SeqNum {
        self.nxt.earliest(self.una + self.wnd)
    }

    /// Returns the payload bytes sent and not acknowledged.
    pub(crate) fn bytes_in_flight(&self) -> u32 {
        let fin = u32::from(self.fin == FinState::Sent && self.una != self.nxt);
        self.nxt.since(self.una).saturating_sub(fin)
    }

    /// Returns the bytes written and not sent.
    #[inline]
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.queue.len()
    }

    /// Returns the sequence number after the last byte written.
    #[inline]
    pub(crate) fn write_seq(&self) -> SeqNum {
        self.nxt + self.queue.len() as u32
    }

    /// Returns whether data or a FIN waits for its first transmission.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        !self.queue.is_empty() || self.fin == FinState::Queued
    }

    /// Returns whether the application has ended the stream.
    pub(crate) fn has_fin(&self) -> bool {
        self.fin != FinState::None
    }

    /// Returns whether our FIN is acknowledged.
    pub(crate) fn is_fin_acked(&self) -> bool {
        self.fin == FinState::Sent && self.una == self.nxt
    }

    /// Returns the bytes of memory held by unsent data.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        self.queue.truesize()
    }

    /// Returns the requests to the next `poll_transmit`.
    #[inline]
    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Returns the requests to the next `poll_transmit`, to add one.
    #[inline]
    pub(crate) fn pending_mut(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// Requests an attempt to send what waits, as cwnd or the window may admit more of it: data, or
    /// retransmissions if `has_lost`.
    #[inline]
    pub(crate) fn on_limits_changed(&mut self, has_lost: bool) {
        if has_lost || self.has_unsent() {
            self.pending.retry();
        }
    }

    /// Processes the variables of the peer's SYN, whose window is never scaled (RFC 7323 2.2).
    pub(crate) fn on_peer_syn(&mut self, seq: SeqNum, window: u16, scale: Option<WindowScale>) {
        self.scale = scale.unwrap_or(self.scale);
        self.wnd = window.into();
        self.max_wnd = self.wnd;
        self.wl1 = seq;
    }

    /// Counts the window from after our SYN, which data follows while it is in flight.
    pub(crate) fn exclude_syn_from_window(&mut self) {
        self.wnd += 1;
    }

    /// Records that our SYN was sent for the first time.
    pub(crate) fn on_syn_sent(&mut self) {
        self.sml = self.una;
        self.nxt = self.una + 1;
        self.pushed_seq = self.nxt;
    }

    /// Processes the acknowledgement of our SYN, which begins the transfer of data.
    pub(crate) fn on_established(
        &mut self,
        now: Instant,
        ack: SeqNum,
        seq: SeqNum,
        window: Window,
    ) {
        self.una = ack;
        self.wnd = window.0;
        self.max_wnd = self.max_wnd.max(window.0);
        self.wl1 = seq;
        self.last_sent = now;
    }

    /// Takes unsent data to be sent with the SYN, at most `room` bytes. Returns its sequence
    /// number.
    pub(crate) fn take_syn_data(&mut self, room: usize) -> (SeqNum, TakenData) {
        let seq = self.nxt;
        let taken = self.queue.take(room);
        if !taken.payload.is_empty() {
            self.nxt += taken.payload.len() as u32;
            self.pushed_seq = self.nxt;
        }
        (seq, taken)
    }

    /// Begins the processing of an acceptable ACK: ends the limits that last until the next event.
    #[inline]
    pub(crate) fn begin_ack(&mut self, max_burst: bool) {
        // A MSG_MORE write is deferred only until the next event.
        self.msg_more = false;
        self.end_autocork();
        if max_burst {
            self.reset_burst();
        }
    }

    /// Returns whether the window of a segment, in bytes, is an update (RFC 9293 3.10.7.4, SND.WL1
    /// and SND.WL2).
    #[inline]
    pub(crate) fn is_window_update(&self, seq: SeqNum, ack: SeqNum, window: u32) -> bool {
        ack.after(self.una)
            || seq.after(self.wl1)
            || (seq == self.wl1 && (window > self.wnd || window == 0))
    }

    /// Sets the window that the segment at `seq` offers, in bytes. Returns whether it is the
    /// largest so far.
    #[inline]
    pub(crate) fn set_window(&mut self, seq: SeqNum, window: u32) -> bool {
        self.wl1 = seq;
        self.wnd = window;
        let largest = window > self.max_wnd;
        self.max_wnd = self.max_wnd.max(window);
        largest
    }

    /// Advances `una` to `ack`.
    #[inline]
    pub(crate) fn advance_una(&mut self, ack: SeqNum) {
        self.una = ack;
    }

    /// Queues a FIN after all data written.
    pub(crate) fn queue_fin(&mut self) {
        self.fin = FinState::Queued;
        self.msg_more = false;
        self.pending.retry();
    }

    /// Drops all unsent data and all requests except that of a RST.
    pub(crate) fn end(&mut self) {
        self.queue.clear();
        self.pacing = None;
        if let Some(flow) = &mut self.flow {
            flow.set_send_timer(Instant::FAR_FUTURE);
        }
        if self.fin == FinState::Queued {
            self.fin = FinState::None;
        }
        self.pending.end();
    }

    /// Returns the bytes passed to the device and not completed.
    #[inline]
    pub(crate) fn wmem_inflight(&self) -> u32 {
        self.wmem_inflight
    }

    /// Enables pacing for a congestion control that determines the rate.
    pub(crate) fn enable_pacing(&mut self) {
        let new_pacing = || Box::new(Pacing::new(Rate::UNLIMITED));
        self.pacing.get_or_insert_with(new_pacing);
    }

    /// Sets `SO_MAX_PACING_RATE`.
    pub(crate) fn set_max_pacing_rate(&mut self, rate: Rate) {
        match &mut self.pacing {
            Some(pacing) => pacing.max_rate = rate,
            none if rate != Rate::UNLIMITED => *none = Some(Box::new(Pacing::new(rate))),
            _ => {}
        }
    }

    /// Returns `SO_MAX_PACING_RATE`.
    pub(crate) fn max_pacing_rate(&self) -> Rate {
        self.pacing.as_ref().map_or(Rate::UNLIMITED, |p| p.max_rate)
    }
}
