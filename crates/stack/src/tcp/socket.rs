//! Entries of the socket table: connections, half-open connections and deferred SYNs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;

use fullsend_tcp::{Connection, State, Wakes};
use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::{EcnField, Instant, SeqNum, cold_path, prefetch};

use super::ListenerId;
use super::half_open::HalfOpen;
use crate::demux::FlowKey;
use crate::ip::Path;
use crate::timer::TimerWheel;
use crate::waiters::{WaitEvent, WaitList, Waiters};

/// The owner of a connection. Listeners are identified by their slot: closing one removes or resets
/// the connections that refer to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionOwner {
    /// The application has its handle.
    User,
    /// The connection waits in a listener's accept queue.
    Listener(u32),
    /// The application has closed it, and it finishes by itself.
    Orphan,
}

/// A connection with its state in the host.
pub(crate) struct Socket {
    pub(super) conn: Connection,
    pub(super) key: FlowKey,
    pub(super) path: Path,
    /// IP ID. It need not be unique (RFC 6864), but is incremented so that coalescing can detect
    /// the order.
    pub(super) ip_ident: u16,
    /// Whether the socket is in its interface's ready queue.
    pub(super) queued: bool,
    /// Whether the flow table refers to this entry.
    pub(super) reachable: bool,
    pub(super) owner: ConnectionOwner,
    pub(crate) waiters: Waiters,
}

impl Socket {
    /// Moves the wakers for the events in `wakes` to `out`.
    #[inline]
    pub(super) fn wake(&mut self, wakes: Wakes, out: &mut Vec<Waker>) {
        if wakes.read {
            self.waiters.wake(WaitEvent::Read, out);
        }
        if wakes.write {
            self.waiters.wake(WaitEvent::Write, out);
        }
    }
}

/// The effects of a call on a socket that the host has to apply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effects {
    /// The interface whose ready queue the socket joins.
    pub(super) ready_iface: Option<u16>,
    /// Whether the connection is not established, is not owned by the application, or has Fast Open
    /// events.
    pub(super) needs_state_check: bool,
}

impl Socket {
    /// Post-processes a call on the connection that may have changed anything.
    #[inline(always)]
    pub(super) fn post_process(
        &mut self,
        index: u32,
        wakers: &mut Vec<Waker>,
        wheel: &mut TimerWheel,
    ) -> Effects {
        let mut needs_state_check = self.needs_state_check();
        let wakes = self.conn.take_wakes();
        if wakes.read || wakes.write {
            self.wake(wakes, wakers);
            needs_state_check |= self.conn.has_fastopen_event();
        }
        if self.waiters.has_flush_waiter() {
            self.wake_if_flushed(wakers);
        }
        self.arm_timer(index, wheel);
        let ready_iface = self.join_ready_queue();
        Effects {
            ready_iface,
            needs_state_check,
        }
    }

    #[inline(never)]
    fn wake_if_flushed(&mut self, wakers: &mut Vec<Waker>) {
        if self.conn.is_flushed() {
            self.waiters.wake(WaitEvent::Flush, wakers);
        }
    }

    /// Post-processes a read or a write. For a socket in the ready queue, its next poll does that.
    #[inline(always)]
    pub(super) fn post_process_transfer(
        &mut self,
        index: u32,
        wheel: &mut TimerWheel,
    ) -> Option<u16> {
        if self.queued {
            return None;
        }
        let ready_iface = self.join_ready_queue();
        if ready_iface.is_none() {
            self.arm_timer(index, wheel);
        }
        ready_iface
    }

    /// Prefetches the memory that the next call on the connection reads.
    #[inline(never)]
    pub(super) fn prefetch(&self) {
        prefetch(&self.owner);
        prefetch(&self.key.remote_port);
        prefetch(&self.path.version);
        self.conn.prefetch();
    }

    /// Arms the socket's timer for the connection's next deadline.
    #[inline(never)]
    pub(super) fn arm_timer(&self, index: u32, wheel: &mut TimerWheel) {
        let deadline = self.conn.poll_deadline().unwrap_or(Instant::FAR_FUTURE);
        wheel.arm(index, deadline);
    }

    /// Returns the interface whose ready queue the socket joins now, if it does.
    #[inline]
    fn join_ready_queue(&mut self) -> Option<u16> {
        let joins = !self.queued && self.conn.needs_transmit();
        self.queued |= joins;
        joins.then_some(self.path.iface)
    }

    /// Returns whether the host has to check for a change of the connection's state.
    #[inline]
    pub(super) fn needs_state_check(&self) -> bool {
        self.conn.state() != State::Established || self.owner != ConnectionOwner::User
    }
}

impl Socket {
    /// Applies the IP header fields that the application has set, after they or the path have
    /// changed.
    pub(super) fn apply_ip_settings(&mut self) {
        self.path.apply(self.conn.ip_settings());
    }
}

/// A SYN whose answer is deferred until the application accepts or rejects it.
#[derive(Debug)]
pub(crate) struct DeferredSyn {
    pub(super) syn: TcpRepr,
    /// The ECN field of the packet with the SYN.
    pub(super) syn_ecn: EcnField,
    pub(super) key: FlowKey,
    /// The smallest ISN of the answer, if the SYN has replaced a connection in TIME-WAIT.
    pub(super) min_isn: Option<SeqNum>,
    pub(super) listener: ListenerId,
    /// Whether the application has its handle.
    pub(super) user_owned: bool,
    /// The time at which the SYN is dropped.
    pub(super) expires: Instant,
    /// Tasks that wait for its end.
    pub(super) waiters: WaitList,
}

/// An entry of the socket table.
pub(crate) enum SocketEntry {
    Conn(Box<Socket>),
    DeferredSyn(Box<DeferredSyn>),
    HalfOpen(Box<HalfOpen>),
}

impl SocketEntry {
    #[inline]
    pub(super) fn key(&self) -> &FlowKey {
        match self {
            Self::Conn(socket) => &socket.key,
            Self::DeferredSyn(deferred) => {
                cold_path();
                &deferred.key
            }
            Self::HalfOpen(half_open) => {
                cold_path();
                &half_open.key
            }
        }
    }
}

// An idle connection is to cost at most 1 KiB, with its slots in the tables.
const _: () = assert!(size_of::<Socket>() <= size_of::<Connection>() + 192);
