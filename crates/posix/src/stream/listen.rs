//! `bind`, `listen`, `accept`.

use fullsend_stack::{Host, ListenConfig};

use super::{Core, Phase, Stream};
use crate::SockAddr;
use crate::abi::{AF_INET, AF_UNSPEC};
use crate::errno::{Errno, Result};

/// `net.core.somaxconn`.
const SOMAXCONN: u32 = 4096;

impl Stream {
    pub(crate) fn bind(&mut self, _host: &Host, addr: SockAddr) -> Result<()> {
        if self.bound.is_some() || self.core != Core::None {
            return Err(Errno::EINVAL);
        }
        let addr = match addr {
            SockAddr::V4(_) if self.domain == AF_INET => addr,
            SockAddr::V6(_) if self.domain != AF_INET => addr,
            SockAddr::Unspec if self.domain == AF_INET => SockAddr::any(AF_UNSPEC),
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        self.bound = addr.canonical();
        Ok(())
    }

    pub(crate) fn listen(&mut self, host: &mut Host, backlog: i32) -> Result<()> {
        if self.phase != Phase::Unconnected {
            return Err(Errno::EINVAL);
        }
        match self.core {
            Core::None => {}
            Core::Listener(_) => return Ok(()),
            Core::Connection(_) => return Err(Errno::EINVAL),
        }
        let any = SockAddr::any(self.domain).canonical();
        let local = self.bound.or(any).ok_or(Errno::EINVAL)?;
        let config = ListenConfig {
            // A negative number is a very large one.
            backlog: (backlog as u32).min(SOMAXCONN) as usize,
            hold: false,
            any_destination: false,
        };
        self.core = Core::Listener(host.tcp_listen(local, config)?);
        Ok(())
    }

    pub(crate) fn accept(&mut self, host: &mut Host) -> Result<(Self, SockAddr)> {
        let Core::Listener(id) = self.core else {
            return Err(Errno::EINVAL);
        };
        let incoming = host.tcp_accept(id)?.ok_or(Errno::EAGAIN)?;
        let peer = SockAddr::shown_in(self.domain, incoming.remote);
        Ok((Self::accepted(self.domain, incoming.id), peer))
    }
}
