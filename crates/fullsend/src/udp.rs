//! UDP sockets.

mod any;
mod batch;
mod multicast;
mod options;
mod ready;
mod recv;
mod send;

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use fullsend_stack::{Interest, UdpHandle, UdpId, UdpSharing, WaitKey, WaitOn};
use fullsend_wire::Instant;
use tokio::task::coop::poll_proceed;

use crate::addr::{self, ToAddrs};
use crate::engine::EngineHandle;
use crate::errno::{EDESTADDRREQ, ENOTCONN, os_error};
use crate::error::{io_error, tcp_error, would_block};
use crate::readiness::StickyReadiness;
use crate::stack::Stack;
use crate::wait_registration::{WaitRegistration, waiter};

pub use batch::{Datagram, Transmit};

/// A UDP socket, with the methods of `tokio::net::UdpSocket`. Cancel safe: dropping the future of
/// any of its calls loses no datagram.
///
/// # Connected sockets
/// After [`connect`](Self::connect), the socket receives only what its peer sends to it. If the peer
/// or a router reports that a datagram was not delivered, the next call returns that error, for
/// example `ConnectionRefused` if no socket is bound to the peer's port.
///
/// # Batches
/// A stack is fastest if it processes datagrams in *super-segments* of up to 64 KiB.
/// [`send_segments`](Self::send_segments) and [`send_many`](Self::send_many) send many datagrams in
/// one call (Linux's `UDP_SEGMENT`), [`recv_many`](Self::recv_many) receives many, without a copy and
/// together where they arrived so ([`set_gro`](Self::set_gro), Linux's `UDP_GRO`).
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fullsend::{Pair, Stack, UdpSocket};
///
/// let (client_stack, server_stack) = Stack::pair(&Pair::default())?;
/// let server = UdpSocket::bind(&server_stack, "10.0.0.2:53")?;
/// let client = UdpSocket::bind(&client_stack, "10.0.0.1:0")?; // port 0: any free port
/// client.send_to(b"query", "10.0.0.2:53").await?;
///
/// let mut buf = [0; 1500];
/// let (len, peer) = server.recv_from(&mut buf).await?;
/// assert_eq!(&buf[..len], b"query");
/// assert_eq!(peer, client.local_addr()?);
/// # Ok(()) }
/// ```
pub struct UdpSocket {
    engine: EngineHandle,
    id: UdpId,
    sticky: StickyReadiness,
}

/// The ways in which a UDP socket shares its address and port with others, for
/// [`UdpSocket::bind_with`]. Both are off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct UdpBind {
    /// `SO_REUSEADDR`: other sockets that set it, too, may have the same address. The one bound last
    /// receives unicast datagrams; all receive multicast and broadcast ones.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: other sockets that set it, too, may have the same address. A hash assigns the
    /// datagrams of each peer to one of them.
    pub reuse_port: bool,
}

impl UdpBind {
    /// Returns the default: the address is not shared.
    pub const fn new() -> Self {
        Self {
            reuse_address: false,
            reuse_port: false,
        }
    }

    /// Sets [`reuse_address`](Self::reuse_address).
    #[must_use]
    pub const fn reuse_address(mut self, on: bool) -> Self {
        self.reuse_address = on;
        self
    }

    /// Sets [`reuse_port`](Self::reuse_port).
    #[must_use]
    pub const fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }
}

impl UdpSocket {
    /// Binds a socket to `local`. The unspecified address stands for any of the stack's addresses,
    /// the one of IPv6 for those of IPv4, too; port 0 chooses a free port. Of several addresses, the
    /// socket gets the first that is available.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` for an address that the stack does not have, or that is
    /// not `Preferred` yet (see [`Stack::addresses`]); `InvalidInput` if `local` is not an
    /// address with a port, also for a name other than `localhost`
    /// ([`bind_resolved`](Self::bind_resolved) accepts names).
    pub fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        Self::bind_with(stack, local, UdpBind::default())
    }

    /// Binds a socket as [`bind`](Self::bind) does, also to the address of a name, which the stack's
    /// resolver finds.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind) and of the resolver.
    pub async fn bind_resolved(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        let addrs = local.to_addrs()?.resolve(&stack.engine).await?;
        addr::bind_any(&addrs, |local| {
            Self::bind_to(stack, local, UdpBind::default())
        })
    }

    /// Binds a socket to `local`, which it may share with other sockets.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind).
    pub fn bind_with(stack: &Stack, local: impl ToAddrs, how: UdpBind) -> io::Result<Self> {
        local
            .to_addrs()?
            .bind(|local| Self::bind_to(stack, local, how))
    }

    fn bind_to(stack: &Stack, local: SocketAddr, how: UdpBind) -> io::Result<Self> {
        let sharing = UdpSharing {
            reuse_addr: how.reuse_address,
            reuse_port: how.reuse_port,
        };
        let id = stack
            .engine
            .op(|host, _| host.udp_bind_shared(local, sharing).map_err(io_error))?;
        Ok(Self::new(stack, id))
    }

    fn new(stack: &Stack, id: UdpId) -> Self {
        Self {
            engine: stack.engine.clone(),
            id,
            sticky: StickyReadiness::default(),
        }
    }

    /// Returns the local address: the bound one, or the source address of a connected socket.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.op(|udp| udp.addr().map_err(io_error))
    }

    /// Connects the socket to `remote`: `send` sends to it, and only its datagrams are received. The
    /// addresses of a name are tried in order. An IPv4-mapped IPv6 address stands for the IPv4
    /// address. Datagrams that were received before stay in the queue.
    ///
    /// # Errors
    /// `InvalidInput` if `remote` is not a host with a port, or has port 0; `NetworkUnreachable`
    /// without a route; `AddrNotAvailable` if the socket is bound to an address of the other family;
    /// `PermissionDenied` for a broadcast address without [`set_broadcast`](Self::set_broadcast);
    /// errors of the resolver; the stack's error if it has stopped ([`Stack::closed`]).
    pub async fn connect(&self, remote: impl ToAddrs) -> io::Result<()> {
        let addrs = remote.to_addrs()?;
        let mut result = Ok(());
        for remote in addrs.resolve(&self.engine).await? {
            addr::check_port(remote)?;
            result = self.op(|udp| udp.connect(Some(remote)).map_err(io_error));
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Ends the association that [`connect`](Self::connect) made: the socket receives from all peers
    /// again.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn disconnect(&self) -> io::Result<()> {
        self.op(|udp| udp.connect(None).map_err(io_error))
    }

    /// Returns the peer that [`connect`](Self::connect) set.
    ///
    /// # Errors
    /// `NotConnected` if no peer is set; the stack's error if it has stopped.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.op(|udp| peer_of(udp)?.ok_or_else(|| os_error(ENOTCONN)))
    }

    /// Returns the error that ICMP reported about a datagram of the connected socket (`SO_ERROR`)
    /// and clears it.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.op(|udp| udp.take_error().map_err(io_error))?;
        Ok(error.map(tcp_error))
    }

    /// Runs a call on the host's socket that does not report its pending error.
    fn op<R>(&self, call: impl FnOnce(&mut UdpHandle<'_>) -> io::Result<R>) -> io::Result<R> {
        self.engine.op(|host, _| call(&mut host.udp(self.id)))
    }

    /// Runs a sending call on the host's socket. Returns the pending error instead, if there is one.
    fn send_op<R>(
        &self,
        call: impl FnOnce(&mut UdpHandle<'_>, Instant) -> io::Result<R>,
    ) -> io::Result<R> {
        self.engine.run(true, |host, now| {
            let mut udp = host.udp(self.id);
            check_error(&mut udp)?;
            call(&mut udp, now)
        })
    }

    /// Reads with `read` without waiting; `None` means that there is nothing to read.
    fn try_read_op<R>(
        &self,
        read: impl FnOnce(&mut UdpHandle<'_>) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let next = self.op(|udp| {
            check_error(udp)?;
            read(udp)
        });
        let next = next.and_then(|next| next.ok_or_else(would_block));
        self.sticky.record(Interest::Read, next)
    }

    /// Polls `read` until there is something to read, or an error to report.
    fn poll_read_op<R>(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
        mut read: impl FnMut(&mut UdpHandle<'_>) -> io::Result<Option<R>>,
    ) -> Poll<io::Result<R>> {
        let coop = ready!(poll_proceed(cx));
        let next = self.op(|udp| {
            loop {
                check_error(udp)?;
                if let Some(next) = read(udp)? {
                    return Ok(Some(next));
                }
                let waiter = waiter(cx, &mut key);
                if !udp.poll_ready(Interest::Read, waiter).map_err(io_error)? {
                    return Ok(None);
                }
            }
        });
        let next = match next {
            Ok(None) => {
                self.sticky.clear(Interest::Read);
                return Poll::Pending;
            }
            Ok(Some(next)) => {
                self.sticky.set(Interest::Read);
                Ok(next)
            }
            Err(error) => Err(error),
        };
        coop.made_progress();
        Poll::Ready(next)
    }

    fn wait_registration(&self) -> WaitRegistration<'_> {
        WaitRegistration::new(&self.engine, WaitOn::Udp(self.id))
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.engine
            .close(self.id, |id, host, now| host.udp(id).close(now));
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket")
            .field("local", &self.local_addr().ok())
            .field("remote", &self.peer_addr().ok())
            .finish_non_exhaustive()
    }
}

/// Returns the pending error of a socket, if it has one.
fn check_error(udp: &mut UdpHandle<'_>) -> io::Result<()> {
    let error = udp.take_error().map_err(io_error)?;
    error.map_or(Ok(()), |error| Err(tcp_error(error)))
}

/// Returns the peer of a connected socket.
fn peer_of(udp: &UdpHandle<'_>) -> io::Result<Option<SocketAddr>> {
    udp.peer().map_err(io_error)
}

/// Returns the peer to send to.
fn destination_of(udp: &UdpHandle<'_>) -> io::Result<SocketAddr> {
    peer_of(udp)?.ok_or_else(|| os_error(EDESTADDRREQ))
}
