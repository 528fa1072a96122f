//! CUBIC (RFC 9438), with HyStart++ (RFC 9406) for its first slow start.

use alloc::boxed::Box;

use fullsend_wire::{Instant, Nanos};

use super::hystart::HyStart;
use super::{AckSample, Algorithm, CongestionEvent, Cwnd};

#[cfg(test)]
mod tests;

/// Constant C of RFC 9438 5, in segments per second cubed.
const C: f64 = 0.4;
/// Multiplicative decrease factor (RFC 9438 4.6).
const BETA: f64 = 0.7;
/// Additive increase that with this decrease is as fast as Reno's (RFC 9438 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// CUBIC (RFC 9438): the window is a cubic function of the time since the last congestion event.
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    epoch: Epoch,
    /// `epoch` and `cwnd_prior` before the last reduction, for an undo (RFC 9438 4.9); in a box, as
    /// most connections never lose a packet.
    prior: Option<Box<(Epoch, u32)>>,
    /// The time at which the last ACK arrived for a period in which the window was the limit.
    last_ack: Instant,
    /// Fraction of a segment by which the window has already grown.
    fraction: f32,
    /// cwnd before the last reduction (cwnd_prior).
    cwnd_prior: u32,
    hystart: HyStart,
}

/// One stage of congestion avoidance.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Epoch {
    /// The time at which the stage began; `FAR_FUTURE` before its first ACK.
    start: Instant,
    /// The plateau, in segments; 0: the window at the first ACK (RFC 9438 4.8).
    w_max: f32,
    /// Seconds from the start to the plateau.
    k: f32,
    /// Window of Reno in the same conditions.
    w_est: f64,
}

impl Epoch {
    const NONE: Self = Self {
        start: Instant::FAR_FUTURE,
        w_max: 0.0,
        k: 0.0,
        w_est: 0.0,
    };

    /// Returns a stage that has not begun, with this plateau.
    const fn with_w_max(w_max: f32) -> Self {
        Self {
            w_max,
            ..Self::NONE
        }
    }

    fn begin(&mut self, now: Instant, cwnd: f64) {
        self.start = now;
        self.w_est = cwnd;
        let w_max = f64::from(self.w_max);
        if cwnd < w_max {
            // RFC 9438 4.2, figure 2.
            self.k = cbrt((w_max - cwnd) / C) as f32;
        } else {
            self.k = 0.0;
            self.w_max = cwnd as f32;
        }
    }

    /// Returns the window of RFC 9438 4.2, figure 1; `t` is in seconds since the start.
    fn w_cubic(&self, t: f64) -> f64 {
        let d = t - f64::from(self.k);
        C * d * d * d + f64::from(self.w_max)
    }
}

impl Default for Cubic {
    fn default() -> Self {
        Self::new()
    }
}

impl Cubic {
    /// Creates an instance.
    pub(crate) const fn new() -> Self {
        Self {
            epoch: Epoch::NONE,
            prior: None,
            last_ack: Instant::ZERO,
            fraction: 0.0,
            cwnd_prior: 0,
            hystart: HyStart::new(),
        }
    }

    /// Excludes a period in which the window was not the limit (RFC 9438 5.8).
    fn exclude_time(&mut self, span: Nanos) {
        if self.epoch.start != Instant::FAR_FUTURE {
            self.epoch.start += span;
        }
    }

    fn avoid_congestion(&mut self, window: &mut Cwnd, ack: &AckSample, acked_segs: u32) {
        let cwnd = f64::from(window.cwnd);
        if self.epoch.start == Instant::FAR_FUTURE {
            self.epoch.begin(ack.now, cwnd);
        }
        let t = ack.now.since(self.epoch.start).as_secs_f64();
        let acked = f64::from(acked_segs);
        // RFC 9438 4.3: as fast as Reno with our decrease up to cwnd_prior, as Reno itself beyond.
        let alpha = if self.epoch.w_est >= f64::from(self.cwnd_prior) {
            1.0
        } else {
            ALPHA
        };
        self.epoch.w_est += alpha * acked / cwnd;
        let grown = if self.epoch.w_cubic(t) < self.epoch.w_est {
            self.epoch.w_est - cwnd
        } else {
            // RFC 9438 4.4 and 4.5: towards the curve's value one round trip from now, by at most
            // half of the window.
            let target = self.epoch.w_cubic(t + ack.srtt.as_secs_f64());
            let target = target.clamp(cwnd, 1.5 * cwnd);
            f64::from(self.fraction) + (target - cwnd) / cwnd * acked
        };
        let grown = grown.clamp(0.0, cwnd);
        let whole = grown as u32;
        window.cwnd = window.cwnd.saturating_add(whole);
        self.fraction = (grown - f64::from(whole)) as f32;
    }
}

impl Algorithm for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample) {
        self.exclude_time(ack.prior.since(self.last_ack));
        self.last_ack = ack.now;
        let mut acked_segs = ack.acked_segs;
        if window.in_slow_start() {
            // RFC 9406 4.3: only for the first slow start; ssthresh ends later ones.
            if window.ssthresh == u32::MAX {
                acked_segs = self.hystart.on_ack(window, ack);
            }
            acked_segs = window.slow_start(acked_segs);
        }
        if acked_segs > 0 {
            self.avoid_congestion(window, ack, acked_segs);
        }
    }

    fn ssthresh(&mut self, window: &Cwnd, event: CongestionEvent, _: Instant) -> u32 {
        let prior = self.prior.get_or_insert_with(|| Box::new((Epoch::NONE, 0)));
        **prior = (self.epoch, self.cwnd_prior);
        self.fraction = 0.0;
        self.cwnd_prior = window.cwnd;
        let cwnd = f64::from(window.cwnd);
        self.epoch = match event {
            // RFC 9438 4.8: the next stage determines its own plateau.
            CongestionEvent::Rto => Epoch::NONE,
            // RFC 9438 4.7, fast convergence: the window was smaller than last time, so a new flow
            // competes for the bandwidth.
            _ if cwnd < f64::from(self.epoch.w_max) => {
                Epoch::with_w_max((cwnd * (1.0 + BETA) / 2.0) as f32)
            }
            _ => Epoch::with_w_max(cwnd as f32),
        };
        ((cwnd * BETA) as u32).max(2)
    }

    fn on_idle_restart(&mut self, _: &Cwnd, idle: Nanos) {
        self.exclude_time(idle);
        self.last_ack += idle;
    }

    fn undo(&mut self, window: &Cwnd) -> u32 {
        let prior = self.prior.as_deref().copied();
        (self.epoch, self.cwnd_prior) = prior.unwrap_or((Epoch::NONE, 0));
        window.cwnd.max(window.prior_cwnd)
    }
}

/// Returns the cube root, for `x >= 0` (`core` has none).
fn cbrt(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // A third of the exponent is an estimate within 6 %; each Newton step squares the error.
    let mut root = f64::from_bits(x.to_bits() / 3 + 0x2a9f_7893_0000_0000);
    for _ in 0..4 {
        root = (2.0 * root + x / (root * root)) / 3.0;
    }
    root
}
