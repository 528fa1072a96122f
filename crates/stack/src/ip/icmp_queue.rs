//! ICMP messages that an application processes in place of the host (transparent gateways): echo
//! requests to other hosts, and router solicitations.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::task::Waker;

use fullsend_offload::Packet;
use fullsend_offload::{Chain, Slice};
use fullsend_tcp::{IpSettings, TcpError};
use fullsend_wire::Instant;
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::numbers::protocol;

use super::reassembly::compact;
use super::{IpMeta, icmp};
use crate::waiters::{WaitList, Waiter};
use crate::{Host, StackError};

/// Limit of the memory that queued messages hold, bytes. The same as that of a UDP socket.
const QUEUE_BYTES: usize = 212_992;
/// Bytes that a message is charged besides its data.
const OVERHEAD: usize = 256;

/// The types of the messages that applications receive.
mod kind {
    pub(super) const ECHO_REQUEST: u8 = 8;
    pub(super) const ECHO_REQUEST_V6: u8 = 128;
    pub(super) const ROUTER_SOLICIT: u8 = 133;
}

/// An ICMP or ICMPv6 message, from [`Host::icmp_recv`].
#[derive(Clone, Debug)]
pub struct IcmpMessage {
    /// The message, beginning with its type. Its checksum has been verified.
    pub message: Chain,
    /// The sender.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// TTL or hop limit on arrival.
    pub ttl: u8,
}

/// The queue of an application. Messages are queued only while it is open.
#[derive(Debug, Default)]
pub(crate) struct IcmpQueue {
    open: bool,
    queue: VecDeque<IcmpMessage>,
    /// Memory that `queue` holds, bytes.
    bytes: usize,
    readers: WaitList,
    /// Messages dropped because the queue was full.
    dropped: u64,
}

fn cost(message: &IcmpMessage) -> usize {
    message.message.pinned() + OVERHEAD
}

impl IcmpQueue {
    pub(crate) const fn is_open(&self) -> bool {
        self.open
    }

    /// Returns the tasks that wait for a message.
    pub(crate) const fn readers(&mut self) -> &mut WaitList {
        &mut self.readers
    }

    fn push(&mut self, mut message: IcmpMessage, wakers: &mut Vec<Waker>) {
        // A small message must not keep a large buffer allocated.
        let Some(compacted) = compact(message.message) else {
            self.dropped += 1;
            return;
        };
        message.message = compacted;
        let cost = cost(&message);
        if self.bytes + cost > QUEUE_BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += cost;
        self.queue.push_back(message);
        self.readers.wake(wakers);
    }

    fn pop(&mut self) -> Option<IcmpMessage> {
        let message = self.queue.pop_front()?;
        self.bytes -= cost(&message);
        Some(message)
    }
}

impl Host {
    /// Starts queueing the ICMP messages that an application processes in place of the host: echo
    /// requests to addresses that are not the host's, and router solicitations. The queue holds at
    /// most 208 KiB; further messages are dropped.
    ///
    /// # Errors
    /// [`AddressInUse`](StackError::AddressInUse) if they are queued already.
    pub fn icmp_open(&mut self) -> Result<(), StackError> {
        if self.ip.icmp_queue.open {
            let all = SocketAddr::from(([0, 0, 0, 0], 0));
            return Err(StackError::AddressInUse(all));
        }
        self.ip.icmp_queue.open = true;
        Ok(())
    }

    /// Stops queueing messages and discards those in the queue.
    pub fn icmp_close(&mut self) {
        let mut closed = core::mem::take(&mut self.ip.icmp_queue);
        closed.readers.wake(&mut self.wakers);
    }

    /// Takes the next message.
    pub fn icmp_recv(&mut self) -> Option<IcmpMessage> {
        self.ip.icmp_queue.pop()
    }

    /// Returns the number of messages that were dropped because the queue was full.
    pub const fn icmp_dropped(&self) -> u64 {
        self.ip.icmp_queue.dropped
    }

    /// Returns whether there is a message to receive. If not, `waiter` is woken once when there is
    /// one.
    pub fn icmp_poll_ready<'a>(&mut self, waiter: impl Into<Waiter<'a>>) -> bool {
        let icmp_queue = &mut self.ip.icmp_queue;
        if icmp_queue.queue.is_empty() {
            icmp_queue
                .readers
                .register(waiter.into(), &mut self.replaced_wakers);
            return false;
        }
        true
    }

    /// Sends an ICMP or ICMPv6 message from `from`, which need not be an address of the host, to
    /// `to`. The checksum in `message` is replaced by the correct one. `ttl` is the TTL or hop
    /// limit; with `None`, the default.
    ///
    /// # Errors
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable) if the addresses are of different
    /// families; [`InvalidValue`](TcpError::InvalidValue) for a message of fewer than 8 bytes;
    /// [`NoRoute`](StackError::NoRoute) if there is no route.
    pub fn icmp_send(
        &mut self,
        now: Instant,
        (from, to): (IpAddr, IpAddr),
        mut message: Vec<u8>,
        ttl: Option<u8>,
    ) -> Result<(), StackError> {
        if message.len() < icmp::HEADER_LEN {
            return Err(TcpError::InvalidValue.into());
        }
        message[2..4].fill(0);
        let (pseudo, protocol) = match (from, to) {
            (IpAddr::V4(_), IpAddr::V4(_)) => (Sum::ZERO, protocol::ICMP),
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let len = message.len() as u32;
                let pseudo = Sum::pseudo_v6(from, to, protocol::ICMPV6, len);
                (pseudo, protocol::ICMPV6)
            }
            _ => return Err(StackError::AddressNotAvailable((from, 0).into())),
        };
        let checksum = (pseudo + sum(&message)).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        self.ip.icmp.count_out(to.is_ipv6());
        let settings = IpSettings {
            ttl,
            ..IpSettings::default()
        };
        let packet = Packet::from_frame(Slice::copied_from(&message));
        let addrs = (from.into(), to.into());
        self.ip_output(now, addrs, None, (protocol, settings), packet)
    }

    /// Processes an ICMP message to another host: queues it if it is an echo request with a correct
    /// checksum.
    pub(super) fn foreign_icmp_input(&mut self, meta: &IpMeta, packet: &Packet) {
        let (from, to) = (meta.src.to_ip(), meta.dst.to_ip());
        let mut kind = [0];
        packet.payload.copy_to(&mut kind);
        let echo = if to.is_ipv6() {
            kind::ECHO_REQUEST_V6
        } else {
            kind::ECHO_REQUEST
        };
        if self.ip.icmp.check_foreign((from, to), &packet.payload) && kind == [echo] {
            self.queue_icmp(meta, packet);
        }
    }

    /// Queues a Neighbour Discovery message for the application if it is a router solicitation that
    /// no router has forwarded (RFC 4861 6.1.1). Its checksum has been verified.
    pub(super) fn queue_router_solicit(
        &mut self,
        meta: &IpMeta,
        packet: &Packet,
        (kind, hop_limit): (u8, u8),
    ) {
        if kind == kind::ROUTER_SOLICIT && hop_limit == u8::MAX && self.ip.icmp_queue.open {
            self.queue_icmp(meta, packet);
        }
    }

    fn queue_icmp(&mut self, meta: &IpMeta, packet: &Packet) {
        let ttl_offset = if meta.dst.is_v4() { 8 } else { 7 };
        let ttl = packet.network_header().get(ttl_offset).copied();
        let message = IcmpMessage {
            message: packet.payload.clone(),
            from: meta.src.to_ip(),
            to: meta.dst.to_ip(),
            ttl: ttl.unwrap_or(0),
        };
        self.ip.icmp_queue.push(message, &mut self.wakers);
    }
}
