//! The UDP socket calls of applications.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::task::Waker;

use fullsend_buf::{Chain, Slice};
use fullsend_offload::{Checksum, Packet};
use fullsend_tcp::{IpSettings, MtuDiscover, PAGE_BYTES, TcpError};
use fullsend_units::Instant;
use fullsend_wire::numbers::protocol;
use fullsend_wire::udp::UdpRepr;

use crate::ip::{IpMeta, Problem};
use crate::udp::{UdpDelivery, UdpMemLimits, headers_len, max_payload};
use crate::waiters::Waiter;
use crate::{Host, IfaceId, Interest, StackError};

/// A received datagram.
#[derive(Clone, Debug)]
pub struct UdpDatagram {
    /// The payload.
    pub payload: Chain,
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

/// A UDP socket's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpId(pub u64);

impl Host {
    /// Binds a UDP socket; for port 0 an ephemeral port is chosen. A socket bound to the
    /// unspecified IPv6 address receives IPv4 datagrams, too, and shows their addresses as IPv4
    /// addresses.
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
    /// Those of [`udp_bind`](Self::udp_bind).
    pub fn udp_bind_shared(
        &mut self,
        local: SocketAddr,
        sharing: UdpSharing,
    ) -> Result<UdpId, StackError> {
        let ip = local.ip();
        if !ip.is_unspecified() && !self.ip.addresses.is_local(ip.into()) {
            return Err(self.not_available(local));
        }
        let [first, last] = self.env.sysctl.ip_local_port_range;
        self.udp
            .bind(local, sharing, (first..=last, &mut self.env.rng))
    }

    /// Sets how the socket shares its address from now on.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_set_sharing(&mut self, id: UdpId, sharing: UdpSharing) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_sharing(sharing);
        Ok(())
    }

    /// Returns the bound address.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_addr(&self, id: UdpId) -> Result<SocketAddr, StackError> {
        self.udp.addr(id)
    }

    /// Sends one datagram; `source` overrides the source address and port (gateways).
    ///
    /// # Errors
    /// [`MessageTooLong`](StackError::MessageTooLong) if the length field of IP cannot hold the
    /// datagram, or if it must not be fragmented ([`MtuDiscover::Do`], [`MtuDiscover::Probe`]) and
    /// does not fit the MTU. A socket that keeps errors keeps that one, too.
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable) if source and destination are of
    /// different families, [`NoRoute`](StackError::NoRoute) if there is no route or no source
    /// address, and [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_send(
        &mut self,
        now: Instant,
        id: UdpId,
        data: Slice,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), StackError> {
        let local = self.udp.addr(id)?;
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let from = match source {
            Some(source) if source.is_ipv4() == to.is_ipv4() => source,
            Some(source) => return Err(StackError::AddressNotAvailable(source)),
            None if !local.ip().is_unspecified() => local,
            None => SocketAddr::new(self.source_for(to.ip())?, local.port()),
        };
        if from.is_ipv4() != to.is_ipv4() {
            return Err(StackError::AddressNotAvailable(from));
        }
        let settings = self.udp.socket_mut(id)?.ip_settings(to.ip());
        self.check_datagram_len(now, id, (to, data.len()), settings.mtu_discover)?;
        let packet = self.udp.output(id, from, to, data)?;
        let addrs = (from.ip().into(), to.ip().into());
        self.ip_output(now, addrs, (protocol::UDP, settings), packet)
    }

    /// Returns an error if a datagram of `len` bytes is too long for IP, or if it is too long for
    /// the MTU and must not be fragmented.
    fn check_datagram_len(
        &mut self,
        now: Instant,
        id: UdpId,
        (to, len): (SocketAddr, usize),
        mtu_discover: MtuDiscover,
    ) -> Result<(), StackError> {
        let mut max = max_payload(to.ip());
        let unfragmented = matches!(mtu_discover, MtuDiscover::Do | MtuDiscover::Probe);
        if !unfragmented && len <= max {
            return Ok(());
        }
        let Ok(mtu) = self.datagram_mtu(now, to.ip(), mtu_discover) else {
            // IP reports and counts that there is no route.
            return Ok(());
        };
        if unfragmented {
            max = max.min((mtu as usize).saturating_sub(headers_len(to.ip())));
        }
        if len <= max {
            return Ok(());
        }
        // As on Linux: no IPv4 socket can send more than 65,535 bytes, whatever the path MTU.
        if to.is_ipv6() || u16::try_from(len).is_ok() {
            self.udp
                .on_message_too_long(id, (to, mtu), &mut self.wakers)?;
        }
        Err(StackError::MessageTooLong { len, max })
    }

    /// Returns the MTU of the path to `to` for datagrams, bytes (`IP_MTU`): the interface's, or a
    /// smaller one that a router reported within the last ten minutes.
    ///
    /// # Errors
    /// [`NoRoute`](StackError::NoRoute) if there is no route.
    pub fn udp_path_mtu(&self, now: Instant, to: IpAddr) -> Result<u32, StackError> {
        self.datagram_mtu(now, to, MtuDiscover::Want)
    }

    /// Takes the next datagram and returns its payload, its sender and its destination address.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
    ) -> Result<Option<(Chain, SocketAddr, SocketAddr)>, StackError> {
        let received = self.udp.recv(id)?;
        Ok(received.map(|datagram| (datagram.payload, datagram.from, datagram.to)))
    }

    /// Takes the next datagram with its metadata.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_recv_datagram(&mut self, id: UdpId) -> Result<Option<UdpDatagram>, StackError> {
        self.udp.recv(id)
    }

    /// Returns the next datagram and leaves it in the queue.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_peek_datagram(&mut self, id: UdpId) -> Result<Option<UdpDatagram>, StackError> {
        Ok(self.udp.socket_mut(id)?.peek())
    }

    /// Sets whether errors about the socket's datagrams, to any peer, are kept (`IP_RECVERR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_keep_errors(&mut self, id: UdpId, on: bool) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.keep_errors(on);
        Ok(())
    }

    /// Takes the oldest kept error.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_take_kept_error(&mut self, id: UdpId) -> Result<Option<UdpError>, StackError> {
        Ok(self.udp.socket_mut(id)?.take_kept_error())
    }

    /// Returns whether [`udp_take_kept_error`](Self::udp_take_kept_error) would return an error.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_has_kept_errors(&mut self, id: UdpId) -> Result<bool, StackError> {
        Ok(self.udp.socket_mut(id)?.has_kept_errors())
    }

    /// Returns whether the socket is ready now. If not, `waiter` is woken once when it becomes
    /// ready. A UDP socket is always writable: a datagram for which a queue has no room is dropped.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_poll_ready<'a>(
        &mut self,
        id: UdpId,
        interest: Interest,
        waiter: impl Into<Waiter<'a>>,
    ) -> Result<bool, StackError> {
        match interest {
            Interest::Read => self
                .udp
                .readable(id, waiter.into(), &mut self.replaced_wakers),
            Interest::Write => self.udp.addr(id).map(|_| true),
        }
    }

    /// Accepts datagrams and ICMP errors of `remote` only from now on, or of all peers if `None`.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_connect(&mut self, id: UdpId, remote: Option<SocketAddr>) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.connect(remote);
        Ok(())
    }

    /// Takes the pending error that ICMP reported (`SO_ERROR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_take_error(&mut self, id: UdpId) -> Result<Option<TcpError>, StackError> {
        Ok(self.udp.socket_mut(id)?.take_error())
    }

    /// Returns whether [`udp_take_error`](Self::udp_take_error) would return an error.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_has_error(&mut self, id: UdpId) -> Result<bool, StackError> {
        Ok(self.udp.socket_mut(id)?.has_error())
    }

    /// Returns the payload length of the first queued datagram, bytes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_first_len(&mut self, id: UdpId) -> Result<Option<usize>, StackError> {
        Ok(self.udp.socket_mut(id)?.first_len())
    }

    /// Sets the limit of the memory that queued datagrams hold, bytes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_set_rcvbuf(&mut self, id: UdpId, bytes: usize) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_rcvbuf(bytes);
        Ok(())
    }

    /// Sets fields of the IP headers of the socket's datagrams. `mtu_discover` applies to IPv4
    /// only.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_set_ip(&mut self, id: UdpId, settings: IpSettings) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_ip(settings);
        Ok(())
    }

    /// Sets the path MTU discovery mode of IPv6 datagrams (`IPV6_MTU_DISCOVER`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_set_v6_mtu_discover(
        &mut self,
        id: UdpId,
        mtu_discover: MtuDiscover,
    ) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_v6_mtu_discover(mtu_discover);
        Ok(())
    }

    /// Wakes `waker` once, at the next datagram or error, even if there are queued ones already.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the handle is not valid.
    pub fn udp_watch(&mut self, id: UdpId, waker: &Waker) -> Result<(), StackError> {
        let readers = self.udp.socket_mut(id)?.readers();
        readers.register(waker.into(), &mut self.replaced_wakers);
        Ok(())
    }

    /// Closes the socket. Waiting tasks are woken.
    pub fn udp_close(&mut self, id: UdpId) {
        self.udp.close(id, &mut self.wakers);
    }

    /// Returns the limits of queued memory. While the allocator refuses memory, each socket gets
    /// its minimum only.
    fn udp_limits(&self) -> UdpMemLimits {
        let sysctl = &self.env.sysctl;
        let all_bytes = if self.env.mem.is_refused() {
            0
        } else {
            (sysctl.udp_mem[2] as usize).saturating_mul(PAGE_BYTES)
        };
        UdpMemLimits {
            all_bytes,
            min_bytes: sysctl.udp_rmem_min as usize,
        }
    }

    /// Processes a UDP packet to a local address or to a group.
    pub(crate) fn udp_input(&mut self, now: Instant, meta: &IpMeta, packet: &mut Packet) {
        if packet.offload.checksum == Checksum::Unverified {
            return self.udp.count_bad_checksum(!meta.dst.is_v4());
        }
        let Ok(repr) = UdpRepr::parse(packet.transport_header()) else {
            return self.udp.count_bad_checksum(!meta.dst.is_v4());
        };
        let from = SocketAddr::new(meta.src.to_ip(), repr.src_port);
        let to = SocketAddr::new(meta.dst.to_ip(), repr.dst_port);
        let group = !self.ip.addresses.is_local(meta.dst);
        let ttl_offset = if meta.dst.is_v4() { 8 } else { 7 };
        let ttl = packet
            .network_header()
            .get(ttl_offset)
            .copied()
            .unwrap_or(0);
        let limits = self.udp_limits();
        let payload = &packet.payload;
        // GRO and devices that coalesce join datagrams of one size; readers get each of them.
        let size = match usize::from(packet.offload.gso_size) {
            0 => payload.len(),
            size => size,
        };
        let mut start = 0;
        loop {
            let len = size.min(payload.len() - start);
            let datagram = UdpDatagram {
                payload: payload.range(start, len),
                from,
                to,
                tos: meta.tos,
                ttl,
                iface: IfaceId(meta.iface),
            };
            if self.udp.input(datagram, group, limits, &mut self.wakers) == UdpDelivery::NoPort {
                return self.send_icmp_error(now, Problem::PortUnreachable, packet);
            }
            start += len;
            if start == payload.len() {
                return;
            }
        }
    }
}
