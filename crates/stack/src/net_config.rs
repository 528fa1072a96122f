//! The configuration of an interface before its device is open: addresses, routes, MTU, offloads
//! and qdisc.

use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_offload::Caps;
use fullsend_qdisc::QdiscConfig;
use fullsend_wire::Instant;

use crate::{Cidr, Host, IfaceConfig, IfaceId, Mac, NeighbourConfig, StackError};

/// Smallest IPv4 MTU: every IPv4 host forwards such a packet without fragmentation (RFC 791 3.2).
const IPV4_MIN_MTU: u32 = 68;
/// Smallest IPv6 MTU (RFC 8200 5).
pub(crate) const IPV6_MIN_MTU: u32 = 1280;

/// Returns `mtu` if it is valid for an interface with (`v6`) or without an IPv6 address.
pub(crate) fn checked_mtu(mtu: u32, v6: bool) -> Result<u32, StackError> {
    let least = if v6 { IPV6_MIN_MTU } else { IPV4_MIN_MTU };
    if (least..=65_535).contains(&mtu) {
        return Ok(mtu);
    }
    let text = format!("mtu {mtu} is out of range; choose {least} to 65535");
    Err(StackError::Config(text))
}

/// The configuration of an interface, to be applied to a device by [`set_up`](Self::set_up).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetConfig {
    /// Addresses of the interface, with their prefix lengths.
    pub addresses: Vec<Cidr>,
    /// Destinations with their gateways. A destination without a gateway is on-link.
    pub routes: Vec<(Cidr, Option<IpAddr>)>,
    /// Largest IP packet, bytes. `None` means the device's MTU.
    pub mtu: Option<u32>,
    /// Hardware address. `None` means a random, locally administered one.
    pub mac: Option<Mac>,
    /// Whether TCP builds super-segments (on) or single packets (off).
    pub gso: bool,
    /// Whether GRO coalesces received packets.
    pub gro: bool,
    /// The queueing discipline between the host and the device.
    pub qdisc: QdiscConfig,
    /// The host's role on an Ethernet link.
    pub neighbours: NeighbourConfig,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            routes: Vec::new(),
            mtu: None,
            mac: None,
            gso: true,
            gro: true,
            qdisc: QdiscConfig::NoQueue,
            neighbours: NeighbourConfig::HOST,
        }
    }
}

impl NetConfig {
    /// Adds an interface with these addresses and routes to the host, over a device with the
    /// capabilities `caps`. If `mac` is `None`, the hardware address is derived from `mac_seed`.
    ///
    /// # Errors
    /// [`Config`](StackError::Config) for an invalid setting; the message names the fix.
    /// [`AddressInUse`](StackError::AddressInUse) for an address that the host already has.
    pub fn set_up(
        &self,
        host: &mut Host,
        now: Instant,
        caps: Caps,
        mac_seed: u64,
    ) -> Result<IfaceId, StackError> {
        let v6 = self.addresses.iter().any(|a| a.addr.is_ipv6());
        let caps = Caps {
            mtu: checked_mtu(self.mtu.unwrap_or(caps.mtu), v6)?,
            ..caps
        };
        let iface = host.add_interface(IfaceConfig {
            gso: self.gso,
            gro: self.gro,
            qdisc: self.qdisc,
            neighbours: self.neighbours,
            ..IfaceConfig::new(caps, self.mac.unwrap_or_else(|| Mac::local(mac_seed)))
        });
        for &address in &self.addresses {
            host.add_address(now, iface, address)?;
        }
        for &(destination, gateway) in &self.routes {
            host.add_route(destination, gateway, iface)?;
        }
        Ok(iface)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use fullsend_offload::Link;
    use fullsend_tcp::Sysctl;
    use fullsend_wire::Seed;

    use super::*;
    use crate::HostConfig;

    const CAPS: Caps = Caps::offloading(Link::Ip, 1500);

    fn set_up(config: &NetConfig) -> Result<IfaceId, StackError> {
        let mut host = Host::new(HostConfig {
            seed: Seed::from_u64(1),
            sysctl: Sysctl::default(),
            pool_bytes: 0,
        });
        config.set_up(&mut host, Instant::ZERO, CAPS, 7)
    }

    #[test]
    fn mtus_below_the_minimum_of_the_family_are_rejected() {
        for (address, mtu, good) in [
            ("10.0.0.1/24", 68, true),
            ("10.0.0.1/24", 67, false),
            ("fd00::1/64", 1280, true),
            ("fd00::1/64", 1279, false),
            ("10.0.0.1/24", 65_536, false),
        ] {
            let config = NetConfig {
                addresses: vec![address.parse().unwrap()],
                mtu: Some(mtu),
                ..NetConfig::default()
            };
            let result = set_up(&config);
            assert_eq!(result.is_ok(), good, "{address} {mtu}");
            if let Err(error) = result {
                assert!(error.to_string().contains(&mtu.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn a_duplicate_address_is_rejected() {
        let address: Cidr = "10.0.0.1/24".parse().unwrap();
        let config = NetConfig {
            addresses: vec![address; 2],
            ..NetConfig::default()
        };
        let error = set_up(&config).unwrap_err().to_string();
        assert!(error.contains("10.0.0.1"), "{error}");
    }
}
