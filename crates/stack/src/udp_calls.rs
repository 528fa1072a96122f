//! UDP sockets between users and IP.

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
use crate::udp::{Delivery, Limits, headers_len, max_payload};
use crate::waiters::Waiter;
use crate::{Host, IfaceId, Interest, StackError};

/// A datagram that arrived.
#[derive(Clone, Debug)]
pub struct UdpDatagram {
    /// Its bytes.
    pub payload: Chain,
    /// Who sent it.
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: SocketAddr,
    /// Traffic class, ECN included.
    pub tos: u8,
    /// TTL or hop limit, as it arrived.
    pub ttl: u8,
    /// By which interface.
    pub iface: IfaceId,
}

/// An error about a datagram, as an ICMP message or this host reports it (`IP_RECVERR`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpError {
    /// The error that calls on the socket return.
    pub error: TcpError,
    /// Type and code of the ICMP message.
    pub kind: (u8, u8),
    /// MTU of the path in bytes if the datagram was longer, else 0.
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

/// With whom a UDP socket shares its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UdpSharing {
    /// `SO_REUSEADDR`: with others that have it too; the one that was bound last gets what is for
    /// one, and all what is for a group.
    pub reuse_addr: bool,
    /// `SO_REUSEPORT`: with others that have it too; each gets the flows that its share of the
    /// hash names.
    pub reuse_port: bool,
}

impl UdpSharing {
    /// Both may have one address.
    pub(crate) const fn bears(self, other: Self) -> bool {
        self.reuse_addr && other.reuse_addr || self.reuse_port && other.reuse_port
    }
}

/// A UDP socket's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpId(pub u64);

impl Host {
    /// Binds; port 0 means "choose". An unspecified IPv6 address takes IPv4 too, and shows the
    /// IPv4 addresses as such.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, StackError> {
        self.udp_bind_shared(local, UdpSharing::default())
    }

    /// [`udp_bind`](Self::udp_bind) of an address that others may have, too.
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

    /// With whom it shares its address from now on.
    pub fn udp_set_sharing(&mut self, id: UdpId, sharing: UdpSharing) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_sharing(sharing);
        Ok(())
    }

    /// The bound address.
    pub fn udp_addr(&self, id: UdpId) -> Result<SocketAddr, StackError> {
        self.udp.addr(id)
    }

    /// Sends one datagram; `source` overrides the source address (gateways).
    ///
    /// # Errors
    /// [`MessageTooLong`](StackError::MessageTooLong) if IP's length field cannot hold the datagram,
    /// or if it must not be fragmented ([`MtuDiscover::Do`], [`MtuDiscover::Probe`]) and does not fit
    /// the MTU. A socket that keeps errors keeps that one, too.
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
        let ends = (from.ip().into(), to.ip().into());
        self.ip_output(now, ends, (protocol::UDP, settings), packet)
    }

    /// Returns an error if a datagram of `len` bytes is too long for IP, or for the MTU and must not be
    /// fragmented.
    fn check_datagram_len(
        &mut self,
        now: Instant,
        id: UdpId,
        (to, len): (SocketAddr, usize),
        how: MtuDiscover,
    ) -> Result<(), StackError> {
        let mut max = max_payload(to.ip());
        let whole = matches!(how, MtuDiscover::Do | MtuDiscover::Probe);
        if !whole && len <= max {
            return Ok(());
        }
        let Ok(mtu) = self.datagram_mtu(now, to.ip(), how) else {
            // IP reports and counts that there is no route.
            return Ok(());
        };
        if whole {
            max = max.min((mtu as usize).saturating_sub(headers_len(to.ip())));
        }
        if len <= max {
            return Ok(());
        }
        // As on Linux: no IPv4 socket can send more than 65,535 bytes, whatever the path.
        if to.is_ipv6() || u16::try_from(len).is_ok() {
            self.udp.on_too_long(id, (to, mtu), &mut self.wakers)?;
        }
        Err(StackError::MessageTooLong { len, max })
    }

    /// Returns the MTU of the path to `to` for datagrams (`IP_MTU`): of the interface, or less if a
    /// router reported it within the last ten minutes.
    pub fn udp_path_mtu(&self, now: Instant, to: IpAddr) -> Result<u32, StackError> {
        self.datagram_mtu(now, to, MtuDiscover::Want)
    }

    /// The next datagram with where it came from and the address it was sent to.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
    ) -> Result<Option<(Chain, SocketAddr, SocketAddr)>, StackError> {
        let received = self.udp.recv(id)?;
        Ok(received.map(|datagram| (datagram.payload, datagram.from, datagram.to)))
    }

    /// The next datagram with all that is known of it.
    pub fn udp_recv_datagram(&mut self, id: UdpId) -> Result<Option<UdpDatagram>, StackError> {
        self.udp.recv(id)
    }

    /// [`udp_recv_datagram`](Self::udp_recv_datagram) that leaves it.
    pub fn udp_peek_datagram(&mut self, id: UdpId) -> Result<Option<UdpDatagram>, StackError> {
        Ok(self.udp.socket_mut(id)?.peek())
    }

    /// Sets whether errors about its datagrams, to whatever peer, are kept (`IP_RECVERR`).
    pub fn udp_keep_errors(&mut self, id: UdpId, on: bool) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.keep_errors(on);
        Ok(())
    }

    /// The oldest error that was kept.
    pub fn udp_take_kept_error(&mut self, id: UdpId) -> Result<Option<UdpError>, StackError> {
        Ok(self.udp.socket_mut(id)?.take_kept_error())
    }

    /// [`udp_take_kept_error`](Self::udp_take_kept_error) would give something.
    pub fn udp_has_kept_errors(&mut self, id: UdpId) -> Result<bool, StackError> {
        Ok(self.udp.socket_mut(id)?.has_kept_errors())
    }

    /// Returns whether it is ready now; else wakes `waiter` once when it becomes so. Writing is always possible:
    /// what finds no room in a queue is dropped, as the network might.
    pub fn udp_ready<'a>(
        &mut self,
        id: UdpId,
        interest: Interest,
        waiter: impl Into<Waiter<'a>>,
    ) -> Result<bool, StackError> {
        match interest {
            Interest::Read => self.udp.readable(id, waiter.into(), &mut self.spent),
            Interest::Write => self.udp.addr(id).map(|_| true),
        }
    }

    /// Takes datagrams and ICMP errors of `remote` only from now on; `None`: of everybody again.
    pub fn udp_connect(&mut self, id: UdpId, remote: Option<SocketAddr>) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.connect(remote);
        Ok(())
    }

    /// What ICMP told of the peer, once.
    pub fn udp_take_error(&mut self, id: UdpId) -> Result<Option<TcpError>, StackError> {
        Ok(self.udp.socket_mut(id)?.take_error())
    }

    /// [`udp_take_error`](Self::udp_take_error) would give something.
    pub fn udp_has_error(&mut self, id: UdpId) -> Result<bool, StackError> {
        Ok(self.udp.socket_mut(id)?.has_error())
    }

    /// Bytes of the first datagram that waits.
    pub fn udp_first_len(&mut self, id: UdpId) -> Result<Option<usize>, StackError> {
        Ok(self.udp.socket_mut(id)?.first_len())
    }

    /// Most bytes of memory that waiting datagrams may hold.
    pub fn udp_set_rcvbuf(&mut self, id: UdpId, bytes: usize) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_rcvbuf(bytes);
        Ok(())
    }

    /// Sets fields of the IP headers of its datagrams; `mtu_discover` of those over IPv4.
    pub fn udp_set_ip(&mut self, id: UdpId, settings: IpSettings) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_ip(settings);
        Ok(())
    }

    /// Sets `IPV6_MTU_DISCOVER`.
    pub fn udp_set_v6_mtu_discover(
        &mut self,
        id: UdpId,
        how: MtuDiscover,
    ) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_v6_mtu_discover(how);
        Ok(())
    }

    /// Wakes `waker` once, at the next datagram or error, although there may be some already.
    pub fn udp_watch(&mut self, id: UdpId, waker: &Waker) -> Result<(), StackError> {
        let readers = self.udp.socket_mut(id)?.readers();
        readers.register(waker.into(), &mut self.spent);
        Ok(())
    }

    /// Closes.
    pub fn udp_close(&mut self, id: UdpId) {
        self.udp.close(id, &mut self.wakers);
    }

    /// While the allocator refuses memory, each socket gets its least only.
    fn udp_limits(&self) -> Limits {
        let sysctl = &self.env.sysctl;
        let all_bytes = if self.env.mem.is_refused() {
            0
        } else {
            (sysctl.udp_mem[2] as usize).saturating_mul(PAGE_BYTES)
        };
        Limits {
            all_bytes,
            least_bytes: sysctl.udp_rmem_min as usize,
        }
    }

    /// A datagram for us or a group.
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
        let place = if meta.dst.is_v4() { 8 } else { 7 };
        let ttl = packet.network_header().get(place).copied().unwrap_or(0);
        let limits = self.udp_limits();
        let whole = &packet.payload;
        // GRO, and a device that coalesces, join datagrams of one size; readers see each of them.
        let size = match usize::from(packet.offload.gso_size) {
            0 => whole.len(),
            size => size,
        };
        let mut start = 0;
        loop {
            let len = size.min(whole.len() - start);
            let datagram = UdpDatagram {
                payload: whole.range(start, len),
                from,
                to,
                tos: meta.tos,
                ttl,
                iface: IfaceId(meta.iface),
            };
            if self.udp.input(datagram, group, limits, &mut self.wakers) == Delivery::NoPort {
                return self.tell(now, Problem::PortUnreachable, packet);
            }
            start += len;
            if start == whole.len() {
                return;
            }
        }
    }
}
