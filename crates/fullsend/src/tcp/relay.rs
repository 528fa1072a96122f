//! Moving data between a stream and another socket without copying it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::Ordering;
use std::task::Poll;

use fullsend_offload::{Chain, Slice};
use fullsend_stack::{Host, Interest as HostInterest, StackError, WaitOn};
use fullsend_tcp::TcpError;
use fullsend_wire::Instant;

use crate::error::io_error;
use crate::tcp::TcpStream;
use crate::wait_registration::{WaitRegistration, waiter};

impl TcpStream {
    /// Waits for received data and returns it without copying it: at most `max` bytes, or an empty
    /// chain at the end of the stream. A relay passes its slices to `writev(2)`.
    ///
    /// The chain refers to the stack's memory, which is freed when it is dropped. Its bytes no longer
    /// count against the receive window, nor against `tcp_mem`: the application bounds what it holds.
    ///
    /// # Errors
    /// The errors of [`read_chunk`](Self::read_chunk).
    pub async fn read_chain(&self, max: usize) -> io::Result<Chain> {
        self.mark_read();
        self.op(HostInterest::Read, |host, now| {
            host.tcp(self.id).read_chain(now, max)
        })
        .await
    }

    /// Returns received data as [`read_chain`](Self::read_chain) does, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if no data has been received, or the connection's error.
    pub fn try_read_chain(&self, max: usize) -> io::Result<Chain> {
        self.mark_read();
        let read = self
            .engine
            .op(|host, now| host.tcp(self.id).read_chain(now, max).map_err(io_error));
        self.sticky.record(HostInterest::Read, read)
    }

    /// Writes data that is in memory of the stack's [pool](crate::Stack::pool) without copying it, and
    /// removes the accepted bytes from the front of `data`. Waits until at least one byte is accepted.
    /// Returns the number of bytes accepted.
    ///
    /// Cancel safe: `data` holds the rest if the future is dropped.
    ///
    /// # Errors
    /// The errors of [`write_more`](Self::write_more).
    pub async fn write_slices(&self, data: &mut VecDeque<Slice>) -> io::Result<usize> {
        self.op(HostInterest::Write, |host, now| {
            write_slices(host, now, self, data)
        })
        .await
    }

    /// Writes data as [`write_slices`](Self::write_slices) does, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; the errors of [`write_slices`](Self::write_slices).
    pub fn try_write_slices(&self, data: &mut VecDeque<Slice>) -> io::Result<usize> {
        let write = |host: &mut Host, now| write_slices(host, now, self, data).map_err(io_error);
        let written = self.engine.run_with_lazy_clock(true, write);
        self.sticky.record(HostInterest::Write, written)
    }

    /// Waits until the connection has ended: by a RST, a timeout, or the FINs of both sides.
    /// Received data and the error can still be read.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn closed(&self) -> io::Result<()> {
        let mut wait_registration = WaitRegistration::new(&self.engine, WaitOn::Flush(self.id));
        poll_fn(|cx| {
            let mut key = wait_registration.key();
            let waiter = waiter(cx, &mut key);
            let closed = self
                .engine
                .op(|host, _| host.tcp(self.id).poll_closed(waiter).map_err(io_error))?;
            if closed {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    pub(super) fn mark_read(&self) {
        self.flush_now.store(true, Ordering::Relaxed);
    }
}

fn write_slices(
    host: &mut Host,
    now: Instant,
    stream: &TcpStream,
    data: &mut VecDeque<Slice>,
) -> Result<usize, StackError> {
    let mut written = 0;
    while let Some(slice) = data.pop_front() {
        let len = slice.len();
        let more = !data.is_empty();
        match host.tcp(stream.id).write_slice_with(now, slice, more) {
            Ok(()) => written += len,
            Err((error, rest)) => {
                written += len - rest.len();
                data.push_front(rest);
                let is_full = matches!(error, StackError::Tcp(TcpError::WouldBlock));
                return if is_full && written > 0 {
                    Ok(written)
                } else {
                    Err(error)
                };
            }
        }
    }
    Ok(written)
}
