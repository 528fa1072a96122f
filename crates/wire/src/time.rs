//! Time as an argument: nanoseconds since a start that the caller chooses.

use core::fmt;
use core::ops::{Add, AddAssign, Div, Mul, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since the host's start. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

/// A span of time, in nanoseconds. Arithmetic saturates, and division by zero panics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Instant {
    /// The host's start.
    pub const ZERO: Self = Self(0);
    /// The largest instant, later than any event.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Returns the instant `ns` nanoseconds after the start.
    #[inline]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the start.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the start.
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Nanos {
    /// The empty span.
    pub const ZERO: Self = Self(0);
    /// The longest span (584 years).
    pub const MAX: Self = Self(u64::MAX);

    /// Returns a span of `ns` nanoseconds.
    #[inline]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns a span of `us` microseconds; saturates at [`Nanos::MAX`].
    #[inline]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// Returns a span of `ms` milliseconds; saturates at [`Nanos::MAX`].
    #[inline]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Returns a span of `s` seconds; saturates at [`Nanos::MAX`].
    #[inline]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds.
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the span times `by`; saturates at [`Nanos::MAX`].
    #[inline]
    #[must_use]
    pub const fn saturating_mul(self, by: u64) -> Self {
        Self(self.0.saturating_mul(by))
    }

    /// Returns the span minus `other`; zero if `other` is longer.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the absolute difference.
    #[inline]
    #[must_use]
    pub const fn abs_diff(self, other: Self) -> Self {
        Self(self.0.abs_diff(other.0))
    }
}

impl From<Duration> for Nanos {
    fn from(d: Duration) -> Self {
        Self(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(n: Nanos) -> Self {
        Self::from_nanos(n.0)
    }
}

impl Add<Nanos> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Nanos> for Instant {
    #[inline]
    fn add_assign(&mut self, span: Nanos) {
        *self = *self + span;
    }
}

impl Sub<Nanos> for Instant {
    type Output = Self;
    #[inline]
    fn sub(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Nanos {
    type Output = Self;
    #[inline]
    fn mul(self, by: u64) -> Self {
        self.saturating_mul(by)
    }
}

impl Div<u64> for Nanos {
    type Output = Self;
    #[inline]
    fn div(self, by: u64) -> Self {
        Self(self.0 / by)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from(*self), f)
    }
}

#[cfg(test)]
mod tests {
    use super::{Instant, Nanos};

    #[test]
    fn spans_saturate() {
        assert_eq!(Instant::ZERO.since(Instant::from_nanos(5)), Nanos::ZERO);
        assert_eq!(
            Instant::FAR_FUTURE + Nanos::from_secs(1),
            Instant::FAR_FUTURE
        );
        assert_eq!(Nanos::from_secs(u64::MAX), Nanos::MAX);
        assert_eq!(Nanos::from_millis(3).as_micros(), 3_000);
    }
}
