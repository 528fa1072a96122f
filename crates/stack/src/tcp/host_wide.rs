//! Calls that concern all connections of a host.

use alloc::vec::Vec;

use fullsend_tcp::State;
use fullsend_wire::Instant;

use super::socket::SocketEntry;
use crate::Host;
use crate::waiters::WaitEvent;

impl Host {
    /// Returns the number of entries in the socket table: connections, half-open ones and orphans
    /// included, but not those in TIME-WAIT.
    pub fn tcp_socket_count(&self) -> usize {
        self.tcp.table.len()
    }

    /// Returns the number of connections in TIME-WAIT.
    pub fn tcp_time_wait_count(&self) -> usize {
        self.tcp.time_wait.len()
    }

    /// Returns the number of connections with data or a FIN that is not acknowledged yet.
    pub fn tcp_unflushed_count(&self) -> usize {
        let entries = self.tcp.table.iter();
        entries.filter(|(_, entry)| is_unflushed(entry)).count()
    }

    /// Returns whether all data and FINs of every connection are acknowledged. A caller that repeats this
    /// until it holds examines each connection about once, as it continues at the one that was the reason
    /// last time.
    pub fn tcp_is_flushed(&mut self) -> bool {
        let slots = self.tcp.table.slots() as u32;
        let first = self.tcp.unflushed_at.min(slots);
        let unflushed = |index: &u32| self.tcp.table.get(*index).is_some_and(is_unflushed);
        let found = (first..slots).chain(0..first).find(unflushed);
        self.tcp.unflushed_at = found.unwrap_or(0);
        found.is_none()
    }

    /// Resets every connection and closes every listener, for the end of the process. All tasks that
    /// wait for sockets are woken.
    pub fn abort_all(&mut self, now: Instant) {
        self.udp.wake_all(&mut self.wakers);
        self.pings.wake_all(&mut self.wakers);
        self.ip.icmp_queue.readers().wake(&mut self.wakers);
        for id in self.tcp.listeners.ids() {
            self.listener(id).close(now);
        }
        let all: Vec<u32> = self.tcp.table.iter().map(|(index, _)| index).collect();
        for index in all {
            match self.tcp.table.get_mut(index) {
                Some(SocketEntry::Conn(socket)) => {
                    let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                    socket.conn.abort(&mut cx);
                    socket.waiters.wake(WaitEvent::Read, &mut self.wakers);
                    socket.waiters.wake(WaitEvent::Write, &mut self.wakers);
                    self.post_process(now, index);
                }
                Some(SocketEntry::DeferredSyn(_)) => self.reject_deferred_syn(now, index),
                Some(SocketEntry::HalfOpen(_)) => self.drop_half_open(index),
                None => {}
            }
        }
    }
}

/// Returns whether an entry is a connection with data or a FIN that is not acknowledged yet.
fn is_unflushed(entry: &SocketEntry) -> bool {
    match entry {
        SocketEntry::Conn(socket) => {
            socket.conn.state() != State::Closed && !socket.conn.is_flushed()
        }
        SocketEntry::DeferredSyn(_) | SocketEntry::HalfOpen(_) => false,
    }
}
