//! The calls of applications on a listener.

use core::net::SocketAddr;
use core::task::Waker;

use fullsend_tcp::congestion::{self, CongestionFactory};
use fullsend_tcp::{SocketOption, TcpError};
use fullsend_wire::Instant;

use super::TcpId;
use super::listen::{Incoming, Listener, ListenerId};
use super::socket::{ConnectionOwner, SocketEntry};
use crate::waiters::Waiter;
use crate::{Host, StackError};

/// One TCP listener of a [`Host`], for the calls of its application.
///
/// A handle borrows the host; create one for each call, or for several calls in a row. It holds
/// only the ID, which every call looks up. After [`close`](Self::close), calls that return a
/// `Result` fail with [`NoSuchSocket`](StackError::NoSuchSocket).
///
/// # Examples
/// ```
/// use fullsend_stack::{Host, HostConfig, ListenConfig, StackError};
/// use fullsend_tcp::Sysctl;
/// use fullsend_wire::{Instant, Seed};
///
/// let mut host = Host::new(HostConfig {
///     seed: Seed::from_u64(1),
///     sysctl: Sysctl::default(),
///     pool_bytes: 1 << 20,
/// });
/// let now = Instant::ZERO;
/// let config = ListenConfig {
///     backlog: 16,
///     defer_syn_ack: false,
///     any_destination: false,
/// };
/// let listener = host.tcp_listen("127.0.0.1:0".parse().unwrap(), config)?;
/// let addr = host.listener(listener).addr()?;
/// assert_eq!(host.listener(listener).accept()?, None);
///
/// host.tcp_connect(now, None, addr)?;
/// host.poll(now); // delivers the packets of the handshake
/// let incoming = host.listener(listener).accept()?.expect("a connection");
/// assert_eq!(incoming.local, addr);
///
/// host.listener(listener).close(now);
/// # Ok::<(), StackError>(())
/// ```
#[derive(Debug)]
pub struct ListenerHandle<'a> {
    host: &'a mut Host,
    id: ListenerId,
}

impl Host {
    /// Returns a handle for calls on listener `id`, which is looked up by each call.
    #[inline]
    pub const fn listener(&mut self, id: ListenerId) -> ListenerHandle<'_> {
        ListenerHandle { host: self, id }
    }
}

impl ListenerHandle<'_> {
    /// Returns the listener's ID.
    #[inline]
    pub const fn id(&self) -> ListenerId {
        self.id
    }

    /// Returns the address of the listener.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn addr(&self) -> Result<SocketAddr, StackError> {
        let listener = self.host.tcp.listeners.table.peek(self.id.0);
        listener.map(|l| l.local).ok_or(StackError::NoSuchSocket)
    }

    /// Takes the next established connection or, with
    /// [`defer_syn_ack`](crate::ListenConfig::defer_syn_ack), the next deferred one, which must then
    /// be accepted or rejected ([`TcpHandle::accept_deferred`](crate::TcpHandle::accept_deferred)).
    /// `None` means that there is none.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn accept(&mut self) -> Result<Option<Incoming>, StackError> {
        let tcp = &mut self.host.tcp;
        let listener = tcp.listeners.get_mut(self.id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        let Some(index) = listener.accept_queue.pop_front() else {
            return Ok(None);
        };
        let id = tcp.table.id(index).ok_or(StackError::NoSuchSocket)?;
        let entry = tcp.table.get_mut(index).ok_or(StackError::NoSuchSocket)?;
        match entry {
            SocketEntry::Conn(socket) => {
                socket.owner = ConnectionOwner::User;
                socket.conn.on_accepted();
            }
            SocketEntry::DeferredSyn(deferred) => deferred.user_owned = true,
            SocketEntry::HalfOpen(_) => return Err(StackError::NoSuchSocket),
        }
        Ok(Some(Incoming {
            id: TcpId(id),
            local: entry.key().local_addr(),
            remote: entry.key().remote_addr(),
        }))
    }

    /// Returns the number of connections that wait to be accepted; 0 if there is no such listener.
    pub fn accept_queue_len(&self) -> usize {
        let listener = self.host.tcp.listeners.table.peek(self.id.0);
        listener.map_or(0, |listener| listener.accept_queue.len())
    }

    /// Returns whether there is a connection to accept. If not, `waiter` is woken once when there
    /// is one.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn poll_ready<'a>(&mut self, waiter: impl Into<Waiter<'a>>) -> Result<bool, StackError> {
        let listener = self.host.tcp.listeners.get_mut(self.id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        if !listener.accept_queue.is_empty() {
            return Ok(true);
        }
        listener
            .accept_waiters
            .register(waiter.into(), &mut self.host.replaced_wakers);
        Ok(false)
    }

    /// Wakes `waker` once, when the next connection is added to the accept queue.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn watch(&mut self, waker: &Waker) -> Result<(), StackError> {
        let listener = self.host.tcp.listeners.get_mut(self.id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        listener
            .accept_waiters
            .register(waker.into(), &mut self.host.replaced_wakers);
        Ok(())
    }

    /// Sets an option. Options that do not concern the listener itself are inherited
    /// by its connections, from their SYN-ACK on.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn set_option(&mut self, option: SocketOption) -> Result<(), StackError> {
        self.listener()?.settings.set_option(option);
        Ok(())
    }

    /// Sets the congestion control of its connections by name (`TCP_CONGESTION`). It
    /// applies from their SYN-ACK on, as some need ECN.
    ///
    /// # Errors
    /// [`InvalidValue`](TcpError::InvalidValue) if the name is unknown or not allowed;
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn set_congestion(&mut self, name: &str) -> Result<(), StackError> {
        let allowed = self
            .host
            .env
            .sysctl
            .tcp_allowed_congestion_control
            .contains(name);
        let known = congestion::AVAILABLE
            .into_iter()
            .find(|known| *known == name);
        let name = known.filter(|_| allowed).ok_or(TcpError::InvalidValue)?;
        self.listener()?.settings.set_congestion(name);
        Ok(())
    }

    /// Sets the congestion control of its later connections to one that the program brings along.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn set_congestion_with(&mut self, factory: CongestionFactory) -> Result<(), StackError> {
        self.listener()?.settings.set_congestion_with(factory);
        Ok(())
    }

    /// Changes the backlog, connections (`listen` called again).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn set_backlog(&mut self, backlog: usize) -> Result<(), StackError> {
        let most = self.host.env.sysctl.somaxconn as usize;
        self.listener()?.config.backlog = backlog.min(most);
        Ok(())
    }

    /// Sets whether the listener, if it is on the unspecified IPv6 address, rejects IPv4 connections
    /// (`IPV6_V6ONLY`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such listener.
    pub fn set_v6only(&mut self, on: bool) -> Result<(), StackError> {
        self.listener()?.v6only = on;
        Ok(())
    }

    /// Closes the listener. Connections that were not accepted are reset. The ID is no longer
    /// valid.
    pub fn close(self, now: Instant) {
        self.host.close_listener(now, self.id);
    }

    fn listener(&mut self) -> Result<&mut Listener, StackError> {
        let listener = self.host.tcp.listeners.get_mut(self.id);
        listener.ok_or(StackError::NoSuchSocket)
    }
}
