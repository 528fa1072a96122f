//! The host's ports at which sockets of guests receive.
//!
//! Guests that are not joined reach each other by no way of the gateway. Two that cooperate could: each sends from
//! its socket of the host to the other's port there, at an address of the host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use fullsend_device::PortId;
use parking_lot::Mutex;

/// The ports of the sockets that stand for ports of guests, and their guests. Only those of guests that are not
/// joined are registered.
#[derive(Default)]
pub(crate) struct GuestPorts(Mutex<BTreeMap<HostPort, Vec<Option<PortId>>>>);

/// A UDP port of the host. Each address family has its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HostPort {
    is_v6: bool,
    port: u16,
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self {
            is_v6: address.is_ipv6(),
            port: address.port(),
        }
    }
}

/// A registered port, until it is dropped.
pub(super) struct GuestPort {
    ports: Arc<GuestPorts>,
    port: HostPort,
    owner: Option<PortId>,
}

impl GuestPorts {
    /// Registers the port of a socket with the address `local`, which stands for a port of the guest `owner`.
    pub(super) fn register(
        self: &Arc<Self>,
        local: SocketAddr,
        owner: Option<PortId>,
    ) -> GuestPort {
        let port = HostPort::from(local);
        self.0.lock().entry(port).or_default().push(owner);
        GuestPort {
            ports: self.clone(),
            port,
            owner,
        }
    }

    /// Returns whether the port of `to` is that of another guest than `owner`.
    pub(crate) fn is_of_another(&self, to: SocketAddr, owner: Option<PortId>) -> bool {
        let ports = self.0.lock();
        let owners = ports.get(&HostPort::from(to));
        owners.is_some_and(|owners| owners.iter().any(|other| *other != owner))
    }
}

impl Drop for GuestPort {
    fn drop(&mut self) {
        let mut ports = self.ports.0.lock();
        let Some(owners) = ports.get_mut(&self.port) else {
            return;
        };
        if let Some(own) = owners.iter().position(|other| *other == self.owner) {
            owners.swap_remove(own);
        }
        if owners.is_empty() {
            ports.remove(&self.port);
        }
    }
}
