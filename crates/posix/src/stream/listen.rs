//! `listen` and `accept`.

use core::net::SocketAddr;

use fullsend_stack::{Host, ListenConfig};

use super::{Core, Phase, Stream};
use crate::SockAddr;
use crate::errno::{Errno, Result};

impl Stream {
    /// Returns whether `listen` starts to listen, or false if the socket listens and only the
    /// backlog changes.
    pub(crate) fn begins_to_listen(&self) -> Result<bool> {
        match (self.phase, self.core) {
            (Phase::Unconnected, Core::None) => Ok(true),
            (Phase::Unconnected, Core::Listener(_)) => Ok(false),
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
        if let Core::Listener(id) = self.core {
            return Ok(host.listener_set_backlog(id, self.backlog as usize)?);
        }
        let config = ListenConfig {
            backlog: self.backlog as usize,
            hold: false,
            any_destination: false,
        };
        let id = if self.common.reuse_port {
            host.tcp_listen_shared(local, config)?
        } else {
            host.tcp_listen(local, config)?
        };
        host.listener_set_v6only(id, self.common.ip.v6only)?;
        self.core = Core::Listener(id);
        self.equip_listener(host, id)
    }

    pub(crate) fn accept(&mut self, host: &mut Host) -> Result<(Self, SockAddr)> {
        let Core::Listener(id) = self.core else {
            return Err(Errno::EINVAL);
        };
        let incoming = host.tcp_accept(id)?.ok_or(Errno::EAGAIN)?;
        let peer = SockAddr::shown_in(self.domain, incoming.remote);
        Ok((self.accepted(incoming.id), peer))
    }
}
