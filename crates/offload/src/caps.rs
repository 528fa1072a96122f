//! What a device takes and gives beyond plain frames.

use crate::Link;

/// What a device takes and gives beyond plain frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// What frames begin with.
    pub link: Link,
    /// Largest IP packet on the wire, bytes.
    pub mtu: u32,
    /// Takes TCP/IPv4 super-segments.
    pub tso4: bool,
    /// Takes TCP/IPv6 super-segments.
    pub tso6: bool,
    /// Takes UDP super-segments.
    pub uso: bool,
    /// Completes transport checksums.
    pub tx_checksum: bool,
    /// Largest super-segment, IP header included, bytes.
    pub gso_max_size: u32,
}

impl Caps {
    /// How large super-segments have always been: one more than the length field of IP can tell,
    /// which TCP sees to.
    pub const GSO_MAX_SIZE: u32 = 65_536;

    /// A device that takes packets of its MTU, complete with their checksums.
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

    /// A device that cuts every kind of super-segment and completes checksums.
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
