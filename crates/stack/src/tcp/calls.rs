//! The calls of applications on a connection.

use alloc::vec::Vec;
use core::net::SocketAddr;

use fullsend_buf::{Chain, Slice};
use fullsend_tcp::congestion::CcInfo;
use fullsend_tcp::{AppendOutcome, Connection, Cx, FlowReport, State, TcpError, TcpInfo};
use fullsend_units::Instant;

use super::socket::{ConnectionOwner, Socket, SocketEntry};
use super::{Tcp, TcpId};
use crate::timer::TimerWheel;
use crate::waiters::{WaitEvent, Waiter};
use crate::{Host, StackError};

/// The kind of readiness to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Data to read, or a connection to accept.
    Read,
    /// Space in the send buffer, or the result of a connect.
    Write,
}

impl Tcp {
    /// Returns the connection of an application's handle, and the timer wheel. Where there are many
    /// flows, prefetches the connection.
    #[inline]
    pub(crate) fn user_conn(
        &mut self,
        id: TcpId,
    ) -> Result<(u32, &mut Socket, &mut TimerWheel), StackError> {
        let many = self.flows.is_large();
        match self.table.by_id(id.0) {
            Some((index, SocketEntry::Conn(socket))) if socket.owner == ConnectionOwner::User => {
                if many {
                    socket.prefetch();
                }
                Ok((index, socket, &mut self.wheel))
            }
            // A deferred SYN has no connection before it is accepted.
            Some((_, SocketEntry::DeferredSyn(_))) => Err(TcpError::NotConnected.into()),
            _ => Err(StackError::NoSuchSocket),
        }
    }
}

impl Host {
    /// Returns the connection of an application's handle, with its context.
    #[inline]
    pub(super) fn user_socket(
        &mut self,
        now: Instant,
        id: TcpId,
    ) -> Result<(u32, &mut Socket, Cx<'_>), StackError> {
        let (index, socket, _) = self.tcp.user_conn(id)?;
        let cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        Ok((index, socket, cx))
    }

    fn peek_socket(&self, id: TcpId) -> Result<&SocketEntry, StackError> {
        match self.tcp.table.peek(id.0) {
            Some(SocketEntry::Conn(socket)) if socket.owner != ConnectionOwner::User => {
                Err(StackError::NoSuchSocket)
            }
            Some(SocketEntry::HalfOpen(_)) | None => Err(StackError::NoSuchSocket),
            Some(entry) => Ok(entry),
        }
    }

    /// Runs `call` on a connection and applies its effects.
    pub(super) fn with_conn<R>(
        &mut self,
        now: Instant,
        id: TcpId,
        call: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R,
    ) -> Result<R, StackError> {
        let (index, socket, mut cx) = self.user_socket(now, id)?;
        let result = call(&mut socket.conn, &mut cx);
        self.post_process(now, index);
        Ok(result)
    }

    /// Runs a read or a write, which has fewer effects to apply than other calls.
    #[inline(always)]
    pub(super) fn transfer<R>(
        &mut self,
        now: Instant,
        id: TcpId,
        call: impl FnOnce(&mut Connection, &mut Cx<'_>) -> Result<R, TcpError>,
    ) -> Result<R, StackError> {
        let (index, socket, wheel) = self.tcp.user_conn(id)?;
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        let result = call(&mut socket.conn, &mut cx)?;
        let ready_iface = socket.post_process_transfer(index, wheel);
        self.push_ready(index, ready_iface);
        Ok(result)
    }

    /// Returns the state of the connection.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_state(&self, id: TcpId) -> Result<State, StackError> {
        self.peek_socket(id).map(|entry| match entry {
            SocketEntry::Conn(socket) => socket.conn.state(),
            SocketEntry::DeferredSyn(_) | SocketEntry::HalfOpen(_) => State::SynReceived,
        })
    }

    /// Returns the local and the remote address.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_addrs(&self, id: TcpId) -> Result<(SocketAddr, SocketAddr), StackError> {
        let key = self.peek_socket(id)?.key();
        Ok((key.local_addr(), key.remote_addr()))
    }

    /// Copies `data` to the send buffer and returns the number of bytes accepted. `more` is
    /// `MSG_MORE`.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid, and the connection's
    /// own errors.
    #[inline]
    pub fn tcp_write(
        &mut self,
        now: Instant,
        id: TcpId,
        data: &[u8],
        more: bool,
    ) -> Result<usize, StackError> {
        let (index, socket, wheel) = self.tcp.user_conn(id)?;
        let appended = if more {
            AppendOutcome::NotAppended
        } else {
            socket.conn.try_append(&self.env.sysctl, data)
        };
        if appended == AppendOutcome::Queued {
            return Ok(data.len());
        }
        let mut written = data.len();
        if appended == AppendOutcome::NotAppended {
            let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
            written = socket.conn.write(&mut cx, data, more)?;
        }
        let ready_iface = socket.post_process_transfer(index, wheel);
        self.push_ready(index, ready_iface);
        Ok(written)
    }

    /// Writes `data` without copying it.
    ///
    /// # Errors
    /// As for [`tcp_write`](Self::tcp_write). The part of `data` that was not accepted is returned
    /// with the error.
    pub fn tcp_write_slice(
        &mut self,
        now: Instant,
        id: TcpId,
        data: Slice,
    ) -> Result<(), (StackError, Slice)> {
        self.tcp_write_slice_with(now, id, data, false)
    }

    /// Writes `data` without copying it; `more` is `MSG_MORE`.
    ///
    /// # Errors
    /// Those of [`tcp_write_slice`](Self::tcp_write_slice).
    pub fn tcp_write_slice_with(
        &mut self,
        now: Instant,
        id: TcpId,
        data: Slice,
        more: bool,
    ) -> Result<(), (StackError, Slice)> {
        let (index, socket, wheel) = match self.tcp.user_conn(id) {
            Ok(found) => found,
            Err(error) => return Err((error, data)),
        };
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        let result = socket.conn.write_slice(&mut cx, data, more);
        let ready_iface = socket.post_process_transfer(index, wheel);
        self.push_ready(index, ready_iface);
        result.map_err(|(error, data)| (error.into(), data))
    }

    /// Reads into `out` and returns the number of bytes; 0 means the end of the stream.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid, and the connection's
    /// own errors.
    #[inline]
    pub fn tcp_read(
        &mut self,
        now: Instant,
        id: TcpId,
        out: &mut [u8],
    ) -> Result<usize, StackError> {
        self.transfer(now, id, |conn, cx| conn.read(cx, out))
    }

    /// Reads up to `max` bytes without copying them.
    ///
    /// # Errors
    /// Those of [`tcp_read`](Self::tcp_read).
    pub fn tcp_read_chain(
        &mut self,
        now: Instant,
        id: TcpId,
        max: usize,
    ) -> Result<Chain, StackError> {
        self.transfer(now, id, |conn, cx| conn.read_chain(cx, max))
    }

    /// Reads up to `max` bytes of one contiguous piece of memory without copying them; an empty
    /// slice means the end of the stream.
    ///
    /// # Errors
    /// Those of [`tcp_read`](Self::tcp_read).
    pub fn tcp_read_slice(
        &mut self,
        now: Instant,
        id: TcpId,
        max: usize,
    ) -> Result<Slice, StackError> {
        self.transfer(now, id, |conn, cx| conn.read_slice(cx, max))
    }

    /// Copies data to `out` and leaves it in the receive buffer. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of [`tcp_read`](Self::tcp_read).
    pub fn tcp_peek(&mut self, id: TcpId, out: &mut [u8]) -> Result<usize, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.peek(out)?)
    }

    /// Returns whether the connection is ready now. If not, `waiter` is woken once when it becomes
    /// ready.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_poll_ready<'a>(
        &mut self,
        now: Instant,
        id: TcpId,
        interest: Interest,
        waiter: impl Into<Waiter<'a>>,
    ) -> Result<bool, StackError> {
        let (_, socket, _) = self.tcp.user_conn(id)?;
        let (ready, event) = match interest {
            Interest::Read => (socket.conn.poll_readable(), WaitEvent::Read),
            Interest::Write => {
                let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                (socket.conn.poll_writable(&mut cx), WaitEvent::Write)
            }
        };
        if !ready {
            let waiter = waiter.into();
            socket
                .waiters
                .register(event, waiter, &mut self.replaced_wakers);
        }
        Ok(ready)
    }

    /// Closes the write side: a FIN is sent after the queued data.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_shutdown_write(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        self.with_conn(now, id, Connection::shutdown_write)
    }

    /// Closes the read side.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_shutdown_read(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        self.with_conn(now, id, Connection::shutdown_read)
    }

    /// Returns whether all written data (and the FIN, if the write side is closed) is acknowledged.
    /// If not, `waiter` is woken once when it is.
    ///
    /// # Errors
    /// The connection's error if it was closed before all data was acknowledged;
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_poll_flushed<'a>(
        &mut self,
        id: TcpId,
        waiter: impl Into<Waiter<'a>>,
    ) -> Result<bool, StackError> {
        let (_, socket, _) = self.tcp.user_conn(id)?;
        if socket.conn.is_flushed() {
            return Ok(true);
        }
        if socket.conn.state() == State::Closed {
            let error = socket.conn.take_error();
            return Err(error.unwrap_or(TcpError::BrokenPipe).into());
        }
        let waiter = waiter.into();
        socket
            .waiters
            .register(WaitEvent::Flush, waiter, &mut self.replaced_wakers);
        Ok(false)
    }

    /// Closes the connection, which finishes by itself. The handle is no longer valid.
    pub fn tcp_close(&mut self, now: Instant, id: TcpId) {
        self.release_handle(now, id, false);
    }

    /// Resets the connection. The handle is no longer valid.
    pub fn tcp_abort(&mut self, now: Instant, id: TcpId) {
        self.release_handle(now, id, true);
    }

    fn release_handle(&mut self, now: Instant, id: TcpId, abort: bool) {
        match self.tcp.table.by_id(id.0) {
            Some((index, SocketEntry::Conn(socket))) if socket.owner == ConnectionOwner::User => {
                self.orphan(now, index, abort);
            }
            Some((index, SocketEntry::DeferredSyn(_))) => self.reject_deferred_syn(now, index),
            _ => {}
        }
    }

    /// Sets the congestion control by name (`TCP_CONGESTION`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid, and the connection's
    /// error if it cannot use that congestion control.
    pub fn tcp_set_congestion(
        &mut self,
        now: Instant,
        id: TcpId,
        name: &str,
    ) -> Result<(), StackError> {
        Ok(self.with_conn(now, id, |conn, cx| conn.set_congestion(cx, name))??)
    }

    /// Returns the name and the internal state of the congestion control (`TCP_CC_INFO`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_cc_info(&mut self, id: TcpId) -> Result<(&'static str, CcInfo), StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok((socket.conn.congestion(), socket.conn.cc_info()))
    }

    /// Takes the pending error (`SO_ERROR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_take_error(&mut self, id: TcpId) -> Result<Option<TcpError>, StackError> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.take_error())
    }

    /// Returns the number of entries in the socket table: connections, half-open ones and orphans
    /// included, but not those in TIME-WAIT.
    pub fn tcp_socket_count(&self) -> usize {
        self.tcp.table.len()
    }

    /// Returns the number of connections in TIME-WAIT.
    pub fn tcp_time_wait_count(&self) -> usize {
        self.tcp.time_wait.len()
    }

    /// Returns the number of connections with data or a FIN that is not acknowledged yet.
    pub fn tcp_unflushed_count(&self) -> usize {
        let unflushed = |entry: &SocketEntry| match entry {
            SocketEntry::Conn(socket) => {
                socket.conn.state() != State::Closed && !socket.conn.is_flushed()
            }
            SocketEntry::DeferredSyn(_) | SocketEntry::HalfOpen(_) => false,
        };
        self.tcp.table.iter().filter(|(_, e)| unflushed(e)).count()
    }

    /// Resets every connection and closes every listener, for the end of the process. Waiting tasks
    /// are woken.
    pub fn abort_all(&mut self, now: Instant) {
        self.udp.wake_all(&mut self.wakers);
        for id in self.tcp.listeners.ids() {
            self.close_listener(now, id);
        }
        let all: Vec<u32> = self.tcp.table.iter().map(|(index, _)| index).collect();
        for index in all {
            match self.tcp.table.get_mut(index) {
                Some(SocketEntry::Conn(socket)) => {
                    let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
                    socket.conn.abort(&mut cx);
                    socket.waiters.wake(WaitEvent::Read, &mut self.wakers);
                    socket.waiters.wake(WaitEvent::Write, &mut self.wakers);
                    self.post_process(now, index);
                }
                Some(SocketEntry::DeferredSyn(_)) => self.reject_deferred_syn(now, index),
                Some(SocketEntry::HalfOpen(_)) => self.drop_half_open(index),
                None => {}
            }
        }
    }

    /// Returns what a connection has sent and what limited it: histograms of send size and
    /// head-room, and sends and time by limiting rule.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_flow_report(&mut self, now: Instant, id: TcpId) -> Result<FlowReport, StackError> {
        let (_, socket, _) = self.user_socket(now, id)?;
        Ok(socket.conn.flow_report(now))
    }

    /// Returns the connection's `TCP_INFO`.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_info(&mut self, now: Instant, id: TcpId) -> Result<TcpInfo, StackError> {
        let (_, socket, cx) = self.user_socket(now, id)?;
        Ok(socket.conn.info(&cx))
    }
}
