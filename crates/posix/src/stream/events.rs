//! Readiness of a stream, by the rules of Linux's `tcp_poll`.

use fullsend_stack::Host;
use fullsend_tcp::State;

use super::{Core, Phase, Stream};
use crate::abi::{
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM,
};

const IN: u32 = EPOLLIN | EPOLLRDNORM;
const OUT: u32 = EPOLLOUT | EPOLLWRNORM;

impl Stream {
    /// Returns the readiness in `EPOLL*` bits.
    pub(crate) fn events(&self, host: &mut Host) -> u32 {
        if let Core::Listener(id) = self.core {
            return if host.listener_waiting(id) > 0 { IN } else { 0 };
        }
        let mut events = 0;
        if self.error.is_some() || self.has_notices(host) {
            events |= EPOLLERR;
        }
        let Some((id, now)) = self.readiness(host) else {
            // A socket in TCP_CLOSE that was never connected is hung up and writable: a write
            // returns the error.
            let shut = if self.shut.read { IN | EPOLLRDHUP } else { 0 };
            return events | EPOLLHUP | OUT | shut;
        };
        let closed = now.state == State::Closed;
        let rcv_shut = closed || self.shut.read || now.fin_received;
        let snd_shut = closed || self.shut.write;
        if rcv_shut && snd_shut {
            events |= EPOLLHUP;
        }
        if rcv_shut {
            events |= IN | EPOLLRDHUP;
        }
        let opening = match now.state {
            State::SynSent => true,
            // An accepted connection in SYN-RECEIVED was opened by a SYN with data (Fast Open).
            State::SynReceived => self.phase != Phase::Connected,
            _ => false,
        };
        if !opening {
            if now.enough {
                events |= IN;
            }
            if snd_shut || now.writable {
                events |= OUT;
            }
            if host.tcp_has_urgent(id).unwrap_or(false) {
                events |= EPOLLPRI;
            }
        } else if self.phase == Phase::Deferred {
            events |= OUT;
        }
        if now.error.is_some() {
            events |= EPOLLERR;
        }
        events
    }
}
