//! UDP sockets between users and IP.

use core::net::SocketAddr;
use core::task::Waker;

use fullsend_buf::{Chain, Slice};
use fullsend_offload::{Checksum, Packet};
use fullsend_tcp::{IpSettings, TcpError};
use fullsend_units::Instant;
use fullsend_wire::numbers::protocol;
use fullsend_wire::udp::UdpRepr;

use crate::ip::{IpMeta, Problem};
use crate::udp::Delivery;
use crate::{Host, Interest, StackError};

/// A UDP socket's handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpId(pub u64);

impl Host {
    /// Binds; port 0 means "choose". An unspecified IPv6 address takes IPv4 too, and shows the
    /// IPv4 addresses as such.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, StackError> {
        let ip = local.ip();
        if !ip.is_unspecified() && !self.ip.addresses.is_local(ip.into()) {
            return Err(StackError::AddressNotAvailable(local));
        }
        self.udp.bind(local, &mut self.env.rng)
    }

    /// The bound address.
    pub fn udp_addr(&self, id: UdpId) -> Result<SocketAddr, StackError> {
        self.udp.addr(id)
    }

    /// Sends one datagram; `source` overrides the source address (gateways).
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
        let packet = self.udp.output(from, to, data)?;
        let ends = (from.ip().into(), to.ip().into());
        let settings = self.udp.socket_mut(id)?.ip_settings();
        self.ip_output(now, ends, (protocol::UDP, settings), packet)
    }

    /// The next datagram with where it came from and the address it was sent to.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
    ) -> Result<Option<(Chain, SocketAddr, SocketAddr)>, StackError> {
        self.udp.recv(id)
    }

    /// [`udp_recv`](Self::udp_recv) that leaves it.
    pub fn udp_peek(
        &mut self,
        id: UdpId,
    ) -> Result<Option<(Chain, SocketAddr, SocketAddr)>, StackError> {
        Ok(self.udp.socket_mut(id)?.peek())
    }

    /// True if ready now; else wakes `waker` once when it becomes so. Writing is always possible:
    /// what finds no room in a queue is dropped, as the network might.
    pub fn udp_ready(
        &mut self,
        id: UdpId,
        interest: Interest,
        waker: &Waker,
    ) -> Result<bool, StackError> {
        match interest {
            Interest::Read => self.udp.readable(id, waker),
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

    /// What the IP headers of its datagrams say.
    pub fn udp_set_ip(&mut self, id: UdpId, settings: IpSettings) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.set_ip(settings);
        Ok(())
    }

    /// Wakes `waker` once, at the next datagram or error, although there may be some already.
    pub fn udp_watch(&mut self, id: UdpId, waker: &Waker) -> Result<(), StackError> {
        self.udp.socket_mut(id)?.watch(waker);
        Ok(())
    }

    /// Closes.
    pub fn udp_close(&mut self, id: UdpId) {
        self.udp.close(id, &mut self.wakers);
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
        let whole = &packet.payload;
        // GRO, and a device that coalesces, join datagrams of one size; readers see each of them.
        let size = match usize::from(packet.offload.gso_size) {
            0 => whole.len(),
            size => size,
        };
        let mut start = 0;
        loop {
            let len = size.min(whole.len() - start);
            let datagram = whole.range(start, len);
            if self.udp.input(from, to, datagram, &mut self.wakers) == Delivery::NoPort {
                return self.tell(now, Problem::PortUnreachable, packet);
            }
            start += len;
            if start == whole.len() {
                return;
            }
        }
    }
}
