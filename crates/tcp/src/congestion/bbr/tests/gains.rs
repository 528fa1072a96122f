//! The gains of each state (draft-ietf-ccwg-bbr 5.6.1), as rate and window show them, and the
//! effect of aggregation. Expected values are computed from the path: 1000 segments a second, 100
//! ms.

use fullsend_wire::Nanos;

use super::{Algorithm, Bbr, FlightSample, FlowDriver, RateSample, State, sample};

/// Segments per second that the path delivers.
const PATH_BW: f64 = 1000.0;
/// Volume of the path in segments.
const PATH_BDP: f64 = 100.0;
/// Ten segments are acknowledged every 10 ms: the number that arrives ahead of the rate.
const BURST: f64 = 10.0;
/// Draft 5.6.2: one percent below the path's rate.
const MARGIN: f64 = 0.99;

/// Returns the pacing rate as a multiple of the model's bandwidth, without the margin.
fn pacing_gain(bbr: &Bbr) -> f64 {
    let wire = f64::from(bbr.mss.bytes() + 60);
    let rate = bbr.pacing_rate().map_or(0.0, |rate| rate.0 as f64);
    rate / (wire * bbr.bw * MARGIN)
}

fn assert_pacing_gain(drive: &FlowDriver, gain: f64) {
    let state = drive.bbr.state;
    let found = pacing_gain(&drive.bbr);
    assert!(
        (found / gain - 1.0).abs() < 0.001,
        "{state:?}: {found}, not {gain}"
    );
}

fn assert_window(drive: &FlowDriver, segs: f64) {
    let (state, cwnd) = (drive.bbr.state, f64::from(drive.window.cwnd));
    // The model's bandwidth may be a percent off, and the amount in flight is rounded up.
    assert!(
        (cwnd - segs).abs() <= 0.01 * segs + 1.0,
        "{state:?}: {cwnd}, not {segs}"
    );
}

/// Returns a flow in its second Cruise: the effect of Startup on the model's filters has expired.
fn cruising() -> FlowDriver {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Up);
    drive.run_until(State::Cruise);
    drive
}

impl FlowDriver {
    /// Acknowledges `segs` segments at once, `span` after the previous ACK; the remaining flight
    /// fills the path, or a queue beside it.
    fn ack_at_once(&mut self, segs: u32, span: Nanos, in_flight_segs: u32) {
        self.now += span;
        self.delivered = self.delivered.wrapping_add(segs);
        self.sent.push_back(self.delivered);
        let prior = self.sent.pop_front().unwrap_or(0);
        let ack = RateSample {
            now: self.now,
            delivered_segs: self.delivered,
            newly_delivered_segs: segs,
            in_flight_segs,
            rtt: Some(self.rtt),
            srtt: self.rtt,
            flight: Some(FlightSample {
                prior_delivered_segs: prior,
                // The average delivery of the path.
                delivered_segs: 100,
                interval: Some(Nanos::from_millis(100)),
                lost_segs: 0,
                in_flight_segs,
                app_limited: false,
            }),
            ..sample(1000)
        };
        self.bbr
            .on_rate_sample(&mut self.window, &ack, &mut self.rng);
    }
}

/// Draft 5.6.2: Startup's gain applies to the initial window per round trip before the first
/// bandwidth sample, and then to the bandwidth.
#[test]
fn startup_paces_at_2_77_times_the_bandwidth() {
    let mut drive = FlowDriver::new();
    drive.bbr.pacing.init(Nanos::from_millis(100));
    let first = drive.bbr.pacing_rate().map_or(0.0, |rate| rate.0 as f64);
    // Ten segments in 100 ms.
    let wire = f64::from(drive.bbr.mss.bytes() + 60);
    assert!(
        (first / (2.77 * 100.0 * wire) - 1.0).abs() < 0.001,
        "{first}"
    );
    for _ in 0..30 {
        drive.ack();
    }
    assert_eq!(drive.bbr.state, State::Startup);
    assert!(drive.bbr.bw > 250.0, "{}", drive.bbr.bw);
    assert_pacing_gain(&drive, 2.77);
}

#[test]
fn drain_paces_at_half_the_bandwidth() {
    let mut drive = FlowDriver::new();
    for _ in 0..100 {
        // Twice the volume of the path, so that Drain is needed.
        drive.ack_at_once(10, Nanos::from_millis(10), 200);
        if drive.bbr.state == State::Drain {
            break;
        }
    }
    assert_eq!(drive.bbr.state, State::Drain);
    assert!((drive.bbr.bw / PATH_BW - 1.0).abs() < 0.02);
    assert_pacing_gain(&drive, 0.5);
}

#[test]
fn the_probing_cycle_paces_at_its_gains() {
    let mut drive = FlowDriver::new();
    for (state, gain) in [
        (State::Down, 0.9),
        (State::Cruise, 1.0),
        (State::Refill, 1.0),
        (State::Up, 1.25),
    ] {
        drive.run_until(state);
        assert_pacing_gain(&drive, gain);
    }
}

/// Draft 5.6.1: two bandwidth-delay products, 2.25 while probing for more (and two segments for
/// quantization, 5.6.4.2).
#[test]
fn the_window_is_2_bdp_and_2_25_bdp_while_probing() {
    let mut drive = cruising();
    for _ in 0..10 {
        drive.ack();
    }
    assert_eq!(drive.bbr.state, State::Cruise);
    assert_window(&drive, 2.0 * PATH_BDP + BURST);
    drive.run_until(State::Up);
    for _ in 0..10 {
        drive.ack();
    }
    assert_eq!(drive.bbr.state, State::Up);
    assert_window(&drive, 2.25 * PATH_BDP + BURST + 2.0);
}

/// Draft 5.3.4.3: half of the path's volume, so that the queue drains.
#[test]
fn probe_rtt_keeps_half_a_bdp_at_the_bandwidth() {
    let mut drive = FlowDriver::new();
    drive.run_until(State::Cruise);
    drive.rtt = Nanos::from_millis(110);
    drive.run_until(State::ProbeRtt);
    assert_pacing_gain(&drive, 1.0);
    // The longer round trip has lowered the bandwidth.
    assert_window(&drive, 0.5 * 0.1 * drive.bbr.bw);
}

/// Draft 5.5.9: segments acknowledged ahead of the bandwidth are added to the window, for ten
/// rounds at most (`BBR.ExtraAckedFilterLen`; our filter covers five to ten).
#[test]
fn aggregation_is_added_to_the_window_for_some_rounds() {
    let mut drive = cruising();
    for _ in 0..5 {
        drive.ack_at_once(60, Nanos::from_millis(60), 100);
    }
    assert_window(&drive, 2.0 * PATH_BDP + 60.0);
    // Idle time, after which the flow is no longer ahead of its rate.
    drive.ack_at_once(10, Nanos::from_millis(70), 100);
    let round = |drive: &mut FlowDriver| {
        for _ in 0..10 {
            drive.ack_at_once(10, Nanos::from_millis(10), 100);
        }
    };
    (0..4).for_each(|_| round(&mut drive));
    assert_window(&drive, 2.0 * PATH_BDP + 60.0);
    (0..7).for_each(|_| round(&mut drive));
    assert_eq!(drive.bbr.state, State::Cruise);
    assert_window(&drive, 2.0 * PATH_BDP + BURST);
}
