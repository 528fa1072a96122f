//! The source of time of a pump.

use fullsend_wire::Instant;

/// A source of time that never runs backwards.
///
/// A pump reads it several times in one [`Pump::poll`](crate::Pump::poll), because calls of a device take
/// time. An [`Instant`] is a clock that never advances, for simulations.
pub trait Clock {
    /// Returns the time now.
    fn now(&self) -> Instant;
}

impl Clock for Instant {
    #[inline]
    fn now(&self) -> Instant {
        *self
    }
}
