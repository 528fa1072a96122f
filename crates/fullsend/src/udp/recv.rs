//! Receiving single datagrams, which removes them from the queue or leaves them there.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use fullsend_stack::{UdpDatagram, UdpHandle};
use tokio::io::ReadBuf;

use super::UdpSocket;
use crate::error::io_error;

/// Removes and returns the next datagram.
fn take(udp: &mut UdpHandle<'_>) -> io::Result<Option<UdpDatagram>> {
    udp.recv_datagram().map_err(io_error)
}

/// Returns the next datagram and leaves it in the queue.
fn peek(udp: &mut UdpHandle<'_>) -> io::Result<Option<UdpDatagram>> {
    udp.peek_datagram().map_err(io_error)
}

/// Appends as much of a datagram as fits into `buf`.
fn fill(datagram: &UdpDatagram, buf: &mut ReadBuf<'_>) {
    for slice in datagram.payload.slices() {
        let n = slice.len().min(buf.remaining());
        buf.put_slice(&slice[..n]);
    }
}

/// Appends as much of a datagram to `buf` as fits into its first free chunk, as tokio does. Returns
/// the number of bytes.
fn append(datagram: &UdpDatagram, buf: &mut impl BufMut) -> usize {
    let room = buf.chunk_mut().len();
    let mut left = room;
    for slice in datagram.payload.slices() {
        let n = slice.len().min(left);
        buf.put_slice(&slice[..n]);
        left -= n;
    }
    room - left
}

impl UdpSocket {
    async fn next(
        &self,
        read: fn(&mut UdpHandle<'_>) -> io::Result<Option<UdpDatagram>>,
    ) -> io::Result<UdpDatagram> {
        let mut wait_registration = self.wait_registration();
        poll_fn(|cx| self.poll_read_op(cx, wait_registration.key(), read)).await
    }

    // --- taking datagrams ---

    /// Receives the next datagram; on a connected socket it is from the peer. Returns the number of
    /// bytes copied into `buf`; the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buf).await?.0)
    }

    /// Polls [`recv`](Self::recv) and appends the datagram to `buf`. Only the task that polled last
    /// is woken.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(|_| ())
    }

    /// Receives the next datagram as [`recv`](Self::recv) does, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram has arrived, and the errors of [`recv_from`](Self::recv_from).
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.try_recv_from(buf)?.0)
    }

    /// Receives the next datagram and appends it to `buf`: at most the bytes that `buf` has room for
    /// without being enlarged. Returns their number; the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn recv_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        Ok(self.recv_buf_from(buf).await?.0)
    }

    /// Receives the next datagram as [`recv_buf`](Self::recv_buf) does, without waiting.
    ///
    /// # Errors
    /// The errors of [`try_recv`](Self::try_recv).
    pub fn try_recv_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        Ok(self.try_recv_buf_from(buf)?.0)
    }

    /// Receives the next datagram. Returns the number of bytes copied into `buf` and the sender;
    /// the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// On a connected socket, an error that ICMP reported about a datagram to the peer, such as
    /// `ConnectionRefused`; the stack's error if it has stopped
    /// ([`Stack::closed`](crate::Stack::closed)).
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (len, from, _) = self.recv_from_to(buf).await?;
        Ok((len, from))
    }

    /// Receives the next datagram. Returns the number of bytes copied into `buf`, the sender, and
    /// the address that it was sent to; the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn recv_from_to(
        &self,
        buf: &mut [u8],
    ) -> io::Result<(usize, SocketAddr, SocketAddr)> {
        let next = self.next(take).await?;
        Ok((next.payload.copy_to(buf), next.from, next.to))
    }

    /// Polls for the next datagram, appends it to `buf`, and returns the sender; the rest of a
    /// datagram that does not fit is lost. Only the task that polled last is woken.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let next = ready!(self.poll_read_op(cx, None, take))?;
        fill(&next, buf);
        Poll::Ready(Ok(next.from))
    }

    /// Receives the next datagram without waiting. Returns the number of bytes copied into `buf`
    /// and the sender; the rest of a longer datagram is lost.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram has arrived, and the errors of [`recv_from`](Self::recv_from).
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let next = self.try_read_op(take)?;
        Ok((next.payload.copy_to(buf), next.from))
    }

    /// Receives the next datagram as [`recv_buf`](Self::recv_buf) does, and returns its sender, too.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn recv_buf_from<B: BufMut>(&self, buf: &mut B) -> io::Result<(usize, SocketAddr)> {
        let next = self.next(take).await?;
        Ok((append(&next, buf), next.from))
    }

    /// Receives the next datagram as [`recv_buf_from`](Self::recv_buf_from) does, without waiting.
    ///
    /// # Errors
    /// The errors of [`try_recv_from`](Self::try_recv_from).
    pub fn try_recv_buf_from<B: BufMut>(&self, buf: &mut B) -> io::Result<(usize, SocketAddr)> {
        let next = self.try_read_op(take)?;
        Ok((append(&next, buf), next.from))
    }

    // --- leaving datagrams in the queue ---

    /// Waits for a datagram and copies it into `buf`, without taking it from the queue. Returns the
    /// number of bytes copied.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buf).await?.0)
    }

    /// Polls [`peek`](Self::peek) and appends the datagram to `buf`. Only the task that polled last
    /// is woken.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_peek_from(cx, buf).map_ok(|_| ())
    }

    /// Copies the next datagram as [`peek`](Self::peek) does, without waiting.
    ///
    /// # Errors
    /// The errors of [`try_recv_from`](Self::try_recv_from).
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.try_peek_from(buf)?.0)
    }

    /// Waits for a datagram and copies it into `buf`, without taking it from the queue. Returns the
    /// number of bytes copied and the sender.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let next = self.next(peek).await?;
        Ok((next.payload.copy_to(buf), next.from))
    }

    /// Polls [`peek_from`](Self::peek_from) and appends the datagram to `buf`. Only the task that
    /// polled last is woken.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub fn poll_peek_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let next = ready!(self.poll_read_op(cx, None, peek))?;
        fill(&next, buf);
        Poll::Ready(Ok(next.from))
    }

    /// Copies the next datagram as [`peek_from`](Self::peek_from) does, without waiting.
    ///
    /// # Errors
    /// The errors of [`try_recv_from`](Self::try_recv_from).
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let next = self.try_read_op(peek)?;
        Ok((next.payload.copy_to(buf), next.from))
    }

    /// Waits for a datagram and returns its sender, without taking it from the queue.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        Ok(self.next(peek).await?.from)
    }

    /// Polls [`peek_sender`](Self::peek_sender). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub fn poll_peek_sender(&self, cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.poll_read_op(cx, None, peek).map_ok(|next| next.from)
    }

    /// Returns the sender of the next datagram, without waiting and without taking it from the
    /// queue.
    ///
    /// # Errors
    /// The errors of [`try_recv_from`](Self::try_recv_from).
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        Ok(self.try_read_op(peek)?.from)
    }
}
