//! UDP sockets.

mod any;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use fullsend_offload::{Chain, Slice};
use fullsend_stack::{Interest, UdpId, WaitKey, WaitOn};
use fullsend_tcp::TcpError;
use parking_lot::Mutex;
use tokio::io::ReadBuf;
use tokio::task::coop::poll_proceed;

use crate::addr::{self, ToAddr};
use crate::engine::EngineHandle;
use crate::error::{io_error, tcp_error, would_block};
use crate::stack::Stack;
use crate::wait_registration::{WaitRegistration, waiter};

pub use any::Datagram;

/// A UDP socket, with the methods of `tokio::net::UdpSocket`. Cancel safe: dropping the future of
/// any of its calls loses no datagram.
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
    remote: Mutex<Option<SocketAddr>>,
}

impl UdpSocket {
    /// Binds a socket to `local`. The unspecified address stands for any of the stack's addresses;
    /// port 0 chooses a free port.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` for an address that the stack does not have, or that is
    /// not `Preferred` yet (see [`Stack::addresses`]); `InvalidInput` if `local` is not an
    /// address with a port.
    pub fn bind(stack: &Stack, local: impl ToAddr) -> io::Result<Self> {
        let local = local.to_addr()?;
        let id = stack
            .engine
            .op(|host, _| host.udp_bind(local).map_err(io_error))?;
        Ok(Self {
            engine: stack.engine.clone(),
            id,
            remote: Mutex::new(None),
        })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.engine
            .op(|host, _| host.udp(self.id).addr().map_err(io_error))
    }

    /// Sets the peer: `send` sends to it, and only its datagrams are received. An IPv4-mapped IPv6
    /// address stands for the IPv4 address.
    ///
    /// # Errors
    /// `InvalidInput` if `remote` is not an address with a port, or has port 0.
    pub fn connect(&self, remote: impl ToAddr) -> io::Result<()> {
        let remote = remote.to_addr()?;
        addr::check_port(remote)?;
        // Senders are compared with it, and those of IPv4 have IPv4 addresses.
        let ip = remote.ip().to_canonical();
        *self.remote.lock() = Some(SocketAddr::new(ip, remote.port()));
        Ok(())
    }

    /// Returns the peer that [`connect`](Self::connect) set.
    ///
    /// # Errors
    /// `NotConnected` if no peer is set.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        (*self.remote.lock()).ok_or_else(not_connected)
    }

    // --- sending ---

    /// Sends a datagram to the peer that [`connect`](Self::connect) set, and returns its length in
    /// bytes.
    ///
    /// # Errors
    /// `NotConnected` if no peer is set, and those of [`send_to`](Self::send_to).
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        let to = self.peer_addr()?;
        self.send_slice(data, to, None).await
    }

    /// Sends a datagram to `to`, and returns its length in bytes. It does not wait: the stack drops
    /// a datagram that finds no room in a queue, as a network may.
    ///
    /// # Errors
    /// - `InvalidInput` if `to` is not an address with a port, has port 0, or if the datagram is
    ///   too long.
    /// - `NetworkUnreachable` without a route to `to`.
    /// - `AddrNotAvailable` if the socket is bound to an address of the other family.
    /// - `OutOfMemory` if the datagram cannot be copied.
    /// - The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn send_to(&self, data: &[u8], to: impl ToAddr) -> io::Result<usize> {
        let to = to.to_addr()?;
        self.send_slice(data, to, None).await
    }

    /// Sends a datagram to `to` with the source address `from`, which need not be the stack's: a
    /// gateway answers with the address that a datagram was sent to. Returns its length in bytes.
    ///
    /// # Errors
    /// Those of [`send_to`](Self::send_to); `AddrNotAvailable` also if `from` and `to` differ in
    /// family.
    pub async fn send_from(
        &self,
        data: &[u8],
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<usize> {
        self.send_slice(data, to, Some(from)).await
    }

    /// Sends a datagram to `to` outside of an async context, and returns its length in bytes.
    ///
    /// # Errors
    /// Those of [`send_to`](Self::send_to).
    pub fn try_send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        addr::check_port(to)?;
        self.engine
            .run(true, |host, now| {
                let slice = copy_datagram(data)?;
                host.udp(self.id)
                    .send_to(now, slice, to, None)
                    .map_err(io_error)
            })
            .map(|()| data.len())
    }

    async fn send_slice(
        &self,
        data: &[u8],
        to: SocketAddr,
        from: Option<SocketAddr>,
    ) -> io::Result<usize> {
        addr::check_port(to)?;
        let slice = copy_datagram(data)?;
        poll_fn(|cx| {
            let coop = ready!(poll_proceed(cx));
            let sent = self.engine.run(true, |host, now| {
                loop {
                    match host
                        .udp(self.id)
                        .send_to(now, slice.clone(), to, from)
                        .map_err(io_error)
                    {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        sent => return sent.map(|()| true),
                    }
                    let ready = host
                        .udp(self.id)
                        .poll_ready(Interest::Write, cx.waker())
                        .map_err(io_error)?;
                    if !ready {
                        return Ok(false);
                    }
                }
            })?;
            if !sent {
                return Poll::Pending;
            }
            coop.made_progress();
            Poll::Ready(Ok(data.len()))
        })
        .await
    }

    // --- receiving ---

    /// Receives the next datagram from the peer that [`connect`](Self::connect) set. Returns the
    /// number of bytes copied into `buf`; the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// `NotConnected` if no peer is set, and those of [`recv_from`](Self::recv_from).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peer_addr()?;
        Ok(self.recv_from(buf).await?.0)
    }

    /// Receives the next datagram. Returns the number of bytes copied into `buf` and the sender;
    /// the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (len, from, _) = self.recv_from_to(buf).await?;
        Ok((len, from))
    }

    /// Receives the next datagram. Returns the number of bytes copied into `buf`, the sender, and
    /// the address that it was sent to; the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn recv_from_to(
        &self,
        buf: &mut [u8],
    ) -> io::Result<(usize, SocketAddr, SocketAddr)> {
        let mut wait_registration = self.wait_registration();
        let (chain, from, to) = poll_fn(|cx| self.poll_next(cx, wait_registration.key())).await?;
        Ok((chain.copy_to(buf), from, to))
    }

    /// Polls for the next datagram, appends it to `buf`, and returns the sender; the rest of a
    /// datagram that does not fit is lost. Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let (chain, from, _) = ready!(self.poll_next(cx, None))?;
        for slice in chain.slices() {
            let n = slice.len().min(buf.remaining());
            buf.put_slice(&slice[..n]);
        }
        Poll::Ready(Ok(from))
    }

    /// Receives the next datagram without waiting. Returns the number of bytes copied into `buf`
    /// and the sender; the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram has arrived, and the stack's error if it has stopped.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let remote = *self.remote.lock();
        self.engine.op(|host, _| {
            loop {
                let (chain, from, _) = host
                    .udp(self.id)
                    .recv()
                    .map_err(io_error)?
                    .ok_or_else(would_block)?;
                if remote.is_none_or(|r| r == from) {
                    return Ok((chain.copy_to(buf), from));
                }
            }
        })
    }

    fn wait_registration(&self) -> WaitRegistration<'_> {
        WaitRegistration::new(&self.engine, WaitOn::Udp(self.id))
    }

    fn poll_next(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<(Chain, SocketAddr, SocketAddr)>> {
        let coop = ready!(poll_proceed(cx));
        let remote = *self.remote.lock();
        let next = self.engine.op(|host, _| {
            loop {
                match host.udp(self.id).recv().map_err(io_error)? {
                    Some(next) if remote.is_none_or(|r| r == next.1) => return Ok(Some(next)),
                    Some(_) => continue,
                    None => {}
                }
                let ready = host
                    .udp(self.id)
                    .poll_ready(Interest::Read, waiter(cx, &mut key))
                    .map_err(io_error)?;
                if !ready {
                    return Ok(None);
                }
            }
        })?;
        let Some(next) = next else {
            return Poll::Pending;
        };
        coop.made_progress();
        Poll::Ready(Ok(next))
    }

    // --- readiness ---

    /// Waits until a datagram can be received.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn readable(&self) -> io::Result<()> {
        let mut wait_registration = self.wait_registration();
        poll_fn(|cx| self.poll_ready(cx, Interest::Read, wait_registration.key())).await
    }

    /// Waits until a datagram can be sent. It returns at once, as sending does not wait.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_ready(cx, Interest::Write, None)).await
    }

    fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<()>> {
        let coop = ready!(poll_proceed(cx));
        let ready = self.engine.op(|host, _| {
            host.udp(self.id)
                .poll_ready(interest, waiter(cx, &mut key))
                .map_err(io_error)
        })?;
        if !ready {
            return Poll::Pending;
        }
        coop.made_progress();
        Poll::Ready(Ok(()))
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        let _ = self.engine.op(|host, _| {
            host.udp(self.id).close();
            Ok(())
        });
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket")
            .field("local", &self.local_addr().ok())
            .field("remote", &*self.remote.lock())
            .finish_non_exhaustive()
    }
}

fn not_connected() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the socket has no peer; call connect(..) first, or use send_to(..)",
    )
}

/// Copies a datagram into memory that the stack can keep.
fn copy_datagram(data: &[u8]) -> io::Result<Slice> {
    Slice::try_copied_from([data]).ok_or_else(|| tcp_error(TcpError::OutOfMemory))
}
