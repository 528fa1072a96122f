//! The segments that are to be sent, as the parts that decide about them have requested.

use fullsend_wire::SeqNum;

/// A RST to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reset {
    /// A RST in answer to a segment with this acknowledgement number.
    WithSeq(SeqNum),
    /// The RST of a connection that the peer considers open.
    Abort,
}

/// The requests to the next `poll_transmit`. `retry` and each `request_` verb record that there is
/// something to send; an acknowledgement that is due is recorded by the ACK policy instead.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// There was a request since the last attempt to send. False while data only waits for a limit.
    requested: bool,
    /// Send the SYN or SYN-ACK, for the first time or again.
    syn: bool,
    /// Send an empty segment left of the window, to elicit an ACK from the peer.
    probe: bool,
    /// Send a tail loss probe (RFC 8985 7.3).
    tail_probe: bool,
    /// Send one segment of data, as far as the peer's window admits it (probe timer).
    probe_data: bool,
    /// Send the data before `push_end` although Nagle or a cork holds it: the cork's time is over,
    /// or `TCP_NODELAY` was set.
    push: bool,
    push_end: SeqNum,
    reset: Option<Reset>,
}

impl Pending {
    /// Returns the requests of a new connection: its SYN or SYN-ACK.
    pub(crate) fn with_syn() -> Self {
        Self {
            requested: true,
            syn: true,
            ..Self::default()
        }
    }

    /// Returns whether an attempt to send is requested.
    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        self.requested
    }

    /// Requests another attempt to send data or retransmissions: a limit may admit more than before.
    #[inline]
    pub(crate) fn retry(&mut self) {
        self.requested = true;
    }

    /// Requests the SYN or SYN-ACK.
    pub(crate) fn request_syn(&mut self) {
        self.syn = true;
        self.requested = true;
    }

    /// Withdraws all requests: the host has sent the SYN-ACK already.
    pub(crate) fn cancel_all(&mut self) {
        *self = Self::default();
    }

    /// Withdraws the request for a SYN or SYN-ACK.
    pub(crate) fn cancel_syn(&mut self) {
        self.syn = false;
    }

    pub(crate) fn take_syn(&mut self) -> bool {
        core::mem::take(&mut self.syn)
    }

    /// Requests a window or keepalive probe.
    pub(crate) fn request_probe(&mut self) {
        self.probe = true;
        self.requested = true;
    }

    #[inline]
    pub(crate) fn take_probe(&mut self) -> bool {
        core::mem::take(&mut self.probe)
    }

    /// Requests a tail loss probe.
    pub(crate) fn request_tail_probe(&mut self) {
        self.tail_probe = true;
        self.requested = true;
    }

    #[inline]
    pub(crate) fn has_tail_probe(&self) -> bool {
        self.tail_probe
    }

    pub(crate) fn clear_tail_probe(&mut self) {
        self.tail_probe = false;
    }

    /// Requests one segment of data, or an empty segment if the window does not admit it.
    pub(crate) fn request_probe_data(&mut self) {
        self.probe_data = true;
        self.requested = true;
    }

    #[inline]
    pub(crate) fn take_probe_data(&mut self) -> bool {
        core::mem::take(&mut self.probe_data)
    }

    /// Requests the data before `end` although Nagle or a cork holds it, with what has been appended
    /// to its last segment since. The request lasts until the data is sent, which cwnd or the window
    /// may delay.
    pub(crate) fn request_push(&mut self, end: SeqNum) {
        self.push = true;
        self.push_end = end;
        self.requested = true;
    }

    /// Records that all data before `nxt` is sent. Called for each super-segment, since `push_end`
    /// can be compared only with a sequence number less than 2 GiB away.
    #[inline]
    pub(crate) fn on_sent(&mut self, nxt: SeqNum) {
        self.push &= self.push_end.after(nxt);
    }

    /// Returns whether the next data is sent although Nagle or a cork holds it.
    #[inline]
    pub(crate) fn is_pushed(&self) -> bool {
        self.push
    }

    /// Requests a RST.
    pub(crate) fn request_reset(&mut self, reset: Reset) {
        self.reset = Some(reset);
        self.requested = true;
    }

    #[inline]
    pub(crate) fn has_reset(&self) -> bool {
        self.reset.is_some()
    }

    pub(crate) fn take_reset(&mut self) -> Option<Reset> {
        self.reset.take()
    }

    /// Ends an attempt to send. `sent`: it sent a segment; `more`: data or retransmissions may follow.
    #[inline]
    pub(crate) fn end_attempt(&mut self, sent: bool, more: bool) {
        let has_control_segment = self.syn || self.probe || self.reset.is_some();
        self.requested = sent && (more || has_control_segment);
    }

    /// Drops all requests except that of a RST at the connection's end.
    pub(crate) fn end(&mut self) {
        let reset = self.reset.take();
        *self = Self {
            requested: reset.is_some(),
            reset,
            ..Self::default()
        };
    }

    #[cfg(test)]
    pub(super) fn clear_request(&mut self) {
        self.requested = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_ends_when_its_data_is_sent_and_does_not_come_back() {
        let end = SeqNum::new(u32::MAX - 100);
        for overshoot in [0, 1, 200] {
            let mut pending = Pending::default();
            pending.request_push(end);
            pending.on_sent(end - 1);
            assert!(pending.is_pushed());
            pending.on_sent(end + overshoot);
            assert!(!pending.is_pushed());
            for gib in 1..=4 {
                pending.on_sent(end + overshoot + (gib << 30).min(u64::from(u32::MAX)) as u32);
                assert!(!pending.is_pushed(), "{gib} GiB later");
            }
        }
    }
}
