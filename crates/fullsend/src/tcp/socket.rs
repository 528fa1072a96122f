//! TCP sockets before they connect or listen.

use std::io;
use std::mem::discriminant;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fullsend_stack::{Host, ListenerId, StackError, TcpId};
use fullsend_tcp::{Linger, SocketOption};
use fullsend_wire::Instant;
use parking_lot::Mutex;

use crate::error::{io_error, octet};
use crate::stack::Stack;
use crate::tcp::{TcpListener, TcpStream};

/// Options that are set on a socket before it connects or listens, at most one of each kind.
#[derive(Clone, Debug, Default)]
pub(super) struct SocketSettings {
    options: Vec<SocketOption>,
    congestion: Option<String>,
}

impl SocketSettings {
    fn set(&mut self, option: SocketOption) {
        let kind = discriminant(&option);
        self.options.retain(|known| discriminant(known) != kind);
        self.options.push(option);
    }

    fn find<R>(&self, get: impl Fn(&SocketOption) -> Option<R>) -> Option<R> {
        self.options.iter().find_map(get)
    }

    /// Sets the options on a connection whose SYN has not been sent. If one is invalid, the
    /// connection is closed.
    pub(super) fn apply(&self, host: &mut Host, now: Instant, id: TcpId) -> io::Result<()> {
        let result = self.try_apply(host, now, id);
        if result.is_err() {
            host.tcp(id).abort(now);
        }
        result
    }

    fn try_apply(&self, host: &mut Host, now: Instant, id: TcpId) -> io::Result<()> {
        for option in &self.options {
            let set = host.tcp(id).set_option(now, *option);
            set.map_err(|error| invalid(&format!("{option:?}"), error))?;
        }
        if let Some(name) = &self.congestion {
            let set = host.tcp(id).set_congestion(now, name);
            set.map_err(|error| invalid(&format!("congestion control {name:?}"), error))?;
        }
        Ok(())
    }

    /// Returns the options for the listener on one of `shards` shards.
    pub(super) fn divided(&self, shards: u32) -> Self {
        let options = self.options.iter();
        Self {
            options: options.map(|option| divided(*option, shards)).collect(),
            congestion: self.congestion.clone(),
        }
    }

    /// Sets the options on a listener, for its connections.
    pub(super) fn apply_to_listener(
        &self,
        host: &mut Host,
        id: ListenerId,
    ) -> Result<(), StackError> {
        for option in &self.options {
            host.listener(id).set_option(*option)?;
        }
        match &self.congestion {
            Some(name) => host.listener(id).set_congestion(name),
            None => Ok(()),
        }
    }

    pub(super) fn ttl(&self) -> Option<u8> {
        self.find(|option| match option {
            SocketOption::IpTtl(ttl) => *ttl,
            _ => None,
        })
    }
}

/// Returns an option for the listener on one of `shards` shards, which divide the queue of Fast Open
/// like the backlog.
pub(super) const fn divided(option: SocketOption, shards: u32) -> SocketOption {
    match option {
        SocketOption::TcpFastopen(len) => SocketOption::TcpFastopen(len.div_ceil(shards)),
        option => option,
    }
}

fn invalid(what: &str, error: StackError) -> io::Error {
    let error = io_error(error);
    io::Error::new(error.kind(), format!("cannot set {what}: {error}"))
}

/// The family of a [`TcpSocket`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    V4,
    V6,
}

/// The settings of a socket so far.
#[derive(Debug, Default)]
struct Draft {
    local: Option<SocketAddr>,
    settings: SocketSettings,
    reuse_address: bool,
    reuse_port: bool,
    /// The length of the Fast Open queue of a listener; 0 disables Fast Open.
    fastopen_queue: u32,
}

/// A TCP socket that has neither been connected nor listens yet, with the methods of
/// `tokio::net::TcpSocket`: its options apply from the first segment on.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fullsend::{Pair, Stack, TcpSocket};
///
/// let (here, there) = Stack::pair(&Pair::default())?;
/// let socket = TcpSocket::new_v4(&there)?;
/// socket.bind("10.0.0.2:80".parse().unwrap())?;
/// socket.set_congestion("dctcp")?; // negotiated in the handshake
/// let listener = socket.listen(128)?;
///
/// let socket = TcpSocket::new_v4(&here)?;
/// socket.set_recv_buffer_size(1 << 20)?; // decides about the window scale of the SYN
/// socket.set_congestion("dctcp")?;
/// let client = socket.connect("10.0.0.2:80".parse().unwrap()).await?;
/// let (server, _) = listener.accept().await?;
/// assert_eq!(server.congestion()?, client.congestion()?);
/// # Ok(()) }
/// ```
pub struct TcpSocket {
    stack: Stack,
    family: Family,
    draft: Mutex<Draft>,
}

impl TcpSocket {
    /// Creates a socket for IPv4 on a stack.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn new_v4(stack: &Stack) -> io::Result<Self> {
        Self::new(stack, Family::V4)
    }

    /// Creates a socket for IPv6 on a stack. One that listens on the unspecified address accepts
    /// connections over IPv4, too.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn new_v6(stack: &Stack) -> io::Result<Self> {
        Self::new(stack, Family::V6)
    }

    fn new(stack: &Stack, family: Family) -> io::Result<Self> {
        stack.engine.op(|_, _| Ok(()))?;
        Ok(Self {
            stack: stack.clone(),
            family,
            draft: Mutex::default(),
        })
    }

    /// Binds the socket to a local address. The unspecified address leaves the choice to the stack;
    /// for port 0 a free port is chosen.
    ///
    /// Unlike the kernel, the stack does not reserve the port: if another socket takes it before
    /// this one connects or listens, that call fails with `AddrInUse`.
    ///
    /// # Errors
    /// `InvalidInput` if the socket is bound already, or for an address of the other family;
    /// `AddrNotAvailable` for an address that the stack does not have; the stack's error if it has
    /// stopped.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        self.check_family(addr)?;
        let mut draft = self.draft.lock();
        if let Some(local) = draft.local {
            let text = format!("the socket is bound to {local} already; create another one");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let local = self.stack.engine.op(|host, _| {
            let ip = addr.ip().to_canonical();
            if !ip.is_unspecified() && !host.is_own_address(ip) {
                return Err(io_error(StackError::AddressNotAvailable(addr)));
            }
            let port = match addr.port() {
                0 => host.tcp_free_port(ip, |_| true).map_err(io_error)?,
                port => port,
            };
            Ok(SocketAddr::new(addr.ip(), port))
        })?;
        draft.local = Some(local);
        Ok(())
    }

    /// Returns the address that [`bind`](Self::bind) set, or the unspecified address with port 0.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.draft.lock().local.unwrap_or_else(|| self.any()))
    }

    /// Connects to `addr` and waits for the end of the handshake.
    ///
    /// # Errors
    /// Those of [`TcpStream::connect_from`]; `InvalidInput` for an address of the other family, and
    /// for an option whose value is out of range.
    pub async fn connect(self, addr: SocketAddr) -> io::Result<TcpStream> {
        self.check_family(addr)?;
        let draft = self.draft.into_inner();
        TcpStream::connect_configured(&self.stack, draft.local, addr, &draft.settings).await
    }

    /// Connects to `addr` with the first bytes of `data` on the SYN (TCP Fast Open), as
    /// [`TcpStream::connect_with`] does.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_with(
        self,
        addr: SocketAddr,
        data: &[u8],
    ) -> io::Result<(TcpStream, usize)> {
        self.check_family(addr)?;
        let draft = self.draft.into_inner();
        TcpStream::connect_with_data(&self.stack, draft.local, addr, data, &draft.settings).await
    }

    /// Listens with a backlog of `backlog` connections: the most that may wait to be accepted, at
    /// most the tunable `somaxconn`. Accepted connections have the options that were set on this
    /// socket; those that are out of range are ignored. A socket that is not bound listens on a free
    /// port of any address.
    ///
    /// # Errors
    /// Those of [`TcpListener::bind`], and `InvalidInput` for an unknown congestion control.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let local = self.local_addr()?;
        let mut draft = self.draft.into_inner();
        if draft.fastopen_queue > 0 {
            let option = SocketOption::TcpFastopen(draft.fastopen_queue);
            draft.settings.set(option);
        }
        let backlog = backlog as usize;
        TcpListener::listen_with(
            &self.stack,
            local,
            backlog,
            draft.reuse_port,
            &draft.settings,
        )
    }

    /// Returns the pending error of the socket. It has none before it connects.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "the signature is that of tokio"
    )]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }

    fn any(&self) -> SocketAddr {
        match self.family {
            Family::V4 => (Ipv4Addr::UNSPECIFIED, 0).into(),
            Family::V6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
        }
    }

    fn check_family(&self, addr: SocketAddr) -> io::Result<()> {
        if addr.is_ipv4() == (self.family == Family::V4) {
            return Ok(());
        }
        let text = format!("{addr} is not of the socket's family; create it with new_v4 or new_v6");
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    // --- options ---

    /// Sets any socket option of the connection, or of the listener and its connections. Its value is
    /// checked when the socket connects.
    pub fn set_option(&self, option: SocketOption) {
        self.draft.lock().settings.set(option);
    }

    #[allow(
        clippy::unnecessary_wraps,
        reason = "the signatures are those of tokio"
    )]
    fn set(&self, option: SocketOption) -> io::Result<()> {
        self.set_option(option);
        Ok(())
    }

    fn get<R>(&self, get: impl Fn(&SocketOption) -> Option<R>) -> Option<R> {
        self.draft.lock().settings.find(get)
    }

    /// Sets `SO_KEEPALIVE`: whether an idle connection sends keepalive probes.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.set(SocketOption::SoKeepalive(keepalive))
    }

    /// Returns `SO_KEEPALIVE`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn keepalive(&self) -> io::Result<bool> {
        let on = self.get(|option| match option {
            SocketOption::SoKeepalive(on) => Some(*on),
            _ => None,
        });
        Ok(on.unwrap_or(false))
    }

    /// Sets `SO_REUSEADDR`. It has no effect: a listener may always be bound to the port of
    /// connections in TIME-WAIT.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn set_reuseaddr(&self, reuseaddr: bool) -> io::Result<()> {
        self.draft.lock().reuse_address = reuseaddr;
        Ok(())
    }

    /// Returns what [`set_reuseaddr`](Self::set_reuseaddr) has set.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn reuseaddr(&self) -> io::Result<bool> {
        Ok(self.draft.lock().reuse_address)
    }

    /// Sets `SO_REUSEPORT`: several listeners that set it may have the same address and port, and a
    /// hash of its addresses assigns each new connection to one of them.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn set_reuseport(&self, reuseport: bool) -> io::Result<()> {
        self.draft.lock().reuse_port = reuseport;
        Ok(())
    }

    /// Returns `SO_REUSEPORT`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn reuseport(&self) -> io::Result<bool> {
        Ok(self.draft.lock().reuse_port)
    }

    /// Sets `SO_SNDBUF`: the size of the send buffer in bytes, at most `wmem_max`. As on Linux, the
    /// value is doubled for bookkeeping, and autotuning is off.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_send_buffer_size(&self, size: u32) -> io::Result<()> {
        self.set(SocketOption::SoSndbuf(size))
    }

    /// Returns `SO_SNDBUF` in bytes: twice the size that was set, or the second value of
    /// `tcp_wmem`.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        let set = self.get(|option| match option {
            SocketOption::SoSndbuf(bytes) => Some(*bytes),
            _ => None,
        });
        self.buffer_size(set, "wmem_max", "tcp_wmem")
    }

    /// Sets `SO_RCVBUF`: the size of the receive buffer in bytes, at most `rmem_max`. As on Linux, the
    /// value is doubled for bookkeeping, and autotuning is off.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_recv_buffer_size(&self, size: u32) -> io::Result<()> {
        self.set(SocketOption::SoRcvbuf(size))
    }

    /// Returns `SO_RCVBUF` in bytes: twice the size that was set, or the second value of
    /// `tcp_rmem`.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn recv_buffer_size(&self) -> io::Result<u32> {
        let set = self.get(|option| match option {
            SocketOption::SoRcvbuf(bytes) => Some(*bytes),
            _ => None,
        });
        self.buffer_size(set, "rmem_max", "tcp_rmem")
    }

    fn buffer_size(&self, set: Option<u32>, most: &str, all: &str) -> io::Result<u32> {
        let number = |text: &str| text.parse().unwrap_or(u32::MAX);
        match set {
            Some(bytes) => {
                let most = number(&self.stack.sysctl(most)?);
                Ok(bytes.min(most).saturating_mul(2))
            }
            None => Ok(self
                .stack
                .sysctl(all)?
                .split_whitespace()
                .nth(1)
                .map_or(0, number)),
        }
    }

    /// Sets `SO_LINGER`, as [`TcpStream::set_linger`] does.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_linger(&self, dur: Option<Duration>) -> io::Result<()> {
        let linger = dur.map_or(Linger::Background, |span| Linger::For(span.into()));
        self.set(SocketOption::SoLinger(linger))
    }

    /// Sets `SO_LINGER` to zero: dropping the stream resets the connection.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// Returns `SO_LINGER`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.get(|option| match option {
            SocketOption::SoLinger(Linger::For(span)) => Some((*span).into()),
            _ => None,
        }))
    }

    /// Sets `TCP_NODELAY`: whether small segments are sent without waiting for acknowledgements.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set(SocketOption::TcpNodelay(nodelay))
    }

    /// Returns `TCP_NODELAY`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn nodelay(&self) -> io::Result<bool> {
        let on = self.get(|option| match option {
            SocketOption::TcpNodelay(on) => Some(*on),
            _ => None,
        });
        Ok(on.unwrap_or(false))
    }

    /// Sets `IP_TOS`: the type of service, 0 to 255. The stack controls the two ECN bits and ignores
    /// them here. A socket has one value for both families: this is
    /// [`set_tclass_v6`](Self::set_tclass_v6).
    ///
    /// # Errors
    /// `InvalidInput` for a larger value.
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        self.set(SocketOption::IpTos(octet("TOS", tos, 0)?))
    }

    /// Returns `IP_TOS`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn tos_v4(&self) -> io::Result<u32> {
        let tos = self.get(|option| match option {
            SocketOption::IpTos(tos) => Some(u32::from(*tos)),
            _ => None,
        });
        Ok(tos.unwrap_or(0))
    }

    /// Sets `IPV6_TCLASS`: the traffic class, 0 to 255. A socket has one value for both families: this
    /// is [`set_tos_v4`](Self::set_tos_v4).
    ///
    /// # Errors
    /// `InvalidInput` for a larger value.
    pub fn set_tclass_v6(&self, tclass: u32) -> io::Result<()> {
        self.set_tos_v4(tclass)
    }

    /// Returns `IPV6_TCLASS`.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    pub fn tclass_v6(&self) -> io::Result<u32> {
        self.tos_v4()
    }

    /// Sets `IP_TTL` (IPv4) or `IPV6_UNICAST_HOPS`, 1 to 255.
    ///
    /// # Errors
    /// `InvalidInput` for another value.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set(SocketOption::IpTtl(Some(octet("TTL", ttl, 1)?)))
    }

    /// Sets `TCP_CONGESTION`: the congestion control, by name. DCTCP is negotiated in the handshake.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is not in `tcp_allowed_congestion_control`; the stack's error if
    /// it has stopped.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        let allowed = self.stack.sysctl("tcp_allowed_congestion_control")?;
        if !allowed.split_whitespace().any(|known| known == name) {
            let text = format!("congestion control {name:?} is not allowed; choose of {allowed}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.draft.lock().settings.congestion = Some(name.to_owned());
        Ok(())
    }

    /// Sets `TCP_FASTOPEN` of a listener: the most connections that sent data in their SYN and have
    /// not finished the handshake; 0 disables Fast Open. A client uses
    /// [`connect_with`](Self::connect_with).
    pub fn set_fastopen(&self, queue: u32) {
        self.draft.lock().fastopen_queue = queue;
    }
}

impl std::fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpSocket")
            .field("family", &self.family)
            .field("local", &self.draft.lock().local)
            .finish_non_exhaustive()
    }
}
