//! UDP on a host: binding sockets, and the input of datagrams.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use fullsend_offload::{Chain, Checksum, Packet};
use fullsend_tcp::{MtuDiscover, PAGE_BYTES, TcpError};
use fullsend_wire::Instant;
use fullsend_wire::udp::UdpRepr;

use crate::ip::{IpMeta, Problem, canonical};
use crate::udp::{DestinationClass, UdpDelivery, UdpMemLimits};
use crate::{Host, IfaceId, StackError};

/// A received datagram, or several of one flow that arrived in one packet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdpDatagram {
    /// The payload.
    pub payload: Chain,
    /// Length of each datagram in `payload`, bytes; the last one may be shorter. It is less than the
    /// payload only where the socket receives datagrams together
    /// ([`UdpHandle::set_gro`](crate::UdpHandle::set_gro)).
    pub segment_size: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The destination address and port.
    pub to: SocketAddr,
    /// Traffic class, including the ECN field.
    pub tos: u8,
    /// TTL or hop limit on arrival.
    pub ttl: u8,
    /// The interface that received it.
    pub iface: IfaceId,
}

impl UdpDatagram {
    /// Returns the number of datagrams in `payload`.
    pub(crate) fn count(&self) -> u64 {
        let count = self.payload.len().div_ceil(self.segment_size.max(1));
        count.max(1) as u64
    }
}

/// An error about a datagram, reported by an ICMP message or by this host (`IP_RECVERR`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpError {
    /// The error that calls on the socket return.
    pub error: TcpError,
    /// Type and code of the ICMP message.
    pub kind: (u8, u8),
    /// MTU of the path, bytes, if the datagram was too long; otherwise 0.
    pub mtu: u32,
    /// The sender of the ICMP message.
    pub offender: IpAddr,
    /// Destination of the datagram.
    pub to: SocketAddr,
    /// The part of the datagram's payload that the ICMP message quotes.
    pub payload: Vec<u8>,
    /// Whether this host refused to send the datagram; then there is no ICMP message.
    pub is_local: bool,
}

/// The ways in which a UDP socket shares its address with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UdpSharing {
    /// `SO_REUSEADDR`: shares the address with other sockets that set it, too. The socket bound
    /// last receives unicast datagrams; all receive multicast and broadcast ones.
    pub reuse_addr: bool,
    /// `SO_REUSEPORT`: shares the address with other sockets that set it, too. A keyed hash
    /// distributes the flows over them.
    pub reuse_port: bool,
}

impl UdpSharing {
    /// Returns whether sockets with these settings may be bound to one address.
    pub(crate) const fn is_compatible_with(self, other: Self) -> bool {
        self.reuse_addr && other.reuse_addr || self.reuse_port && other.reuse_port
    }
}

/// A UDP socket's ID; [`Host::udp`] gives access to it. It is never reused for another socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpId(pub u64);

impl Host {
    /// Binds a UDP socket; for port 0 an ephemeral port is chosen. A socket bound to the
    /// unspecified IPv6 address receives IPv4 datagrams, too, and shows their addresses as IPv4
    /// addresses. An IPv4-mapped IPv6 address stands for the IPv4 address.
    ///
    /// # Errors
    /// [`AddressInUse`](StackError::AddressInUse) if another socket has the address;
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable),
    /// [`TentativeAddress`](StackError::TentativeAddress) or
    /// [`DuplicateAddress`](StackError::DuplicateAddress) if the host cannot use it;
    /// [`NoPorts`](StackError::NoPorts) if no port is free.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, StackError> {
        self.udp_bind_shared(local, UdpSharing::default())
    }

    /// Binds a UDP socket to an address that it may share with other sockets.
    ///
    /// # Errors
    /// The errors of [`udp_bind`](Self::udp_bind).
    pub fn udp_bind_shared(
        &mut self,
        local: SocketAddr,
        sharing: UdpSharing,
    ) -> Result<UdpId, StackError> {
        let local = canonical(local);
        let ip = local.ip();
        if !ip.is_unspecified() && !self.ip.addresses.is_local(ip.into()) {
            return Err(self.not_available(local));
        }
        let [first, last] = self.env.sysctl.ip_local_port_range;
        self.udp
            .bind(local, sharing, (first..=last, &mut self.env.rng))
    }

    /// Opens a UDP socket that receives the unicast datagrams for which no other socket is bound,
    /// to any address and port, the host's own or not (transparent gateways). Answers are sent with
    /// the source address of [`UdpHandle::send_to`](crate::UdpHandle::send_to).
    ///
    /// # Errors
    /// [`AddressInUse`](StackError::AddressInUse) if there is such a socket already.
    pub fn udp_bind_any(&mut self) -> Result<UdpId, StackError> {
        self.udp.bind_any()
    }

    /// Returns the MTU of the path to `to` for datagrams, bytes (`IP_MTU`): the interface's, or a
    /// smaller one that a router reported within the last ten minutes.
    ///
    /// # Errors
    /// [`NoRoute`](StackError::NoRoute) if there is no route.
    pub fn udp_path_mtu(&self, now: Instant, to: IpAddr) -> Result<u32, StackError> {
        self.datagram_mtu(now, (to, None), MtuDiscover::Want)
    }

    /// Returns the limits of queued memory, which the queues of ping sockets share. While the allocator
    /// refuses memory, each socket gets its minimum only.
    pub(crate) fn udp_limits(&self) -> UdpMemLimits {
        let sysctl = &self.env.sysctl;
        let all_bytes = if self.env.mem.is_refused() {
            0
        } else {
            let all = (sysctl.udp_mem[2] as usize).saturating_mul(PAGE_BYTES);
            all.saturating_sub(self.pings.bytes())
        };
        UdpMemLimits {
            all_bytes,
            min_bytes: sysctl.udp_rmem_min as usize,
        }
    }

    /// Processes a UDP packet to a local address or to a group.
    pub(crate) fn udp_input(&mut self, now: Instant, meta: &IpMeta, packet: &mut Packet) {
        let datagrams = u64::from(packet.segments());
        if packet.offload.checksum == Checksum::Unverified {
            return self.udp.count_bad_checksum(!meta.dst.is_v4(), datagrams);
        }
        let Ok(repr) = UdpRepr::parse(packet.transport_header()) else {
            return self.udp.count_bad_checksum(!meta.dst.is_v4(), datagrams);
        };
        let from = SocketAddr::new(meta.src.to_ip(), repr.src_port);
        let to = SocketAddr::new(meta.dst.to_ip(), repr.dst_port);
        let class = if self.ip.addresses.is_local(meta.dst) {
            DestinationClass::Local
        } else if to.ip().is_multicast() || self.ip.addresses.is_broadcast(to.ip()) {
            DestinationClass::Group
        } else {
            DestinationClass::Foreign
        };
        if to.ip().is_multicast() && !self.ip.multicast.is_member(meta.iface, to.ip()) {
            self.ip.multicast.mib.ignored += datagrams;
            return;
        }
        let ttl_offset = if meta.dst.is_v4() { 8 } else { 7 };
        let ttl = packet
            .network_header()
            .get(ttl_offset)
            .copied()
            .unwrap_or(0);
        let limits = self.udp_limits();
        let payload = &packet.payload;
        // GRO and devices that coalesce join datagrams of one size.
        let segment_size = match usize::from(packet.offload.gso_size) {
            0 => payload.len(),
            size => size,
        };
        let datagram = UdpDatagram {
            payload: payload.clone(),
            segment_size,
            from,
            to,
            tos: meta.tos,
            ttl,
            iface: IfaceId(meta.iface),
        };
        if self.udp.input(&datagram, class, limits, &mut self.wakers) == UdpDelivery::NoPort {
            self.send_icmp_error(now, Problem::PortUnreachable, packet);
        }
    }
}
