//! The settings of a gateway, as plain data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::dns::Zone;
use crate::forward::Forward;
use crate::memory::MemoryBudget;
use crate::policy::{AllowAll, Policy, is_special};
use crate::resolvers::RESOLV_CONF;

/// The settings of a [`Gateway`](crate::Gateway).
///
/// The default is the network of slirp4netns and QEMU: 10.0.2.0/24 with the guest at 10.0.2.100,
/// the gateway at 10.0.2.2 (which stands for the host's loopback) and DNS at 10.0.2.3; fd00::/64
/// with the gateway at fd00::2 and DNS at fd00::3.
#[derive(Clone)]
pub struct Config {
    /// The IPv4 network, or `None` for a guest without IPv4.
    pub ipv4: Option<Ipv4Config>,
    /// The IPv6 network, or `None` for a guest without IPv6.
    pub ipv6: Option<Ipv6Config>,
    /// Size of the largest IP packet on the link, bytes.
    pub mtu: u32,
    /// The gateway's Ethernet address.
    pub mac: [u8; 6],
    /// The gateway's link-local IPv6 address, which is the guest's default route. `None` derives it from
    /// [`mac`](Self::mac), as the guest derives its own; it must be set if both have the same Ethernet
    /// address. Has no effect if [`Ipv6Config::gateway`] is link-local.
    pub link_local: Option<Ipv6Addr>,
    /// Whether the gateway answers ARP requests and neighbor solicitations for every address except
    /// the guest's own, and not only for its own addresses. A guest whose network is a copy of the
    /// host's needs this to reach its neighbors.
    pub proxy_neighbors: bool,
    /// Destinations of the guest that stand for other addresses. The first entry of an address applies.
    pub mappings: Vec<Mapping>,
    /// The host's side of the flows.
    pub outbound: Outbound,
    /// The DNS relay at [`Ipv4Config::dns`] and [`Ipv6Config::dns`]. Connections to port 853 of these
    /// addresses (DNS over TLS) go to port 853 of the first resolver, unless the policy [filters
    /// names](Policy::filters_names), or the resolver is on the host's loopback and no
    /// [mapping](Self::mappings) leads there.
    pub dns: DnsConfig,
    /// Whether the guest's TCP connections are relayed. If not, they are refused.
    pub tcp: bool,
    /// Whether the guest's UDP flows are relayed. If not, they get ICMP errors. DHCP and DNS are
    /// not affected.
    pub udp: bool,
    /// The other hosts that may send datagrams to a port that the guest has sent from.
    pub udp_filtering: UdpFiltering,
    /// Whether the guest's echo requests to other hosts are relayed. If not, they are dropped.
    pub icmp: bool,
    /// Whether flows to link-local addresses of the host's network (169.254.0.0/16, fe80::/10) are
    /// relayed. Clouds serve the metadata of their machines there, often with credentials. If not, such
    /// flows are refused, unless a [mapping](Self::mappings) or a redirection of the policy leads there.
    /// `true` by default.
    pub link_local_destinations: bool,
    /// Forwards that are bound before the gateway runs.
    pub forwards: Vec<Forward>,
    /// The source address of forwarded flows, as the guest sees it.
    pub forward_source: ForwardSource,
    /// The way of forwards for clients on the host's loopback.
    pub loopback_clients: LoopbackClients,
    /// Bounds of the tables.
    pub limits: Limits,
    /// The memory of the gateway with all its guests. The default, [`MemoryBudget::of_process`], is read
    /// when the settings are created, because a sandbox may hide it from the gateway later.
    pub memory: MemoryBudget,
    /// The policy, which decides about each flow and each DNS name.
    pub policy: Arc<dyn Policy>,
}

/// The IPv4 network of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ipv4Config {
    /// The guest's address, which DHCP offers.
    pub guest: Ipv4Addr,
    /// Length of the network prefix, bits.
    pub prefix: u8,
    /// The gateway's address: the guest's default route, which answers pings.
    pub gateway: Ipv4Addr,
    /// The address at which DNS is relayed to the host's resolvers, over UDP and TCP. May equal
    /// `gateway`.
    pub dns: Option<Ipv4Addr>,
    /// The addresses that DHCP gives to further clients; `None` if DHCP is not served.
    pub dhcp: Option<DhcpRange>,
}

/// The addresses that DHCP gives to clients after the first, which gets [`Ipv4Config::guest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DhcpRange {
    /// The first address.
    pub first: Ipv4Addr,
    /// The last address.
    pub last: Ipv4Addr,
}

/// The IPv6 network of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ipv6Config {
    /// The guest's address, which DHCPv6 offers. `None` leaves the choice to the guest (SLAAC).
    pub guest: Option<Ipv6Addr>,
    /// Length of the network prefix, bits. Router advertisements have the prefix of `guest`, or else
    /// that of `gateway`.
    pub prefix: u8,
    /// The gateway's address, which answers pings. The guest's default route is the gateway's
    /// link-local address.
    pub gateway: Ipv6Addr,
    /// The address at which DNS is relayed to the host's resolvers, over UDP and TCP. May equal
    /// `gateway`.
    pub dns: Option<Ipv6Addr>,
    /// Whether router advertisements are sent.
    pub ra: bool,
    /// Whether DHCPv6 is served.
    pub dhcp: bool,
}

/// A destination that stands for another address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The address as the guest sees it.
    pub guest: IpAddr,
    /// The destination that [`guest`](Self::guest) stands for.
    pub target: Target,
}

/// The destination of a [`Mapping`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The host's loopback address of the same family.
    Loopback,
    /// An address of the same family.
    Address(IpAddr),
    /// No host: connections and datagrams get "network unreachable". The gateway's own addresses
    /// still answer pings.
    Unreachable,
    /// No host: connections and datagrams are dropped.
    Drop,
}

/// The host's side of the flows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outbound {
    /// Source address of IPv4 sockets.
    pub ipv4: Option<Ipv4Addr>,
    /// Source address of IPv6 sockets.
    pub ipv6: Option<Ipv6Addr>,
    /// Whether flows to the host's loopback have these source addresses, too. DNS queries to
    /// resolvers there never do.
    pub loopback: bool,
    /// Interface that IPv4 sockets are bound to (`SO_BINDTODEVICE`).
    pub ipv4_interface: Option<String>,
    /// Interface that IPv6 sockets are bound to (`SO_BINDTODEVICE`).
    pub ipv6_interface: Option<String>,
}

impl Outbound {
    /// Returns the source address and the interface of flows to `to`. For the host's loopback, interfaces
    /// do not apply, and addresses only if [`loopback`](Self::loopback) is set.
    pub(crate) fn settings_for(&self, to: IpAddr) -> (Option<IpAddr>, Option<&String>) {
        if to.is_loopback() && !self.loopback {
            return (None, None);
        }
        let (address, interface) = match to {
            IpAddr::V4(_) => (self.ipv4.map(IpAddr::V4), &self.ipv4_interface),
            IpAddr::V6(_) => (self.ipv6.map(IpAddr::V6), &self.ipv6_interface),
        };
        let interface = interface.as_ref().filter(|_| !to.is_loopback());
        (address, interface)
    }

    /// Returns whether sockets of a family need other settings for the loopback than for all other hosts.
    pub(crate) fn separates_loopback(&self, v6: bool) -> bool {
        if v6 {
            self.ipv6_interface.is_some() || self.ipv6.is_some() && !self.loopback
        } else {
            self.ipv4_interface.is_some() || self.ipv4.is_some() && !self.loopback
        }
    }
}

/// The other hosts that may send datagrams to a port that the guest has sent from (RFC 4787 5). In every
/// mode, the guest gets no datagram of a host to which it could not send, because of [`Config::mappings`]
/// or the [policy](Config::policy). Each of several guests that are not joined gets datagrams of the
/// host's loopback only from an address and port that it has sent to, and cannot send to the ports of the
/// others' sockets at the host's addresses.
///
/// One socket of the host stands for each address and port of the guest, whatever its destination
/// (endpoint-independent mapping).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UdpFiltering {
    /// All hosts may send.
    EndpointIndependent,
    /// Hosts that the guest has sent to from this port, from any of their ports: TFTP and SSDP answer
    /// from another port than that of the request.
    #[default]
    AddressDependent,
    /// Only addresses and ports that the guest has sent to from this port.
    AddressAndPortDependent,
}

/// The DNS relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DnsConfig {
    /// The file with the host's resolvers, which is read again when it changes.
    pub resolv_conf: PathBuf,
    /// Resolvers that are used instead of those of the file.
    pub upstream: Vec<SocketAddr>,
    /// The domains that DHCP and router advertisements announce for searches.
    pub search: Vec<String>,
    /// The resolvers that DHCP and router advertisements announce instead of the relay.
    pub announce: Vec<IpAddr>,
    /// The guest's host name, which DHCP announces.
    pub host_name: Option<String>,
    /// The guest's domain, which DHCP announces.
    pub domain: Option<String>,
    /// Domains whose names the relay resolves itself, if the policy allows them. [`Handle::add_zone`]
    /// adds others.
    ///
    /// [`Handle::add_zone`]: crate::Handle::add_zone
    pub zones: Vec<Zone>,
    /// Time after the TTL of an answer for which its addresses keep their names in
    /// [`Flow::names`](crate::Flow::names): programs connect to an address some time after they have
    /// resolved it.
    pub address_grace: Duration,
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            resolv_conf: RESOLV_CONF.into(),
            upstream: Vec::new(),
            search: Vec::new(),
            announce: Vec::new(),
            host_name: None,
            domain: None,
            zones: Vec::new(),
            address_grace: Duration::from_secs(60),
        }
    }
}

/// The source address of forwarded flows, as the guest sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ForwardSource {
    /// The client's address. The gateway's if the guest could not answer the client: one on the host's
    /// loopback, with the guest's own or a link-local address, of the other family, or in the guest's
    /// network without [`Config::proxy_neighbors`].
    #[default]
    Client,
    /// The gateway's address.
    Gateway,
}

/// Where forwards to the guest's address lead clients on the host's loopback.
///
/// Without [`Builder::guest_sockets`](crate::Builder::guest_sockets) it is always
/// [`Link`](Self::Link). Otherwise the data goes from one socket of the kernel to another (that of TCP
/// with `splice`), and no packet crosses the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LoopbackClients {
    /// Over the link, as other clients.
    #[default]
    Link,
    /// The guest's address, which is also the source. A link-local address is reached over the link.
    GuestAddress,
    /// The guest's loopback, which is also the source. If the guest refuses a TCP connection, the loopback of
    /// the other family.
    GuestLoopback,
}

/// Bounds of the tables. A flow beyond a bound is refused, or replaces the one that has been idle
/// for the longest time; each case has a counter.
///
/// Connections, flows, queries and forwards use a descriptor of the host each, except for forwarded
/// UDP flows over the link; a spliced connection ([`LoopbackClients`], and clients in the guest) uses up to
/// six, and counts as six. The gateway lowers the bounds to what `RLIMIT_NOFILE` and [`Config::memory`]
/// allow.
///
/// With several guests ([`Builder::guest`](crate::Builder::guest)), each bound except that of forwards
/// applies to each guest, and each of `n` guests gets at most 1/(n+1) of what `RLIMIT_NOFILE` allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// TCP connections, including deferred SYNs. Further SYNs are dropped, so that the guest sends them
    /// again; clients of forwards wait in the queue of their forward. Forwards together have at most half
    /// of the connections, so that their clients do not use up the guest's.
    pub tcp_connections: usize,
    /// UDP flows that the guest opens: pairs of one of its ports and a destination. All flows of a port
    /// share a socket of the host. A new flow replaces the one that has been idle for the longest time,
    /// also if the descriptors do not suffice for its socket. Other hosts may open the same number of
    /// flows that the guest has not answered ([`Config::udp_filtering`]).
    pub udp_flows: usize,
    /// UDP flows that clients of the host open through forwards. A new one replaces the one of them that
    /// has been idle for the longest time. Those that clients in the guest open are among
    /// [`udp_flows`](Self::udp_flows).
    pub forwarded_udp_flows: usize,
    /// Sequences of echo requests. A new one replaces the one that has been idle for the longest
    /// time.
    pub ping_flows: usize,
    /// DNS queries that have no answer yet. Further ones are dropped.
    pub dns_queries: usize,
    /// Pairs of an address and one of its names that are kept for [`Flow::names`](crate::Flow::names).
    /// Beyond this bound, 16 names of an address or 64 addresses of a name, a new pair replaces the one
    /// learned the least recently.
    pub dns_addresses: usize,
    /// Forwards.
    pub forwards: usize,
    /// Bytes of TCP and UDP payload and of echo messages per second, for each direction.
    pub rate: Option<u64>,
    /// Bytes of memory of the guest. With one guest, [`Config::memory`] is lowered to this value. With
    /// `n` guests, each gets at most this value and at most 1/(n+1) of the memory of all.
    pub memory: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tcp_connections: 65_536,
            udp_flows: 8192,
            forwarded_udp_flows: 8192,
            ping_flows: 256,
            dns_queries: 1024,
            dns_addresses: 4096,
            forwards: 65_536,
            rate: None,
            memory: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let ipv4 = Ipv4Config {
            guest: Ipv4Addr::new(10, 0, 2, 100),
            prefix: 24,
            gateway: Ipv4Addr::new(10, 0, 2, 2),
            dns: Some(Ipv4Addr::new(10, 0, 2, 3)),
            dhcp: Some(DhcpRange {
                first: Ipv4Addr::new(10, 0, 2, 15),
                last: Ipv4Addr::new(10, 0, 2, 30),
            }),
        };
        let ipv6 = Ipv6Config {
            guest: None,
            prefix: 64,
            gateway: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
            dns: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3)),
            ra: true,
            dhcp: false,
        };
        let mappings = [ipv4.gateway.into(), ipv6.gateway.into()].map(|guest| Mapping {
            guest,
            target: Target::Loopback,
        });
        Self {
            ipv4: Some(ipv4),
            ipv6: Some(ipv6),
            mtu: 65_520,
            mac: [0x52, 0x55, 10, 0, 2, 2],
            link_local: None,
            proxy_neighbors: false,
            mappings: mappings.into(),
            outbound: Outbound::default(),
            dns: DnsConfig::default(),
            tcp: true,
            udp: true,
            udp_filtering: UdpFiltering::default(),
            icmp: true,
            link_local_destinations: true,
            forwards: Vec::new(),
            forward_source: ForwardSource::default(),
            loopback_clients: LoopbackClients::default(),
            limits: Limits::default(),
            memory: MemoryBudget::of_process(),
            policy: Arc::new(AllowAll),
        }
    }
}

impl Config {
    /// Returns the target of `destination`, an address as the guest sees it.
    pub(crate) fn target(&self, destination: IpAddr) -> Target {
        let found = self.mappings.iter().find(|m| m.guest == destination);
        match found {
            Some(mapping) => mapping.target,
            // The gateway's own addresses exist on no other host.
            None if self.is_own(destination) && self.proxy_neighbors => {
                Target::Address(destination)
            }
            None if self.is_own(destination) => Target::Unreachable,
            None => Target::Address(destination),
        }
    }

    /// Returns whether a mapping leads to the host's loopback, so that the guest may reach a resolver
    /// there at `address`.
    pub(crate) fn opens_loopback(&self, address: IpAddr) -> bool {
        self.mappings.iter().any(|mapping| match mapping.target {
            Target::Loopback => mapping.guest.is_ipv4() == address.is_ipv4(),
            Target::Address(target) => target == address,
            Target::Unreachable | Target::Drop => false,
        })
    }

    /// Returns the address under which the guest sees `host`, an address of the host's network: that of
    /// the first mapping to it, or `host` itself.
    pub(crate) fn visible_to_guest(&self, host: IpAddr) -> IpAddr {
        let stands_for_host = |mapping: &&Mapping| match mapping.target {
            Target::Loopback => host.is_loopback() && mapping.guest.is_ipv4() == host.is_ipv4(),
            Target::Address(address) => address == host,
            Target::Unreachable | Target::Drop => false,
        };
        let found = self.mappings.iter().find(stands_for_host);
        found.map_or(host, |mapping| mapping.guest)
    }

    /// Returns whether `address` is the gateway's or the DNS relay's.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self
                .ipv4
                .as_ref()
                .is_some_and(|v4| v4.gateway == address || v4.dns == Some(address)),
            IpAddr::V6(address) => self
                .ipv6
                .as_ref()
                .is_some_and(|v6| v6.gateway == address || v6.dns == Some(address)),
        }
    }

    /// Returns whether `address` is the guest's.
    pub(crate) fn is_guest(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.as_ref().is_some_and(|v4| v4.guest == address),
            IpAddr::V6(address) => self
                .ipv6
                .as_ref()
                .is_some_and(|v6| v6.guest == Some(address)),
        }
    }

    /// Returns whether `address`, as the guest sees it, is local regardless of the addresses of the
    /// host's interfaces; see [`Flow::is_local`](crate::Flow::is_local).
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_mapped = self.mappings.iter().any(|mapping| mapping.guest == address);
        is_mapped || self.is_own(address) || is_special(address)
    }

    /// Returns whether `address` is in the guest's own network.
    pub(crate) fn is_on_link(&self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, bits: u32| a.checked_shr(bits).is_none_or(|a| a == b >> bits);
        match address {
            IpAddr::V4(address) => self.ipv4.as_ref().is_some_and(|v4| {
                let (own, host_bits) = (v4.gateway, 32_u32.saturating_sub(v4.prefix.into()));
                same(own.to_bits().into(), address.to_bits().into(), host_bits)
            }),
            IpAddr::V6(address) => self.ipv6.as_ref().is_some_and(|v6| {
                let (own, host_bits) = (v6.gateway, 128_u32.saturating_sub(v6.prefix.into()));
                same(own.to_bits(), address.to_bits(), host_bits)
            }),
        }
    }

    /// Returns whether DNS is relayed at `address`.
    pub(crate) fn is_dns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.as_ref().is_some_and(|v4| v4.dns == Some(address)),
            IpAddr::V6(address) => self.ipv6.as_ref().is_some_and(|v6| v6.dns == Some(address)),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("ipv4", &self.ipv4)
            .field("ipv6", &self.ipv6)
            .field("mtu", &self.mtu)
            .field("mappings", &self.mappings)
            .field("outbound", &self.outbound)
            .field("dns", &self.dns)
            .field("forwards", &self.forwards)
            .field("limits", &self.limits)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_stands_for_the_loopback_is_local() {
        let router: IpAddr = [198, 51, 100, 1].into();
        let mut config = Config::default();
        assert!(!config.is_local(router));
        config.mappings.push(Mapping {
            guest: router,
            target: Target::Loopback,
        });
        let mut public = config.ipv4.clone().unwrap();
        public.gateway = [198, 51, 100, 2].into();
        public.dns = Some([198, 51, 100, 3].into());
        config.ipv4 = Some(public);
        for (address, expected) in [
            ("198.51.100.1", true),
            ("::ffff:198.51.100.1", true),
            ("198.51.100.2", true),
            ("198.51.100.3", true),
            ("198.51.100.4", false),
            ("fd00::2", true),
            ("192.168.1.1", true),
        ] {
            assert_eq!(
                config.is_local(address.parse().unwrap()),
                expected,
                "{address}"
            );
        }
    }
}
