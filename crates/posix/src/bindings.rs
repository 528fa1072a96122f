//! The addresses that streams are bound to, and the rules for sharing them (`SO_REUSEADDR`,
//! `SO_REUSEPORT`).

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use smallvec::SmallVec;

use crate::files::Handle;

/// A socket's claim on an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) owner: Handle,
    pub(crate) ip: IpAddr,
    /// Whether an unspecified IPv6 address excludes IPv4.
    pub(crate) v6only: bool,
    pub(crate) reuse_addr: bool,
    pub(crate) reuse_port: bool,
    pub(crate) listening: bool,
}

impl Binding {
    fn covers(&self, ip: IpAddr) -> bool {
        match self.ip {
            IpAddr::V6(own) if own.is_unspecified() => ip.is_ipv6() || !self.v6only,
            IpAddr::V4(own) if own.is_unspecified() => ip.is_ipv4(),
            own => own == ip,
        }
    }

    /// Returns whether this existing binding excludes `other`.
    fn conflicts(&self, other: &Self) -> bool {
        let overlap = self.covers(other.ip) || other.covers(self.ip);
        let both_addr = self.reuse_addr && other.reuse_addr;
        let both_port = self.reuse_port && other.reuse_port;
        let may_share = both_addr && !self.listening || both_port;
        overlap && !may_share
    }
}

/// All bindings, by port.
#[derive(Default, Debug)]
pub(crate) struct Bindings(BTreeMap<u16, SmallVec<[Binding; 1]>>);

impl Bindings {
    /// Returns whether any socket is bound to the port.
    pub(crate) fn is_used(&self, port: u16) -> bool {
        self.0.contains_key(&port)
    }

    /// Returns whether the binding of another socket excludes `binding`.
    pub(crate) fn conflicts(&self, port: u16, binding: &Binding) -> bool {
        let on_port = self.0.get(&port).into_iter().flatten();
        on_port
            .filter(|existing| existing.owner != binding.owner)
            .any(|existing| existing.conflicts(binding))
    }

    /// Adds a binding, which replaces its owner's previous one on that port.
    pub(crate) fn insert(&mut self, port: u16, binding: Binding) {
        let on_port = self.0.entry(port).or_default();
        on_port.retain(|existing| existing.owner != binding.owner);
        on_port.push(binding);
    }

    /// Removes the binding of `owner`.
    pub(crate) fn remove(&mut self, port: u16, owner: Handle) {
        if let Some(on_port) = self.0.get_mut(&port) {
            on_port.retain(|existing| existing.owner != owner);
            if on_port.is_empty() {
                self.0.remove(&port);
            }
        }
    }
}
