//! ICMP echo requests.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll, ready};

use fullsend_offload::Chain;
use fullsend_stack::{PingHandle, PingId, WaitKey, WaitOn};
use fullsend_wire::numbers::DEFAULT_TTL;
use tokio::task::coop::poll_proceed;

use crate::engine::EngineHandle;
use crate::error::{io_error, octet, tcp_error, would_block};
use crate::readiness::{poll_of, poll_within_budget};
use crate::stack::Stack;
use crate::wait_registration::{WaitRegistration, waiter};

/// A socket that sends ICMP and ICMPv6 echo requests and receives the replies, like Linux's ping
/// sockets. Cancel safe: dropping the future of any of its calls loses no reply.
///
/// The stack chooses the identifier of the requests, the caller their sequence numbers. The round-trip
/// time is left to the caller, which can also send a timestamp as data. Replies and errors wait in a queue
/// of at most 208 KiB; further ones are dropped and counted ([`dropped`](Self::dropped)). As on Linux, a
/// reply is accepted from any host, if it has the identifier.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use std::time::Instant;
///
/// use fullsend::{Pair, PingSocket, Stack};
///
/// let (here, _there) = Stack::pair(&Pair::default())?;
/// let socket = PingSocket::open(&here)?;
/// let sent = Instant::now();
/// socket.send_to("10.0.0.2".parse().unwrap(), 1, b"data").await?;
/// let reply = socket.recv().await?;
/// if let Some(error) = &reply.error {
///     println!("{}: seq={} {error}", reply.peer, reply.seq);
/// } else {
///     println!("{}: seq={} ttl={} time={:?}", reply.peer, reply.seq, reply.ttl, sent.elapsed());
/// }
/// # assert_eq!((reply.seq, reply.data.len()), (1, 4));
/// # Ok(()) }
/// ```
pub struct PingSocket {
    engine: EngineHandle,
    id: PingId,
}

/// The answer to an echo request: a reply, or an error that a router, the destination or the stack
/// reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PingReply {
    /// The host that sent the reply; with an error, the destination of the request.
    pub peer: IpAddr,
    /// The sequence number of the request.
    pub seq: u16,
    /// The data of the request, as the reply returns it; with an error, the part of it that the error
    /// quotes.
    pub data: Chain,
    /// TTL or hop limit of the answer on arrival.
    pub ttl: u8,
    /// The reason why the request has no reply; `None` for a reply.
    pub error: Option<PingError>,
}

/// An ICMP error about an echo request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PingError {
    /// The kind of the error: `HostUnreachable` also if the TTL has expired, `InvalidInput` if the
    /// request was too long for the path.
    pub kind: io::ErrorKind,
    /// Type of the ICMP message.
    pub icmp_type: u8,
    /// Code of the ICMP message.
    pub icmp_code: u8,
    /// The largest packet that the next link carries, in bytes, if the request was too long; otherwise
    /// 0.
    pub mtu: u32,
    /// The sender of the ICMP message.
    pub offender: IpAddr,
}

impl fmt::Display for PingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = (self.icmp_type, self.icmp_code);
        write!(f, "{} reports: ", self.offender)?;
        if self.mtu > 0 {
            write!(f, "the next link carries {} bytes only", self.mtu)?;
        } else {
            write!(f, "{}", self.kind)?;
        }
        write!(f, " (ICMP type {kind}, code {code})")
    }
}

impl std::error::Error for PingError {}

impl PingReply {
    /// Converts a reply of the host.
    fn of_host(reply: fullsend_stack::PingReply) -> Self {
        Self {
            peer: reply.peer,
            seq: reply.seq,
            data: reply.data,
            ttl: reply.ttl,
            error: reply.error.map(|error| PingError {
                kind: tcp_error(error.error).kind(),
                icmp_type: error.kind.0,
                icmp_code: error.kind.1,
                mtu: error.mtu,
                offender: error.offender,
            }),
        }
    }
}

impl PingSocket {
    /// Opens a socket, for requests over IPv4 and IPv6.
    ///
    /// # Errors
    /// `AddrNotAvailable` if all 65,536 identifiers are in use; the stack's error if it has stopped
    /// ([`Stack::closed`]).
    pub fn open(stack: &Stack) -> io::Result<Self> {
        let id = stack
            .engine
            .op(|host, _| host.ping_open().map_err(io_error))?;
        Ok(Self {
            engine: stack.engine.clone(),
            id,
        })
    }

    /// Returns the identifier that the stack has chosen for the requests.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn ident(&self) -> io::Result<u16> {
        self.op(|ping| ping.ident().map_err(io_error))
    }

    /// Sends an echo request with sequence number `seq` to `to`, a host or a multicast group. It does
    /// not wait: the stack drops a request that finds no room in a queue, as a network may.
    ///
    /// # Errors
    /// `InvalidInput` if the request is too long, or for a broadcast or an unspecified address;
    /// `NetworkUnreachable` without a route; the stack's error if it has stopped ([`Stack::closed`]).
    pub async fn send_to(&self, to: IpAddr, seq: u16, data: &[u8]) -> io::Result<()> {
        poll_fn(|cx| self.poll_send_to(cx, to, seq, data)).await
    }

    /// Polls [`send_to`](Self::send_to). It is pending only if the task has used up its budget.
    ///
    /// # Errors
    /// The errors of [`send_to`](Self::send_to).
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        to: IpAddr,
        seq: u16,
        data: &[u8],
    ) -> Poll<io::Result<()>> {
        poll_within_budget(cx, |_| Poll::Ready(self.try_send_to(to, seq, data)))
    }

    /// Sends an echo request as [`send_to`](Self::send_to) does, outside of an async context.
    ///
    /// # Errors
    /// The errors of [`send_to`](Self::send_to).
    pub fn try_send_to(&self, to: IpAddr, seq: u16, data: &[u8]) -> io::Result<()> {
        self.engine.run(true, |host, now| {
            let mut ping = host.ping(self.id);
            ping.send_to(now, to, seq, data).map_err(io_error)
        })
    }

    /// Receives the next reply or error.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]). An error about a request is in
    /// [`PingReply::error`].
    pub async fn recv(&self) -> io::Result<PingReply> {
        let mut wait_registration = self.wait_registration();
        poll_fn(|cx| self.poll_next(cx, wait_registration.key())).await
    }

    /// Polls [`recv`](Self::recv). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The errors of [`recv`](Self::recv).
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<PingReply>> {
        self.poll_next(cx, None)
    }

    /// Receives the next reply or error without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, and the errors of [`recv`](Self::recv).
    pub fn try_recv(&self) -> io::Result<PingReply> {
        let next = self.op(|ping| ping.recv().map_err(io_error))?;
        next.map(PingReply::of_host).ok_or_else(would_block)
    }

    /// Waits until there is a reply or an error to receive.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn readable(&self) -> io::Result<()> {
        let mut wait_registration = self.wait_registration();
        poll_fn(|cx| self.poll_readable(cx, wait_registration.key())).await
    }

    /// Polls [`readable`](Self::readable). Only the task that polled last is woken.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_within_budget(cx, |cx| self.poll_readable(cx, None))
    }

    /// Returns the number of replies and errors that were dropped because the queue was full.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn dropped(&self) -> io::Result<u64> {
        self.op(|ping| ping.dropped().map_err(io_error))
    }

    /// Returns the TTL or hop limit of requests. Unless [`set_ttl`](Self::set_ttl) has set it, it is 64,
    /// but requests to multicast groups have 1.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn ttl(&self) -> io::Result<u32> {
        let ttl = self.op(|ping| ping.ttl().map_err(io_error))?;
        Ok(ttl.unwrap_or(DEFAULT_TTL).into())
    }

    /// Sets the TTL or hop limit of all requests, 1 to 255. At first it is 64, and 1 for requests to
    /// multicast groups. A router at which it expires reports an error.
    ///
    /// # Errors
    /// `InvalidInput` for another value; the stack's error if it has stopped.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = octet("TTL", ttl, 1)?;
        self.op(|ping| ping.set_ttl(Some(ttl)).map_err(io_error))
    }

    fn op<R>(&self, call: impl FnOnce(&mut PingHandle<'_>) -> io::Result<R>) -> io::Result<R> {
        self.engine.op(|host, _| call(&mut host.ping(self.id)))
    }

    fn poll_next(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<PingReply>> {
        let coop = ready!(poll_proceed(cx));
        let next = self.op(|ping| {
            if let Some(next) = ping.recv().map_err(io_error)? {
                return Ok(Some(next));
            }
            ping.poll_ready(waiter(cx, &mut key)).map_err(io_error)?;
            Ok(None)
        });
        let Some(next) = next.transpose() else {
            return Poll::Pending;
        };
        coop.made_progress();
        Poll::Ready(next.map(PingReply::of_host))
    }

    fn poll_readable(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
    ) -> Poll<io::Result<()>> {
        poll_of(self.op(|ping| ping.poll_ready(waiter(cx, &mut key)).map_err(io_error)))
    }

    fn wait_registration(&self) -> WaitRegistration<'_> {
        WaitRegistration::new(&self.engine, WaitOn::Ping(self.id))
    }
}

impl Drop for PingSocket {
    fn drop(&mut self) {
        self.engine
            .close(self.id, |id, host, _| host.ping(id).close());
    }
}

impl fmt::Debug for PingSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PingSocket")
            .field("ident", &self.ident().ok())
            .finish_non_exhaustive()
    }
}
