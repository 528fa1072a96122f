//! Readiness of a stream, by the rules of Linux's `tcp_poll`.

use fullsend_stack::Host;
use fullsend_tcp::State;

use super::{ConnectState, HostSocket, Stream};
use crate::abi::{
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM,
};

const READ_EVENTS: u32 = EPOLLIN | EPOLLRDNORM;
const WRITE_EVENTS: u32 = EPOLLOUT | EPOLLWRNORM;

impl Stream {
    /// Returns the readiness in `EPOLL*` bits.
    pub(crate) fn events(&self, host: &mut Host) -> u32 {
        if let HostSocket::Listener(id) = self.host_socket {
            return if host.listener(id).accept_queue_len() > 0 {
                READ_EVENTS
            } else {
                0
            };
        }
        let mut events = 0;
        if self.error.is_some() || self.has_reports(host) {
            events |= EPOLLERR;
        }
        let Some((id, now)) = self.readiness(host) else {
            // A socket in TCP_CLOSE that was never connected is hung up and writable: a write
            // returns the error.
            let shut = if self.shut.read {
                READ_EVENTS | EPOLLRDHUP
            } else {
                0
            };
            return events | EPOLLHUP | WRITE_EVENTS | shut;
        };
        let closed = now.state == State::Closed;
        let rcv_shut = closed || self.shut.read || now.fin_received;
        let snd_shut = closed || self.shut.write;
        if rcv_shut && snd_shut {
            events |= EPOLLHUP;
        }
        if rcv_shut {
            events |= READ_EVENTS | EPOLLRDHUP;
        }
        let handshaking = match now.state {
            State::SynSent => true,
            // An accepted connection in SYN-RECEIVED was opened by a SYN with data (Fast Open).
            State::SynReceived => self.connect_state != ConnectState::Connected,
            _ => false,
        };
        if !handshaking {
            if now.reaches_rcvlowat {
                events |= READ_EVENTS;
            }
            if snd_shut || now.writable {
                events |= WRITE_EVENTS;
            }
            if host.tcp(id).has_urgent().unwrap_or(false) {
                events |= EPOLLPRI;
            }
        } else if self.connect_state == ConnectState::Deferred {
            events |= WRITE_EVENTS;
        }
        if now.error.is_some() {
            events |= EPOLLERR;
        }
        events
    }
}
