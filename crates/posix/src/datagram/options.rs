//! Options of datagram sockets.

use fullsend_stack::Host;

use super::Datagram;
use crate::abi::{
    AF_INET6, IP_MTU, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, IPV6_MTU, SO_ACCEPTCONN, SO_DOMAIN,
    SO_ERROR, SO_MARK, SO_PRIORITY, SO_PROTOCOL, SO_RCVBUF, SO_RCVBUFFORCE, SO_SNDBUF,
    SO_SNDBUFFORCE, SO_TYPE, SO_ZEROCOPY, SOCK_DGRAM, SOL_SOCKET,
};
use crate::errno::{Errno, Result};
use crate::sockopt::{Value, int, unknown_level};

/// Linux's least buffers.
const LEAST_SNDBUF: u32 = 4608;
const LEAST_RCVBUF: u32 = 2304;

impl Datagram {
    pub(crate) fn set(
        &mut self,
        host: &mut Host,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<()> {
        let known = match level {
            SOL_SOCKET => return self.set_socket(host, name, value),
            IPPROTO_IP => self.common.ip.set_ip(name, value)?,
            IPPROTO_IPV6 if self.domain == AF_INET6 => {
                let bound = self.udp.is_some();
                self.common.ip.set_ipv6(name, value, bound)?
            }
            _ => None,
        };
        known.ok_or(Errno::ENOPROTOOPT)
    }

    fn set_socket(&mut self, host: &mut Host, name: i32, value: &[u8]) -> Result<()> {
        // Nothing tells when a datagram's memory is free.
        if name == SO_ZEROCOPY {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.common.set(name, value)?.is_some() {
            return Ok(());
        }
        let (wmem_max, rmem_max) = (host.sysctl().wmem_max, host.sysctl().rmem_max);
        // A negative number is a very large one.
        let asked = int(value)? as u32;
        let forced = int(value)?.max(0) as u32;
        let doubled = |bytes: u32, most: u32| bytes.min(most).min(i32::MAX as u32 / 2) * 2;
        match name {
            SO_SNDBUF => self.sndbuf = doubled(asked, wmem_max).max(LEAST_SNDBUF),
            SO_SNDBUFFORCE => self.sndbuf = doubled(forced, u32::MAX).max(LEAST_SNDBUF),
            SO_RCVBUF => self.rcvbuf = doubled(asked, rmem_max).max(LEAST_RCVBUF),
            SO_RCVBUFFORCE => self.rcvbuf = doubled(forced, u32::MAX).max(LEAST_RCVBUF),
            SO_MARK => self.mark = asked,
            SO_PRIORITY => self.priority = asked,
            _ => return Err(Errno::ENOPROTOOPT),
        }
        if let Some(id) = self.udp {
            host.udp_set_rcvbuf(id, self.rcvbuf as usize)?;
        }
        Ok(())
    }

    pub(crate) fn get(&mut self, host: &mut Host, level: i32, name: i32) -> Result<Value> {
        let known = match level {
            SOL_SOCKET => self.get_socket(host, name),
            IPPROTO_IP if name == IP_MTU => return Err(Errno::ENOPROTOOPT),
            IPPROTO_IP => self.common.ip.get_ip(name),
            IPPROTO_IPV6 if name == IPV6_MTU => None,
            IPPROTO_IPV6 if self.domain == AF_INET6 => self.common.ip.get_ipv6(name),
            _ => return Err(unknown_level(self.domain)),
        };
        known.ok_or(Errno::ENOPROTOOPT)
    }

    fn get_socket(&self, host: &mut Host, name: i32) -> Option<Value> {
        if let Some(value) = self.common.get(name) {
            return Some(value);
        }
        Some(Value::Int(match name {
            SO_TYPE => SOCK_DGRAM,
            SO_DOMAIN => self.domain,
            SO_PROTOCOL => IPPROTO_UDP,
            SO_ACCEPTCONN => 0,
            SO_ERROR => self.take_error(host).map_or(0, |errno| errno.0),
            SO_SNDBUF => self.sndbuf as i32,
            SO_RCVBUF => self.rcvbuf as i32,
            SO_MARK => self.mark as i32,
            SO_PRIORITY => self.priority as i32,
            _ => return None,
        }))
    }
}
