//! Waiting for events of a connection.

use core::task::Waker;

use fullsend_tcp::{Readiness, State, TcpError, TxEvent, TxStages};
use fullsend_wire::Instant;

use super::TcpHandle;
use crate::StackError;
use crate::host::Env;
use crate::tcp::socket::Socket;
use crate::waiters::{WaitEvent, Waiter};

/// The kind of readiness to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Data to read, or a connection to accept.
    Read,
    /// Space in the send buffer, or the result of a connect.
    Write,
}

impl Socket {
    #[inline(never)]
    fn poll_writable(&mut self, env: &mut Env, now: Instant) -> bool {
        let mut cx = env.cx(now, &self.path, self.conn.ts_offset());
        self.conn.poll_writable(&mut cx)
    }
}

impl TcpHandle<'_> {
    /// Returns whether the connection is ready now. If not, `waiter` is woken once when it becomes
    /// ready.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn poll_ready<'a>(
        &mut self,
        now: Instant,
        interest: Interest,
        waiter: impl Into<Waiter<'a>>,
    ) -> Result<bool, StackError> {
        let (_, socket, _) = self.host.tcp.user_conn(self.id)?;
        let (ready, event) = match interest {
            Interest::Read => (
                socket.conn.poll_readable(&self.host.env.mem),
                WaitEvent::Read,
            ),
            Interest::Write => (
                socket.poll_writable(&mut self.host.env, now),
                WaitEvent::Write,
            ),
        };
        if !ready {
            let waiter = waiter.into();
            socket
                .waiters
                .register(event, waiter, &mut self.host.replaced_wakers);
        }
        Ok(ready)
    }

    /// Returns whether all written data (and the FIN, if the write side is closed) is acknowledged.
    /// If not, `waiter` is woken once when it is.
    ///
    /// # Errors
    /// The connection's error if it was closed before all data was acknowledged;
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn poll_flushed<'a>(&mut self, waiter: impl Into<Waiter<'a>>) -> Result<bool, StackError> {
        let (_, socket, _) = self.host.tcp.user_conn(self.id)?;
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
            .register(WaitEvent::Flush, waiter, &mut self.host.replaced_wakers);
        Ok(false)
    }

    /// Returns whether the connection has ended: by a RST, a timeout, or the FINs of both sides. If
    /// not, `waiter` is woken once when it has, and possibly before.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn poll_closed<'a>(&mut self, waiter: impl Into<Waiter<'a>>) -> Result<bool, StackError> {
        let (_, socket, _) = self.host.tcp.user_conn(self.id)?;
        if socket.conn.state() == State::Closed {
            return Ok(true);
        }
        // Those who wait for acknowledgements are woken at the end of the connection, too.
        let waiter = waiter.into();
        socket
            .waiters
            .register(WaitEvent::Flush, waiter, &mut self.host.replaced_wakers);
        Ok(false)
    }

    /// Returns the readiness of the connection.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn readiness(&mut self) -> Result<Readiness, StackError> {
        let (_, socket, cx) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.readiness(&cx))
    }

    /// Wakes each waker once, at the next event: `reader` when more data arrives (even if there is
    /// some already), at the end of the stream and at an error; `writer` when the send buffer gets
    /// space, if it has none now, and when a connect completes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn watch(&mut self, reader: &Waker, writer: &Waker) -> Result<(), StackError> {
        let (_, socket, _) = self.host.tcp.user_conn(self.id)?;
        let cx = self
            .host
            .env
            .cx(Instant::ZERO, &socket.path, socket.conn.ts_offset());
        socket.conn.watch(&cx);
        let replaced_wakers = &mut self.host.replaced_wakers;
        socket
            .waiters
            .register(WaitEvent::Read, reader.into(), replaced_wakers);
        socket
            .waiters
            .register(WaitEvent::Write, writer.into(), replaced_wakers);
        Ok(())
    }

    /// Returns the number of bytes written since the connection was opened.
    /// [`watch_tx`](Self::watch_tx) counts in the same way.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn written(&mut self) -> Result<u64, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.written())
    }

    /// Requests events when the bytes up to `end` reach `stages`. Call it right after the write of
    /// these bytes, before anything is transmitted. Readers are woken when there is an event.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn watch_tx(&mut self, end: u64, stages: TxStages) -> Result<(), StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        socket.conn.watch_tx(end, stages);
        Ok(())
    }

    /// Takes the next event of watched bytes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn take_tx_event(&mut self) -> Result<Option<TxEvent>, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.take_tx_event())
    }

    /// Returns whether [`take_tx_event`](Self::take_tx_event) would return an event
    /// (`EPOLLERR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn has_tx_event(&mut self) -> Result<bool, StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        Ok(socket.conn.has_tx_event())
    }
}
