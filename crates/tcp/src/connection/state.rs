//! The states of a connection, and the only function that changes them.

use super::Connection;

/// The state of a connection (RFC 9293 3.3.2). LISTEN belongs to the host, TIME-WAIT to
/// [`TimeWait`](crate::TimeWait).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "RFC 9293's names")]
pub enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    /// Nothing more is exchanged, except for one last segment if `needs_transmit` is set. Once
    /// that is sent and the application has closed the socket, the host drops the connection.
    Closed,
}

impl State {
    /// Returns whether our SYN is acknowledged and the peer's was received.
    #[inline]
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }

    /// Returns the name that `ss` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::Closed => "UNCONN",
        }
    }

    /// Returns Linux's number of the state (`tcpi_state`).
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Established => 1,
            Self::SynSent => 2,
            Self::SynReceived => 3,
            Self::FinWait1 => 4,
            Self::FinWait2 => 5,
            Self::Closed => 7,
            Self::CloseWait => 8,
            Self::LastAck => 9,
            Self::Closing => 11,
        }
    }

    /// Returns whether a transition is one of RFC 9293 figure 5, without LISTEN and TIME-WAIT; any
    /// connection may be aborted.
    const fn may_become(self, next: Self) -> bool {
        use State::{
            CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived,
            SynSent,
        };
        matches!(
            (self, next),
            (SynSent, SynReceived | Established)
                | (SynReceived, Established)
                | (Established, FinWait1 | CloseWait)
                | (FinWait1, FinWait2 | Closing)
                | (CloseWait, LastAck)
                | (_, Closed)
        )
    }
}

impl Connection {
    /// Changes the state. Every change goes through this function.
    pub(crate) fn transition(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "{:?} to {next:?}", self.state);
        self.state = next;
    }
}
