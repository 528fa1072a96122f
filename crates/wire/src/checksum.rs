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
/// Adding two sums gives the sum of the concatenation, provided that the first part has an even
/// length; otherwise use [`join`](Self::join).
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum(
    // Modulo 2^64 - 1, over words in native byte order: by RFC 1071 2(B) the order only matters
    // when the result is read.
    u64,
);

/// Returns the sum of `bytes`; an odd last byte counts as the high half of a word (RFC 1071 4.1).
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    Sum(kernel::sum(bytes))
}

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Self = Self(0);

    /// Returns the sum of one 16-bit word.
    #[inline]
    pub const fn word(value: u16) -> Self {
        Self(value.to_be() as u64)
    }

    /// Returns the sum of a 32-bit field at an even offset.
    #[inline]
    pub const fn dword(value: u32) -> Self {
        Self(value.to_be() as u64)
    }

    /// Returns the sum that [`fold`](Self::fold) gave `value` for, as a `Partial` checksum field
    /// holds it.
    #[inline]
    pub const fn from_folded(value: u16) -> Self {
        Self::word(value)
    }

    /// Returns the sum of the pseudo-header of TCP or UDP over IPv4 (RFC 9293 3.1).
    ///
    /// `len` is the length of the transport header and payload, in bytes.
    #[inline]
    pub const fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u32) -> Self {
        let src = u32::from_ne_bytes(src.octets()) as u64;
        let dst = u32::from_ne_bytes(dst.octets()) as u64;
        // Four values below 2^32 cannot overflow 64 bits.
        Self(src + dst + Self::dword(len).0 + Self::word(protocol as u16).0)
    }

    /// Returns the sum of the pseudo-header of an upper layer over IPv6 (RFC 8200 8.1).
    ///
    /// `len` is the length of the upper-layer header and payload, in bytes.
    #[inline]
    pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Self {
        let (s, d) = (src.octets(), dst.octets());
        Self(kernel::sum_words(&s))
            + Self(kernel::sum_words(&d))
            + Self::dword(len)
            + Self::word(u16::from(protocol))
    }

    /// Returns the sum of the IPv4 or IPv6 pseudo-header, according to the addresses.
    ///
    /// With addresses of two families the sum matches no packet.
    #[inline]
    pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> Self {
        match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => Self::pseudo_v4(s, d, protocol, len),
            (IpAddr::V6(s), IpAddr::V6(d)) => Self::pseudo_v6(s, d, protocol, len),
            (IpAddr::V4(s), IpAddr::V6(d)) => Self::pseudo_v6(s.to_ipv6_mapped(), d, protocol, len),
            (IpAddr::V6(s), IpAddr::V4(d)) => Self::pseudo_v6(s, d.to_ipv6_mapped(), protocol, len),
        }
    }

    /// Returns the sum of these bytes followed by those of `next`, which begin at an odd offset if
    /// `at_odd`.
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

    /// Returns the 16-bit sum, not complemented, as a `Partial` checksum field holds it.
    #[inline]
    pub const fn fold(self) -> u16 {
        let s = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let s = (s >> 32) + (s & 0xffff_ffff);
        let s = (s >> 16) + (s & 0xffff);
        let s = (s >> 16) + (s & 0xffff);
        u16::from_be(((s >> 16) + (s & 0xffff)) as u16)
    }

    /// Returns the checksum: the complement of the sum, as header fields carry it.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Returns the checksum as UDP carries it: 0xffff instead of 0, which means "none" (RFC 768).
    #[inline]
    pub const fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            c => c,
        }
    }

    /// Returns whether a sum that includes the checksum field is correct.
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

/// A running sum over consecutive pieces of any length.
#[derive(Clone, Copy, Default, Debug)]
pub struct RunningSum {
    sum: Sum,
    odd: bool,
}

impl RunningSum {
    /// Starts from `sum` (for example of a pseudo-header), at an even offset.
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

    /// Returns the sum of the pieces so far.
    #[inline]
    pub const fn sum(self) -> Sum {
        self.sum
    }
}

/// Returns the checksum after a 16-bit word changed from `old` to `new` (RFC 1624 eqn. 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let s = !checksum as u32 + !old as u32 + new as u32;
    let s = (s >> 16) + (s & 0xffff);
    !((s >> 16) + s) as u16
}

/// Returns the checksum after a 32-bit field at an even offset changed from `old` to `new`.
#[inline]
pub const fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    let high = update(checksum, (old >> 16) as u16, (new >> 16) as u16);
    update(high, old as u16, new as u16)
}

/// Adds in one's complement, 64 bits wide: the carry is added to the result.
#[inline]
const fn add(a: u64, b: u64) -> u64 {
    let (s, carry) = a.overflowing_add(b);
    s.wrapping_add(carry as u64)
}
