//! `listen` and `accept`.

use core::net::SocketAddr;

use fullsend_stack::{Host, ListenConfig};

use super::{ConnectState, HostSocket, Stream};
use crate::SockAddr;
use crate::errno::{Errno, Result};

impl Stream {
    /// Returns whether `listen` starts to listen, or false if the socket listens and only the
    /// backlog changes.
    pub(crate) fn starts_listening(&self) -> Result<bool> {
        match (self.connect_state, self.host_socket) {
            (ConnectState::Unconnected, HostSocket::None) => Ok(true),
            (ConnectState::Unconnected, HostSocket::Listener(_)) => Ok(false),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Listens on `local`, or changes the backlog of a listener.
    pub(crate) fn listen(
        &mut self,
        host: &mut Host,
        local: SocketAddr,
        backlog: i32,
    ) -> Result<()> {
        // As on Linux, a negative number counts as a very large one.
        self.backlog = (backlog as u32).min(host.sysctl().somaxconn);
        if let HostSocket::Listener(id) = self.host_socket {
            return Ok(host.listener(id).set_backlog(self.backlog as usize)?);
        }
        let config = ListenConfig {
            backlog: self.backlog as usize,
            defer_syn_ack: false,
            any_destination: false,
        };
        let id = if self.common.reuse_port {
            host.tcp_listen_shared(local, config)?
        } else {
            host.tcp_listen(local, config)?
        };
        host.listener(id).set_v6only(self.common.ip.v6only)?;
        self.host_socket = HostSocket::Listener(id);
        self.apply_listener_options(host, id)
    }

    pub(crate) fn accept(&mut self, host: &mut Host) -> Result<(Self, SockAddr)> {
        let HostSocket::Listener(id) = self.host_socket else {
            return Err(Errno::EINVAL);
        };
        let incoming = host.listener(id).accept()?.ok_or(Errno::EAGAIN)?;
        let peer = SockAddr::for_domain(self.domain, incoming.remote);
        Ok((self.accepted(incoming.id), peer))
    }
}
