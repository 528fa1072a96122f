//! `connect`, `shutdown`, and the way back to an unconnected socket.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fullsend_stack::Host;
use fullsend_tcp::State;
use fullsend_units::Instant;

use super::{Core, Phase, Shut, Stream};
use crate::SockAddr;
use crate::abi::{AF_INET, SHUT_RD, SHUT_RDWR, SHUT_WR};
use crate::errno::{Errno, Result};

impl Stream {
    pub(crate) fn connect(&mut self, host: &mut Host, now: Instant, addr: SockAddr) -> Result<()> {
        if addr == SockAddr::Unspec {
            self.disconnect(host, now);
            return Ok(());
        }
        let pending = match self.phase {
            Phase::Connected => return Err(Errno::EISCONN),
            Phase::Disconnecting => return Err(Errno::EINVAL),
            Phase::Connecting => Errno::EALREADY,
            Phase::Unconnected if self.core != Core::None => return Err(Errno::EISCONN),
            Phase::Unconnected => {
                self.start(host, now, addr)?;
                Errno::EINPROGRESS
            }
        };
        match self.state(host) {
            State::SynSent | State::SynReceived => Err(pending),
            State::Closed => {
                let error = self.take_error(host).unwrap_or(Errno::ECONNABORTED);
                self.disconnect(host, now);
                Err(error)
            }
            _ => {
                self.phase = Phase::Connected;
                Ok(())
            }
        }
    }

    fn start(&mut self, host: &mut Host, now: Instant, addr: SockAddr) -> Result<()> {
        let remote = self.destination(addr)?;
        let id = host.tcp_connect(now, self.bound, remote)?;
        self.core = Core::Connection(id);
        self.phase = Phase::Connecting;
        self.shut = Shut::default();
        Ok(())
    }

    /// Where `connect` leads; the unspecified address is the host itself.
    fn destination(&self, addr: SockAddr) -> Result<SocketAddr> {
        let fits = match addr {
            SockAddr::V4(_) => self.domain == AF_INET,
            SockAddr::V6(_) => self.domain != AF_INET,
            SockAddr::Unspec => false,
        };
        let remote = addr.canonical().filter(|_| fits);
        let remote = remote.ok_or(Errno::EAFNOSUPPORT)?;
        let ip = match remote.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, remote.port()))
    }

    /// `tcp_disconnect`: back to TCP_CLOSE, keeping what was bound.
    pub(super) fn disconnect(&mut self, host: &mut Host, now: Instant) {
        match core::mem::replace(&mut self.core, Core::None) {
            Core::Connection(id) => host.tcp_abort(now, id),
            Core::Listener(id) => host.close_listener(now, id),
            Core::None => {}
        }
        self.phase = Phase::Unconnected;
        self.shut = Shut::default();
    }

    pub(crate) fn shutdown(&mut self, host: &mut Host, now: Instant, how: i32) -> Result<()> {
        let (read, write) = match how {
            SHUT_RD => (true, false),
            SHUT_WR => (false, true),
            SHUT_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        let state = self.state(host);
        if self.phase == Phase::Connecting {
            self.phase = match state {
                State::SynSent | State::SynReceived | State::Closed => Phase::Disconnecting,
                _ => Phase::Connected,
            };
        }
        match self.core {
            Core::Listener(_) => {
                if read {
                    self.disconnect(host, now);
                }
                return Ok(());
            }
            Core::Connection(_) if state == State::SynSent => {
                self.disconnect(host, now);
                return Ok(());
            }
            _ => {}
        }
        self.shut.read |= read;
        self.shut.write |= write;
        match self.core {
            Core::Connection(id) if state != State::Closed => {
                if write {
                    host.tcp_shutdown_write(now, id)?;
                }
                Ok(())
            }
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// `SO_ERROR`: what is pending, cleared.
    pub(super) fn take_error(&mut self, host: &mut Host) -> Option<Errno> {
        let Core::Connection(id) = self.core else {
            return None;
        };
        host.tcp_take_error(id).ok().flatten().map(Errno::from)
    }
}
