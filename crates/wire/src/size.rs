//! Sizes that must not be confused: segment size, windows in bytes and in headers, rates.

use crate::Nanos;

/// Maximum segment size: payload bytes of a full-sized segment, after subtracting options.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mss(u16);

impl Mss {
    /// The smallest MSS in use, whatever a peer or an ICMP message reports (tiny-MSS attacks).
    pub const MIN: Self = Self(48);
    /// The MSS that a peer without an MSS option accepts over IPv4 (RFC 9293 3.7.1).
    pub const DEFAULT_V4: Self = Self(536);
    /// The MSS that a peer without an MSS option accepts over IPv6 (RFC 9293 3.7.1).
    pub const DEFAULT_V6: Self = Self(1220);

    /// Returns an MSS of `bytes`, but at least [`Mss::MIN`].
    #[inline]
    pub const fn clamped(bytes: u16) -> Self {
        if bytes < Self::MIN.0 {
            Self::MIN
        } else {
            Self(bytes)
        }
    }

    /// Returns the size in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        self.0 as u32
    }

    /// Returns the size in bytes, with the width of the header field and of `gso_size`.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the number of segments for `len` bytes: `ceil(len / mss)` (spec: pcount).
    #[inline]
    pub const fn segments(self, len: u32) -> u32 {
        // A division takes longer than the rest of sizing a small segment.
        if len <= self.0 as u32 {
            return (len != 0) as u32;
        }
        len.div_ceil(self.0 as u32)
    }
}

/// A receive or send window in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Window(pub u32);

/// The window field of a TCP header, before scaling.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WireWindow(pub u16);

/// The window scale shift of RFC 7323 2.2, 0 to 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WindowScale(u8);

impl WindowScale {
    /// No scaling.
    pub const ZERO: Self = Self(0);
    /// The largest shift allowed.
    pub const MAX: Self = Self(14);

    /// Returns the shift of a received option; above 14 it is 14 (RFC 7323 2.3).
    #[inline]
    pub const fn clamped(shift: u8) -> Self {
        if shift > 14 { Self::MAX } else { Self(shift) }
    }

    /// Returns the shift count.
    #[inline]
    pub const fn shift(self) -> u8 {
        self.0
    }

    /// Returns the smallest shift with which `window` can be advertised; 14 at most.
    pub const fn for_window(window: Window) -> Self {
        let mut shift = 0;
        while shift < 14 && (window.0 >> shift) > 0xffff {
            shift += 1;
        }
        Self(shift)
    }
}

impl WireWindow {
    /// Returns the window in bytes that this field stands for.
    #[inline]
    pub const fn scaled(self, scale: WindowScale) -> Window {
        Window((self.0 as u32) << scale.0)
    }
}

impl Window {
    /// Returns the field for this window, rounded down; at most the largest field, 65535.
    #[inline]
    pub const fn to_wire(self, scale: WindowScale) -> WireWindow {
        let field = self.0 >> scale.0;
        WireWindow(if field > 0xffff { 0xffff } else { field as u16 })
    }
}

/// A rate in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rate(pub u64);

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// Returns the time that `bytes` take at this rate; zero if unlimited, and for a rate of zero.
    #[inline]
    pub const fn time_for(self, bytes: u64) -> Nanos {
        if self.0 == u64::MAX || self.0 == 0 {
            return Nanos::ZERO;
        }
        let nanos = match bytes.checked_mul(1_000_000_000) {
            Some(product) => product / self.0,
            None => (bytes as u128 * 1_000_000_000 / self.0 as u128) as u64,
        };
        Nanos::from_nanos(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::{Mss, Rate, Window, WindowScale, WireWindow};

    #[test]
    fn window_scaling_rounds_down_and_saturates() {
        let scale = WindowScale::for_window(Window(6 << 20));
        assert_eq!(scale.shift(), 7);
        assert_eq!(Window(1000).to_wire(scale), WireWindow(7));
        assert_eq!(WireWindow(7).scaled(scale), Window(896));
        assert_eq!(
            Window(u32::MAX).to_wire(WindowScale::ZERO),
            WireWindow(u16::MAX)
        );
        assert_eq!(WindowScale::clamped(200), WindowScale::MAX);
    }

    #[test]
    fn pcount_is_a_ceiling() {
        let mss = Mss::clamped(1448);
        assert_eq!(
            (mss.segments(0), mss.segments(1448), mss.segments(1449)),
            (0, 1, 2)
        );
        assert_eq!(Mss::clamped(1), Mss::MIN);
    }

    #[test]
    fn rate_gives_time() {
        assert_eq!(Rate(1_000_000).time_for(1_000).as_micros(), 1_000);
        assert_eq!(Rate::UNLIMITED.time_for(u64::MAX).as_nanos(), 0);
    }
}
