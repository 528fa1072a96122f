//! The segments that are to be sent, as the parts that decide about them have requested.

use fullsend_wire::SeqNum;

use super::Force;

/// A RST to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reset {
    /// In answer to a segment with this acknowledgement number.
    WithSeq(SeqNum),
    /// Of a connection that the peer considers open.
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
    /// Send data although a limit would defer it.
    force: Force,
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

    /// Requests data that a limit defers.
    pub(crate) fn request_forced(&mut self, force: Force) {
        self.force = self.force.max(force);
        self.requested = true;
    }

    /// Keeps a request to push for the next attempt, because another limit defers the data now
    /// (`TCP_NODELAY` sends corked data once cwnd and the window admit it, tcp(7)).
    pub(crate) fn keep_push(&mut self) {
        self.force = self.force.max(Force::Push);
    }

    #[inline]
    pub(crate) fn take_force(&mut self) -> Force {
        core::mem::take(&mut self.force)
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
