//! The DHCP and DHCPv6 servers.

mod leases;
mod v4;
mod v6;

pub use leases::Lease;
pub(crate) use leases::{Client as LeasingClient, Leases};
pub(crate) use v4::{open as open_v4, serve as serve_v4};
pub(crate) use v6::{announced_resolvers, open as open_v6, serve as serve_v6};
