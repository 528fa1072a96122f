//! Startup and Drain (draft 5.3.1, 5.3.2): the first search for the bandwidth, and its end.

use super::{Ack, Bbr, State};

/// Growth factor per round below which the rate is on a plateau.
const GROWTH: f64 = 1.25;
/// Rounds on a plateau after which the path is full: a receive window may need some to open.
const PLATEAU_ROUNDS: u8 = 3;
/// `BBRStartupFullLossCnt`: holes in one round that indicate a full path.
const FULL_LOSS_RANGES: u32 = 6;
/// Most rounds of Drain, however wrong the estimate is.
const MAX_DRAIN_ROUNDS: u32 = 3;

/// The detection that sending faster no longer makes the path deliver faster (draft 5.3.1.2).
#[derive(Clone, Debug)]
pub(super) struct FullPipe {
    /// The rate to exceed.
    bw: f64,
    rounds: u8,
    /// Whether the present search has found the limit.
    pub(super) is_full_now: bool,
    /// Whether any search has found the limit.
    pub(super) reached: bool,
}

impl FullPipe {
    pub(super) const fn new() -> Self {
        Self {
            bw: 0.0,
            rounds: 0,
            is_full_now: false,
            reached: false,
        }
    }

    /// Begins a search from this rate.
    pub(super) const fn reset(&mut self, bw: f64) {
        self.bw = bw;
        self.rounds = 0;
        self.is_full_now = false;
    }

    pub(super) fn check(&mut self, round_start: bool, ack: &Ack<'_>) {
        if self.is_full_now || !round_start || ack.app_limited || ack.rate <= 0.0 {
            return;
        }
        if ack.rate >= self.bw * GROWTH {
            self.reset(ack.rate);
            return;
        }
        self.rounds += 1;
        self.is_full_now = self.rounds >= PLATEAU_ROUNDS;
        self.reached |= self.is_full_now;
    }
}

impl Bbr {
    pub(super) fn check_startup_done(&mut self, ack: &Ack<'_>) {
        self.check_startup_high_loss(ack);
        if self.state == State::Startup && self.full.reached {
            self.state = State::Drain;
            self.loss.on_startup_end(self.delivered);
            self.drain_start_round = self.rounds.count;
        }
    }

    /// Ends Startup after high loss over a whole round of recovery, with many holes (draft
    /// 5.3.1.3).
    fn check_startup_high_loss(&mut self, ack: &Ack<'_>) {
        if self.state != State::Startup || self.full.reached || !ack.sample.in_recovery {
            self.loss.forget_ranges_at_round_end();
            return;
        }
        let too_much = if self.sack {
            self.loss.round_start
                && self.loss.ranges >= FULL_LOSS_RANGES
                && self.is_inflight_too_high(ack)
        } else {
            self.loss.in_round
        };
        self.loss.forget_ranges_at_round_end();
        if too_much {
            self.undo.state = Some(State::Startup);
            self.full.reached = true;
            self.inflight_longterm = self.bdp(self.bw, 1.0).max(self.short_term.inflight_latest);
        }
    }

    pub(super) fn check_drain_done(&mut self, ack: &Ack<'_>) {
        if self.state != State::Drain {
            return;
        }
        let drained = ack.sample.in_flight_segs <= self.inflight(self.bw, 1.0);
        let rounds = self.rounds.count.wrapping_sub(self.drain_start_round);
        if drained || rounds > MAX_DRAIN_ROUNDS {
            self.loss.on_startup_end(self.delivered);
            self.start_down(ack.sample.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ack;
    use super::super::tests::sample;
    use super::FullPipe;

    #[test]
    fn three_rounds_without_growth_fill_the_pipe() {
        let mut full = FullPipe::new();
        let mut round = |per_second: u32, app_limited: bool| {
            let mut sample = sample(per_second);
            if let Some(flight) = &mut sample.flight {
                flight.app_limited = app_limited;
            }
            full.check(true, &Ack::of(&sample));
            full.is_full_now
        };
        assert!(
            ![100, 200, 400, 440, 480]
                .map(|r| round(r, false))
                .contains(&true)
        );
        // An application-limited sample does not count, and growth restarts the count.
        assert!(!round(100, true));
        assert!(!round(500, false));
        assert!(![510, 520].map(|r| round(r, false)).contains(&true));
        assert!(round(520, false));
    }
}
