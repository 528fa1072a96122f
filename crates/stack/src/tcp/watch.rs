//! Readiness of connections and listeners, for applications that wait on many sockets.

use core::task::Waker;

use fullsend_tcp::{Readiness, SkMem};
use fullsend_units::Instant;

use super::{ListenerId, TcpId};
use crate::waiters::{WaitEvent, WaitList};
use crate::{Host, StackError};

impl Host {
    /// Returns the readiness of the connection.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_readiness(&mut self, id: TcpId) -> Result<Readiness, StackError> {
        let (_, socket, cx) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.readiness(&cx))
    }

    /// Wakes each waker once, at the next event: `reader` when more data arrives (even if there is
    /// some already), at the end of the stream and at an error; `writer` when the send buffer gets
    /// space, if it has none now, and when a connect completes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn tcp_watch(
        &mut self,
        id: TcpId,
        reader: &Waker,
        writer: &Waker,
    ) -> Result<(), StackError> {
        let (_, socket, _) = self.tcp.user_conn(id)?;
        let cx = self
            .env
            .cx(Instant::ZERO, &socket.path, socket.conn.ts_offset());
        socket.conn.watch(&cx);
        let replaced_wakers = &mut self.replaced_wakers;
        socket
            .waiters
            .register(WaitEvent::Read, reader.into(), replaced_wakers);
        socket
            .waiters
            .register(WaitEvent::Write, writer.into(), replaced_wakers);
        Ok(())
    }

    /// Returns the connection's memory use (`SO_MEMINFO`), or `None` if the handle is not valid.
    pub fn tcp_memory(&mut self, id: TcpId) -> Option<SkMem> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id).ok()?;
        Some(socket.conn.memory())
    }

    /// Changes a listener's backlog (`listen` called again).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_set_backlog(
        &mut self,
        id: ListenerId,
        backlog: usize,
    ) -> Result<(), StackError> {
        let most = self.env.sysctl.somaxconn as usize;
        let listener = self.tcp.listeners.get_mut(id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        listener.config.backlog = backlog.min(most);
        Ok(())
    }

    /// Sets whether a listener on the unspecified IPv6 address rejects IPv4 connections
    /// (`IPV6_V6ONLY`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_set_v6only(&mut self, id: ListenerId, on: bool) -> Result<(), StackError> {
        let listener = self.tcp.listeners.get_mut(id);
        listener.ok_or(StackError::NoSuchSocket)?.v6only = on;
        Ok(())
    }

    /// Returns the number of connections that wait to be accepted.
    pub fn listener_accept_queue_len(&self, id: ListenerId) -> usize {
        let listener = self.tcp.listeners.table.peek(id.0);
        listener.map_or(0, |listener| listener.accept_queue.len())
    }

    /// Returns the tasks that wait for a connection to accept.
    pub(crate) fn accept_waiters(&mut self, id: ListenerId) -> Option<&mut WaitList> {
        let listener = self.tcp.listeners.get_mut(id)?;
        Some(&mut listener.accept_waiters)
    }

    /// Wakes `waker` once, when the next connection is added to the accept queue.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn listener_watch(&mut self, id: ListenerId, waker: &Waker) -> Result<(), StackError> {
        let listener = self.tcp.listeners.get_mut(id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        listener
            .accept_waiters
            .register(waker.into(), &mut self.replaced_wakers);
        Ok(())
    }
}
