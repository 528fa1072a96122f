//! DCTCP (RFC 8257): reduces the window by the marked share, so that the queue of a bottleneck with
//! a low marking threshold stays near that threshold.

use fullsend_wire::{Instant, SeqNum};

use super::{AckSample, Algorithm, CcInfo, CongestionEvent, Cwnd, MarkSample, Reno};

/// Unit of DCTCP.Alpha, which is a fraction of it.
const ONE: u32 = 1 << 10;
/// RFC 8257 4.2: the estimation gain g is 1/16.
const SHIFT_G: u32 = 4;
/// Least ssthresh in segments (RFC 5681 (4)).
const MIN_SSTHRESH: u32 = 2;

/// DCTCP (RFC 8257): Reno, except for the reaction to marks.
#[derive(Clone, Debug)]
pub(crate) struct Dctcp {
    reno: Reno,
    /// Average share of marked bytes, in units of [`ONE`]. Begins at its maximum, so that the first
    /// mark halves the window (RFC 8257 3.3).
    alpha: u32,
    /// End of the present window (DCTCP.WindowEnd); `None` before the first ACK.
    window_end: Option<SeqNum>,
    /// Bytes acknowledged in the present window, and those of them that were marked.
    acked_bytes: u32,
    marked_bytes: u32,
    /// The peer does not use ECN: the algorithm is Reno.
    fallback: bool,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self::new()
    }
}

impl Dctcp {
    /// Creates an instance.
    pub(crate) const fn new() -> Self {
        Self {
            reno: Reno::new(),
            alpha: ONE,
            window_end: None,
            acked_bytes: 0,
            marked_bytes: 0,
            fallback: false,
        }
    }

    /// Updates the moving average at the end of a window (RFC 8257 3.3).
    fn update_alpha(&mut self) {
        // With integers, the last units would never decay.
        let decay = match self.alpha >> SHIFT_G {
            0 => self.alpha,
            decay => decay,
        };
        let marked = u64::from(self.marked_bytes) * u64::from(ONE >> SHIFT_G);
        let share = marked / u64::from(self.acked_bytes.max(1));
        self.alpha = (self.alpha - decay + share.min(ONE.into()) as u32).min(ONE);
        (self.acked_bytes, self.marked_bytes) = (0, 0);
    }
}

impl Algorithm for Dctcp {
    fn name(&self) -> &'static str {
        if self.fallback { "dctcp-reno" } else { "dctcp" }
    }

    fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample) {
        self.reno.on_ack(window, ack);
    }

    fn ssthresh(&mut self, window: &Cwnd, event: CongestionEvent, now: Instant) -> u32 {
        if self.fallback || event != CongestionEvent::Ecn {
            // RFC 8257 3.5: the reaction to loss is Reno's.
            return self.reno.ssthresh(window, event, now);
        }
        // RFC 8257 3.3: by half of the marked share.
        let less = u64::from(window.cwnd) * u64::from(self.alpha) / u64::from(2 * ONE);
        (window.cwnd - less as u32).max(MIN_SSTHRESH)
    }

    fn reduces_at_once(&self) -> bool {
        // RFC 8257 3.3. The reduction is so small that proportional rate reduction would exceed it:
        // it also removes the part of cwnd not in flight at that moment.
        !self.fallback
    }

    fn ssthresh_of_loss_after_mark(&self, window: &Cwnd) -> u32 {
        // RFC 8257 3.5: one reduction per window, but no smaller than Reno's.
        let halved = (window.prior_cwnd / 2).max(MIN_SSTHRESH);
        window.ssthresh.min(halved)
    }

    fn needs_ecn(&self) -> bool {
        true
    }

    fn disable_ecn(&mut self) {
        self.fallback = true;
    }

    fn on_marks(&mut self, sample: &MarkSample) {
        self.acked_bytes = self.acked_bytes.saturating_add(sample.acked_bytes);
        self.marked_bytes = self.marked_bytes.saturating_add(sample.marked_bytes);
        let passed = |end| sample.snd_una.after_eq(end);
        if self.window_end.is_none_or(passed) {
            self.update_alpha();
            self.window_end = Some(sample.snd_nxt);
        }
    }

    fn info(&self) -> CcInfo {
        if self.fallback {
            return CcInfo::DctcpFallback;
        }
        CcInfo::Dctcp {
            ce_state: false,
            alpha: self.alpha,
            ab_ecn: self.marked_bytes,
            ab_tot: self.acked_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
