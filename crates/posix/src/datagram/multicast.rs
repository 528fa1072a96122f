//! Multicast options of UDP sockets.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_stack::{Host, IfaceId, MulticastSettings, StackError, UdpId};
use fullsend_wire::Instant;

use super::Datagram;
use crate::abi::{
    IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP, IP_MULTICAST_IF, IP_MULTICAST_LOOP, IP_MULTICAST_TTL,
    IPV6_JOIN_GROUP, IPV6_LEAVE_GROUP, IPV6_MULTICAST_HOPS, IPV6_MULTICAST_IF, IPV6_MULTICAST_LOOP,
};
use crate::errno::{Errno, Result};
use crate::sockopt::{OptionValue, byte_or_default, int, int_or_byte};

/// Most groups of one socket (Linux's `igmp_max_memberships`).
const MAX_MEMBERSHIPS: usize = 20;

/// The multicast options of a socket.
#[derive(Debug, Default)]
pub(super) struct MulticastOptions {
    settings: MulticastSettings,
    /// The groups joined before the socket was bound, with their interfaces.
    pending: Vec<(IpAddr, IfaceId)>,
}

/// Returns the bytes of a structure from `at` on.
fn bytes_at<const N: usize>(value: &[u8], at: usize) -> Result<[u8; N]> {
    let bytes = value.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().ok_or(Errno::EINVAL)
}

/// Returns the interface with an index; 0 leaves the choice to the host.
fn iface_with_index(host: &Host, index: i32) -> Result<Option<IfaceId>> {
    if index == 0 {
        return Ok(None);
    }
    let index = u32::try_from(index).map_err(|_| Errno::ENODEV)?;
    host.iface_with_index(index).map(Some).ok_or(Errno::ENODEV)
}

/// Parses `struct ip_mreq` or `ip_mreqn`: the group, and the interface by its index or its address.
fn membership_v4(host: &Host, value: &[u8]) -> Result<(IpAddr, Option<IfaceId>)> {
    let group = IpAddr::from(bytes_at::<4>(value, 0)?);
    let address = Ipv4Addr::from(bytes_at::<4>(value, 4)?);
    let index = bytes_at(value, 8).map_or(0, i32::from_ne_bytes);
    let iface = match iface_with_index(host, index)? {
        None if !address.is_unspecified() => {
            Some(host.iface_of(address.into()).ok_or(Errno::ENODEV)?)
        }
        iface => iface,
    };
    Ok((group, iface))
}

/// Parses `struct ipv6_mreq`: the group, and the index of the interface.
fn membership_v6(host: &Host, value: &[u8]) -> Result<(IpAddr, Option<IfaceId>)> {
    let group = Ipv6Addr::from(bytes_at::<16>(value, 0)?);
    let index = i32::from_ne_bytes(bytes_at(value, 16)?);
    Ok((group.into(), iface_with_index(host, index)?))
}

/// Parses the value of `IP_MULTICAST_IF`, a `struct in_addr`, `ip_mreq` or `ip_mreqn`: the interface of
/// datagrams to groups, by its index or an address, and their source address. The address must be the
/// host's: Linux accepts any with an index, and fails when a datagram is sent.
fn multicast_if_v4(host: &Host, value: &[u8]) -> Result<(Option<IfaceId>, Option<Ipv4Addr>)> {
    let at = if value.len() < 8 { 0 } else { 4 };
    let address = Ipv4Addr::from(bytes_at::<4>(value, at)?);
    let index = bytes_at(value, 8).map_or(0, i32::from_ne_bytes);
    let iface = iface_with_index(host, index).map_err(|_| Errno::EADDRNOTAVAIL)?;
    if address.is_unspecified() {
        return Ok((iface, None));
    }
    let own = host.iface_of(address.into()).ok_or(Errno::EADDRNOTAVAIL)?;
    Ok((iface.or(Some(own)), Some(address)))
}

/// Returns the error of a membership call: without an interface for the group, it is ENODEV.
fn membership_error(error: StackError) -> Errno {
    match error {
        StackError::NoRoute(_) => Errno::ENODEV,
        error => error.into(),
    }
}

impl Datagram {
    /// Sets a multicast option of `IPPROTO_IP`. Returns `None` for other options.
    pub(super) fn set_multicast_ip(
        &mut self,
        host: &mut Host,
        now: Instant,
        (name, value): (i32, &[u8]),
    ) -> Result<Option<()>> {
        let settings = &mut self.multicast.settings;
        match name {
            IP_MULTICAST_TTL | IP_MULTICAST_LOOP if value.is_empty() => return Err(Errno::EINVAL),
            IP_MULTICAST_TTL => {
                settings.ttl_v4 = byte_or_default(int_or_byte(value)?, 0)?.unwrap_or(1);
            }
            IP_MULTICAST_LOOP => settings.loop_v4 = int_or_byte(value)? != 0,
            IP_MULTICAST_IF => {
                (settings.iface_v4, settings.source_v4) = multicast_if_v4(host, value)?;
            }
            IP_ADD_MEMBERSHIP => {
                let membership = membership_v4(host, value)?;
                return self.join(host, now, membership).map(Some);
            }
            IP_DROP_MEMBERSHIP => {
                let membership = membership_v4(host, value)?;
                return self.leave(host, now, membership).map(Some);
            }
            _ => return Ok(None),
        }
        self.apply_multicast(host).map(Some)
    }

    /// Sets a multicast option of `IPPROTO_IPV6`. Returns `None` for other options.
    pub(super) fn set_multicast_ipv6(
        &mut self,
        host: &mut Host,
        now: Instant,
        (name, value): (i32, &[u8]),
    ) -> Result<Option<()>> {
        let settings = &mut self.multicast.settings;
        match name {
            IPV6_MULTICAST_HOPS => {
                settings.hops_v6 = byte_or_default(int(value)?, 0)?.unwrap_or(1);
            }
            IPV6_MULTICAST_LOOP => {
                settings.loop_v6 = match int(value)? {
                    0 => false,
                    1 => true,
                    _ => return Err(Errno::EINVAL),
                };
            }
            IPV6_MULTICAST_IF => settings.iface_v6 = iface_with_index(host, int(value)?)?,
            IPV6_JOIN_GROUP => {
                let membership = membership_v6(host, value)?;
                return self.join(host, now, membership).map(Some);
            }
            IPV6_LEAVE_GROUP => {
                let membership = membership_v6(host, value)?;
                return self.leave(host, now, membership).map(Some);
            }
            _ => return Ok(None),
        }
        self.apply_multicast(host).map(Some)
    }

    /// Returns a multicast option of `IPPROTO_IP`.
    pub(super) fn get_multicast_ip(&self, name: i32) -> Option<OptionValue> {
        let settings = self.multicast.settings;
        Some(match name {
            IP_MULTICAST_TTL => OptionValue::Small(settings.ttl_v4.into()),
            IP_MULTICAST_LOOP => OptionValue::Small(settings.loop_v4.into()),
            IP_MULTICAST_IF => {
                let source = settings.source_v4.unwrap_or(Ipv4Addr::UNSPECIFIED);
                OptionValue::Bytes(source.octets().to_vec())
            }
            _ => return None,
        })
    }

    /// Returns a multicast option of `IPPROTO_IPV6`.
    pub(super) fn get_multicast_ipv6(&self, name: i32) -> Option<OptionValue> {
        let settings = self.multicast.settings;
        Some(match name {
            IPV6_MULTICAST_HOPS => OptionValue::Int(settings.hops_v6.into()),
            IPV6_MULTICAST_LOOP => settings.loop_v6.into(),
            IPV6_MULTICAST_IF => {
                let index = settings.iface_v6.map_or(0, IfaceId::index);
                OptionValue::Int(index as i32)
            }
            _ => return None,
        })
    }

    fn join(
        &mut self,
        host: &mut Host,
        now: Instant,
        (group, iface): (IpAddr, Option<IfaceId>),
    ) -> Result<()> {
        if !group.is_multicast() {
            return Err(Errno::EINVAL);
        }
        if let Some(id) = self.udp {
            let joined = host.udp(id).join_group(now, group, iface);
            return joined.map_err(membership_error);
        }
        let iface = host.group_iface(group, iface).map_err(membership_error)?;
        let pending = &mut self.multicast.pending;
        if pending.contains(&(group, iface)) {
            return Err(Errno::EADDRINUSE);
        }
        if pending.len() >= MAX_MEMBERSHIPS {
            return Err(Errno::ENOBUFS);
        }
        pending.push((group, iface));
        Ok(())
    }

    fn leave(
        &mut self,
        host: &mut Host,
        now: Instant,
        (group, iface): (IpAddr, Option<IfaceId>),
    ) -> Result<()> {
        if let Some(id) = self.udp {
            let left = host.udp(id).leave_group(now, group, iface);
            return left.map_err(membership_error);
        }
        let pending = &mut self.multicast.pending;
        let same = |&(joined, on): &(IpAddr, IfaceId)| {
            joined == group && iface.is_none_or(|iface| iface == on)
        };
        let index = pending.iter().position(same).ok_or(Errno::EADDRNOTAVAIL)?;
        pending.swap_remove(index);
        Ok(())
    }

    /// Applies the options to the host's socket, if the socket is bound.
    fn apply_multicast(&self, host: &mut Host) -> Result<()> {
        match self.udp {
            Some(id) => Ok(host.udp(id).set_multicast(self.multicast.settings)?),
            None => Ok(()),
        }
    }

    /// Applies the options to a newly bound socket, and joins the groups.
    pub(super) fn bind_multicast(
        &mut self,
        host: &mut Host,
        now: Instant,
        id: UdpId,
    ) -> Result<()> {
        host.udp(id).set_multicast(self.multicast.settings)?;
        for &(group, iface) in &self.multicast.pending {
            let joined = host.udp(id).join_group(now, group, Some(iface));
            joined.map_err(membership_error)?;
        }
        // After an error the socket is not bound, and keeps its memberships for the next call.
        self.multicast.pending.clear();
        Ok(())
    }
}
