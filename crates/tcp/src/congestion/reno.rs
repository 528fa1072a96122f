//! Reno (RFC 5681) with appropriate byte counting.

use fullsend_wire::Instant;

use super::{AckSample, Algorithm, CongestionEvent, Cwnd};

/// Reno (RFC 5681): slow start, then one segment per round trip; half of the window on loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reno(());

impl Reno {
    /// Creates an instance.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl Algorithm for Reno {
    fn name(&self) -> &'static str {
        "reno"
    }

    fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample) {
        let mut acked_segs = ack.acked_segs;
        if window.in_slow_start() {
            acked_segs = window.slow_start(acked_segs);
        }
        if acked_segs > 0 {
            window.additive_increase(window.cwnd, acked_segs);
        }
    }

    fn ssthresh(&mut self, window: &Cwnd, _: CongestionEvent, _: Instant) -> u32 {
        // RFC 5681 (4), with cwnd instead of FlightSize, as cwnd limits what is in flight.
        (window.cwnd / 2).max(2)
    }
}
