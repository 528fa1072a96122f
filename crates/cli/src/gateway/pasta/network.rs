//! The guest's network: the host's addresses and routes, unless the command line gives others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use fullsend_gateway::namespace::{HostNetwork, HostRoute, InterfaceSetup};
use fullsend_gateway::{
    Config, DnsConfig, Forward, ForwardSource, Ipv4Config, Ipv6Config, LoopbackClients, Mapping,
    Outbound, PortList, PortSpec, Protocol, Side, Target,
};

use super::options::{Mapped, Options};

const MTU: u32 = 65_520;
/// The addresses of a guest if the host has no default route.
const LOCAL_GUEST: Ipv4Addr = Ipv4Addr::new(169, 254, 2, 1);
const LOCAL_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 2, 2);
const LOCAL_PREFIX: u8 = 16;
const LOCAL_GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const LOCAL_GUEST6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// The loopback addresses of both families.
pub(super) const LOOPBACKS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];
/// The gateway's Ethernet address.
const MAC: [u8; 6] = [0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55];
/// The ephemeral ports of a kernel that does not report its range.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// The network and the settings that follow from the command line and the host's network.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) interface_name: String,
    pub(super) setup: InterfaceSetup,
    pub(super) config: Config,
    /// Forwards of ports that were not named, which are left out if the port is in use.
    pub(super) optional_forwards: Vec<Forward>,
    /// The kinds of forwards that follow the ports on which the other side listens: the clients' side and
    /// the protocol.
    pub(super) auto: BTreeSet<(Side, Protocol)>,
    /// The guest's IPv4 and IPv6 address.
    pub(super) guest: [Option<IpAddr>; 2],
}

/// The guest's network of one address family.
#[derive(Clone, Debug)]
struct Family {
    addresses: Vec<(IpAddr, u8)>,
    gateway: IpAddr,
    routes: Vec<HostRoute>,
}

impl Plan {
    pub(super) fn new(options: &Options) -> Result<Self> {
        let read = |ipv6: bool, unwanted: bool| {
            if unwanted {
                return Ok(None);
            }
            let interface = options.interface.as_deref();
            HostNetwork::read(interface, ipv6).context("cannot read the host's network")
        };
        let v4 = read(false, options.ipv6_only)?;
        let v6 = read(true, options.ipv4_only)?;
        Self::of(options, v4, v6)
    }

    /// Returns the plan for a host with these networks of IPv4 and IPv6.
    pub(super) fn of(
        options: &Options,
        host4: Option<HostNetwork>,
        host6: Option<HostNetwork>,
    ) -> Result<Self> {
        let names = [&host4, &host6]
            .into_iter()
            .flatten()
            .map(|h| h.interface.clone());
        let interface_name = options
            .interface_name
            .clone()
            .or_else(|| names.into_iter().next());
        let is_local = host4.is_none() && host6.is_none();
        let wanted = |ipv6: bool, unwanted: bool, host| {
            if unwanted {
                return None;
            }
            family(options, host, is_local, ipv6)
        };
        let v4 = wanted(false, options.ipv6_only, host4);
        let v6 = wanted(true, options.ipv4_only, host6);
        if v4.is_none() && v6.is_none() {
            bail!(
                "the host has no address of the family that was requested; `ip route` shows its \
                 default routes"
            );
        }
        let mut config = config(options, v4.as_ref(), v6.as_ref())?;
        let guest = [&v4, &v6].map(|family| family.as_ref().map(|f| f.addresses[0].0));
        // The ports are read now, because a later request to change the forwards needs them.
        let _ = ephemeral_ports();
        let specs = specifications(options);
        let all = specs.iter().flat_map(|(kind, specs)| {
            specs
                .iter()
                .flat_map(move |spec| forwards(*kind, spec, guest))
        });
        let all: Vec<_> = all.collect();
        let forwards: Vec<_> = all.iter().map(|(_, forward)| forward).collect();
        check_loops(&forwards, config.loopback_clients)?;
        let (optional, named): (Vec<_>, Vec<_>) = all.into_iter().partition(|f| f.0);
        config.forwards = named.into_iter().map(|f| f.1).collect();
        let optional_forwards = optional.into_iter().map(|f| f.1).collect();
        Ok(Self {
            interface_name: interface_name.unwrap_or_else(|| "tap0".to_owned()),
            setup: setup(options, v4.as_ref(), v6.as_ref(), config.mtu),
            config,
            optional_forwards,
            auto: specs
                .iter()
                .filter(|(_, specs)| is_auto(specs))
                .map(|(kind, _)| *kind)
                .collect(),
            guest,
        })
    }

    /// Returns whether the gateway opens sockets in the guest's namespace.
    pub(super) fn needs_guest_sockets(&self) -> bool {
        let forwards = self.config.forwards.iter().chain(&self.optional_forwards);
        let kinds = forwards.map(|forward| (forward.from, forward.protocol));
        let clients = self.config.loopback_clients;
        kinds
            .chain(self.auto.iter().copied())
            .any(|(side, _)| side == Side::Guest || clients != LoopbackClients::Link)
    }
}

/// Returns whether forwards follow the listening ports of the other side, which is the default.
fn is_auto(specs: &[PortSpec]) -> bool {
    specs.is_empty() || specs.contains(&PortSpec::Auto)
}

/// Returns the guest's network of one family, or `None` if it has none.
fn family(
    options: &Options,
    host: Option<HostNetwork>,
    is_local: bool,
    ipv6: bool,
) -> Option<Family> {
    let given: Vec<_> = options
        .addresses
        .iter()
        .filter(|(a, _)| a.is_ipv6() == ipv6)
        .collect();
    let gateway = options
        .gateways
        .iter()
        .rfind(|g| g.is_ipv6() == ipv6)
        .copied();
    let host_gateway = host.as_ref().and_then(HostNetwork::gateway);
    let host_prefix = host.as_ref().map(|h| h.addresses[0].1);
    let local: (IpAddr, IpAddr, u8) = if ipv6 {
        (LOCAL_GUEST6.into(), LOCAL_GATEWAY6.into(), 64)
    } else {
        (LOCAL_GUEST.into(), LOCAL_GATEWAY.into(), LOCAL_PREFIX)
    };
    let gateway = gateway.or(host_gateway).unwrap_or(local.1);
    if !given.is_empty() {
        let addresses = given.into_iter().map(|(address, prefix)| {
            let netmask = options.netmask.filter(|_| !ipv6);
            let default = if ipv6 { 64 } else { class_prefix(*address) };
            (
                *address,
                prefix.or(netmask).or(host_prefix).unwrap_or(default),
            )
        });
        return Some(Family {
            addresses: addresses.collect(),
            gateway,
            routes: Vec::new(),
        });
    }
    let Some(host) = host else {
        return is_local.then(|| Family {
            addresses: vec![(local.0, local.2)],
            gateway,
            routes: Vec::new(),
        });
    };
    let prefix = options.netmask.filter(|_| !ipv6);
    let count = if options.no_copy_addresses {
        1
    } else {
        usize::MAX
    };
    let addresses = host
        .addresses
        .iter()
        .map(|&(a, p)| (a, prefix.unwrap_or(p)))
        .take(count);
    // The routes may need the addresses. The default route is added with the gateway.
    let is_copied = !options.no_copy_routes && !options.no_copy_addresses;
    let routes = host.routes.into_iter();
    let routes = routes.filter(|r| is_copied && r.destination.1 != 0);
    Some(Family {
        addresses: addresses.collect(),
        gateway,
        routes: routes.collect(),
    })
}

/// Returns the prefix length of an address's class, as before CIDR.
fn class_prefix(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.octets()[0] < 128 => 8,
        IpAddr::V4(v4) if v4.octets()[0] < 192 => 16,
        _ => 24,
    }
}

/// Returns the settings of the guest's interface.
fn setup(options: &Options, v4: Option<&Family>, v6: Option<&Family>, mtu: u32) -> InterfaceSetup {
    if !options.config_net {
        // The guest configures the interface itself, e.g. by DHCP.
        return InterfaceSetup {
            mac: options.guest_mac,
            loopback: true,
            leave_down: true,
            ..InterfaceSetup::default()
        };
    }
    let families = || v4.into_iter().chain(v6);
    InterfaceSetup {
        mtu: Some(mtu),
        mac: options.guest_mac,
        addresses: families().flat_map(|f| f.addresses.clone()).collect(),
        gateways: families().map(|f| f.gateway).collect(),
        routes: families().flat_map(|f| f.routes.clone()).collect(),
        loopback: true,
        accept_ra: Some(false),
        leave_down: false,
    }
}

/// Returns the gateway's settings.
fn config(options: &Options, v4: Option<&Family>, v6: Option<&Family>) -> Result<Config> {
    let upstream = options.dns_host.iter().map(|address| (*address, 53).into());
    Ok(Config {
        ipv4: v4.map(|family| ipv4_config(options, family)).transpose()?,
        ipv6: v6.map(|family| ipv6_config(options, family)).transpose()?,
        mtu: options.mtu.unwrap_or(MTU),
        mac: options.mac.unwrap_or(MAC),
        proxy_neighbors: true,
        mappings: mappings(options, v4, v6),
        outbound: outbound(options),
        dns: DnsConfig {
            upstream: upstream.collect(),
            search: options.search.clone(),
            announce: options.dns.clone(),
            host_name: options.host_name.clone(),
            domain: options.domain.clone(),
            ..DnsConfig::default()
        },
        tcp: !options.no_tcp,
        udp: !options.no_udp,
        icmp: !options.no_icmp,
        forward_source: ForwardSource::Client,
        loopback_clients: match (options.no_splice, options.host_loopback_to_guest_loopback) {
            (true, _) => LoopbackClients::Link,
            (false, true) => LoopbackClients::GuestLoopback,
            (false, false) => LoopbackClients::GuestAddress,
        },
        ..Config::default()
    })
}

fn ipv4_config(options: &Options, family: &Family) -> Result<Ipv4Config> {
    let (IpAddr::V4(guest), IpAddr::V4(gateway)) = (family.addresses[0].0, family.gateway) else {
        bail!("the gateway {} is not an IPv4 address", family.gateway);
    };
    let dns = options
        .dns_forward
        .iter()
        .rev()
        .find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
    Ok(Ipv4Config {
        guest,
        prefix: family.addresses[0].1,
        gateway,
        dns,
        dhcp: (!options.no_dhcp).then_some(fullsend_gateway::DhcpRange {
            first: guest,
            last: guest,
        }),
    })
}

fn ipv6_config(options: &Options, family: &Family) -> Result<Ipv6Config> {
    let (IpAddr::V6(guest), IpAddr::V6(gateway)) = (family.addresses[0].0, family.gateway) else {
        bail!("the gateway {} is not an IPv6 address", family.gateway);
    };
    let dns = options
        .dns_forward
        .iter()
        .rev()
        .find_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        });
    Ok(Ipv6Config {
        guest: Some(guest),
        prefix: family.addresses[0].1,
        gateway,
        dns,
        ra: !options.no_ra && !options.no_ndp,
        dhcp: !options.no_dhcpv6,
    })
}

/// Returns the port specifications of each kind of forward.
fn specifications(options: &Options) -> Vec<((Side, Protocol), &[PortSpec])> {
    let all = [
        (Side::Host, Protocol::Tcp, &options.tcp),
        (Side::Host, Protocol::Udp, &options.udp),
        (Side::Guest, Protocol::Tcp, &options.tcp_ns),
        (Side::Guest, Protocol::Udp, &options.udp_ns),
    ];
    let is_off = |protocol| match protocol {
        Protocol::Tcp => options.no_tcp,
        Protocol::Udp => options.no_udp,
    };
    all.into_iter()
        .filter(|(_, protocol, _)| !is_off(*protocol))
        .map(|(side, protocol, specs)| ((side, protocol), &specs[..]))
        .collect()
}

/// Returns the mappings of addresses that stand for others.
fn mappings(options: &Options, v4: Option<&Family>, v6: Option<&Family>) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut map = |guest, target| mappings.push(Mapping { guest, target });
    for family in v4.into_iter().chain(v6) {
        let ipv6 = family.gateway.is_ipv6();
        let of_family = |mapped: &&Mapped| match mapped {
            Mapped::Address(address) => address.is_ipv6() == ipv6,
            Mapped::None => true,
        };
        let loopback = options.map_host_loopback.iter().rfind(of_family);
        match loopback {
            Some(Mapped::Address(address)) => map(*address, Target::Loopback),
            Some(Mapped::None) => {}
            None if options.no_map_gateway => {}
            None => map(family.gateway, Target::Loopback),
        }
        if let Some(Mapped::Address(address)) = options.map_guest_addr.iter().rfind(of_family) {
            map(*address, Target::Address(family.addresses[0].0));
        }
    }
    mappings
}

fn outbound(options: &Options) -> Outbound {
    let mut outbound = Outbound {
        ipv4_interface: options.outbound_if4.clone(),
        ipv6_interface: options.outbound_if6.clone(),
        ..Outbound::default()
    };
    for address in &options.outbound {
        match address {
            IpAddr::V4(v4) => outbound.ipv4 = Some(*v4),
            IpAddr::V6(v6) => outbound.ipv6 = Some(*v6),
        }
    }
    outbound
}

/// Returns the forwards of a specification, and whether each is optional. `kind` is the clients' side and
/// the protocol, and `guest` the guest's IPv4 and IPv6 address.
pub(super) fn forwards(
    (from, protocol): (Side, Protocol),
    spec: &PortSpec,
    guest: [Option<IpAddr>; 2],
) -> Vec<(bool, Forward)> {
    let PortSpec::List(list) = spec else {
        return Vec::new();
    };
    match from {
        Side::Host => host_forwards(protocol, list, guest),
        Side::Guest => guest_forwards(protocol, list, guest.map(|address| address.is_some())),
    }
}

/// Returns the forwards of ports of the host. Without an address, each port is bound for each family that
/// the guest has.
fn host_forwards(
    protocol: Protocol,
    list: &PortList,
    [guest4, guest6]: [Option<IpAddr>; 2],
) -> Vec<(bool, Forward)> {
    let hosts: Vec<(IpAddr, Option<IpAddr>)> = match list.address {
        Some(address @ IpAddr::V4(_)) => vec![(address, guest4.or(guest6))],
        Some(address @ IpAddr::V6(_)) => vec![(address, guest6.or(guest4))],
        None => vec![
            (Ipv4Addr::UNSPECIFIED.into(), guest4),
            (Ipv6Addr::UNSPECIFIED.into(), guest6),
        ],
    };
    let mut forwards = Vec::new();
    for forward in list.forwards(&ephemeral_ports()) {
        for &(host, guest) in &hosts {
            let Some(guest) = forward.to.or(guest) else {
                continue;
            };
            let (listen, to) = ((host, forward.port).into(), (guest, forward.to_port).into());
            let bound = Forward {
                interface: list.interface.clone(),
                ..Forward::new(Side::Host, protocol, listen, to)
            };
            forwards.push((forward.optional, bound));
        }
    }
    forwards
}

/// Returns the forwards of ports of the guest's loopback to the host's loopback. `loopbacks` says which
/// of IPv4 and IPv6 the guest has.
fn guest_forwards(
    protocol: Protocol,
    list: &PortList,
    loopbacks: [bool; 2],
) -> Vec<(bool, Forward)> {
    let guests: Vec<IpAddr> = match list.address {
        Some(address) => vec![address],
        None => LOOPBACKS
            .into_iter()
            .zip(loopbacks)
            .filter_map(|(address, has)| has.then_some(address))
            .collect(),
    };
    let mut forwards = Vec::new();
    for forward in list.forwards(&ephemeral_ports()) {
        for &guest in &guests {
            let host = forward
                .to
                .unwrap_or(LOOPBACKS[usize::from(guest.is_ipv6())]);
            let (listen, to) = ((guest, forward.port).into(), (host, forward.to_port).into());
            let bound = Forward::new(Side::Guest, protocol, listen, to);
            forwards.push((forward.optional, bound));
        }
    }
    forwards
}

/// Rejects forwards of host and guest ports that lead to each other: each connection would cause the next
/// one.
///
/// # Errors
/// Returns an error that names the two ports and the fix.
pub(super) fn check_loops(forwards: &[&Forward], clients: LoopbackClients) -> Result<()> {
    let of = |from| forwards.iter().filter(move |f| f.from == from);
    let mut of_host: BTreeMap<(Protocol, u16), Vec<&Forward>> = BTreeMap::new();
    for forward in of(Side::Host) {
        of_host
            .entry((forward.protocol, forward.host.port()))
            .or_default()
            .push(forward);
    }
    let meets = |to: SocketAddr, bound: SocketAddr| {
        to.port() == bound.port() && (bound.ip().is_unspecified() || to.ip() == bound.ip())
    };
    for from_guest in of(Side::Guest) {
        let kind = (from_guest.protocol, from_guest.host.port());
        let at_port = of_host.get(&kind).into_iter().flatten();
        for from_host in at_port.filter(|f| meets(from_guest.host, f.host)) {
            let to = match clients {
                LoopbackClients::GuestLoopback => {
                    let loopback = LOOPBACKS[usize::from(from_host.guest.is_ipv6())];
                    SocketAddr::new(loopback, from_host.guest.port())
                }
                LoopbackClients::Link | LoopbackClients::GuestAddress => from_host.guest,
            };
            if meets(to, from_guest.guest) {
                let name = match from_guest.protocol {
                    Protocol::Tcp => "tcp",
                    Protocol::Udp => "udp",
                };
                bail!(
                    "--{name}-ports {} and --{name}-ns {} lead to each other; change the port of one",
                    from_host.host.port(),
                    from_guest.guest.port()
                );
            }
        }
    }
    Ok(())
}

/// Returns the ports that the host gives to its own connections. The first call, which must precede the
/// sandbox, reads them from /proc.
pub(super) fn ephemeral_ports() -> RangeInclusive<u16> {
    static PORTS: OnceLock<RangeInclusive<u16>> = OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
        let mut words = text.split_ascii_whitespace();
        Some(words.next()?.parse().ok()?..=words.next()?.parse().ok()?)
    };
    PORTS.get_or_init(|| read().unwrap_or(EPHEMERAL)).clone()
}
