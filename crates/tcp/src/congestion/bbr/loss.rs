//! The reaction of the model to loss (draft 5.5.10): short-term bounds while the flow is not
//! probing, a long-term bound after a probe that went too far; and their undo (draft 5.5.11).

use fullsend_wire::{Instant, SeqNum};

use super::control::PACING_MARGIN;
use super::filters::reached;
use super::{Ack, BETA, Bbr, INFINITE, LOSS_THRESH, MAX_LOSS_THRESH, State};
use crate::congestion::{Cwnd, LostSegments};

/// The delivery of the latest round, and the bounds that loss has set since the last probe.
#[derive(Clone, Debug)]
pub(super) struct ShortTerm {
    /// `BBR.bw_shortterm`; infinite: no bound.
    pub(super) bw: f64,
    /// `BBR.inflight_shortterm`.
    pub(super) inflight: u32,
    /// The maximum of the present loss round.
    bw_latest: f64,
    pub(super) inflight_latest: u32,
}

impl ShortTerm {
    pub(super) const fn new() -> Self {
        Self {
            bw: f64::INFINITY,
            inflight: INFINITE,
            bw_latest: 0.0,
            inflight_latest: 0,
        }
    }

    /// Performs `ResetShortTermModel`.
    pub(super) const fn reset(&mut self) {
        self.bw = f64::INFINITY;
        self.inflight = INFINITE;
    }

    /// Lowers the bounds once per round with loss, to what was delivered, but at most by beta.
    fn lower(&mut self, max_bw: f64, cwnd: u32, marked: bool) {
        let bw = if self.bw.is_finite() { self.bw } else { max_bw };
        let inflight = if self.inflight == INFINITE {
            cwnd
        } else {
            self.inflight
        };
        // A round that delivered everything that was paced indicates no lower bandwidth. Without
        // the margin each lossy round would reduce it by a hundredth, in favour of competing flows.
        // Marks do reduce it: they remove nothing from the queue, which would persist at the
        // marking threshold.
        let margin = if marked { 1.0 } else { PACING_MARGIN };
        let delivered = (self.bw_latest / margin).min(bw);
        self.bw = delivered.max(BETA * bw);
        self.inflight = self
            .inflight_latest
            .max((BETA * f64::from(inflight)) as u32);
    }
}

/// The rounds in which losses are counted.
#[derive(Clone, Debug)]
pub(super) struct LossRound {
    /// `BBR.is_loss_in_round`.
    pub(super) in_round: bool,
    /// Whether the present ACK began such a round.
    pub(super) round_start: bool,
    /// `BBR.loss_round_delivered`.
    round_delivered: u32,
    /// Segments delivered when the round began, and segments lost in it so far.
    delivered_at_start: u32,
    lost_segs: u32,
    /// Whether a mark began the round, or was reported in it.
    marked: bool,
    /// Separate holes detected in this round.
    pub(super) ranges: u32,
    last_end: SeqNum,
    /// Segments delivered when Startup and Drain ended; forgotten at the first probe.
    startup_end: Option<u32>,
}

impl LossRound {
    pub(super) const fn new() -> Self {
        Self {
            in_round: false,
            round_start: false,
            round_delivered: 0,
            delivered_at_start: 0,
            lost_segs: 0,
            marked: false,
            ranges: 0,
            last_end: SeqNum::new(0),
            startup_end: None,
        }
    }

    /// Records the end of Startup or Drain. The losses from the queue that they built deliberately
    /// are detected in the following round trips, and would slow these down until the next probe.
    pub(super) const fn on_startup_end(&mut self, delivered: u32) {
        self.startup_end = Some(delivered);
    }

    /// Forgets the end of Startup when a probe begins.
    pub(super) const fn forget_startup(&mut self) {
        self.startup_end = None;
    }

    /// Returns whether the lost data was sent in Startup, which has ended.
    fn is_from_startup(&self, lost: &LostSegments) -> bool {
        let end = self.startup_end;
        end.is_some_and(|end| !reached(lost.prior_delivered_segs, end))
    }

    fn record(&mut self, lost: &LostSegments) {
        self.begin(lost.delivered_segs);
        self.lost_segs = self.lost_segs.saturating_add(lost.segs);
        self.ranges += u32::from(self.ranges == 0 || lost.seq != self.last_end);
        self.last_end = lost.end;
    }

    /// Begins a round with its first loss.
    fn begin(&mut self, delivered: u32) {
        if !self.in_round {
            self.in_round = true;
            self.round_delivered = delivered;
            self.delivered_at_start = delivered;
            self.lost_segs = 0;
            self.marked = false;
        }
    }

    /// Returns whether the ending round lost more than a probe tolerates.
    fn was_too_lossy(&self, delivered: u32, sack: bool) -> bool {
        let sent = delivered
            .wrapping_sub(self.delivered_at_start)
            .saturating_add(self.lost_segs);
        self.in_round && is_loss_too_high(self.lost_segs, sent, sack)
    }

    pub(super) const fn forget_ranges_at_round_end(&mut self) {
        if self.round_start {
            self.ranges = 0;
        }
    }
}

/// The model before a loss that may prove spurious.
#[derive(Clone, Debug)]
pub(super) struct SavedModel {
    /// The state that the loss ended.
    pub(super) state: Option<State>,
    bw_shortterm: f64,
    inflight_shortterm: u32,
    inflight_longterm: u32,
}

impl SavedModel {
    pub(super) const fn new() -> Self {
        Self {
            state: None,
            bw_shortterm: 0.0,
            inflight_shortterm: 0,
            inflight_longterm: 0,
        }
    }
}

/// Returns whether more than the threshold of the data in flight was lost, and more than chance
/// explains. With a random loss of one packet in a hundred, every thirtieth flight of 400 reaches
/// the threshold of two, and each would cost bandwidth until the next probe. Therefore two standard
/// deviations more are required, where the draft requires none. As that is a large share of few
/// segments, an upper limit keeps the flow from maintaining a queue against others.
fn is_loss_too_high(lost: u32, in_flight: u32, sack: bool) -> bool {
    let tolerated = f64::from(in_flight) * LOSS_THRESH;
    let excess = f64::from(lost) - tolerated;
    let by_chance = excess > 0.0 && excess * excess > 4.0 * tolerated;
    let too_many = f64::from(lost) > f64::from(in_flight) * MAX_LOSS_THRESH;
    by_chance || too_many || (lost > 0 && !sack)
}

/// Returns the amount in flight up to the segment at which the loss crossed the threshold.
fn inflight_at_loss(lost: &LostSegments) -> u32 {
    let before = f64::from(lost.in_flight_segs.saturating_sub(lost.segs));
    let lost_before = f64::from(lost.lost_segs.saturating_sub(lost.segs));
    let prefix = (LOSS_THRESH * before - lost_before) / (1.0 - LOSS_THRESH);
    (before + prefix.max(0.0)) as u32
}

impl Bbr {
    /// Performs `IsInflightTooHigh` on the data that the present ACK delivered.
    pub(super) fn is_inflight_too_high(&self, ack: &Ack<'_>) -> bool {
        let flight = ack.sample.flight;
        flight.is_some_and(|f| is_loss_too_high(f.lost_segs, f.in_flight_segs, self.sack))
    }

    /// Performs `UpdateLatestDeliverySignals`.
    pub(super) fn update_latest_signals(&mut self, ack: &Ack<'_>) {
        let latest = &mut self.short_term;
        latest.bw_latest = latest.bw_latest.max(ack.rate);
        latest.inflight_latest = latest.inflight_latest.max(ack.delivered);
        let loss = &mut self.loss;
        loss.round_start = ack
            .sample
            .flight
            .is_some_and(|f| reached(f.prior_delivered_segs, loss.round_delivered));
        if loss.round_start {
            loss.round_delivered = self.delivered;
        }
    }

    /// Performs `AdvanceLatestDeliverySignals`.
    pub(super) fn advance_latest_signals(&mut self, ack: &Ack<'_>) {
        if self.loss.round_start {
            self.short_term.bw_latest = ack.rate;
            self.short_term.inflight_latest = ack.delivered;
        }
    }

    /// Performs `ResetCongestionSignals`.
    pub(super) const fn reset_congestion_signals(&mut self) {
        self.loss.in_round = false;
        self.short_term.bw_latest = 0.0;
        self.short_term.inflight_latest = 0;
    }

    /// Performs `UpdateCongestionSignals`.
    pub(super) fn update_congestion_signals(&mut self, window: &Cwnd, ack: &Ack<'_>) {
        self.update_max_bw(ack);
        if !self.loss.round_start {
            return;
        }
        // The draft lowers the bounds for any loss. On a path that loses one packet in a hundred by
        // chance, the flow would lose its bandwidth to others step by step until the next probe.
        if !self.state.is_probing() && self.loss.was_too_lossy(self.delivered, self.sack) {
            let marked = self.loss.marked;
            self.short_term
                .lower(self.max_bw.get(), window.cwnd, marked);
        }
        self.loss.in_round = false;
    }

    /// Performs `HandleLostPacket`.
    pub(super) fn handle_lost(&mut self, window: &Cwnd, lost: &LostSegments, now: Instant) {
        self.delivered = lost.delivered_segs;
        if self.loss.is_from_startup(lost) {
            return;
        }
        if !self.loss.in_round {
            self.save_state_upon_loss(window);
        }
        self.loss.record(lost);
        let probing = self.probe_bw.is_sample;
        if probing && is_loss_too_high(lost.lost_segs, lost.in_flight_segs, self.sack) {
            let inflight = inflight_at_loss(lost);
            self.handle_inflight_too_high(window, inflight, lost.app_limited, now);
        }
    }

    /// Processes a mark. RFC 3168 6.1.2 requires at least the reaction to a loss, so the round
    /// counts as one with more loss than the threshold. (The draft leaves ECN open.)
    pub(super) fn handle_mark(&mut self, window: &Cwnd, now: Instant) {
        self.loss.begin(self.delivered);
        self.loss.lost_segs = u32::MAX / 2;
        self.loss.marked = true;
        let inflight = self.short_term.inflight_latest;
        if self.state == State::Startup {
            self.full.reached = true;
            self.inflight_longterm = self.bdp(self.bw, 1.0).max(inflight);
        } else if self.probe_bw.is_sample {
            self.handle_inflight_too_high(window, inflight, false, now);
        }
    }

    fn handle_inflight_too_high(
        &mut self,
        window: &Cwnd,
        inflight: u32,
        app_limited: bool,
        now: Instant,
    ) {
        self.probe_bw.prev_too_high = true;
        // One reaction for each probe.
        self.probe_bw.is_sample = false;
        if !app_limited {
            let least = (f64::from(self.target_inflight(window)) * BETA) as u32;
            self.inflight_longterm = inflight.max(least);
        }
        if self.state == State::Up {
            self.undo.state = Some(State::Up);
            self.start_down(now);
        }
    }

    /// Performs `SaveStateUponLoss`.
    pub(super) fn save_state_upon_loss(&mut self, window: &Cwnd) {
        self.save_cwnd(window);
        self.undo = SavedModel {
            state: None,
            bw_shortterm: self.short_term.bw,
            inflight_shortterm: self.short_term.inflight,
            inflight_longterm: self.inflight_longterm,
        };
    }

    /// Performs `HandleSpuriousLossDetection`; the caller restores the window.
    pub(super) fn handle_spurious_loss(&mut self) {
        self.loss.in_round = false;
        self.full.reset(0.0);
        let short = &mut self.short_term;
        short.bw = short.bw.max(self.undo.bw_shortterm);
        short.inflight = short.inflight.max(self.undo.inflight_shortterm);
        self.inflight_longterm = self.inflight_longterm.max(self.undo.inflight_longterm);
        match self.undo.state.take() {
            Some(State::Startup) if self.state != State::Startup => {
                self.full.reached = false;
                if self.state != State::ProbeRtt {
                    self.state = State::Startup;
                }
            }
            Some(State::Up) if self.state != State::Up && self.state != State::ProbeRtt => {
                self.start_refill();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::SeqNum;

    use super::{LostSegments, ShortTerm, inflight_at_loss, is_loss_too_high};

    fn lost(segs: u32, lost_segs: u32, in_flight_segs: u32) -> LostSegments {
        LostSegments {
            seq: SeqNum::new(0),
            end: SeqNum::new(segs),
            segs,
            lost_segs,
            in_flight_segs,
            app_limited: false,
            delivered_segs: 0,
            prior_delivered_segs: 0,
        }
    }

    #[test]
    fn two_percent_are_tolerated_and_up_to_five_by_chance() {
        assert!(!is_loss_too_high(4, 100, true));
        assert!(is_loss_too_high(5, 100, true));
        assert!(!is_loss_too_high(28, 1000, true));
        assert!(is_loss_too_high(29, 1000, true));
        assert!(!is_loss_too_high(1, 20, true));
        assert!(is_loss_too_high(2, 10, true));
        // Chance could explain two of 20 and three of 50.
        assert!(
            is_loss_too_high(1, 10, true)
                && is_loss_too_high(2, 20, true)
                && is_loss_too_high(3, 50, true)
        );
        assert!(!is_loss_too_high(2, 50, true));
        assert!(
            is_loss_too_high(1, 100, false),
            "without SACK one is all that shows"
        );
    }

    /// Of 1000 segments in flight the last 100 were lost: the 18th of them exceeds 2 %.
    #[test]
    fn the_threshold_is_found_within_a_super_segment() {
        assert_eq!(inflight_at_loss(&lost(100, 100, 1000)), 918);
        assert_eq!(inflight_at_loss(&lost(100, 150, 1000)), 900);
    }

    #[test]
    fn a_round_with_loss_lowers_to_what_was_delivered_or_by_beta() {
        let mut model = ShortTerm::new();
        model.bw_latest = 900.0;
        model.inflight_latest = 10;
        model.lower(1000.0, 100, false);
        assert_eq!((model.bw as u32, model.inflight), (909, 70));
        model.bw_latest = 100.0;
        model.lower(1000.0, 100, false);
        assert_eq!((model.bw.round() as u32, model.inflight), (636, 49));
        // Everything paced, a hundredth below the bound, was delivered.
        model.bw_latest = 631.0;
        model.lower(1000.0, 100, false);
        assert_eq!(model.bw.round() as u32, 636);
        // Marks do reduce the bound by a hundredth.
        model.lower(1000.0, 100, true);
        assert_eq!(model.bw.round() as u32, 631);
        model.reset();
        assert!(model.bw.is_infinite());
    }
}
