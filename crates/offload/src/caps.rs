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
