//! The routes of the guest's flows.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{Config, ForwardSource, LoopbackClients, Target};
use crate::forward::Protocol;
use crate::gateway::Shared;
use crate::policy::{FlowProtocol, Verdict, is_link_local};

pub(crate) const DNS_PORT: u16 = 53;
pub(crate) const DNS_OVER_TLS_PORT: u16 = 853;

/// The destination of a flow behind the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// The flow connects to this address of the host's network.
    Connect(SocketAddr),
    /// The flow leads to the DNS relay.
    Dns,
    /// The flow leads to the first resolver's port for DNS over TLS.
    DnsOverTls,
    /// The flow is refused as by a host without a socket for it.
    Reject,
    /// The flow is refused because the policy forbids it.
    Prohibited,
    /// The flow is dropped without an answer.
    Drop,
    /// The flow is refused because there is no route.
    Unreachable,
}

impl Shared {
    /// Returns the route of the flow from `guest` to `destination`.
    pub(crate) fn route(
        &self,
        protocol: FlowProtocol,
        guest: SocketAddr,
        destination: SocketAddr,
    ) -> Route {
        let verdict = self.verdict(protocol, guest, destination);
        match route_by(&self.config, verdict, protocol, destination) {
            Route::Connect(to)
                if verdict == Verdict::Allow && self.refuses_service(protocol, guest, to) =>
            {
                Route::Reject
            }
            route => route,
        }
    }

    /// Returns the resolver's address for a DNS over TLS connection to `port` of the relay. `None` if
    /// there is no resolver, or if it is on the host's loopback and no mapping leads there: another
    /// service may have that port.
    pub(crate) fn resolver_over_tls(&self, port: u16) -> Option<SocketAddr> {
        let mut resolver = self.resolvers.first()?;
        resolver.set_port(port);
        let ip = resolver.ip().to_canonical();
        let is_open = !ip.is_loopback() || self.config.opens_loopback(ip);
        is_open.then_some(resolver)
    }

    /// Returns whether a datagram from `source`, an address of the host's network, may reach `guest` as
    /// one from `remote`: the guest's datagrams to `remote` must be routed to `source`.
    pub(crate) fn admits(&self, guest: SocketAddr, remote: SocketAddr, source: SocketAddr) -> bool {
        let verdict = self.verdict_quietly(FlowProtocol::Udp, guest, remote);
        let route = route_by(&self.config, verdict, FlowProtocol::Udp, remote);
        let is_refused =
            || verdict == Verdict::Allow && self.is_of_another_guest(Protocol::Udp, guest, source);
        route == Route::Connect(source) && !is_refused()
    }

    /// Records that the guest has sent from an address, if it is a link-local one.
    pub(crate) fn record_link_local(&self, address: IpAddr) {
        if let IpAddr::V6(ip) = address
            && ip.is_unicast_link_local()
            && !self.guests.are_several()
        {
            *self.guest_link_local.lock() = Some(ip);
        }
    }

    /// Returns the address of the guest that a UDP client at `source`, as the guest sees it, is led to. From a
    /// link-local source that is the guest's link-local address, once it is known: a program of the guest
    /// that connects its socket to the client gets no datagrams at another address any more, as its kernel
    /// chooses the link-local one.
    pub(crate) fn datagram_target(&self, source: IpAddr, guest: SocketAddr) -> SocketAddr {
        let is_link_local = |ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if is_link_local(source)
            && !is_link_local(guest.ip())
            && self.config.is_guest(guest.ip())
            && let Some(ip) = *self.guest_link_local.lock()
        {
            return SocketAddr::new(ip.into(), guest.port());
        }
        guest
    }

    /// Returns the gateway's address of the family of `guest`.
    pub(crate) fn own_address(&self, guest: IpAddr) -> Option<IpAddr> {
        gateway_for(&self.config, guest)
    }

    /// Returns the source address under which the guest at `guest` sees a client at `from`.
    ///
    /// # Errors
    /// `AddrNotAvailable` if the gateway has no address of the guest's family.
    pub(crate) fn forward_source(
        &self,
        from: SocketAddr,
        guest: SocketAddr,
    ) -> io::Result<SocketAddr> {
        forward_source(&self.config, from, guest).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("the gateway has no address to reach {guest} from"),
            )
        })
    }
}

impl Config {
    /// Returns the address in the guest's namespace that a client at `from` of a forward to `guest` is led
    /// to without the link. `None` if the client uses the link.
    pub(crate) fn spliced_target(&self, from: IpAddr, guest: SocketAddr) -> Option<SocketAddr> {
        // Other addresses may belong to other hosts on the link.
        if !from.to_canonical().is_loopback() || !self.is_guest(guest.ip()) {
            return None;
        }
        let ip = match (self.loopback_clients, guest.ip()) {
            (LoopbackClients::Link, _) => return None,
            // A link-local address is useless without its interface.
            (LoopbackClients::GuestAddress, IpAddr::V6(ip)) if ip.is_unicast_link_local() => {
                return None;
            }
            (LoopbackClients::GuestAddress, ip) => ip,
            (LoopbackClients::GuestLoopback, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (LoopbackClients::GuestLoopback, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        };
        Some(SocketAddr::new(ip, guest.port()))
    }
}

/// Returns where a flow goes about which the policy has this verdict.
fn route_by(
    config: &Config,
    verdict: Verdict,
    protocol: FlowProtocol,
    destination: SocketAddr,
) -> Route {
    match verdict {
        Verdict::Allow => route(config, protocol, destination),
        Verdict::Redirect(_) if !is_enabled(config, protocol) => Route::Reject,
        Verdict::Redirect(to) => connect_to(to, true),
        Verdict::Reject => Route::Prohibited,
        Verdict::Drop => Route::Drop,
    }
}

/// Returns the route of a flow that the policy allows.
fn route(config: &Config, protocol: FlowProtocol, destination: SocketAddr) -> Route {
    if config.is_dns(destination.ip()) {
        match destination.port() {
            DNS_PORT => return Route::Dns,
            DNS_OVER_TLS_PORT => return Route::DnsOverTls,
            _ => {}
        }
    }
    if !is_enabled(config, protocol) {
        return Route::Reject;
    }
    let ip = destination.ip().to_canonical();
    let (to, mapped) = match config.target(ip) {
        Target::Loopback if ip.is_ipv4() => (Ipv4Addr::LOCALHOST.into(), true),
        Target::Loopback => (Ipv6Addr::LOCALHOST.into(), true),
        Target::Address(address) => (address, address != ip),
        Target::Unreachable => return Route::Unreachable,
        Target::Drop => return Route::Drop,
    };
    if !mapped && !config.link_local_destinations && is_link_local(to) {
        return Route::Reject;
    }
    connect_to(SocketAddr::new(to, destination.port()), mapped)
}

fn is_enabled(config: &Config, protocol: FlowProtocol) -> bool {
    match protocol {
        FlowProtocol::Tcp => config.tcp,
        FlowProtocol::Udp => config.udp,
        FlowProtocol::Ping => config.icmp,
    }
}

/// Returns the route to an address of the host's network after a final check. Only a mapping or a
/// redirection may lead to the host's loopback.
fn connect_to(to: SocketAddr, may_be_loopback: bool) -> Route {
    let mut to = to;
    // A mapped address would be connected to over IPv4.
    if let IpAddr::V4(ip) = to.ip().to_canonical() {
        to = SocketAddr::new(ip.into(), to.port());
    }
    // Linux connects to its loopback for 0.0.0.0 and ::. Loopback addresses are never valid on a link
    // (RFC 1122 3.2.1.3).
    let ip = to.ip();
    if ip.is_unspecified() || ip.is_loopback() && !may_be_loopback {
        return Route::Drop;
    }
    Route::Connect(to)
}

/// Returns the source address of a client at `from` as the guest at `guest` sees it, or `None` if
/// the gateway has no address of the guest's family.
fn forward_source(config: &Config, from: SocketAddr, guest: SocketAddr) -> Option<SocketAddr> {
    let ip = from.ip().to_canonical();
    let visible = match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    };
    // The guest resolves addresses of its own network on the link, where the client is not.
    let on_link = config.is_on_link(ip) && !config.proxy_neighbors;
    let keep = config.forward_source == ForwardSource::Client
        && visible
        && !on_link
        && ip.is_ipv4() == guest.is_ipv4()
        && ip != guest.ip();
    let ip = if keep {
        ip
    } else {
        gateway_for(config, guest.ip())?
    };
    Some(SocketAddr::new(ip, from.port()))
}

/// Returns the gateway's address of the family of `guest`.
fn gateway_for(config: &Config, guest: IpAddr) -> Option<IpAddr> {
    match guest {
        IpAddr::V4(_) => config.ipv4.as_ref().map(|v4| v4.gateway.into()),
        IpAddr::V6(_) => config.ipv6.as_ref().map(|v6| v6.gateway.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mapping;

    fn route_tcp(config: &Config, destination: &str) -> Route {
        route(config, FlowProtocol::Tcp, destination.parse().unwrap())
    }

    #[test]
    fn the_gateways_address_stands_for_the_loopback_and_dns_for_the_resolvers() {
        let config = Config::default();
        let connect = |to: &str| Route::Connect(to.parse().unwrap());
        for (destination, expected) in [
            ("10.0.2.2:80", connect("127.0.0.1:80")),
            ("[fd00::2]:80", connect("[::1]:80")),
            ("10.0.2.3:53", Route::Dns),
            ("[fd00::3]:853", Route::DnsOverTls),
            ("10.0.2.3:80", Route::Unreachable),
            ("192.0.2.1:80", connect("192.0.2.1:80")),
            ("127.0.0.1:80", Route::Drop),
            ("127.9.9.9:80", Route::Drop),
            ("[::1]:80", Route::Drop),
            ("[::ffff:127.0.0.1]:80", Route::Drop),
            ("[::ffff:192.0.2.1]:80", connect("192.0.2.1:80")),
            ("0.0.0.0:80", Route::Drop),
            ("[::]:80", Route::Drop),
            ("[::ffff:0.0.0.0]:80", Route::Drop),
        ] {
            assert_eq!(route_tcp(&config, destination), expected, "{destination}");
        }
    }

    #[test]
    fn only_a_mapping_or_a_redirection_leads_to_the_loopback() {
        let mut config = Config::default();
        let mut map = |guest: &str, to: &str| {
            let (guest, target) = (guest.parse().unwrap(), to.parse().unwrap());
            let target = Target::Address(target);
            config.mappings.push(Mapping { guest, target });
        };
        map("10.0.2.7", "127.0.0.53");
        map("10.0.2.8", "0.0.0.0");
        map("127.0.0.1", "127.0.0.1");
        for (destination, expected) in [
            ("10.0.2.7", Route::Connect("127.0.0.53:80".parse().unwrap())),
            ("10.0.2.8", Route::Drop),
            ("127.0.0.1", Route::Drop),
        ] {
            let destination = format!("{destination}:80");
            assert_eq!(route_tcp(&config, &destination), expected, "{destination}");
        }
        for (to, expected) in [
            ("127.0.0.1:80", Some("127.0.0.1:80")),
            ("[::ffff:127.0.0.1]:80", Some("127.0.0.1:80")),
            ("[fe80::1%3]:80", Some("[fe80::1%3]:80")),
            ("0.0.0.0:80", None),
            ("[::]:80", None),
        ] {
            let expected = expected.map_or(Route::Drop, |to| Route::Connect(to.parse().unwrap()));
            assert_eq!(connect_to(to.parse().unwrap(), true), expected, "{to}");
        }
    }

    #[test]
    fn the_first_mapping_of_an_address_applies() {
        let mut config = Config::default();
        let guest = "10.0.2.2".parse().unwrap();
        for target in [Target::Unreachable, Target::Drop] {
            config.mappings.insert(0, Mapping { guest, target });
        }
        assert_eq!(route_tcp(&config, "10.0.2.2:80"), Route::Drop);
        config.mappings.remove(0);
        assert_eq!(route_tcp(&config, "10.0.2.2:80"), Route::Unreachable);
    }

    #[test]
    fn link_local_destinations_can_be_refused() {
        let mut config = Config::default();
        let metadata = "169.254.169.254";
        let link_local = |config: &Config| {
            [metadata, "::ffff:169.254.169.254", "fe80::1"].map(|destination| {
                let ip: IpAddr = destination.parse().unwrap();
                route(config, FlowProtocol::Tcp, (ip, 80).into()) != Route::Reject
            })
        };
        assert_eq!(link_local(&config), [true; 3]);
        config.link_local_destinations = false;
        assert_eq!(link_local(&config), [false; 3]);
        let ping = (metadata.parse::<IpAddr>().unwrap(), 0).into();
        assert_eq!(route(&config, FlowProtocol::Ping, ping), Route::Reject);
        // A mapping and a redirection are made on purpose.
        let [guest, target] = ["192.0.2.9", metadata].map(|ip| ip.parse().unwrap());
        let target = Target::Address(target);
        config.mappings.push(Mapping { guest, target });
        let to = Route::Connect("169.254.169.254:80".parse().unwrap());
        assert_eq!(route_tcp(&config, "192.0.2.9:80"), to);
        let redirect = Verdict::Redirect("169.254.169.254:80".parse().unwrap());
        let destination = "192.0.2.1:80".parse().unwrap();
        let redirected = route_by(&config, redirect, FlowProtocol::Tcp, destination);
        assert_eq!(redirected, to);
    }

    #[test]
    fn a_protocol_that_is_off_is_refused_except_for_dns() {
        let config = Config {
            tcp: false,
            ..Config::default()
        };
        assert_eq!(route_tcp(&config, "192.0.2.1:80"), Route::Reject);
        assert_eq!(route_tcp(&config, "10.0.2.3:53"), Route::Dns);
        // A policy does not turn it on.
        let to = "127.0.0.1:3128".parse().unwrap();
        let redirect = |protocol| {
            let destination = "192.0.2.1:80".parse().unwrap();
            route_by(&config, Verdict::Redirect(to), protocol, destination)
        };
        assert_eq!(redirect(FlowProtocol::Tcp), Route::Reject);
        assert_eq!(redirect(FlowProtocol::Udp), Route::Connect(to));
    }

    #[test]
    fn clients_that_the_guest_could_not_answer_to_appear_as_the_gateway() {
        let config = Config::default();
        let source = |from: &str, guest: &str| {
            let source = forward_source(&config, from.parse().unwrap(), guest.parse().unwrap());
            source.unwrap().to_string()
        };
        let (v4, v6) = ("10.0.2.100:80", "[fd00::64]:80");
        assert_eq!(source("198.51.100.7:5000", v4), "198.51.100.7:5000");
        assert_eq!(source("127.0.0.1:5000", v4), "10.0.2.2:5000");
        assert_eq!(source("169.254.1.1:5000", v4), "10.0.2.2:5000");
        assert_eq!(source("10.0.2.100:5000", v4), "10.0.2.2:5000");
        assert_eq!(
            source("[::ffff:198.51.100.7]:5000", v4),
            "198.51.100.7:5000"
        );
        assert_eq!(source("[2001:db8::1]:5000", v4), "10.0.2.2:5000");
        assert_eq!(source("[2001:db8::1]:5000", v6), "[2001:db8::1]:5000");
        assert_eq!(source("[::1]:5000", v6), "[fd00::2]:5000");
        assert_eq!(source("[fe80::1]:5000", v6), "[fd00::2]:5000");
        // The guest would look for these on its own link.
        assert_eq!(source("10.0.2.77:5000", v4), "10.0.2.2:5000");
        assert_eq!(source("[fd00::77]:5000", v6), "[fd00::2]:5000");
        let proxy = Config {
            proxy_neighbors: true,
            ..Config::default()
        };
        let client = "10.0.2.77:5000".parse().unwrap();
        let kept = forward_source(&proxy, client, v4.parse().unwrap());
        assert_eq!(kept, Some(client));
    }
}
