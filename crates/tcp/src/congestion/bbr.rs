//! BBR, version 3 (draft-ietf-ccwg-bbr): paces at the bandwidth that a model of the path estimates,
//! and keeps about one bandwidth-delay product in flight.
//!
//! Each ACK gives a [`RateSample`], which updates the model, the state machine, and then rate and
//! window, in the draft's order ([`Bbr::update_model`]). Bandwidths are in segments per second,
//! amounts in segments; infinite means unlimited.

use fullsend_wire::{Instant, Mss, Nanos, Rate, Rng};

use super::{Algorithm, CcInfo, CongestionEvent, Cwnd, LostSegments, RateSample};

mod control;
mod filters;
mod loss;
mod probe_bw;
mod probe_rtt;
mod startup;
#[cfg(test)]
mod tests;

use control::PacingRate;
use filters::{ExtraAcked, MaxBw, Rounds};
use loss::{LossRound, SavedModel, ShortTerm};
use probe_bw::ProbeBw;
use probe_rtt::{MinRtt, ProbeRtt};
use startup::FullPipe;

/// An unlimited amount in flight.
const INFINITE: u32 = u32::MAX;
/// `BBR.LossThresh`: the share of segments lost in one round trip above which loss is too high.
const LOSS_THRESH: f64 = 0.02;
/// The share of lost segments that is too high even if chance could explain it.
const MAX_LOSS_THRESH: f64 = 0.05;
/// `BBR.Beta`: the least fraction of a bound that remains after the loss of one round trip.
const BETA: f64 = 0.7;
/// `BBR.MinPipeCwnd`: with fewer segments, delayed ACKs stall the flow.
const MIN_PIPE_CWND: u32 = 4;

/// The state of the search for the path's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Doubles the rate each round trip.
    Startup,
    /// Drains the queue that Startup built.
    Drain,
    /// `ProbeBW_DOWN`: sends more slowly than the path delivers.
    Down,
    /// `ProbeBW_CRUISE`: sends as fast as the path delivers.
    Cruise,
    /// `ProbeBW_REFILL`: fills the path for one round trip.
    Refill,
    /// `ProbeBW_UP`: sends faster than the path delivers.
    Up,
    /// `ProbeRTT`: halves the amount in flight, so that the queue drains and the RTT becomes
    /// visible.
    ProbeRtt,
}

impl State {
    /// Returns the pacing rate as a multiple of the bandwidth (draft 5.6.1).
    const fn pacing_gain(self) -> f64 {
        match self {
            Self::Startup => 2.77,
            Self::Drain => 0.5,
            Self::Down => 0.9,
            Self::Cruise | Self::Refill | Self::ProbeRtt => 1.0,
            Self::Up => 1.25,
        }
    }

    /// Returns the window as a multiple of the bandwidth-delay product (draft 5.6.1).
    const fn cwnd_gain(self) -> f64 {
        match self {
            Self::Up => 2.25,
            Self::ProbeRtt => 0.5,
            _ => 2.0,
        }
    }

    const fn is_probe_bw(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// Returns whether the state accelerates and expects loss.
    const fn is_probing(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }
}

/// The evaluation of one ACK.
#[derive(Clone, Copy)]
struct Ack<'a> {
    sample: &'a RateSample,
    /// Segments per second; 0 if the ACK gives no sample.
    rate: f64,
    /// Segments delivered over the sample's interval.
    delivered: u32,
    app_limited: bool,
}

impl<'a> Ack<'a> {
    fn of(sample: &'a RateSample) -> Self {
        let flight = sample.flight.as_ref();
        let interval = flight.and_then(|f| f.interval);
        let delivered = flight.map_or(0, |f| f.delivered_segs);
        Self {
            sample,
            rate: interval.map_or(0.0, |span| f64::from(delivered) / span.as_secs_f64()),
            delivered,
            app_limited: flight.is_some_and(|f| f.app_limited),
        }
    }
}

/// BBR, version 3: the state of one flow.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    state: State,
    rounds: Rounds,
    max_bw: MaxBw,
    /// The bandwidth estimate: `max_bw` within its bounds.
    bw: f64,
    /// `BBR.inflight_longterm`: with more than this in flight, segments were lost.
    inflight_longterm: u32,
    short_term: ShortTerm,
    loss: LossRound,
    undo: SavedModel,
    full: FullPipe,
    drain_start_round: u32,
    probe_bw: ProbeBw,
    min_rtt: MinRtt,
    probe_rtt: ProbeRtt,
    extra_acked: ExtraAcked,
    pacing: PacingRate,
    /// The window before recovery or `ProbeRTT` reduced it.
    prior_cwnd: u32,
    in_recovery: bool,
    /// Sending restarted after idle time, and no ACK has arrived yet.
    idle_restart: bool,
    /// Whether the peer sends SACK.
    sack: bool,
    /// Segments delivered so far.
    delivered: u32,
    send_quantum: u32,
    mss: Mss,
    /// A random number for the next decision that needs one.
    random: Option<u32>,
}

impl Default for Bbr {
    fn default() -> Self {
        Self::new()
    }
}

impl Bbr {
    /// Creates an instance.
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Startup,
            rounds: Rounds::new(),
            max_bw: MaxBw::new(),
            bw: 0.0,
            inflight_longterm: INFINITE,
            short_term: ShortTerm::new(),
            loss: LossRound::new(),
            undo: SavedModel::new(),
            full: FullPipe::new(),
            drain_start_round: 0,
            probe_bw: ProbeBw::new(),
            min_rtt: MinRtt::new(),
            probe_rtt: ProbeRtt::new(),
            extra_acked: ExtraAcked::new(),
            pacing: PacingRate::new(),
            prior_cwnd: 0,
            in_recovery: false,
            idle_restart: false,
            sack: true,
            delivered: 0,
            send_quantum: 2,
            mss: Mss::DEFAULT_V4,
            random: None,
        }
    }

    /// Performs the draft's `UpdateModelAndState` (5.2.3).
    fn update_model(&mut self, window: &mut Cwnd, ack: &Ack<'_>) {
        self.update_latest_signals(ack);
        self.update_congestion_signals(window, ack);
        self.update_aggregation(window, ack);
        self.full.check(self.rounds.start, ack);
        self.check_startup_done(ack);
        self.check_drain_done(ack);
        self.update_cycle_phase(window, ack);
        self.update_min_rtt(ack);
        self.check_probe_rtt(window, ack);
        self.advance_latest_signals(ack);
        self.bw = self.max_bw.get().min(self.short_term.bw);
    }

    fn start_round(&mut self) {
        self.rounds.start_at(self.delivered);
    }

    /// Returns a random number, at most one per ACK, so that only ACKs need entropy.
    fn take_random(&mut self) -> u32 {
        self.random.take().unwrap_or(0)
    }
}

impl Algorithm for Bbr {
    fn name(&self) -> &'static str {
        "bbr"
    }

    fn owns_cwnd(&self) -> bool {
        true
    }

    /// Does nothing: [`on_rate_sample`](Algorithm::on_rate_sample) grows the window.
    fn on_ack(&mut self, _: &mut Cwnd, _: &super::AckSample) {}

    fn on_rate_sample(&mut self, window: &mut Cwnd, sample: &RateSample, rng: &mut Rng) {
        if self.random.is_none() {
            self.random = Some(rng.next_u32());
        }
        self.delivered = sample.delivered_segs;
        self.sack = sample.sack;
        self.send_quantum = sample.send_quantum_segs;
        self.mss = sample.mss;
        self.pacing.init(sample.srtt);
        let ack = Ack::of(sample);
        self.update_model(window, &ack);
        self.set_pacing_rate(self.state.pacing_gain());
        self.set_cwnd(window, sample.newly_delivered_segs);
    }

    /// Keeps the threshold: the window follows the model.
    fn ssthresh(&mut self, window: &Cwnd, event: CongestionEvent, now: Instant) -> u32 {
        if event == CongestionEvent::Ecn {
            self.handle_mark(window, now);
        } else {
            self.save_state_upon_loss(window);
            self.in_recovery = true;
        }
        window.ssthresh
    }

    fn on_lost(&mut self, window: &Cwnd, lost: &LostSegments, now: Instant) {
        self.handle_lost(window, lost, now);
    }

    fn on_recovered(&mut self, window: &mut Cwnd) {
        if core::mem::take(&mut self.in_recovery) {
            self.restore_cwnd(window);
        }
    }

    fn undo(&mut self, window: &Cwnd) -> u32 {
        window.cwnd.max(self.prior_cwnd)
    }

    fn on_spurious_loss(&mut self, _: Instant) {
        self.in_recovery = false;
        self.handle_spurious_loss();
    }

    fn on_tx_start(&mut self, window: &mut Cwnd, now: Instant) {
        self.restart_from_idle(window, now);
    }

    fn is_self_limited(&self) -> bool {
        self.state == State::ProbeRtt
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.pacing.wire_rate(self.mss))
    }

    fn min_tso_segs(&self) -> Option<u32> {
        Some(self.pacing.min_tso_segs(self.mss))
    }

    /// Returns 3: the window is two bandwidth-delay products already, and the third is for writing
    /// ahead.
    fn sndbuf_expand(&self) -> u32 {
        3
    }

    fn info(&self) -> CcInfo {
        CcInfo::Bbr {
            bw: Rate((self.bw * f64::from(self.mss.bytes())) as u64),
            min_rtt: self.min_rtt.get().unwrap_or(Nanos::ZERO),
            pacing_gain: self.state.pacing_gain(),
            cwnd_gain: self.state.cwnd_gain(),
        }
    }
}
