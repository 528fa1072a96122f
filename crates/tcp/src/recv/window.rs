//! The receive window: never shrunk, never silly, and as large as the path needs.

use fullsend_units::{Instant, Mss, Nanos, SeqNum, Window, WindowScale, WireWindow};

/// Decides what window to advertise, and tunes the receive buffer.
///
/// `rcvbuf` is in bytes of memory as Linux counts it; half of it is offered as window.
#[derive(Clone, Debug)]
pub(crate) struct RecvWindow {}

#[allow(
    unused_variables,
    clippy::needless_pass_by_value,
    reason = "bodies land next"
)]
impl RecvWindow {
    /// `rmem` is `tcp_rmem`: initial buffer is `rmem[1]`, the scale is chosen for `rmem[2]`.
    pub(crate) fn new(rmem: [u32; 3]) -> Self {
        todo!()
    }

    /// The shift to offer on our SYN.
    pub(crate) fn scale(&self) -> WindowScale {
        todo!()
    }

    /// The handshake is over: `scaled` if both sides sent the option. `rcv_nxt` is the peer's
    /// first byte of text.
    pub(crate) fn establish(&mut self, now: Instant, rcv_nxt: SeqNum, scaled: bool) {
        todo!()
    }

    /// The window field for a SYN or SYN-ACK, which is never scaled (RFC 7323 2.2).
    pub(crate) fn for_syn(&self) -> WireWindow {
        todo!()
    }

    /// The window field for a segment that leaves now, with `held` bytes stored (readable and
    /// out of order). Moves the advertised right edge.
    pub(crate) fn advertise(&mut self, rcv_nxt: SeqNum, held: usize, mss: Mss) -> WireWindow {
        todo!()
    }

    /// What is on offer at the moment: from `rcv_nxt` to the advertised right edge.
    pub(crate) fn current(&self, rcv_nxt: SeqNum) -> Window {
        todo!()
    }

    /// RFC 9293 3.10.7.4, first step: some part of `[seq, seq + len)` lies in the window (`len`
    /// counts SYN and FIN).
    pub(crate) fn is_acceptable(&self, rcv_nxt: SeqNum, seq: SeqNum, len: u32) -> bool {
        todo!()
    }

    /// After the user read: the window could open enough to tell the peer at once (RFC 9293
    /// 3.8.6.2.2: by two segments or half the buffer, or from nothing).
    pub(crate) fn update_due(&self, rcv_nxt: SeqNum, held: usize, mss: Mss) -> bool {
        todo!()
    }

    /// Text arrived in order up to `rcv_nxt`; times the path where no ACKs of ours do.
    pub(crate) fn on_data(&mut self, now: Instant, rcv_nxt: SeqNum) {
        todo!()
    }

    /// A better round-trip time for the tuning than the window's own (timestamps, or our own
    /// sending).
    pub(crate) fn on_rtt(&mut self, rtt: Nanos) {
        todo!()
    }

    /// The user took `bytes` out: grows the buffer to twice what is read per round trip, up to
    /// `rmem[2]`, unless locked (dynamic right-sizing).
    pub(crate) fn on_read(&mut self, now: Instant, bytes: usize, mss: Mss, rmem: [u32; 3]) {
        todo!()
    }

    /// `SO_RCVBUF`: this many bytes of memory, and no more tuning.
    pub(crate) fn lock(&mut self, rcvbuf: u32) {
        todo!()
    }

    /// Bytes of memory allowed.
    pub(crate) fn rcvbuf(&self) -> u32 {
        todo!()
    }

    /// The advertised right edge (`rcv_nxt + rcv_wnd` as the peer knows it).
    pub(crate) fn right_edge(&self) -> SeqNum {
        todo!()
    }
}
