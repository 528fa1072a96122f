//! Calls that do not wait, and calls that wait until these succeed.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll};

use bytes::BufMut;
use fullsend_stack::{Host, Interest as HostInterest, StackError, TcpId};
use fullsend_tcp::State;
use fullsend_wire::Instant;
use tokio::io::{Interest, ReadBuf, Ready};

use crate::error::{io_error, would_block};
use crate::readiness::call_when_ready;
use crate::tcp::TcpStream;

impl TcpStream {
    /// Polls [`peek`](Self::peek): appends received data to `buf` without removing it from the
    /// stream, and returns the number of bytes; 0 at the end of the stream. Only the task that polled
    /// last is woken.
    ///
    /// # Errors
    /// The errors of [`read_chunk`](Self::read_chunk).
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        self.poll_op(cx, HostInterest::Read, false, |host, _| {
            let n = host.tcp(self.id).peek(buf.initialize_unfilled())?;
            buf.advance(n);
            Ok(n)
        })
    }

    /// Reads received data into the buffers, in order, without waiting. Returns the number of bytes,
    /// and 0 at the end of the stream.
    ///
    /// # Errors
    /// The errors of [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.mark_read();
        let read = self
            .engine
            .op(|host, now| read_vectored(host, now, self.id, bufs).map_err(io_error));
        self.sticky.record(HostInterest::Read, read)
    }

    /// Reads received data without waiting and appends it to `buf`: at most the bytes that `buf` has
    /// room for without being enlarged. Returns their number, and 0 at the end of the stream.
    ///
    /// # Errors
    /// The errors of [`try_read`](Self::try_read).
    pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        let room = buf.chunk_mut().len();
        if room == 0 {
            return Ok(0);
        }
        let data = self.try_read_chain(room)?;
        data.slices().iter().for_each(|slice| buf.put_slice(slice));
        Ok(data.len())
    }

    /// Calls `f` if the stream is ready for `interest`, and returns its result. `f` uses the `try_`
    /// methods of this stream.
    ///
    /// # Errors
    /// `WouldBlock` if the stream is not ready; those of `f`; the stack's error if it has stopped
    /// ([`Stack::closed`](crate::Stack::closed)).
    pub fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        if self.ready_now(interest)?.is_empty() {
            return Err(would_block());
        }
        self.sticky.record_call(interest, f())
    }

    /// Waits until the stream is ready for `interest` and calls `f`, again if it returns
    /// `WouldBlock`. `f` uses the `try_` methods of this stream.
    ///
    /// # Errors
    /// The errors of `f` except for `WouldBlock`, and those of [`ready`](Self::ready).
    pub async fn async_io<R>(
        &self,
        interest: Interest,
        mut f: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let call = || self.sticky.record_call(interest, f());
        let now = || self.ready_now(interest);
        call_when_ready(interest, |interest| self.ready(interest), now, call).await
    }

    /// Returns for which of `interest` the stream is ready, and which directions have ended.
    pub(super) fn ready_now(&self, interest: Interest) -> io::Result<Ready> {
        let readiness = self
            .engine
            .op(|host, _| host.tcp(self.id).readiness().map_err(io_error))?;
        let closed = readiness.state == State::Closed;
        let ended = readiness.fin_received || closed;
        let has_error = readiness.error.is_some();
        let mut ready = Ready::EMPTY;
        let mut set = |flag, on| {
            if on {
                ready |= flag;
            }
        };
        if interest.is_readable() {
            let readable = readiness.reaches_rcvlowat || ended || has_error;
            let readable = readable || self.sticky.is_set(HostInterest::Read);
            set(Ready::READABLE, readable);
            set(Ready::READ_CLOSED, ended);
        }
        if interest.is_writable() {
            let writable = readiness.writable || self.sticky.is_set(HostInterest::Write);
            set(Ready::WRITABLE, writable);
            set(Ready::WRITE_CLOSED, closed);
        }
        set(Ready::ERROR, interest.is_error() && has_error);
        Ok(ready)
    }
}

/// Reads into the buffers in order. Returns an error only if nothing was read.
fn read_vectored(
    host: &mut Host,
    now: Instant,
    id: TcpId,
    bufs: &mut [IoSliceMut<'_>],
) -> Result<usize, StackError> {
    let mut done = 0;
    for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
        match host.tcp(id).read(now, buf) {
            Ok(n) => {
                done += n;
                if n < buf.len() {
                    break;
                }
            }
            // The next call returns the error.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
