//! `sendmsg` and `recvmsg` on datagrams.

use core::net::IpAddr;

use fullsend_buf::Slice;
use fullsend_stack::Host;
use fullsend_units::Instant;

use super::Datagram;
use crate::abi::{MSG_ERRQUEUE, MSG_MORE, MSG_OOB, MSG_PEEK, MSG_TRUNC};
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
    ) -> Result<usize> {
        // Datagrams that grow by several calls are not known here.
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
        if self.shut_write {
            return Err(Errno::EPIPE);
        }
        let id = self.socket(host)?;
        if let Some(error) = self.take_error(host) {
            return Err(error);
        }
        let all = match data {
            [one] => Slice::copied_from(one),
            parts => Slice::copied_from(&parts.concat()),
        };
        let len = all.len();
        host.udp_send(now, id, all, to, self.source_for(to.is_ipv4()))?;
        Ok(len)
    }

    /// The source of a connected socket stays what it was.
    fn source_for(&self, v4: bool) -> Option<core::net::SocketAddr> {
        self.source.filter(|source| source.is_ipv4() == v4)
    }

    pub(crate) fn receive(
        &mut self,
        host: &mut Host,
        data: &mut [&mut [u8]],
        flags: i32,
        blocks: bool,
    ) -> Result<Received> {
        if flags & MSG_ERRQUEUE != 0 {
            return Err(Errno::EAGAIN);
        }
        let Some(id) = self.udp else {
            return self.nothing(blocks);
        };
        if let Some(error) = self.take_error(host) {
            return Err(error);
        }
        let next = if flags & MSG_PEEK != 0 {
            host.udp_peek(id)?
        } else {
            host.udp_recv(id)?
        };
        let Some((payload, from, _)) = next else {
            return self.nothing(blocks);
        };
        let whole = payload.len();
        let mut rest = payload;
        let mut taken = 0;
        for part in data {
            let n = rest.copy_to(part);
            rest.advance(n);
            taken += n;
        }
        let cut = taken < whole;
        Ok(Received {
            len: if flags & MSG_TRUNC != 0 { whole } else { taken },
            from: Some(SockAddr::shown_in(self.domain, from)),
            flags: if cut { MSG_TRUNC } else { 0 },
            control_len: 0,
        })
    }

    /// Who would block sees the end of what was shut; who would not is told as ever.
    fn nothing(&self, blocks: bool) -> Result<Received> {
        if self.shut_read && blocks {
            return Ok(Received::default());
        }
        Err(Errno::EAGAIN)
    }
}
