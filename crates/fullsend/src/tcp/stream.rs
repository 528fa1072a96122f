//! A TCP connection.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use fullsend_buf::Slice;
use fullsend_stack::{Host, Interest as HostInterest, StackError, TcpId, WaitKey, WaitOn};
use fullsend_tcp::TcpError;
use fullsend_units::Instant;
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::task::coop::poll_proceed;

use crate::addr::{self, ToAddr};
use crate::engine::Handle;
use crate::error::io_error;
use crate::stack::Stack;
use crate::tcp::turn::Turn;
use crate::waiting::{Waiting, waiter};

/// Most bytes of lent memory queued in one step; more waits for room in the send buffer.
const LEND_MAX: usize = 256 << 10;

/// A TCP connection, as `tokio::net::TcpStream`.
///
/// Dropping it closes it: what was written is still delivered in the background (while the stack
/// lives), unless received data was left unread, which resets the connection (RFC 2525 2.17).
///
/// # What is guaranteed when
/// - A write's end says that the stack has the bytes.
/// - `shutdown()` (`poll_shutdown`) queues a FIN behind them and returns, as in the kernel; it
///   does not wait. `flush()` does nothing.
/// - [`flushed`](Self::flushed) waits until the peer's stack has acknowledged all of it, the FIN
///   included. Unlike the kernel's, this stack ends with the process: await it, or
///   [`Stack::shutdown`], before exiting.
///
/// # Cancel safety
/// Reads, `peek`, `readable`, `writable`, `ready` and `flushed` lose nothing when dropped.
pub struct TcpStream {
    pub(crate) engine: Handle,
    pub(crate) id: TcpId,
    local: SocketAddr,
    remote: SocketAddr,
    /// The next write answers something that was read (or opens): whoever waits for it waits
    /// now. Writes that follow each other gain from going in batches instead.
    prompt: AtomicBool,
    turn: Turn,
}

impl TcpStream {
    pub(crate) fn new(engine: Handle, id: TcpId, local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            engine,
            id,
            local,
            remote,
            prompt: AtomicBool::new(true),
            turn: Turn::default(),
        }
    }

    /// Connects to `remote`.
    ///
    /// # Errors
    /// `ConnectionRefused` by a RST, `TimedOut` when nobody answers, `NetworkUnreachable` without
    /// a route.
    pub async fn connect(stack: &Stack, remote: impl ToAddr) -> io::Result<Self> {
        Self::connect_inner(stack, None, remote.to_addr()?).await
    }

    /// Connects from the address and port of `local`; 0 and the unspecified address mean
    /// "choose".
    ///
    /// # Errors
    /// Also `AddrInUse` and `AddrNotAvailable`, for `local`.
    pub async fn connect_from(
        stack: &Stack,
        local: impl ToAddr,
        remote: impl ToAddr,
    ) -> io::Result<Self> {
        Self::connect_inner(stack, Some(local.to_addr()?), remote.to_addr()?).await
    }

    /// Connects to `remote` with the first of `data` on the SYN (TCP Fast Open, RFC 7413), if
    /// `remote` gave a cookie before or none is needed (`tcp_fastopen`); how many bytes were
    /// taken, the rest being for [`write`](tokio::io::AsyncWriteExt::write). With some taken it
    /// does not wait for the handshake; what it meets is told by the next read or write.
    ///
    /// What rides on a SYN may reach the peer's application twice: send only what may be repeated.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub async fn connect_with(
        stack: &Stack,
        remote: impl ToAddr,
        data: &[u8],
    ) -> io::Result<(Self, usize)> {
        let remote = remote.to_addr()?;
        addr::check_port(remote)?;
        let (id, addrs, taken) = stack.engine.op(|host, now| {
            let id = host
                .tcp_connect_deferred(now, None, remote)
                .map_err(io_error)?;
            let addrs = host.tcp_addrs(id).map_err(io_error)?;
            let taken = if host.tcp_fastopen_ready(now, id).map_err(io_error)? {
                host.tcp_write(now, id, data, false).map_err(io_error)?
            } else {
                host.tcp_connect_now(now, id).map_err(io_error)?;
                0
            };
            Ok((id, addrs, taken))
        })?;
        let stream = Self::new(stack.engine.clone(), id, addrs.0, addrs.1);
        if taken == 0 {
            stream.established().await?;
        }
        Ok((stream, taken))
    }

    async fn connect_inner(
        stack: &Stack,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> io::Result<Self> {
        addr::check_port(remote)?;
        let (id, local, remote) = stack.engine.op(|host, now| {
            let id = host.tcp_connect(now, local, remote).map_err(io_error)?;
            let (local, remote) = host.tcp_addrs(id).map_err(io_error)?;
            Ok((id, local, remote))
        })?;
        // From here on a drop of this future closes what it has begun.
        let stream = Self::new(stack.engine.clone(), id, local, remote);
        stream.established().await?;
        Ok(stream)
    }

    /// Waits for the end of the handshake.
    pub(crate) async fn established(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Write).await?;
        self.take_error()?.map_or(Ok(()), Err)
    }

    /// Our address.
    #[allow(clippy::unnecessary_wraps, reason = "as tokio's")]
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// The peer's address.
    #[allow(clippy::unnecessary_wraps, reason = "as tokio's")]
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.remote)
    }

    /// The pending error (`SO_ERROR`), cleared by asking.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.engine.op(|host, _| {
            let error = host.tcp_take_error(self.id).map_err(io_error)?;
            Ok(error.map(crate::error::tcp_error))
        })
    }

    /// A future's wait for reading or writing.
    fn waiting(&self, interest: HostInterest) -> Waiting<'_> {
        Waiting::new(&self.engine, WaitOn::Tcp(self.id, interest))
    }

    async fn wait_for(&self, interest: HostInterest) -> io::Result<()> {
        let mut waiting = self.waiting(interest);
        poll_fn(|cx| self.poll_host(cx, interest, waiting.key())).await
    }

    /// Ready when the host says so; else the waker is registered there.
    fn poll_host(
        &self,
        cx: &mut Context<'_>,
        interest: HostInterest,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<()>> {
        let coop = ready!(poll_proceed(cx));
        let ready = self.engine.op(|host, now| {
            host.tcp_ready(now, self.id, interest, waiter(cx, &mut key))
                .map_err(io_error)
        })?;
        if ready {
            coop.made_progress();
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// One step of a call on the host that may have to wait, as a poll.
    #[inline]
    fn poll_op<R>(
        &self,
        cx: &mut Context<'_>,
        interest: HostInterest,
        prompt: bool,
        step: impl FnMut(&mut Host, Instant) -> Result<R, StackError>,
    ) -> Poll<io::Result<R>> {
        self.poll_op_as(cx, None, interest, prompt, step)
    }

    /// The future of a call on the host that may have to wait.
    async fn op<R>(
        &self,
        interest: HostInterest,
        mut step: impl FnMut(&mut Host, Instant) -> Result<R, StackError>,
    ) -> io::Result<R> {
        let mut waiting = self.waiting(interest);
        poll_fn(|cx| self.poll_op_as(cx, waiting.key(), interest, false, &mut step)).await
    }

    /// [`poll_op`](Self::poll_op) of a future, or without a key of a caller that polls.
    fn poll_op_as<R>(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
        interest: HostInterest,
        prompt: bool,
        mut step: impl FnMut(&mut Host, Instant) -> Result<R, StackError>,
    ) -> Poll<io::Result<R>> {
        let coop = ready!(poll_proceed(cx));
        let call = |host: &mut Host, now: Instant| loop {
            match step(host, now) {
                Ok(done) => return Ok(Poll::Ready(done)),
                Err(StackError::Tcp(TcpError::WouldBlock)) => {
                    let ready = host
                        .tcp_ready(now, self.id, interest, waiter(cx, &mut key))
                        .map_err(io_error)?;
                    if !ready {
                        return Ok(Poll::Pending);
                    }
                }
                Err(error) => return Err(io_error(error)),
            }
        };
        match self.engine.run_timeless(prompt, call) {
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
        self.turn.begin();
        self.prompt.store(true, Ordering::Relaxed);
        let id = self.id;
        // Memory that nobody has written to yet is filled from the received slices: to zero it
        // first, for the copying read, would touch all of it.
        if buf.initialized().len() < buf.capacity() {
            return self.poll_op(cx, HostInterest::Read, false, |host, now| {
                let chain = host.tcp_read_chain(now, id, buf.remaining())?;
                chain.slices().iter().for_each(|s| buf.put_slice(s));
                Ok(())
            });
        }
        self.poll_op(cx, HostInterest::Read, false, |host, now| {
            let n = host.tcp_read(now, id, buf.initialize_unfilled())?;
            buf.advance(n);
            Ok(())
        })
    }

    /// Reads what is there now into `buf`; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing now.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.prompt.store(true, Ordering::Relaxed);
        self.engine
            .op(|host, now| host.tcp_read(now, self.id, buf).map_err(io_error))
    }

    /// Reads without copying: the next piece of what was received, at most `max` bytes; `None` at
    /// the end of the stream.
    ///
    /// The memory behind it is the stack's and counts as used until the `Bytes` is dropped.
    pub async fn read_chunk(&self, max: usize) -> io::Result<Option<Bytes>> {
        let mut waiting = self.waiting(HostInterest::Read);
        poll_fn(|cx| self.poll_read_chunk_as(cx, waiting.key(), max)).await
    }

    /// [`read_chunk`](Self::read_chunk) as a poll. Only the task that polled last is woken.
    pub fn poll_read_chunk(
        &self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<Option<Bytes>>> {
        self.poll_read_chunk_as(cx, None, max)
    }

    fn poll_read_chunk_as(
        &self,
        cx: &mut Context<'_>,
        key: Option<&mut WaitKey>,
        max: usize,
    ) -> Poll<io::Result<Option<Bytes>>> {
        self.prompt.store(true, Ordering::Relaxed);
        let read = |host: &mut Host, now| host.tcp_read_slice(now, self.id, max);
        let slice = ready!(self.poll_op_as(cx, key, HostInterest::Read, false, read))?;
        Poll::Ready(Ok((!slice.is_empty()).then(|| slice.into_bytes())))
    }

    /// Waits for data and copies it, leaving it to be read.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.op(HostInterest::Read, |host, _| host.tcp_peek(self.id, buf))
            .await
    }

    // --- writing ---

    #[inline]
    fn take_prompt(&self) -> bool {
        // Only a hint: a race of two writers costs nothing but a batch.
        let prompt = self.prompt.load(Ordering::Relaxed);
        if prompt {
            self.prompt.store(false, Ordering::Relaxed);
        }
        prompt
    }

    /// A write that copies, within its task's turn.
    #[inline]
    fn poll_copy(
        &self,
        cx: &mut Context<'_>,
        step: impl FnMut(&mut Host, Instant) -> Result<usize, StackError>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.turn.poll_go_on(cx));
        let write = self.poll_op(cx, HostInterest::Write, self.take_prompt(), step);
        self.turn.count(&write);
        write
    }

    pub(crate) fn poll_write_inner(
        &self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_copy(cx, |host, now| host.tcp_write(now, self.id, data, false))
    }

    pub(crate) fn poll_write_vectored_inner(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_copy(cx, |host, now| write_vectored(host, now, self.id, bufs))
    }

    /// Writes as much of `data` as there is room for now.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let write =
            |host: &mut Host, now| host.tcp_write(now, self.id, data, false).map_err(io_error);
        self.engine.run_timeless(self.take_prompt(), write)
    }

    /// The same from several buffers.
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let write =
            |host: &mut Host, now| write_vectored(host, now, self.id, bufs).map_err(io_error);
        self.engine.run_timeless(self.take_prompt(), write)
    }

    /// Writes as much of `data` as there is room for, and says that more follows at once
    /// (`MSG_MORE`): what does not fill a segment waits for the next write, 200 ms at most.
    ///
    /// # Errors
    /// As those of a write.
    pub async fn write_more(&self, data: &[u8]) -> io::Result<usize> {
        let write = |host: &mut Host, now| host.tcp_write(now, self.id, data, true);
        self.op(HostInterest::Write, write).await
    }

    /// Writes all of `data` without copying it: the stack holds on to it until it is acknowledged.
    ///
    /// When dropped before its end, a part may have been written.
    pub async fn write_bytes(&self, mut data: Bytes) -> io::Result<()> {
        while data.has_remaining() {
            let piece = data.split_to(data.len().min(LEND_MAX));
            let mut slice = Some(Slice::from(piece));
            let mut waiting = self.waiting(HostInterest::Write);
            poll_fn(|cx| self.poll_write_slice(cx, waiting.key(), &mut slice)).await?;
        }
        Ok(())
    }

    /// Queues as much of the slice as there is room for, and leaves the rest where it is.
    fn poll_write_slice(
        &self,
        cx: &mut Context<'_>,
        key: Option<&mut WaitKey>,
        slice: &mut Option<Slice>,
    ) -> Poll<io::Result<()>> {
        let prompt = self.take_prompt();
        self.poll_op_as(cx, key, HostInterest::Write, prompt, |host, now| {
            let Some(data) = slice.take() else {
                return Ok(());
            };
            host.tcp_write_slice(now, self.id, data)
                .map_err(|(error, rest)| {
                    *slice = Some(rest);
                    error
                })
        })
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.engine
            .op(|host, now| host.tcp_shutdown_write(now, self.id).map_err(io_error))
    }

    /// Says that nothing more will be read (`SHUT_RD`): reads give the end of the stream.
    pub fn shutdown_read(&self) -> io::Result<()> {
        self.engine
            .op(|host, now| host.tcp_shutdown_read(now, self.id).map_err(io_error))
    }

    /// Waits until all that was written (and the FIN, after `shutdown`) is acknowledged.
    ///
    /// # Errors
    /// The connection's error, if it ended before.
    pub async fn flushed(&self) -> io::Result<()> {
        let mut waiting = Waiting::new(&self.engine, WaitOn::Flush(self.id));
        poll_fn(|cx| {
            let mut key = waiting.key();
            let waiter = waiter(cx, &mut key);
            let done = self
                .engine
                .op(|host, _| host.tcp_flushed(self.id, waiter).map_err(io_error))?;
            if done {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Resets the connection (RFC 9293 3.10.5): what is not delivered is lost, and the peer sees
    /// `ConnectionReset`.
    pub fn abort(self) {
        let _ = self.engine.op(|host, now| {
            host.tcp_abort(now, self.id);
            Ok(())
        });
    }

    // --- readiness ---

    /// Waits until a read gives something: data, the end, or an error.
    pub async fn readable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Read).await
    }

    /// Waits until there is room to write, in `poll(2)`'s sense: a third of the send buffer free
    /// and less than half of `TCP_NOTSENT_LOWAT` unsent.
    pub async fn writable(&self) -> io::Result<()> {
        self.wait_for(HostInterest::Write).await
    }

    /// Waits for any of `interest`.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let [mut reading, mut writing] =
            [HostInterest::Read, HostInterest::Write].map(|what| self.waiting(what));
        poll_fn(|cx| {
            let mut ready = Ready::EMPTY;
            let mut is_ready = |what, key: Option<&mut WaitKey>| -> io::Result<bool> {
                Ok(self.poll_host(cx, what, key)?.is_ready())
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
                Poll::Ready(Ok(ready))
            }
        })
        .await
    }

    /// [`readable`](Self::readable) as a poll. Only the task that polled last is woken.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_host(cx, HostInterest::Read, None)
    }

    /// [`writable`](Self::writable) as a poll. Only the task that polled last is woken.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_host(cx, HostInterest::Write, None)
    }
}

/// Writes the buffers as if they were one.
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
        match host.tcp_write(now, id, buf, i < last) {
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
        // Fails only when the whole stack has gone.
        let _ = self.engine.op(|host, now| {
            host.tcp_close(now, self.id);
            Ok(())
        });
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
