//! Round-trip time and the retransmission timeout (RFC 6298).

use fullsend_units::{Instant, Nanos};

/// A retransmission timeout, always within its bounds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rto(Nanos);

impl Rto {
    /// Linux's `tcp_rto_min`; RFC 6298 (2.4) would have 1 s, which fits no data centre.
    pub(crate) const MIN: Nanos = Nanos::from_millis(200);
    /// RFC 6298 (2.5) allows a maximum of at least 60 s.
    pub(crate) const MAX: Nanos = Nanos::from_secs(120);
    /// RFC 6298 (2.1).
    pub(crate) const INITIAL: Self = Self(Nanos::from_secs(1));

    /// `span`, brought within the bounds.
    pub(crate) fn clamped(span: Nanos) -> Self {
        Self(span.clamp(Self::MIN, Self::MAX))
    }

    /// As a span.
    #[inline]
    pub(crate) const fn nanos(self) -> Nanos {
        self.0
    }
}

/// Estimates a path's round-trip time and derives the timeout.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    srtt: Nanos,
    rttvar: Nanos,
    backoff: u8,
}

impl RttEstimator {
    /// Nothing known yet.
    pub(crate) const fn new() -> Self {
        Self {
            srtt: Nanos::ZERO,
            rttvar: Nanos::ZERO,
            backoff: 0,
        }
    }

    /// A round trip took `rtt` (never from a retransmitted segment: Karn). Ends any backoff.
    pub(crate) fn on_sample(&mut self, now: Instant, rtt: Nanos) {
        let _ = (now, rtt);
        todo!()
    }

    /// The timeout, backoff included.
    pub(crate) fn rto(&self) -> Rto {
        todo!()
    }

    /// RFC 6298 (5.5): the timer fired; the next timeout is twice as long.
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// New data was acknowledged.
    pub(crate) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// How often the timer fired since the last progress.
    pub(crate) const fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Smoothed round-trip time; `None` before the first sample.
    pub(crate) fn srtt(&self) -> Option<Nanos> {
        todo!()
    }

    /// Round-trip time variation; zero before the first sample.
    pub(crate) const fn rttvar(&self) -> Nanos {
        self.rttvar
    }

    /// Least round-trip time of about the last five minutes; `None` before the first sample.
    pub(crate) fn min_rtt(&self) -> Option<Nanos> {
        todo!()
    }
}
