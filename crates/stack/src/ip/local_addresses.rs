//! The host's addresses, their states, and the reason why an address is not available.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::Cidr;
use crate::{Host, IfaceId, StackError};

/// The state of a local address.
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
    /// Returns the state in one word, as `ip address` shows it.
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
    /// Whether the address may be used.
    pub state: AddressState,
}

impl Host {
    /// Returns the addresses that were added to interfaces. Loopback addresses are not included.
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

    /// Returns the reason why a socket cannot be bound to `addr`, which is not a usable local
    /// address.
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
