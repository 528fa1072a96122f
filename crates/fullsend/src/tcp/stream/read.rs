//! Reading from a connection.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fullsend_stack::{Host, Interest as HostInterest, WaitKey};
use tokio::io::ReadBuf;

use super::TcpStream;
use crate::error::io_error;

impl TcpStream {
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
        if buf.initialized().len() < buf.capacity() {
            return self.poll_read_uninitialized(cx, buf);
        }
        let room = buf.remaining();
        let read = self.poll_op(cx, HostInterest::Read, false, |host, now| {
            let n = host.tcp(id).read(now, buf.initialize_unfilled())?;
            buf.advance(n);
            Ok(n)
        });
        self.after_read(read, room)
    }

    fn after_read(&self, read: Poll<io::Result<usize>>, room: usize) -> Poll<io::Result<()>> {
        read.map_ok(|n| self.sticky.record_transfer(HostInterest::Read, n, room))
    }

    /// Polls a read into a buffer with uninitialized memory. Received slices are appended to it
    /// directly: the copying read would need it zeroed first, which writes all of it.
    #[inline(never)]
    fn poll_read_uninitialized(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        let read = self.poll_op(cx, HostInterest::Read, false, |host, now| {
            let chain = host.tcp(self.id).read_chain(now, room)?;
            chain.slices().iter().for_each(|s| buf.put_slice(s));
            Ok(chain.len())
        });
        self.after_read(read, room)
    }

    /// Reads received data into `buf` without waiting. Returns the number of bytes, and 0 at the
    /// end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if no data has been received, or the connection's error.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.flush_now.store(true, Ordering::Relaxed);
        let read = self
            .engine
            .op(|host, now| host.tcp(self.id).read(now, buf).map_err(io_error));
        self.sticky.record(HostInterest::Read, read)
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
    /// The errors of [`read_chunk`](Self::read_chunk).
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
    /// The errors of [`read_chunk`](Self::read_chunk).
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.op(HostInterest::Read, |host, _| host.tcp(self.id).peek(buf))
            .await
    }
}
