//! The addresses and routes of a stack's interface.

use std::net::IpAddr;

use fullsend_stack::{Cidr, Mac, NeighbourConfig};

use super::Builder;
use super::check::invalid_cidr;

impl Builder {
    /// Adds an address with its prefix length, e.g. `"10.9.0.2/24"` or `"fd09::2/64"`. Call it once
    /// for each address.
    #[must_use]
    pub fn address(mut self, cidr: &str) -> Self {
        match cidr.parse() {
            Ok(cidr) => self.net.addresses.push(cidr),
            Err(error) => self.record_error(invalid_cidr(&error)),
        }
        self
    }

    #[cfg(target_os = "linux")]
    /// Assigns an address with its on-link route to the kernel's side of a TUN or TAP. Call it once
    /// for each address; [`default_kernel_address`](crate::default_kernel_address) suggests one.
    /// Without a call, configure the kernel's side with `ip`.
    #[must_use]
    pub fn kernel_address(mut self, cidr: &str) -> Self {
        match cidr.parse() {
            Ok(cidr) => self.kernel_addresses.push(cidr),
            Err(error) => self.record_error(invalid_cidr(&error)),
        }
        self
    }

    /// Adds a route: packets to `destination` (an address with a prefix length) are sent to
    /// `gateway`, or directly on the link if it is `None`.
    #[must_use]
    pub fn route(mut self, destination: &str, gateway: Option<IpAddr>) -> Self {
        match destination.parse() {
            Ok(cidr) => self.net.routes.push((cidr, gateway)),
            Err(error) => self.record_error(invalid_cidr(&error)),
        }
        self
    }

    /// Adds a default route via `gateway`, for its address family.
    #[must_use]
    pub fn gateway(mut self, gateway: impl Into<IpAddr>) -> Self {
        let gateway = gateway.into();
        let destination = Cidr::default_route_for(gateway);
        self.net.routes.push((destination, Some(gateway)));
        self
    }

    /// Sets the MTU: the size of the largest IP packet, in bytes. By default it is the device's.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.net.mtu = Some(mtu);
        self
    }

    /// Sets the stack's Ethernet address. By default it is derived from the seed; with
    /// [`packet_socket`](Self::packet_socket) or [`xdp`](Self::xdp) and without a seed, from the
    /// interface's name and the addresses.
    #[must_use]
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.net.mac = Some(Mac(mac));
        self
    }

    /// Makes the stack a router on an Ethernet link: its neighbor advertisements show one, and its
    /// IPv6 addresses are used at once, without duplicate address detection, as the link is the
    /// stack's own. With `proxy`, it also answers for the addresses of other hosts.
    #[must_use]
    pub fn router(mut self, proxy: bool) -> Self {
        self.net.neighbours = NeighbourConfig {
            detect_duplicates: false,
            router: true,
            proxy,
        };
        self
    }
}
