//! The receive window: never shrunk, never silly, and as large as the path needs.

use fullsend_units::{Instant, Mss, Nanos, SeqNum, Window, WindowScale, WireWindow};

#[cfg(test)]
mod tests;

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

/// Who says how large the buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tuning {
    /// We do, as the path needs it.
    Auto,
    /// `SO_RCVBUF`.
    Locked,
    /// `TCP_WINDOW_CLAMP`: `read_per_rtt`, which nobody needs then, holds it.
    Clamped,
}

/// Decides what window to advertise, and tunes the receive buffer.
///
/// `rcvbuf` is in bytes of memory as Linux counts it; half of it is offered as window, the other
/// half is for what memory text costs beyond its length.
#[derive(Clone, Debug)]
pub(crate) struct RecvWindow {
    rcvbuf: u32,
    /// The peer may send up to here, by what we last told it.
    right_edge: SeqNum,
    /// Bytes the user took during the last whole round trip.
    read_per_rtt: u32,
    /// Bytes the user took since `round_started`.
    read_this_rtt: u32,
    round_started: Instant,
    /// Round trip as the receiver sees it; `MAX` before the first is known.
    rtt: Nanos,
    /// The window-filling run of text that is being timed ends here.
    timed_until: SeqNum,
    timed_since: Instant,
    /// Offered on our SYN.
    offered_scale: WindowScale,
    /// In force.
    scale_in_force: WindowScale,
    tuning: Tuning,
    /// The sender used up all that was offered since the buffer was last given more.
    exhausted: bool,
}

impl RecvWindow {
    /// `rmem` is `tcp_rmem`: initial buffer is `rmem[1]`, the scale is chosen for `rmem[2]`.
    pub(crate) fn new(rmem: [u32; 3]) -> Self {
        Self {
            rcvbuf: rmem[1].clamp(rmem[0], rmem[2].max(rmem[0])),
            right_edge: SeqNum::new(0),
            read_per_rtt: 0,
            read_this_rtt: 0,
            round_started: Instant::ZERO,
            rtt: Nanos::MAX,
            timed_until: SeqNum::new(0),
            timed_since: Instant::ZERO,
            offered_scale: WindowScale::for_window(Window(rmem[2])),
            scale_in_force: WindowScale::ZERO,
            tuning: Tuning::Auto,
            exhausted: false,
        }
    }

    /// Round trip as the receiver sees it (`tcpi_rcv_rtt`).
    pub(crate) fn rtt(&self) -> Option<Nanos> {
        (self.rtt != Nanos::MAX).then_some(self.rtt)
    }

    /// The most that is offered now (`tcpi_rcv_ssthresh`).
    pub(crate) fn most_offered(&self) -> u32 {
        self.limit()
    }

    /// What the reader is taken to want per round trip (`tcpi_rcv_space`).
    pub(crate) fn wanted_per_rtt(&self, mss: Mss) -> u32 {
        let first = (FIRST_SEGS * mss.bytes()).min(self.limit());
        match self.tuning {
            Tuning::Auto => self.read_per_rtt.max(first),
            Tuning::Locked | Tuning::Clamped => first,
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

    /// The handshake is over: `scaled` if both sides sent the option. `rcv_nxt` is the peer's
    /// first byte of text.
    pub(crate) fn establish(&mut self, now: Instant, rcv_nxt: SeqNum, scaled: bool) {
        if scaled {
            self.scale_in_force = self.offered_scale;
        }
        // What the SYN said, in bytes.
        self.retell(rcv_nxt);
        self.round_started = now;
        self.timed_since = now;
        self.timed_until = self.right_edge;
    }

    /// The window of our SYN or SYN-ACK, before it is sent.
    pub(crate) fn retell(&mut self, rcv_nxt: SeqNum) {
        self.right_edge = rcv_nxt + u32::from(self.for_syn().0);
    }

    /// The window field for a SYN or SYN-ACK, which is never scaled (RFC 7323 2.2).
    pub(crate) fn for_syn(&self) -> WireWindow {
        Window(self.limit()).to_wire(WindowScale::ZERO)
    }

    /// A SYN cannot tell how large the window is; what makes it so was not the reader.
    pub(crate) fn exceeds_syn(&self) -> bool {
        self.limit() > 0xffff
    }

    /// The most that may wait for the reader.
    #[inline]
    fn limit(&self) -> u32 {
        let half = self.rcvbuf / 2;
        if self.tuning == Tuning::Clamped {
            half.min(self.read_per_rtt)
        } else {
            half
        }
    }

    /// `TCP_WINDOW_CLAMP`: no larger window is offered; 0: none.
    pub(crate) fn set_clamp(&mut self, bytes: u32) {
        self.tuning = match (bytes, self.tuning) {
            (0, Tuning::Auto) => Tuning::Auto,
            (0, _) => Tuning::Locked,
            _ => Tuning::Clamped,
        };
        self.read_per_rtt = bytes;
    }

    /// The window field for a segment that leaves now, with `held` bytes stored for the reader
    /// (those behind holes lie inside the window and do not count). Moves the advertised right
    /// edge.
    #[inline]
    pub(crate) fn advertise(
        &mut self,
        rcv_nxt: SeqNum,
        held: usize,
        mss: Mss,
        squeeze: Squeeze,
    ) -> WireWindow {
        let shift = self.scale_in_force.shift();
        let current = self.current(rcv_nxt).0;
        let free = self.free(held, mss, squeeze);
        // RFC 9293 3.8.6.2.2: the right edge moves by steps worth sending for.
        let field = if free >= current.saturating_add(self.least_step(mss)) {
            free >> shift
        } else {
            // Rounded up: the right edge never moves left (RFC 9293 3.8.6.2.1).
            current.div_ceil(1 << shift)
        };
        let field = field.min(0xffff);
        self.right_edge = self.right_edge.latest(rcv_nxt + (field << shift));
        WireWindow(field as u16)
    }

    #[inline]
    fn free(&self, held: usize, mss: Mss, squeeze: Squeeze) -> u32 {
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        let most = 0xffff << self.scale_in_force.shift();
        let free = self.limit().saturating_sub(held).min(most);
        match squeeze {
            Squeeze::No => free,
            Squeeze::Slow if free > self.limit() / 2 => free,
            _ => free.min(SQUEEZED_SEGS * mss.bytes()),
        }
    }

    #[inline]
    fn least_step(&self, mss: Mss) -> u32 {
        mss.bytes().min(self.limit() / 2).max(1)
    }

    /// What is on offer at the moment: from `rcv_nxt` to the advertised right edge.
    #[inline]
    pub(crate) fn current(&self, rcv_nxt: SeqNum) -> Window {
        // A FIN may lie one beyond the edge.
        Window(self.right_edge.distance(rcv_nxt).max(0) as u32)
    }

    /// RFC 9293 3.10.7.4, first step: some part of `[seq, seq + len)` lies in the window (`len`
    /// counts SYN and FIN).
    #[inline]
    pub(crate) fn is_acceptable(&self, rcv_nxt: SeqNum, seq: SeqNum, len: u32) -> bool {
        let window = self.current(rcv_nxt).0;
        match (len, window) {
            // With the edge itself, where the ACKs of a peer that has filled the window stand:
            // two peers who both did, and both lost something, must hear each other.
            (0, _) => seq.since(rcv_nxt) <= window,
            (_, 0) => false,
            // The table looks at both ends; a run of segments may also cover the whole window.
            _ => seq.in_window(rcv_nxt, window) || rcv_nxt.in_window(seq, len),
        }
    }

    /// After the user read: the window could open enough to tell the peer at once: to twice what
    /// it is, when it is less than half open (RFC 9293 3.8.6.2.2 asks for less; the ACKs of
    /// arriving data tell the rest).
    #[inline]
    pub(crate) fn update_due(
        &self,
        rcv_nxt: SeqNum,
        held: usize,
        mss: Mss,
        squeeze: Squeeze,
    ) -> bool {
        let current = self.current(rcv_nxt).0;
        if current > self.limit() / 2 {
            return false;
        }
        let free = self.free(held, mss, squeeze);
        free >= current.saturating_mul(2) && free >= current + self.least_step(mss)
    }

    /// When the run of text that is being timed began: with the connection, or with text.
    pub(crate) fn timed_since(&self) -> Instant {
        self.timed_since
    }

    /// Text arrived in order up to `rcv_nxt`; times the path where no ACKs of ours do: one
    /// window of text takes at least one round trip.
    #[inline]
    pub(crate) fn on_data(&mut self, now: Instant, rcv_nxt: SeqNum, mss: Mss) {
        self.exhausted |= self.current(rcv_nxt).0 < mss.bytes();
        if rcv_nxt.before(self.timed_until) {
            return;
        }
        let took = now.since(self.timed_since);
        self.rtt = self.rtt.min(took);
        self.timed_since = now;
        self.timed_until = rcv_nxt + self.current(rcv_nxt).0.max(1);
    }

    /// A better round-trip time for the tuning than the window's own (timestamps, or our own
    /// sending).
    #[inline]
    pub(crate) fn on_rtt(&mut self, rtt: Nanos) {
        self.rtt = rtt;
    }

    /// The user took `bytes` out and left `held`: grows the buffer to twice what is read per round
    /// trip, up to `rmem[2]`, unless locked or memory is scarce (dynamic right-sizing).
    #[inline]
    pub(crate) fn on_read(
        &mut self,
        now: Instant,
        (bytes, held): (usize, usize),
        mss: Mss,
        rmem: [u32; 3],
        may_grow: bool,
    ) {
        if self.tuning != Tuning::Auto {
            return;
        }
        if self.exhausted && held == 0 {
            self.on_exhausted(rmem[2], may_grow);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.read_this_rtt = self.read_this_rtt.saturating_add(bytes);
        let passed = now.since(self.round_started);
        if passed < self.rtt || passed == Nanos::ZERO {
            return;
        }
        let first = (FIRST_SEGS * mss.bytes()).min(self.limit() / 2);
        let before = self.read_per_rtt.max(first);
        if self.read_this_rtt > before {
            if may_grow {
                self.grow(mss, before, rmem[2]);
            }
            self.read_per_rtt = self.read_this_rtt;
        }
        self.read_this_rtt = 0;
        self.round_started = now;
    }

    /// The sender waits for the window, and the user for the sender: only a larger window lets
    /// either go on. Rounds do not tell that where the round trip is mostly the time that both
    /// ends take for a window, and grows with it (one thread, one machine).
    #[cold]
    fn on_exhausted(&mut self, most: u32, may_grow: bool) {
        self.exhausted = false;
        if may_grow {
            self.rcvbuf = self.rcvbuf.max(self.rcvbuf.saturating_mul(2).min(most));
        }
    }

    /// Room for twice what was read in the round trip, so that a sender in slow start is not
    /// held back; more by as much as the rate has just grown, as the next round will.
    fn grow(&mut self, mss: Mss, before: u32, most: u32) {
        let read = u64::from(self.read_this_rtt);
        let before = u64::from(before);
        let wanted = 2 * read + 16 * u64::from(mss.bytes());
        let growth = wanted.saturating_mul(read - before).checked_div(before);
        let growth = growth.unwrap_or(0);
        let rcvbuf = wanted.saturating_add(growth).saturating_mul(2);
        let rcvbuf = rcvbuf.min(u64::from(most)) as u32;
        self.rcvbuf = self.rcvbuf.max(rcvbuf);
    }

    /// Text waits behind a hole, up to `end`. The reader gets nothing until the hole is closed, and
    /// the rounds of [`on_read`](Self::on_read) tell nothing meanwhile: there is room for twice what
    /// waits, beside what is read in two round trips, or the sender would stop for each loss.
    #[cold]
    pub(crate) fn on_out_of_order(&mut self, (rcv_nxt, end): (SeqNum, SeqNum), most: u32) {
        if self.tuning != Tuning::Auto {
            return;
        }
        let waiting = end.distance(rcv_nxt).max(0) as u32;
        let wanted = 2 * (u64::from(self.read_per_rtt) + u64::from(waiting));
        let rcvbuf = (2 * wanted).min(most.into()) as u32;
        self.rcvbuf = self.rcvbuf.max(rcvbuf);
    }

    /// `SO_RCVBUF`: this many bytes of memory, and no more tuning.
    pub(crate) fn lock(&mut self, rcvbuf: u32) {
        self.rcvbuf = rcvbuf;
        if self.tuning == Tuning::Auto {
            self.tuning = Tuning::Locked;
        }
    }

    /// The largest window that was on offer, about.
    pub(crate) fn largest(&self) -> u32 {
        self.limit()
    }

    /// Bytes of memory allowed.
    #[inline]
    pub(crate) fn rcvbuf(&self) -> u32 {
        self.rcvbuf
    }

    /// The advertised right edge (`rcv_nxt + rcv_wnd` as the peer knows it).
    #[inline]
    pub(crate) fn right_edge(&self) -> SeqNum {
        self.right_edge
    }
}
