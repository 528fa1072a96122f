//! The use of cwnd: it may grow only while sending uses it (RFC 7661).

use fullsend_wire::SeqNum;

use super::Cwnd;

/// The use of cwnd by sending in the present round.
#[derive(Clone, Copy, Debug)]
pub(super) struct CwndUsage {
    /// cwnd limited sending.
    is_limited: bool,
    /// Segments sent and not acknowledged (`packets_out`) when the round was last extended.
    max_packets_out: u32,
    /// `snd_nxt` at which the round ends.
    round_end: SeqNum,
}

impl CwndUsage {
    /// Returns the usage of a new connection.
    pub(super) fn new() -> Self {
        Self {
            is_limited: false,
            max_packets_out: 0,
            round_end: SeqNum::new(0),
        }
    }

    /// Records a send, and whether cwnd limits sending after it.
    #[inline]
    pub(super) fn on_sent(&mut self, una: SeqNum, nxt: SeqNum, packets_out: u32, limited: bool) {
        let is_maximum = packets_out > self.max_packets_out;
        if una.after_eq(self.round_end) || limited || (!self.is_limited && is_maximum) {
            self.is_limited = limited;
            self.max_packets_out = packets_out;
            self.round_end = nxt;
        }
    }

    /// Records that cwnd holds unsent data back.
    pub(super) fn on_blocked(&mut self, nxt: SeqNum, packets_out: u32) {
        self.is_limited = true;
        self.max_packets_out = packets_out;
        self.round_end = nxt;
    }

    /// Returns whether cwnd limited sending.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Returns whether cwnd was used: all of it, or in slow start more than half.
    #[inline]
    pub(super) fn is_enough(&self, window: &Cwnd) -> bool {
        self.is_limited
            || window.in_slow_start() && window.cwnd < self.max_packets_out.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests;
