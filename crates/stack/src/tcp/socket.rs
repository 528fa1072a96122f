//! What the socket table holds: connections, half-open ones, and SYNs that a user holds.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;

use fullsend_tcp::{Connection, State, Wakes};
use fullsend_units::Instant;
use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpRepr;

use super::ListenerId;
use super::request::Request;
use crate::demux::FlowKey;
use crate::ip::Path;
use crate::timer::Wheel;
use crate::waiters::{Wait, Waiters};

/// Who is to hear of a connection. Listeners are named by their slot: one that closes leaves no
/// connection behind that names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A user has its handle.
    User,
    /// Waiting to be accepted.
    Queued(u32),
    /// Its user let go; it finishes by itself.
    Nobody,
}

/// A connection with what the host keeps for it.
pub(crate) struct Socket {
    pub(super) conn: Connection,
    pub(super) key: FlowKey,
    pub(super) path: Path,
    /// RFC 6864: need not be unique, but counts up so that coalescing can tell the order.
    pub(super) ip_ident: u16,
    /// Stands in its interface's `ready`.
    pub(super) queued: bool,
    /// The flow table leads here.
    pub(super) reachable: bool,
    pub(super) owner: Owner,
    pub(crate) waiters: Waiters,
}

impl Socket {
    /// Moves the wakers that `wakes` speaks of to `out`.
    #[inline]
    pub(super) fn wake(&mut self, wakes: Wakes, out: &mut Vec<Waker>) {
        if wakes.read {
            self.waiters.wake(Wait::Read, out);
        }
        if wakes.write {
            self.waiters.wake(Wait::Write, out);
        }
    }
}

/// What a call on a socket leaves to be done by its host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// The interface in whose `ready` the socket is to stand.
    pub(super) queue: Option<u16>,
    /// The connection is not simply established and its user's, or has news.
    pub(super) unusual: bool,
}

impl Socket {
    /// After a call on the connection that could have changed anything.
    #[inline(always)]
    pub(super) fn settle(
        &mut self,
        index: u32,
        wakers: &mut Vec<Waker>,
        wheel: &mut Wheel,
    ) -> Left {
        let mut unusual = self.is_unusual();
        let wakes = self.conn.take_wakes();
        if wakes.read || wakes.write {
            self.wake(wakes, wakers);
            unusual |= self.conn.has_fastopen_news();
        }
        if self.waiters.any_flush() && self.conn.is_flushed() {
            self.waiters.wake(Wait::Flush, wakers);
        }
        wheel.arm(index, self.deadline());
        let queue = self.turn();
        Left { queue, unusual }
    }

    /// After a read or write. Of a socket that stands in the transmit queue, its turn sees to all.
    #[inline(always)]
    pub(super) fn after_transfer(&mut self, index: u32, wheel: &mut Wheel) -> Option<u16> {
        if self.queued {
            return None;
        }
        let queue = self.turn();
        if queue.is_none() {
            wheel.arm(index, self.deadline());
        }
        queue
    }

    /// Reads a little of what the next call on the connection will want.
    #[inline]
    pub(super) fn fetch(&self) -> u64 {
        let own = self.owner == Owner::User;
        let below = u64::from(self.key.remote_port) ^ u64::from(self.path.version);
        u64::from(own) ^ below ^ self.conn.fetch()
    }

    /// When the connection's next timer fires; the far future if none runs.
    #[inline]
    pub(super) fn deadline(&self) -> Instant {
        self.conn.poll_deadline().unwrap_or(Instant::FAR_FUTURE)
    }

    /// The interface in whose `ready` the socket is to stand from now on.
    #[inline]
    fn turn(&mut self) -> Option<u16> {
        let joins = !self.queued && self.conn.wants_transmit();
        self.queued |= joins;
        joins.then_some(self.path.iface)
    }

    /// The host has to look whether the connection's life took a turn.
    #[inline]
    pub(super) fn is_unusual(&self) -> bool {
        self.conn.state() != State::Established || self.owner != Owner::User
    }
}

impl Socket {
    /// The user said what the IP headers are to say, or the path is a new one.
    pub(super) fn apply_ip_settings(&mut self) {
        self.path.apply(self.conn.ip_settings());
    }
}

/// A SYN that waits for its user's verdict.
#[derive(Debug)]
pub(crate) struct Held {
    pub(super) syn: TcpRepr,
    /// The ECN field it came with.
    pub(super) syn_ecn: EcnField,
    pub(super) key: FlowKey,
    pub(super) listener: ListenerId,
    /// The user has its handle.
    pub(super) taken: bool,
    /// When it is given up.
    pub(super) expires: Instant,
}

/// An entry of the socket table.
pub(crate) enum Entry {
    Conn(Box<Socket>),
    Held(Box<Held>),
    Request(Box<Request>),
}

impl Entry {
    #[inline]
    pub(super) fn key(&self) -> &FlowKey {
        match self {
            Self::Conn(socket) => &socket.key,
            Self::Held(held) => &held.key,
            Self::Request(request) => &request.key,
        }
    }
}

// An idle connection is to cost 1 KiB at most, with its slots in the tables.
const _: () = assert!(size_of::<Socket>() <= size_of::<Connection>() + 192);
