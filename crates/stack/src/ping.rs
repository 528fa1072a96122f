//! Sockets for ICMP echo requests, like Linux's ping sockets (`SOCK_DGRAM` with `IPPROTO_ICMP`): the
//! host chooses the identifier, by which replies and errors find their socket.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::task::Waker;

use fullsend_offload::Chain;
use fullsend_tcp::TcpError;
use fullsend_wire::Rng;

use crate::ip::compact;
use crate::slab::Slab;
use crate::waiters::WaitList;
use crate::{IfaceId, StackError};

mod handle;
mod input;

pub use handle::PingHandle;

/// Limit of the memory that the replies in one queue hold, bytes: that of a UDP socket.
const RCVBUF: usize = 212_992;
/// Bytes that a reply is charged besides its data.
const OVERHEAD: usize = 256;

/// A ping socket's ID; [`Host::ping`](crate::Host::ping) gives access to it. It is never reused for
/// another socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PingId(pub u64);

/// The answer to an echo request: a reply, or an error that a router or the destination reports.
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
    /// The interface that received it.
    pub iface: IfaceId,
    /// The reason why the request has no reply; `None` for a reply.
    pub error: Option<PingError>,
}

/// An ICMP error about an echo request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PingError {
    /// The meaning of the error.
    pub error: TcpError,
    /// Type and code of the ICMP message.
    pub kind: (u8, u8),
    /// The largest packet that the next link carries, bytes, if the request was too long; otherwise 0.
    pub mtu: u32,
    /// The sender of the ICMP message.
    pub offender: IpAddr,
}

#[derive(Debug)]
struct Socket {
    ident: u16,
    queue: VecDeque<PingReply>,
    /// Memory that `queue` holds, bytes.
    bytes: usize,
    readers: WaitList,
    /// TTL or hop limit of requests; `None` for the defaults.
    ttl: Option<u8>,
    dropped: u64,
}

/// The ping sockets of a host.
#[derive(Debug)]
pub(crate) struct Pings {
    sockets: Slab<Socket>,
    /// The socket of each identifier.
    idents: BTreeMap<u16, u32>,
    /// Memory that the queues of all sockets hold, bytes.
    bytes: usize,
}

/// Returns the memory that a queued reply is charged, bytes.
fn cost(reply: &PingReply) -> usize {
    reply.data.pinned() + OVERHEAD
}

impl Pings {
    pub(crate) const fn new() -> Self {
        Self {
            sockets: Slab::new(),
            idents: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Opens a socket with a free identifier, which a peer cannot predict.
    fn open(&mut self, rng: &mut Rng) -> Result<PingId, StackError> {
        let start = rng.next_u32() as u16;
        let mut idents = (0..=u16::MAX).map(|n| start.wrapping_add(n));
        let free = idents.find(|ident| !self.idents.contains_key(ident));
        let ident = free.ok_or(StackError::NoPorts)?;
        let socket = Socket {
            ident,
            queue: VecDeque::new(),
            bytes: 0,
            readers: WaitList::default(),
            ttl: None,
            dropped: 0,
        };
        let (index, id) = self.sockets.insert(socket).ok_or(StackError::NoPorts)?;
        self.idents.insert(ident, index);
        Ok(PingId(id))
    }

    fn socket(&self, id: PingId) -> Result<&Socket, StackError> {
        self.sockets.peek(id.0).ok_or(StackError::NoSuchSocket)
    }

    fn socket_mut(&mut self, id: PingId) -> Result<&mut Socket, StackError> {
        let socket = self.sockets.by_id(id.0).map(|(_, socket)| socket);
        socket.ok_or(StackError::NoSuchSocket)
    }

    /// Returns the tasks that wait for a reply.
    pub(crate) fn readers(&mut self, id: PingId) -> Option<&mut WaitList> {
        Some(&mut self.socket_mut(id).ok()?.readers)
    }

    /// Returns the memory that the queues of all sockets hold, bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a socket has this identifier.
    fn has_ident(&self, ident: u16) -> bool {
        self.idents.contains_key(&ident)
    }

    /// Queues a reply at the socket with this identifier, if there is one. Returns whether it was
    /// dropped because the queue is full, or because it needs more than `free_bytes` of memory.
    fn enqueue(
        &mut self,
        ident: u16,
        mut reply: PingReply,
        free_bytes: usize,
        wakers: &mut Vec<Waker>,
    ) -> bool {
        let index = self.idents.get(&ident).copied();
        let Some(socket) = index.and_then(|index| self.sockets.get_mut(index)) else {
            return false;
        };
        // A small reply must not keep a large buffer allocated.
        let Some(data) = compact(reply.data) else {
            socket.dropped += 1;
            return true;
        };
        reply.data = data;
        let cost = cost(&reply);
        if socket.bytes + cost > RCVBUF || cost > free_bytes {
            socket.dropped += 1;
            return true;
        }
        self.bytes += cost;
        socket.bytes += cost;
        socket.queue.push_back(reply);
        socket.readers.wake(wakers);
        false
    }

    fn recv(&mut self, id: PingId) -> Result<Option<PingReply>, StackError> {
        let socket = self.socket_mut(id)?;
        let reply = socket.queue.pop_front();
        let cost = reply.as_ref().map_or(0, cost);
        socket.bytes -= cost;
        self.bytes -= cost;
        Ok(reply)
    }

    /// Wakes every task that waits for a reply.
    pub(crate) fn wake_all(&mut self, wakers: &mut Vec<Waker>) {
        for index in self.idents.values() {
            if let Some(socket) = self.sockets.get_mut(*index) {
                socket.readers.wake(wakers);
            }
        }
    }

    fn close(&mut self, id: PingId, wakers: &mut Vec<Waker>) {
        let Some((index, _)) = self.sockets.by_id(id.0) else {
            return;
        };
        if let Some(mut socket) = self.sockets.remove(index) {
            self.idents.remove(&socket.ident);
            self.bytes -= socket.bytes;
            socket.readers.wake(wakers);
        }
    }
}
