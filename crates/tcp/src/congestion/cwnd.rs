//! The congestion window, and arithmetic common to several algorithms.

use fullsend_wire::Nanos;

/// The initial window in segments (RFC 6928).
pub(crate) const INITIAL_WINDOW_SEGS: u32 = 10;

/// Congestion window and slow-start threshold, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::struct_field_names,
    reason = "the names of the RFCs and of Linux"
)]
pub(crate) struct Cwnd {
    /// Limit of the segments in flight.
    pub(crate) cwnd: u32,
    /// Window at which slow start ends; `u32::MAX` before the first congestion event.
    pub(crate) ssthresh: u32,
    /// Segments acknowledged towards the next increase of `cwnd` (RFC 5681 byte counting).
    pub(crate) cwnd_cnt: u32,
    /// `cwnd` before the last reduction, for an undo.
    pub(crate) prior_cwnd: u32,
    /// `ssthresh` before the last reduction, for an undo.
    pub(crate) prior_ssthresh: u32,
}

impl Default for Cwnd {
    fn default() -> Self {
        Self {
            cwnd: INITIAL_WINDOW_SEGS,
            ssthresh: u32::MAX,
            cwnd_cnt: 0,
            prior_cwnd: 0,
            prior_ssthresh: 0,
        }
    }
}

impl Cwnd {
    /// Returns whether `cwnd` is below `ssthresh` (RFC 5681 3.1).
    #[inline]
    pub(crate) const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows `cwnd` in slow start by one segment for each acknowledged one, up to `ssthresh`.
    /// Returns the rest of `acked_segs`, which belongs to congestion avoidance.
    pub(crate) fn slow_start(&mut self, acked_segs: u32) -> u32 {
        let grown = self.cwnd.saturating_add(acked_segs).min(self.ssthresh);
        let used = grown.saturating_sub(self.cwnd);
        self.cwnd = self.cwnd.max(grown);
        acked_segs - used
    }

    /// Grows `cwnd` in congestion avoidance by one segment for each `per` acknowledged ones.
    pub(crate) fn additive_increase(&mut self, per: u32, acked_segs: u32) {
        let per = per.max(1);
        let count = self.cwnd_cnt.saturating_add(acked_segs);
        self.cwnd = self.cwnd.saturating_add(count / per);
        self.cwnd_cnt = count % per;
    }

    /// Begins a reduction: saves the present values for [`undo`](Self::undo) and sets `ssthresh`.
    /// The caller reduces `cwnd` itself (PRR, or 1 after an RTO).
    pub(crate) fn reduce(&mut self, ssthresh: u32) {
        self.prior_cwnd = self.cwnd;
        self.prior_ssthresh = self.ssthresh;
        self.ssthresh = ssthresh;
        self.cwnd_cnt = 0;
    }

    /// Undoes a reduction and restores `cwnd` (from [`super::Algorithm::undo`]).
    pub(crate) fn undo(&mut self, cwnd: u32) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(self.prior_ssthresh);
    }

    /// Decays the window after an idle time longer than the RTO (RFC 2861, with RFC 6928's floor):
    /// `ssthresh` becomes at least three quarters of `cwnd`, and `cwnd` is halved once for each RTO
    /// that passed, not below the initial window.
    pub(crate) fn restart_after_idle(&mut self, idle: Nanos, rto: Nanos) {
        if idle <= rto || rto == Nanos::ZERO {
            return;
        }
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3 + self.cwnd % 4 * 3 / 4);
        let floor = self.cwnd.min(INITIAL_WINDOW_SEGS);
        let halvings = (idle.as_nanos() / rto.as_nanos()).min(31);
        self.cwnd = (self.cwnd >> halvings).max(floor);
        self.cwnd_cnt = 0;
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::Nanos;

    use super::Cwnd;

    fn window(cwnd: u32) -> Cwnd {
        Cwnd {
            cwnd,
            ..Cwnd::default()
        }
    }

    #[test]
    fn slow_start_ends_at_ssthresh_and_returns_the_rest() {
        let mut w = Cwnd {
            ssthresh: 12,
            ..window(10)
        };
        assert_eq!((w.slow_start(5), w.cwnd), (3, 12));
        assert_eq!((w.slow_start(5), w.cwnd), (5, 12));
    }

    #[test]
    fn increase_counts_fractions() {
        let mut w = window(10);
        (0..9).for_each(|_| w.additive_increase(10, 1));
        assert_eq!(w.cwnd, 10);
        w.additive_increase(10, 12);
        assert_eq!((w.cwnd, w.cwnd_cnt), (12, 1));
    }

    /// RFC 2861: halved once for each RTO; RFC 6928: not below the initial window.
    #[test]
    fn idleness_halves_once_for_each_timeout() {
        let rto = Nanos::from_millis(200);
        let mut w = window(100);
        w.restart_after_idle(rto, rto);
        assert_eq!(w.cwnd, 100);
        w.ssthresh = 20;
        w.restart_after_idle(Nanos::from_millis(500), rto);
        assert_eq!((w.cwnd, w.ssthresh), (25, 75));
        w.restart_after_idle(Nanos::from_secs(1 << 40), rto);
        assert_eq!(w.cwnd, 10);
        let mut small = window(4);
        small.restart_after_idle(Nanos::from_secs(9), rto);
        assert_eq!(small.cwnd, 4);
    }
}
