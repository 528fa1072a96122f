//! Sending single datagrams.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use fullsend_offload::Slice;
use fullsend_tcp::TcpError;

use super::{UdpSocket, destination_of};
use crate::addr::{self, ToAddrs};
use crate::error::{io_error, tcp_error};
use crate::readiness::poll_within_budget;

impl UdpSocket {
    /// Sends a datagram to the peer that [`connect`](Self::connect) set, and returns its length in
    /// bytes.
    ///
    /// # Errors
    /// `EDESTADDRREQ` if no peer is set, `ConnectionRefused` or another error that ICMP reported
    /// about an earlier datagram, and those of [`send_to`](Self::send_to).
    pub async fn send(&self, buf: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_send(cx, buf)).await
    }

    /// Polls [`send`](Self::send). It is pending only if the task has used up its budget: the stack
    /// drops a datagram that finds no room in a queue, as a network may.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        poll_sent(cx, || self.try_send(buf))
    }

    /// Sends a datagram as [`send`](Self::send) does, outside of an async context.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        self.send_datagram(buf, None, None)
    }

    /// Sends a datagram to `to`, and returns its length in bytes. Of the addresses of a name, it
    /// uses the first. It does not wait: the stack drops a datagram that finds no room in a queue,
    /// as a network may.
    ///
    /// # Errors
    /// - `InvalidInput` if `to` is not a host with a port, or has port 0.
    /// - `EMSGSIZE` if the datagram is too long.
    /// - `NetworkUnreachable` without a route to `to`.
    /// - `AddrNotAvailable` if the socket is bound to an address of the other family.
    /// - `PermissionDenied` for a broadcast address without
    ///   [`set_broadcast`](Self::set_broadcast).
    /// - `OutOfMemory` if the datagram cannot be copied.
    /// - On a connected socket, an error that ICMP reported about an earlier datagram.
    /// - The errors of the resolver of a name.
    /// - The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub async fn send_to(&self, buf: &[u8], to: impl ToAddrs) -> io::Result<usize> {
        let addrs = to.to_addrs()?;
        let to = addrs.resolve_first(&self.engine).await?;
        poll_fn(|cx| self.poll_send_to(cx, buf, to)).await
    }

    /// Polls [`send_to`](Self::send_to). It is pending only if the task has used up its budget.
    ///
    /// # Errors
    /// The errors of [`send_to`](Self::send_to).
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        buf: &[u8],
        target: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        poll_sent(cx, || self.try_send_to(buf, target))
    }

    /// Sends a datagram to `target` outside of an async context, and returns its length in bytes.
    ///
    /// # Errors
    /// The errors of [`send_to`](Self::send_to).
    pub fn try_send_to(&self, buf: &[u8], target: SocketAddr) -> io::Result<usize> {
        self.send_datagram(buf, Some(target), None)
    }

    /// Sends a datagram to `to` with the source address `from`, which need not be the stack's: a
    /// gateway answers with the address that a datagram was sent to. Returns its length in bytes.
    ///
    /// # Errors
    /// The errors of [`send_to`](Self::send_to); `AddrNotAvailable` also if `from` and `to` differ in
    /// family.
    pub async fn send_from(
        &self,
        buf: &[u8],
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<usize> {
        poll_fn(|cx| poll_sent(cx, || self.send_datagram(buf, Some(to), Some(from)))).await
    }

    /// Sends a datagram to `to`, or to the peer.
    fn send_datagram(
        &self,
        data: &[u8],
        to: Option<SocketAddr>,
        from: Option<SocketAddr>,
    ) -> io::Result<usize> {
        to.map_or(Ok(()), addr::check_port)?;
        let slice = copied(data)?;
        self.send_op(|udp, now| {
            let to = to.map_or_else(|| destination_of(udp), Ok)?;
            udp.send_to(now, slice, to, from).map_err(io_error)
        })?;
        Ok(data.len())
    }
}

/// Polls a call that does not wait, within the budget of its task.
pub(super) fn poll_sent<R>(
    cx: &mut Context<'_>,
    send: impl FnOnce() -> io::Result<R>,
) -> Poll<io::Result<R>> {
    poll_within_budget(cx, |_| Poll::Ready(send()))
}

/// Copies data into memory that the stack can keep.
pub(super) fn copied(data: &[u8]) -> io::Result<Slice> {
    Slice::try_copied_from([data]).ok_or_else(|| tcp_error(TcpError::OutOfMemory))
}
