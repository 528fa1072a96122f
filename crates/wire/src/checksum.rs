//! The Internet checksum (RFC 1071): partial sums that combine, and updates (RFC 1624).
//!
//! ```
//! use fullsend_wire::checksum::{Sum, sum};
//! let whole = sum(b"some payload");
//! let parts = sum(b"some ").join(sum(b"payload"), true); // the second begins at an odd offset
//! assert_eq!(whole.checksum(), parts.checksum());
//! assert!((whole + Sum::word(whole.checksum())).is_valid());
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::{Add, AddAssign};

mod kernel;
#[cfg(test)]
mod tests;

/// A partial one's-complement sum, not yet folded to 16 bits nor complemented.
///
/// Adding two sums sums the concatenation, provided the first part's length is even; otherwise
/// use [`join`](Self::join).
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum(
    // Modulo 2^64 - 1, of words in native byte order: RFC 1071 2(B), the order does not matter
    // until the end.
    u64,
);

/// Sums `bytes`; an odd last byte counts as the high half of a word (RFC 1071 4.1).
#[inline(always)]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum(kernel::sum(bytes))
}

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// The sum of one 16-bit word.
    #[inline]
    pub const fn word(value: u16) -> Self {
        Self(value.to_be() as u64)
    }

    /// The sum of a 32-bit field at an even offset.
    #[inline]
    pub const fn dword(value: u32) -> Self {
        Self(value.to_be() as u64)
    }

    /// A sum that an earlier [`fold`](Self::fold) gave, as a `Partial` checksum field holds.
    #[inline]
    pub const fn folded(value: u16) -> Self {
        Self::word(value)
    }

    /// The pseudo-header of TCP and UDP over IPv4 (RFC 9293 3.1); `len` is that of the transport
    /// header and payload.
    #[inline]
    pub const fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u32) -> Self {
        let src = u32::from_ne_bytes(src.octets()) as u64;
        let dst = u32::from_ne_bytes(dst.octets()) as u64;
        // Four values below 2^32 cannot overflow 64 bits.
        Self(src + dst + Self::dword(len).0 + Self::word(protocol as u16).0)
    }

    /// The pseudo-header of upper layers over IPv6 (RFC 8200 8.1).
    #[inline]
    pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Self {
        let (s, d) = (src.octets(), dst.octets());
        Self(kernel::small(&s))
            + Self(kernel::small(&d))
            + Self::dword(len)
            + Self::word(u16::from(protocol))
    }

    /// Either pseudo-header; the addresses are of one family (else the sum matches nothing).
    #[inline]
    pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> Self {
        match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => Self::pseudo_v4(s, d, protocol, len),
            (IpAddr::V6(s), IpAddr::V6(d)) => Self::pseudo_v6(s, d, protocol, len),
            (IpAddr::V4(s), IpAddr::V6(d)) => Self::pseudo_v6(s.to_ipv6_mapped(), d, protocol, len),
            (IpAddr::V6(s), IpAddr::V4(d)) => Self::pseudo_v6(s, d.to_ipv6_mapped(), protocol, len),
        }
    }

    /// Appends the sum of bytes that begin at an odd offset if `at_odd`.
    #[inline]
    #[must_use]
    pub const fn join(self, next: Self, at_odd: bool) -> Self {
        // RFC 1071 2(B): a sum at an odd offset is the byte-swapped sum. A rotation by 8 is that
        // swap modulo 2^16 - 1, without folding first.
        let next = if at_odd {
            next.0.rotate_left(8)
        } else {
            next.0
        };
        Self(add(self.0, next))
    }

    /// The 16-bit sum, not complemented: what a `Partial` checksum field holds.
    #[inline]
    pub const fn fold(self) -> u16 {
        let s = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let s = (s >> 32) + (s & 0xffff_ffff);
        let s = (s >> 16) + (s & 0xffff);
        let s = (s >> 16) + (s & 0xffff);
        u16::from_be(((s >> 16) + (s & 0xffff)) as u16)
    }

    /// The checksum: complemented, as header fields carry it.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// The checksum as UDP carries it, where 0 means "none" (RFC 768).
    #[inline]
    pub const fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            c => c,
        }
    }

    /// A sum over a header whose checksum field was included is right.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

impl Add for Sum {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(add(self.0, other.0))
    }
}

impl AddAssign for Sum {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// A running sum over pieces of any length, one after the other.
#[derive(Clone, Copy, Default, Debug)]
pub struct Running {
    sum: Sum,
    odd: bool,
}

impl Running {
    /// Starts from `sum` (a pseudo-header, say), at an even offset.
    #[inline]
    pub const fn from(sum: Sum) -> Self {
        Self { sum, odd: false }
    }

    /// Appends a piece.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.sum = self.sum.join(sum(bytes), self.odd);
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// The sum so far.
    #[inline]
    pub const fn sum(self) -> Sum {
        self.sum
    }
}

/// The checksum after a 16-bit word of the data changed from `old` to `new` (RFC 1624 eqn. 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let s = !checksum as u32 + !old as u32 + new as u32;
    let s = (s >> 16) + (s & 0xffff);
    !((s >> 16) + s) as u16
}

/// The same for a 32-bit field at an even offset.
#[inline]
pub const fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    let high = update(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update(high, old as u16, new as u16)
}

/// One's-complement addition in 64 bits: the carry comes around.
#[inline(always)]
const fn add(a: u64, b: u64) -> u64 {
    let (s, carry) = a.overflowing_add(b);
    s.wrapping_add(carry as u64)
}
