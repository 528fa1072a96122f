//! Options of UDP sockets.

use fullsend_stack::Host;
use fullsend_wire::Instant;

use super::Datagram;
use crate::abi::{
    AF_INET6, IP_MTU, IP_MTU_DISCOVER, IP_TOS, IP_TTL, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP,
    IPV6_MTU, IPV6_MTU_DISCOVER, IPV6_TCLASS, IPV6_UNICAST_HOPS, SO_ACCEPTCONN, SO_DOMAIN,
    SO_ERROR, SO_MARK, SO_PRIORITY, SO_PROTOCOL, SO_RCVBUF, SO_RCVBUFFORCE, SO_SNDBUF,
    SO_SNDBUFFORCE, SO_TYPE, SO_ZEROCOPY, SOCK_DGRAM, SOL_SOCKET,
};
use crate::errno::{Errno, Result};
use crate::sockopt::{
    DEFAULT_TTL, OptionValue, byte_or_default, int, int_or_byte, mtu_discover, mtu_discover_number,
    unknown_level,
};

/// Linux's minimum buffer sizes, in bytes.
const MIN_SNDBUF: u32 = 4608;
const MIN_RCVBUF: u32 = 2304;

impl Datagram {
    pub(crate) fn set(
        &mut self,
        host: &mut Host,
        now: Instant,
        (level, name): (i32, i32),
        value: &[u8],
    ) -> Result<()> {
        let in_family = level != IPPROTO_IPV6 || self.domain == AF_INET6;
        if in_family && self.ancillary_options.set(level, name, value)?.is_some() {
            return match self.udp {
                Some(id) => Ok(host
                    .udp(id)
                    .keep_errors(self.ancillary_options.is_recverr_enabled())?),
                None => Ok(()),
            };
        }
        let multicast = match level {
            IPPROTO_IP => self.set_multicast_ip(host, now, (name, value))?,
            IPPROTO_IPV6 if in_family => self.set_multicast_ipv6(host, now, (name, value))?,
            _ => None,
        };
        if multicast.is_some() {
            return Ok(());
        }
        let known = match level {
            SOL_SOCKET => return self.set_socket(host, name, value),
            IPPROTO_IP => match self.common.ip.set_ip(name, value)? {
                None => self.set_ip(host, name, value)?,
                set => set,
            },
            IPPROTO_IPV6 if self.domain == AF_INET6 => {
                let bound = self.udp.is_some();
                match self.common.ip.set_ipv6(name, value, bound)? {
                    None => self.set_ipv6(host, name, value)?,
                    set => set,
                }
            }
            _ => None,
        };
        known.ok_or(Errno::ENOPROTOOPT)
    }

    fn set_ip(&mut self, host: &mut Host, name: i32, value: &[u8]) -> Result<Option<()>> {
        match name {
            IP_TOS => self.ip.tos = int_or_byte(value)? as u8,
            IP_TTL if value.is_empty() => return Err(Errno::EINVAL),
            IP_TTL => self.ip.ttl = byte_or_default(int_or_byte(value)?, 1)?,
            IP_MTU_DISCOVER => self.ip.mtu_discover = mtu_discover(int_or_byte(value)?)?,
            _ => return Ok(None),
        }
        self.apply(host).map(Some)
    }

    fn set_ipv6(&mut self, host: &mut Host, name: i32, value: &[u8]) -> Result<Option<()>> {
        match name {
            IPV6_TCLASS => self.ip.tos = byte_or_default(int(value)?, 0)?.unwrap_or(0),
            // A datagram with a hop limit of zero cannot be sent.
            IPV6_UNICAST_HOPS => self.ip.ttl = byte_or_default(int(value)?, 1)?,
            IPV6_MTU_DISCOVER => self.v6_mtu_discover = mtu_discover(int(value)?)?,
            _ => return Ok(None),
        }
        self.apply(host).map(Some)
    }

    pub(super) fn apply(&self, host: &mut Host) -> Result<()> {
        if let Some(id) = self.udp {
            host.udp(id).set_ip(self.ip)?;
            host.udp(id).set_v6_mtu_discover(self.v6_mtu_discover)?;
        }
        Ok(())
    }

    /// Returns `IP_MTU` or `IPV6_MTU`: the path MTU to the peer.
    fn path_mtu(&self, host: &Host, now: Instant) -> Result<i32> {
        let peer = self.peer.ok_or(Errno::ENOTCONN)?;
        Ok(host.udp_path_mtu(now, peer.ip())? as i32)
    }

    /// Returns options that both levels of IP have.
    fn get_shared(&self, name: i32) -> Option<OptionValue> {
        Some(OptionValue::Small(match name {
            IP_TOS | IPV6_TCLASS => self.ip.tos.into(),
            IP_TTL | IPV6_UNICAST_HOPS => self.ip.ttl.unwrap_or(DEFAULT_TTL).into(),
            IP_MTU_DISCOVER => mtu_discover_number(self.ip.mtu_discover),
            IPV6_MTU_DISCOVER => mtu_discover_number(self.v6_mtu_discover),
            _ => return None,
        }))
    }

    fn set_socket(&mut self, host: &mut Host, name: i32, value: &[u8]) -> Result<()> {
        // UDP does not report when the memory of a datagram is free.
        if name == SO_ZEROCOPY {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.common.set(name, value)?.is_some() {
            return match self.udp {
                Some(id) => {
                    host.udp(id).set_broadcast(self.common.broadcast)?;
                    Ok(host.udp(id).set_sharing(self.sharing())?)
                }
                None => Ok(()),
            };
        }
        let (wmem_max, rmem_max) = (host.sysctl().wmem_max, host.sysctl().rmem_max);
        // As on Linux, a negative number counts as a very large one.
        let requested = int(value)? as u32;
        let forced = int(value)?.max(0) as u32;
        let doubled = |bytes: u32, most: u32| bytes.min(most).min(i32::MAX as u32 / 2) * 2;
        match name {
            SO_SNDBUF => self.sndbuf = doubled(requested, wmem_max).max(MIN_SNDBUF),
            SO_SNDBUFFORCE => self.sndbuf = doubled(forced, u32::MAX).max(MIN_SNDBUF),
            SO_RCVBUF => self.rcvbuf = doubled(requested, rmem_max).max(MIN_RCVBUF),
            SO_RCVBUFFORCE => self.rcvbuf = doubled(forced, u32::MAX).max(MIN_RCVBUF),
            SO_MARK => self.mark = requested,
            SO_PRIORITY => self.priority = requested,
            _ => return Err(Errno::ENOPROTOOPT),
        }
        if let Some(id) = self.udp {
            host.udp(id).set_rcvbuf(self.rcvbuf as usize)?;
        }
        Ok(())
    }

    pub(crate) fn get(
        &mut self,
        host: &mut Host,
        now: Instant,
        level: i32,
        name: i32,
    ) -> Result<OptionValue> {
        let in_family = level != IPPROTO_IPV6 || self.domain == AF_INET6;
        if let Some(value) = self
            .ancillary_options
            .get(level, name)
            .filter(|_| in_family)
        {
            return Ok(value);
        }
        let known = match level {
            SOL_SOCKET => self.get_socket(host, name),
            IPPROTO_IP if name == IP_MTU => {
                return self.path_mtu(host, now).map(OptionValue::Small);
            }
            IPPROTO_IPV6 if name == IPV6_MTU && in_family => {
                return self.path_mtu(host, now).map(OptionValue::Int);
            }
            IPPROTO_IP => {
                let is_shared = matches!(name, IP_TOS | IP_TTL | IP_MTU_DISCOVER);
                let shared = is_shared.then(|| self.get_shared(name)).flatten();
                let own = self.common.ip.get_ip(name).or(shared);
                own.or_else(|| self.get_multicast_ip(name))
            }
            IPPROTO_IPV6 if self.domain == AF_INET6 => {
                let is_shared = matches!(name, IPV6_TCLASS | IPV6_UNICAST_HOPS | IPV6_MTU_DISCOVER);
                let shared = is_shared.then(|| self.get_shared(name)).flatten();
                let own = self.common.ip.get_ipv6(name).or(shared);
                own.or_else(|| self.get_multicast_ipv6(name))
            }
            _ => return Err(unknown_level(self.domain)),
        };
        known.ok_or(Errno::ENOPROTOOPT)
    }

    fn get_socket(&self, host: &mut Host, name: i32) -> Option<OptionValue> {
        if let Some(value) = self.common.get(name) {
            return Some(value);
        }
        Some(OptionValue::Int(match name {
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
