//! TCP listeners.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use fullsend_stack::{Host, Incoming, ListenConfig, ListenerId, StackError, WaitKey, WaitOn};
use fullsend_tcp::SocketOption;
use fullsend_tcp::congestion::{CongestionControl, CongestionFactory};
use fullsend_wire::numbers::DEFAULT_TTL;
use smallvec::SmallVec;
use tokio::task::coop::poll_proceed;

use crate::addr::{ToAddrs, bind_any};
use crate::engine::EngineHandle;
use crate::error::{io_error, octet};
use crate::stack::Stack;
use crate::tcp::TcpStream;
use crate::tcp::socket::{SocketSettings, divided};
use crate::wait_registration::{WaitRegistration, waiter};

/// Default backlog, the connections that wait to be accepted; the same as tokio's.
const BACKLOG: usize = 1024;

/// State common to all kinds of listener: a listener on each shard of the stack (or on one), closed
/// on drop.
pub(crate) struct HostListener {
    parts: Vec<ShardListener>,
    /// The part that is polled first for the next connection.
    next: AtomicUsize,
}

/// The listener on one shard.
struct ShardListener {
    engine: EngineHandle,
    id: ListenerId,
}

impl ShardListener {
    fn addr(&self) -> io::Result<SocketAddr> {
        self.engine
            .op(|host, _| host.listener(self.id).addr().map_err(io_error))
    }

    /// Returns the next connection. If there is none, registers the task of `cx`.
    fn next(
        &self,
        cx: &Context<'_>,
        mut key: Option<&mut WaitKey>,
    ) -> io::Result<Option<Incoming>> {
        self.engine.op(|host, _| {
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
        })
    }
}

impl Drop for ShardListener {
    fn drop(&mut self) {
        self.engine
            .close(self.id, |id, host, now| host.listener(id).close(now));
    }
}

/// Most ports that a listener on port 0 tries, because a port may be in use on only some shards.
const PORT_ATTEMPTS: usize = 16;

impl HostListener {
    pub(crate) fn new(stack: &Stack, local: SocketAddr, config: ListenConfig) -> io::Result<Self> {
        Self::open(
            stack,
            local,
            config,
            Host::tcp_listen,
            &SocketSettings::default(),
        )
    }

    /// Opens a listener with `listen` on each shard that the handle accepts on. The shards divide
    /// the backlog.
    fn open(
        stack: &Stack,
        local: SocketAddr,
        config: ListenConfig,
        listen: fn(&mut Host, SocketAddr, ListenConfig) -> Result<ListenerId, StackError>,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        let engines = stack.accepting();
        let somaxconn = stack.sysctl("somaxconn")?.parse().unwrap_or(usize::MAX);
        let config = ListenConfig {
            backlog: config.backlog.min(somaxconn).div_ceil(engines.len()),
            ..config
        };
        let settings = &settings.divided(engines.len() as u32);
        let open_all = || -> io::Result<Vec<ShardListener>> {
            let mut parts: Vec<ShardListener> = Vec::new();
            for engine in &engines {
                // The first part chooses the port.
                let local = parts.first().map_or(Ok(local), ShardListener::addr)?;
                let id = engine.op(|host, now| {
                    let id = listen(host, local, config).map_err(io_error)?;
                    let applied = settings.apply_to_listener(host, id);
                    if applied.is_err() {
                        host.listener(id).close(now);
                    }
                    applied.map(|()| id).map_err(io_error)
                })?;
                let engine = engine.clone();
                parts.push(ShardListener { engine, id });
            }
            Ok(parts)
        };
        let mut parts = open_all();
        for _ in 1..PORT_ATTEMPTS {
            match &parts {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && local.port() == 0 => {}
                _ => break,
            }
            parts = open_all();
        }
        Ok(Self {
            parts: parts?,
            next: AtomicUsize::new(0),
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.parts[0].addr()
    }

    /// Calls `call` with the listener of each shard.
    fn for_each<R>(
        &self,
        mut call: impl FnMut(&mut Host, ListenerId) -> Result<R, StackError>,
    ) -> io::Result<()> {
        for part in &self.parts {
            part.engine
                .op(|host, _| call(host, part.id).map_err(io_error))?;
        }
        Ok(())
    }

    /// Waits for the next connection, and returns it with its shard. Any number of futures may wait
    /// at once.
    pub(crate) async fn next(&self) -> io::Result<(EngineHandle, Incoming)> {
        let mut registrations: SmallVec<[_; 1]> = self
            .parts
            .iter()
            .map(|part| WaitRegistration::new(&part.engine, WaitOn::Listener(part.id)))
            .collect();
        poll_fn(|cx| self.poll_next(cx, &mut registrations)).await
    }

    /// Polls the shards for the next connection, in turn. `registrations` has one for each shard,
    /// or none for a caller without a future.
    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
        registrations: &mut [WaitRegistration<'_>],
    ) -> Poll<io::Result<(EngineHandle, Incoming)>> {
        let coop = ready!(poll_proceed(cx));
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for index in (first..).take(self.parts.len()) {
            let index = index % self.parts.len();
            let part = &self.parts[index];
            let key = registrations.get_mut(index);
            if let Some(next) = part.next(cx, key.and_then(WaitRegistration::key))? {
                coop.made_progress();
                return Poll::Ready(Ok((part.engine.clone(), next)));
            }
        }
        Poll::Pending
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
    /// `IP_TTL` of its connections.
    ttl: AtomicU8,
}

impl TcpListener {
    /// Listens on `local` with a backlog of 1024 connections. The unspecified address stands for
    /// any of the stack's addresses; port 0 chooses a free port. Of several addresses, the listener
    /// gets the first that is available.
    ///
    /// # Errors
    /// - `AddrInUse` if another listener has the address and port.
    /// - `AddrNotAvailable` for an address that the stack does not have, or that is not `Preferred`
    ///   yet (see [`Stack::addresses`]).
    /// - `InvalidInput` if `local` is not an address with a port, also for a name other than
    ///   `localhost` ([`bind_resolved`](Self::bind_resolved) accepts names).
    /// - The stack's error if it has stopped ([`Stack::closed`]).
    pub fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        Self::bind_with(stack, local, BACKLOG)
    }

    /// Listens as [`bind`](Self::bind) does, also on the address of a name, which the stack's resolver
    /// finds.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind) and of the resolver.
    pub async fn bind_resolved(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        let addrs = local.to_addrs()?.resolve(&stack.engine).await?;
        let settings = SocketSettings::default();
        bind_any(&addrs, |local| {
            Self::listen_with(stack, local, BACKLOG, false, &settings)
        })
    }

    /// Listens on `local` with a backlog of `backlog` connections: the most that may wait to be
    /// accepted, at most the tunable `somaxconn`. Shards divide it, so that with several of them the
    /// backlog should be a multiple of what one needs.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind).
    pub fn bind_with(stack: &Stack, local: impl ToAddrs, backlog: usize) -> io::Result<Self> {
        let settings = SocketSettings::default();
        let addrs = local.to_addrs()?;
        addrs.bind(|local| Self::listen_with(stack, local, backlog, false, &settings))
    }

    /// Listens with the options of a [`TcpSocket`](crate::TcpSocket).
    pub(super) fn listen_with(
        stack: &Stack,
        local: SocketAddr,
        backlog: usize,
        shared: bool,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        let config = ListenConfig {
            backlog,
            defer_syn_ack: false,
            any_destination: false,
        };
        let listen = if shared {
            Host::tcp_listen_shared
        } else {
            Host::tcp_listen
        };
        let host_listener = HostListener::open(stack, local, config, listen, settings)?;
        Ok(Self {
            host_listener,
            ttl: AtomicU8::new(settings.ttl().unwrap_or(DEFAULT_TTL)),
        })
    }

    /// Listens on `local` with `SO_REUSEPORT`: several such listeners may have the same address and
    /// port, and a hash of its addresses assigns each new connection to one of them.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind).
    pub fn bind_shared(stack: &Stack, local: impl ToAddrs, backlog: usize) -> io::Result<Self> {
        let settings = SocketSettings::default();
        let addrs = local.to_addrs()?;
        addrs.bind(|local| Self::listen_with(stack, local, backlog, true, &settings))
    }

    /// Sets an option of the listener (`TcpFastopen`, `TcpFastopenKey`, `TcpFastopenNoCookie`,
    /// `TcpDeferAccept`, `TcpSaveSyn`), or one that its later connections inherit. The value of an
    /// inherited option is not checked here: connections ignore one that is out of range.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn set_option(&self, option: SocketOption) -> io::Result<()> {
        let option = divided(option, self.host_listener.parts.len() as u32);
        self.host_listener
            .for_each(|host, id| host.listener(id).set_option(option))?;
        if let SocketOption::IpTtl(ttl) = option {
            let ttl = ttl.unwrap_or(DEFAULT_TTL);
            self.ttl.store(ttl, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns `IP_TTL`: the TTL or hop limit of the segments of accepted connections.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.ttl.load(Ordering::Relaxed).into())
    }

    /// Sets `IP_TTL` (IPv4) or `IPV6_UNICAST_HOPS` of later connections, 1 to 255.
    ///
    /// # Errors
    /// `InvalidInput` for another value; the stack's error if it has stopped
    /// ([`Stack::closed`]).
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set_option(SocketOption::IpTtl(Some(octet("TTL", ttl, 1)?)))
    }

    /// Sets `TCP_CONGESTION`: the name of the congestion control that the listener's later
    /// connections use. DCTCP is negotiated in the handshake, so a server must choose it here.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is unknown or not in `tcp_allowed_congestion_control`.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.host_listener
            .for_each(|host, id| host.listener(id).set_congestion(name))
    }

    /// Sets a congestion control of the program for the listener's later connections: `create` creates
    /// one for each.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn set_congestion_with<C, F>(&self, create: F) -> io::Result<()>
    where
        C: CongestionControl + 'static,
        F: Fn() -> C + Send + Sync + 'static,
    {
        let factory = CongestionFactory::new(create);
        self.host_listener
            .for_each(|host, id| host.listener(id).set_congestion_with(factory.clone()))
    }

    /// Accepts the next connection, and returns it with the peer's address. Several tasks may wait
    /// at once. Cancel safe: dropping the future loses no connection.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Ok(new_stream(self.host_listener.next().await?))
    }

    /// Polls for the next connection. Only the task that polled last is woken.
    ///
    /// # Errors
    /// The errors of [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = ready!(self.host_listener.poll_next(cx, &mut []))?;
        Poll::Ready(Ok(new_stream(accepted)))
    }

    /// Returns the address that the listener is bound to.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.host_listener.local_addr()
    }
}

fn new_stream((engine, incoming): (EngineHandle, Incoming)) -> (TcpStream, SocketAddr) {
    let Incoming { id, local, remote } = incoming;
    (TcpStream::accepted(engine, id, local, remote), remote)
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener")
            .field("local", &self.local_addr().ok())
            .finish_non_exhaustive()
    }
}
