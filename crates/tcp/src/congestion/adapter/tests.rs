use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use fullsend_wire::{Instant, Mss, Nanos, Rate, Rng, Seed};

use super::Adapter;
use crate::congestion::{
    Ack, Algorithm, CongestionControl, CongestionEvent, Cwnd, FlightSample, RateSample,
};

const MSS: Mss = Mss::clamped(1_000);
const NOW: Instant = Instant::ZERO;

/// A control whose values a test sets, and which keeps the last ACK.
#[derive(Debug, Default)]
struct Fixed {
    window: Arc<AtomicU64>,
    ssthresh: Option<u64>,
    rate: Option<Rate>,
    rounds: Arc<AtomicU64>,
    last_delivery_rate: Arc<AtomicU64>,
}

impl CongestionControl for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn window_bytes(&self) -> u64 {
        self.window.load(Ordering::Relaxed)
    }

    fn ssthresh_bytes(&self) -> Option<u64> {
        self.ssthresh
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.rate
    }

    fn on_mss(&mut self, _: u32) {}

    fn on_ack(&mut self, ack: &Ack) {
        self.rounds
            .fetch_add(ack.starts_round.into(), Ordering::Relaxed);
        if let Some(rate) = ack.delivery_rate {
            self.last_delivery_rate.store(rate.0, Ordering::Relaxed);
        }
    }

    fn on_congestion(&mut self, _: CongestionEvent, _: Instant) {}
}

/// Returns the window and the pacing rate for the values of `control`.
fn limited(control: Fixed) -> (Cwnd, Option<Rate>) {
    let mut adapter = Adapter::new(Box::new(control));
    let mut window = Cwnd::default();
    adapter.on_mss(&mut window, MSS);
    (window, adapter.pacing_rate())
}

fn sample(delivered_segs: u32, prior_delivered_segs: u32) -> RateSample {
    RateSample {
        now: NOW,
        delivered_segs,
        newly_delivered_segs: 1,
        in_flight_segs: 10,
        rtt: None,
        srtt: Nanos::ZERO,
        flight: Some(FlightSample {
            prior_delivered_segs,
            delivered_segs: delivered_segs - prior_delivered_segs,
            interval: Some(Nanos::from_millis(10)),
            lost_segs: 0,
            in_flight_segs: 10,
            app_limited: false,
        }),
        cwnd_limited: true,
        cwnd_used: true,
        in_recovery: false,
        sack: true,
        send_quantum_segs: 2,
        mss: MSS,
    }
}

#[test]
fn sizes_are_rounded_down_to_segments_and_limited() {
    let window_of = |bytes: u64, ssthresh: Option<u64>| {
        let window = Arc::new(AtomicU64::new(bytes));
        let (window, _) = limited(Fixed {
            window,
            ssthresh,
            ..Fixed::default()
        });
        (window.cwnd, window.ssthresh)
    };
    assert_eq!(window_of(25_999, Some(7_000)), (25, 7));
    assert_eq!(window_of(0, Some(0)), (1, 2));
    assert_eq!(window_of(999, None), (1, u32::MAX));
    assert_eq!(window_of(u64::MAX, Some(u64::MAX)), (1 << 24, 1 << 24));
}

/// A connection with a rate of zero would never send again.
#[test]
fn the_pacing_rate_is_at_least_a_segment_per_second() {
    let rate_of = |rate| {
        let control = Fixed {
            rate: Some(Rate(rate)),
            ..Fixed::default()
        };
        limited(control).1.map(|rate| rate.0)
    };
    assert_eq!(rate_of(0), Some(1_060));
    assert_eq!(rate_of(1_000_000), Some(1_000_000));
    assert_eq!(rate_of(u64::MAX), Some(u64::MAX));
    assert_eq!(limited(Fixed::default()).1, None);
}

#[test]
fn each_event_updates_the_window() {
    let bytes = Arc::new(AtomicU64::new(20_000));
    let mut adapter = Adapter::new(Box::new(Fixed {
        window: bytes.clone(),
        ..Fixed::default()
    }));
    let mut window = Cwnd::default();
    adapter.on_mss(&mut window, MSS);
    assert_eq!(window.cwnd, 20);
    adapter.on_mss(&mut window, Mss::clamped(500));
    assert_eq!(window.cwnd, 40);
    bytes.store(5_000, Ordering::Relaxed);
    adapter.on_tx_start(&mut window, NOW);
    assert_eq!(window.cwnd, 10);
    bytes.store(6_000, Ordering::Relaxed);
    let mut rng = Rng::new(Seed::from_u64(1));
    adapter.on_rate_sample(&mut window, &sample(1, 0), &mut rng);
    assert_eq!(window.cwnd, 12);
    bytes.store(500, Ordering::Relaxed);
    adapter.on_syn_lost(&mut window, NOW);
    assert_eq!(window.cwnd, 1);
}

#[test]
fn rounds_and_rates_follow_the_delivery_samples() {
    let control = Fixed::default();
    let (rounds, rate) = (control.rounds.clone(), control.last_delivery_rate.clone());
    let mut adapter = Adapter::new(Box::new(control));
    let (mut window, mut rng) = (Cwnd::default(), Rng::new(Seed::from_u64(1)));
    adapter.on_mss(&mut window, MSS);
    let mut ack = |delivered, prior| {
        adapter.on_rate_sample(&mut window, &sample(delivered, prior), &mut rng);
        rounds.load(Ordering::Relaxed)
    };
    assert_eq!(ack(10, 0), 1);
    assert_eq!(ack(11, 9), 1);
    assert_eq!(ack(20, 10), 2);
    // 10 segments of 1,000 bytes in 10 ms.
    assert_eq!(rate.load(Ordering::Relaxed), 1_000_000);
    assert_eq!(ack(29, 19), 2);
    assert_eq!(ack(30, 20), 3);
}
