//! Samples for the tests beside the rules.

use fullsend_units::{Instant, Mss, Nanos};

use crate::congestion::{FlightSample, RateSample};

/// An ACK that tells a rate of so many segments per second, over 100 ms.
pub(super) fn sample(per_second: u32) -> RateSample {
    let delivered = per_second / 10;
    RateSample {
        now: Instant::ZERO + Nanos::from_secs(1),
        delivered_segs: delivered,
        newly_delivered_segs: 1,
        in_flight_segs: 10,
        rtt: Some(Nanos::from_millis(100)),
        srtt: Nanos::from_millis(100),
        flight: Some(FlightSample {
            prior_delivered_segs: 0,
            delivered_segs: delivered,
            interval: Some(Nanos::from_millis(100)),
            lost_segs: 0,
            in_flight_segs: 10,
            app_limited: false,
        }),
        cwnd_limited: true,
        in_recovery: false,
        sack: true,
        send_quantum_segs: 2,
        mss: Mss::clamped(1448),
    }
}
