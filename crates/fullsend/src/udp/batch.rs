//! Many datagrams in one call, and in one packet.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use fullsend_offload::{Chain, Slice};
use fullsend_stack::{UdpDatagram, UdpHandle, WaitKey};
use fullsend_wire::Instant;

use super::UdpSocket;
use super::send::{copied, poll_sent};
use crate::addr::{self, ToAddrs};
use crate::error::{io_error, would_block};

/// A received datagram without a copy of its payload, or several of one flow that arrived in one
/// packet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// The payload, in the stack's memory.
    pub payload: Chain,
    /// The length of each datagram in `payload`, in bytes; the last one may be shorter. It differs
    /// from the length of the payload only after [`UdpSocket::set_gro`].
    pub segment_size: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The destination.
    pub to: SocketAddr,
    /// TTL or hop limit on arrival.
    pub ttl: u8,
}

impl Datagram {
    /// Returns the payload of each datagram, in order. They share the memory of `payload`.
    pub fn segments(&self) -> impl Iterator<Item = Chain> {
        let len = self.payload.len();
        let size = self.segment_size.max(1);
        (0..len.max(1))
            .step_by(size)
            .map(move |start| self.payload.range(start, size.min(len - start)))
    }
}

impl Datagram {
    pub(super) fn of(datagram: UdpDatagram) -> Self {
        Self {
            payload: datagram.payload,
            segment_size: datagram.segment_size,
            from: datagram.from,
            to: datagram.to,
            ttl: datagram.ttl,
        }
    }
}

/// One message of [`UdpSocket::send_many`]: a datagram, or several of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit<'a> {
    /// The destination.
    pub destination: SocketAddr,
    /// The payload of the datagrams, one after another.
    pub contents: &'a [u8],
    /// The length of each datagram in bytes, of which the last may be shorter; `None` for a single
    /// datagram.
    pub segment_size: Option<usize>,
}

impl<'a> Transmit<'a> {
    /// Returns a message of one datagram.
    pub const fn new(destination: SocketAddr, contents: &'a [u8]) -> Self {
        Self {
            destination,
            contents,
            segment_size: None,
        }
    }
}

/// Largest number of datagrams in one packet, which all kernels accept from a device.
const MAX_SEGMENTS: usize = 64;
/// Largest number of bytes in one packet: the payload of the longest IPv4 datagram.
const MAX_SEGMENTS_BYTES: usize = 65_507;

/// Datagrams of one flow that leave in one packet: all of one size, except for the last, which may
/// be shorter.
pub(super) struct Segments {
    data: Chain,
    size: usize,
    count: usize,
    /// Whether the last datagram is shorter than the others.
    complete: bool,
}

impl Segments {
    pub(super) fn new(first: Slice) -> Self {
        Self {
            size: first.len(),
            data: first.into(),
            count: 1,
            complete: false,
        }
    }

    pub(super) fn accept(&self, len: usize) -> bool {
        !self.complete
            && (1..=self.size).contains(&len)
            && self.count < MAX_SEGMENTS
            && self.data.len() + len <= MAX_SEGMENTS_BYTES
    }

    pub(super) fn push(&mut self, next: Slice) {
        self.complete = next.len() < self.size;
        self.count += 1;
        self.data.push(next);
    }

    /// Sends the datagrams. Returns the number of those that were accepted, with the error for the
    /// others.
    pub(super) fn send(
        self,
        udp: &mut UdpHandle<'_>,
        now: Instant,
        to: SocketAddr,
        from: Option<SocketAddr>,
    ) -> io::Result<usize> {
        udp.send_segments(now, self.data, self.size, to, from)
            .map_err(io_error)?;
        Ok(self.count)
    }
}

/// Sends data as datagrams of `size` bytes, in as few packets as possible.
fn send_split(
    udp: &mut UdpHandle<'_>,
    now: Instant,
    (data, size): (Chain, usize),
    to: SocketAddr,
) -> io::Result<()> {
    let size = size.min(data.len()).max(1);
    let most = (MAX_SEGMENTS_BYTES / size).clamp(1, MAX_SEGMENTS) * size;
    let len = data.len();
    for start in (0..len.max(1)).step_by(most) {
        let part = data.range(start, most.min(len - start));
        udp.send_segments(now, part, size, to, None)
            .map_err(io_error)?;
    }
    Ok(())
}

fn check_size(size: usize) -> io::Result<()> {
    if size == 0 {
        let text = "a segment size of 0 bytes is invalid; pass the length of each datagram";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

impl UdpSocket {
    /// Sends `buf` to `to` as datagrams of `segment_size` bytes, the last one possibly shorter. They
    /// pass through the stack in packets of up to 64 datagrams, which the device segments if it can
    /// (Linux's `UDP_SEGMENT`). Returns the length of `buf`.
    ///
    /// # Errors
    /// The errors of [`send_to`](Self::send_to), and `InvalidInput` for a `segment_size` of 0. If
    /// `buf` needs several packets, some of them may have been sent.
    ///
    /// # Example
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fullsend::{Pair, Stack, UdpSocket};
    ///
    /// let (here, there) = Stack::pair(&Pair::default())?;
    /// let server = UdpSocket::bind(&there, "10.0.0.2:443")?;
    /// server.set_gro(true)?;
    /// let client = UdpSocket::bind(&here, "0.0.0.0:0")?;
    /// client.send_segments(&[7; 25_000], 1200, "10.0.0.2:443").await?;
    ///
    /// let mut batch = Vec::new();
    /// server.recv_many(&mut batch, 16).await?;
    /// assert_eq!(batch[0].segment_size, 1200);
    /// assert_eq!(batch[0].segments().count(), 21); // 20 of 1200 bytes and one of 1000
    /// # Ok(()) }
    /// ```
    pub async fn send_segments(
        &self,
        buf: &[u8],
        segment_size: usize,
        to: impl ToAddrs,
    ) -> io::Result<usize> {
        let addrs = to.to_addrs()?;
        let to = addrs.resolve_first(&self.engine).await?;
        poll_fn(|cx| poll_sent(cx, || self.try_send_segments(buf, segment_size, to))).await
    }

    /// Sends datagrams as [`send_segments`](Self::send_segments) does, outside of an async context.
    ///
    /// # Errors
    /// The errors of [`send_segments`](Self::send_segments).
    pub fn try_send_segments(
        &self,
        buf: &[u8],
        segment_size: usize,
        to: SocketAddr,
    ) -> io::Result<usize> {
        addr::check_port(to)?;
        check_size(segment_size)?;
        let data = Chain::from(copied(buf)?);
        self.send_op(|udp, now| send_split(udp, now, (data, segment_size), to))?;
        Ok(buf.len())
    }

    /// Sends several messages under one lock, as `sendmmsg(2)` does in one system call, and returns
    /// how many of them were accepted: it stops at the first error. Consecutive single datagrams of
    /// one size to one destination leave in one packet. It does not wait: the stack drops a datagram
    /// that finds no room in a queue, as a network may.
    ///
    /// # Errors
    /// The error of the first message; see [`send_segments`](Self::send_segments).
    pub fn send_many(&self, messages: &[Transmit<'_>]) -> io::Result<usize> {
        let mut prepared = Vec::with_capacity(messages.len());
        let mut failure = Ok(());
        for message in messages {
            let checked = addr::check_port(message.destination)
                .and_then(|()| message.segment_size.map_or(Ok(()), check_size))
                .and_then(|()| copied(message.contents));
            match checked {
                Ok(data) => prepared.push((*message, data)),
                Err(error) => {
                    failure = Err(error);
                    break;
                }
            }
        }
        if prepared.is_empty() {
            return failure.map(|()| 0);
        }
        self.send_op(|udp, now| send_prepared(udp, now, prepared))
    }

    /// Waits for datagrams and appends those that have arrived to `batch`, at most `max`. Returns
    /// their number. The payloads are in the stack's memory, which counts as in use until they are
    /// dropped.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub async fn recv_many(&self, batch: &mut Vec<Datagram>, max: usize) -> io::Result<usize> {
        let mut wait_registration = self.wait_registration();
        poll_fn(|cx| self.poll_recv_many_with_key(cx, wait_registration.key(), batch, max)).await
    }

    /// Polls [`recv_many`](Self::recv_many). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The errors of [`recv_from`](Self::recv_from).
    pub fn poll_recv_many(
        &self,
        cx: &mut Context<'_>,
        batch: &mut Vec<Datagram>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_recv_many_with_key(cx, None, batch, max)
    }

    /// Receives datagrams as [`recv_many`](Self::recv_many) does, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram has arrived, and the errors of [`recv_from`](Self::recv_from).
    pub fn try_recv_many(&self, batch: &mut Vec<Datagram>, max: usize) -> io::Result<usize> {
        if max == 0 {
            return Err(would_block());
        }
        self.try_read_op(|udp| take_many(udp, batch, max))
    }

    fn poll_recv_many_with_key(
        &self,
        cx: &mut Context<'_>,
        key: Option<&mut WaitKey>,
        batch: &mut Vec<Datagram>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        if max == 0 {
            return Poll::Ready(Ok(0));
        }
        self.poll_read_op(cx, key, |udp| take_many(udp, batch, max))
    }
}

/// Removes up to `max` datagrams. Returns their number, or `None` if there are none.
fn take_many(
    udp: &mut UdpHandle<'_>,
    batch: &mut Vec<Datagram>,
    max: usize,
) -> io::Result<Option<usize>> {
    let before = batch.len();
    while batch.len() - before < max
        && let Some(datagram) = udp.recv_datagram().map_err(io_error)?
    {
        batch.push(Datagram::of(datagram));
    }
    let count = batch.len() - before;
    Ok((count > 0).then_some(count))
}

/// Sends copied messages until one fails. Returns the number of those sent, or the error of the
/// first.
fn send_prepared(
    udp: &mut UdpHandle<'_>,
    now: Instant,
    messages: Vec<(Transmit<'_>, Slice)>,
) -> io::Result<usize> {
    let mut sent = 0;
    let mut messages = messages.into_iter().peekable();
    while let Some((message, data)) = messages.next() {
        let to = message.destination;
        let result = if let Some(size) = message.segment_size {
            send_split(udp, now, (data.into(), size), to).map(|()| 1)
        } else {
            let mut segments = Segments::new(data);
            while let Some((_, data)) = messages.next_if(|(next, data)| {
                next.segment_size.is_none() && next.destination == to && segments.accept(data.len())
            }) {
                segments.push(data);
            }
            segments.send(udp, now, to, None)
        };
        match result {
            Ok(count) => sent += count,
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sent)
}
