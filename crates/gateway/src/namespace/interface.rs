//! Configuration of the guest's interface, in the guest's network namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

use super::failed;
use super::host_network::HostRoute;
use super::netlink::Netlink;

/// Length of the TAP's transmit queue, packets: a receive window of 6 MB in packets of 1500 bytes. The
/// driver's default, 500, overflows with 200 bulk flows.
const QUEUE_LEN: u32 = 4096;
/// The driver's defaults for TUN and Ethernet. Other values were configured and are kept.
const DEFAULT_QUEUE_LENS: [u32; 2] = [500, 1000];

/// The settings of the guest's interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InterfaceSetup {
    /// Size of the largest IP packet, bytes; `None` leaves it as it is.
    pub mtu: Option<u32>,
    /// The guest's Ethernet address; `None` leaves the kernel's choice.
    pub mac: Option<[u8; 6]>,
    /// Addresses with their prefix lengths. Duplicate address detection is off, as the gateway is the
    /// only neighbor.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Gateways of default routes.
    pub gateways: Vec<IpAddr>,
    /// Further routes, added in this order. The ones that the kernel refuses are left out, and named in
    /// [`Tap::refused`](super::Tap::refused).
    pub routes: Vec<HostRoute>,
    /// Whether the namespace's loopback interface is set up, too.
    pub loopback: bool,
    /// Whether router advertisements are accepted; `None` leaves the kernel's default.
    pub accept_ra: Option<bool>,
    /// Whether the interface is left down, without addresses and routes, so that the guest configures it.
    pub leave_down: bool,
}

/// The properties of an interface that the kernel reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mtu: u32,
    pub(super) queue_len: u32,
    pub(super) mac: Option<[u8; 6]>,
}

impl InterfaceSetup {
    /// Applies the settings to an interface, and sets it up. Returns the routes that the kernel refuses,
    /// one line each.
    pub(super) fn apply(&self, netlink: &mut Netlink, name: &str) -> io::Result<Vec<String>> {
        let interface = find(netlink, name)?;
        if self.loopback {
            let loopback = find(netlink, "lo")?;
            set_up(netlink, loopback.index, Vec::new())
                .map_err(|e| failed("set up the interface lo", e))?;
        }
        // The sysctl affects the link-local address only before the interface is up.
        if let Some(accept) = self.accept_ra {
            let value = if accept { "2" } else { "0" };
            let path = format!("/proc/sys/net/ipv6/conf/{name}/accept_ra");
            // A kernel without IPv6 has no such file, and a container's /proc may be read-only.
            let _ = std::fs::write(path, value);
        }
        let mut attributes = Vec::new();
        attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        attributes.extend(self.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        if self.leave_down {
            change(netlink, interface.index, LinkFlags::empty(), attributes)
                .map_err(|e| failed(format_args!("change the interface {name}"), e))?;
            return Ok(Vec::new());
        }
        set_up(netlink, interface.index, attributes).map_err(|e| {
            let mtu = self.mtu.unwrap_or(interface.mtu);
            failed(
                format_args!("set up the interface {name} with MTU {mtu}"),
                e,
            )
        })?;
        for &(address, prefix) in &self.addresses {
            add_address(netlink, interface.index, address, prefix)
                .map_err(|e| failed(format_args!("add {address}/{prefix} to {name}"), e))?;
        }
        // The host's routes may be impossible here, e.g. because they depend on routing rules or tunnels
        // that the guest does not have.
        let refused = self.routes.iter().filter_map(|route| {
            let error = add_route(netlink, interface.index, route).err()?;
            Some(failed(format_args!("add the route {route} to {name}"), error).to_string())
        });
        let refused = refused.collect();
        for &gateway in &self.gateways {
            add_default_route(netlink, interface.index, gateway)
                .map_err(|e| failed(format_args!("add a default route via {gateway}"), e))?;
        }
        Ok(refused)
    }
}

/// Raises the transmit queue of an interface whose queue has its default length.
///
/// A user without privileges over an interface of root cannot change it, which is not an error.
pub(super) fn raise_queue_len(netlink: &mut Netlink, interface: &Interface) {
    if DEFAULT_QUEUE_LENS.contains(&interface.queue_len) {
        let attributes = vec![LinkAttribute::TxQueueLen(QUEUE_LEN)];
        let _ = change(netlink, interface.index, LinkFlags::empty(), attributes);
    }
}

/// Returns the interface with this name.
pub(super) fn find(netlink: &mut Netlink, name: &str) -> io::Result<Interface> {
    let all = interfaces(netlink)?;
    let found = all.into_iter().find(|interface| interface.name == name);
    found.ok_or_else(|| {
        let text = format!("there is no interface {name} in the network namespace");
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// Returns all interfaces.
pub(super) fn interfaces(netlink: &mut Netlink) -> io::Result<Vec<Interface>> {
    let objects = netlink.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let links = objects.into_iter().filter_map(|object| match object {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    Ok(links.map(|link| interface(&link)).collect())
}

fn interface(link: &LinkMessage) -> Interface {
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        mtu: 1500,
        queue_len: 0,
        mac: None,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::TxQueueLen(len) => interface.queue_len = *len,
            LinkAttribute::Address(bytes) => interface.mac = bytes[..].try_into().ok(),
            _ => {}
        }
    }
    interface
}

fn set_up(netlink: &mut Netlink, index: u32, attributes: Vec<LinkAttribute>) -> io::Result<()> {
    change(netlink, index, LinkFlags::Up, attributes)
}

/// Sets flags and attributes of an interface.
fn change(
    netlink: &mut Netlink,
    index: u32,
    flags: LinkFlags,
    attributes: Vec<LinkAttribute>,
) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = flags;
    message.header.change_mask = flags;
    message.attributes = attributes;
    netlink.change(RouteNetlinkMessage::SetLink(message))
}

fn add_address(netlink: &mut Netlink, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = prefix;
    message.header.index = index;
    message.header.flags = AddressHeaderFlags::Nodad;
    if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        message.header.scope = AddressScope::Link;
    }
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
    ];
    if let IpAddr::V4(address) = address
        && prefix < 31
    {
        let host_bits = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
        let broadcast = Ipv4Addr::from(u32::from(address) | host_bits);
        message
            .attributes
            .push(AddressAttribute::Broadcast(broadcast));
    }
    netlink.add(RouteNetlinkMessage::NewAddress(message))
}

/// Adds a default route. If the gateway is not on the link, adds an on-link route to it first.
fn add_default_route(netlink: &mut Netlink, index: u32, gateway: IpAddr) -> io::Result<()> {
    let any = match gateway {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let default = HostRoute {
        destination: (any, 0),
        gateway: Some(gateway),
        on_link: false,
        source: None,
    };
    match add_route(netlink, index, &default) {
        Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable || is_einval(&error) => {
            let on_link = HostRoute {
                destination: (gateway, if gateway.is_ipv4() { 32 } else { 128 }),
                gateway: None,
                on_link: false,
                source: None,
            };
            add_route(netlink, index, &on_link)?;
            add_route(netlink, index, &default)
        }
        other => other,
    }
}

/// Returns whether the kernel reports a gateway without a route to it, which is `EINVAL` for IPv6.
fn is_einval(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::HostUnreachable
    )
}

fn add_route(netlink: &mut Netlink, index: u32, route: &HostRoute) -> io::Result<()> {
    let (destination, prefix) = route.destination;
    let mut message = RouteMessage::default();
    message.header.address_family = family(destination);
    message.header.destination_prefix_length = prefix;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Boot;
    message.header.kind = RouteType::Unicast;
    message.header.scope = match route.gateway {
        None if destination.is_ipv4() => RouteScope::Link,
        _ => RouteScope::Universe,
    };
    if route.on_link {
        message.header.flags = RouteFlags::Onlink;
    }
    if prefix > 0 {
        message
            .attributes
            .push(RouteAttribute::Destination(destination.into()));
    }
    message.attributes.push(RouteAttribute::Oif(index));
    let gateway = route.gateway.map(|g| RouteAttribute::Gateway(g.into()));
    message.attributes.extend(gateway);
    let source = route.source.map(|s| RouteAttribute::PrefSource(s.into()));
    message.attributes.extend(source);
    netlink.add(RouteNetlinkMessage::NewRoute(message))
}

pub(super) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
