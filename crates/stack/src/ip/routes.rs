//! The routing table, with longest-prefix match.

use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::{Cidr, StackError};

/// The next hop of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NextHop {
    /// The interface that the packet is sent on.
    pub(crate) iface: u16,
    /// The neighbour to resolve: the gateway, or the destination itself.
    pub(crate) neighbour: IpAddr,
}

#[derive(Clone, Copy, Debug)]
struct Route {
    to: Cidr,
    gateway: Option<IpAddr>,
    iface: u16,
}

/// Routes in order of decreasing prefix length; those of equal length in the order in which they
/// were added.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    routes: Vec<Route>,
}

/// Returns an address as a number, left-aligned so that one mask serves both families.
const fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => (addr.to_bits() as u128) << 96,
        IpAddr::V6(addr) => addr.to_bits(),
    }
}

/// Returns a mask of the leading `prefix` bits.
fn mask(prefix: u8) -> u128 {
    !u128::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

impl Route {
    fn matches(&self, addr: IpAddr) -> bool {
        self.to.addr.is_ipv4() == addr.is_ipv4()
            && (bits(self.to.addr) ^ bits(addr)) & mask(self.to.prefix) == 0
    }

    fn same_destination(&self, other: &Self) -> bool {
        self.to.prefix == other.to.prefix && self.matches(other.to.addr)
    }
}

impl Routes {
    /// Adds a route. It replaces one to the same destination on the same interface.
    pub(crate) fn add(
        &mut self,
        to: Cidr,
        gateway: Option<IpAddr>,
        iface: u16,
    ) -> Result<(), StackError> {
        if let Some(gateway) = gateway {
            self.check_gateway(to, gateway, iface)?;
        }
        let route = Route { to, gateway, iface };
        let same = |r: &&mut Route| r.iface == iface && r.same_destination(&route);
        if let Some(old) = self.routes.iter_mut().find(same) {
            *old = route;
            return Ok(());
        }
        let at = self.routes.partition_point(|r| r.to.prefix >= to.prefix);
        self.routes.insert(at, route);
        Ok(())
    }

    /// Checks that a gateway is on the interface's link.
    fn check_gateway(&self, to: Cidr, gateway: IpAddr, iface: u16) -> Result<(), StackError> {
        if gateway.is_ipv4() != to.addr.is_ipv4() {
            return Err(StackError::Config(format!(
                "gateway {gateway} and destination {}/{} are not of the same address family; \
                 choose a gateway of the destination's family",
                to.addr, to.prefix
            )));
        }
        let link_local = matches!(gateway, IpAddr::V6(g) if g.is_unicast_link_local());
        let on_link = |r: &Route| r.iface == iface && r.gateway.is_none() && r.matches(gateway);
        if link_local || self.routes.iter().any(on_link) {
            return Ok(());
        }
        Err(StackError::Config(format!(
            "gateway {gateway} is not on a network of interface {iface}; first add an address to \
             the interface whose prefix covers the gateway"
        )))
    }

    /// Returns the next hop towards `to`. No route, not even a default route, leads to the
    /// unspecified address (RFC 1122 3.2.1.3, RFC 4291 2.5.2). A group is reached on the link itself,
    /// without a route on that of the first network.
    pub(crate) fn lookup(&self, to: IpAddr) -> Option<NextHop> {
        if to.is_unspecified() {
            return None;
        }
        let route = self.routes.iter().find(|r| r.matches(to));
        if to.is_multicast() {
            let of_family = |r: &&Route| r.to.addr.is_ipv4() == to.is_ipv4();
            let iface = route.or_else(|| self.routes.iter().find(of_family))?.iface;
            let neighbour = to;
            return Some(NextHop { iface, neighbour });
        }
        let route = route?;
        Some(NextHop {
            iface: route.iface,
            neighbour: route.gateway.unwrap_or(to),
        })
    }

    /// Returns whether the route to `to` is other than a default route.
    pub(crate) fn is_specific(&self, to: IpAddr) -> bool {
        let route = self.routes.iter().find(|r| r.matches(to));
        route.is_some_and(|r| r.to.prefix > 0)
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::{NextHop, Routes};
    use crate::{Cidr, StackError};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn via(iface: u16, neighbour: &str) -> NextHop {
        let neighbour = ip(neighbour);
        NextHop { iface, neighbour }
    }

    #[test]
    fn the_longest_prefix_wins() {
        let mut routes = Routes::default();
        routes.add(cidr("10.0.0.0/8"), None, 1).unwrap();
        routes
            .add(cidr("0.0.0.0/0"), Some(ip("10.0.0.1")), 1)
            .unwrap();
        routes.add(cidr("10.1.2.0/24"), None, 2).unwrap();
        routes
            .add(cidr("10.1.2.3/32"), Some(ip("10.1.2.9")), 2)
            .unwrap();
        assert_eq!(routes.lookup(ip("8.8.8.8")), Some(via(1, "10.0.0.1")));
        assert_eq!(routes.lookup(ip("10.200.0.1")), Some(via(1, "10.200.0.1")));
        assert_eq!(routes.lookup(ip("10.1.2.4")), Some(via(2, "10.1.2.4")));
        assert_eq!(routes.lookup(ip("10.1.2.3")), Some(via(2, "10.1.2.9")));
        assert_eq!(routes.lookup(ip("2001:db8::1")), None);
    }

    #[test]
    fn address_families_are_separate() {
        let mut routes = Routes::default();
        routes.add(cidr("::/0"), Some(ip("fe80::1")), 0).unwrap();
        assert_eq!(routes.lookup(ip("1.2.3.4")), None);
        assert_eq!(routes.lookup(ip("::ffff:1.2.3.4")), Some(via(0, "fe80::1")));
        routes.add(cidr("a00::/8"), None, 3).unwrap();
        assert_eq!(routes.lookup(ip("10.0.0.1")), None);
        assert_eq!(routes.lookup(ip("a00::1")), Some(via(3, "a00::1")));
    }

    #[test]
    fn equal_routes_keep_their_order_and_the_same_route_is_replaced() {
        let mut routes = Routes::default();
        routes.add(cidr("10.0.0.1/24"), None, 0).unwrap();
        routes.add(cidr("10.0.0.2/24"), None, 1).unwrap();
        assert_eq!(routes.lookup(ip("10.0.0.9")), Some(via(0, "10.0.0.9")));
        routes
            .add(cidr("10.9.0.0/16"), Some(ip("10.0.0.8")), 0)
            .unwrap();
        routes
            .add(cidr("10.9.0.0/16"), Some(ip("10.0.0.7")), 0)
            .unwrap();
        assert_eq!(routes.lookup(ip("10.9.1.1")), Some(via(0, "10.0.0.7")));
    }

    #[test]
    fn an_unreachable_gateway_is_rejected() {
        let mut routes = Routes::default();
        routes.add(cidr("10.0.0.0/24"), None, 0).unwrap();
        for (gateway, part) in [
            ("10.0.1.1", "not on a network of interface 0"),
            ("fe80::1", "family"),
        ] {
            let error = routes.add(cidr("0.0.0.0/0"), Some(ip(gateway)), 0);
            let Err(StackError::Config(text)) = error else {
                panic!("{gateway} was taken")
            };
            assert!(text.contains(gateway) && text.contains(part), "{text}");
        }
    }
}
