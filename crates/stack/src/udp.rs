//! The UDP sockets of a host: which one receives a datagram, and the limits of their memory.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::task::Waker;

use fullsend_offload::{Chain, Checksum, GsoKind, HeaderBuf, Offload, Packet};
use fullsend_wire::Rng;
use fullsend_wire::checksum::Sum;
use fullsend_wire::numbers::protocol;
use fullsend_wire::udp::{CHECKSUM_OFFSET, HEADER_LEN, UdpRepr};
use smallvec::SmallVec;

use crate::demux::FlowKey;
use crate::inspect::{SocketInfo, SocketKind, SocketOwner};
use crate::ip::{compact_beyond, min_path_mtu};
use crate::siphash::SipKey;
use crate::slab::Slab;
use crate::waiters::Waiter;
use crate::{StackError, UdpDatagram, UdpId, UdpSharing};

mod errors;
mod handle;
mod multicast;
mod sent;
mod socket;
#[cfg(test)]
mod tests;

pub use handle::UdpHandle;
use multicast::Membership;
pub use multicast::MulticastSettings;
use sent::SentFlows;
pub(crate) use socket::Socket;
use socket::covers;

/// Bytes that a datagram is charged besides its payload.
const OVERHEAD: usize = 256;
/// Bytes that a queued datagram may keep allocated besides twice its length: in a queue that is at most
/// half full, and in one that is fuller.
const SLACK: usize = 2048;
const FULL_SLACK: usize = 256;
/// Bytes of the IPv4 header and of the IPv6 header.
const IP_HEADER: [usize; 2] = [20, 40];
/// The longest payloads that the length fields of IP allow, bytes.
const MAX_V4: usize = 65_535 - 20 - HEADER_LEN;
const MAX_V6: usize = 65_535 - HEADER_LEN;

fullsend_wire::counters! {
    /// UDP over IPv4. All of them count datagrams, also those that GRO or a device has joined.
    pub(crate) struct UdpMib {
        /// Datagrams delivered to sockets.
        in_datagrams: "UdpInDatagrams",
        /// Datagrams to ports without a socket.
        no_ports: "UdpNoPorts",
        /// Datagrams dropped for any other reason.
        in_errors: "UdpInErrors",
        /// Datagrams sent.
        out_datagrams: "UdpOutDatagrams",
        /// Datagrams dropped because the queue of their socket was full.
        rcvbuf_errors: "UdpRcvbufErrors",
        /// Datagrams dropped because of `udp_mem` or for lack of memory.
        mem_errors: "UdpMemErrors",
        /// Datagrams dropped because of their checksum.
        in_csum_errors: "UdpInCsumErrors",
    }
}

fullsend_wire::counters! {
    /// UDP over IPv6, in datagrams.
    pub(crate) struct Udp6Mib {
        /// Datagrams delivered to sockets.
        in_datagrams: "Udp6InDatagrams",
        /// Datagrams to ports without a socket.
        no_ports: "Udp6NoPorts",
        /// Datagrams dropped for any other reason.
        in_errors: "Udp6InErrors",
        /// Datagrams sent.
        out_datagrams: "Udp6OutDatagrams",
        /// Datagrams dropped because the queue of their socket was full.
        rcvbuf_errors: "Udp6RcvbufErrors",
        /// Datagrams dropped because of `udp_mem` or for lack of memory.
        mem_errors: "Udp6MemErrors",
        /// Datagrams dropped because of their checksum.
        in_csum_errors: "Udp6InCsumErrors",
    }
}

/// Returns the length of the IP and UDP headers of a datagram to `to`, bytes.
pub(crate) const fn headers_len(to: IpAddr) -> usize {
    HEADER_LEN + IP_HEADER[to.is_ipv6() as usize]
}

/// Returns the length of the longest payload to `to`, bytes, whatever the MTU.
pub(crate) const fn max_payload(to: IpAddr) -> usize {
    if to.is_ipv4() { MAX_V4 } else { MAX_V6 }
}

/// Limits of the memory that queued datagrams hold (`udp_mem`, `udp_rmem_min`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdpMemLimits {
    /// Bytes at all sockets together.
    pub(crate) all_bytes: usize,
    /// Bytes that one socket may hold even when `all_bytes` is exceeded.
    pub(crate) min_bytes: usize,
}

/// The kind of a datagram's destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DestinationClass {
    /// An address of the host.
    Local,
    /// A multicast or broadcast address.
    Group,
    /// Another host: only the socket for any destination receives it.
    Foreign,
}

/// The result of delivering a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UdpDelivery {
    /// A socket has queued it, or dropped it for lack of memory.
    Done,
    /// No socket is bound to the destination.
    NoPort,
}

/// Splits a packet's payload into the entries of a queue, which have `size` bytes except for the last
/// one.
fn entries(packet: &UdpDatagram, size: usize) -> impl Iterator<Item = UdpDatagram> {
    let len = packet.payload.len();
    (0..len.max(1)).step_by(size.max(1)).map(move |start| {
        let payload = packet.payload.range(start, size.min(len - start));
        UdpDatagram {
            segment_size: packet.segment_size.min(payload.len()),
            payload,
            ..*packet
        }
    })
}

/// Returns the memory that a datagram is charged, bytes.
fn cost(datagram: &UdpDatagram) -> usize {
    datagram.payload.pinned() + OVERHEAD
}

/// The UDP sockets of a host.
#[derive(Debug)]
pub(crate) struct Udp {
    sockets: Slab<Socket>,
    /// The key of the hash that distributes flows over sockets that share a port.
    key: SipKey,
    ports: BTreeMap<u16, Vec<u32>>,
    /// The socket that receives the unicast datagrams for which no other socket is bound, the
    /// host's own or not.
    any: Option<u32>,
    /// Memory that the datagrams at all sockets hold, bytes.
    bytes: usize,
    /// Flows of sent datagrams that were long enough to be too big for a path.
    sent: SentFlows,
    pub(crate) v4: UdpMib,
    pub(crate) v6: Udp6Mib,
}

impl Udp {
    pub(crate) fn new(key: SipKey) -> Self {
        Self {
            sockets: Slab::new(),
            key,
            ports: BTreeMap::new(),
            any: None,
            bytes: 0,
            sent: SentFlows::default(),
            v4: UdpMib::default(),
            v6: Udp6Mib::default(),
        }
    }

    /// Limits the record of sent flows to about `bytes` of memory.
    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.sent.limit_memory(bytes);
    }

    /// Binds to a local or an unspecified address. For port 0 a port is chosen from `range` (RFC
    /// 6056 3.3.1).
    pub(crate) fn bind(
        &mut self,
        mut local: SocketAddr,
        sharing: UdpSharing,
        (range, rng): (RangeInclusive<u16>, &mut Rng),
    ) -> Result<UdpId, StackError> {
        if local.port() == 0 {
            local.set_port(self.free_port(range, rng).ok_or(StackError::NoPorts)?);
        } else if self.conflicts(local, sharing) {
            return Err(StackError::AddressInUse(local));
        }
        let (index, id) = self.insert(local, sharing)?;
        self.ports.entry(local.port()).or_default().push(index);
        Ok(UdpId(id))
    }

    /// Opens the socket for datagrams to any destination for which no other socket is bound.
    pub(crate) fn bind_any(&mut self) -> Result<UdpId, StackError> {
        let local = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        if self.any.is_some() {
            return Err(StackError::AddressInUse(local));
        }
        let (index, id) = self.insert(local, UdpSharing::default())?;
        // A gateway relays broadcasts.
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.set_broadcast(true);
        }
        self.any = Some(index);
        Ok(UdpId(id))
    }

    /// Returns the memory that the datagrams at all sockets hold, bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a socket receives datagrams to any destination.
    pub(crate) const fn has_any(&self) -> bool {
        self.any.is_some()
    }

    fn insert(&mut self, local: SocketAddr, sharing: UdpSharing) -> Result<(u32, u64), StackError> {
        let socket = Socket::new(local, sharing);
        self.sockets.insert(socket).ok_or(StackError::NoPorts)
    }

    fn free_port(&self, range: RangeInclusive<u16>, rng: &mut Rng) -> Option<u16> {
        let count = range.len() as u64;
        let start = rng.below(count);
        (0..count)
            .map(|n| range.start() + ((start + n) % count) as u16)
            .find(|port| !self.ports.contains_key(port))
    }

    fn conflicts(&self, local: SocketAddr, sharing: UdpSharing) -> bool {
        let bound = self.ports.get(&local.port()).into_iter().flatten();
        bound
            .filter_map(|&index| self.sockets.get(index))
            .filter(|s| !s.sharing.is_compatible_with(sharing))
            .any(|s| covers(s.local.ip(), local.ip()) || covers(local.ip(), s.local.ip()))
    }

    /// Returns the socket with this ID, to read it.
    pub(crate) fn socket(&self, id: UdpId) -> Result<&Socket, StackError> {
        self.sockets.peek(id.0).ok_or(StackError::NoSuchSocket)
    }

    /// Returns the number of slots, used or not.
    pub(crate) fn slots(&self) -> usize {
        self.sockets.slots()
    }

    /// Returns a description of the socket of a slot, for [`Host::sockets`](crate::Host::sockets).
    pub(crate) fn info(&self, slot: u32) -> Option<SocketInfo> {
        let socket = self.sockets.get(slot)?;
        Some(SocketInfo {
            id: self.sockets.id(slot)?,
            kind: SocketKind::Udp,
            state: if socket.remote.is_some() {
                "ESTAB"
            } else {
                "UNCONN"
            },
            owner: SocketOwner::User,
            local: socket.local(),
            remote: socket.remote,
            recv_q: socket.bytes as u64,
            send_q: 0,
            timer: None,
            tcp: None,
        })
    }

    /// Iterates over the sockets that accept datagrams from `from` to `to`, in the order of
    /// binding, each with its rank: a socket bound to exactly this address precedes one bound to a
    /// wildcard.
    fn receivers(
        &self,
        from: SocketAddr,
        to: SocketAddr,
    ) -> impl Iterator<Item = ((bool, bool, bool), u32, &Socket)> {
        let bound = self.ports.get(&to.port()).into_iter().flatten();
        bound
            .filter_map(|&index| Some((self.sockets.get(index)?, index)))
            .filter(move |(socket, _)| socket.has_address(to.ip()))
            .filter(move |(socket, _)| socket.remote.is_none_or(|remote| remote == from))
            .map(|(socket, index)| {
                let own = socket.local.ip();
                let rank = (
                    socket.remote.is_some(),
                    !own.is_unspecified(),
                    own.is_ipv4(),
                );
                (rank, index, socket)
            })
    }

    /// Returns the socket that receives a unicast datagram: the one with the highest rank, and of
    /// several the one bound last. In a group that shares a port (`SO_REUSEPORT`), the keyed hash
    /// of the flow selects the socket.
    fn select_receiver(&self, from: SocketAddr, to: SocketAddr) -> Option<u32> {
        let (rank, index, socket) = self.receivers(from, to).max_by_key(|(rank, ..)| *rank)?;
        if !socket.sharing.reuse_port {
            return Some(index);
        }
        let flow = FlowKey::new(to, from).hash(self.key);
        let group = self
            .receivers(from, to)
            .filter(|(own, _, socket)| *own == rank && socket.sharing.reuse_port);
        let scores = group.map(|(_, index, _)| (self.key.hash([flow], index), index));
        scores.max().map(|(_, index)| index)
    }

    /// Delivers the datagrams of a packet to their socket. Multicast and broadcast datagrams are
    /// delivered to every socket that accepts them.
    pub(crate) fn input(
        &mut self,
        packet: &UdpDatagram,
        class: DestinationClass,
        limits: UdpMemLimits,
        wakers: &mut Vec<Waker>,
    ) -> UdpDelivery {
        let (from, to) = (packet.from, packet.to);
        let indices: SmallVec<[u32; 4]> = match class {
            DestinationClass::Group => self
                .receivers(from, to)
                .map(|(_, index, _)| index)
                .collect(),
            DestinationClass::Local => {
                let receiver = self.select_receiver(from, to).or(self.any);
                receiver.into_iter().collect()
            }
            DestinationClass::Foreign => self.any.into_iter().collect(),
        };
        if indices.is_empty() {
            *self.no_ports(to.is_ipv6()) += packet.count();
            return UdpDelivery::NoPort;
        }
        for index in indices {
            let gro = self.sockets.get(index).is_some_and(|socket| socket.gro);
            let size = if gro {
                packet.payload.len()
            } else {
                packet.segment_size
            };
            for entry in entries(packet, size) {
                self.enqueue(index, entry, limits, wakers);
            }
        }
        UdpDelivery::Done
    }

    fn enqueue(
        &mut self,
        index: u32,
        mut datagram: UdpDatagram,
        limits: UdpMemLimits,
        wakers: &mut Vec<Waker>,
    ) {
        let v6 = datagram.to.is_ipv6();
        let datagrams = datagram.count();
        let Some(socket) = self.sockets.get_mut(index) else {
            return;
        };
        let full = |socket: &Socket, cost: usize| socket.bytes + cost > socket.rcvbuf;
        let all = self.bytes;
        let exceeds = |socket: &Socket, cost| {
            all + cost > limits.all_bytes && socket.bytes + cost > limits.min_bytes
        };
        // A datagram that has no room even without unused memory is dropped before it is copied.
        let least = datagram.payload.len() + OVERHEAD;
        if !full(socket, least) && !exceeds(socket, least) {
            // A small datagram must not keep a large buffer allocated, least of all in a queue that
            // fills.
            let is_filling = socket.bytes > socket.rcvbuf / 2;
            let slack = if is_filling { FULL_SLACK } else { SLACK };
            let Some(payload) = compact_beyond(datagram.payload, slack) else {
                return self.count_no_memory(v6, datagrams);
            };
            datagram.payload = payload;
        }
        let cost = cost(&datagram);
        if full(socket, cost) {
            *self.rcvbuf_errors(v6) += datagrams;
            *self.in_errors(v6) += datagrams;
            return;
        }
        if exceeds(socket, cost) {
            return self.count_no_memory(v6, datagrams);
        }
        self.bytes += cost;
        socket.bytes += cost;
        socket.queue.push_back(datagram);
        socket.readers.wake(wakers);
        *self.in_datagrams(v6) += datagrams;
    }

    /// Takes the next datagram from the socket's queue.
    pub(crate) fn recv(&mut self, id: UdpId) -> Result<Option<UdpDatagram>, StackError> {
        let (_, socket) = self.sockets.by_id(id.0).ok_or(StackError::NoSuchSocket)?;
        let received = socket.queue.pop_front();
        if let Some(datagram) = &received {
            let cost = cost(datagram);
            socket.bytes -= cost;
            self.bytes -= cost;
        }
        Ok(received)
    }

    /// Returns the socket with this ID.
    pub(crate) fn socket_mut(&mut self, id: UdpId) -> Result<&mut Socket, StackError> {
        let socket = self.sockets.by_id(id.0).map(|(_, socket)| socket);
        socket.ok_or(StackError::NoSuchSocket)
    }

    /// Returns whether there is a datagram to receive or an error to report. If not, `waiter` is
    /// woken once when there is one.
    pub(crate) fn readable(
        &mut self,
        id: UdpId,
        waiter: Waiter<'_>,
        replaced_wakers: &mut Vec<Waker>,
    ) -> Result<bool, StackError> {
        let (_, socket) = self.sockets.by_id(id.0).ok_or(StackError::NoSuchSocket)?;
        if !socket.queue.is_empty() || socket.has_error() {
            return Ok(true);
        }
        socket.readers.register(waiter, replaced_wakers);
        Ok(false)
    }

    /// Wakes every task that waits for a datagram.
    pub(crate) fn wake_all(&mut self, wakers: &mut Vec<Waker>) {
        for index in 0..self.sockets.slots() as u32 {
            if let Some(socket) = self.sockets.get_mut(index) {
                socket.readers.wake(wakers);
            }
        }
    }

    /// Closes a socket and wakes the tasks that wait on it. Returns the groups that it had joined.
    pub(crate) fn close(&mut self, id: UdpId, wakers: &mut Vec<Waker>) -> Vec<Membership> {
        let Some((index, _)) = self.sockets.by_id(id.0) else {
            return Vec::new();
        };
        let Some(mut socket) = self.sockets.remove(index) else {
            return Vec::new();
        };
        self.bytes -= socket.bytes;
        socket.readers.wake(wakers);
        self.any = self.any.filter(|&any| any != index);
        if let Some(bound) = self.ports.get_mut(&socket.local.port()) {
            bound.retain(|&one| one != index);
            if bound.is_empty() {
                self.ports.remove(&socket.local.port());
            }
        }
        socket.memberships
    }

    /// Builds a packet with datagrams of `size` bytes of socket `id` for IP to send, the last one
    /// possibly shorter. The device or the interface segments it and completes the checksums.
    pub(crate) fn output(
        &mut self,
        id: UdpId,
        from: SocketAddr,
        to: SocketAddr,
        (data, size): (Chain, usize),
    ) -> Result<Packet, StackError> {
        let max = max_payload(to.ip());
        let len = data.len();
        if len > max {
            return Err(StackError::MessageTooLong { len, max });
        }
        let mut header = HeaderBuf::new();
        let repr = UdpRepr {
            src_port: from.port(),
            dst_port: to.port(),
            payload_len: len as u16,
        };
        let out = header.prepend(HEADER_LEN);
        repr.emit(out);
        let sum = Sum::pseudo(from.ip(), to.ip(), protocol::UDP, (HEADER_LEN + len) as u32);
        out[CHECKSUM_OFFSET..].copy_from_slice(&sum.fold().to_be_bytes());
        let segments = len.div_ceil(size.max(1)).max(1);
        *self.out_datagrams(to.is_ipv6()) += segments as u64;
        if headers_len(to.ip()) + size > min_path_mtu(to.ip()) as usize {
            let flow = FlowKey::new(from, to).hash(self.key);
            self.sent.record(flow);
            let socket = self.socket_mut(id)?;
            socket.sent_long |= socket.remote == Some(to);
        }
        let segmentation = if segments > 1 {
            Offload {
                kind: GsoKind::Udp,
                gso_size: size as u16,
                gso_segs: segments as u16,
                ..Offload::default()
            }
        } else {
            Offload::default()
        };
        Ok(Packet {
            header,
            payload: data,
            offload: Offload {
                checksum: Checksum::Partial,
                ..segmentation
            },
            ..Packet::default()
        })
    }

    /// Counts datagrams that are dropped for lack of memory.
    #[cold]
    fn count_no_memory(&mut self, v6: bool, datagrams: u64) {
        *self.mem_errors(v6) += datagrams;
        *self.in_errors(v6) += datagrams;
    }

    /// Counts datagrams whose checksum is wrong.
    pub(crate) fn count_bad_checksum(&mut self, v6: bool, datagrams: u64) {
        *self.in_csum_errors(v6) += datagrams;
        *self.in_errors(v6) += datagrams;
    }
}

macro_rules! counter_of_family {
    ($($name:ident)*) => {
        impl Udp {
            $(const fn $name(&mut self, v6: bool) -> &mut u64 {
                if v6 { &mut self.v6.$name } else { &mut self.v4.$name }
            })*
        }
    };
}

counter_of_family!(in_datagrams no_ports in_errors out_datagrams rcvbuf_errors mem_errors in_csum_errors);
