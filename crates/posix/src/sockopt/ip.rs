//! Options of `IPPROTO_IP` and `IPPROTO_IPV6`.

use fullsend_stack::Host;
use fullsend_tcp::{MtuDiscover, SocketOption};
use fullsend_wire::Instant;

use super::{OptionValue, int};
use crate::abi::{
    AF_INET6, IP_BIND_ADDRESS_NO_PORT, IP_FREEBIND, IP_MTU, IP_MTU_DISCOVER, IP_RECVERR, IP_TOS,
    IP_TTL, IPV6_FREEBIND, IPV6_MTU, IPV6_MTU_DISCOVER, IPV6_RECVERR, IPV6_TCLASS,
    IPV6_UNICAST_HOPS, IPV6_V6ONLY,
};
use crate::errno::{Errno, Result};
use crate::stream::Stream;

/// The ECN bits of the type of service, which the connection of a stream controls.
const ECN_BITS: u8 = 0b11;
/// The default TTL and hop limit.
pub(crate) const DEFAULT_TTL: u8 = 64;

/// The options of these levels that have an effect only in this crate.
#[derive(Clone, Debug)]
pub(crate) struct IpOptions {
    /// Whether addresses of other hosts may be bound.
    pub(crate) freebind: bool,
    pub(crate) bind_address_no_port: bool,
    pub(crate) v6only: bool,
}

impl IpOptions {
    pub(crate) const fn new() -> Self {
        Self {
            freebind: false,
            bind_address_no_port: false,
            v6only: false,
        }
    }

    /// Sets an option of `IPPROTO_IP` that is stored here. Returns `None` for other options.
    pub(crate) fn set_ip(&mut self, name: i32, value: &[u8]) -> Result<Option<()>> {
        match name {
            IP_FREEBIND if value.is_empty() => return Err(Errno::EINVAL),
            IP_FREEBIND => self.freebind = int_or_byte(value)? != 0,
            IP_BIND_ADDRESS_NO_PORT => self.bind_address_no_port = int_or_byte(value)? != 0,
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    pub(crate) fn get_ip(&self, name: i32) -> Option<OptionValue> {
        Some(OptionValue::Small(i32::from(match name {
            IP_FREEBIND => self.freebind,
            IP_BIND_ADDRESS_NO_PORT => self.bind_address_no_port,
            _ => return None,
        })))
    }

    /// Sets an option of `IPPROTO_IPV6` that is stored here. Returns `None` for other options.
    pub(crate) fn set_ipv6(&mut self, name: i32, value: &[u8], bound: bool) -> Result<Option<()>> {
        match name {
            IPV6_FREEBIND => self.freebind = int(value)? != 0,
            IPV6_V6ONLY if bound => return Err(Errno::EINVAL),
            IPV6_V6ONLY => self.v6only = int(value)? != 0,
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    pub(crate) fn get_ipv6(&self, name: i32) -> Option<OptionValue> {
        Some(match name {
            IPV6_FREEBIND => self.freebind.into(),
            IPV6_V6ONLY => self.v6only.into(),
            _ => return None,
        })
    }
}

/// Parses an integer of level IPv4, of four bytes or one.
pub(crate) fn int_or_byte(value: &[u8]) -> Result<i32> {
    match value {
        [] => Ok(0),
        [byte, ..] if value.len() < 4 => Ok((*byte).into()),
        _ => int(value),
    }
}

/// Parses `IP_PMTUDISC_*`. INTERFACE and OMIT are not supported.
pub(crate) fn mtu_discover(value: i32) -> Result<MtuDiscover> {
    match value {
        0 => Ok(MtuDiscover::Dont),
        1 => Ok(MtuDiscover::Want),
        2 => Ok(MtuDiscover::Do),
        3 => Ok(MtuDiscover::Probe),
        _ => Err(Errno::EINVAL),
    }
}

pub(crate) const fn mtu_discover_number(how: MtuDiscover) -> i32 {
    match how {
        MtuDiscover::Dont => 0,
        MtuDiscover::Want => 1,
        MtuDiscover::Do => 2,
        MtuDiscover::Probe => 3,
    }
}

/// Parses a TTL, hop limit or traffic class of at least `least`; -1 is the default.
pub(crate) fn byte_or_default(value: i32, least: i32) -> Result<Option<u8>> {
    match value {
        -1 => Ok(None),
        n if (least..256).contains(&n) => Ok(Some(n as u8)),
        _ => Err(Errno::EINVAL),
    }
}

impl Stream {
    pub(crate) fn set_ip(
        &mut self,
        host: &mut Host,
        now: Instant,
        name: i32,
        value: &[u8],
    ) -> Result<()> {
        if self.common.ip.set_ip(name, value)?.is_some() {
            return Ok(());
        }
        let option = match name {
            IP_TOS => SocketOption::IpTos(int_or_byte(value)? as u8 & !ECN_BITS),
            IP_TTL if value.is_empty() => return Err(Errno::EINVAL),
            IP_TTL => SocketOption::IpTtl(byte_or_default(int_or_byte(value)?, 1)?),
            IP_MTU_DISCOVER => SocketOption::IpMtuDiscover(mtu_discover(int_or_byte(value)?)?),
            IP_RECVERR => SocketOption::IpRecverr(int_or_byte(value)? != 0),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        self.set_option(host, now, option)
    }

    pub(crate) fn get_ip(&self, host: &mut Host, name: i32) -> Result<OptionValue> {
        if let Some(value) = self.common.ip.get_ip(name) {
            return Ok(value);
        }
        Ok(OptionValue::Small(match name {
            IP_TOS => setting!(self, host, ip_tos, IpTos, 0).into(),
            IP_TTL => {
                let ttl = setting!(self, host, ip_ttl, IpTtl, None);
                ttl.unwrap_or(DEFAULT_TTL).into()
            }
            IP_MTU_DISCOVER => self.mtu_discover(host),
            IP_RECVERR => setting!(self, host, ip_recverr, IpRecverr, false).into(),
            IP_MTU => self.connection_options(host).ok_or(Errno::ENOTCONN)?.ip_mtu as i32,
            _ => return Err(Errno::ENOPROTOOPT),
        }))
    }

    fn mtu_discover(&self, host: &mut Host) -> i32 {
        let how = setting!(
            self,
            host,
            ip_mtu_discover,
            IpMtuDiscover,
            MtuDiscover::Want
        );
        mtu_discover_number(how)
    }

    pub(crate) fn set_ipv6(
        &mut self,
        host: &mut Host,
        now: Instant,
        name: i32,
        value: &[u8],
    ) -> Result<()> {
        if self.domain != AF_INET6 {
            return Err(Errno::ENOPROTOOPT);
        }
        let bound = self.bound.is_some() || !self.is_unconnected();
        if self.common.ip.set_ipv6(name, value, bound)?.is_some() {
            return Ok(());
        }
        let option = match name {
            IPV6_TCLASS => {
                let class = byte_or_default(int(value)?, 0)?.unwrap_or(0);
                SocketOption::IpTos(class & !ECN_BITS)
            }
            IPV6_UNICAST_HOPS => {
                let hops = byte_or_default(int(value)?, 0)?;
                // A packet with a hop limit of zero cannot be sent.
                if hops == Some(0) {
                    return Err(Errno::EINVAL);
                }
                SocketOption::IpTtl(hops)
            }
            IPV6_MTU_DISCOVER => SocketOption::IpMtuDiscover(mtu_discover(int(value)?)?),
            // A stream has one switch for both address families.
            IPV6_RECVERR => SocketOption::IpRecverr(int(value)? != 0),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        self.set_option(host, now, option)
    }

    pub(crate) fn get_ipv6(&self, host: &mut Host, name: i32) -> Result<OptionValue> {
        if self.domain != AF_INET6 {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(value) = self.common.ip.get_ipv6(name) {
            return Ok(value);
        }
        Ok(OptionValue::Int(match name {
            IPV6_TCLASS => setting!(self, host, ip_tos, IpTos, 0).into(),
            IPV6_UNICAST_HOPS => {
                let hops = setting!(self, host, ip_ttl, IpTtl, None);
                hops.unwrap_or(DEFAULT_TTL).into()
            }
            IPV6_MTU_DISCOVER => self.mtu_discover(host),
            IPV6_RECVERR => setting!(self, host, ip_recverr, IpRecverr, false).into(),
            IPV6_MTU => self.connection_options(host).ok_or(Errno::ENOTCONN)?.ip_mtu as i32,
            _ => return Err(Errno::ENOPROTOOPT),
        }))
    }
}
