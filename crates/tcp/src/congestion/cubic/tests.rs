use alloc::vec::Vec;

use fullsend_wire::{Instant, Nanos, SeqNum};

use super::super::{AckSample, Algorithm, CongestionEvent, Cwnd, Reno};
use super::{Cubic, cbrt};

/// A flow that always fills its window, with one ACK for each two segments.
struct Flow<C> {
    cc: C,
    window: Cwnd,
    now: Instant,
    /// The last ACK, or the first data after a pause.
    prior: Instant,
    rtt: Nanos,
}

impl<C: Algorithm> Flow<C> {
    fn new(cc: C, cwnd: u32, rtt_ms: u64) -> Self {
        let window = Cwnd {
            cwnd,
            ..Cwnd::default()
        };
        Self {
            cc,
            window,
            now: Instant::ZERO,
            prior: Instant::ZERO,
            rtt: Nanos::from_millis(rtt_ms),
        }
    }

    fn loss(&mut self, event: CongestionEvent) {
        let ssthresh = self.cc.ssthresh(&self.window, event, self.now);
        self.window.reduce(ssthresh);
        self.window.cwnd = if event == CongestionEvent::Rto {
            1
        } else {
            ssthresh
        };
    }

    fn round(&mut self) -> u32 {
        let acks = self.window.cwnd.div_ceil(2);
        let mut left = self.window.cwnd;
        for _ in 0..acks {
            self.now += self.rtt / u64::from(acks);
            let acked = left.min(2);
            left -= acked;
            self.ack(acked);
        }
        self.window.cwnd
    }

    fn ack(&mut self, acked_segs: u32) {
        let sample = AckSample {
            now: self.now,
            prior: self.prior,
            acked_segs,
            rtt: Some(self.rtt),
            srtt: self.rtt,
            snd_una: SeqNum::new(0),
            snd_nxt: SeqNum::new(1),
        };
        self.cc.on_ack(&mut self.window, &sample);
        self.prior = self.now;
    }

    fn rounds(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.round()).collect()
    }
}

#[test]
fn cube_roots() {
    for x in [0.0, 1e-9, 0.5, 1.0, 8.0, 27.0, 1000.0, 1e6, 1e12, 4e9] {
        let r = cbrt(x);
        assert!((r * r * r - x).abs() <= x * 1e-12, "{x}: {r}");
    }
}

#[test]
fn slow_start_doubles_each_round_trip() {
    let mut flow = Flow::new(Cubic::new(), 10, 100);
    assert_eq!(flow.rounds(4), [20, 40, 80, 160]);
}

#[test]
fn a_loss_reduces_by_three_tenths_and_saves_w_max() {
    let mut flow = Flow::new(Cubic::new(), 100, 100);
    flow.loss(CongestionEvent::Loss);
    assert_eq!((flow.window.cwnd, flow.window.ssthresh), (70, 70));
    assert_eq!(flow.cc.epoch.w_max.to_bits(), 100f32.to_bits());
    // RFC 9438 4.7: a second loss below the plateau lowers it.
    flow.loss(CongestionEvent::Loss);
    assert!((flow.cc.epoch.w_max - 59.5).abs() < 1e-4);
    // Never below two segments.
    flow.window.cwnd = 1;
    flow.loss(CongestionEvent::Ecn);
    assert_eq!(flow.window.ssthresh, 2);
}

/// RFC 9438 4.2: the window is back at the plateau K = cbrt(0.3 W_max / C) after the loss,
/// concave before and convex after.
#[test]
fn follows_the_curve_of_the_rfc() {
    let mut flow = Flow::new(Cubic::new(), 1000, 100);
    flow.loss(CongestionEvent::Loss);
    let start = flow.now;
    let curve = flow.rounds(150);
    let k = cbrt(0.3 * 1000.0 / 0.4);
    for (i, &cwnd) in curve.iter().enumerate() {
        let t = (i + 1) as f64 * 0.1;
        let want = 0.4 * (t - k) * (t - k) * (t - k) + 1000.0;
        // The increase aims one round trip ahead, and the epoch begins with the first ACK.
        let ahead = 0.4 * (t + 0.1 - k) * (t + 0.1 - k) * (t + 0.1 - k) + 1000.0;
        let (low, high) = (want.min(ahead) - 8.0, want.max(ahead) + 8.0);
        assert!(
            (low..high).contains(&f64::from(cwnd)),
            "{t}: {cwnd}, not {low}..{high}"
        );
    }
    let back = curve.iter().position(|&c| c >= 999).expect("gets back");
    assert!((start + Nanos::from_millis(100 * back as u64)).as_nanos() as f64 / 1e9 < k + 0.2);
    let step = |i: usize| curve[i] - curve[i - 1];
    assert!(step(10) > step(40) && step(140) > step(110));
}

#[test]
fn the_curve_is_pinned() {
    let mut flow = Flow::new(Cubic::new(), 200, 50);
    flow.loss(CongestionEvent::Loss);
    let curve: Vec<u32> = flow.rounds(200).into_iter().step_by(20).collect();
    assert_eq!(curve, [141, 169, 186, 195, 199, 200, 207, 227, 247, 267]);
}

/// RFC 9438 4.3: on a short path CUBIC is no slower than Reno with the same decrease.
#[test]
fn on_a_short_path_cubic_is_as_fast_as_reno() {
    let mut cubic = Flow::new(Cubic::new(), 40, 2);
    cubic.loss(CongestionEvent::Loss);
    let at_loss = cubic.window.cwnd;
    let after = cubic.rounds(20)[19];
    let gained = f64::from(after - at_loss);
    assert!((gained - 20.0 * super::ALPHA).abs() <= 2.0, "{gained}");
    // Beyond the old window it grows as Reno does, by one segment a round trip.
    cubic.rounds(40);
    let from = cubic.window.cwnd;
    assert!(from >= 40);
    assert!((9..=11).contains(&(cubic.rounds(10)[9] - from)));
}

#[test]
fn after_a_timeout_the_next_epoch_has_its_own_w_max() {
    let mut flow = Flow::new(Cubic::new(), 100, 100);
    flow.loss(CongestionEvent::Rto);
    assert_eq!((flow.window.cwnd, flow.window.ssthresh), (1, 70));
    flow.rounds(7);
    assert!(flow.window.cwnd >= 70 && flow.window.cwnd < 75);
    assert!((flow.cc.epoch.w_max - 70.0).abs() < 1.5 && flow.cc.epoch.k == 0.0);
}

#[test]
fn a_spurious_reduction_is_undone() {
    let mut flow = Flow::new(Cubic::new(), 100, 100);
    flow.loss(CongestionEvent::Loss);
    flow.rounds(30);
    let before = (flow.window, flow.cc.epoch);
    let prior = flow.cc.cwnd_prior;
    assert_ne!(prior, flow.window.cwnd);
    flow.loss(CongestionEvent::Loss);
    let cwnd = flow.cc.undo(&flow.window);
    flow.window.undo(cwnd);
    assert_eq!(flow.window.cwnd, before.0.cwnd);
    assert_eq!(flow.window.ssthresh, before.0.ssthresh);
    assert_eq!(flow.cc.epoch, before.1);
    // RFC 9438 4.3: up to there it grows more slowly than Reno.
    assert_eq!(flow.cc.cwnd_prior, prior);
}

/// RFC 9438 5.8 and RFC 7661: idle and application-limited time changes neither window nor clock.
#[test]
fn application_limited_time_does_not_count() {
    let (mut busy, mut lazy) = (
        Flow::new(Cubic::new(), 300, 50),
        Flow::new(Cubic::new(), 300, 50),
    );
    for flow in [&mut busy, &mut lazy] {
        flow.loss(CongestionEvent::Loss);
        flow.rounds(10);
    }
    for _ in 0..100 {
        // The sender does not report these ACKs.
        lazy.now += Nanos::from_millis(100);
        lazy.prior = lazy.now;
    }
    lazy.cc.on_idle_restart(&lazy.window, Nanos::from_secs(60));
    lazy.now += Nanos::from_secs(60);
    lazy.prior = lazy.now;
    assert_eq!(busy.rounds(20), lazy.rounds(20));
}

#[test]
fn a_zero_round_trip_time_is_handled() {
    let mut flow = Flow::new(Cubic::new(), 100, 0);
    flow.loss(CongestionEvent::Loss);
    let last = flow.rounds(100)[99];
    assert!((100..400).contains(&last), "{last}");
}

/// RFC 9438 4.2: the target is 1.5 times cwnd at most, however far the curve has risen, so that a
/// window's worth of ACKs grows it by a half (4.4).
#[test]
fn the_target_is_one_and_a_half_windows_at_most() {
    let mut flow = Flow::new(Cubic::new(), 200, 100);
    flow.loss(CongestionEvent::Loss);
    assert_eq!(flow.window.cwnd, 140);
    // Begins the stage.
    flow.ack(1);
    flow.now += Nanos::from_secs(1000);
    flow.ack(140);
    assert_eq!(flow.window.cwnd, 210);
    // The growth is the same with one ACK for each segment.
    for _ in 0..210 {
        flow.ack(1);
    }
    assert_eq!(flow.window.cwnd, 315);
}

#[test]
fn huge_stretch_acks_stay_within_bounds() {
    let mut flow = Flow::new(Cubic::new(), 10, 100);
    flow.loss(CongestionEvent::Loss);
    flow.now += Nanos::from_secs(1_000_000);
    flow.ack(u32::MAX);
    assert!(flow.window.cwnd <= 20);
}

/// RFC 5681: one segment a round trip, by acknowledged bytes rather than by ACKs.
#[test]
fn reno_adds_one_segment_a_round_trip_and_halves() {
    let mut flow = Flow::new(Reno::new(), 100, 100);
    flow.loss(CongestionEvent::Loss);
    assert_eq!((flow.window.cwnd, flow.window.ssthresh), (50, 50));
    assert_eq!(flow.rounds(10)[9], 60);
    flow.loss(CongestionEvent::Rto);
    assert_eq!((flow.window.cwnd, flow.window.ssthresh), (1, 30));
    assert_eq!(flow.rounds(6), [2, 4, 8, 16, 30, 31]);
}
