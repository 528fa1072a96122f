//! The calls of applications on a connection.

mod opening;
mod options;
mod read_only;
mod readiness;
mod status;
mod transfer;

use fullsend_tcp::{Connection, Cx, TcpError};
use fullsend_wire::{Instant, cold_path};

pub use read_only::TcpRef;
pub use readiness::Interest;
pub use status::TcpQueues;

use super::socket::{ConnectionOwner, Socket, SocketEntry};
use super::{Tcp, TcpId};
use crate::timer::TimerWheel;
use crate::{Host, StackError};

impl Tcp {
    /// Returns the slot of an application's connection, the connection, and the timer wheel. Where
    /// there are many flows, prefetches the connection.
    #[inline(always)]
    pub(crate) fn user_conn(
        &mut self,
        id: TcpId,
    ) -> Result<(u32, &mut Socket, &mut TimerWheel), StackError> {
        let many = self.flows.is_large();
        match self.table.by_id(id.0) {
            Some((index, SocketEntry::Conn(socket))) if socket.owner == ConnectionOwner::User => {
                if many {
                    socket.prefetch();
                }
                Ok((index, socket, &mut self.wheel))
            }
            // A deferred SYN has no connection before it is accepted.
            Some((_, SocketEntry::DeferredSyn(_))) => {
                cold_path();
                Err(TcpError::NotConnected.into())
            }
            _ => {
                cold_path();
                Err(StackError::NoSuchSocket)
            }
        }
    }
}

/// One TCP connection of a [`Host`], for the calls of its application.
///
/// A handle borrows the host; create one for each call, or for several calls in a row. It holds
/// only the ID, which every call looks up. After [`close`](Self::close) or [`abort`](Self::abort),
/// calls that return a `Result` fail with [`NoSuchSocket`](StackError::NoSuchSocket), and those that
/// return an `Option` return `None`. Most calls fail with [`NotConnected`](TcpError::NotConnected)
/// while a SYN from a listener with [`defer_syn_ack`](crate::ListenConfig::defer_syn_ack) is not
/// accepted.
///
/// Reads and writes never block: see [`poll_ready`](Self::poll_ready). Segments leave with the next
/// [`Host::transmit`].
///
/// # Examples
/// A host that connects to itself:
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
/// let addr = "127.0.0.1:80".parse().unwrap();
/// let config = ListenConfig {
///     backlog: 16,
///     defer_syn_ack: false,
///     any_destination: false,
/// };
/// let listener = host.tcp_listen(addr, config)?;
/// let client = host.tcp_connect(now, None, addr)?;
/// host.poll(now); // delivers the packets of the handshake
/// let server = host.listener(listener).accept()?.expect("a connection").id;
///
/// assert_eq!(host.tcp(client).write(now, b"hello", false)?, 5);
/// host.poll(now);
/// let mut buf = [0; 16];
/// let len = host.tcp(server).read(now, &mut buf)?;
/// assert_eq!(&buf[..len], b"hello");
///
/// host.tcp(server).close(now);
/// assert_eq!(host.tcp(server).state(), Err(StackError::NoSuchSocket));
/// # Ok::<(), StackError>(())
/// ```
#[derive(Debug)]
pub struct TcpHandle<'a> {
    host: &'a mut Host,
    id: TcpId,
}

impl Host {
    /// Returns a handle for calls on connection `id`, which is looked up by each call.
    #[inline]
    pub const fn tcp(&mut self, id: TcpId) -> TcpHandle<'_> {
        TcpHandle { host: self, id }
    }
}

impl TcpHandle<'_> {
    /// Returns the connection's ID.
    #[inline]
    pub const fn id(&self) -> TcpId {
        self.id
    }

    /// Returns the slot of the connection, the connection, and its context.
    #[inline]
    fn socket(&mut self, now: Instant) -> Result<(u32, &mut Socket, Cx<'_>), StackError> {
        let (index, socket, _) = self.host.tcp.user_conn(self.id)?;
        let cx = self.host.env.cx(now, &socket.path, socket.conn.ts_offset());
        Ok((index, socket, cx))
    }

    /// Runs `call` on a connection and applies its effects.
    fn with_conn<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R,
    ) -> Result<R, StackError> {
        let (index, socket, mut cx) = self.socket(now)?;
        let result = call(&mut socket.conn, &mut cx);
        self.host.post_process(now, index);
        Ok(result)
    }

    /// Runs a read or a write, which has fewer effects to apply than other calls.
    #[inline(always)]
    fn transfer<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Connection, &mut Cx<'_>) -> Result<R, TcpError>,
    ) -> Result<R, StackError> {
        let (index, socket, wheel) = self.host.tcp.user_conn(self.id)?;
        let mut cx = self.host.env.cx(now, &socket.path, socket.conn.ts_offset());
        let result = call(&mut socket.conn, &mut cx)?;
        let ready_iface = socket.post_process_transfer(index, wheel);
        self.host.push_ready(index, ready_iface);
        Ok(result)
    }
}
