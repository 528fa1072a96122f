//! TCP listeners.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use fullsend_stack::{Host, Incoming, ListenConfig, ListenerId, StackError, WaitKey, WaitOn};
use fullsend_tcp::SocketOption;
use tokio::task::coop::poll_proceed;

use crate::addr::ToAddr;
use crate::engine::EngineHandle;
use crate::error::io_error;
use crate::stack::Stack;
use crate::tcp::TcpStream;
use crate::wait_registration::{WaitRegistration, waiter};

/// Default backlog: connections waiting to be accepted. Same as tokio's.
const BACKLOG: usize = 1024;

/// State common to all kinds of listener: a listener of the host, closed on drop.
pub(crate) struct HostListener {
    pub(crate) engine: EngineHandle,
    id: ListenerId,
}

impl HostListener {
    pub(crate) fn new(stack: &Stack, local: SocketAddr, config: ListenConfig) -> io::Result<Self> {
        Self::open(stack, |host| host.tcp_listen(local, config))
    }

    fn open(
        stack: &Stack,
        listen: impl FnOnce(&mut Host) -> Result<ListenerId, StackError>,
    ) -> io::Result<Self> {
        let id = stack.engine.op(|host, _| listen(host).map_err(io_error))?;
        Ok(Self {
            engine: stack.engine.clone(),
            id,
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.engine
            .op(|host, _| host.listener(self.id).addr().map_err(io_error))
    }

    /// Waits for the next connection. Any number of futures may wait at once.
    pub(crate) async fn next(&self) -> io::Result<Incoming> {
        let mut wait_registration = WaitRegistration::new(&self.engine, WaitOn::Listener(self.id));
        poll_fn(|cx| self.poll_next(cx, wait_registration.key())).await
    }

    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<Incoming>> {
        let coop = ready!(poll_proceed(cx));
        let next = self.engine.op(|host, _| {
            loop {
                if let Some(next) = host.listener(self.id).accept().map_err(io_error)? {
                    return Ok(Some(next));
                }
                let waiter = waiter(cx, &mut key);
                if !host
                    .listener(self.id)
                    .poll_ready(waiter)
                    .map_err(io_error)?
                {
                    return Ok(None);
                }
            }
        });
        match next {
            Ok(None) => Poll::Pending,
            Ok(Some(next)) => {
                coop.made_progress();
                Poll::Ready(Ok(next))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for HostListener {
    fn drop(&mut self) {
        let _ = self.engine.op(|host, now| {
            host.listener(self.id).close(now);
            Ok(())
        });
    }
}

/// Listener for TCP connections, with the methods of `tokio::net::TcpListener`. Dropping it resets
/// the connections that have not been accepted.
///
/// # Example
/// A server that echoes, with a task for each connection:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fullsend::{Pair, Stack, TcpListener, TcpStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let (client_stack, server_stack) = Stack::pair(&Pair::default())?;
/// let listener = TcpListener::bind(&server_stack, "[fd00::2]:7")?;
/// tokio::spawn(async move {
///     loop {
///         let (mut stream, _peer) = listener.accept().await?;
///         tokio::spawn(async move {
///             let (mut reader, mut writer) = stream.split();
///             tokio::io::copy(&mut reader, &mut writer).await
///         });
///     }
///     # #[allow(unreachable_code)]
///     Ok::<(), std::io::Error>(())
/// });
///
/// let mut client = TcpStream::connect(&client_stack, "[fd00::2]:7").await?;
/// client.write_all(b"echo").await?;
/// let mut answer = [0; 4];
/// client.read_exact(&mut answer).await?;
/// assert_eq!(&answer, b"echo");
/// # Ok(()) }
/// ```
pub struct TcpListener {
    host_listener: HostListener,
}

impl TcpListener {
    /// Listens on `local` with a backlog of 1024 connections. The unspecified address stands for
    /// any of the stack's addresses; port 0 chooses a free port.
    ///
    /// # Errors
    /// - `AddrInUse` if another listener has the address and port.
    /// - `AddrNotAvailable` for an address that the stack does not have, or that is not `Preferred`
    ///   yet (see [`Stack::addresses`]).
    /// - `InvalidInput` if `local` is not an address with a port.
    /// - The stack's error if it has stopped ([`Stack::closed`]).
    pub fn bind(stack: &Stack, local: impl ToAddr) -> io::Result<Self> {
        Self::bind_with(stack, local, BACKLOG)
    }

    /// Listens on `local` with a backlog of `backlog` connections: the most that may wait to be
    /// accepted, at most the tunable `somaxconn`.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub fn bind_with(stack: &Stack, local: impl ToAddr, backlog: usize) -> io::Result<Self> {
        let config = ListenConfig {
            backlog,
            defer_syn_ack: false,
            any_destination: false,
        };
        let host_listener = HostListener::new(stack, local.to_addr()?, config)?;
        Ok(Self { host_listener })
    }

    /// Listens on `local` with `SO_REUSEPORT`: several such listeners may have the same address and
    /// port, and a hash of its addresses assigns each new connection to one of them.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub fn bind_shared(stack: &Stack, local: impl ToAddr, backlog: usize) -> io::Result<Self> {
        let local = local.to_addr()?;
        let config = ListenConfig {
            backlog,
            defer_syn_ack: false,
            any_destination: false,
        };
        let host_listener =
            HostListener::open(stack, |host| host.tcp_listen_shared(local, config))?;
        Ok(Self { host_listener })
    }

    /// Sets an option of the listener (`TcpFastopen`, `TcpFastopenKey`, `TcpFastopenNoCookie`,
    /// `TcpDeferAccept`, `TcpSaveSyn`), or one that its later connections inherit. The value of an
    /// inherited option is not checked here: connections ignore one that is out of range.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn set_option(&self, option: SocketOption) -> io::Result<()> {
        self.host_listener.engine.op(|host, _| {
            host.listener(self.host_listener.id)
                .set_option(option)
                .map_err(io_error)
        })
    }

    /// Sets `TCP_CONGESTION`: the name of the congestion control that the listener's later
    /// connections use. DCTCP is negotiated in the handshake, so a server must choose it here.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is unknown or not in `tcp_allowed_congestion_control`.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.host_listener.engine.op(|host, _| {
            host.listener(self.host_listener.id)
                .set_congestion(name)
                .map_err(io_error)
        })
    }

    /// Accepts the next connection, and returns it with the peer's address. Several tasks may wait
    /// at once. Cancel safe: dropping the future loses no connection.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Ok(self.new_stream(self.host_listener.next().await?))
    }

    /// Polls for the next connection. Only the task that polled last is woken.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let incoming = ready!(self.host_listener.poll_next(cx, None))?;
        Poll::Ready(Ok(self.new_stream(incoming)))
    }

    fn new_stream(&self, incoming: Incoming) -> (TcpStream, SocketAddr) {
        let Incoming { id, local, remote } = incoming;
        let engine = self.host_listener.engine.clone();
        (TcpStream::new(engine, id, local, remote), remote)
    }

    /// Returns the address that the listener is bound to.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.host_listener.local_addr()
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener")
            .field("local", &self.local_addr().ok())
            .finish_non_exhaustive()
    }
}
