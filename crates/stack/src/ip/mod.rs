//! IPv4 and IPv6: input, output, and what they consult.

mod addresses;
mod control;
mod fragment;
mod icmp;
mod input;
mod link;
mod neighbour;
mod output;
mod own;
mod path;
mod pmtu;
mod reassembly;
mod routes;

use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_offload::{Gro, GroConfig, Link, Packet, Tunnels};
use fullsend_units::Instant;

pub(crate) use addresses::Addresses;
pub use addresses::{Cidr, ParseCidrError};
pub(crate) use icmp::{Icmp, Problem};
pub(crate) use input::IpMeta;
pub(crate) use neighbour::Neighbours;
pub use own::{AddressState, OwnAddress};
pub(crate) use path::Path;
use pmtu::LearntMtus;
pub(crate) use pmtu::least as least_path_mtu;
use reassembly::Reassembly;
pub(crate) use reassembly::compact;
use routes::Routes;

use crate::siphash::SipKey;
use crate::{Host, IfaceId, StackError};

/// The state of the network layer.
#[derive(Debug)]
pub(crate) struct Ip {
    pub(crate) addresses: Addresses,
    routes: Routes,
    pmtu: LearntMtus,
    pub(crate) icmp: Icmp,
    pub(crate) reassembly: Reassembly,
    /// Parses and verifies what was put together.
    whole: Gro,
    /// Grows with every change that could alter a path.
    pub(crate) version: u32,
    /// IDs of packets outside connections.
    ident: u16,
    /// Addresses whose duplicate detection runs, with their interface.
    tentative: Vec<(u16, Cidr)>,
    /// Addresses that another host on the link has, with their interface.
    duplicates: Vec<(u16, Cidr)>,
    /// Scratch of `poll`.
    expired: Vec<Packet>,
    /// Scratch of fragmentation.
    pieces: Vec<Packet>,
}

impl Ip {
    pub(crate) fn new(key: SipKey) -> Self {
        let whole = GroConfig {
            link: Link::Ip,
            enabled: false,
            max_size: 65_536,
            tunnels: Tunnels::NONE,
        };
        Self {
            addresses: Addresses::default(),
            routes: Routes::default(),
            pmtu: LearntMtus::default(),
            icmp: Icmp::new(key),
            reassembly: Reassembly::default(),
            whole: Gro::new(whole),
            version: 0,
            ident: 0,
            tentative: Vec::new(),
            duplicates: Vec::new(),
            expired: Vec::new(),
            pieces: Vec::new(),
        }
    }
}

impl Ip {
    /// Returns whether packets may come from `src`, loopback aside, and errors be sent to it: whether
    /// one host can have the address. Class E (RFC 1112 4) has no hosts but where a network of ours,
    /// or a route that is not a default route, says so.
    pub(crate) fn may_be_source(&self, src: IpAddr) -> bool {
        let class_e = matches!(src, IpAddr::V4(ip) if ip.octets()[0] >= 240);
        self.addresses.is_host(src) && (!class_e || self.routes.is_specific(src))
    }
}

impl Host {
    /// Adds an address (with its on-link route; on Ethernet IPv6, after DAD).
    pub fn add_address(
        &mut self,
        now: Instant,
        iface: IfaceId,
        cidr: Cidr,
    ) -> Result<(), StackError> {
        self.check_iface(iface)?;
        check_cidr(cidr)?;
        let taken = StackError::AddressInUse((cidr.addr, 0).into());
        if cidr.addr.is_multicast() || cidr.addr.is_unspecified() {
            let text = format!("{}: an interface has addresses of one host", cidr.addr);
            return Err(StackError::Config(text));
        }
        if self.ip.tentative.iter().any(|(_, c)| c.addr == cidr.addr) {
            return Err(taken);
        }
        match (cidr.addr, &self.ifaces[usize::from(iface.0)].neighbours) {
            (IpAddr::V6(addr), Some(_)) if !self.ip.addresses.is_local(cidr.addr.into()) => {
                self.ip.duplicates.retain(|(_, c)| c.addr != cidr.addr);
                self.ip.tentative.push((iface.0, cidr));
                self.start_dad(now, iface.0, addr);
            }
            _ if !self.ip.addresses.add(iface.0, cidr) => return Err(taken),
            _ => {}
        }
        self.add_route(cidr, None, iface)
    }

    /// Adds a route; without a gateway the destination is on-link.
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

    fn check_iface(&self, iface: IfaceId) -> Result<(), StackError> {
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
    let text = format!("{cidr}: a prefix length is from 0 to {most}");
    Err(StackError::Config(text))
}
