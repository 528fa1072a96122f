//! CUBIC (RFC 9438).

use fullsend_units::Instant;

use super::{AckSample, CongestionControl, CongestionEvent, Cwnd};

/// RFC 9438: a cubic function of the time since the last congestion event.
#[derive(Clone, Debug, Default)]
pub struct Cubic {}

impl Cubic {
    /// A fresh instance.
    pub const fn new() -> Self {
        Self {}
    }
}

impl CongestionControl for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample) {
        let _ = (window, ack);
        todo!()
    }

    fn ssthresh(&mut self, window: &Cwnd, event: CongestionEvent, now: Instant) -> u32 {
        let _ = (window, event, now);
        todo!()
    }
}
