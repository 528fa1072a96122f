//! The `ProbeBW` cycle (draft 5.3.3): sends more slowly than the path, as fast as it, and faster,
//! to learn the long-term bound on the amount in flight.

use fullsend_wire::{Instant, Nanos};

use super::{Ack, Bbr, INFINITE, MIN_PIPE_CWND, State};
use crate::congestion::Cwnd;

/// `BBR.Headroom`: the share of the path's volume that is left to other flows.
const HEADROOM: f64 = 0.15;
/// Limit of the rounds between probes: those of Reno with this many segments (draft 5.3.3.8).
const MAX_RENO_ROUNDS: u32 = 63;
/// The least time between probes; up to one second is added at random.
const PROBE_WAIT: Nanos = Nanos::from_secs(2);

/// The part of a probe that the present ACK belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AckPhase {
    /// No probe.
    Init,
    /// Data sent before the probe.
    Starting,
    /// Data of the probe.
    Feedback,
    /// The last round of the probe.
    Stopping,
    Refilling,
}

/// The state of the cycle.
#[derive(Clone, Debug)]
pub(super) struct ProbeBw {
    ack_phase: AckPhase,
    /// The start of the cycle, and its longest duration.
    cycle_stamp: Instant,
    wait: Nanos,
    pub(super) rounds_since_probe: u32,
    /// Whether the data acknowledged now was sent as a probe (`BBR.is_bw_probe_sample`).
    pub(super) is_sample: bool,
    /// Whether the last probe put too much in flight.
    pub(super) prev_too_high: bool,
    /// Whether the last probe was a precautionary one (draft 5.3.3.6).
    prev_precautionary: bool,
    /// Growth of the long-term bound: acknowledged segments per increment, and acknowledged so far.
    acked_per_inc: u32,
    acked: u32,
    up_rounds: u32,
}

impl ProbeBw {
    pub(super) const fn new() -> Self {
        Self {
            ack_phase: AckPhase::Init,
            cycle_stamp: Instant::ZERO,
            wait: Nanos::ZERO,
            rounds_since_probe: 0,
            is_sample: false,
            prev_too_high: false,
            prev_precautionary: false,
            acked_per_inc: INFINITE,
            acked: 0,
            up_rounds: 0,
        }
    }

    pub(super) const fn stop(&mut self) {
        self.ack_phase = AckPhase::Stopping;
    }
}

impl Bbr {
    /// Performs `UpdateProbeBWCyclePhase`.
    pub(super) fn update_cycle_phase(&mut self, window: &Cwnd, ack: &Ack<'_>) {
        if !self.full.reached || self.adapt_long_term_model(window, ack) {
            return;
        }
        let now = ack.sample.now;
        match self.state {
            State::Down | State::Cruise if self.is_time_to_probe(window, now) => {
                self.start_refill();
            }
            State::Down if self.is_time_to_cruise(ack) => self.state = State::Cruise,
            State::Refill if self.rounds.start => {
                self.probe_bw.is_sample = true;
                self.start_up(window, ack);
            }
            State::Up => self.check_up_done(window, ack),
            _ => {}
        }
    }

    /// Performs `StartProbeBW_DOWN`.
    pub(super) fn start_down(&mut self, now: Instant) {
        self.reset_congestion_signals();
        let random = self.take_random();
        let probe = &mut self.probe_bw;
        probe.acked_per_inc = INFINITE;
        // Draft 5.3.3.8: random, so that competing flows do not synchronize.
        probe.rounds_since_probe = random & 1;
        let part = u64::from(random >> 1);
        probe.wait = PROBE_WAIT + Nanos::from_nanos((part * 1_000_000_000) >> 31);
        probe.cycle_stamp = now;
        probe.ack_phase = AckPhase::Stopping;
        self.start_round();
        self.state = State::Down;
    }

    pub(super) fn start_refill(&mut self) {
        self.short_term.reset();
        self.loss.forget_startup();
        let probe = &mut self.probe_bw;
        probe.up_rounds = 0;
        probe.acked = 0;
        probe.prev_precautionary = false;
        probe.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = State::Refill;
    }

    fn start_up(&mut self, window: &Cwnd, ack: &Ack<'_>) {
        self.probe_bw.ack_phase = AckPhase::Starting;
        self.start_round();
        self.full.reset(ack.rate);
        self.state = State::Up;
        self.raise_slope(window);
    }

    fn is_time_to_probe(&self, window: &Cwnd, now: Instant) -> bool {
        let probe = &self.probe_bw;
        let reno_rounds = self.target_inflight(window).min(MAX_RENO_ROUNDS);
        now.since(probe.cycle_stamp) > probe.wait || probe.rounds_since_probe >= reno_rounds
    }

    fn is_time_to_cruise(&self, ack: &Ack<'_>) -> bool {
        let in_flight = ack.sample.in_flight_segs;
        in_flight <= self.inflight_with_headroom()
            && in_flight <= self.inflight(self.max_bw.get(), 1.0)
    }

    fn check_up_done(&mut self, window: &Cwnd, ack: &Ack<'_>) {
        if self.is_time_to_go_down(window, ack) {
            self.probe_bw.prev_too_high = false;
            self.start_down(ack.sample.now);
        }
    }

    fn is_time_to_go_down(&mut self, window: &Cwnd, ack: &Ack<'_>) -> bool {
        let bound = self.inflight_longterm;
        if self.probe_bw.prev_too_high && ack.sample.in_flight_segs >= bound {
            self.probe_bw.prev_precautionary = true;
            return true;
        }
        if ack.sample.cwnd_limited && window.cwnd >= bound {
            // The bound, not the path, limits the rate.
            self.full.reset(ack.rate);
            return false;
        }
        self.full.is_full_now
    }

    /// Returns the estimated volume of the path, at most the window, which congestion may have
    /// reduced.
    pub(super) fn target_inflight(&self, window: &Cwnd) -> u32 {
        self.bdp(self.bw, 1.0).min(window.cwnd)
    }

    /// Returns the long-term bound without the headroom for other flows.
    pub(super) fn inflight_with_headroom(&self) -> u32 {
        let bound = self.inflight_longterm;
        if bound == INFINITE {
            return INFINITE;
        }
        let headroom = ((HEADROOM * f64::from(bound)) as u32).max(1);
        bound.saturating_sub(headroom).max(MIN_PIPE_CWND)
    }

    /// Performs `RaiseInflightLongtermSlope`: 1, 2, 4, ... more segments in each round.
    fn raise_slope(&mut self, window: &Cwnd) {
        let probe = &mut self.probe_bw;
        let growth = 1 << probe.up_rounds;
        probe.up_rounds = (probe.up_rounds + 1).min(30);
        probe.acked_per_inc = (window.cwnd / growth).max(1);
    }

    /// Performs `ProbeInflightLongtermUpward`.
    fn raise_long_term(&mut self, window: &Cwnd, ack: &Ack<'_>) {
        if !ack.sample.cwnd_limited || window.cwnd < self.inflight_longterm {
            return;
        }
        let probe = &mut self.probe_bw;
        probe.acked = probe.acked.saturating_add(ack.sample.newly_delivered_segs);
        let delta = probe.acked / probe.acked_per_inc;
        probe.acked %= probe.acked_per_inc;
        self.inflight_longterm = self
            .inflight_longterm
            .saturating_add(delta)
            .min(INFINITE - 1);
        if self.rounds.start {
            self.raise_slope(window);
        }
    }

    /// Performs `AdaptLongTermModel`. Returns whether it changed the state.
    fn adapt_long_term_model(&mut self, window: &Cwnd, ack: &Ack<'_>) -> bool {
        let phase = self.probe_bw.ack_phase;
        if phase == AckPhase::Starting && self.rounds.start {
            self.probe_bw.ack_phase = AckPhase::Feedback;
        }
        if phase == AckPhase::Stopping && self.rounds.start {
            self.probe_bw.is_sample = false;
            self.probe_bw.ack_phase = AckPhase::Init;
            if self.state.is_probe_bw() && !ack.app_limited {
                self.max_bw.advance();
            }
            let probe = &self.probe_bw;
            // The precautionary probe caused no loss: a full one may follow.
            if self.state.is_probe_bw() && probe.prev_precautionary && !probe.prev_too_high {
                self.start_refill();
                return true;
            }
        }
        if self.inflight_longterm == INFINITE || self.is_inflight_too_high(ack) {
            return false;
        }
        let sent_with = ack.sample.flight.map_or(0, |f| f.in_flight_segs);
        self.inflight_longterm = self.inflight_longterm.max(sent_with);
        if self.state == State::Up {
            self.raise_long_term(window, ack);
        }
        false
    }
}
