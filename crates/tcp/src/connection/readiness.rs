//! Readiness for applications that poll many sockets.

use super::{Connection, State};
use crate::{Cx, TcpError};

/// The readiness of a connection, as its application sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// The state.
    pub state: State,
    /// Bytes ready to be read.
    pub readable: usize,
    /// Whether `readable` is enough to wake a reader: at least `SO_RCVLOWAT`, or less if flow
    /// control admits no more.
    pub reaches_rcvlowat: bool,
    /// Whether flow control or the host's memory admits little or no more data until some is read.
    pub receive_limited: bool,
    /// Whether everything up to the peer's FIN was received in order.
    pub fin_received: bool,
    /// Whether there is enough room to wake a writer.
    pub writable: bool,
    /// The error of `SO_ERROR`, other than a soft error; it is not cleared.
    pub error: Option<TcpError>,
    /// Bytes sent and not acknowledged.
    pub unacked: usize,
    /// Bytes written and not sent.
    pub unsent: usize,
}

impl Connection {
    /// Returns the readiness without changing anything.
    pub fn readiness(&self, cx: &Cx<'_>) -> Readiness {
        let readable = self.rcv.readable();
        Readiness {
            state: self.state,
            readable,
            reaches_rcvlowat: self.has_enough_data(cx.mem),
            receive_limited: self.is_receive_limited(cx.mem),
            fin_received: self.rcv.fin_received(),
            writable: self.is_writable(cx),
            error: self.user.error,
            unacked: self.snd.bytes_in_flight() as usize,
            unsent: self.snd.unsent_bytes(),
        }
    }

    /// Registers interest in the next change, which [`take_wakes`](Self::take_wakes) reports: more
    /// data even if some is readable already, the end of the stream, an error, room to write if
    /// there is none now, and the acknowledgement of the FIN.
    pub fn watch(&mut self, cx: &Cx<'_>) {
        self.user.reader_waiting = true;
        let fin_sent = matches!(
            self.state,
            State::FinWait1 | State::Closing | State::LastAck
        );
        self.user.writer_waiting = fin_sent || !self.is_writable(cx);
    }
}
