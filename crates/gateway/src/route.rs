//! Where the guest's flows go.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{Config, ForwardSource, Target};
use crate::counters::add;
use crate::forward::Protocol;
use crate::gateway::Shared;
use crate::policy::{Flow, Verdict};

const DNS_PORT: u16 = 53;
const DNS_OVER_TLS_PORT: u16 = 853;

/// Where a flow goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// To this address of the host's network.
    Connect(SocketAddr),
    /// To the DNS relay.
    Dns,
    /// To the resolver's port for DNS over TLS.
    DnsOverTls,
    /// Nowhere: it is refused as by a host without a socket for it.
    Reject,
    /// Nowhere, and it gets no answer.
    Drop,
    /// Nowhere: there is no route.
    Unreachable,
}

impl Shared {
    /// Returns where the flow from `guest` to `destination` goes.
    pub(crate) fn route(
        &self,
        protocol: Protocol,
        guest: SocketAddr,
        destination: SocketAddr,
    ) -> Route {
        let flow = Flow {
            protocol,
            guest,
            destination,
        };
        match self.config.policy.flow(&flow) {
            Verdict::Allow => route(&self.config, &flow),
            Verdict::Redirect(to) => Route::Connect(to),
            Verdict::Reject => {
                add(&self.counters.policy_denied, 1);
                Route::Reject
            }
            Verdict::Drop => {
                add(&self.counters.policy_denied, 1);
                Route::Drop
            }
        }
    }

    /// Returns the gateway's address of the family of `guest`.
    pub(crate) fn own_address(&self, guest: IpAddr) -> Option<IpAddr> {
        gateway_for(&self.config, guest)
    }

    /// Returns the source address that the guest sees of a client at `from` of a forward to
    /// `guest`.
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

/// Returns where a flow goes that the policy allows.
fn route(config: &Config, flow: &Flow) -> Route {
    let Flow {
        protocol,
        destination,
        ..
    } = *flow;
    if config.is_dns(destination.ip()) {
        match destination.port() {
            DNS_PORT => return Route::Dns,
            DNS_OVER_TLS_PORT => return Route::DnsOverTls,
            _ => {}
        }
    }
    let enabled = match protocol {
        Protocol::Tcp => config.tcp,
        Protocol::Udp => config.udp,
    };
    if !enabled {
        return Route::Reject;
    }
    let to = match config.target(destination.ip()) {
        Target::Loopback if destination.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        Target::Loopback => Ipv6Addr::LOCALHOST.into(),
        Target::Address(address) if address.is_loopback() && address == destination.ip() => {
            // RFC 1122 3.2.1.3: loopback addresses are never valid on a link.
            return Route::Drop;
        }
        Target::Address(address) => address,
        Target::Unreachable => return Route::Unreachable,
        Target::Drop => return Route::Drop,
    };
    Route::Connect(SocketAddr::new(to, destination.port()))
}

/// Returns the source address of a client at `from` as the guest at `guest` sees it, or `None` if
/// the gateway has no address of the guest's family.
fn forward_source(config: &Config, from: SocketAddr, guest: SocketAddr) -> Option<SocketAddr> {
    let ip = from.ip().to_canonical();
    let visible = match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let keep = config.forward_source == ForwardSource::Client
        && visible
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

    fn tcp_to(destination: &str) -> Flow {
        Flow {
            protocol: Protocol::Tcp,
            guest: "10.0.2.100:4000".parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
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
        ] {
            assert_eq!(
                route(&config, &tcp_to(destination)),
                expected,
                "{destination}"
            );
        }
    }

    #[test]
    fn the_first_mapping_of_an_address_applies() {
        let mut config = Config::default();
        let guest = "10.0.2.2".parse().unwrap();
        for target in [Target::Unreachable, Target::Drop] {
            config.mappings.insert(0, Mapping { guest, target });
        }
        assert_eq!(route(&config, &tcp_to("10.0.2.2:80")), Route::Drop);
        config.mappings.remove(0);
        assert_eq!(route(&config, &tcp_to("10.0.2.2:80")), Route::Unreachable);
    }

    #[test]
    fn a_protocol_that_is_off_is_refused_except_for_dns() {
        let config = Config {
            tcp: false,
            ..Config::default()
        };
        assert_eq!(route(&config, &tcp_to("192.0.2.1:80")), Route::Reject);
        assert_eq!(route(&config, &tcp_to("10.0.2.3:53")), Route::Dns);
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
    }
}
