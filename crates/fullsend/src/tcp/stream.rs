//! TCP connections.

mod connect;
mod read;
mod readiness;
mod write;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, ready};

use fullsend_stack::{Host, Interest as HostInterest, StackError, TcpId, WaitKey, WaitOn, Waiter};
use fullsend_tcp::TcpError;
use fullsend_wire::{Instant, cold_path};
use tokio::task::coop::poll_proceed;

use crate::engine::EngineHandle;
use crate::error::io_error;
use crate::readiness::{StickyReadiness, poll_of};
use crate::tcp::write_quantum::WriteQuantum;
use crate::wait_registration::{WaitRegistration, waiter};

/// A TCP connection, with the methods of `tokio::net::TcpStream`.
///
/// Dropping it closes the connection. Written data is still delivered in the background, while the
/// stack lives; but if received data was left unread, the connection is reset (RFC 2525 2.17).
///
/// # Delivery
/// - A completed write means that the bytes are in the send buffer, not that the peer has them.
/// - `shutdown()` (`poll_shutdown`) queues a FIN behind them and returns without waiting, as in the
///   kernel. `flush()` does nothing.
/// - [`flushed`](Self::flushed) waits until the peer's stack has acknowledged all written data,
///   including the FIN. Unlike the kernel, this stack ends with the process: await `flushed` or
///   [`Stack::shutdown`](crate::Stack::shutdown) before exiting.
///
/// # Cancel safety
/// Reads, `peek`, `readable`, `writable`, `ready` and `flushed` are cancel safe: dropping their
/// futures loses no data.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fullsend::{Pair, Stack, TcpListener, TcpStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let (client_stack, server_stack) = Stack::pair(&Pair::default())?;
/// let listener = TcpListener::bind(&server_stack, "10.0.0.2:80")?;
/// let mut client = TcpStream::connect(&client_stack, "10.0.0.2:80").await?;
/// client.set_nodelay(true)?;
/// client.write_all(b"request").await?;
/// client.shutdown().await?; // sends a FIN after the request
///
/// let (mut server, _peer) = listener.accept().await?;
/// let mut request = Vec::new();
/// server.read_to_end(&mut request).await?;
/// assert_eq!(request, b"request");
/// client.flushed().await?; // the server's stack has acknowledged the request and the FIN
/// # Ok(()) }
/// ```
pub struct TcpStream {
    pub(crate) engine: EngineHandle,
    pub(crate) id: TcpId,
    local: SocketAddr,
    remote: SocketAddr,
    /// Whether the next write is the first, or the first after a read: the peer then probably waits
    /// for it. Of several writes in a row, the later ones gain from being sent in batches.
    pub(super) flush_now: AtomicBool,
    pub(super) sticky: StickyReadiness,
    write_quantum: WriteQuantum,
}

impl TcpStream {
    /// Returns an accepted connection. As in tokio it counts as ready until a call would block, so that
    /// the first read is tried without an event before it.
    pub(crate) fn accepted(
        engine: EngineHandle,
        id: TcpId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Self {
        let stream = Self::new(engine, id, local, remote);
        stream.sticky.set(HostInterest::Read);
        stream.sticky.set(HostInterest::Write);
        stream
    }

    pub(crate) fn new(
        engine: EngineHandle,
        id: TcpId,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Self {
        Self {
            engine,
            id,
            local,
            remote,
            flush_now: AtomicBool::new(true),
            sticky: StickyReadiness::default(),
            write_quantum: WriteQuantum::default(),
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// None: the `Result` is for compatibility with tokio.
    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of tokio")]
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.remote)
    }

    /// Returns the local and the peer's address.
    pub(super) const fn addrs(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.remote)
    }

    /// Returns the index of the shard that the connection belongs to, for a program that runs its
    /// task on the shard's runtime ([`Stack::shard`](crate::Stack::shard)); 0 for a stack with one shard.
    pub fn shard(&self) -> usize {
        self.engine.index
    }

    /// Returns the connection's pending error (`SO_ERROR`) and clears it.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.engine.op(|host, _| {
            let error = host.tcp(self.id).take_error().map_err(io_error)?;
            Ok(error.map(crate::error::tcp_error))
        })
    }

    /// Returns the guard of a future's wait for reading or writing.
    fn wait_registration(&self, interest: HostInterest) -> WaitRegistration<'_> {
        WaitRegistration::new(&self.engine, WaitOn::Tcp(self.id, interest))
    }

    async fn wait_for(&self, interest: HostInterest) -> io::Result<()> {
        let mut wait_registration = self.wait_registration(interest);
        poll_fn(|cx| self.poll_host_ready(cx, interest, wait_registration.key())).await
    }

    /// Polls the stream's readiness, until a call would block; if it is not ready, the waker is
    /// registered at the host.
    fn poll_host_ready(
        &self,
        cx: &mut Context<'_>,
        interest: HostInterest,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<()>> {
        poll_of(self.engine.op(|host, now| {
            if self.sticky.is_set(interest) {
                return Ok(true);
            }
            let waiter = waiter(cx, &mut key);
            let ready = self.is_ready_or_waits(host, now, interest, waiter)?;
            if ready {
                self.sticky.set(interest);
            }
            Ok(ready)
        }))
    }

    /// Polls `step` until it does not return `WouldBlock`. Only the task that polled last is woken.
    #[inline]
    pub(super) fn poll_op<R>(
        &self,
        cx: &mut Context<'_>,
        interest: HostInterest,
        flush_now: bool,
        step: impl FnMut(&mut Host, Instant) -> Result<R, StackError>,
    ) -> Poll<io::Result<R>> {
        self.poll_op_with_key(cx, None, interest, flush_now, step)
    }

    /// Waits until `step` does not return `WouldBlock`.
    pub(super) async fn op<R>(
        &self,
        interest: HostInterest,
        mut step: impl FnMut(&mut Host, Instant) -> Result<R, StackError>,
    ) -> io::Result<R> {
        let mut wait_registration = self.wait_registration(interest);
        poll_fn(|cx| self.poll_op_with_key(cx, wait_registration.key(), interest, false, &mut step))
            .await
    }

    /// Polls `step` for a future with `key`, or without one for a caller that polls.
    fn poll_op_with_key<R>(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
        interest: HostInterest,
        flush_now: bool,
        mut step: impl FnMut(&mut Host, Instant) -> Result<R, StackError>,
    ) -> Poll<io::Result<R>> {
        let coop = ready!(poll_proceed(cx));
        let call = |host: &mut Host, now: Instant| loop {
            match step(host, now) {
                Ok(done) => return Ok(Poll::Ready(done)),
                Err(StackError::Tcp(TcpError::WouldBlock)) => {
                    let waiter = waiter(cx, &mut key);
                    if !self.is_ready_or_waits(host, now, interest, waiter)? {
                        self.sticky.clear(interest);
                        return Ok(Poll::Pending);
                    }
                }
                Err(error) => {
                    cold_path();
                    return Err(io_error(error));
                }
            }
        };
        let done = match self.engine.run_with_lazy_clock(flush_now, call) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(done)) => {
                self.sticky.set(interest);
                Ok(done)
            }
            Err(error) => {
                cold_path();
                Err(error)
            }
        };
        coop.made_progress();
        Poll::Ready(done)
    }

    /// Returns whether the connection is ready for `interest`; if not, registers `waiter`.
    #[inline(never)]
    fn is_ready_or_waits(
        &self,
        host: &mut Host,
        now: Instant,
        interest: HostInterest,
        waiter: Waiter<'_>,
    ) -> io::Result<bool> {
        host.tcp(self.id)
            .poll_ready(now, interest, waiter)
            .map_err(io_error)
    }

    /// Resets the connection (RFC 9293 3.10.5). Undelivered data is lost, and the peer's reads fail
    /// with `ConnectionReset`.
    pub fn abort(self) {
        let _ = self.engine.op(|host, now| {
            host.tcp(self.id).abort(now);
            Ok(())
        });
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.engine
            .close(self.id, |id, host, now| host.tcp(id).close(now));
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStream")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}
