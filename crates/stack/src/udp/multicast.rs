//! Multicast on a UDP socket: the groups that it has joined, and how it sends to groups.

use alloc::format;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use fullsend_offload::Packet;
use fullsend_tcp::IpSettings;
use fullsend_wire::Instant;
use fullsend_wire::numbers::protocol;

use super::UdpHandle;
use crate::interface::LOOPBACK;
use crate::ip::Path;
use crate::{IfaceId, StackError};

/// Most groups of one socket (Linux's `igmp_max_memberships`).
pub(super) const MAX_MEMBERSHIPS: usize = 20;

/// A group that a socket has joined, with the interface.
pub(crate) type Membership = (u16, IpAddr);

/// The multicast settings of a UDP socket for sent datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MulticastSettings {
    /// TTL of datagrams to IPv4 groups (`IP_MULTICAST_TTL`); with 0 they do not leave the host.
    pub ttl_v4: u8,
    /// Hop limit of datagrams to IPv6 groups (`IPV6_MULTICAST_HOPS`); with 0 they do not leave the
    /// host.
    pub hops_v6: u8,
    /// Whether datagrams to IPv4 groups are delivered to the host's own sockets, too
    /// (`IP_MULTICAST_LOOP`).
    pub loop_v4: bool,
    /// Whether datagrams to IPv6 groups are delivered to the host's own sockets, too
    /// (`IPV6_MULTICAST_LOOP`).
    pub loop_v6: bool,
    /// The interface on which datagrams to IPv4 groups leave (`IP_MULTICAST_IF`); `None` is that of
    /// the route to the group.
    pub iface_v4: Option<IfaceId>,
    /// The interface on which datagrams to IPv6 groups leave (`IPV6_MULTICAST_IF`); `None` is that of
    /// the route to the group.
    pub iface_v6: Option<IfaceId>,
    /// The source address of datagrams to IPv4 groups, if the socket is not bound to an address
    /// (`IP_MULTICAST_IF`); `None` leaves the choice to the host. Sending fails with
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable) unless an interface has the address.
    pub source_v4: Option<Ipv4Addr>,
}

impl Default for MulticastSettings {
    fn default() -> Self {
        Self {
            ttl_v4: 1,
            hops_v6: 1,
            loop_v4: true,
            loop_v6: true,
            iface_v4: None,
            iface_v6: None,
            source_v4: None,
        }
    }
}

impl MulticastSettings {
    /// Returns the TTL or hop limit of datagrams to a group.
    pub(super) const fn ttl(self, group: IpAddr) -> u8 {
        if group.is_ipv6() {
            self.hops_v6
        } else {
            self.ttl_v4
        }
    }

    /// Returns the interface that is chosen for datagrams to `to`, if that is a group.
    fn via(self, to: IpAddr) -> Option<u16> {
        let iface = if to.is_ipv6() {
            self.iface_v6
        } else {
            self.iface_v4
        };
        iface.filter(|_| to.is_multicast()).map(|iface| iface.0)
    }

    const fn loops(self, group: IpAddr) -> bool {
        if group.is_ipv6() {
            self.loop_v6
        } else {
            self.loop_v4
        }
    }
}

impl UdpHandle<'_> {
    /// Returns how the socket sends to multicast groups.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn multicast(&self) -> Result<MulticastSettings, StackError> {
        Ok(self.host.udp.socket(self.id)?.multicast)
    }

    /// Sets how the socket sends to multicast groups.
    ///
    /// # Errors
    /// [`Config`](StackError::Config) if there is no such interface, and
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_multicast(&mut self, settings: MulticastSettings) -> Result<(), StackError> {
        for iface in [settings.iface_v4, settings.iface_v6].into_iter().flatten() {
            self.host.check_iface(iface)?;
        }
        self.socket()?.multicast = settings;
        Ok(())
    }

    /// Returns the interface that the socket has chosen for datagrams to `to`, if that is a group.
    pub(super) fn via(&self, to: IpAddr) -> Result<Option<u16>, StackError> {
        if !to.is_multicast() {
            return Ok(None);
        }
        Ok(self.multicast()?.via(to))
    }

    /// Returns the source address of datagrams to `to` if the socket is bound to no address.
    pub(super) fn source_to(&self, to: IpAddr) -> Result<IpAddr, StackError> {
        let source = self.host.source_via(to, self.via(to)?)?;
        if !to.is_multicast() || to.is_ipv6() {
            return Ok(source);
        }
        let Some(chosen) = self.multicast()?.source_v4 else {
            return Ok(source);
        };
        if self.host.iface_of(chosen.into()).is_none() {
            return Err(StackError::AddressNotAvailable((chosen, 0).into()));
        }
        Ok(chosen.into())
    }

    /// Joins a multicast group on `iface`, or with `None` on the interface of the route to the group.
    /// The host then receives the group's datagrams, for all sockets that are bound to their port, and
    /// reports the membership with IGMP or MLD. A host has at most 256 groups, a socket 20. They are
    /// left when the socket is closed.
    ///
    /// # Errors
    /// [`Config`](StackError::Config) if `group` is not a multicast address or there is no such
    /// interface; [`NoRoute`](StackError::NoRoute) without an interface for the group's family;
    /// [`AddressInUse`](StackError::AddressInUse) if the socket has joined the group already;
    /// [`TooManyGroups`](StackError::TooManyGroups); [`NoSuchSocket`](StackError::NoSuchSocket) if
    /// there is no such socket.
    pub fn join_group(
        &mut self,
        now: Instant,
        group: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<(), StackError> {
        if !group.is_multicast() {
            let text =
                format!("{group} is not a multicast address; pass one of 224.0.0.0/4 or ff00::/8");
            return Err(StackError::Config(text));
        }
        let membership = (self.host.group_iface(group, iface)?.0, group);
        let socket = self.socket()?;
        if socket.memberships.contains(&membership) {
            return Err(StackError::AddressInUse(SocketAddr::new(group, 0)));
        }
        if socket.memberships.len() >= MAX_MEMBERSHIPS {
            return Err(StackError::TooManyGroups {
                max: MAX_MEMBERSHIPS,
            });
        }
        self.host.join_group(now, membership.0, group)?;
        self.socket()?.memberships.push(membership);
        Ok(())
    }

    /// Leaves a multicast group that the socket has joined on `iface`, or with `None` on any
    /// interface.
    ///
    /// # Errors
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable) if the socket has not joined the
    /// group; [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn leave_group(
        &mut self,
        now: Instant,
        group: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<(), StackError> {
        let memberships = &mut self.socket()?.memberships;
        let same = |(on, address): &Membership| {
            *address == group && iface.is_none_or(|iface| iface.0 == *on)
        };
        let index = memberships.iter().position(same);
        let index = index.ok_or(StackError::AddressNotAvailable(SocketAddr::new(group, 0)))?;
        let (iface, group) = memberships.swap_remove(index);
        self.host.leave_group(now, iface, group);
        Ok(())
    }

    /// Delivers a copy of a datagram to a group to the host's own sockets, if some have joined it.
    /// Returns whether it must not leave the host.
    pub(super) fn loop_back(
        &mut self,
        now: Instant,
        (from, to): (SocketAddr, SocketAddr),
        settings: IpSettings,
        packet: &Packet,
    ) -> bool {
        let group = to.ip();
        let Ok(multicast) = self.multicast() else {
            return false;
        };
        let host = &mut *self.host;
        let iface = multicast.via(group).or_else(|| host.ip.route_iface(group));
        let is_member = iface.is_some_and(|iface| host.ip.multicast.is_member(iface, group));
        if multicast.loops(group) && is_member {
            let mut copy = packet.clone();
            let (local, remote) = (from.ip().into(), group.into());
            let loopback = (LOOPBACK, host.loopback.config.caps.mtu, host.ip.version);
            let mut path = Path::new(loopback, Some(&[]), (local, remote), (protocol::UDP, 0));
            path.apply(settings);
            let len = copy.len();
            path.prepend(&mut copy.header, len, 0, 0);
            copy.layers = path.layers(protocol::UDP);
            host.queue_packet(now, LOOPBACK, group.is_ipv4(), copy);
        }
        // RFC 4291 2.7: groups of the reserved and the interface-local scope stay on the host.
        let stays = matches!(group, IpAddr::V6(ip) if ip.octets()[1] & 0xf <= 1);
        stays || multicast.ttl(group) == 0
    }
}
