//! A TCP listener.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use fullsend_stack::{Host, Incoming, ListenConfig, ListenerId, StackError, WaitKey, WaitOn};
use fullsend_tcp::SocketOption;
use tokio::task::coop::poll_proceed;

use crate::addr::ToAddr;
use crate::engine::Handle;
use crate::error::io_error;
use crate::stack::Stack;
use crate::tcp::TcpStream;
use crate::waiting::{Waiting, waiter};

/// Connections waiting to be accepted, unless told otherwise (as tokio's).
const BACKLOG: usize = 1024;

/// The part that all listeners share: a handle in the host, closed on drop.
pub(crate) struct Listening {
    pub(crate) engine: Handle,
    id: ListenerId,
}

impl Listening {
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
            .op(|host, _| host.listener_addr(self.id).map_err(io_error))
    }

    /// The next connection. Any number of futures may wait for it.
    pub(crate) async fn next(&self) -> io::Result<Incoming> {
        let mut waiting = Waiting::new(&self.engine, WaitOn::Listener(self.id));
        poll_fn(|cx| self.poll_next(cx, waiting.key())).await
    }

    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<Incoming>> {
        let coop = ready!(poll_proceed(cx));
        let next = self.engine.op(|host, _| {
            loop {
                if let Some(next) = host.tcp_accept(self.id).map_err(io_error)? {
                    return Ok(Some(next));
                }
                let waiter = waiter(cx, &mut key);
                if !host.listener_ready(self.id, waiter).map_err(io_error)? {
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

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.engine.op(|host, now| {
            host.close_listener(now, self.id);
            Ok(())
        });
    }
}

/// Accepts TCP connections, as `tokio::net::TcpListener`. Connections that wait when it is
/// dropped are reset.
pub struct TcpListener {
    listening: Listening,
}

impl TcpListener {
    /// Listens on `local`, which may be unspecified (any of the stack's addresses), with room for
    /// 1024 connections that wait to be accepted. Port 0 chooses one.
    ///
    /// # Errors
    /// `AddrInUse`, or `AddrNotAvailable` for an address that is not the stack's.
    pub fn bind(stack: &Stack, local: impl ToAddr) -> io::Result<Self> {
        Self::bind_with(stack, local, BACKLOG)
    }

    /// The same with another backlog: at most that many connections wait to be accepted.
    pub fn bind_with(stack: &Stack, local: impl ToAddr, backlog: usize) -> io::Result<Self> {
        let config = ListenConfig {
            backlog,
            hold: false,
            any_destination: false,
        };
        let listening = Listening::new(stack, local.to_addr()?, config)?;
        Ok(Self { listening })
    }

    /// Listens beside others that do so in the same way (`SO_REUSEPORT`): each new connection goes
    /// to one of them, by its addresses.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub fn bind_shared(stack: &Stack, local: impl ToAddr, backlog: usize) -> io::Result<Self> {
        let local = local.to_addr()?;
        let config = ListenConfig {
            backlog,
            hold: false,
            any_destination: false,
        };
        let listening = Listening::open(stack, |host| host.tcp_listen_shared(local, config))?;
        Ok(Self { listening })
    }

    /// Sets an option: the listener's own (`TcpFastopen`, `TcpFastopenKey`, `TcpDeferAccept`), or
    /// one that its connections begin with.
    pub fn set_option(&self, option: SocketOption) -> io::Result<()> {
        self.listening.engine.op(|host, _| {
            host.listener_set_option(self.listening.id, option)
                .map_err(io_error)
        })
    }

    /// `TCP_CONGESTION`: the congestion control that its connections begin with, by name. DCTCP is
    /// agreed on in the handshake, so a server chooses it here.
    ///
    /// # Errors
    /// `InvalidInput` for a name that the stack does not have.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.listening.engine.op(|host, _| {
            host.listener_set_congestion(self.listening.id, name)
                .map_err(io_error)
        })
    }

    /// The next connection and where it comes from. Several tasks may wait. Dropping the future
    /// loses no connection.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Ok(self.accepted(self.listening.next().await?))
    }

    /// [`accept`](Self::accept) as a poll. Only the task that polled last is woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let incoming = ready!(self.listening.poll_next(cx, None))?;
        Poll::Ready(Ok(self.accepted(incoming)))
    }

    fn accepted(&self, incoming: Incoming) -> (TcpStream, SocketAddr) {
        let Incoming { id, local, remote } = incoming;
        let engine = self.listening.engine.clone();
        (TcpStream::new(engine, id, local, remote), remote)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listening.local_addr()
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener")
            .field("local", &self.local_addr().ok())
            .finish_non_exhaustive()
    }
}
