//! Reading, writing and closing.

use fullsend_offload::{Chain, Slice};
use fullsend_tcp::{AppendOutcome, Connection, WriteFlags};
use fullsend_wire::{Instant, cold_path};

use super::TcpHandle;
use crate::StackError;
use crate::tcp::socket::{ConnectionOwner, SocketEntry};

impl TcpHandle<'_> {
    /// Copies `data` to the send buffer and returns the number of bytes accepted. `more` is
    /// `MSG_MORE`.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection, and the connection's
    /// own errors.
    #[inline]
    pub fn write(&mut self, now: Instant, data: &[u8], more: bool) -> Result<usize, StackError> {
        let (index, socket, wheel) = self.host.tcp.user_conn(self.id)?;
        let appended = if more {
            AppendOutcome::NotAppended
        } else {
            socket.conn.try_append(&self.host.env.sysctl, data)
        };
        if appended == AppendOutcome::Queued {
            return Ok(data.len());
        }
        let mut written = data.len();
        if appended == AppendOutcome::NotAppended {
            let mut cx = self.host.env.cx(now, &socket.path, socket.conn.ts_offset());
            written = match socket.conn.write(&mut cx, data, more) {
                Ok(written) => written,
                Err(error) => {
                    cold_path();
                    return Err(error.into());
                }
            };
        }
        let ready_iface = socket.post_process_transfer(index, wheel);
        self.host.push_ready(index, ready_iface);
        Ok(written)
    }

    /// Appends a copy of `data` to a super-segment that waits already: a fast path of
    /// [`write`](Self::write), which is needed if the result is `NotAppended`. Only with `Sendable`
    /// is there something to transmit.
    #[inline]
    pub fn try_append(&mut self, data: &[u8]) -> AppendOutcome {
        let Ok((index, socket, wheel)) = self.host.tcp.user_conn(self.id) else {
            return AppendOutcome::NotAppended;
        };
        let appended = socket.conn.try_append(&self.host.env.sysctl, data);
        if appended == AppendOutcome::Sendable {
            let ready_iface = socket.post_process_transfer(index, wheel);
            self.host.push_ready(index, ready_iface);
        }
        appended
    }

    /// Writes with `MSG_EOR` or `MSG_OOB`; see [`write`](Self::write).
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub fn write_with(
        &mut self,
        now: Instant,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, StackError> {
        self.transfer(now, |conn, cx| conn.write_with(cx, data, flags))
    }

    /// Writes `data` without copying it.
    ///
    /// # Errors
    /// As for [`write`](Self::write). The part of `data` that was not accepted is returned
    /// with the error.
    pub fn write_slice(&mut self, now: Instant, data: Slice) -> Result<(), (StackError, Slice)> {
        self.write_slice_with(now, data, false)
    }

    /// Writes `data` without copying it; `more` is `MSG_MORE`.
    ///
    /// # Errors
    /// The errors of [`write_slice`](Self::write_slice).
    pub fn write_slice_with(
        &mut self,
        now: Instant,
        data: Slice,
        more: bool,
    ) -> Result<(), (StackError, Slice)> {
        let (index, socket, wheel) = match self.host.tcp.user_conn(self.id) {
            Ok(found) => found,
            Err(error) => return Err((error, data)),
        };
        let mut cx = self.host.env.cx(now, &socket.path, socket.conn.ts_offset());
        let result = socket.conn.write_slice(&mut cx, data, more);
        let ready_iface = socket.post_process_transfer(index, wheel);
        self.host.push_ready(index, ready_iface);
        result.map_err(|(error, data)| (error.into(), data))
    }

    /// Reads into `out` and returns the number of bytes; 0 means the end of the stream.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection, and the connection's
    /// own errors.
    #[inline]
    pub fn read(&mut self, now: Instant, out: &mut [u8]) -> Result<usize, StackError> {
        self.transfer(now, |conn, cx| conn.read(cx, out))
    }

    /// Reads up to `max` bytes without copying them.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_chain(&mut self, now: Instant, max: usize) -> Result<Chain, StackError> {
        self.transfer(now, |conn, cx| conn.read_chain(cx, max))
    }

    /// Reads up to `max` bytes of one contiguous piece of memory without copying them; an empty
    /// slice means the end of the stream.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_slice(&mut self, now: Instant, max: usize) -> Result<Slice, StackError> {
        self.transfer(now, |conn, cx| conn.read_slice(cx, max))
    }

    /// Copies data to `out` and leaves it in the receive buffer. Returns the number of bytes.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn peek(&mut self, out: &mut [u8]) -> Result<usize, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.peek(out)?)
    }

    /// Closes the write side: a FIN is sent after the queued data.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn shutdown_write(&mut self, now: Instant) -> Result<(), StackError> {
        self.with_conn(now, Connection::shutdown_write)
    }

    /// Closes the read side.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn shutdown_read(&mut self, now: Instant) -> Result<(), StackError> {
        self.with_conn(now, Connection::shutdown_read)
    }

    /// Closes the connection, which finishes by itself. The ID is no longer valid.
    pub fn close(self, now: Instant) {
        self.release(now, false);
    }

    /// Resets the connection. The ID is no longer valid.
    pub fn abort(self, now: Instant) {
        self.release(now, true);
    }

    fn release(self, now: Instant, abort: bool) {
        match self.host.tcp.table.by_id(self.id.0) {
            Some((index, SocketEntry::Conn(socket))) if socket.owner == ConnectionOwner::User => {
                self.host.orphan(now, index, abort);
            }
            Some((index, SocketEntry::DeferredSyn(_))) => self.host.reject_deferred_syn(now, index),
            _ => {}
        }
    }
}
