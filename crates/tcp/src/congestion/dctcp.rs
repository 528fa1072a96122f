//! DCTCP (RFC 8257): the window comes down by as much as the path marks, so that the queue of a
//! bottleneck with a low threshold stays near it.

use fullsend_units::{Instant, SeqNum};

use super::{AckSample, CcInfo, CongestionControl, CongestionEvent, Cwnd, MarkSample, Reno};

/// DCTCP.Alpha is a fraction of this.
const ONE: u32 = 1 << 10;
/// RFC 8257 4.2: the estimation gain g is 1/16.
const SHIFT_G: u32 = 4;
/// RFC 5681 (4).
const LEAST_SSTHRESH: u32 = 2;

/// RFC 8257: Reno, but for what a mark means.
#[derive(Clone, Debug)]
pub struct Dctcp {
    reno: Reno,
    /// The share of bytes that were marked lately, in [`ONE`]s. Begins at its most, so that the
    /// first mark halves the window (RFC 8257 3.3).
    alpha: u32,
    /// The present window ends here (DCTCP.WindowEnd); `None` before the first ACK.
    window_end: Option<SeqNum>,
    /// Bytes of the present window that were acknowledged, and of these marked.
    acked_bytes: u32,
    marked_bytes: u32,
    /// The peer takes no part in ECN: Reno it is.
    fallback: bool,
}

impl Default for Dctcp {
    fn default() -> Self {
        Self::new()
    }
}

impl Dctcp {
    /// A fresh instance.
    pub const fn new() -> Self {
        Self {
            reno: Reno::new(),
            alpha: ONE,
            window_end: None,
            acked_bytes: 0,
            marked_bytes: 0,
            fallback: false,
        }
    }

    /// RFC 8257 3.3: a moving average over windows.
    fn update_alpha(&mut self) {
        // In whole numbers the last few would never go.
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

impl CongestionControl for Dctcp {
    fn name(&self) -> &'static str {
        if self.fallback { "dctcp-reno" } else { "dctcp" }
    }

    fn on_ack(&mut self, window: &mut Cwnd, ack: &AckSample) {
        self.reno.on_ack(window, ack);
    }

    fn ssthresh(&mut self, window: &Cwnd, event: CongestionEvent, now: Instant) -> u32 {
        if self.fallback || event != CongestionEvent::Ecn {
            // RFC 8257 3.5: a loss is a loss.
            return self.reno.ssthresh(window, event, now);
        }
        // RFC 8257 3.3: by half of what was marked.
        let less = u64::from(window.cwnd) * u64::from(self.alpha) / u64::from(2 * ONE);
        (window.cwnd - less as u32).max(LEAST_SSTHRESH)
    }

    fn reduces_at_once(&self) -> bool {
        // RFC 8257 3.3. It is so little that proportional rate reduction would take more: what was
        // not in flight just then.
        !self.fallback
    }

    fn ssthresh_of_loss_after_mark(&self, window: &Cwnd) -> u32 {
        // RFC 8257 3.5: one reduction for one window, but not a lesser one than Reno's.
        let halved = (window.prior_cwnd / 2).max(LEAST_SSTHRESH);
        window.ssthresh.min(halved)
    }

    fn needs_ecn(&self) -> bool {
        true
    }

    fn go_without_ecn(&mut self) {
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
