//! `connect`, `shutdown`, and the return to an unconnected socket.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fullsend_stack::{Host, TcpId};
use fullsend_tcp::State;
use fullsend_units::Instant;

use super::{Core, Phase, Shut, Stream};
use crate::SockAddr;
use crate::abi::{AF_INET, SHUT_RD, SHUT_RDWR, SHUT_WR};
use crate::errno::{Errno, Result};

/// The bit of `tcp_fastopen` for clients.
const CLIENT_ENABLE: u32 = 1;

/// Returns whether the SYN is deferred until the first write, as it may carry data. If not,
/// connects.
fn defers(host: &mut Host, now: Instant, id: TcpId) -> Result<bool> {
    if host.tcp_fastopen_ready(now, id)? {
        return Ok(true);
    }
    host.tcp_connect_now(now, id)?;
    Ok(false)
}

/// Returns whether the host's SYNs may carry data.
pub(crate) fn may_fastopen(host: &Host) -> bool {
    host.sysctl().tcp_fastopen & CLIENT_ENABLE != 0
}

impl Stream {
    pub(crate) fn connect(&mut self, host: &mut Host, now: Instant, addr: SockAddr) -> Result<()> {
        if addr == SockAddr::Unspec {
            self.disconnect(host, now);
            return Ok(());
        }
        let fastopen = self.fastopen_connect;
        self.open(host, now, addr, fastopen)
    }

    /// Connects. With `fastopen` the SYN is deferred until the first write if it may carry data.
    pub(super) fn open(
        &mut self,
        host: &mut Host,
        now: Instant,
        addr: SockAddr,
        fastopen: bool,
    ) -> Result<()> {
        let pending = match self.phase {
            Phase::Connected | Phase::Deferred => return Err(Errno::EISCONN),
            Phase::Disconnecting => return Err(Errno::EINVAL),
            Phase::Connecting => Errno::EALREADY,
            Phase::Unconnected if self.core != Core::None => return Err(Errno::EISCONN),
            Phase::Unconnected => {
                let id = self.start(host, now, addr, fastopen)?;
                if fastopen && defers(host, now, id)? {
                    self.phase = Phase::Deferred;
                    return Ok(());
                }
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

    /// Returns whether the handshake is in progress.
    pub(crate) fn is_opening(&self, host: &Host) -> bool {
        let opening = matches!(self.state(host), State::SynSent | State::SynReceived);
        self.phase == Phase::Connecting && opening
    }

    fn start(
        &mut self,
        host: &mut Host,
        now: Instant,
        addr: SockAddr,
        deferred: bool,
    ) -> Result<TcpId> {
        let remote = self.destination(addr)?;
        let id = if deferred {
            host.tcp_connect_deferred(now, self.bound, remote)?
        } else {
            host.tcp_connect(now, self.bound, remote)?
        };
        if let Err(error) = self.equip(host, now, id) {
            host.tcp_abort(now, id);
            return Err(error);
        }
        self.core = Core::Connection(id);
        self.phase = Phase::Connecting;
        self.error = None;
        Ok(id)
    }

    /// Returns the destination of `connect`. The unspecified address stands for the host itself.
    fn destination(&self, addr: SockAddr) -> Result<SocketAddr> {
        let fits = match addr {
            // Its length is checked before its family: it is too short for an IPv6 address.
            SockAddr::V4(_) if self.domain != AF_INET => return Err(Errno::EINVAL),
            SockAddr::V4(_) => true,
            SockAddr::V6(_) => self.domain != AF_INET,
            SockAddr::Unspec => false,
        };
        let remote = addr.canonical().filter(|_| fits);
        let remote = remote.ok_or(Errno::EAFNOSUPPORT)?;
        if self.domain != AF_INET && self.common.ip.v6only && remote.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let ip = match remote.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, remote.port()))
    }

    /// Returns to TCP_CLOSE (`tcp_disconnect`). Keeps the bound address and a pending error.
    pub(super) fn disconnect(&mut self, host: &mut Host, now: Instant) {
        self.take_notices(host);
        self.error = self.take_error(host);
        match core::mem::replace(&mut self.core, Core::None) {
            Core::Connection(id) => {
                let cut = !matches!(host.tcp_state(id), Ok(State::Closed) | Err(_));
                self.error = cut.then_some(Errno::ECONNRESET).or(self.error);
                host.tcp_abort(now, id);
            }
            Core::Listener(id) => host.close_listener(now, id),
            Core::None => {}
        }
        self.take_returned();
        self.phase = Phase::Unconnected;
        self.shut = Shut::default();
        // A port that the user did not choose is released.
        if let Some(bound) = &mut self.bound
            && self.port_chosen
        {
            bound.set_port(0);
        }
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
                if read {
                    host.tcp_expect_no_text(now, id)?;
                }
                if write {
                    host.tcp_shutdown_write(now, id)?;
                }
                Ok(())
            }
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Returns the pending error (`SO_ERROR`) and clears it.
    pub(crate) fn take_error(&mut self, host: &mut Host) -> Option<Errno> {
        if let Some(error) = self.error.take() {
            return Some(error);
        }
        let Core::Connection(id) = self.core else {
            return None;
        };
        host.tcp_take_error(id).ok().flatten().map(Errno::from)
    }
}
