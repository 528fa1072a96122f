//! What a user who waits on many sockets asks of each: how it stands, and to be told of changes.

use super::{Connection, State};
use crate::{Cx, TcpError};

/// How a connection stands towards its user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// The state.
    pub state: State,
    /// Bytes that can be read.
    pub readable: usize,
    /// They are at least `SO_RCVLOWAT`.
    pub enough: bool,
    /// The peer's FIN is next in order, or was.
    pub fin_received: bool,
    /// A write is worth a wakeup.
    pub writable: bool,
    /// What `SO_ERROR` would give, other than a soft error; it stays.
    pub error: Option<TcpError>,
    /// Bytes sent and not acknowledged.
    pub unacked: usize,
    /// Bytes written and not sent.
    pub unsent: usize,
}

impl Connection {
    /// How the connection stands; changes nothing.
    pub fn readiness(&self, cx: &Cx<'_>) -> Readiness {
        let readable = self.rcv.queue.readable();
        Readiness {
            state: self.state,
            readable,
            enough: readable > 0 && readable >= self.settings.rcvlowat() as usize,
            fin_received: self.rcv.queue.fin_received(),
            writable: self.is_writable(cx),
            error: self.user.error,
            unacked: self.snd.text_in_flight() as usize,
            unsent: self.snd.queue.len(),
        }
    }

    /// Registers interest in what comes next (a later `take_wakes` tells): more to read although
    /// there may be some already, the end of the stream, an error, room to write if there is none
    /// now, and the FIN's acknowledgement.
    pub fn watch(&mut self, cx: &Cx<'_>) {
        self.user.wants_read = true;
        let fin_sent = matches!(
            self.state,
            State::FinWait1 | State::Closing | State::LastAck
        );
        self.user.wants_write = fin_sent || !self.is_writable(cx);
    }
}
