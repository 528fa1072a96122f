//! IPv4 and IPv6: input, output, and what they consult.

mod addresses;
#[allow(dead_code, reason = "called once the host is wired to it")]
mod fragment;
#[allow(dead_code, reason = "called once the host is wired to it")]
mod icmp;
mod input;
#[allow(dead_code, reason = "called once the host is wired to it")]
mod neighbour;
mod output;
mod path;
#[allow(dead_code, reason = "called once the host is wired to it")]
mod pmtu;
#[allow(dead_code, reason = "called once the host is wired to it")]
mod reassembly;
#[allow(dead_code, reason = "called once the host is wired to it")]
mod routes;

use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_units::Instant;

pub(crate) use addresses::Addresses;
pub use addresses::Cidr;
pub(crate) use input::IpMeta;
pub(crate) use path::Path;
pub(crate) use reassembly::compact;

use crate::{Host, IfaceId, StackError};

#[derive(Clone, Copy, Debug)]
struct Route {
    to: Cidr,
    iface: u16,
}

/// The state of the network layer.
#[derive(Debug, Default)]
pub(crate) struct Ip {
    pub(crate) addresses: Addresses,
    routes: Vec<Route>,
    /// Grows with every change that could alter a path.
    pub(crate) version: u32,
    /// IDs of packets outside connections.
    ident: u16,
}

impl Ip {
    fn route(&self, to: IpAddr) -> Option<Route> {
        self.routes
            .iter()
            .filter(|r| r.to.contains(to))
            .max_by_key(|r| r.to.prefix)
            .copied()
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
        let _ = now;
        self.check_iface(iface)?;
        check_cidr(cidr)?;
        if !self.ip.addresses.add(iface.0, cidr) {
            return Err(StackError::AddressInUse((cidr.addr, 0).into()));
        }
        self.ip.version += 1;
        self.add_route(cidr, None, iface)
    }

    /// Adds a route; without a gateway the destination is on-link.
    pub fn add_route(
        &mut self,
        destination: Cidr,
        gateway: Option<IpAddr>,
        iface: IfaceId,
    ) -> Result<(), StackError> {
        let _ = gateway;
        self.check_iface(iface)?;
        check_cidr(destination)?;
        self.ip.routes.push(Route {
            to: destination,
            iface: iface.0,
        });
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
    let text = format!(
        "{}/{}: a prefix length is from 0 to {most}",
        cidr.addr, cidr.prefix
    );
    Err(StackError::Config(text))
}
