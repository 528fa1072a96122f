//! The filters of the model: round trips, maximum bandwidth, maximum aggregation.

use fullsend_wire::{Instant, Nanos};

use super::{Ack, Bbr};
use crate::congestion::Cwnd;

/// Round trips counted in packets (draft 5.5.1): one ends when a segment is delivered that was sent
/// after it began.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    /// `BBR.next_round_delivered`.
    next_delivered: u32,
    /// Whether the present ACK began a round.
    pub(super) start: bool,
    pub(super) count: u32,
}

impl Rounds {
    pub(super) const fn new() -> Self {
        Self {
            next_delivered: 0,
            start: false,
            count: 0,
        }
    }

    /// Begins a round at this number of delivered segments.
    pub(super) const fn start_at(&mut self, delivered: u32) {
        self.next_delivered = delivered;
    }

    /// Updates the round. `prior` is the number of segments delivered when the data acknowledged
    /// now was sent; `None` if nothing was acknowledged.
    fn update(&mut self, prior: Option<u32>, delivered: u32) {
        self.start = prior.is_some_and(|prior| reached(prior, self.next_delivered));
        if self.start {
            self.start_at(delivered);
            self.count = self.count.wrapping_add(1);
        }
    }
}

/// Returns whether `count`, which wraps, is not before `mark`.
pub(super) const fn reached(count: u32, mark: u32) -> bool {
    count.wrapping_sub(mark) as i32 >= 0
}

/// The maximum bandwidth of the present and the previous probing cycle (draft 5.5.6).
#[derive(Clone, Debug)]
pub(super) struct MaxBw {
    before: f64,
    present: f64,
}

impl MaxBw {
    pub(super) const fn new() -> Self {
        Self {
            before: 0.0,
            present: 0.0,
        }
    }

    pub(super) const fn get(&self) -> f64 {
        self.before.max(self.present)
    }

    /// Adds a sample. An application-limited one counts only if it exceeds the known maximum.
    fn update(&mut self, rate: f64, app_limited: bool) {
        if rate >= self.get() || !app_limited {
            self.present = self.present.max(rate);
        }
    }

    /// Ends a cycle, unless it has no samples.
    pub(super) const fn advance(&mut self) {
        if self.present > 0.0 {
            self.before = self.present;
            self.present = 0.0;
        }
    }
}

/// Rounds that each half of the filter covers after Startup (`BBR.ExtraAckedFilterLen` is twice
/// that).
const EXTRA_ACKED_HALF: u32 = 5;

/// The maximum number of segments acknowledged ahead of the bandwidth (draft 5.5.9) in the last
/// rounds, kept in two halves.
#[derive(Clone, Debug)]
pub(super) struct ExtraAcked {
    interval_start: Instant,
    delivered: u32,
    before: u32,
    present: u32,
    /// The round at which the present half began.
    since_round: u32,
}

impl ExtraAcked {
    pub(super) const fn new() -> Self {
        Self {
            interval_start: Instant::ZERO,
            delivered: 0,
            before: 0,
            present: 0,
            since_round: 0,
        }
    }

    pub(super) fn get(&self) -> u32 {
        self.before.max(self.present)
    }

    /// Restarts the interval, as idle time is no aggregation.
    pub(super) const fn restart(&mut self, now: Instant) {
        self.interval_start = now;
    }

    fn update(&mut self, now: Instant, bw: f64, newly_delivered: u32, most: u32) {
        let span: Nanos = now.since(self.interval_start);
        let mut expected = bw * span.as_secs_f64();
        if f64::from(self.delivered) <= expected {
            self.delivered = 0;
            self.interval_start = now;
            expected = 0.0;
        }
        self.delivered = self.delivered.saturating_add(newly_delivered);
        let extra = (f64::from(self.delivered) - expected).max(0.0) as u32;
        self.present = self.present.max(extra.min(most));
    }

    fn advance(&mut self, round: u32, half: u32) {
        if round.wrapping_sub(self.since_round) >= half {
            self.before = if half == 0 { 0 } else { self.present };
            self.present = 0;
            self.since_round = round;
        }
    }
}

impl Bbr {
    /// Performs `UpdateMaxBw` (draft 5.5.5).
    pub(super) fn update_max_bw(&mut self, ack: &Ack<'_>) {
        let prior = ack.sample.flight.map(|f| f.prior_delivered_segs);
        self.rounds.update(prior, self.delivered);
        if self.rounds.start {
            self.probe_bw.rounds_since_probe += 1;
        }
        if ack.rate > 0.0 {
            self.max_bw.update(ack.rate, ack.app_limited);
        }
    }

    /// Performs `UpdateACKAggregation` (draft 5.5.9).
    pub(super) fn update_aggregation(&mut self, window: &Cwnd, ack: &Ack<'_>) {
        if self.rounds.start {
            // In Startup the filter covers one round.
            let half = if self.full.reached {
                EXTRA_ACKED_HALF
            } else {
                0
            };
            self.extra_acked.advance(self.rounds.count, half);
        }
        let sample = ack.sample;
        let newly = sample.newly_delivered_segs;
        self.extra_acked
            .update(sample.now, self.bw, newly, window.cwnd);
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos};

    use super::{ExtraAcked, MaxBw, Rounds};

    #[test]
    fn a_round_ends_with_data_sent_after_it_began() {
        let mut rounds = Rounds::new();
        rounds.update(Some(0), 10);
        assert!(rounds.start);
        rounds.update(Some(9), 20);
        assert!(!rounds.start);
        rounds.update(None, 20);
        assert!(!rounds.start);
        rounds.update(Some(10), 30);
        assert!(rounds.start && rounds.count == 2);
    }

    #[test]
    fn rounds_count_on_as_the_counter_wraps() {
        let mut rounds = Rounds::new();
        rounds.start_at(u32::MAX - 1);
        rounds.update(Some(u32::MAX - 2), 3);
        assert!(!rounds.start);
        rounds.update(Some(2), 8);
        assert!(rounds.start);
    }

    #[test]
    fn the_maximum_of_two_cycles_is_used() {
        let mut filter = MaxBw::new();
        filter.update(100.0, false);
        filter.update(50.0, false);
        filter.advance();
        filter.update(60.0, false);
        assert_eq!(filter.get() as u32, 100);
        filter.advance();
        assert_eq!(filter.get() as u32, 60);
        filter.advance();
        filter.advance();
        assert_eq!(filter.get() as u32, 60, "silence proves nothing");
    }

    #[test]
    fn an_app_limited_sample_can_only_raise_the_estimate() {
        let mut filter = MaxBw::new();
        filter.update(100.0, false);
        filter.advance();
        filter.update(90.0, true);
        filter.advance();
        assert_eq!(filter.get() as u32, 100);
        filter.update(120.0, true);
        assert_eq!(filter.get() as u32, 120);
    }

    /// The path delivers 1000 segments a second, but 20 arrive every 20 ms.
    #[test]
    fn aggregation_counts_segments_acknowledged_ahead_of_the_rate() {
        let mut extra = ExtraAcked::new();
        for burst in 1..=5 {
            let now = Instant::ZERO + Nanos::from_millis(20) * burst;
            extra.update(now, 1000.0, 20, 1000);
        }
        assert_eq!(extra.get(), 20);
        extra.advance(5, 5);
        assert_eq!(extra.get(), 20);
        extra.advance(10, 5);
        assert_eq!(extra.get(), 0);
    }
}
