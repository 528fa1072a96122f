//! UDP sockets.

mod ancillary;
mod io;
mod multicast;
mod options;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fullsend_stack::{Host, UdpId, UdpSharing};
use fullsend_tcp::{IpSettings, MtuDiscover};
use fullsend_wire::Instant;

use crate::SockAddr;
use crate::abi::{
    AF_INET, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRBAND,
    EPOLLWRNORM, SHUT_RD, SHUT_RDWR, SHUT_WR, SIOCINQ, SIOCOUTQ,
};
use crate::errno::{Errno, Result};
use crate::sockopt::CommonOptions;
use crate::wake::Wakers;
use ancillary::AncillaryOptions;
use multicast::MulticastOptions;

/// Default of `net.core.rmem_default` and `wmem_default`, in bytes.
const DEFAULT_BUFFER_BYTES: u32 = 212_992;

/// A UDP socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) domain: i32,
    udp: Option<UdpId>,
    /// The address that the user bound, in canonical form.
    pub(crate) bound: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// The local address of datagrams to the peer.
    source: Option<SocketAddr>,
    shut_read: bool,
    shut_write: bool,
    pub(crate) common: CommonOptions,
    rcvbuf: u32,
    sndbuf: u32,
    mark: u32,
    priority: u32,
    /// Header fields of sent datagrams; `mtu_discover` applies to IPv4.
    ip: IpSettings,
    v6_mtu_discover: MtuDiscover,
    /// The ancillary data to return.
    ancillary_options: AncillaryOptions,
    multicast: MulticastOptions,
}

impl Datagram {
    pub(crate) fn new(domain: i32) -> Self {
        Self {
            domain,
            udp: None,
            bound: None,
            peer: None,
            source: None,
            shut_read: false,
            shut_write: false,
            common: CommonOptions::new(),
            rcvbuf: DEFAULT_BUFFER_BYTES,
            sndbuf: DEFAULT_BUFFER_BYTES,
            mark: 0,
            priority: 0,
            ip: IpSettings {
                tos: 0,
                ttl: None,
                mtu_discover: MtuDiscover::Want,
            },
            v6_mtu_discover: MtuDiscover::Want,
            ancillary_options: AncillaryOptions::new(),
            multicast: MulticastOptions::default(),
        }
    }

    /// Binds the host's socket. Port 0 chooses a free port.
    pub(crate) fn bind(
        &mut self,
        host: &mut Host,
        now: Instant,
        local: SocketAddr,
    ) -> Result<SocketAddr> {
        let id = host.udp_bind_shared(local, self.sharing())?;
        host.udp(id).set_rcvbuf(self.rcvbuf as usize)?;
        host.udp(id).set_broadcast(self.common.broadcast)?;
        host.udp(id)
            .keep_errors(self.ancillary_options.is_recverr_enabled())?;
        if let Err(errno) = self.bind_multicast(host, now, id) {
            host.udp(id).close(now);
            return Err(errno);
        }
        self.udp = Some(id);
        self.apply(host)?;
        let local = host.udp(id).addr()?;
        self.bound = Some(local);
        Ok(local)
    }

    const fn sharing(&self) -> UdpSharing {
        UdpSharing {
            reuse_addr: self.common.reuse_addr,
            reuse_port: self.common.reuse_port,
        }
    }

    /// Returns the host's socket. An unbound one is bound to a free port.
    fn socket(&mut self, host: &mut Host, now: Instant) -> Result<UdpId> {
        if self.udp.is_none() {
            let any = SockAddr::any(self.domain).canonical();
            self.bind(host, now, any.ok_or(Errno::EINVAL)?)?;
        }
        self.udp.ok_or(Errno::EINVAL)
    }

    pub(crate) fn connect(&mut self, host: &mut Host, now: Instant, addr: SockAddr) -> Result<()> {
        if addr == SockAddr::Unspec {
            if let Some(id) = self.udp {
                host.udp(id).connect(None)?;
            }
            self.peer = None;
            self.source = None;
            return Ok(());
        }
        let peer = self.destination(addr)?;
        let id = self.socket(host, now)?;
        host.udp(id).connect(Some(peer))?;
        self.source = Some(host.udp(id).addr()?);
        self.peer = Some(peer);
        Ok(())
    }

    /// Returns the destination for `addr`. The unspecified address stands for the host itself.
    fn destination(&self, addr: SockAddr) -> Result<SocketAddr> {
        let to = match addr {
            SockAddr::V4(_) if self.domain == AF_INET => addr.canonical(),
            // An IPv6 socket treats a plain IPv4 address as IPv4-mapped.
            SockAddr::V4(_) | SockAddr::V6(_) if self.domain != AF_INET => addr.canonical(),
            _ => None,
        };
        let to = to.ok_or(Errno::EAFNOSUPPORT)?;
        if self.domain != AF_INET && self.common.ip.v6only && to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let ip = match to.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, to.port()))
    }

    pub(crate) fn local(&self) -> SockAddr {
        let own = self.bound.filter(|own| !own.ip().is_unspecified());
        match own.or(self.source).or(self.bound) {
            Some(addr) => SockAddr::for_domain(self.domain, addr),
            None => SockAddr::any(self.domain),
        }
    }

    pub(crate) fn peer(&self) -> Result<SockAddr> {
        let peer = self.peer.ok_or(Errno::ENOTCONN)?;
        Ok(SockAddr::for_domain(self.domain, peer))
    }

    /// Shuts down directions. Returns ENOTCONN without a peer, but shuts them down nevertheless.
    pub(crate) fn shutdown(&mut self, how: i32) -> Result<()> {
        match how {
            SHUT_RD => self.shut_read = true,
            SHUT_WR => self.shut_write = true,
            SHUT_RDWR => (self.shut_read, self.shut_write) = (true, true),
            _ => return Err(Errno::EINVAL),
        }
        self.peer.map(|_| ()).ok_or(Errno::ENOTCONN)
    }

    /// Returns the readiness in `EPOLL*` bits: a datagram can always be sent.
    pub(crate) fn events(&self, host: &mut Host) -> u32 {
        let mut events = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;
        if let Some(id) = self.udp {
            let errors = host.udp(id).has_error().unwrap_or(false)
                || host.udp(id).has_kept_errors().unwrap_or(false);
            if errors {
                events |= EPOLLERR;
            }
            if matches!(host.udp(id).first_len(), Ok(Some(_))) {
                events |= EPOLLIN | EPOLLRDNORM;
            }
        }
        if self.shut_read {
            events |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
        }
        if self.shut_read && self.shut_write {
            events |= EPOLLHUP;
        }
        events
    }

    /// Registers for the next change.
    pub(crate) fn watch(&self, host: &mut Host, wakers: &Wakers) {
        if let Some(id) = self.udp {
            // The socket exists until it is closed here.
            let _ = host.udp(id).watch(&wakers.read);
        }
    }

    pub(crate) fn ioctl(&self, host: &mut Host, request: u32) -> Result<i32> {
        match (request, self.udp) {
            (SIOCINQ, Some(id)) => Ok(host.udp(id).first_len()?.unwrap_or(0) as i32),
            (SIOCINQ | SIOCOUTQ, _) => Ok(0),
            _ => Err(Errno::ENOTTY),
        }
    }

    pub(crate) fn close(&mut self, host: &mut Host, now: Instant) {
        if let Some(id) = self.udp.take() {
            host.udp(id).close(now);
        }
    }

    /// Returns the pending ICMP error (`SO_ERROR`) and clears it.
    pub(super) fn take_error(&self, host: &mut Host) -> Option<Errno> {
        let error = host.udp(self.udp?).take_error().ok().flatten();
        error.map(Errno::from)
    }
}
