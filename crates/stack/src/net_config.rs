//! What people choose of an interface before its device is open: addresses, routes, MTU and what
//! stands before the device.

use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_offload::Caps;
use fullsend_qdisc::QdiscConfig;
use fullsend_units::Instant;

use crate::{Cidr, Host, IfaceConfig, IfaceId, Mac, StackError};

/// Smallest MTU over which every IPv4 host can be reached (RFC 791 3.2).
const IPV4_MIN_MTU: u32 = 68;
/// The same for IPv6 (RFC 8200 5).
pub(crate) const IPV6_MIN_MTU: u32 = 1280;

/// `mtu`, if it is one that an interface can have that has an IPv6 address (`v6`) or none.
pub(crate) fn checked_mtu(mtu: u32, v6: bool) -> Result<u32, StackError> {
    let least = if v6 { IPV6_MIN_MTU } else { IPV4_MIN_MTU };
    if (least..=65_535).contains(&mtu) {
        return Ok(mtu);
    }
    let text = format!("mtu {mtu} is out of range: choose {least} to 65535");
    Err(StackError::Config(text))
}

/// An interface as its user wants it, to be [`set_up`](Self::set_up) over a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetConfig {
    /// Our addresses.
    pub addresses: Vec<Cidr>,
    /// Destinations, and through whom each is reached; straight to the link without a gateway.
    pub routes: Vec<(Cidr, Option<IpAddr>)>,
    /// Largest IP packet, bytes; the device's unless chosen.
    pub mtu: Option<u32>,
    /// Our hardware address; made up unless chosen.
    pub mac: Option<Mac>,
    /// Build super-segments (on) or single packets (off) in TCP.
    pub gso: bool,
    /// Coalesce what is received.
    pub gro: bool,
    /// What waits for the device, and in which order.
    pub qdisc: QdiscConfig,
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
        }
    }
}

impl NetConfig {
    /// Gives the host its interface over a device that can do `caps`, with addresses and routes.
    /// A hardware address that nobody chose is made of `random`.
    ///
    /// # Errors
    /// The setting that makes no sense, and the mend.
    pub fn set_up(
        &self,
        host: &mut Host,
        now: Instant,
        caps: Caps,
        random: u64,
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
            ..IfaceConfig::over(caps, self.mac.unwrap_or_else(|| Mac::local(random)))
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
    use fullsend_units::Seed;

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
    fn mtus_below_what_the_family_asks_for_are_refused() {
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
    fn an_address_given_twice_is_named() {
        let address: Cidr = "10.0.0.1/24".parse().unwrap();
        let config = NetConfig {
            addresses: vec![address; 2],
            ..NetConfig::default()
        };
        let error = set_up(&config).unwrap_err().to_string();
        assert!(error.contains("10.0.0.1"), "{error}");
    }
}
