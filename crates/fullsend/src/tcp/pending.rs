//! Listener for any destination, for transparent gateways and proxies.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::task::{Context, Poll, ready};

use fullsend_stack::{Incoming, ListenConfig, UnreachableCode, WaitOn};

use crate::addr::ToAddrs;
use crate::engine::EngineHandle;
use crate::error::io_error;
use crate::stack::Stack;
use crate::tcp::TcpStream;
use crate::tcp::listener::HostListener;
use crate::wait_registration::{WaitRegistration, waiter};

/// Listener that returns connections at their first SYN, before it is answered. A gateway can then
/// connect to the destination first, and accept or reject according to the result.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fullsend::{Pair, Stack, TcpStream, TransparentListener};
///
/// let (client_stack, gateway) = Stack::pair(&Pair::default())?;
/// let listener = TransparentListener::any(&gateway, 128)?;
/// let client = tokio::spawn(async move {
///     TcpStream::connect(&client_stack, "203.0.113.5:443").await
/// });
///
/// let pending = listener.accept().await?;
/// assert_eq!(pending.local_addr().to_string(), "203.0.113.5:443");
/// // A gateway connects to this address here; after a failure it calls `pending.reject()`.
/// let _stream = pending.accept().await?;
/// assert!(client.await?.is_ok());
/// # Ok(()) }
/// ```
pub struct TransparentListener {
    host_listener: HostListener,
}

impl TransparentListener {
    /// Listens on every address and port, the stack's own or not, IPv4 and IPv6, on which no other
    /// listener is bound. At most `backlog` connections are pending; further SYNs are dropped, and
    /// the peers retransmit them.
    ///
    /// # Errors
    /// `AddrInUse` if another such listener exists, and the stack's error if it has stopped
    /// ([`Stack::closed`]).
    pub fn any(stack: &Stack, backlog: usize) -> io::Result<Self> {
        Self::listen(
            stack,
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            backlog,
            true,
        )
    }

    /// Listens on one local address and port. At most `backlog` connections are pending.
    ///
    /// # Errors
    /// The errors of [`TcpListener::bind`](crate::TcpListener::bind).
    pub fn bind(stack: &Stack, local: impl ToAddrs, backlog: usize) -> io::Result<Self> {
        let addrs = local.to_addrs()?;
        addrs.bind(|local| Self::listen(stack, local, backlog, false))
    }

    fn listen(
        stack: &Stack,
        local: SocketAddr,
        backlog: usize,
        any_destination: bool,
    ) -> io::Result<Self> {
        let config = ListenConfig {
            backlog,
            defer_syn_ack: true,
            any_destination,
        };
        let host_listener = HostListener::new(stack, local, config)?;
        Ok(Self { host_listener })
    }

    /// Waits for the next pending connection. Cancel safe: dropping the future loses no connection.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn accept(&self) -> io::Result<PendingConnection> {
        Ok(new_pending(self.host_listener.next().await?))
    }

    /// Polls for the next pending connection. Only the task that polled last is woken.
    ///
    /// # Errors
    /// The errors of [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<PendingConnection>> {
        let accepted = ready!(self.host_listener.poll_next(cx, &mut []))?;
        Poll::Ready(Ok(new_pending(accepted)))
    }
}

fn new_pending((engine, incoming): (EngineHandle, Incoming)) -> PendingConnection {
    PendingConnection {
        engine: Some(engine),
        incoming,
    }
}

/// A connection whose SYN has not been answered yet. It can be kept until the peer stops
/// retransmitting the SYN; dropping it sends a RST.
#[must_use = "dropping it resets the connection"]
pub struct PendingConnection {
    /// `None` after accepting.
    engine: Option<EngineHandle>,
    incoming: Incoming,
}

impl PendingConnection {
    /// Returns the destination address of the SYN.
    pub fn local_addr(&self) -> SocketAddr {
        self.incoming.local
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.incoming.remote
    }

    /// Waits until the attempt is over: the peer has reset it, or 130 s have passed since its SYN. A
    /// gateway ends its own connection attempt then.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn cancelled(&self) -> io::Result<()> {
        let Some(engine) = &self.engine else {
            return Ok(());
        };
        let id = self.incoming.id;
        let mut wait_registration = WaitRegistration::new(engine, WaitOn::DeferredSyn(id));
        poll_fn(|cx| {
            let mut key = wait_registration.key();
            let waiter = waiter(cx, &mut key);
            let ended = engine.op(|host, _| Ok(host.tcp(id).poll_deferred_ended(waiter)))?;
            if ended {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Answers the SYN and waits for the end of the handshake. Dropping the future resets the
    /// connection.
    ///
    /// # Errors
    /// - `NotConnected` if the peer has given up in the meantime.
    /// - `TimedOut`, `ConnectionReset` or another error of the connection if the handshake fails.
    /// - The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn accept(mut self) -> io::Result<TcpStream> {
        let Incoming { id, local, remote } = self.incoming;
        if let Some(engine) = &self.engine {
            engine.op(|host, now| host.tcp(id).accept_deferred(now).map_err(io_error))?;
        }
        let Some(engine) = self.engine.take() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let stream = TcpStream::new(engine, id, local, remote);
        stream.established().await?;
        Ok(stream)
    }

    /// Rejects the connection with an ICMP error that quotes the SYN, as a router would that cannot
    /// reach the destination: the peer's connect fails with the error of `code`.
    ///
    /// # Errors
    /// `NotConnected` if the peer has given up in the meantime; the stack's error if it has stopped
    /// ([`Stack::closed`]).
    pub fn reject_unreachable(mut self, code: UnreachableCode) -> io::Result<()> {
        let id = self.incoming.id;
        let engine = self.engine.take();
        engine.map_or(Ok(()), |engine| {
            engine.op(|host, now| {
                host.tcp(id)
                    .reject_deferred_with(now, code)
                    .map_err(io_error)
            })
        })
    }

    /// Drops the SYN without an answer: the peer retransmits it, and its connect times out in the
    /// end. A retransmission is a new pending connection.
    pub fn ignore(mut self) {
        let id = self.incoming.id;
        if let Some(engine) = self.engine.take() {
            // Fails only if the peer has given up.
            let _ = engine.op(|host, _| host.tcp(id).drop_deferred().map_err(io_error));
        }
    }

    /// Rejects the connection with a RST: the peer's connect fails with `ConnectionRefused`.
    pub fn reject(self) {}
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.close(self.incoming.id, |id, host, now| {
                // Fails if the client has given up.
                let _ = host.tcp(id).reject_deferred(now);
            });
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
