//! TCP connections.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use fullsend_offload::Slice;
use fullsend_stack::{Host, Interest as HostInterest, StackError, TcpId, WaitKey, WaitOn};
use fullsend_tcp::TcpError;
use fullsend_wire::Instant;
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::task::coop::poll_proceed;

use crate::addr::{self, Addrs, ToAddr, ToAddrs};
use crate::engine::EngineHandle;
use crate::error::{check_interest, io_error};
use crate::stack::Stack;
use crate::tcp::socket::SocketSettings;
use crate::tcp::write_quantum::WriteQuantum;
use crate::wait_registration::{WaitRegistration, waiter};

/// Most bytes of caller-owned memory queued at once; more waits for room in the send buffer.
const MAX_LENT_BYTES: usize = 256 << 10;

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
///   [`Stack::shutdown`] before exiting.
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
    write_quantum: WriteQuantum,
}

impl TcpStream {
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
            write_quantum: WriteQuantum::default(),
        }
    }

    /// Connects to `remote` and waits for the end of the handshake. The addresses of a name are tried
    /// in order.
    ///
    /// # Errors
    /// - `ConnectionRefused` if the peer answers with a RST, `TimedOut` if it does not answer.
    /// - `NetworkUnreachable` without a route, `HostUnreachable` if neighbor discovery fails or
    ///   a router reports it.
    /// - `AddrNotAvailable` if all ephemeral ports to `remote` are in use.
    /// - `InvalidInput` if `remote` is not a host with a port, or has port 0.
    /// - Errors of the resolver of a name.
    /// - The stack's error if it has stopped ([`Stack::closed`]).
    ///
    /// With several addresses it returns the error of the last one.
    pub async fn connect(stack: &Stack, remote: impl ToAddrs) -> io::Result<Self> {
        Self::connect_any(stack, None, remote.to_addrs()?).await
    }

    async fn connect_any(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: Addrs,
    ) -> io::Result<Self> {
        let mut addrs = remote.resolve(&stack.engine).await?.into_iter();
        let last = addrs.next_back();
        for remote in addrs {
            if let Ok(stream) = Self::connect_inner(stack, local, remote).await {
                return Ok(stream);
            }
        }
        let last = last.ok_or(io::ErrorKind::InvalidInput)?;
        Self::connect_inner(stack, local, last).await
    }

    /// Connects to `remote` from `local`. The unspecified address and port 0 leave the choice to
    /// the stack.
    ///
    /// # Errors
    /// `AddrInUse` and `AddrNotAvailable` for `local`, and those of [`connect`](Self::connect).
    pub async fn connect_from(
        stack: &Stack,
        local: impl ToAddr,
        remote: impl ToAddrs,
    ) -> io::Result<Self> {
        Self::connect_any(stack, Some(local.to_addr()?), remote.to_addrs()?).await
    }

    /// Connects to `remote` with the first bytes of `data` on the SYN (TCP Fast Open, RFC 7413), if
    /// `remote` has sent a cookie before or none is required (`tcp_fastopen`). Returns the stream
    /// and the number of bytes accepted; pass the rest to
    /// [`write`](tokio::io::AsyncWriteExt::write). If any bytes were accepted, it does not wait for
    /// the handshake, and the next read or write returns the error of a failed handshake.
    ///
    /// The peer's application may receive data on a SYN twice: send only data that may be repeated.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_with(
        stack: &Stack,
        remote: impl ToAddrs,
        data: &[u8],
    ) -> io::Result<(Self, usize)> {
        let addrs = remote.to_addrs()?;
        let remote = addrs.resolve_first(&stack.engine).await?;
        Self::connect_with_data(stack, None, remote, data, &SocketSettings::default()).await
    }

    /// Connects with data on the SYN, with the options of a [`TcpSocket`](crate::TcpSocket).
    pub(super) async fn connect_with_data(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        data: &[u8],
        settings: &SocketSettings,
    ) -> io::Result<(Self, usize)> {
        addr::check_port(remote)?;
        let known = stack.fastopen_server(remote.ip());
        let (engine, (id, addrs, accepted)) =
            stack.open_connection(local, remote, |host, now| {
                if let Some(server) = known {
                    host.add_fastopen_server(remote.ip(), server);
                }
                let id = host
                    .tcp_connect_deferred(now, local, remote)
                    .map_err(io_error)?;
                settings.apply(host, now, id)?;
                let addrs = host.tcp(id).addrs().map_err(io_error)?;
                let accepted = if host.tcp(id).is_fastopen_ready(now).map_err(io_error)? {
                    host.tcp(id).write(now, data, false).map_err(io_error)?
                } else {
                    host.tcp(id).send_syn(now).map_err(io_error)?;
                    0
                };
                Ok((id, addrs, accepted))
            })?;
        let stream = Self::new(engine, id, addrs.0, addrs.1);
        if accepted == 0 {
            stream.established().await?;
        }
        Ok((stream, accepted))
    }

    /// Connects to `remote` from `local`, whose address need not be the stack's: a gateway passes
    /// the address of its client on. Port 0 leaves the choice to the stack.
    ///
    /// # Errors
    /// `AddrInUse` for `local`; `AddrNotAvailable` if it cannot be the address of a host or is of
    /// the other family; and those of [`connect`](Self::connect).
    pub async fn connect_transparent(
        stack: &Stack,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Self> {
        addr::check_port(remote)?;
        let (engine, (id, (local, remote))) =
            stack.open_connection(Some(local), remote, |host, now| {
                let id = host
                    .tcp_connect_from(now, local, remote)
                    .map_err(io_error)?;
                Ok((id, host.tcp(id).addrs().map_err(io_error)?))
            })?;
        let stream = Self::new(engine, id, local, remote);
        stream.established().await?;
        Ok(stream)
    }

    async fn connect_inner(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> io::Result<Self> {
        Self::connect_configured(stack, local, remote, &SocketSettings::default()).await
    }

    /// Connects with the options of a [`TcpSocket`](crate::TcpSocket), which apply from the SYN on.
    pub(super) async fn connect_configured(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        settings: &SocketSettings,
    ) -> io::Result<Self> {
        addr::check_port(remote)?;
        let (engine, (id, (local, remote))) =
            stack.open_connection(local, remote, |host, now| {
                let id = host.tcp_connect(now, local, remote).map_err(io_error)?;
                settings.apply(host, now, id)?;
                Ok((id, host.tcp(id).addrs().map_err(io_error)?))
            })?;
        // From here on, dropping this future closes the connection.
        let stream = Self::new(engine, id, local, remote);
        stream.established().await?;
        Ok(stream)
    }

    /// Waits for the end of the handshake.
    pub(crate) async fn established(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Write).await?;
        self.take_error()?.map_or(Ok(()), Err)
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

    /// Returns the local address and that of the peer.
    pub(super) const fn addrs(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.remote)
    }

    /// Returns the index of the shard that the connection belongs to, for a program that runs its
    /// task on the shard's runtime ([`Stack::shard`]); 0 for a stack with one shard.
    pub fn shard(&self) -> usize {
        self.engine.index
    }

    /// Returns the connection's pending error (`SO_ERROR`) and clears it.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
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

    /// Polls the stream's readiness; if it is not ready, the waker is registered at the host.
    fn poll_host_ready(
        &self,
        cx: &mut Context<'_>,
        interest: HostInterest,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<()>> {
        let coop = ready!(poll_proceed(cx));
        let ready = self.engine.op(|host, now| {
            host.tcp(self.id)
                .poll_ready(now, interest, waiter(cx, &mut key))
                .map_err(io_error)
        })?;
        if ready {
            coop.made_progress();
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
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
                    let ready = host
                        .tcp(self.id)
                        .poll_ready(now, interest, waiter(cx, &mut key))
                        .map_err(io_error)?;
                    if !ready {
                        return Ok(Poll::Pending);
                    }
                }
                Err(error) => return Err(io_error(error)),
            }
        };
        match self.engine.run_with_lazy_clock(flush_now, call) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(done)) => {
                coop.made_progress();
                Poll::Ready(Ok(done))
            }
            Err(error) => {
                coop.made_progress();
                Poll::Ready(Err(error))
            }
        }
    }

    // --- reading ---

    pub(crate) fn poll_read_inner(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.write_quantum.restart();
        self.flush_now.store(true, Ordering::Relaxed);
        let id = self.id;
        // Received slices are appended to uninitialized memory directly: the copying read would
        // need it zeroed first, which writes all of it.
        if buf.initialized().len() < buf.capacity() {
            return self.poll_op(cx, HostInterest::Read, false, |host, now| {
                let chain = host.tcp(id).read_chain(now, buf.remaining())?;
                chain.slices().iter().for_each(|s| buf.put_slice(s));
                Ok(())
            });
        }
        self.poll_op(cx, HostInterest::Read, false, |host, now| {
            let n = host.tcp(id).read(now, buf.initialize_unfilled())?;
            buf.advance(n);
            Ok(())
        })
    }

    /// Reads received data into `buf` without waiting. Returns the number of bytes, and 0 at the
    /// end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if no data has been received, or the connection's error.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.flush_now.store(true, Ordering::Relaxed);
        self.engine
            .op(|host, now| host.tcp(self.id).read(now, buf).map_err(io_error))
    }

    /// Reads without copying. Returns the next contiguous received bytes, at most `max`, or `None`
    /// at the end of the stream.
    ///
    /// The returned `Bytes` refers to the stack's memory, which counts as in use until it is
    /// dropped.
    ///
    /// # Errors
    /// `ConnectionReset`, `TimedOut` or another error of the connection; the stack's error if it
    /// has stopped.
    pub async fn read_chunk(&self, max: usize) -> io::Result<Option<Bytes>> {
        let mut wait_registration = self.wait_registration(HostInterest::Read);
        poll_fn(|cx| self.poll_read_chunk_with_key(cx, wait_registration.key(), max)).await
    }

    /// Polls [`read_chunk`](Self::read_chunk): reads without copying. Only the task that polled
    /// last is woken.
    ///
    /// # Errors
    /// Those of [`read_chunk`](Self::read_chunk).
    pub fn poll_read_chunk(
        &self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<Option<Bytes>>> {
        self.poll_read_chunk_with_key(cx, None, max)
    }

    fn poll_read_chunk_with_key(
        &self,
        cx: &mut Context<'_>,
        key: Option<&mut WaitKey>,
        max: usize,
    ) -> Poll<io::Result<Option<Bytes>>> {
        self.flush_now.store(true, Ordering::Relaxed);
        let read = |host: &mut Host, now| host.tcp(self.id).read_slice(now, max);
        let slice = ready!(self.poll_op_with_key(cx, key, HostInterest::Read, false, read))?;
        Poll::Ready(Ok((!slice.is_empty()).then(|| slice.into_bytes())))
    }

    /// Waits for data and copies it into `buf` without removing it from the stream. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// Those of [`read_chunk`](Self::read_chunk).
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.op(HostInterest::Read, |host, _| host.tcp(self.id).peek(buf))
            .await
    }

    // --- writing ---

    #[inline]
    fn take_flush_now(&self) -> bool {
        // Only a hint: if two writers race, one of them may not be sent at once.
        let flush_now = self.flush_now.load(Ordering::Relaxed);
        if flush_now {
            self.flush_now.store(false, Ordering::Relaxed);
        }
        flush_now
    }

    /// Polls a copying write, within the quantum of its task.
    #[inline]
    fn poll_copying_write(
        &self,
        cx: &mut Context<'_>,
        step: impl FnMut(&mut Host, Instant) -> Result<usize, StackError>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.write_quantum.poll_available(cx));
        let write = self.poll_op(cx, HostInterest::Write, self.take_flush_now(), step);
        self.write_quantum.count(&write);
        write
    }

    pub(crate) fn poll_write_inner(
        &self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        // The first write after a read takes the other path, which flushes it.
        if self.write_quantum.may_append_uncounted(data.len())
            && !self.flush_now.load(Ordering::Relaxed)
            && self.engine.try_append(self.id, data)
        {
            self.write_quantum.on_uncounted_append(data.len());
            return Poll::Ready(Ok(data.len()));
        }
        self.poll_copying_write(cx, |host, now| host.tcp(self.id).write(now, data, false))
    }

    pub(crate) fn poll_write_vectored_inner(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_copying_write(cx, |host, now| write_vectored(host, now, self.id, bufs))
    }

    /// Writes as much of `data` as the send buffer has room for. Returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; `BrokenPipe` after a shutdown or the end of the
    /// connection; the connection's or the stack's error.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let write =
            |host: &mut Host, now| host.tcp(self.id).write(now, data, false).map_err(io_error);
        self.engine
            .run_with_lazy_clock(self.take_flush_now(), write)
    }

    /// Writes as many bytes of `bufs`, in order, as the send buffer has room for. Returns their
    /// number.
    ///
    /// # Errors
    /// Those of [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let write =
            |host: &mut Host, now| write_vectored(host, now, self.id, bufs).map_err(io_error);
        self.engine
            .run_with_lazy_clock(self.take_flush_now(), write)
    }

    /// Writes as much of `data` as the send buffer has room for, with `MSG_MORE`: a partial segment
    /// waits for the next write, for 200 ms at most. Waits while the send buffer is full, and
    /// returns the number of bytes.
    ///
    /// # Errors
    /// `BrokenPipe` after a shutdown or the end of the connection; the connection's or the stack's
    /// error.
    pub async fn write_more(&self, data: &[u8]) -> io::Result<usize> {
        let write = |host: &mut Host, now| host.tcp(self.id).write(now, data, true);
        self.op(HostInterest::Write, write).await
    }

    /// Writes all of `data` without copying it: the stack holds it until it is acknowledged.
    ///
    /// Not cancel safe: if the future is dropped, a part of `data` may have been written.
    ///
    /// # Errors
    /// Those of [`write_more`](Self::write_more).
    pub async fn write_bytes(&self, mut data: Bytes) -> io::Result<()> {
        while data.has_remaining() {
            let piece = data.split_to(data.len().min(MAX_LENT_BYTES));
            let mut slice = Some(Slice::from(piece));
            let mut wait_registration = self.wait_registration(HostInterest::Write);
            poll_fn(|cx| self.poll_write_slice(cx, wait_registration.key(), &mut slice)).await?;
        }
        Ok(())
    }

    /// Queues as many bytes of the slice as the send buffer has room for, and leaves the rest in
    /// `slice`.
    fn poll_write_slice(
        &self,
        cx: &mut Context<'_>,
        key: Option<&mut WaitKey>,
        slice: &mut Option<Slice>,
    ) -> Poll<io::Result<()>> {
        let flush_now = self.take_flush_now();
        self.poll_op_with_key(cx, key, HostInterest::Write, flush_now, |host, now| {
            let Some(data) = slice.take() else {
                return Ok(());
            };
            host.tcp(self.id)
                .write_slice(now, data)
                .map_err(|(error, rest)| {
                    *slice = Some(rest);
                    error
                })
        })
    }

    /// Shuts the write direction down (`SHUT_WR`): a FIN is sent after the written data. Does what
    /// [`shutdown`](tokio::io::AsyncWriteExt::shutdown) does, for callers that share the stream.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.engine
            .op(|host, now| host.tcp(self.id).shutdown_write(now).map_err(io_error))
    }

    /// Shuts the read direction down (`SHUT_RD`): later reads return the end of the stream.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn shutdown_read(&self) -> io::Result<()> {
        self.engine
            .op(|host, now| host.tcp(self.id).shutdown_read(now).map_err(io_error))
    }

    /// Waits until all written data (and the FIN, after `shutdown`) has been acknowledged.
    ///
    /// # Errors
    /// The connection's error if it ended before.
    pub async fn flushed(&self) -> io::Result<()> {
        let mut wait_registration = WaitRegistration::new(&self.engine, WaitOn::Flush(self.id));
        poll_fn(|cx| {
            let mut key = wait_registration.key();
            let waiter = waiter(cx, &mut key);
            let done = self
                .engine
                .op(|host, _| host.tcp(self.id).poll_flushed(waiter).map_err(io_error))?;
            if done {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Resets the connection (RFC 9293 3.10.5). Undelivered data is lost, and the peer's reads fail
    /// with `ConnectionReset`.
    pub fn abort(self) {
        let _ = self.engine.op(|host, now| {
            host.tcp(self.id).abort(now);
            Ok(())
        });
    }

    // --- readiness ---

    /// Waits until a read would not block: it returns data, the end of the stream, or an error.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn readable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Read).await
    }

    /// Waits until the stream is writable as `poll(2)` defines it: a third of the send buffer is
    /// free, and less than half of `TCP_NOTSENT_LOWAT` is unsent.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn writable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Write).await
    }

    /// Waits until the stream is ready for any of `interest`, and returns for which. A direction that
    /// has ended is ready, and `READ_CLOSED` or `WRITE_CLOSED` is set.
    ///
    /// # Errors
    /// `InvalidInput` if `interest` is neither readable nor writable; the stack's error if it has
    /// stopped ([`Stack::closed`]).
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        check_interest(interest)?;
        let [mut reading, mut writing] = [HostInterest::Read, HostInterest::Write]
            .map(|direction| self.wait_registration(direction));
        poll_fn(|cx| {
            let mut ready = Ready::EMPTY;
            let mut is_ready = |direction, key: Option<&mut WaitKey>| -> io::Result<bool> {
                Ok(self.poll_host_ready(cx, direction, key)?.is_ready())
            };
            if interest.is_readable() && is_ready(HostInterest::Read, reading.key())? {
                ready |= Ready::READABLE;
            }
            if interest.is_writable() && is_ready(HostInterest::Write, writing.key())? {
                ready |= Ready::WRITABLE;
            }
            if ready.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(Ok(ready | self.ready_now(interest)?))
            }
        })
        .await
    }

    /// Polls [`readable`](Self::readable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_host_ready(cx, HostInterest::Read, None)
    }

    /// Polls [`writable`](Self::writable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_host_ready(cx, HostInterest::Write, None)
    }
}

/// Writes the buffers in order as one write: all but the last with `MSG_MORE`.
fn write_vectored(
    host: &mut Host,
    now: Instant,
    id: TcpId,
    bufs: &[IoSlice<'_>],
) -> Result<usize, StackError> {
    let last = bufs.iter().rposition(|b| !b.is_empty()).unwrap_or(0);
    let mut done = 0;
    for (i, buf) in bufs.iter().enumerate() {
        if buf.is_empty() && i != last {
            continue;
        }
        match host.tcp(id).write(now, buf, i < last) {
            Ok(n) if n < buf.len() => return Ok(done + n),
            Ok(n) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
        if i == last {
            break;
        }
    }
    Ok(done)
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
