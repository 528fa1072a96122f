//! TCP sockets before they connect or listen.

mod options;
mod settings;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use fullsend_stack::StackError;
use fullsend_tcp::SocketOption;
use parking_lot::Mutex;

pub(super) use self::settings::{SocketSettings, divided};
use crate::error::io_error;
use crate::stack::Stack;
use crate::tcp::{TcpListener, TcpStream};

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
    /// The errors of [`TcpStream::connect_from`]; `InvalidInput` for an address of the other family, and
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
    /// The errors of [`connect`](Self::connect).
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
    /// The errors of [`TcpListener::bind`], and `InvalidInput` for an unknown congestion control.
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
}

impl std::fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpSocket")
            .field("family", &self.family)
            .field("local", &self.draft.lock().local)
            .finish_non_exhaustive()
    }
}
