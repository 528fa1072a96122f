//! The network layer: IPv4 and IPv6 input and output, addresses, routes, neighbours and ICMP.

mod addresses;
mod fragment;
mod icmp;
mod icmp_input;
mod icmp_queue;
mod input;
mod link;
mod local_addresses;
mod membership;
mod multicast;
mod neighbour;
mod output;
mod path;
mod pmtu;
mod reassembly;
mod routes;
mod shard_messages;

use alloc::format;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use fullsend_offload::{Gro, GroConfig, Link, Packet, Tunnels};
use fullsend_wire::Instant;

pub(crate) use addresses::Addresses;
pub use addresses::{Cidr, ParseCidrError};
pub(crate) use icmp::{Icmp, Problem, TransportError};
pub use icmp_queue::IcmpMessage;
pub(crate) use icmp_queue::IcmpQueue;
pub(crate) use input::IpMeta;
pub(crate) use link::LinkHeader;
pub use local_addresses::{AddressState, OwnAddress};
pub(crate) use multicast::Multicast;
pub use neighbour::NeighbourMessage;
pub(crate) use neighbour::Neighbours;
pub(crate) use path::Path;
use pmtu::LearnedMtus;
pub(crate) use pmtu::min_path_mtu;
use reassembly::Reassembly;
pub(crate) use reassembly::{compact, compact_beyond};
use routes::{NextHop, Routes};

use crate::siphash::SipKey;
use crate::{Host, IfaceId, StackError};

/// Returns a socket address with an IPv4-mapped IPv6 address replaced by the IPv4 address.
pub(crate) const fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The state of the network layer.
#[derive(Debug)]
pub(crate) struct Ip {
    pub(crate) addresses: Addresses,
    routes: Routes,
    pmtu: LearnedMtus,
    pub(crate) icmp: Icmp,
    pub(crate) icmp_queue: IcmpQueue,
    pub(crate) multicast: Multicast,
    pub(crate) reassembly: Reassembly,
    /// Parses and verifies reassembled packets.
    reassembled_gro: Gro,
    /// Incremented by every change that can alter a path.
    pub(crate) version: u32,
    /// IP ID of the last packet sent outside connections.
    ident: u16,
    /// Addresses in duplicate address detection, with their interfaces.
    tentative: Vec<(u16, Cidr)>,
    /// Addresses that another host on the link has, with their interfaces.
    duplicates: Vec<(u16, Cidr)>,
    /// Messages to the neighbour tables of other shards, each with the index of the shard.
    neighbour_messages: Vec<(usize, NeighbourMessage)>,
    /// Scratch buffer of `poll`.
    expired: Vec<Packet>,
    /// Scratch buffer of fragmentation.
    fragments: Vec<Packet>,
}

impl Ip {
    /// Limits the fragments, and each table of path MTUs, to about so many bytes of memory.
    pub(crate) fn limit_memory(&mut self, fragments: usize, path_mtus: usize) {
        self.reassembly.limit_memory(fragments);
        self.pmtu.limit_memory(path_mtus);
    }

    pub(crate) fn new(key: SipKey) -> Self {
        let reassembled = GroConfig {
            link: Link::Ip,
            enabled: false,
            max_size: 65_536,
            tunnels: Tunnels::NONE,
        };
        Self {
            addresses: Addresses::default(),
            routes: Routes::default(),
            pmtu: LearnedMtus::default(),
            icmp: Icmp::new(key),
            icmp_queue: IcmpQueue::default(),
            multicast: Multicast::default(),
            reassembly: Reassembly::default(),
            reassembled_gro: Gro::new(reassembled),
            version: 0,
            ident: 0,
            tentative: Vec::new(),
            duplicates: Vec::new(),
            neighbour_messages: Vec::new(),
            expired: Vec::new(),
            fragments: Vec::new(),
        }
    }
}

impl Ip {
    /// Returns the interface of the route to `to`.
    pub(crate) fn route_iface(&self, to: IpAddr) -> Option<u16> {
        self.routes.lookup(to).map(|hop| hop.iface)
    }

    /// Returns the next hop to `to`: `via`, the interface that a socket has chosen for a group, or that
    /// of the route.
    pub(crate) fn next_hop(&self, to: IpAddr, via: Option<u16>) -> Option<NextHop> {
        match via {
            Some(iface) => Some(NextHop {
                iface,
                neighbour: to,
            }),
            None => self.routes.lookup(to),
        }
    }

    /// Returns whether `src` can be the address of a single host, so that packets from it are
    /// accepted and errors are sent to it (loopback is checked elsewhere). Class E (RFC 1112 4) has
    /// hosts only where a local network or a route other than a default route covers the address.
    pub(crate) fn may_be_source(&self, src: IpAddr) -> bool {
        let class_e = matches!(src, IpAddr::V4(ip) if ip.octets()[0] >= 240);
        self.addresses.is_host(src) && (!class_e || self.routes.is_specific(src))
    }
}

impl Host {
    /// Adds an address and its on-link route. An IPv6 address on Ethernet is used after duplicate
    /// address detection.
    ///
    /// # Errors
    /// [`AddressInUse`](StackError::AddressInUse) if the host already has the address;
    /// [`Config`](StackError::Config) if there is no such interface or the address is invalid for a
    /// single host.
    pub fn add_address(
        &mut self,
        now: Instant,
        iface: IfaceId,
        cidr: Cidr,
    ) -> Result<(), StackError> {
        self.check_iface(iface)?;
        check_cidr(cidr)?;
        let in_use = StackError::AddressInUse((cidr.addr, 0).into());
        if cidr.addr.is_multicast() || cidr.addr.is_unspecified() {
            let text = format!(
                "{} is a multicast or unspecified address; choose the address of a single host",
                cidr.addr
            );
            return Err(StackError::Config(text));
        }
        if self.ip.tentative.iter().any(|(_, c)| c.addr == cidr.addr) {
            return Err(in_use);
        }
        match (cidr.addr, &self.ifaces[usize::from(iface.0)].neighbours) {
            (IpAddr::V6(addr), Some(neighbours))
                if neighbours.detects_duplicates()
                    && !self.ip.addresses.is_local(cidr.addr.into()) =>
            {
                self.ip.duplicates.retain(|(_, c)| c.addr != cidr.addr);
                self.ip.tentative.push((iface.0, cidr));
                self.start_dad(now, iface.0, addr);
            }
            _ if !self.ip.addresses.add(iface.0, cidr) => return Err(in_use),
            (IpAddr::V6(addr), _) if addr.is_unicast_link_local() => {
                self.ip.multicast.on_link_local(now, iface.0);
            }
            _ => {}
        }
        self.add_route(cidr, None, iface)
    }

    /// Adds a route; without a gateway the destination is on-link.
    ///
    /// # Errors
    /// [`Config`](StackError::Config) if there is no such interface, the prefix length is invalid,
    /// or the gateway cannot be reached on the interface's link.
    pub fn add_route(
        &mut self,
        destination: Cidr,
        gateway: Option<IpAddr>,
        iface: IfaceId,
    ) -> Result<(), StackError> {
        self.check_iface(iface)?;
        check_cidr(destination)?;
        self.ip.routes.add(destination, gateway, iface.0)?;
        self.ip.version += 1;
        Ok(())
    }

    pub(crate) fn check_iface(&self, iface: IfaceId) -> Result<(), StackError> {
        if usize::from(iface.0) < self.ifaces.len() {
            return Ok(());
        }
        let text = format!("there is no interface {}; add it first", iface.0);
        Err(StackError::Config(text))
    }
}

fn check_cidr(cidr: Cidr) -> Result<(), StackError> {
    if cidr.is_valid() {
        return Ok(());
    }
    let most = if cidr.addr.is_ipv4() { 32 } else { 128 };
    let text = format!("{cidr} has an invalid prefix length; choose 0 to {most}");
    Err(StackError::Config(text))
}
