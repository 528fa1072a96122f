//! Removal of tasks that stop waiting.

use core::task::Waker;

use crate::tcp::{Interest, ListenerId, TcpId};
use crate::udp_calls::UdpId;
use crate::waiters::{WaitEvent, WaitKey};
use crate::{Host, PingId};

/// The event that a task waits for, and its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOn {
    /// Data to read or space to write ([`TcpHandle::poll_ready`](crate::TcpHandle::poll_ready)).
    Tcp(TcpId, Interest),
    /// The acknowledgement of all written data ([`TcpHandle::poll_flushed`](crate::TcpHandle::poll_flushed)).
    Flush(TcpId),
    /// The end of a deferred SYN
    /// ([`TcpHandle::poll_deferred_ended`](crate::TcpHandle::poll_deferred_ended)).
    DeferredSyn(TcpId),
    /// A connection to accept ([`ListenerHandle::poll_ready`](crate::ListenerHandle::poll_ready)).
    Listener(ListenerId),
    /// A datagram ([`UdpHandle::poll_ready`](crate::UdpHandle::poll_ready)).
    Udp(UdpId),
    /// An answer to an echo request ([`PingHandle::poll_ready`](crate::PingHandle::poll_ready)).
    Ping(PingId),
    /// A message ([`Host::icmp_poll_ready`]).
    Icmp,
}

impl Host {
    /// Removes a future that waits under `key` or, without a key, the caller that polled. Returns
    /// the waker, unless it has been woken or the socket is closed. Drop the waker without holding
    /// any lock.
    pub fn stop_waiting(&mut self, on: WaitOn, key: Option<&mut WaitKey>) -> Option<Waker> {
        match on {
            WaitOn::Tcp(id, interest) => {
                let (_, socket, _) = self.tcp.user_conn(id).ok()?;
                let event = match interest {
                    Interest::Read => WaitEvent::Read,
                    Interest::Write => WaitEvent::Write,
                };
                socket.waiters.remove(event, key)
            }
            WaitOn::Flush(id) => {
                let (_, socket, _) = self.tcp.user_conn(id).ok()?;
                socket.waiters.remove(WaitEvent::Flush, key)
            }
            WaitOn::DeferredSyn(id) => self.stop_waiting_for_deferred_syn(id, key),
            WaitOn::Listener(id) => self.accept_waiters(id)?.remove(key),
            WaitOn::Ping(id) => self.pings.readers(id)?.remove(key),
            WaitOn::Icmp => self.ip.icmp_queue.readers().remove(key),
            WaitOn::Udp(id) => self.udp.socket_mut(id).ok()?.readers().remove(key),
        }
    }

    /// Moves the wakers that were replaced to `out`. Drop them without holding any lock, as the
    /// last reference to a task may drop its sockets.
    pub fn take_replaced_wakers(&mut self, out: &mut alloc::vec::Vec<Waker>) {
        out.append(&mut self.replaced_wakers);
    }
}
