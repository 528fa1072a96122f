//! Capabilities of a device.

use crate::Link;

/// The link type, size limits and offloads of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// The kind of the device's frames.
    pub link: Link,
    /// Largest IP packet on the wire, in bytes.
    pub mtu: u32,
    /// Whether the device segments TCP over IPv4.
    pub tso4: bool,
    /// Whether the device segments TCP over IPv6.
    pub tso6: bool,
    /// Whether the device segments UDP.
    pub uso: bool,
    /// Whether the device completes transport checksums.
    pub tx_checksum: bool,
    /// Largest super-segment that the device accepts, in bytes, including the IP header.
    pub gso_max_size: u32,
}

impl Caps {
    /// The default of `gso_max_size` in bytes. It is one more than IP's length field can express;
    /// TCP keeps its super-segments below it.
    pub const GSO_MAX_SIZE: u32 = 65_536;

    /// Returns the capabilities of a device without offloads whose packets have up to `mtu` bytes.
    pub const fn plain(link: Link, mtu: u32) -> Self {
        Self {
            link,
            mtu,
            tso4: false,
            tso6: false,
            uso: false,
            tx_checksum: false,
            gso_max_size: Self::GSO_MAX_SIZE,
        }
    }

    /// Returns the capabilities of a device that segments TCP and UDP and completes checksums.
    pub const fn offloading(link: Link, mtu: u32) -> Self {
        Self {
            tso4: true,
            tso6: true,
            uso: true,
            tx_checksum: true,
            ..Self::plain(link, mtu)
        }
    }
}
