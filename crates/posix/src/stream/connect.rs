//! `connect`, `shutdown`, and the return to an unconnected socket.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fullsend_stack::{Host, TcpId};
use fullsend_tcp::State;
use fullsend_wire::Instant;

use super::{ConnectState, HostSocket, ShutDirections, Stream};
use crate::SockAddr;
use crate::abi::{AF_INET, SHUT_RD, SHUT_RDWR, SHUT_WR};
use crate::errno::{Errno, Result};

/// The bit of `tcp_fastopen` for clients.
const CLIENT_ENABLE: u32 = 1;

/// Returns whether the SYN is deferred until the first write, as it may carry data. If not,
/// connects.
fn try_defer_syn(host: &mut Host, now: Instant, id: TcpId) -> Result<bool> {
    if host.tcp(id).is_fastopen_ready(now)? {
        return Ok(true);
    }
    host.tcp(id).send_syn(now)?;
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
        let pending = match self.connect_state {
            ConnectState::Connected | ConnectState::Deferred => return Err(Errno::EISCONN),
            ConnectState::Disconnecting => return Err(Errno::EINVAL),
            ConnectState::Connecting => Errno::EALREADY,
            ConnectState::Unconnected if self.host_socket != HostSocket::None => {
                return Err(Errno::EISCONN);
            }
            ConnectState::Unconnected => {
                let id = self.start(host, now, addr, fastopen)?;
                if fastopen && try_defer_syn(host, now, id)? {
                    self.connect_state = ConnectState::Deferred;
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
                self.connect_state = ConnectState::Connected;
                Ok(())
            }
        }
    }

    /// Returns whether the handshake is in progress.
    pub(crate) fn is_opening(&self, host: &Host) -> bool {
        let handshaking = matches!(self.state(host), State::SynSent | State::SynReceived);
        self.connect_state == ConnectState::Connecting && handshaking
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
        if let Err(error) = self.apply_options(host, now, id) {
            host.tcp(id).abort(now);
            return Err(error);
        }
        self.host_socket = HostSocket::Connection(id);
        self.connect_state = ConnectState::Connecting;
        self.error = None;
        Ok(id)
    }

    /// Returns the destination of `connect`. The unspecified address stands for the host itself.
    fn destination(&self, addr: SockAddr) -> Result<SocketAddr> {
        let fits = match addr {
            // Linux checks the length before the family: this address is too short for IPv6.
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
        self.collect_reports(host);
        self.error = self.take_error(host);
        match core::mem::replace(&mut self.host_socket, HostSocket::None) {
            HostSocket::Connection(id) => {
                let was_open = !matches!(host.tcp(id).state(), Ok(State::Closed) | Err(_));
                self.error = was_open.then_some(Errno::ECONNRESET).or(self.error);
                host.tcp(id).abort(now);
            }
            HostSocket::Listener(id) => host.listener(id).close(now),
            HostSocket::None => {}
        }
        self.take_returned();
        self.connect_state = ConnectState::Unconnected;
        self.shut = ShutDirections::default();
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
        if self.connect_state == ConnectState::Connecting {
            self.connect_state = match state {
                State::SynSent | State::SynReceived | State::Closed => ConnectState::Disconnecting,
                _ => ConnectState::Connected,
            };
        }
        match self.host_socket {
            HostSocket::Listener(_) => {
                if read {
                    self.disconnect(host, now);
                }
                return Ok(());
            }
            HostSocket::Connection(_) if state == State::SynSent => {
                self.disconnect(host, now);
                return Ok(());
            }
            _ => {}
        }
        self.shut.read |= read;
        self.shut.write |= write;
        match self.host_socket {
            HostSocket::Connection(id) if state != State::Closed => {
                if read {
                    host.tcp(id).reset_on_data(now)?;
                }
                if write {
                    host.tcp(id).shutdown_write(now)?;
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
        let HostSocket::Connection(id) = self.host_socket else {
            return None;
        };
        host.tcp(id).take_error().ok().flatten().map(Errno::from)
    }
}
