//! The guest's IPv4 network.

use std::net::Ipv4Addr;
use std::str::FromStr;

use anyhow::{Error, Result, bail};

use crate::gateway::values::{is_host_address, parse_number};

/// An IPv4 network with fixed host numbers for the gateway, DNS, DHCP and the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Network {
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
}

impl Network {
    /// The default network, 10.0.2.0/24.
    pub(super) const DEFAULT: Self = Self {
        address: Ipv4Addr::new(10, 0, 2, 0),
        prefix: 24,
    };

    const fn host(self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() + number)
    }

    pub(super) fn gateway(self) -> Ipv4Addr {
        self.host(2)
    }

    pub(super) fn dns(self) -> Ipv4Addr {
        self.host(3)
    }

    /// Returns the first and the last address that DHCP gives out.
    pub(super) fn dhcp(self) -> (Ipv4Addr, Ipv4Addr) {
        (self.host(15), self.host(30))
    }

    pub(super) const fn guest(self) -> Ipv4Addr {
        self.host(100)
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let parsed = parts.and_then(|(address, prefix)| {
            let address: Ipv4Addr = address.parse().ok()?;
            Some((address, parse_number::<u8>(prefix)?))
        });
        let Some((address, prefix)) = parsed else {
            bail!("invalid CIDR: {text:?}; write a network address like 10.0.2.0/24");
        };
        // The guest's address is number 100 of the network.
        if !(1..=25).contains(&prefix) {
            bail!("invalid CIDR: {text:?}: prefix length needs to be 1-25");
        }
        if u32::from(address) & (u32::MAX >> prefix) != 0 {
            bail!(
                "invalid CIDR: {text:?}: CIDR needs to be a network address like 10.0.2.0/24, not \
                 like 10.0.2.100/24"
            );
        }
        let network = Self { address, prefix };
        if !is_host_address(network.gateway().into()) {
            bail!(
                "invalid CIDR: {text:?}: CIDR needs to be a network address of hosts like \
                 10.0.2.0/24"
            );
        }
        Ok(network)
    }
}
