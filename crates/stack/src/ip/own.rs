//! The host's addresses and their states, and why a socket cannot have one.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::Cidr;
use crate::{Host, IfaceId, StackError};

/// Whether an address of the host may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressState {
    /// Duplicate address detection runs (RFC 4862 5.4): the address may not be used yet.
    Tentative,
    /// The address is in use.
    Preferred,
    /// Another host on the link has the address, and this one does not use it. Linux calls this
    /// `dadfailed`.
    Duplicate,
}

impl AddressState {
    /// The state in one word, as `ip address` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tentative => "tentative",
            Self::Preferred => "preferred",
            Self::Duplicate => "dadfailed",
        }
    }
}

/// An address that was added to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnAddress {
    /// The interface.
    pub iface: IfaceId,
    /// The address with its prefix length.
    pub cidr: Cidr,
    /// Whether it may be used.
    pub state: AddressState,
}

impl Host {
    /// Returns the addresses that were added, loopback's aside.
    pub fn addresses(&self) -> Vec<OwnAddress> {
        let with = |state| {
            move |(iface, cidr)| OwnAddress {
                iface: IfaceId(iface),
                cidr,
                state,
            }
        };
        let ip = &self.ip;
        let tentative = ip.tentative.iter().copied();
        let duplicates = ip.duplicates.iter().copied();
        ip.addresses
            .iter()
            .map(with(AddressState::Preferred))
            .chain(tentative.map(with(AddressState::Tentative)))
            .chain(duplicates.map(with(AddressState::Duplicate)))
            .collect()
    }

    /// Why no socket can be bound to `addr`, which is not a usable address of the host.
    pub(crate) fn not_available(&self, addr: SocketAddr) -> StackError {
        let is = |list: &[(u16, Cidr)], ip: IpAddr| list.iter().any(|(_, cidr)| cidr.addr == ip);
        if is(&self.ip.tentative, addr.ip()) {
            StackError::TentativeAddress(addr)
        } else if is(&self.ip.duplicates, addr.ip()) {
            StackError::DuplicateAddress(addr)
        } else {
            StackError::AddressNotAvailable(addr)
        }
    }
}
