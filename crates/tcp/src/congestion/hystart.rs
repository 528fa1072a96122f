//! HyStart++ (RFC 9406): leaves slow start when the round-trip time shows a growing queue, before
//! that queue overflows.

use fullsend_wire::{Nanos, SeqNum};

use super::{AckSample, Cwnd};

/// Bounds of the RTT increase in nanoseconds: below the first it is noise, above the second a
/// queue.
const RTT_THRESH: (u32, u32) = (4_000_000, 16_000_000);
const MIN_RTT_DIVISOR: u32 = 8;
/// Samples in a round before it is evaluated.
const N_RTT_SAMPLE: u8 = 8;
/// Divisor of slow start's growth in conservative slow start.
const CSS_GROWTH_DIVISOR: u32 = 4;
/// Rounds of conservative slow start before congestion avoidance.
const CSS_ROUNDS: u8 = 5;
/// No sample yet.
const NONE: u32 = u32::MAX;

/// The state of the first slow start. Round-trip times are in nanoseconds, at most 4.3 s.
///
/// RFC 9406's limit on the growth per ACK is omitted, as one ACK may cover a whole super-segment.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    window_end: SeqNum,
    last_round_min_rtt: u32,
    current_round_min_rtt: u32,
    /// RTT at which conservative slow start began; `NONE` outside it.
    css_baseline: u32,
    samples: u8,
    css_rounds: u8,
    /// Segments acknowledged in conservative slow start and not yet turned into growth; fewer than
    /// [`CSS_GROWTH_DIVISOR`].
    css_remainder: u8,
    started: bool,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self {
            window_end: SeqNum::new(0),
            last_round_min_rtt: NONE,
            current_round_min_rtt: NONE,
            css_baseline: NONE,
            samples: 0,
            css_rounds: 0,
            css_remainder: 0,
            started: false,
        }
    }

    /// Returns how many of `ack`'s segments the window may grow by. Ends slow start by setting
    /// `ssthresh` after [`CSS_ROUNDS`] rounds of conservative slow start.
    pub(super) fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample) -> u32 {
        if !self.started || ack.snd_una.after_eq(self.window_end) {
            self.begin_round(window, ack.snd_nxt);
        }
        if let Some(rtt) = ack.rtt {
            self.add_sample(rtt);
        }
        self.evaluate_delay();
        if self.css_baseline == NONE || !window.in_slow_start() {
            ack.acked_segs
        } else {
            self.css_growth(ack.acked_segs)
        }
    }

    /// Returns the growth in conservative slow start (RFC 9406 4.2). Divides the sum rather than
    /// each ACK, so that growth does not depend on how many segments an ACK covers.
    fn css_growth(&mut self, acked_segs: u32) -> u32 {
        let acked = acked_segs.saturating_add(self.css_remainder.into());
        self.css_remainder = (acked % CSS_GROWTH_DIVISOR) as u8;
        acked / CSS_GROWTH_DIVISOR
    }

    fn begin_round(&mut self, window: &mut Cwnd, snd_nxt: SeqNum) {
        self.started = true;
        self.window_end = snd_nxt;
        self.last_round_min_rtt = self.current_round_min_rtt;
        self.current_round_min_rtt = NONE;
        self.samples = 0;
        if self.css_baseline != NONE {
            self.css_rounds += 1;
            if self.css_rounds >= CSS_ROUNDS {
                window.ssthresh = window.cwnd;
            }
        }
    }

    fn add_sample(&mut self, rtt: Nanos) {
        let rtt = u32::try_from(rtt.as_nanos()).unwrap_or(NONE - 1);
        self.current_round_min_rtt = self.current_round_min_rtt.min(rtt);
        self.samples = self.samples.saturating_add(1);
    }

    fn evaluate_delay(&mut self) {
        let (last, current) = (self.last_round_min_rtt, self.current_round_min_rtt);
        if self.samples < N_RTT_SAMPLE || last == NONE {
            return;
        }
        if self.css_baseline == NONE {
            let (low, high) = RTT_THRESH;
            let thresh = (last / MIN_RTT_DIVISOR).clamp(low, high);
            if current >= last.saturating_add(thresh) {
                self.css_baseline = current;
                self.css_rounds = 0;
                self.css_remainder = 0;
            }
        } else if current < self.css_baseline {
            // The delay was temporary.
            self.css_baseline = NONE;
        }
    }
}

#[cfg(test)]
mod tests;
