//! The state machine on a simulated path, and samples for the tests of each rule.

use alloc::collections::VecDeque;

use fullsend_wire::{Instant, Mss, Nanos, Rng, Seed, SeqNum};

use super::{Bbr, INFINITE, MIN_PIPE_CWND, State};
use crate::congestion::{Algorithm, CongestionEvent, Cwnd, FlightSample, LostSegments, RateSample};

mod gains;

/// Returns an ACK with a rate of `per_second` segments per second, over 100 ms.
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
        cwnd_used: true,
        in_recovery: false,
        sack: true,
        send_quantum_segs: 2,
        mss: Mss::clamped(1448),
    }
}

/// A path of 1000 segments a second and 100 ms, with one ACK every 10 ms.
struct FlowDriver {
    bbr: Bbr,
    window: Cwnd,
    rng: Rng,
    now: Instant,
    delivered: u32,
    /// Most segments per second that the path delivers.
    rate: u32,
    rtt: Nanos,
    lost: u32,
    app_limited: bool,
    recovering: bool,
    /// Segments delivered when the data arriving now was sent, one entry for each ACK of a round
    /// trip.
    sent: VecDeque<u32>,
}

impl FlowDriver {
    fn new() -> Self {
        Self {
            bbr: Bbr::new(),
            window: Cwnd::default(),
            rng: Rng::new(Seed::from_u64(1)),
            now: Instant::ZERO + Nanos::from_secs(1),
            delivered: 0,
            rate: 1000,
            rtt: Nanos::from_millis(100),
            lost: 0,
            app_limited: false,
            recovering: false,
            sent: (0..10).map(|_| 0).collect(),
        }
    }

    /// Processes one ACK: the flow gets what its window and the path admit.
    fn ack(&mut self) {
        self.now += Nanos::from_millis(10);
        // Decreases slightly each time, so that no ProbeRTT is needed to measure it.
        self.rtt = self.rtt.saturating_sub(Nanos::from_nanos(1));
        let newly = (self.rate / 100).min(self.window.cwnd / 10).max(1);
        self.delivered = self.delivered.wrapping_add(newly);
        self.sent.push_back(self.delivered);
        let prior = self.sent.pop_front().unwrap_or(0);
        let delivered_segs = self.delivered.wrapping_sub(prior);
        let sample = RateSample {
            now: self.now,
            delivered_segs: self.delivered,
            newly_delivered_segs: newly,
            in_flight_segs: self.window.cwnd.min(self.rate / 10),
            rtt: Some(self.rtt),
            srtt: self.rtt,
            flight: Some(FlightSample {
                prior_delivered_segs: prior,
                delivered_segs,
                interval: Some(self.rtt),
                lost_segs: self.lost,
                in_flight_segs: self.window.cwnd.min(self.rate / 10),
                app_limited: self.app_limited,
            }),
            in_recovery: self.recovering,
            ..sample(1000)
        };
        self.bbr
            .on_rate_sample(&mut self.window, &sample, &mut self.rng);
    }

    /// Runs until this state and returns the number of ACKs.
    fn run_until(&mut self, state: State) -> u32 {
        for acks in 0..2000 {
            if self.bbr.state == state {
                return acks;
            }
            self.ack();
        }
        panic!("never {state:?}: {:?}", self.bbr);
    }

    /// Reports `segs` segments lost, of which `lost` were lost since they were sent.
    fn lose(&mut self, segs: u32, lost: u32) {
        self.lose_sent_at(self.delivered, segs, lost);
    }

    /// Reports `segs` lost segments that were sent at this number of delivered segments.
    fn lose_sent_at(&mut self, prior_delivered_segs: u32, segs: u32, lost: u32) {
        let lost_segments = LostSegments {
            seq: SeqNum::new(self.delivered * 1448),
            end: SeqNum::new((self.delivered + segs) * 1448),
            segs,
            lost_segs: lost,
            in_flight_segs: self.window.cwnd,
            app_limited: self.app_limited,
            delivered_segs: self.delivered,
            prior_delivered_segs,
        };
        self.bbr.on_lost(&self.window, &lost_segments, self.now);
    }
}

#[test]
fn startup_leads_to_drain_and_the_probing_cycle() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Down);
    assert!(drive.bbr.full.reached);
    let bw = drive.bbr.bw;
    assert!((950.0..1010.0).contains(&bw), "{bw}");
    // A probe comes every two to three seconds.
    let start = drive.now;
    for state in [State::Cruise, State::Refill, State::Up] {
        drive.run_until(state);
        let most = 2.25 * 100.0 + 3.0 + f64::from(drive.bbr.extra_acked.get());
        assert!(f64::from(drive.window.cwnd) <= most, "{state:?}");
    }
    let took = drive.now.since(start).as_millis();
    assert!((2000..3300).contains(&took), "{took} ms");
    drive.run_until(State::Down);
}

#[test]
fn the_rate_in_startup_only_grows_and_later_follows_the_state() {
    let mut drive = FlowDriver::new();
    drive.ack();
    let first = drive.bbr.pacing_rate();
    drive.app_limited = true;
    drive.rate = 10;
    for _ in 0..50 {
        drive.ack();
    }
    assert_eq!(drive.bbr.pacing_rate(), first);
    assert_eq!(drive.bbr.state, State::Startup, "the application was slow");
    let mut drive = FlowDriver::new();
    drive.run_until(State::Cruise);
    let wire = 1508.0 * 0.99 * drive.bbr.bw;
    let rate = drive.bbr.pacing_rate().map_or(0.0, |rate| rate.0 as f64);
    assert!((rate / wire - 1.0).abs() < 0.001, "{rate} {wire}");
}

#[test]
fn loss_in_a_probe_sets_the_long_term_bound_and_ends_the_probe() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Up);
    drive.ack();
    let in_flight = drive.window.cwnd;
    drive.lose(1, 1);
    assert_eq!(
        (drive.bbr.state, drive.bbr.inflight_longterm),
        (State::Up, INFINITE)
    );
    drive.lose(10, 11);
    assert_eq!(drive.bbr.state, State::Down);
    let bound = drive.bbr.inflight_longterm;
    assert!((in_flight - 10..=in_flight).contains(&bound), "{bound}");
    // The window leaves headroom below it while cruising.
    drive.run_until(State::Cruise);
    drive.ack();
    assert!(
        drive.window.cwnd <= bound - bound * 15 / 100,
        "{bound} {:?}",
        drive.window
    );
}

/// The queue overflowed when Drain began, and the loss is detected while the flow cruises.
#[test]
fn losses_of_startup_do_not_slow_later_states() {
    for (late, slowed) in [(false, false), (true, true)] {
        let mut drive = FlowDriver::new();
        drive.run_until(State::Cruise);
        let sent_at = if late { drive.delivered } else { 1 };
        drive.lose_sent_at(sent_at, 40, 40);
        for _ in 0..20 {
            drive.ack();
        }
        assert_eq!(drive.bbr.state, State::Cruise);
        assert_eq!(drive.bbr.short_term.bw.is_finite(), slowed, "{late}");
    }
}

#[test]
fn a_probe_after_loss_is_cautious_and_a_full_one_follows_at_once() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Up);
    drive.lose(10, 10);
    drive.run_until(State::Refill);
    drive.bbr.inflight_longterm = 100;
    drive.run_until(State::Up);
    let acks = drive.run_until(State::Down);
    assert!(acks <= 20, "{acks}");
    let acks = drive.run_until(State::Refill);
    assert!(
        acks <= 20,
        "no harm was done: it goes on without waiting, {acks}"
    );
}

#[test]
fn loss_in_cruise_lowers_the_bounds_to_the_delivered_amount() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Cruise);
    drive.rate = 800;
    for _ in 0..30 {
        drive.ack();
    }
    assert!(drive.bbr.bw > 950.0);
    // Losses that chance explains.
    drive.lose(3, 3);
    for _ in 0..21 {
        drive.ack();
    }
    assert!(drive.bbr.bw > 950.0);
    drive.lose(10, 10);
    for _ in 0..21 {
        drive.ack();
    }
    let bw = drive.bbr.bw;
    assert!((700.0..=900.0).contains(&bw), "{bw}");
    // The next probe resets the bound.
    drive.run_until(State::Refill);
    drive.ack();
    assert!(drive.bbr.bw > 900.0);
}

#[test]
fn a_spurious_loss_is_undone() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Up);
    let cwnd = drive.window.cwnd;
    drive
        .bbr
        .ssthresh(&drive.window, CongestionEvent::Loss, drive.now);
    drive.lose(10, 10);
    assert_eq!(drive.bbr.state, State::Down);
    for _ in 0..5 {
        drive.ack();
    }
    assert_eq!(drive.bbr.undo(&drive.window), cwnd);
    drive.bbr.on_spurious_loss(drive.now);
    assert_eq!(
        (drive.bbr.state, drive.bbr.inflight_longterm),
        (State::Refill, INFINITE)
    );
}

#[test]
fn a_timeout_saves_the_window() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Cruise);
    drive.run_until(State::Refill);
    let before = drive.window;
    let ssthresh = drive
        .bbr
        .ssthresh(&drive.window, CongestionEvent::Rto, drive.now);
    assert_eq!(ssthresh, before.ssthresh);
    drive.window.cwnd = 1;
    drive.ack();
    assert_eq!(drive.window.cwnd, MIN_PIPE_CWND);
    drive.bbr.on_recovered(&mut drive.window);
    assert_eq!(drive.window.cwnd, before.cwnd);
}

/// Draft 5.3.1.3: six holes in a round trip that began in recovery, and more than 2 %.
#[test]
fn heavy_loss_ends_startup_after_a_round_of_recovery() {
    let startup_ends_with = |holes: u32, lost: u32| {
        let mut drive = FlowDriver::new();
        drive.rate = 1_000_000;
        for _ in 0..25 {
            drive.ack();
        }
        assert_eq!(drive.bbr.state, State::Startup);
        drive.recovering = true;
        drive.lost = lost;
        for hole in 0..12 {
            if hole < holes {
                drive.lose(1, hole + 1);
            }
            drive.ack();
        }
        drive
    };
    let mut ended = startup_ends_with(6, 1000);
    assert!(ended.bbr.full.reached);
    assert_ne!(ended.bbr.inflight_longterm, INFINITE);
    ended.bbr.on_spurious_loss(ended.now);
    assert_eq!(ended.bbr.state, State::Startup);
    assert!(!startup_ends_with(5, 1000).bbr.full.reached);
    assert!(!startup_ends_with(6, 1).bbr.full.reached);
}

#[test]
fn after_idle_sending_resumes_at_the_bandwidth_estimate() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Up);
    drive.now += Nanos::from_secs(20);
    drive.bbr.on_tx_start(&mut drive.window, drive.now);
    let rate = drive.bbr.pacing.wire_rate(drive.bbr.mss).0 as f64;
    assert!((rate / (1508.0 * 0.99 * drive.bbr.bw) - 1.0).abs() < 0.001);
    drive.ack();
    assert_ne!(drive.bbr.state, State::ProbeRtt, "the silence was a pause");
}

#[test]
fn probe_rtt_keeps_half_a_bdp_for_200_ms_and_restores_the_window() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Cruise);
    // A persistent queue: no RTT as low as the first.
    drive.rtt = Nanos::from_millis(110);
    drive.run_until(State::ProbeRtt);
    assert!(drive.bbr.is_self_limited());
    let before = drive.bbr.prior_cwnd;
    let start = drive.now;
    let acks = (0..200).find(|_| {
        drive.ack();
        drive.bbr.state != State::ProbeRtt
    });
    assert!(acks.is_some());
    let took = drive.now.since(start).as_millis();
    assert!((200..=450).contains(&took), "{took} ms");
    assert_eq!(drive.bbr.state, State::Cruise);
    assert!(drive.window.cwnd >= before * 9 / 10, "{:?}", drive.window);
}

/// RFC 3168 6.1.2: an echoed mark counts as too much loss; Startup ends, and the bounds are
/// lowered.
#[test]
fn a_mark_ends_startup_and_lowers_the_bounds() {
    let mut drive = FlowDriver::new();
    drive
        .bbr
        .ssthresh(&drive.window, CongestionEvent::Ecn, drive.now);
    drive.ack();
    assert_ne!(drive.bbr.state, State::Startup);
    let mut drive = FlowDriver::new();
    drive.run_until(State::Cruise);
    let before = drive.bbr.bw;
    drive.rate = 800;
    for _ in 0..12 {
        drive.ack();
    }
    drive
        .bbr
        .ssthresh(&drive.window, CongestionEvent::Ecn, drive.now);
    for _ in 0..12 {
        drive.ack();
    }
    assert!(drive.bbr.bw < 0.9 * before, "{} {before}", drive.bbr.bw);
    assert!(!drive.bbr.in_recovery);
}
