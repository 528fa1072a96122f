//! The receive side as one part: the queue, the window, and the ACK policy.

use fullsend_offload::{Chain, Pool, Slice};
use fullsend_wire::tcp::{SackBlock, SackBlocks};
use fullsend_wire::{Instant, Mss, Nanos, SeqNum, Window, WindowScale, WireWindow, cold_path};

use super::window::WindowInputs;
use super::{AckPolicy, InsertOutcome, RecvQueue, RecvWindow, SegmentPosition};
use crate::Sysctl;
use crate::memory::{MemoryPressure, TcpMemory};

/// Bytes that received data may hold beyond twice `SO_RCVBUF`, whatever the size of its segments.
/// Twice, because a segment may pin a block of four times its size, and the window is half the
/// buffer.
const RCVBUF_SLACK_BYTES: usize = 64 << 10;

/// Received data, the window offered to the peer, and the acknowledgement owed to it.
#[derive(Debug)]
pub(crate) struct Receiver {
    queue: RecvQueue,
    window: RecvWindow,
    ack: AckPolicy,
}

/// The host's state that the window depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostWindowLimits {
    memory_pressure: MemoryPressure,
    /// Largest window that memory admits, bytes.
    room: u32,
    /// `tcp_shrink_window`.
    may_shrink: bool,
}

impl HostWindowLimits {
    /// `own` is the window that the connection has offered, in bytes.
    #[inline]
    pub(crate) fn new(mem: &TcpMemory, sysctl: &Sysctl, own: u32) -> Self {
        Self {
            memory_pressure: mem.pressure(sysctl),
            room: mem.window_room(sysctl, own),
            may_shrink: sysctl.tcp_shrink_window,
        }
    }
}

/// Data that was stored in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataArrival {
    pub(crate) now: Instant,
    pub(crate) adv_mss: Mss,
    pub(crate) segs: u32,
    /// The last segment had PSH.
    pub(crate) pushed: bool,
    /// Bytes that became readable.
    pub(crate) bytes: u32,
    /// There were holes before it or remain after it.
    pub(crate) had_gap: bool,
}

impl Receiver {
    /// Returns the receiver of a new connection, before the peer's SYN.
    pub(crate) fn new(sysctl: &Sysctl) -> Self {
        Self {
            queue: RecvQueue::new(SeqNum::new(0)),
            window: RecvWindow::new(sysctl.tcp_rmem, sysctl.rmem_max),
            ack: AckPolicy::new(),
        }
    }

    /// Processes the peer's SYN: its data begins at `nxt`. `scaled`: window scaling is in use;
    /// `segment_size`: our MSS and the option bytes that reduce it.
    pub(crate) fn on_peer_syn(
        &mut self,
        now: Instant,
        nxt: SeqNum,
        scaled: bool,
        segment_size: (Mss, u32),
    ) {
        self.queue = RecvQueue::new(nxt);
        self.restart_window(now, scaled, segment_size);
        self.ack.start(nxt, segment_size.0, self.current_window());
    }

    /// Computes the initial window anew.
    pub(crate) fn restart_window(&mut self, now: Instant, scaled: bool, segment_size: (Mss, u32)) {
        let nxt = self.nxt();
        self.window.establish(now, nxt, scaled, segment_size);
    }

    /// Returns the next sequence number expected (`RCV.NXT`). A FIN counts once all data before it
    /// has arrived.
    #[inline]
    pub(crate) fn nxt(&self) -> SeqNum {
        self.queue.rcv_nxt()
    }

    /// Returns whether the peer's FIN has been received in order, so that no more data will come.
    #[inline]
    pub(crate) fn fin_received(&self) -> bool {
        self.queue.fin_received()
    }

    /// Returns whether a FIN arrived out of order, and no out-of-order data with it.
    pub(crate) fn has_only_ofo_fin(&self) -> bool {
        self.queue.has_only_ofo_fin()
    }

    /// Returns whether there are neither holes nor duplicates to report.
    #[inline]
    pub(crate) fn is_in_order(&self) -> bool {
        self.queue.is_in_order()
    }

    /// Returns the sequence number after all that arrived out of order, a FIN included.
    pub(crate) fn ofo_end(&self) -> Option<SeqNum> {
        self.queue.ofo_end()
    }

    /// Returns the number of out-of-order bytes.
    pub(crate) fn ofo_bytes(&self) -> usize {
        self.queue.ofo_bytes()
    }

    /// Returns the number of readable bytes.
    #[inline]
    pub(crate) fn readable(&self) -> usize {
        self.queue.readable()
    }

    /// Returns the bytes of memory held for all received data.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        self.queue.truesize()
    }

    /// Inserts data that begins at `seq` and does not exceed the window. `fin`: a FIN follows it.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        pool: &Pool,
        seq: SeqNum,
        data: Chain,
        fin: bool,
    ) -> InsertOutcome {
        self.queue.insert(pool, seq, data, fin)
    }

    /// Charges `len` bytes that were stored to the window, which arrived in segments of
    /// `segment_len`. `may_grow`: the window may open.
    #[inline]
    pub(crate) fn on_stored(&mut self, len: u32, segment_len: u32, adv_mss: Mss, may_grow: bool) {
        let larger = self.ack.on_segment(segment_len, adv_mss);
        if larger || self.window.is_denser(len) {
            cold_path();
            self.window.set_density(len);
        }
        self.window.on_stored(len, adv_mss, may_grow);
    }

    /// Processes data that was stored in order: measures the round trip, and decides when to
    /// acknowledge.
    #[inline(always)]
    pub(crate) fn on_in_order(&mut self, arrival: &DataArrival) {
        let nxt = self.queue.rcv_nxt();
        self.window.on_data(arrival.now, nxt, arrival.adv_mss);
        if arrival.had_gap {
            cold_path();
            self.ack.ack_now();
        } else if arrival.bytes > 0 {
            let lagging = self.window.is_lagging(nxt);
            self.ack
                .on_data(arrival.now, nxt, arrival.segs, (arrival.pushed, lagging));
        }
    }

    /// Requests another duplicate ACK for a peer without SACK, if one is due already.
    pub(crate) fn add_dupack(&mut self) {
        if self.ack.is_due() {
            self.queue.add_dupack();
        }
    }

    /// Counts an ACK that leaves. Repeats it if duplicate ACKs were requested.
    #[inline]
    pub(crate) fn repeat_dupack(&mut self) {
        if self.queue.take_dupack() {
            cold_path();
            self.ack.ack_now();
        }
    }

    /// Records a duplicate left of the window for the next ACK's DSACK.
    pub(crate) fn record_duplicate(&mut self, range: SackBlock) {
        self.queue.record_duplicate(range);
    }

    /// Returns up to `max` SACK blocks for the next ACK; a recorded DSACK comes first and is
    /// removed.
    pub(crate) fn take_sack_blocks(&mut self, max: usize) -> SackBlocks {
        self.queue.take_sack_blocks(max)
    }

    /// Discards out-of-order data, the highest first, until `bytes` of memory are free. Returns
    /// whether there was any.
    pub(crate) fn prune(&mut self, bytes: usize) -> bool {
        let before = self.queue.buffered();
        let pruned = self.queue.prune(bytes);
        let held = self.queue.buffered();
        self.window.uncharge(before - held, held);
        pruned
    }

    /// Bounds the memory of out-of-order data, however small its segments are. The furthest is
    /// discarded (RFC 2018 8 permits this), and retransmitted by the peer. Returns whether any was.
    pub(crate) fn bound_out_of_order(&mut self) -> bool {
        let most = 2 * self.window.rcvbuf() as usize + RCVBUF_SLACK_BYTES;
        let held = self.queue.truesize();
        held > most && self.prune(held - most)
    }

    /// Grows the window by the data received above holes, up to a buffer of `most` bytes.
    pub(crate) fn grow_for_out_of_order(&mut self, most: u32) {
        if let Some(end) = self.queue.ofo_data_end() {
            self.window.on_out_of_order((self.nxt(), end), most);
        }
    }

    /// Discards all data, since the reader is gone.
    pub(crate) fn discard(&mut self) {
        self.queue.clear();
        self.window.uncharge(0, 0);
    }

    /// Copies readable bytes to `out` and removes them.
    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        self.queue.read(out)
    }

    /// Removes up to `max` readable bytes without copying.
    pub(crate) fn read_chain(&mut self, max: usize) -> Chain {
        self.queue.read_chain(max)
    }

    /// Removes the first slice, or its first `max` bytes.
    pub(crate) fn read_slice(&mut self, pool: &Pool, max: usize) -> Slice {
        self.queue.read_slice(pool, max)
    }

    /// Copies readable bytes to `out` without removing them.
    pub(crate) fn peek(&self, out: &mut [u8]) -> usize {
        self.queue.peek(out)
    }

    /// Processes a read of `n` bytes. `autotune` is the largest buffer (`tcp_rmem[2]`), unless the
    /// buffer is fixed, and whether it may grow. Returns whether the caller must check for a window
    /// update: less than half of the window is open, and no acknowledgement is due.
    #[inline(always)]
    pub(crate) fn on_read(
        &mut self,
        now: Instant,
        n: usize,
        adv_mss: Mss,
        autotune: Option<(u32, bool)>,
    ) -> bool {
        let held = self.queue.readable();
        self.window.uncharge(n, self.queue.buffered());
        if let Some((most, may_grow)) = autotune {
            self.window.on_read(now, (n, held), adv_mss, most, may_grow);
        }
        if self.queue.fin_received() {
            cold_path();
            return false;
        }
        let ack_is_due = (held == 0 && self.ack.on_all_read()) || self.ack.on_read();
        !ack_is_due && !self.window.is_half_open(self.queue.rcv_nxt())
    }

    fn window_inputs(&self, host: HostWindowLimits) -> WindowInputs {
        WindowInputs {
            rcv_nxt: self.queue.rcv_nxt(),
            acked: self.ack.last_acked(),
            mss: self.ack.rcv_mss(),
            memory_pressure: host.memory_pressure,
            room: host.room,
            may_shrink: host.may_shrink,
        }
    }

    /// Returns whether the window can grow by much.
    pub(crate) fn is_window_update_due(&self, host: HostWindowLimits) -> bool {
        self.window.is_update_due(self.window_inputs(host))
    }

    /// Returns whether the window exceeds the field of a SYN.
    pub(crate) fn exceeds_syn_field(&self) -> bool {
        self.window.exceeds_syn_field()
    }

    /// Returns the window field of a segment that leaves now, and the former right edge if the
    /// window shrank.
    #[inline]
    pub(crate) fn advertise(&mut self, host: HostWindowLimits) -> (WireWindow, Option<SeqNum>) {
        let before = self.window.right_edge();
        let inputs = self.window_inputs(host);
        let field = self.window.advertise(inputs);
        let shrank = self.window.right_edge().before(before);
        (field, shrank.then_some(before))
    }

    /// Closes the window, and acknowledges at once. Returns its former right edge.
    pub(crate) fn close_window(&mut self) -> SeqNum {
        let before = self.window.right_edge();
        self.window.withdraw(self.queue.rcv_nxt());
        self.ack.ack_now();
        before
    }

    /// Acknowledges at once if the window must shrink, so that the sender learns it immediately.
    #[inline]
    pub(crate) fn ack_if_over_rcvbuf(&mut self) {
        if self.window.is_over_rcvbuf() {
            cold_path();
            self.ack.ack_now();
        }
    }

    /// Returns the window field of a SYN.
    pub(crate) fn syn_window(&self, segment_size: (Mss, u32)) -> WireWindow {
        self.window.syn_window(segment_size)
    }

    /// Returns the bytes that the peer may send now, of which none has arrived.
    #[inline]
    pub(crate) fn open_window(&self) -> u32 {
        if self.queue.fin_received() {
            return 0;
        }
        self.window.current(self.queue.rcv_nxt()).0
    }

    /// Returns the bytes from `nxt` on that the last advertised window admits.
    pub(crate) fn current_window(&self) -> Window {
        self.window.current(self.queue.rcv_nxt())
    }

    /// Returns the bytes from `seq` on that the last advertised window admits.
    pub(crate) fn window_from(&self, seq: SeqNum) -> Window {
        self.window.current(seq)
    }

    /// Returns the largest window that was offered.
    pub(crate) fn largest_offered(&self) -> u32 {
        self.window.largest_offered()
    }

    /// Returns the position of a segment relative to the window. `range` is its sequence number, its
    /// length, and whether it has a FIN.
    #[inline]
    pub(crate) fn position(
        &self,
        range: (SeqNum, u32, bool),
        furthest: impl FnOnce() -> Option<SeqNum>,
    ) -> SegmentPosition {
        let starved = self.queue.readable() == 0;
        self.window
            .position(self.queue.rcv_nxt(), range, starved, furthest)
    }

    /// Returns whether the window does not admit a segment at `seq`.
    #[inline]
    pub(crate) fn is_closed_at(&self, seq: SeqNum) -> bool {
        self.window.is_closed_at(self.queue.rcv_nxt(), seq)
    }

    /// Returns whether the data from `seq` to `end` is the next that the reader waits for while only
    /// out-of-order data fills the buffer, which was made smaller. It must be accepted though the
    /// window is closed: no read can open it.
    pub(crate) fn is_blocked_by_hole(&self, seq: SeqNum, end: SeqNum) -> bool {
        let nxt = self.queue.rcv_nxt();
        self.queue.readable() == 0
            && self.queue.ofo_bytes() > 0
            && seq.before_eq(nxt)
            && end.after(nxt)
    }

    /// Returns whether more data waits for the reader than the buffer may hold.
    #[inline]
    pub(crate) fn is_overfull(&self) -> bool {
        self.queue.readable() > self.window.rcvbuf() as usize
    }

    /// Returns whether the peer can send less than a full segment, or seven eighths of the buffer are
    /// used, so that the application should read what has arrived.
    #[inline]
    pub(crate) fn is_nearly_full(&self) -> bool {
        let nxt = self.queue.rcv_nxt();
        self.window.is_nearly_full(nxt, self.ack.rcv_mss())
    }

    /// Returns the largest receive buffer: that of autotuning, which is `most`, or the fixed one.
    pub(crate) fn max_rcvbuf(&self, most: u32) -> u32 {
        if self.window.is_fixed() {
            self.window.rcvbuf()
        } else {
            most
        }
    }

    /// Grows the receive buffer to hold `lowat` bytes of data, up to `most`, unless it is fixed.
    pub(crate) fn grow_for_lowat(&mut self, lowat: u32, most: u32) {
        self.window.grow_for_lowat(lowat, most);
    }

    /// Returns the receive buffer in bytes (`SO_RCVBUF`).
    #[inline]
    pub(crate) fn rcvbuf(&self) -> u32 {
        self.window.rcvbuf()
    }

    /// Sets the receive buffer, which then no longer grows by itself.
    pub(crate) fn set_rcvbuf(&mut self, bytes: u32) {
        self.window.set_rcvbuf(bytes);
    }

    /// Sets `TCP_WINDOW_CLAMP`.
    pub(crate) fn set_window_clamp(&mut self, bytes: u32) {
        self.window.set_clamp(bytes);
    }

    /// Returns the scale of the windows that we send.
    #[inline]
    pub(crate) fn scale(&self) -> WindowScale {
        self.window.scale()
    }

    /// Sets the scale that our SYN-ACK offered.
    pub(crate) fn set_scale(&mut self, scale: WindowScale) {
        self.window.set_scale(scale);
    }

    /// Chooses the scale for a buffer of `most` bytes.
    pub(crate) fn choose_scale(&mut self, most: u32) {
        self.window.choose_scale(most);
    }

    /// Disables autotuning of the buffer until the application has accepted the connection.
    pub(crate) fn set_awaiting_accept(&mut self, awaiting_accept: bool) {
        self.window.set_awaiting_accept(awaiting_accept);
    }

    /// Processes a round trip time that the sender measured.
    #[inline]
    pub(crate) fn on_rtt(&mut self, rtt: Nanos) {
        self.window.on_rtt(rtt);
    }

    /// Returns the round trip time as the receiver measures it (`tcpi_rcv_rtt`).
    pub(crate) fn rtt(&self) -> Option<Nanos> {
        self.window.rtt()
    }

    /// Returns the largest window offered now (`tcpi_rcv_ssthresh`).
    pub(crate) fn rcv_ssthresh(&self) -> u32 {
        self.window.rcv_ssthresh()
    }

    /// Returns `tcpi_rcv_space`.
    pub(crate) fn rcv_space(&self, adv_mss: Mss) -> u32 {
        self.window.rcv_space(adv_mss)
    }

    /// Returns when data last arrived; before the first data, when the connection was established.
    pub(crate) fn last_data(&self) -> Instant {
        self.ack.last_data().max(self.window.timed_since())
    }

    /// Makes an acknowledgement due at once.
    #[inline]
    pub(crate) fn ack_now(&mut self) {
        self.ack.ack_now();
    }

    /// Makes an acknowledgement due at once, and for each of the next segments, after loss or
    /// reordering.
    pub(crate) fn enter_quickack(&mut self) {
        self.ack.enter_quickack();
    }

    /// Delays the acknowledgement for a write that will follow and carry it.
    pub(crate) fn delay_ack_for_write(&mut self, now: Instant) {
        self.ack.delay_for_write(now);
    }

    /// Schedules the acknowledgement of the peer's FIN.
    pub(crate) fn on_fin(&mut self, now: Instant) {
        self.ack.on_fin(now, self.queue.rcv_nxt());
    }

    /// Returns whether an acknowledgement is due.
    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.ack.is_due()
    }

    /// Returns when [`on_ack_timer`](Self::on_ack_timer) is to be called.
    #[inline]
    pub(crate) fn ack_deadline(&self) -> Instant {
        self.ack.deadline()
    }

    /// Processes the end of the acknowledgement's delay. Returns whether it made one due.
    pub(crate) fn on_ack_timer(&mut self, now: Instant) -> bool {
        self.ack.on_timer(now)
    }

    /// Cancels a delayed acknowledgement at the connection's end; a due one stays due.
    pub(crate) fn cancel_ack_delay(&mut self) {
        self.ack.cancel_delay();
    }

    /// Cancels the acknowledgement, due or delayed: the connection has ended.
    pub(crate) fn cancel_ack(&mut self) {
        self.ack.cancel();
    }

    /// Records that a segment that acknowledges all received data leaves.
    #[inline]
    pub(crate) fn on_ack_sent(&mut self) {
        self.ack.on_sent(self.queue.rcv_nxt());
    }

    /// Records that new data of ours is sent.
    #[inline]
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        self.ack.on_data_sent(now);
    }

    /// Records that no more data of ours will follow.
    pub(crate) fn end_interactive(&mut self) {
        self.ack.end_interactive();
    }

    /// Returns `Last.ACK.sent` (RFC 7323 4.3).
    #[inline]
    pub(crate) fn last_acked(&self) -> SeqNum {
        self.ack.last_acked()
    }

    /// Returns the payload of a full segment, as observed, in bytes.
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.ack.rcv_mss()
    }

    /// Returns `TCP_QUICKACK`.
    pub(crate) fn is_quickack(&self) -> bool {
        self.ack.is_quickack()
    }

    /// Sets `TCP_QUICKACK`.
    pub(crate) fn set_quickack(&mut self, on: bool) {
        self.ack.set_quickack(on);
    }
}
