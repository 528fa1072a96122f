//! The receive window: as large as the path needs and the buffer allows, without silly window
//! syndrome, and not shrunk unless memory is exhausted.

use fullsend_wire::{Instant, Mss, Nanos, SeqNum, Window, WindowScale, WireWindow, cold_path};

mod charge;
#[cfg(test)]
mod tests;
mod tuning;

use crate::memory::MemoryPressure;
use charge::{Density, remaining_charge, truesize_of};

/// Segments of a sender's first round trip (RFC 6928). Growth is measured from there, not from a
/// short request before it.
const FIRST_SEGS: u32 = 10;

/// Segments that a window limited by memory pressure still offers.
const PRESSURE_SEGS: u32 = 4;

/// Length in bytes of a GRO packet that wastes little memory.
const LONG_GRO_BYTES: u32 = 16_384;

/// Least payload of a segment that shows that its sender has data to fill a window.
const MIN_GROWTH_BYTES: u32 = 128;

/// The way in which the buffer's size is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tuning {
    /// By autotuning.
    Auto,
    /// By autotuning, and the sender has used up the window since the buffer last grew.
    Exhausted,
    /// By autotuning, once the application has accepted the connection.
    AwaitingAccept,
    /// By `SO_RCVBUF`.
    Locked,
    /// By `TCP_WINDOW_CLAMP`, whose value is in `read_per_rtt`, which autotuning does not use then.
    Clamped,
}

/// The receive window and the autotuning of the receive buffer.
///
/// `rcvbuf` counts bytes of memory as Linux does. The window is the amount of data that the free
/// memory holds at the observed density.
#[derive(Clone, Debug)]
pub(crate) struct RecvWindow {
    rcvbuf: u32,
    /// Memory charged for received data that is not read yet (`sk_rmem_alloc`).
    rmem_alloc: u32,
    /// `rcv_ssthresh`: the largest window offered now; it grows as data arrives.
    ssthresh: u32,
    /// The advertised right edge: the peer may send up to here.
    right_edge: SeqNum,
    /// Bytes read in the last whole round trip.
    read_per_rtt: u32,
    /// Bytes read since `round_us`.
    read_this_rtt: u32,
    /// Start of the present round trip in microseconds, which may wrap.
    round_us: u32,
    /// Round trip time as the receiver measures it, in microseconds; `MAX` before the first sample.
    rtt_us: u32,
    /// End of the window of data whose arrival is being timed.
    timed_until: SeqNum,
    timed_since: Instant,
    /// The shift offered on our SYN.
    offered_scale: WindowScale,
    /// The shift in force.
    scale_in_force: WindowScale,
    tuning: Tuning,
    density: Density,
}

/// The inputs of a window to be advertised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowInputs {
    pub(crate) rcv_nxt: SeqNum,
    /// `rcv_nxt` as last acknowledged.
    pub(crate) acked: SeqNum,
    /// Payload of a full segment, as observed, in bytes.
    pub(crate) mss: u32,
    pub(crate) memory_pressure: MemoryPressure,
    /// Largest window that the host's memory admits, bytes.
    pub(crate) room: u32,
    /// `tcp_shrink_window`.
    pub(crate) may_shrink: bool,
}

/// The position of an arriving segment relative to the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentPosition {
    /// The segment may have new data, which is accepted.
    Within,
    /// All of the segment was received before.
    Before,
    /// The segment ends beyond every window ever offered, and is not accepted.
    Beyond,
}

impl RecvWindow {
    /// Returns a window with the initial buffer `rmem[1]` (`tcp_rmem`) and a scale chosen for the larger
    /// of `rmem[2]` and `rmem_max`.
    pub(crate) fn new(rmem: [u32; 3], rmem_max: u32) -> Self {
        Self {
            rcvbuf: rmem[1].clamp(rmem[0], rmem[2].max(rmem[0])),
            rmem_alloc: 0,
            ssthresh: u32::MAX,
            right_edge: SeqNum::new(0),
            read_per_rtt: 0,
            read_this_rtt: 0,
            round_us: 0,
            rtt_us: u32::MAX,
            timed_until: SeqNum::new(0),
            timed_since: Instant::ZERO,
            offered_scale: WindowScale::for_window(Window(rmem[2].max(rmem_max))),
            scale_in_force: WindowScale::ZERO,
            tuning: Tuning::Auto,
            density: Density::FIRST,
        }
    }

    /// Returns the round trip time as the receiver measures it (`tcpi_rcv_rtt`).
    pub(crate) fn rtt(&self) -> Option<Nanos> {
        let known = self.rtt_us != u32::MAX;
        known.then(|| Nanos::from_micros(self.rtt_us.into()))
    }

    /// Returns the largest window offered now (`tcpi_rcv_ssthresh`).
    pub(crate) fn rcv_ssthresh(&self) -> u32 {
        self.ssthresh.min(self.limit())
    }

    /// Returns the bytes that autotuning expects to be read in a round trip (`tcpi_rcv_space`).
    pub(crate) fn rcv_space(&self, mss: Mss) -> u32 {
        let first = (FIRST_SEGS * mss.bytes()).min(self.limit());
        match self.tuning {
            Tuning::Locked | Tuning::Clamped => first,
            _ => self.read_per_rtt.max(first),
        }
    }

    /// Returns the shift to offer on our SYN.
    pub(crate) fn scale(&self) -> WindowScale {
        self.offered_scale
    }

    /// Sets the shift that an earlier SYN-ACK offered and the peer has agreed to.
    pub(crate) fn set_scale(&mut self, scale: WindowScale) {
        self.offered_scale = scale;
        self.scale_in_force = scale;
    }

    /// Chooses the shift to offer for a window of `most` bytes, or for the buffer or clamp that the
    /// application set.
    pub(crate) fn choose_scale(&mut self, most: u32) {
        let most = match self.tuning {
            Tuning::Locked => self.limit(),
            Tuning::Clamped => most.max(self.full_window()).min(self.read_per_rtt),
            _ => most.max(self.limit()),
        };
        self.offered_scale = WindowScale::for_window(Window(most));
    }

    /// Begins at the handshake's end. `scaled`: both sides sent the option; `rcv_nxt`: the peer's first
    /// byte of data; `mss` and `options`: as for [`syn_window`](Self::syn_window).
    pub(crate) fn establish(
        &mut self,
        now: Instant,
        rcv_nxt: SeqNum,
        scaled: bool,
        (mss, options): (Mss, u32),
    ) {
        if scaled {
            self.scale_in_force = self.offered_scale;
        }
        // The window that the SYN advertised, in bytes.
        let advertised = u32::from(self.syn_window((mss, options)).0);
        self.right_edge = rcv_nxt + advertised;
        // As on Linux, the first window leaves room for one more segment.
        let (mss, limit) = (mss.bytes(), self.limit());
        let most = if self.tuning == Tuning::Clamped {
            limit
        } else {
            limit.saturating_sub(mss).max(2 * mss)
        };
        self.ssthresh = advertised.min(most);
        self.round_us = micros(now);
        self.timed_since = now;
        self.timed_until = self.right_edge;
    }

    /// Returns the window field for a SYN or SYN-ACK, which is never scaled (RFC 7323 2.2): a multiple
    /// of `mss` less the bytes of `options` in each segment.
    pub(crate) fn syn_window(&self, (mss, options): (Mss, u32)) -> WireWindow {
        let (limit, segment) = (self.limit(), (mss.bytes() - options).max(1));
        let whole = limit - limit % segment;
        let window = if limit > segment { whole } else { limit };
        Window(window).to_wire(WindowScale::ZERO)
    }

    /// Returns the data that the whole buffer holds.
    #[inline]
    fn full_window(&self) -> u32 {
        self.density.window_of(self.rcvbuf)
    }

    /// Returns whether the window is too large for a SYN's field, which is never scaled.
    pub(crate) fn exceeds_syn_field(&self) -> bool {
        self.limit() > 0xffff
    }

    /// Returns the most data that may wait for the application.
    #[inline]
    fn limit(&self) -> u32 {
        if self.tuning == Tuning::Clamped {
            self.full_window().min(self.read_per_rtt)
        } else {
            self.full_window()
        }
    }

    /// Returns the largest window that can be advertised.
    #[inline]
    fn max_window(&self) -> u32 {
        self.limit().min(0xffff << self.scale_in_force.shift())
    }

    /// Returns the data that the free part of the buffer holds.
    #[inline]
    fn free_window(&self) -> u32 {
        let unused = self.rcvbuf.saturating_sub(self.rmem_alloc);
        self.density.window_of(unused)
    }

    /// Sets `TCP_WINDOW_CLAMP`, the largest window to offer; 0 removes it.
    pub(crate) fn set_clamp(&mut self, bytes: u32) {
        self.tuning = match (bytes, self.tuning) {
            (0, Tuning::Locked | Tuning::Clamped) => Tuning::Locked,
            (0, tuned) => tuned,
            _ => Tuning::Clamped,
        };
        self.read_per_rtt = bytes;
    }

    /// Returns the window field for a segment that leaves now, and moves the advertised right edge.
    #[inline]
    pub(crate) fn advertise(&mut self, inputs: WindowInputs) -> WireWindow {
        let shift = self.scale_in_force.shift();
        let current = self.current(inputs.rcv_nxt).0;
        let wanted = self.select(inputs);
        let window = if wanted >= current || (inputs.may_shrink && shift > 0) {
            wanted
        } else {
            cold_path();
            // Rounded up below, so that the right edge never moves left (RFC 9293 3.8.6.2.1).
            current
        };
        let field = window.div_ceil(1 << shift).min(0xffff);
        let edge = inputs.rcv_nxt + (field << shift);
        self.right_edge = if window < current {
            edge
        } else {
            self.right_edge.latest(edge)
        };
        WireWindow(field as u16)
    }

    /// Returns the window to advertise, by Linux's rule, which avoids silly windows (RFC 9293
    /// 3.8.6.2.2).
    #[inline]
    fn select(&self, inputs: WindowInputs) -> u32 {
        let shift = self.scale_in_force.shift();
        let step = 1 << shift;
        let limit = self.max_window();
        let mss = inputs.mss.min(limit);
        let mut free = self.free_window();
        if free < limit / 2 || inputs.may_shrink {
            cold_path();
            free &= !(step - 1);
            if free < limit / 2 && (free < self.full_window() / 16 || free < mss) {
                return 0;
            }
        }
        let free = self.limit_by_pressure(free.min(self.ssthresh).min(limit), inputs);
        if shift > 0 {
            // Rounded up, so that scaling does not turn a small window into none.
            return free.div_ceil(step) << shift;
        }
        cold_path();
        // A multiple of the segment size, and unchanged while it is within a segment of the free space.
        let advertised = self.right_edge.distance(inputs.acked).max(0) as u32;
        if advertised.saturating_add(mss) <= free || advertised > free {
            free - free % mss.max(1)
        } else {
            advertised
        }
    }

    #[inline]
    fn limit_by_pressure(&self, free: u32, inputs: WindowInputs) -> u32 {
        // With less than a segment, the peer would send at the pace of its timer.
        let free = free.min(inputs.room.max(inputs.mss));
        match inputs.memory_pressure {
            MemoryPressure::None => free,
            MemoryPressure::SlowReaders if free > self.limit() / 2 => free,
            _ => free.min(PRESSURE_SEGS * inputs.mss),
        }
    }

    /// Closes the window at once, whatever was advertised, because there is no memory for data.
    #[cold]
    pub(crate) fn withdraw(&mut self, rcv_nxt: SeqNum) {
        self.right_edge = rcv_nxt;
    }

    /// Returns the window that the peer has now: from `rcv_nxt` to the advertised right edge.
    #[inline]
    pub(crate) fn current(&self, rcv_nxt: SeqNum) -> Window {
        // A FIN may lie one byte beyond the edge.
        Window(self.right_edge.distance(rcv_nxt).max(0) as u32)
    }

    /// Returns the position of `[seq, seq + len)` (RFC 9293 3.10.7.4, first step, by Linux's rule).
    /// `len` counts SYN and FIN; a FIN may lie one byte beyond the window. A segment that ends beyond
    /// the window is accepted whole if no data waits for the application (`starved`), else not at all.
    /// `furthest`: the former right edge, if the window was withdrawn.
    #[inline]
    pub(crate) fn position(
        &self,
        rcv_nxt: SeqNum,
        (seq, len, fin): (SeqNum, u32, bool),
        starved: bool,
        furthest: impl FnOnce() -> Option<SeqNum>,
    ) -> SegmentPosition {
        let end = seq + len;
        if end.before(rcv_nxt) || (len > 0 && end == rcv_nxt) {
            return SegmentPosition::Before;
        }
        let edge = self.right_edge.latest(rcv_nxt);
        let end = end - u32::from(fin);
        if end.before_eq(edge) {
            return SegmentPosition::Within;
        }
        let edge = furthest().map_or(edge, |furthest| edge.latest(furthest));
        if end.before_eq(edge) || (starved && seq.before_eq(edge)) {
            SegmentPosition::Within
        } else {
            SegmentPosition::Beyond
        }
    }

    /// Returns whether the window does not admit data at `seq`.
    #[inline]
    pub(crate) fn is_closed_at(&self, rcv_nxt: SeqNum, seq: SeqNum) -> bool {
        self.right_edge.before_eq(seq.latest(rcv_nxt))
    }

    /// Returns whether more than half of the largest window is open.
    #[inline]
    pub(crate) fn is_half_open(&self, rcv_nxt: SeqNum) -> bool {
        self.current(rcv_nxt).0 > self.max_window() / 2
    }

    /// Returns whether a window update is due after a read: the window can open to twice its size, and
    /// is less than [half open](Self::is_half_open). (RFC 9293 3.8.6.2.2 requires less; ACKs of
    /// data advertise the rest.)
    pub(crate) fn is_update_due(&self, inputs: WindowInputs) -> bool {
        if self.is_half_open(inputs.rcv_nxt) {
            return false;
        }
        let current = self.current(inputs.rcv_nxt).0;
        let new = self.select(inputs);
        new > 0 && new >= current.saturating_mul(2)
    }

    /// Records that `len` bytes were stored, in order or not. The largest window grows by twice as
    /// much, so that it admits a sender that doubles its rate. `may_grow`: memory is not scarce.
    #[inline]
    pub(crate) fn on_stored(&mut self, len: u32, mss: Mss, may_grow: bool) {
        self.rmem_alloc = self.rmem_alloc.saturating_add(truesize_of(len));
        let most = self.limit();
        if most > self.ssthresh && len >= MIN_GROWTH_BYTES && may_grow {
            let step = 2 * len.max(mss.bytes());
            self.ssthresh = self.ssthresh.saturating_add(step).min(most);
        }
    }

    /// Returns whether GRO packets of `len` bytes waste less memory than the present density.
    #[inline]
    pub(crate) fn is_denser(&self, len: u32) -> bool {
        len >= LONG_GRO_BYTES && !self.density.is_high()
    }

    /// Sets the density of data that arrives in pieces of `len` bytes.
    #[cold]
    pub(crate) fn set_density(&mut self, len: u32) {
        self.density = Density::of(len);
        self.ssthresh = self.ssthresh.min(self.limit());
    }

    /// Records that the application read `bytes` and left `held`, out-of-order data included.
    #[inline]
    pub(crate) fn uncharge(&mut self, bytes: usize, held: usize) {
        self.rmem_alloc = remaining_charge(self.rmem_alloc, bytes, held);
    }

    /// Returns whether more than half of the buffer waits for the application, and the window is used
    /// up.
    #[inline]
    pub(crate) fn is_lagging(&self, rcv_nxt: SeqNum) -> bool {
        self.rmem_alloc > self.rcvbuf / 2 && self.right_edge.before_eq(rcv_nxt)
    }

    /// Returns whether received data holds more memory than the buffer.
    #[inline]
    pub(crate) fn is_over_rcvbuf(&self) -> bool {
        self.rmem_alloc > self.rcvbuf
    }

    /// Returns whether the peer may send at most one segment of `mss` bytes, or seven eighths of the
    /// buffer are used.
    #[inline]
    pub(crate) fn is_nearly_full(&self, rcv_nxt: SeqNum, mss: u32) -> bool {
        self.rmem_alloc > self.rcvbuf - self.rcvbuf / 8 || self.current(rcv_nxt).0 <= mss
    }

    /// Returns when the timed window of data began: with the connection, or with data.
    pub(crate) fn timed_since(&self) -> Instant {
        self.timed_since
    }

    /// Records data that arrived in order up to `rcv_nxt`. Measures the round trip time where we send
    /// no data: a window of data takes at least a round trip.
    #[inline]
    pub(crate) fn on_data(&mut self, now: Instant, rcv_nxt: SeqNum, mss: Mss) {
        if self.current(rcv_nxt).0 < mss.bytes() && self.tuning == Tuning::Auto {
            cold_path();
            self.tuning = Tuning::Exhausted;
        }
        if rcv_nxt.before(self.timed_until) {
            return;
        }
        cold_path();
        let took = now.since(self.timed_since);
        self.on_rtt(took.min(self.rtt().unwrap_or(took)));
        self.timed_since = now;
        self.timed_until = rcv_nxt + self.current(rcv_nxt).0.max(1);
    }

    /// Sets the round trip time for autotuning, from timestamps or from data of our own.
    #[inline]
    pub(crate) fn on_rtt(&mut self, rtt: Nanos) {
        self.rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
    }

    /// Sets `SO_RCVBUF`, bytes of memory, which ends autotuning.
    pub(crate) fn set_rcvbuf(&mut self, rcvbuf: u32) {
        self.rcvbuf = rcvbuf;
        if self.tuning != Tuning::Clamped {
            self.tuning = Tuning::Locked;
        }
    }

    /// Returns about the largest window that was offered.
    pub(crate) fn largest_offered(&self) -> u32 {
        self.limit()
    }

    /// Returns the advertised right edge.
    #[inline]
    pub(crate) fn right_edge(&self) -> SeqNum {
        self.right_edge
    }

    /// Disables autotuning (`true`) until the application has accepted the connection.
    pub(crate) fn set_awaiting_accept(&mut self, awaiting_accept: bool) {
        self.tuning = match self.tuning {
            Tuning::Auto if awaiting_accept => Tuning::AwaitingAccept,
            Tuning::AwaitingAccept if !awaiting_accept => Tuning::Auto,
            other => other,
        };
    }

    /// Returns the size of the receive buffer, in bytes of memory.
    #[inline]
    pub(crate) fn rcvbuf(&self) -> u32 {
        self.rcvbuf
    }
}

#[inline]
fn micros(now: Instant) -> u32 {
    (now.as_nanos() / 1000) as u32
}
