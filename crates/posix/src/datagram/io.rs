//! `sendmsg` and `recvmsg` on UDP sockets.

use core::net::{IpAddr, SocketAddr};

use fullsend_offload::Slice;
use fullsend_stack::Host;
use fullsend_wire::Instant;

use super::Datagram;
use crate::abi::{MSG_ERRQUEUE, MSG_MORE, MSG_OOB, MSG_PEEK, MSG_TRUNC};
use crate::cmsg::CmsgWriter;
use crate::errno::{Errno, Result};
use crate::{Received, SockAddr};

impl Datagram {
    pub(crate) fn send(
        &mut self,
        host: &mut Host,
        now: Instant,
        data: &[&[u8]],
        flags: i32,
        dest: Option<SockAddr>,
        control: &[u8],
    ) -> Result<usize> {
        // Datagrams composed by several calls are not supported.
        if flags & (MSG_OOB | MSG_MORE) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = match dest {
            Some(SockAddr::Unspec) | None => self.peer.ok_or(Errno::EDESTADDRREQ)?,
            Some(addr) => self.destination(addr)?,
        };
        if to.port() == 0 {
            return Err(Errno::EINVAL);
        }
        if let IpAddr::V4(ip) = to.ip()
            && ip.is_broadcast()
            && !self.common.broadcast
        {
            return Err(Errno::EACCES);
        }
        let settings = self.parse_control(control)?;
        let id = self.socket(host, now)?;
        let source = match settings.source {
            Some(ip) if !host.is_own_address(ip) => return Err(Errno::EINVAL),
            Some(ip) => Some(SocketAddr::new(ip, host.udp(id).addr()?.port())),
            None => self.source_for(to.is_ipv4()),
        };
        if let Some(error) = self.take_error(host) {
            return Err(error);
        }
        if self.shut_write {
            return Err(Errno::EPIPE);
        }
        let all = Slice::try_copied_from(data.iter().copied()).ok_or(Errno::ENOBUFS)?;
        let len = all.len();
        if control.is_empty() {
            host.udp(id).send_to(now, all, to, source)?;
            return Ok(len);
        }
        host.udp(id).set_ip(settings.ip)?;
        let sent = host.udp(id).send_to(now, all, to, source);
        host.udp(id).set_ip(self.ip)?;
        sent?;
        Ok(len)
    }

    /// Returns the source address of a connected socket, which does not change.
    fn source_for(&self, v4: bool) -> Option<SocketAddr> {
        self.source.filter(|source| source.is_ipv4() == v4)
    }

    pub(crate) fn receive(
        &mut self,
        host: &mut Host,
        data: &mut [&mut [u8]],
        (flags, blocks): (i32, bool),
        control: &mut [u8],
    ) -> Result<Received> {
        if flags & MSG_ERRQUEUE != 0 {
            return self.receive_error(host, data, control);
        }
        let Some(id) = self.udp else {
            return self.no_datagram(blocks);
        };
        if let Some(error) = self.take_error(host) {
            return Err(error);
        }
        let next = if flags & MSG_PEEK != 0 {
            host.udp(id).peek_datagram()?
        } else {
            host.udp(id).recv_datagram()?
        };
        let Some(datagram) = next else {
            return self.no_datagram(blocks);
        };
        let mut out = CmsgWriter::new(control);
        self.ancillary_options
            .put_control_messages(host, &datagram, self.domain, &mut out);
        let full_len = datagram.payload.len();
        let mut rest = datagram.payload;
        let mut copied = 0;
        for part in data {
            let n = rest.copy_to(part);
            rest.advance(n);
            copied += n;
        }
        let truncated = copied < full_len;
        Ok(Received {
            len: if flags & MSG_TRUNC != 0 {
                full_len
            } else {
                copied
            },
            from: Some(SockAddr::for_domain(self.domain, datagram.from)),
            flags: out.flags | if truncated { MSG_TRUNC } else { 0 },
            control_len: out.used(),
        })
    }

    /// Returns the result of a receive call without a queued datagram: no data for a blocking call after
    /// reading was shut down, otherwise EAGAIN.
    fn no_datagram(&self, blocks: bool) -> Result<Received> {
        if self.shut_read && blocks {
            return Ok(Received::default());
        }
        Err(Errno::EAGAIN)
    }
}
