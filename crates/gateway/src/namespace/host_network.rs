//! The host's network, from which a guest's configuration is copied.

use std::fmt;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHopFlags,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::interface::interfaces;
use super::netlink::Netlink;

/// A route through one interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostRoute {
    /// The destination and its prefix length.
    pub destination: (IpAddr, u8),
    /// The gateway, or `None` for destinations on the link.
    pub gateway: Option<IpAddr>,
    /// Whether the gateway is on the link although no other route leads to it (`onlink`).
    pub on_link: bool,
    /// The preferred source address, which must be an address of the interface.
    pub source: Option<IpAddr>,
}

impl fmt::Display for HostRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.destination.0, self.destination.1)?;
        match self.gateway {
            Some(gateway) => write!(f, " via {gateway}"),
            None => Ok(()),
        }
    }
}

/// An interface of the host with its addresses and routes, of one address family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostNetwork {
    /// The interface's name.
    pub interface: String,
    /// Size of the largest IP packet, bytes.
    pub mtu: u32,
    /// The interface's Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Global addresses with their prefix lengths; the first is the primary one.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routes of the main table through this interface, the default routes last.
    pub routes: Vec<HostRoute>,
}

/// A route with the index of its interface.
struct Found {
    index: u32,
    priority: u32,
    route: HostRoute,
}

impl HostNetwork {
    /// Returns the network of an interface of the calling thread's network namespace.
    ///
    /// Without a name, the interface is that of the first default route. Returns `None` if there is no
    /// such route, or the interface has no address.
    ///
    /// # Errors
    /// `NotFound` if there is no interface `name`; the kernel's error otherwise.
    pub fn read(name: Option<&str>, ipv6: bool) -> io::Result<Option<Self>> {
        let mut netlink = Netlink::open()?;
        let all = interfaces(&mut netlink)?;
        let mut routes = routes(&mut netlink, ipv6)?;
        routes.sort_by_key(|found| found.priority);
        let index = match name {
            Some(name) => {
                let missing = || {
                    let text = format!("there is no interface {name}; `ip link` lists them");
                    io::Error::new(io::ErrorKind::NotFound, text)
                };
                all.iter()
                    .find(|i| i.name == name)
                    .ok_or_else(missing)?
                    .index
            }
            None => match routes.iter().find(|f| f.route.destination.1 == 0) {
                Some(default) => default.index,
                None => return Ok(None),
            },
        };
        let Some(interface) = all.into_iter().find(|i| i.index == index) else {
            return Ok(None);
        };
        let addresses = addresses(&mut netlink, index, ipv6)?;
        if addresses.is_empty() {
            return Ok(None);
        }
        let own = routes.into_iter().filter(|found| found.index == index);
        let mut routes: Vec<_> = own.map(|found| found.route).collect();
        keep_own_sources(&mut routes, &addresses);
        // The route to a gateway must precede the routes through it.
        routes.sort_by_key(|r| (r.destination.1 == 0, r.gateway.is_some()));
        Ok(Some(Self {
            interface: interface.name,
            mtu: interface.mtu,
            mac: interface.mac,
            addresses,
            routes,
        }))
    }

    /// Returns the gateway of the first default route.
    pub fn gateway(&self) -> Option<IpAddr> {
        let default = self.routes.iter().find(|r| r.destination.1 == 0)?;
        default.gateway
    }
}

/// Removes preferred source addresses that are not copied, e.g. link-local ones: the kernel refuses a
/// route with a source address that the guest does not have.
fn keep_own_sources(routes: &mut [HostRoute], addresses: &[(IpAddr, u8)]) {
    for route in routes {
        let is_own = |source: &IpAddr| addresses.iter().any(|(own, _)| own == source);
        route.source = route.source.filter(is_own);
    }
}

fn family(ipv6: bool) -> AddressFamily {
    if ipv6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    }
}

fn addresses(netlink: &mut Netlink, index: u32, ipv6: bool) -> io::Result<Vec<(IpAddr, u8)>> {
    let mut request = AddressMessage::default();
    request.header.family = family(ipv6);
    let objects = netlink.dump(RouteNetlinkMessage::GetAddress(request))?;
    let of_interface = objects.into_iter().filter_map(|object| match object {
        RouteNetlinkMessage::NewAddress(message) => Some(message),
        _ => None,
    });
    let of_interface = of_interface.filter(|m| {
        let header = &m.header;
        header.index == index
            && header.family == family(ipv6)
            && header.scope == AddressScope::Universe
    });
    Ok(of_interface
        .filter_map(|message| Some((local(&message)?, message.header.prefix_len)))
        .collect())
}

/// Returns the interface's own address. On a point-to-point link, `Address` is the peer's.
fn local(message: &AddressMessage) -> Option<IpAddr> {
    let of = |local: bool| {
        message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Local(address) if local => Some(*address),
                AddressAttribute::Address(address) if !local => Some(*address),
                _ => None,
            })
    };
    of(true).or_else(|| of(false))
}

fn routes(netlink: &mut Netlink, ipv6: bool) -> io::Result<Vec<Found>> {
    let mut request = RouteMessage::default();
    request.header.address_family = family(ipv6);
    let objects = netlink.dump(RouteNetlinkMessage::GetRoute(request))?;
    let messages = objects.iter().filter_map(|object| match object {
        RouteNetlinkMessage::NewRoute(message) => Some(message),
        _ => None,
    });
    Ok(messages
        .filter_map(|message| route(message, ipv6))
        .collect())
}

/// Returns the route if it is a unicast route of the main table that a guest can have, too.
fn route(message: &RouteMessage, ipv6: bool) -> Option<Found> {
    let header = &message.header;
    let usable = header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast
        && header.address_family == family(ipv6);
    if !usable {
        return None;
    }
    let any: IpAddr = if ipv6 { [0; 16].into() } else { [0; 4].into() };
    let mut found = Found {
        index: 0,
        priority: 0,
        route: HostRoute {
            destination: (any, header.destination_prefix_length),
            gateway: None,
            on_link: header.flags.contains(RouteFlags::Onlink),
            source: None,
        },
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => found.route.destination.0 = ip(address)?,
            RouteAttribute::Gateway(address) => found.route.gateway = ip(address),
            RouteAttribute::PrefSource(address) => found.route.source = ip(address),
            RouteAttribute::Oif(index) => found.index = *index,
            RouteAttribute::Priority(priority) => found.priority = *priority,
            RouteAttribute::MultiPath(hops) => {
                let hop = hops.first()?;
                found.index = hop.interface_index;
                found.route.on_link = hop.flags.contains(RouteNextHopFlags::Onlink);
                found.route.gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Gateway(address) => ip(address),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    // The kernel adds the route of the link-local prefix itself.
    let link_local =
        matches!(found.route.destination.0, IpAddr::V6(v6) if v6.is_unicast_link_local());
    (found.index != 0 && !link_local).then_some(found)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}
