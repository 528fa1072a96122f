//! Writing to a connection, and waiting for the acknowledgement of what was written.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use fullsend_offload::Slice;
use fullsend_stack::{Host, Interest as HostInterest, StackError, TcpId, WaitKey, WaitOn};
use fullsend_wire::Instant;

use super::TcpStream;
use crate::error::io_error;
use crate::wait_registration::{WaitRegistration, waiter};

/// Most bytes of caller-owned memory queued at once; more waits for room in the send buffer.
const MAX_LENT_BYTES: usize = 256 << 10;

impl TcpStream {
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
        self.poll_counted_write(cx, data)
    }

    /// Polls a write that counts as an operation. It is not inlined, as the compiler inlines
    /// [`poll_write_inner`](Self::poll_write_inner) into each future that writes.
    #[inline(never)]
    fn poll_counted_write(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let write =
            self.poll_copying_write(cx, |host, now| host.tcp(self.id).write(now, data, false));
        if let Poll::Ready(Ok(n)) = write {
            self.sticky
                .record_transfer(HostInterest::Write, n, data.len());
        }
        write
    }

    pub(crate) fn poll_write_vectored_inner(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_copying_write(cx, |host, now| write_vectored(host, now, self.id, bufs))
    }

    /// Writes the first bytes of `data`, up to the room of the send buffer. Returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; `BrokenPipe` after a shutdown or the end of the
    /// connection; the connection's or the stack's error.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let write =
            |host: &mut Host, now| host.tcp(self.id).write(now, data, false).map_err(io_error);
        let written = self
            .engine
            .run_with_lazy_clock(self.take_flush_now(), write);
        self.sticky.record(HostInterest::Write, written)
    }

    /// Writes as many bytes of `bufs`, in order, as the send buffer has room for. Returns their
    /// number.
    ///
    /// # Errors
    /// The errors of [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let write =
            |host: &mut Host, now| write_vectored(host, now, self.id, bufs).map_err(io_error);
        let written = self
            .engine
            .run_with_lazy_clock(self.take_flush_now(), write);
        self.sticky.record(HostInterest::Write, written)
    }

    /// Writes the first bytes of `data`, up to the room of the send buffer, with `MSG_MORE`: a partial
    /// segment waits for the next write, for 200 ms at most. Waits while the send buffer is full, and
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
    /// The errors of [`write_more`](Self::write_more).
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
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.engine
            .op(|host, now| host.tcp(self.id).shutdown_write(now).map_err(io_error))
    }

    /// Shuts the read direction down (`SHUT_RD`): later reads return the end of the stream.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
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
