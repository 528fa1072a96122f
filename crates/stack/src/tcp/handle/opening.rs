//! Deferred SYNs, sent and received, and the SYN that opened a connection.

use alloc::vec::Vec;

use fullsend_tcp::Connection;
use fullsend_wire::Instant;

use super::TcpHandle;
use crate::waiters::Waiter;
use crate::{StackError, UnreachableCode};

impl<'a> TcpHandle<'a> {
    /// Sends a deferred SYN without data. It requests a cookie if `tcp_fastopen` allows it.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn send_syn(&mut self, now: Instant) -> Result<(), StackError> {
        self.with_conn(now, |conn, _| Connection::send_syn(conn))
    }

    /// Returns whether a deferred SYN can carry data: a cookie for the destination is known, or
    /// none is needed. If not, connect with [`send_syn`](Self::send_syn).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn is_fastopen_ready(&mut self, now: Instant) -> Result<bool, StackError> {
        let (_, socket, _) = self.socket(now)?;
        Ok(socket.conn.is_fastopen_ready())
    }

    /// Announces that the application writes as soon as the connection is established, so that the
    /// ACK of the SYN-ACK need not be sent by itself.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn expect_write(&mut self) -> Result<(), StackError> {
        let (_, socket, _) = self.socket(Instant::ZERO)?;
        socket.conn.expect_write();
        Ok(())
    }

    /// Answers a deferred SYN that a listener with
    /// [`defer_syn_ack`](crate::ListenConfig::defer_syn_ack) has yielded; the connection becomes
    /// established as usual.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the peer has given up or the ID is not that of
    /// a deferred SYN; [`NoRoute`](StackError::NoRoute) if the answer has no route.
    pub fn accept_deferred(&mut self, now: Instant) -> Result<(), StackError> {
        self.host.accept_deferred_syn(now, self.id)
    }

    /// Returns whether a deferred SYN has ended: the peer has reset it, 130 s have passed since it
    /// arrived, or it was accepted or rejected. If not, `waiter` is woken once when it has ended.
    pub fn poll_deferred_ended<'w>(&mut self, waiter: impl Into<Waiter<'w>>) -> bool {
        self.host.poll_deferred_syn_ended(self.id, waiter.into())
    }

    /// Rejects a deferred SYN with a RST. The ID is no longer valid.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the peer has given up or the ID is not that of
    /// a deferred SYN.
    pub fn reject_deferred(self, now: Instant) -> Result<(), StackError> {
        let index = self.host.user_deferred_syn(self.id)?;
        self.host.reject_deferred_syn(now, index);
        Ok(())
    }

    /// Rejects a deferred SYN with an ICMP error that quotes it. The ID is no longer valid.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the peer has given up or the ID is not that of
    /// a deferred SYN; [`NoRoute`](StackError::NoRoute) if the host has no address to send from.
    pub fn reject_deferred_with(
        self,
        now: Instant,
        code: UnreachableCode,
    ) -> Result<(), StackError> {
        let index = self.host.user_deferred_syn(self.id)?;
        self.host.reject_deferred_syn_with(now, index, code)
    }

    /// Drops a deferred SYN without an answer. The ID is no longer valid; a retransmission of the
    /// SYN is a new one.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the peer has given up or the ID is not that of
    /// a deferred SYN.
    pub fn drop_deferred(self) -> Result<(), StackError> {
        let index = self.host.user_deferred_syn(self.id)?;
        self.host.drop_deferred_syn(index);
        Ok(())
    }

    /// Returns the headers of the SYN that opened a connection, beginning with the IP header (see
    /// [`SocketOption::TcpSaveSyn`](fullsend_tcp::SocketOption::TcpSaveSyn), set on its listener).
    /// Returns `None` if none is kept, or if there is no such connection.
    pub fn saved_syn(self) -> Option<&'a [u8]> {
        let (index, ..) = self.host.tcp.user_conn(self.id).ok()?;
        self.host.tcp.saved_syns.get(&index).map(Vec::as_slice)
    }

    /// Takes the headers of the SYN that opened a connection; they are no longer kept. Returns `None`
    /// if none is kept, or if there is no such connection.
    pub fn take_saved_syn(&mut self) -> Option<Vec<u8>> {
        let (index, ..) = self.host.tcp.user_conn(self.id).ok()?;
        self.host.tcp.saved_syns.remove(&index)
    }
}
