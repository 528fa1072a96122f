//! The receive window: as large as the path needs and the buffer allows, never silly, and never
//! shrunk unless memory leaves no choice.

use fullsend_units::{Instant, Mss, Nanos, SeqNum, Window, WindowScale, WireWindow};

mod charge;
#[cfg(test)]
mod tests;
mod tuning;

use charge::{Density, cost_of, remaining};

/// How hard the host's want of memory holds windows down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Squeeze {
    /// Not at all.
    No,
    /// Those whose readers do not keep up.
    Slow,
    /// All.
    All,
}

/// A sender's first round trip (RFC 6928): growth is measured from there, not from a short request
/// before it.
const FIRST_SEGS: u32 = 10;

/// Segments that a window held down still offers.
const SQUEEZED_SEGS: u32 = 4;

/// A run of segments in which memory is hardly wasted.
const LONG_RUN: u32 = 16_384;

/// A segment with less text does not show that its sender has much.
const LEAST_PROOF: u32 = 128;

/// Who says how large the buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tuning {
    /// We do, as the path needs it.
    Auto,
    /// The same, and the sender used up all that was offered since the buffer was last given more.
    Exhausted,
    /// We will, once a listener's user has accepted the connection.
    Waiting,
    /// `SO_RCVBUF`.
    Locked,
    /// `TCP_WINDOW_CLAMP`: `read_per_rtt`, which nobody needs then, holds it.
    Clamped,
}

/// Decides what window to advertise, and tunes the receive buffer.
///
/// `rcvbuf` is in bytes of memory as Linux counts it; of what is free of it so much is offered as
/// text has been seen to fill.
#[derive(Clone, Debug)]
pub(crate) struct RecvWindow {
    rcvbuf: u32,
    /// Memory that what was received and not read is taken to hold (`sk_rmem_alloc`).
    held: u32,
    /// `rcv_ssthresh`: no larger window is offered yet; it grows as text arrives.
    ssthresh: u32,
    /// The peer may send up to here, by what we last told it.
    right_edge: SeqNum,
    /// Bytes the user took during the last whole round trip.
    read_per_rtt: u32,
    /// Bytes the user took since `round_us`.
    read_this_rtt: u32,
    /// In microseconds, which may wrap: it only tunes.
    round_us: u32,
    /// Round trip as the receiver sees it; `MAX` before the first is known.
    rtt_us: u32,
    /// The window-filling run of text that is being timed ends here.
    timed_until: SeqNum,
    timed_since: Instant,
    /// Offered on our SYN.
    offered_scale: WindowScale,
    /// In force.
    scale_in_force: WindowScale,
    tuning: Tuning,
    density: Density,
}

/// What a window to be told depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) rcv_nxt: SeqNum,
    /// `rcv_nxt` as last acknowledged.
    pub(crate) acked: SeqNum,
    /// Text of a full segment as the peer sends them.
    pub(crate) mss: u32,
    pub(crate) squeeze: Squeeze,
    /// `tcp_shrink_window`.
    pub(crate) may_shrink: bool,
}

/// Where an arriving segment lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Some of it may be new, and wanted.
    Within,
    /// All of it was there before.
    Left,
    /// Behind all that we ever offered, and not to be taken.
    Beyond,
}

impl RecvWindow {
    /// `rmem` is `tcp_rmem`: initial buffer is `rmem[1]`, the scale is chosen for `rmem[2]` or
    /// `rmem_max`.
    pub(crate) fn new(rmem: [u32; 3], rmem_max: u32) -> Self {
        Self {
            rcvbuf: rmem[1].clamp(rmem[0], rmem[2].max(rmem[0])),
            held: 0,
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

    /// Round trip as the receiver sees it (`tcpi_rcv_rtt`).
    pub(crate) fn rtt(&self) -> Option<Nanos> {
        let known = self.rtt_us != u32::MAX;
        known.then(|| Nanos::from_micros(self.rtt_us.into()))
    }

    /// The most that is offered now (`tcpi_rcv_ssthresh`).
    pub(crate) fn most_offered(&self) -> u32 {
        self.ssthresh.min(self.limit())
    }

    /// What the reader is taken to want per round trip (`tcpi_rcv_space`).
    pub(crate) fn wanted_per_rtt(&self, mss: Mss) -> u32 {
        let first = (FIRST_SEGS * mss.bytes()).min(self.limit());
        match self.tuning {
            Tuning::Locked | Tuning::Clamped => first,
            _ => self.read_per_rtt.max(first),
        }
    }

    /// The shift to offer on our SYN.
    pub(crate) fn scale(&self) -> WindowScale {
        self.offered_scale
    }

    /// The shift that a SYN-ACK sent earlier offered, and the peer has agreed to.
    pub(crate) fn set_scale(&mut self, scale: WindowScale) {
        self.offered_scale = scale;
        self.scale_in_force = scale;
    }

    /// A buffer that the user set, or a clamp, decides which shift is worth offering.
    pub(crate) fn choose_scale(&mut self, most: u32) {
        let most = match self.tuning {
            Tuning::Locked => self.limit(),
            Tuning::Clamped => most.max(self.full()).min(self.read_per_rtt),
            _ => most.max(self.limit()),
        };
        self.offered_scale = WindowScale::for_window(Window(most));
    }

    /// The handshake is over: `scaled` if both sides sent the option. `rcv_nxt` is the peer's
    /// first byte of text; `mss` and `options` as for [`for_syn`](Self::for_syn).
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
        // What the SYN said, in bytes.
        let told = u32::from(self.for_syn((mss, options)).0);
        self.right_edge = rcv_nxt + told;
        // Linux keeps room for one segment beside the first window.
        let (mss, limit) = (mss.bytes(), self.limit());
        let most = if self.tuning == Tuning::Clamped {
            limit
        } else {
            limit.saturating_sub(mss).max(2 * mss)
        };
        self.ssthresh = told.min(most);
        self.round_us = micros(now);
        self.timed_since = now;
        self.timed_until = self.right_edge;
    }

    /// The window field for a SYN or SYN-ACK, which is never scaled (RFC 7323 2.2): whole
    /// segments of `mss` less the bytes of `options` in each.
    pub(crate) fn for_syn(&self, (mss, options): (Mss, u32)) -> WireWindow {
        let (limit, segment) = (self.limit(), (mss.bytes() - options).max(1));
        let whole = limit - limit % segment;
        let window = if limit > segment { whole } else { limit };
        Window(window).to_wire(WindowScale::ZERO)
    }

    /// All that the buffer could hold.
    #[inline]
    fn full(&self) -> u32 {
        self.density.window_of(self.rcvbuf)
    }

    /// A SYN cannot tell how large the window is; what makes it so was not the reader.
    pub(crate) fn exceeds_syn(&self) -> bool {
        self.limit() > 0xffff
    }

    /// The most that may wait for the reader.
    #[inline]
    fn limit(&self) -> u32 {
        if self.tuning == Tuning::Clamped {
            self.full().min(self.read_per_rtt)
        } else {
            self.full()
        }
    }

    /// The most that can be told.
    #[inline]
    fn most(&self) -> u32 {
        self.limit().min(0xffff << self.scale_in_force.shift())
    }

    /// What there is room for.
    #[inline]
    fn free(&self) -> u32 {
        let unused = self.rcvbuf.saturating_sub(self.held);
        self.density.window_of(unused)
    }

    /// `TCP_WINDOW_CLAMP`: no larger window is offered; 0: none.
    pub(crate) fn set_clamp(&mut self, bytes: u32) {
        self.tuning = match (bytes, self.tuning) {
            (0, Tuning::Locked | Tuning::Clamped) => Tuning::Locked,
            (0, tuned) => tuned,
            _ => Tuning::Clamped,
        };
        self.read_per_rtt = bytes;
    }

    /// The window field for a segment that leaves now. Moves the advertised right edge.
    #[inline]
    pub(crate) fn advertise(&mut self, ask: Ask) -> WireWindow {
        let shift = self.scale_in_force.shift();
        let current = self.current(ask.rcv_nxt).0;
        let wanted = self.select(ask);
        let window = if wanted >= current || (ask.may_shrink && shift > 0) {
            wanted
        } else {
            // Rounded up: the right edge never moves left (RFC 9293 3.8.6.2.1).
            current
        };
        let field = window.div_ceil(1 << shift).min(0xffff);
        let edge = ask.rcv_nxt + (field << shift);
        self.right_edge = if window < current {
            edge
        } else {
            self.right_edge.latest(edge)
        };
        WireWindow(field as u16)
    }

    /// The window worth telling, as Linux finds it. RFC 9293 3.8.6.2.2: none that is silly.
    #[inline]
    fn select(&self, ask: Ask) -> u32 {
        let shift = self.scale_in_force.shift();
        let step = 1 << shift;
        let limit = self.most();
        let mss = ask.mss.min(limit);
        let mut free = self.free();
        if free < limit / 2 || ask.may_shrink {
            free &= !(step - 1);
            if free < limit / 2 && (free < self.full() / 16 || free < mss) {
                return 0;
            }
        }
        let free = self.squeezed(free.min(self.ssthresh).min(limit), ask);
        if shift > 0 {
            // Not to be scaled away.
            return free.div_ceil(step) << shift;
        }
        // Whole segments, and the same as before while that is about right.
        let told = self.right_edge.distance(ask.acked).max(0) as u32;
        if told.saturating_add(mss) <= free || told > free {
            free - free % mss.max(1)
        } else {
            told
        }
    }

    #[inline]
    fn squeezed(&self, free: u32, ask: Ask) -> u32 {
        match ask.squeeze {
            Squeeze::No => free,
            Squeeze::Slow if free > self.limit() / 2 => free,
            _ => free.min(SQUEEZED_SEGS * ask.mss),
        }
    }

    /// There is no memory for what the peer sends: the window closes at once, whatever was told.
    #[cold]
    pub(crate) fn withdraw(&mut self, rcv_nxt: SeqNum) {
        self.right_edge = rcv_nxt;
    }

    /// What is on offer at the moment: from `rcv_nxt` to the advertised right edge.
    #[inline]
    pub(crate) fn current(&self, rcv_nxt: SeqNum) -> Window {
        // A FIN may lie one beyond the edge.
        Window(self.right_edge.distance(rcv_nxt).max(0) as u32)
    }

    /// RFC 9293 3.10.7.4, first step, as Linux takes it: where `[seq, seq + len)` lies (`len` counts
    /// SYN, and FIN, which may lie one beyond). What reaches beyond the window is taken whole by a
    /// reader who has nothing (`starved`), and not at all else. `furthest`: where the window once
    /// ended, if it was taken back.
    #[inline]
    pub(crate) fn place(
        &self,
        rcv_nxt: SeqNum,
        (seq, len, fin): (SeqNum, u32, bool),
        starved: bool,
        furthest: impl FnOnce() -> Option<SeqNum>,
    ) -> Place {
        let end = seq + len;
        if end.before(rcv_nxt) || (len > 0 && end == rcv_nxt) {
            return Place::Left;
        }
        let edge = self.right_edge.latest(rcv_nxt);
        let end = end - u32::from(fin);
        if end.before_eq(edge) {
            return Place::Within;
        }
        let edge = furthest().map_or(edge, |furthest| edge.latest(furthest));
        if end.before_eq(edge) || (starved && seq.before_eq(edge)) {
            Place::Within
        } else {
            Place::Beyond
        }
    }

    /// No text can be taken at `seq`: the window is closed, or ends before.
    #[inline]
    pub(crate) fn is_shut(&self, rcv_nxt: SeqNum, seq: SeqNum) -> bool {
        self.right_edge.before_eq(seq.latest(rcv_nxt))
    }

    /// More than half of the largest window is on offer.
    #[inline]
    pub(crate) fn is_half_open(&self, rcv_nxt: SeqNum) -> bool {
        self.current(rcv_nxt).0 > self.most() / 2
    }

    /// After the user read: the window could open enough to tell the peer at once: to twice what
    /// it is, when it is less than [half open](Self::is_half_open) (RFC 9293 3.8.6.2.2 asks for
    /// less; the ACKs of arriving data tell the rest).
    pub(crate) fn update_due(&self, ask: Ask) -> bool {
        if self.is_half_open(ask.rcv_nxt) {
            return false;
        }
        let current = self.current(ask.rcv_nxt).0;
        let new = self.select(ask);
        new > 0 && new >= current.saturating_mul(2)
    }

    /// Text of `len` bytes was stored, in order or not. The window opens with it: a sender that
    /// doubles its rate finds it open. `may_grow`: memory is not scarce.
    #[inline]
    pub(crate) fn on_stored(&mut self, len: u32, mss: Mss, may_grow: bool) {
        self.held = self.held.saturating_add(cost_of(len));
        let most = self.limit();
        if most > self.ssthresh && len >= LEAST_PROOF && may_grow {
            let step = 2 * len.max(mss.bytes());
            self.ssthresh = self.ssthresh.saturating_add(step).min(most);
        }
    }

    /// Long runs come after short ones: they waste less than was thought.
    #[inline]
    pub(crate) fn is_denser(&self, len: u32) -> bool {
        len >= LONG_RUN && !self.density.is_high()
    }

    /// Full segments come as `len` bytes at once: how densely they fill memory is known.
    #[cold]
    pub(crate) fn on_packing(&mut self, len: u32) {
        self.density = Density::of(len);
        self.ssthresh = self.ssthresh.min(self.limit());
    }

    /// The reader took `bytes` and left `held`, out-of-order text included.
    #[inline]
    pub(crate) fn on_taken(&mut self, bytes: usize, held: usize) {
        self.held = remaining(self.held, bytes, held);
    }

    /// More than half of the buffer waits for the reader, and the window is used up.
    #[inline]
    pub(crate) fn is_lagging(&self, rcv_nxt: SeqNum) -> bool {
        self.held > self.rcvbuf / 2 && self.right_edge.before_eq(rcv_nxt)
    }

    /// All of the buffer is taken up, or more.
    #[inline]
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.held > self.rcvbuf
    }

    /// When the run of text that is being timed began: with the connection, or with text.
    pub(crate) fn timed_since(&self) -> Instant {
        self.timed_since
    }

    /// Text arrived in order up to `rcv_nxt`; times the path where no ACKs of ours do: one
    /// window of text takes at least one round trip.
    #[inline]
    pub(crate) fn on_data(&mut self, now: Instant, rcv_nxt: SeqNum, mss: Mss) {
        if self.current(rcv_nxt).0 < mss.bytes() && self.tuning == Tuning::Auto {
            self.tuning = Tuning::Exhausted;
        }
        if rcv_nxt.before(self.timed_until) {
            return;
        }
        let took = now.since(self.timed_since);
        self.on_rtt(took.min(self.rtt().unwrap_or(took)));
        self.timed_since = now;
        self.timed_until = rcv_nxt + self.current(rcv_nxt).0.max(1);
    }

    /// A better round-trip time for the tuning than the window's own (timestamps, or our own
    /// sending).
    #[inline]
    pub(crate) fn on_rtt(&mut self, rtt: Nanos) {
        self.rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
    }

    /// `SO_RCVBUF`: this many bytes of memory, and no more tuning.
    pub(crate) fn lock(&mut self, rcvbuf: u32) {
        self.rcvbuf = rcvbuf;
        if self.tuning != Tuning::Clamped {
            self.tuning = Tuning::Locked;
        }
    }

    /// The largest window that was on offer, about.
    pub(crate) fn largest(&self) -> u32 {
        self.limit()
    }

    /// The advertised right edge (`rcv_nxt + rcv_wnd` as the peer knows it).
    #[inline]
    pub(crate) fn right_edge(&self) -> SeqNum {
        self.right_edge
    }

    /// A listener has the connection (`true`): its buffer does not grow until somebody else has.
    pub(crate) fn set_waiting(&mut self, waiting: bool) {
        self.tuning = match self.tuning {
            Tuning::Auto if waiting => Tuning::Waiting,
            Tuning::Waiting if !waiting => Tuning::Auto,
            other => other,
        };
    }

    /// Bytes of memory allowed.
    #[inline]
    pub(crate) fn rcvbuf(&self) -> u32 {
        self.rcvbuf
    }
}

#[inline]
fn micros(now: Instant) -> u32 {
    (now.as_nanos() / 1000) as u32
}
