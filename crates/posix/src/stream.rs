//! A TCP socket: what `struct socket` and `struct sock` keep beyond the connection itself.

mod connect;
mod events;
mod io;
mod listen;

use core::net::SocketAddr;

use fullsend_stack::{Host, ListenerId, TcpId};
use fullsend_tcp::{Readiness, State};
use fullsend_units::Instant;

use crate::SockAddr;
use crate::errno::{Errno, Result};
use crate::wake::Wakers;

/// `socket.state`: how far `connect` has come, from the caller's view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Unconnected,
    Connecting,
    Connected,
    /// Shut down while connecting.
    Disconnecting,
}

/// What stands behind the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Core {
    /// TCP_CLOSE.
    None,
    Listener(ListenerId),
    Connection(TcpId),
}

/// Halves that the user shut (`sk_shutdown`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Shut {
    read: bool,
    write: bool,
}

/// A TCP socket.
#[derive(Debug)]
pub(crate) struct Stream {
    domain: i32,
    phase: Phase,
    core: Core,
    shut: Shut,
    /// As bound, canonical.
    bound: Option<SocketAddr>,
    /// As those who wait were last told.
    told: Option<Told>,
}

/// What a change of state is, for those who wait (`sk_state_change`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Told {
    state: State,
    fin_received: bool,
    failed: bool,
}

impl Stream {
    pub(crate) const fn new(domain: i32) -> Self {
        Self {
            domain,
            phase: Phase::Unconnected,
            core: Core::None,
            shut: Shut {
                read: false,
                write: false,
            },
            bound: None,
            told: None,
        }
    }

    fn accepted(domain: i32, id: TcpId) -> Self {
        let mut this = Self::new(domain);
        this.phase = Phase::Connected;
        this.core = Core::Connection(id);
        this
    }

    /// How the connection stands, if there is one.
    fn readiness(&self, host: &mut Host) -> Option<(TcpId, Readiness)> {
        let Core::Connection(id) = self.core else {
            return None;
        };
        Some((id, host.tcp_readiness(id).ok()?))
    }

    /// The connection, if it is one that is not over.
    fn state(&self, host: &Host) -> State {
        match self.core {
            Core::Connection(id) => host.tcp_state(id).unwrap_or(State::Closed),
            _ => State::Closed,
        }
    }

    /// `getsockname`.
    pub(crate) fn local(&self, host: &Host) -> SockAddr {
        let addr = match self.core {
            Core::Connection(id) => host.tcp_addrs(id).ok().map(|(local, _)| local),
            Core::Listener(id) => host.listener_addr(id).ok(),
            Core::None => None,
        };
        match addr.or(self.bound) {
            Some(addr) => SockAddr::shown_in(self.domain, addr),
            None => SockAddr::any(self.domain),
        }
    }

    /// `getpeername`.
    pub(crate) fn peer(&self, host: &Host) -> Result<SockAddr> {
        let Core::Connection(id) = self.core else {
            return Err(Errno::ENOTCONN);
        };
        if matches!(self.state(host), State::Closed | State::SynSent) {
            return Err(Errno::ENOTCONN);
        }
        let (_, remote) = host.tcp_addrs(id)?;
        Ok(SockAddr::shown_in(self.domain, remote))
    }

    /// The next change is to be told.
    pub(crate) fn watch(&self, host: &mut Host, wakers: &Wakers) {
        // A handle of ours is valid until it is closed.
        match self.core {
            Core::Connection(id) => drop(host.tcp_watch(id, &wakers.read, &wakers.write)),
            Core::Listener(id) => drop(host.listener_watch(id, &wakers.read)),
            Core::None => {}
        }
    }

    /// There is more to a wake than text or room: the connection's state changed.
    pub(crate) fn turned(&mut self, host: &mut Host) -> bool {
        let told = self.readiness(host).map(|(_, now)| Told {
            state: now.state,
            fin_received: now.fin_received,
            failed: now.error.is_some(),
        });
        let turned = told.is_some() && told != self.told;
        self.told = told;
        turned
    }

    /// `close`.
    pub(crate) fn close(&mut self, host: &mut Host, now: Instant) {
        match core::mem::replace(&mut self.core, Core::None) {
            Core::Connection(id) => host.tcp_close(now, id),
            Core::Listener(id) => host.close_listener(now, id),
            Core::None => {}
        }
    }
}
