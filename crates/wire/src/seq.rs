//! TCP sequence numbers, modulo 2^32: they have "before" and "after" but no order (RFC 9293 3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A position in a TCP byte stream, modulo 2^32.
///
/// There is no `Ord`: sequence space is a circle, and only two numbers less than 2^31 apart can be
/// compared. Use [`before`](Self::before) and [`after`](Self::after).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNum(u32);

impl SeqNum {
    /// Returns the sequence number with the value of a header field.
    #[inline]
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the value for a header field.
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns whether `self` is strictly earlier in the stream than `other`.
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns whether `self` is strictly later in the stream than `other`.
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Returns whether `self` is earlier in the stream than `other`, or equal.
    #[inline]
    pub const fn before_eq(self, other: Self) -> bool {
        !self.after(other)
    }

    /// Returns whether `self` is later in the stream than `other`, or equal.
    #[inline]
    pub const fn after_eq(self, other: Self) -> bool {
        !self.before(other)
    }

    /// Returns the bytes from `earlier` to `self`; meaningful if `earlier.before_eq(self)`.
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns the signed distance in bytes: positive if `self` is after `other`.
    #[inline]
    pub const fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns whether `self` is in the half-open range `[start, start + len)`.
    #[inline]
    pub const fn in_window(self, start: Self, len: u32) -> bool {
        self.since(start) < len
    }

    /// Returns the later of the two.
    #[inline]
    #[must_use]
    pub const fn latest(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier of the two.
    #[inline]
    #[must_use]
    pub const fn earliest(self, other: Self) -> Self {
        if self.after(other) { other } else { self }
    }
}

impl Add<u32> for SeqNum {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        self.0 = self.0.wrapping_add(bytes);
    }
}

impl Sub<u32> for SeqNum {
    type Output = Self;
    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::SeqNum;

    #[test]
    fn order_wraps_around_zero() {
        let end = SeqNum::new(u32::MAX);
        let start = end + 2;
        assert_eq!(start.raw(), 1);
        assert!(end.before(start) && start.after(end));
        assert_eq!(start.since(end), 2);
        assert_eq!(end.distance(start), -2);
        assert_eq!(end.latest(start), start);
        assert_eq!(end.earliest(start), end);
    }

    #[test]
    fn window_is_half_open() {
        let start = SeqNum::new(u32::MAX - 1);
        assert!(start.in_window(start, 1));
        assert!((start + 3).in_window(start, 4));
        assert!(!(start + 4).in_window(start, 4));
        assert!(!(start - 1).in_window(start, 4));
        assert!(!start.in_window(start, 0));
    }
}
