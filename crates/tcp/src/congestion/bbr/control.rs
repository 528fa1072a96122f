//! Rate and window from the model (draft 5.6).

use fullsend_wire::{Instant, Mss, Nanos, Rate};

use super::{Bbr, INFINITE, MIN_PIPE_CWND, State};
use crate::congestion::{Cwnd, HEADERS_BYTES, INITIAL_WINDOW_SEGS};

/// `BBR.PacingMarginPercent`: slightly slower than the path, so that queues drain.
pub(super) const PACING_MARGIN: f64 = 0.99;
/// Bytes per second (1.2 Mbit/s) below which super-segments have one segment.
const MIN_TSO_RATE_BYTES: u64 = 150_000;
/// Super-segments in progress at sender, segmentation and receiver (`UpdateOffloadBudget`).
const OFFLOAD_SUPER_SEGMENTS: u32 = 3;

/// The pacing rate.
#[derive(Clone, Debug)]
pub(super) struct PacingRate {
    /// Segments per second.
    rate: f64,
    /// Whether an RTT was known when the rate was set.
    has_rtt: bool,
}

impl PacingRate {
    pub(super) const fn new() -> Self {
        // The initial window in an assumed round trip of one millisecond.
        let nominal = INITIAL_WINDOW_SEGS as f64 * 1000.0;
        Self {
            rate: State::Startup.pacing_gain() * nominal,
            has_rtt: false,
        }
    }

    /// Performs `InitPacingRate` once there is an RTT.
    pub(super) fn init(&mut self, srtt: Nanos) {
        if self.has_rtt || srtt == Nanos::ZERO {
            return;
        }
        self.has_rtt = true;
        let nominal = f64::from(INITIAL_WINDOW_SEGS) / srtt.as_secs_f64();
        self.rate = State::Startup.pacing_gain() * nominal;
    }

    /// Returns the rate in bytes per second, headers included.
    pub(super) fn wire_rate(&self, mss: Mss) -> Rate {
        let bytes = self.rate * f64::from(mss.bytes() + HEADERS_BYTES);
        Rate((bytes as u64).max(1))
    }

    pub(super) fn min_tso_segs(&self, mss: Mss) -> u32 {
        if self.wire_rate(mss).0 < MIN_TSO_RATE_BYTES {
            1
        } else {
            2
        }
    }
}

impl Bbr {
    /// Performs `SetPacingRateWithGain`: until the path was full once the rate only grows, so that
    /// a slow application does not slow the search.
    pub(super) fn set_pacing_rate(&mut self, gain: f64) {
        let rate = gain * self.bw * PACING_MARGIN;
        if self.bw > 0.0 && (self.full.reached || rate > self.pacing.rate) {
            self.pacing.rate = rate;
        }
    }

    /// Performs `HandleRestartFromIdle`: paces at exactly the path's bandwidth.
    pub(super) fn restart_from_idle(&mut self, window: &mut Cwnd, now: Instant) {
        self.idle_restart = true;
        self.extra_acked.restart(now);
        if self.state.is_probe_bw() {
            self.set_pacing_rate(1.0);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(window, now);
        }
    }

    /// Returns `BDPMultiple`: the bandwidth-delay product at `bw`, times `gain`, in segments.
    pub(super) fn bdp(&self, bw: f64, gain: f64) -> u32 {
        let Some(min_rtt) = self.min_rtt.get() else {
            return INITIAL_WINDOW_SEGS;
        };
        // Rounds up to a whole segment.
        (gain * bw * min_rtt.as_secs_f64()).min(f64::from(INFINITE / 4)) as u32 + 1
    }

    /// Performs `QuantizationBudget`: at least the amount that offloading and delayed ACKs need.
    fn apply_quantization_budget(&self, inflight: u32) -> u32 {
        let budget = OFFLOAD_SUPER_SEGMENTS.saturating_mul(self.send_quantum);
        let more = if self.state == State::Up { 2 } else { 0 };
        inflight.max(budget).max(MIN_PIPE_CWND).saturating_add(more)
    }

    /// Returns `Inflight`.
    pub(super) fn inflight(&self, bw: f64, gain: f64) -> u32 {
        self.apply_quantization_budget(self.bdp(bw, gain))
    }

    /// Performs `SetCwnd`.
    pub(super) fn set_cwnd(&self, window: &mut Cwnd, newly_delivered: u32) {
        let bdp = self.bdp(self.bw, self.state.cwnd_gain());
        let max_inflight =
            self.apply_quantization_budget(bdp.saturating_add(self.extra_acked.get()));
        let grown = window.cwnd.saturating_add(newly_delivered);
        if self.full.reached {
            window.cwnd = grown.min(max_inflight);
        } else if window.cwnd < max_inflight || self.delivered < INITIAL_WINDOW_SEGS {
            window.cwnd = grown;
        }
        window.cwnd = window.cwnd.max(MIN_PIPE_CWND);
        if self.state == State::ProbeRtt {
            window.cwnd = window.cwnd.min(self.probe_rtt_cwnd());
        }
        window.cwnd = window.cwnd.min(self.model_bound());
    }

    /// Returns the bound of `BoundCwndForModel`.
    fn model_bound(&self) -> u32 {
        let long_term = match self.state {
            State::Cruise | State::ProbeRtt => self.inflight_with_headroom(),
            State::Down | State::Refill | State::Up => self.inflight_longterm,
            State::Startup | State::Drain => INFINITE,
        };
        long_term.min(self.short_term.inflight).max(MIN_PIPE_CWND)
    }

    pub(super) fn probe_rtt_cwnd(&self) -> u32 {
        let gain = State::ProbeRtt.cwnd_gain();
        self.bdp(self.bw, gain).max(MIN_PIPE_CWND)
    }

    /// Performs `SaveCwnd`: saves the window before recovery or `ProbeRTT` reduces it.
    pub(super) fn save_cwnd(&mut self, window: &Cwnd) {
        let modulated = self.in_recovery || self.state == State::ProbeRtt;
        let kept = if modulated { self.prior_cwnd } else { 0 };
        self.prior_cwnd = kept.max(window.cwnd);
    }

    pub(super) fn restore_cwnd(&self, window: &mut Cwnd) {
        window.cwnd = window.cwnd.max(self.prior_cwnd);
    }
}
