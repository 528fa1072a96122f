//! The congestion control of one connection: an algorithm and the window that it controls.

use alloc::boxed::Box;

use fullsend_wire::{Instant, Mss, Nanos, Rng, SeqNum};

use super::adapter::Adapter;

use super::{
    AckSample, Algorithm, CongestionControl, CongestionEvent, Cubic, Cwnd, CwndUsage, LostSegments,
    MarkSample, RateSample, UnknownCongestion, by_name,
};

/// The congestion control of a connection. Its owner decides when an event happens, and the
/// algorithm by how much the window changes.
#[derive(Debug)]
pub(crate) struct Congestion {
    window: Cwnd,
    usage: CwndUsage,
    algorithm: Box<dyn Algorithm>,
}

impl Congestion {
    /// Returns the initial window under the algorithm called `name`, or CUBIC if there is none of
    /// that name.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            window: Cwnd::default(),
            usage: CwndUsage::new(),
            algorithm: by_name(name).unwrap_or_else(|_| Box::new(Cubic::new())),
        }
    }

    /// Replaces the algorithm by the one called `name`. The window stays.
    pub(crate) fn select(&mut self, name: &str) -> Result<(), UnknownCongestion> {
        self.algorithm = by_name(name)?;
        Ok(())
    }

    /// Replaces the algorithm by one of the program, with its window, for segments of `mss`.
    pub(crate) fn select_custom(&mut self, control: Box<dyn CongestionControl>, mss: Mss) {
        self.algorithm = Box::new(Adapter::new(control));
        self.on_mss(mss);
    }

    /// Returns the algorithm, for its constants and the state that it reports.
    #[inline]
    pub(crate) fn algorithm(&self) -> &dyn Algorithm {
        &*self.algorithm
    }

    /// Returns the window.
    #[inline]
    pub(crate) fn window(&self) -> &Cwnd {
        &self.window
    }

    /// Returns cwnd in segments.
    #[inline]
    pub(crate) fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// Returns ssthresh in segments.
    #[inline]
    pub(crate) fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// Sets cwnd, which proportional rate reduction and timeouts determine.
    pub(crate) fn set_cwnd(&mut self, segs: u32) {
        self.window.cwnd = segs;
    }

    /// Sets cwnd to ssthresh at the end of a reduction, unless the algorithm determines cwnd.
    pub(crate) fn set_cwnd_to_ssthresh(&mut self) {
        if !self.algorithm.owns_cwnd() && self.window.ssthresh != u32::MAX {
            self.window.cwnd = self.window.ssthresh;
        }
    }

    /// Records that new data was sent: `packets_out` segments are sent and not acknowledged,
    /// `in_flight` of them in flight.
    #[inline]
    pub(crate) fn on_sent(&mut self, una: SeqNum, nxt: SeqNum, packets_out: u32, in_flight: u32) {
        let limited = in_flight >= self.window.cwnd;
        self.usage.on_sent(una, nxt, packets_out, limited);
    }

    /// Records that the window holds unsent data back.
    #[inline]
    pub(crate) fn on_cwnd_blocked(&mut self, nxt: SeqNum, packets_out: u32) {
        self.usage.on_blocked(nxt, packets_out);
    }

    /// Returns whether the window limited sending in the present round.
    #[inline]
    pub(crate) fn is_cwnd_limited(&self) -> bool {
        self.usage.is_limited()
    }

    /// Returns whether the window may grow because it was used (RFC 7661): all of it, in slow start
    /// more than half.
    #[inline]
    pub(crate) fn was_cwnd_used(&self) -> bool {
        self.usage.is_enough(&self.window)
    }

    /// Begins a reduction: lowers ssthresh, and saves the window for [`undo`](Self::undo).
    pub(crate) fn reduce(&mut self, event: CongestionEvent, now: Instant) {
        let ssthresh = self.algorithm.ssthresh(&self.window, event, now);
        self.window.reduce(ssthresh);
        self.algorithm.sync(&mut self.window);
    }

    /// Lowers ssthresh for a loss during the reduction that a mark caused.
    pub(crate) fn reduce_for_loss_after_mark(&mut self) {
        self.window.ssthresh = self.algorithm.ssthresh_of_loss_after_mark(&self.window);
        self.algorithm.sync(&mut self.window);
    }

    /// Undoes the last reduction, which proved unnecessary.
    pub(crate) fn undo(&mut self, now: Instant) {
        let cwnd = self.algorithm.undo(&self.window);
        self.window.undo(cwnd);
        self.algorithm.on_spurious_loss(now);
        self.algorithm.sync(&mut self.window);
    }

    /// Grows the window for newly acknowledged segments.
    #[inline]
    pub(crate) fn on_ack(&mut self, sample: &AckSample) {
        self.algorithm.on_ack(&mut self.window, sample);
    }

    /// Passes a delivery-rate sample to an algorithm that models the path.
    pub(crate) fn on_rate_sample(&mut self, sample: &RateSample, rng: &mut Rng) {
        self.algorithm.on_rate_sample(&mut self.window, sample, rng);
    }

    /// Passes newly lost segments to an algorithm that models the path.
    pub(crate) fn on_lost(&mut self, lost: &[LostSegments], now: Instant) {
        for segments in lost {
            self.algorithm.on_lost(&self.window, segments, now);
        }
        if !lost.is_empty() {
            self.algorithm.sync(&mut self.window);
        }
    }

    /// Records the end of a recovery: all lost segments are delivered.
    pub(crate) fn on_recovered(&mut self) {
        self.algorithm.on_recovered(&mut self.window);
    }

    /// Sets the window after SYNs were lost, before the first data is sent.
    pub(crate) fn on_syn_lost(&mut self, now: Instant) {
        self.algorithm.on_syn_lost(&mut self.window, now);
    }

    /// Reports the payload size of a full segment to an algorithm that counts in bytes.
    pub(crate) fn on_mss(&mut self, mss: Mss) {
        self.algorithm.on_mss(&mut self.window, mss);
    }

    /// Passes the marked share of acknowledged data to an algorithm that needs ECN.
    pub(crate) fn on_marks(&mut self, sample: &MarkSample) {
        self.algorithm.on_marks(sample);
    }

    /// Adapts an algorithm that needs ECN to a peer without it.
    pub(crate) fn disable_ecn(&mut self) {
        self.algorithm.disable_ecn();
    }

    /// Records that sending begins again after the application was the limit.
    pub(crate) fn on_tx_start(&mut self, now: Instant) {
        self.algorithm.on_tx_start(&mut self.window, now);
    }

    /// Decays the window after an idle time longer than `rto` (RFC 2861).
    pub(crate) fn restart_after_idle(&mut self, idle: Nanos, rto: Nanos) {
        self.window.restart_after_idle(idle, rto);
        self.algorithm.on_idle_restart(&self.window, idle);
    }
}
