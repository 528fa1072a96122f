//! UDP for transparent gateways: any destination, in batches.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use fullsend_offload::{Chain, Slice};
use fullsend_stack::{Interest, WaitKey};
use parking_lot::Mutex;
use tokio::task::coop::poll_proceed;

use super::UdpSocket;
use crate::error::io_error;
use crate::stack::Stack;
use crate::wait_registration::waiter;

/// A datagram without a copy of its payload.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The payload, in the stack's memory.
    pub payload: Chain,
    /// The sender.
    pub from: SocketAddr,
    /// The destination.
    pub to: SocketAddr,
}

/// Largest number of datagrams in one packet: what all kernels accept from a device.
const MAX_SEGMENTS: usize = 64;
/// Largest number of bytes in one packet: the payload of the longest IPv4 datagram.
const MAX_SEGMENTS_BYTES: usize = 65_507;

/// Datagrams of one flow that leave in one packet: all of one size, except for the last, which may
/// be shorter.
struct Segments {
    data: Chain,
    size: usize,
    count: usize,
    /// Whether the last datagram is shorter than the others.
    complete: bool,
}

impl Segments {
    fn new(first: Slice) -> Self {
        Self {
            size: first.len(),
            data: first.into(),
            count: 1,
            complete: false,
        }
    }

    fn accept(&self, next: &Slice) -> bool {
        !self.complete
            && (1..=self.size).contains(&next.len())
            && self.count < MAX_SEGMENTS
            && self.data.len() + next.len() <= MAX_SEGMENTS_BYTES
    }

    fn push(&mut self, next: Slice) {
        self.complete = next.len() < self.size;
        self.count += 1;
        self.data.push(next);
    }
}

impl UdpSocket {
    /// Opens the socket of a transparent gateway: it receives the datagrams to every unicast address
    /// and port, the stack's own or not, for which no other socket is bound. Answers are sent with
    /// [`send_from`](Self::send_from). `queue_bytes` limits the memory of received datagrams that
    /// wait for the application.
    ///
    /// # Errors
    /// `AddrInUse` if the stack has such a socket already; the stack's error if it has stopped.
    pub fn bind_any(stack: &Stack, queue_bytes: usize) -> io::Result<Self> {
        let id = stack.engine.op(|host, _| {
            let id = host.udp_bind_any().map_err(io_error)?;
            host.udp(id).set_rcvbuf(queue_bytes).map_err(io_error)?;
            Ok(id)
        })?;
        Ok(Self {
            engine: stack.engine.clone(),
            id,
            remote: Mutex::new(None),
        })
    }

    /// Waits for datagrams and appends those that have arrived to `batch`, at most `max`; only
    /// those of the peer if [`connect`](Self::connect) set one. Returns their number. Cancel safe: dropping the future loses no datagram.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub async fn recv_batch(&self, batch: &mut Vec<Datagram>, max: usize) -> io::Result<usize> {
        let mut wait_registration = self.wait_registration();
        poll_fn(|cx| self.poll_recv_batch(cx, wait_registration.key(), batch, max)).await
    }

    fn poll_recv_batch(
        &self,
        cx: &mut Context<'_>,
        mut key: Option<&mut WaitKey>,
        batch: &mut Vec<Datagram>,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let coop = ready!(poll_proceed(cx));
        let before = batch.len();
        let remote = *self.remote.lock();
        self.engine.op(|host, _| {
            loop {
                while batch.len() - before < max {
                    let Some((payload, from, to)) = host.udp(self.id).recv().map_err(io_error)?
                    else {
                        break;
                    };
                    if remote.is_none_or(|remote| remote == from) {
                        batch.push(Datagram { payload, from, to });
                    }
                }
                let waiter = waiter(cx, &mut key);
                let wait = batch.len() == before
                    && !host
                        .udp(self.id)
                        .poll_ready(Interest::Read, waiter)
                        .map_err(io_error)?;
                if wait || batch.len() > before {
                    return Ok(());
                }
            }
        })?;
        if batch.len() == before {
            return Poll::Pending;
        }
        coop.made_progress();
        Poll::Ready(Ok(batch.len() - before))
    }

    /// Sends datagrams, each with its source address, which need not be the stack's, and its
    /// destination. Consecutive datagrams of one flow and one size leave together, in one packet that
    /// the device segments if it can. Returns the number of those that were accepted; the others are
    /// lost, as in a network.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`]).
    pub fn send_batch(
        &self,
        batch: impl IntoIterator<Item = (Slice, SocketAddr, SocketAddr)>,
    ) -> io::Result<usize> {
        // The caller's iterator runs without the stack's lock, which it may itself need.
        let batch: Vec<_> = batch.into_iter().collect();
        self.engine.op(|host, now| {
            let mut sent = 0;
            let mut batch = batch.into_iter().peekable();
            while let Some((data, from, to)) = batch.next() {
                let mut segments = Segments::new(data);
                while let Some((next, ..)) = batch.next_if(|(next, next_from, next_to)| {
                    (*next_from, *next_to) == (from, to) && segments.accept(next)
                }) {
                    segments.push(next);
                }
                let Segments {
                    data, size, count, ..
                } = segments;
                let result = host
                    .udp(self.id)
                    .send_segments(now, data, size, to, Some(from));
                sent += if result.is_ok() { count } else { 0 };
            }
            Ok(sent)
        })
    }
}
