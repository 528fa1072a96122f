//! The post-processing of calls on a connection: wake-ups, the ready queue, the timer, and changes
//! of its state that concern the host.

use alloc::boxed::Box;

use fullsend_tcp::{State, TimeWait};
use fullsend_wire::Instant;

use super::socket::{ConnectionOwner, Effects, SocketEntry};
use crate::Host;
use crate::demux::FlowOwner;
use crate::waiters::WaitEvent;

/// Bytes of memory that an orphan may always hold (Linux's minimum send buffer).
const ORPHAN_MIN_BYTES: usize = 4608;

impl Host {
    /// Post-processes a call on a connection that may have changed anything.
    #[inline(never)]
    pub(crate) fn post_process(&mut self, now: Instant, index: u32) {
        if let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) {
            let effects = socket.post_process(index, &mut self.wakers, &mut self.tcp.wheel);
            self.apply_effects(now, index, effects);
        }
    }

    /// Applies the effects of a call on a socket.
    #[inline(always)]
    pub(super) fn apply_effects(&mut self, now: Instant, index: u32, effects: Effects) {
        self.push_ready(index, effects.ready_iface);
        if effects.needs_state_check {
            self.post_process_state(now, index);
        }
    }

    /// Adds the socket to the ready queue of `iface`, if any.
    #[inline(always)]
    pub(super) fn push_ready(&mut self, index: u32, iface: Option<u16>) {
        if let Some(iface) = iface {
            self.push_ready_to(index, iface);
        }
    }

    #[inline(never)]
    fn push_ready_to(&mut self, index: u32, iface: u16) {
        self.iface_mut(iface).ready.push_back(index);
    }

    #[inline(never)]
    fn post_process_state(&mut self, now: Instant, index: u32) {
        let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) else {
            return;
        };
        if socket.conn.has_fastopen_event() {
            self.on_fastopen_events(now, index);
            return self.post_process(now, index);
        }
        self.post_process_closed(now, index);
    }

    #[inline(never)]
    fn post_process_closed(&mut self, now: Instant, index: u32) {
        let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) else {
            return;
        };
        if socket.conn.state() != State::Closed {
            return;
        }
        socket.waiters.wake(WaitEvent::Flush, &mut self.wakers);
        if core::mem::take(&mut socket.reachable) {
            let time_wait = socket.conn.take_time_wait();
            self.release_flow_key(index, time_wait);
        }
        self.release_if_done(now, index);
    }

    /// Releases the 4-tuple of a closed connection: it moves to a TIME-WAIT entry or becomes free
    /// (RFC 9293 3.10.7.1: segments to it are answered with a RST).
    fn release_flow_key(&mut self, index: u32, time_wait: Option<TimeWait>) {
        let moved = time_wait.is_some_and(|tw| self.enter_time_wait(index, tw));
        if let Some(entry) = self.tcp.table.get(index)
            && !moved
        {
            self.tcp.flows.remove(entry.key(), FlowOwner::Socket(index));
        }
    }

    /// Removes a closed connection that has no owner.
    pub(super) fn release_if_done(&mut self, now: Instant, index: u32) {
        let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let done = socket.conn.state() == State::Closed && !socket.queued;
        if done && socket.owner == ConnectionOwner::Orphan {
            let mut cx = self.env.cx_without_path(now, socket.conn.ts_offset());
            socket.conn.release_memory(&mut cx);
            self.tcp.orphans -= 1;
            self.remove_entry(index);
        }
    }

    /// Removes an entry from the socket table and from all that refers to it, except a ready queue.
    pub(super) fn remove_entry(&mut self, index: u32) {
        let Some(entry) = self.tcp.table.remove(index) else {
            return;
        };
        self.tcp.connections -= usize::from(matches!(entry, SocketEntry::Conn(_)));
        self.env.mem.set_connections(self.tcp.connections);
        self.tcp.wheel.disarm(index);
        self.tcp.saved_syns.remove(&index);
        if !matches!(&entry, SocketEntry::Conn(socket) if !socket.reachable) {
            self.tcp.flows.remove(entry.key(), FlowOwner::Socket(index));
        }
        if self.tcp.table.slots() == 0 {
            self.tcp.wheel.shrink(0);
        }
    }

    /// Removes the owner of a connection: the application has closed it, or a listener closes
    /// before it was accepted.
    pub(super) fn orphan(&mut self, now: Instant, index: u32, abort: bool) {
        let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) else {
            return;
        };
        socket.owner = ConnectionOwner::Orphan;
        self.tcp.orphans += 1;
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        if abort {
            socket.conn.abort(&mut cx);
        } else {
            socket.conn.close(&mut cx);
        }
        // Dropped later, without a lock: a waker may own the task that owns this stream.
        socket.waiters.clear(&mut self.replaced_wakers);
        self.abort_orphan_under_pressure(now, index);
        self.post_process(now, index);
    }

    /// Resets an orphan if there are too many orphans, or if it holds much memory while memory is
    /// exhausted.
    fn abort_orphan_under_pressure(&mut self, now: Instant, index: u32) {
        let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index) else {
            return;
        };
        if socket.owner != ConnectionOwner::Orphan || socket.conn.state() == State::Closed {
            return;
        }
        let sysctl = &self.env.sysctl;
        let too_many = self.tcp.orphans > sysctl.tcp_max_orphans as usize;
        let large = socket.conn.truesize() > ORPHAN_MIN_BYTES;
        if too_many || (large && self.env.mem.is_exhausted(sysctl)) {
            self.mib.socket.abort_on_memory += 1;
            let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
            socket.conn.abort(&mut cx);
        }
    }

    /// Processes timer `index`, which has fired.
    pub(crate) fn tcp_timeout(&mut self, now: Instant, index: u32) {
        match self.tcp.table.get_mut(index) {
            Some(SocketEntry::Conn(socket)) => {
                if socket.conn.poll_deadline().is_some_and(|at| at <= now) {
                    let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                    socket.conn.handle_timeout(&mut cx);
                    self.abort_orphan_under_pressure(now, index);
                }
                self.post_process(now, index);
            }
            Some(SocketEntry::DeferredSyn(deferred)) if deferred.expires <= now => {
                self.mib.socket.held_expired += 1;
                self.drop_deferred_syn(index);
            }
            Some(SocketEntry::DeferredSyn(deferred)) => {
                let expires = deferred.expires;
                self.tcp.wheel.arm(index, expires);
            }
            Some(SocketEntry::HalfOpen(_)) => self.half_open_timeout(now, index),
            None => {}
        }
    }

    /// Adds a connection to the socket table and the flow table, and post-processes it. Returns its
    /// handle, or `None` if the table is full.
    pub(super) fn insert_connection(
        &mut self,
        now: Instant,
        socket: Box<super::socket::Socket>,
    ) -> Option<u64> {
        let key = socket.key;
        let (index, id) = self.tcp.table.insert(SocketEntry::Conn(socket))?;
        self.tcp.connections += 1;
        self.env.mem.set_connections(self.tcp.connections);
        self.tcp.flows.insert(&key, FlowOwner::Socket(index));
        self.post_process(now, index);
        Some(id)
    }
}
