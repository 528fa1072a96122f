//! TCP sockets: the state of Linux's `struct socket` and `struct sock` beyond the connection
//! itself.

mod connect;
mod events;
mod io;
mod listen;
mod loans;
mod options;
mod reports;

pub(crate) use connect::may_fastopen;

use alloc::vec::Vec;
use core::net::SocketAddr;

use fullsend_stack::{Host, ListenerId, TcpId};
use fullsend_tcp::{Readiness, SocketOption, State};
use fullsend_wire::Instant;

use crate::SockAddr;
use crate::errno::{Errno, Result};
use crate::errqueue::ErrQueue;
use crate::sockopt::CommonOptions;
use crate::wake::Wakers;
pub use loans::CopiedCall;
use loans::Loans;

/// `socket.state`: the progress of `connect` as the caller sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnectState {
    Unconnected,
    Connecting,
    /// Connected for the caller, though the SYN is deferred until the first write.
    Deferred,
    Connected,
    /// Shut down while connecting.
    Disconnecting,
}

/// The host's object of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostSocket {
    /// No object: the state is TCP_CLOSE.
    None,
    Listener(ListenerId),
    Connection(TcpId),
}

/// The directions that the user has shut down (`sk_shutdown`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ShutDirections {
    read: bool,
    write: bool,
}

/// A TCP socket.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) domain: i32,
    connect_state: ConnectState,
    pub(crate) host_socket: HostSocket,
    shut: ShutDirections,
    /// The error of a connection that is gone, to be returned once (`sk_err`).
    error: Option<Errno>,
    /// The bound address in canonical form; its port may be 0.
    pub(crate) bound: Option<SocketAddr>,
    /// Whether the host chose the port of `bound`.
    pub(crate) port_chosen: bool,
    /// The port that is claimed for this socket.
    pub(crate) claimed: Option<u16>,
    pub(crate) backlog: u32,
    pub(crate) common: CommonOptions,
    /// Options that were set, one of each kind. They are applied to a connection or listener when
    /// it is created.
    options: Vec<SocketOption>,
    /// `TCP_CONGESTION`, if it was set.
    pub(crate) congestion: Option<&'static str>,
    /// `TCP_INQ`.
    pub(crate) inq: bool,
    /// `TCP_FASTOPEN_CONNECT`.
    pub(crate) fastopen_connect: bool,
    errors: ErrQueue,
    /// The count of `errors` when the last sending call began.
    errors_before_send: u64,
    /// Keys of timestamps count bytes from this stream offset.
    pub(crate) key_base: u64,
    /// Number of calls with `MSG_ZEROCOPY` so far.
    zerocopy_calls: u32,
    /// Whether the current call may have more parts, so that its completion is not queued yet if it
    /// copies.
    has_parts: bool,
    /// The number of the current copying call.
    copied: Option<u32>,
    loans: Loans,
    /// The state at the last notification of waiters.
    notified: Option<NotifiedState>,
}

/// The state whose changes wake all waiters (`sk_state_change`, `sk_error_report`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NotifiedState {
    state: State,
    fin_received: bool,
    failed: bool,
    errors: u64,
}

impl Stream {
    pub(crate) const fn new(domain: i32) -> Self {
        Self {
            domain,
            connect_state: ConnectState::Unconnected,
            host_socket: HostSocket::None,
            shut: ShutDirections {
                read: false,
                write: false,
            },
            error: None,
            bound: None,
            port_chosen: false,
            claimed: None,
            backlog: 0,
            common: CommonOptions::new(),
            options: Vec::new(),
            congestion: None,
            inq: false,
            fastopen_connect: false,
            errors: ErrQueue::new(),
            errors_before_send: 0,
            key_base: 0,
            zerocopy_calls: 0,
            has_parts: false,
            copied: None,
            loans: Loans::new(),
            notified: None,
        }
    }

    /// Returns the readiness of the connection, if there is one.
    fn readiness(&self, host: &mut Host) -> Option<(TcpId, Readiness)> {
        let HostSocket::Connection(id) = self.host_socket else {
            return None;
        };
        Some((id, host.tcp(id).readiness().ok()?))
    }

    /// Returns whether flow control admits little or no more data until some is read.
    pub(crate) fn is_receive_limited(&self, host: &mut Host) -> bool {
        self.readiness(host)
            .is_some_and(|(_, now)| now.receive_limited)
    }

    /// Returns the connection's state; `Closed` without one.
    pub(crate) fn state(&self, host: &Host) -> State {
        match self.host_socket {
            HostSocket::Connection(id) => host.tcp_ref(id).state().unwrap_or(State::Closed),
            _ => State::Closed,
        }
    }

    /// Returns whether the socket has neither a connection nor a listener.
    pub(crate) fn is_unconnected(&self) -> bool {
        self.host_socket == HostSocket::None
    }

    /// Returns the local address (`getsockname`).
    pub(crate) fn local(&self, host: &Host) -> SockAddr {
        let addr = match self.host_socket {
            HostSocket::Connection(id) => host.tcp_ref(id).addrs().ok().map(|(local, _)| local),
            // A listener has the address that it was bound to.
            HostSocket::Listener(_) | HostSocket::None => None,
        };
        match addr.or(self.bound) {
            Some(addr) => SockAddr::for_domain(self.domain, addr),
            None => SockAddr::any(self.domain),
        }
    }

    /// Returns the peer's address (`getpeername`).
    pub(crate) fn peer(&self, host: &Host) -> Result<SockAddr> {
        let HostSocket::Connection(id) = self.host_socket else {
            return Err(Errno::ENOTCONN);
        };
        if matches!(self.state(host), State::Closed | State::SynSent) {
            return Err(Errno::ENOTCONN);
        }
        let (_, remote) = host.tcp_ref(id).addrs()?;
        Ok(SockAddr::for_domain(self.domain, remote))
    }

    /// Registers for the next change.
    pub(crate) fn watch(&self, host: &mut Host, wakers: &Wakers) {
        // The host's object exists until it is closed here.
        match self.host_socket {
            HostSocket::Connection(id) => drop(host.tcp(id).watch(&wakers.read, &wakers.write)),
            HostSocket::Listener(id) => drop(host.listener(id).watch(&wakers.read)),
            HostSocket::None => {}
        }
    }

    /// Returns whether the connection's state, not only its data or room, has changed since the
    /// last wake.
    pub(crate) fn state_changed(&mut self, host: &mut Host) -> bool {
        self.collect_reports(host);
        let errors = self.errors.count;
        let notified = self.readiness(host).map(|(_, now)| NotifiedState {
            state: now.state,
            fin_received: now.fin_received,
            failed: now.error.is_some(),
            errors,
        });
        let state_changed = notified.is_some() && notified != self.notified;
        self.notified = notified;
        state_changed
    }

    /// Closes the socket (`close`).
    pub(crate) fn close(&mut self, host: &mut Host, now: Instant) {
        match core::mem::replace(&mut self.host_socket, HostSocket::None) {
            HostSocket::Connection(id) => host.tcp(id).close(now),
            HostSocket::Listener(id) => host.listener(id).close(now),
            HostSocket::None => {}
        }
    }
}
