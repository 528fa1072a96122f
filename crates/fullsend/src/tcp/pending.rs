//! Accepting for any destination: transparent gateways and proxies.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::task::{Context, Poll, ready};

use fullsend_stack::{Incoming, ListenConfig};

use crate::addr::ToAddr;
use crate::engine::Handle;
use crate::error::io_error;
use crate::stack::Stack;
use crate::tcp::TcpStream;
use crate::tcp::listener::Listening;

/// Yields connections at their first SYN, before it is answered, so that a gateway can connect
/// onward first and answer for the far side.
pub struct TransparentListener {
    listening: Listening,
}

impl TransparentListener {
    /// Takes SYNs for every address and port, the stack's own or not, IPv4 and IPv6, that no other
    /// listener has. At most `backlog` are pending; more SYNs are dropped, and come again.
    pub fn any(stack: &Stack, backlog: usize) -> io::Result<Self> {
        Self::listen(
            stack,
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            backlog,
            true,
        )
    }

    /// Only for one local address and port.
    pub fn bind(stack: &Stack, local: impl ToAddr, backlog: usize) -> io::Result<Self> {
        Self::listen(stack, local.to_addr()?, backlog, false)
    }

    fn listen(
        stack: &Stack,
        local: SocketAddr,
        backlog: usize,
        any_destination: bool,
    ) -> io::Result<Self> {
        let config = ListenConfig {
            backlog,
            hold: true,
            any_destination,
        };
        let listening = Listening::new(stack, local, config)?;
        Ok(Self { listening })
    }

    /// The next pending connection. Dropping the future loses none.
    pub async fn accept(&self) -> io::Result<PendingConnection> {
        Ok(self.pending(self.listening.next().await?))
    }

    /// [`accept`](Self::accept) as a poll. Only the task that polled last is woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<PendingConnection>> {
        let incoming = ready!(self.listening.poll_next(cx, None))?;
        Poll::Ready(Ok(self.pending(incoming)))
    }

    fn pending(&self, incoming: Incoming) -> PendingConnection {
        PendingConnection {
            engine: Some(self.listening.engine.clone()),
            incoming,
        }
    }
}

/// A peer that waits for an answer to its SYN. Hold it as long as the peer's patience lasts;
/// dropping it sends a RST.
#[must_use = "dropping it resets the connection"]
pub struct PendingConnection {
    /// `None` once it is decided.
    engine: Option<Handle>,
    incoming: Incoming,
}

impl PendingConnection {
    /// The destination that the peer asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.incoming.local
    }

    /// The peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.incoming.remote
    }

    /// Answers the SYN and waits for the end of the handshake. Dropping the future resets the
    /// connection.
    pub async fn accept(mut self) -> io::Result<TcpStream> {
        let Incoming { id, local, remote } = self.incoming;
        if let Some(engine) = &self.engine {
            engine.op(|host, now| host.pending_accept(now, id).map_err(io_error))?;
        }
        let Some(engine) = self.engine.take() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let stream = TcpStream::new(engine, id, local, remote);
        stream.established().await?;
        Ok(stream)
    }

    /// Refuses with a RST: the peer sees `ConnectionRefused`.
    pub fn reject(self) {}
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            let id = self.incoming.id;
            let _ = engine.op(|host, now| host.pending_reject(now, id).map_err(io_error));
        }
    }
}

impl std::fmt::Debug for PendingConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingConnection")
            .field("local", &self.incoming.local)
            .field("remote", &self.incoming.remote)
            .finish_non_exhaustive()
    }
}
