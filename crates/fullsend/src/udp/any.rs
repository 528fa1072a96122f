//! UDP for transparent gateways: any destination, and any source.

use std::io;
use std::net::SocketAddr;

use fullsend_offload::Slice;

use super::UdpSocket;
use super::batch::Segments;
use crate::error::io_error;
use crate::stack::Stack;

impl UdpSocket {
    /// Opens the socket of a transparent gateway: it receives the datagrams to every unicast address
    /// and port, the stack's own or not, for which no other socket is bound. Answers are sent with
    /// [`send_from`](Self::send_from). `queue_bytes` limits the memory of received datagrams that
    /// wait for the application. Broadcasts may be sent.
    ///
    /// # Errors
    /// `AddrInUse` if the stack has such a socket already; the stack's error if it has stopped.
    pub fn bind_any(stack: &Stack, queue_bytes: usize) -> io::Result<Self> {
        let id = stack.engine.op(|host, _| {
            let id = host.udp_bind_any().map_err(io_error)?;
            host.udp(id).set_rcvbuf(queue_bytes).map_err(io_error)?;
            Ok(id)
        })?;
        Ok(Self::new(stack, id))
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
                    (*next_from, *next_to) == (from, to) && segments.accept(next.len())
                }) {
                    segments.push(next);
                }
                let result = segments.send(&mut host.udp(self.id), now, to, Some(from));
                sent += result.unwrap_or(0);
            }
            Ok(sent)
        })
    }
}
