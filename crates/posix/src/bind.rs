//! `bind(2)` and `listen(2)`. Addresses are claimed here, so that sockets which are only bound hold
//! them like those that listen.

use core::net::{IpAddr, SocketAddr};

use fullsend_wire::Instant;

use crate::abi::{AF_INET, AF_INET6};
use crate::bindings::Binding;
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};
use crate::{Posix, SockAddr};

impl Posix {
    /// Binds a socket to an address: `bind(2)`. Port 0 chooses a free port.
    ///
    /// # Errors
    /// EADDRINUSE if another socket has the address, EADDRNOTAVAIL if the host does not have it,
    /// EINVAL if the socket is bound already, EAFNOSUPPORT for an address of another family, EBADF
    /// for a handle that is not open, ENOTSOCK for one that is not a socket.
    pub fn bind(&mut self, now: Instant, handle: Handle, addr: SockAddr) -> Result<()> {
        match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => {
                let (domain, v6only) = (stream.domain, stream.common.ip.v6only);
                let bound = stream.bound.is_some() || !stream.is_unconnected();
                let addr = bind_address(domain, v6only, addr)?;
                self.check_local_address(handle, addr.ip())?;
                if bound {
                    return Err(Errno::EINVAL);
                }
                self.claim(handle, addr, false)
            }
            FileKind::Datagram(datagram) => {
                let addr = bind_address(datagram.domain, datagram.common.ip.v6only, addr)?;
                let bound = datagram.bound.is_some();
                self.check_local_address(handle, addr.ip())?;
                if bound {
                    return Err(Errno::EINVAL);
                }
                self.bind_datagram(handle, now, addr)
            }
            _ => Err(Errno::ENOTSOCK),
        }
    }

    fn bind_datagram(&mut self, handle: Handle, now: Instant, addr: SocketAddr) -> Result<()> {
        let result = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Datagram(datagram) => datagram.bind(&mut self.host, now, addr).map(|_| ()),
            _ => Err(Errno::ENOTSOCK),
        };
        self.arm_if_watched(handle);
        result
    }

    /// Makes a socket listen: `listen(2)`. A repeated call changes the backlog. An unbound socket
    /// is bound to a free port.
    ///
    /// # Errors
    /// EADDRINUSE if another socket has the address, EINVAL if the socket is connected or
    /// connecting, EOPNOTSUPP for a datagram socket, EBADF for a handle that is not open, ENOTSOCK
    /// for one that is not a socket.
    pub fn listen(&mut self, _now: Instant, handle: Handle, backlog: i32) -> Result<()> {
        self.process_wakes();
        let (starts, local, domain) = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => (stream.starts_listening()?, stream.bound, stream.domain),
            FileKind::Datagram(_) => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::ENOTSOCK),
        };
        if starts {
            let any = SockAddr::any(domain).canonical();
            self.claim(handle, local.or(any).ok_or(Errno::EINVAL)?, true)?;
        }
        if let FileKind::Stream(stream) = &mut self.files.get_mut(handle)?.kind
            && let Some(local) = stream.bound
        {
            stream.listen(&mut self.host, local, backlog)?;
        }
        self.arm_if_watched(handle);
        Ok(())
    }

    /// Returns EADDRNOTAVAIL for an address that is not the host's and that the socket must not
    /// bind.
    fn check_local_address(&self, handle: Handle, ip: IpAddr) -> Result<()> {
        let common = match &self.files.get(handle)?.kind {
            FileKind::Stream(stream) => &stream.common,
            FileKind::Datagram(datagram) => &datagram.common,
            _ => return Err(Errno::ENOTSOCK),
        };
        let fits = ip.is_unspecified() || common.ip.freebind || self.host.is_own_address(ip);
        fits.then_some(()).ok_or(Errno::EADDRNOTAVAIL)
    }

    /// Releases the port of a stream if the host chose it and a call has dissolved the association.
    pub(crate) fn release_port(&mut self, handle: Handle) {
        if let Ok(FileKind::Stream(stream)) = self.files.get_mut(handle).map(|file| &mut file.kind)
            && stream.bound.is_some_and(|bound| bound.port() == 0)
            && let Some(port) = stream.claimed.take()
        {
            self.bindings.remove(port, handle);
        }
    }

    /// Claims an address for a stream. Returns EADDRINUSE if it conflicts with another binding.
    fn claim(&mut self, handle: Handle, addr: SocketAddr, listening: bool) -> Result<()> {
        let FileKind::Stream(stream) = &mut self.files.get_mut(handle)?.kind else {
            return Err(Errno::ENOTSOCK);
        };
        let common = &stream.common;
        let binding = Binding {
            owner: handle,
            ip: addr.ip(),
            v6only: common.ip.v6only,
            reuse_addr: common.reuse_addr,
            reuse_port: common.reuse_port,
            listening,
        };
        let mut addr = addr;
        let chosen = addr.port() == 0;
        if chosen {
            if common.ip.bind_address_no_port && !listening {
                stream.bound = Some(addr);
                return Ok(());
            }
            let bindings = &self.bindings;
            let port = self
                .host
                .tcp_free_port(addr.ip(), |port| !bindings.is_used(port));
            addr.set_port(port.map_err(|_| Errno::EADDRINUSE)?);
        } else if self.bindings.conflicts(addr.port(), &binding) {
            return Err(Errno::EADDRINUSE);
        }
        self.bindings.insert(addr.port(), binding);
        stream.bound = Some(addr);
        stream.port_chosen |= chosen;
        stream.claimed = Some(addr.port());
        Ok(())
    }
}

/// Returns the address to bind, which must be of the socket's family; an IPv4-mapped address becomes
/// IPv4.
fn bind_address(domain: i32, v6only: bool, addr: SockAddr) -> Result<SocketAddr> {
    let fits = match addr {
        // Linux checks the length before the family: this address is too short for IPv6.
        SockAddr::V4(_) if domain == AF_INET6 => return Err(Errno::EINVAL),
        SockAddr::V4(_) => domain == AF_INET,
        SockAddr::V6(_) => domain == AF_INET6,
        SockAddr::Unspec => false,
    };
    let addr = addr.canonical().filter(|_| fits);
    let addr = addr.ok_or(Errno::EAFNOSUPPORT)?;
    if domain == AF_INET6 && v6only && addr.is_ipv4() {
        return Err(Errno::EINVAL);
    }
    Ok(addr)
}
