//! For users who wait on many sockets: how a connection stands, and who is told of its changes.

use core::task::Waker;

use fullsend_tcp::{Readiness, SkMem};
use fullsend_units::Instant;

use super::{ListenerId, TcpId};
use crate::waiters::{Wait, WaitList};
use crate::{Host, StackError};

impl Host {
    /// How the connection stands.
    pub fn tcp_readiness(&mut self, id: TcpId) -> Result<Readiness, StackError> {
        let (_, socket, cx) = self.user_socket(Instant::ZERO, id)?;
        Ok(socket.conn.readiness(&cx))
    }

    /// Wakes each waker once, at the next change: `reader` when more can be read (although there
    /// may be some already), at the end of the stream and at an error; `writer` when there is room
    /// to write, if there is none now, and at a connect's end.
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
        let spent = &mut self.spent;
        socket.waiters.register(Wait::Read, reader.into(), spent);
        socket.waiters.register(Wait::Write, writer.into(), spent);
        Ok(())
    }

    /// The connection's memory (`SO_MEMINFO`).
    pub fn tcp_memory(&mut self, id: TcpId) -> Option<SkMem> {
        let (_, socket, _) = self.user_socket(Instant::ZERO, id).ok()?;
        Some(socket.conn.memory())
    }

    /// Changes a listener's backlog (`listen` once more).
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

    /// `IPV6_V6ONLY`: whether a listener on the unspecified IPv6 address leaves IPv4 alone.
    pub fn listener_set_v6only(&mut self, id: ListenerId, on: bool) -> Result<(), StackError> {
        let listener = self.tcp.listeners.get_mut(id);
        listener.ok_or(StackError::NoSuchSocket)?.v6only = on;
        Ok(())
    }

    /// Connections that wait to be accepted.
    pub fn listener_waiting(&self, id: ListenerId) -> usize {
        let listener = self.tcp.listeners.table.peek(id.0);
        listener.map_or(0, |listener| listener.accept.len())
    }

    /// Tasks that wait for a connection to accept.
    pub(crate) fn waiting_for(&mut self, id: ListenerId) -> Option<&mut WaitList> {
        let listener = self.tcp.listeners.get_mut(id)?;
        Some(&mut listener.waiting)
    }

    /// `waker` is woken once, when the next connection comes to be accepted.
    pub fn listener_watch(&mut self, id: ListenerId, waker: &Waker) -> Result<(), StackError> {
        let listener = self.tcp.listeners.get_mut(id);
        let listener = listener.ok_or(StackError::NoSuchSocket)?;
        listener.waiting.register(waker.into(), &mut self.spent);
        Ok(())
    }
}
