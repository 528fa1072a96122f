//! What the socket table holds: connections, half-open ones, and SYNs that a user holds.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Waker;

use fullsend_tcp::{Connection, Wakes};
use fullsend_units::Instant;
use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpRepr;

use super::ListenerId;
use super::request::Request;
use crate::demux::FlowKey;
use crate::ip::Path;
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
    pub(super) waiters: Waiters,
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
const _: () = assert!(size_of::<Socket>() <= size_of::<Connection>() + 160);
