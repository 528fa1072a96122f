//! Delivery-rate samples (draft-ietf-ccwg-bbr 4.1, formerly draft-cheng-iccrg-delivery-rate-estimation):
//! the rate at which the path delivered the last flight, and whether the application limited it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fullsend_wire::{Instant, Nanos, SeqNum, cold_path};

use super::RtxQueue;
use crate::congestion::{FlightSample, LostSegments};

/// The state of the sampler when a super-segment was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendSnapshot {
    /// Segments delivered, and lost, by then.
    delivered: u32,
    lost: u32,
    /// Segments in flight, those of the super-segment included.
    in_flight: u32,
    /// The application, not the path, limited sending.
    app_limited: bool,
    /// The time at which `delivered` had last grown.
    delivered_at: Instant,
    /// Send time of the newest super-segment delivered by then.
    first_sent: Instant,
}

/// The newest super-segment that an ACK delivered.
#[derive(Clone, Copy, Debug)]
struct Newest {
    snapshot: SendSnapshot,
    sent_at: Instant,
    end: SeqNum,
}

/// The rate in `tcp_info`.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedRate {
    delivered: u32,
    interval: Nanos,
    app_limited: bool,
}

/// The sampler of a connection whose congestion control uses delivery rates.
#[derive(Debug)]
pub(crate) struct DeliverySampler {
    /// One for each super-segment of the queue.
    snapshots: VecDeque<SendSnapshot>,
    /// Losses not yet reported to the congestion control.
    lost_segments: Vec<LostSegments>,
    /// Segments delivered, and lost, so far; both wrap.
    delivered: u32,
    lost: u32,
    delivered_at: Instant,
    first_sent: Instant,
    /// The count of delivered segments at which the gap that the application left has passed the path.
    app_limited: Option<u32>,
    newest: Option<Newest>,
    reported: ReportedRate,
}

impl DeliverySampler {
    fn new(now: Instant) -> Self {
        Self {
            snapshots: VecDeque::new(),
            lost_segments: Vec::new(),
            delivered: 0,
            lost: 0,
            delivered_at: now,
            first_sent: now,
            app_limited: None,
            newest: None,
            reported: ReportedRate::default(),
        }
    }

    pub(super) fn snapshot(&self, in_flight: u32) -> SendSnapshot {
        SendSnapshot {
            delivered: self.delivered,
            lost: self.lost,
            in_flight,
            app_limited: self.app_limited.is_some(),
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
        }
    }

    /// Records that a super-segment was sent for the first time. `idle`: no other data was outstanding,
    /// so the interval of the sample begins now.
    pub(super) fn on_sent(&mut self, at: Instant, in_flight: u32, idle: bool) {
        if idle {
            self.first_sent = at;
            self.delivered_at = at;
        }
        self.snapshots.push_back(self.snapshot(in_flight));
    }

    pub(super) fn on_entry_removed(&mut self) {
        self.snapshots.pop_front();
    }

    /// Returns the state of the sampler when super-segment `i` was first sent.
    pub(super) fn snapshot_of(&self, i: usize) -> SendSnapshot {
        self.snapshots[i]
    }

    /// Records the delivery of super-segment `i`, or of its part before `end`.
    pub(super) fn on_entry_delivered(&mut self, i: usize, sent_at: Instant, end: SeqNum) {
        self.on_data_delivered(self.snapshots[i], sent_at, end);
    }

    /// Records the delivery of data up to `end` that was sent at `sent_at` with `snapshot`.
    pub(super) fn on_data_delivered(
        &mut self,
        snapshot: SendSnapshot,
        sent_at: Instant,
        end: SeqNum,
    ) {
        let newer = self
            .newest
            .is_none_or(|n| sent_at > n.sent_at || (sent_at == n.sent_at && end.after(n.end)));
        if newer {
            self.newest = Some(Newest {
                snapshot,
                sent_at,
                end,
            });
        }
    }

    /// Records the loss of segments that were sent with `snapshot`, and `later_segs` more.
    pub(super) fn on_lost(
        &mut self,
        snapshot: SendSnapshot,
        seq: SeqNum,
        end: SeqNum,
        segs: u32,
        later_segs: u32,
    ) {
        self.lost = self.lost.wrapping_add(segs);
        self.lost_segments.push(LostSegments {
            seq,
            end,
            segs,
            lost_segs: self.lost.wrapping_sub(snapshot.lost),
            in_flight_segs: snapshot.in_flight.saturating_sub(later_segs),
            app_limited: snapshot.app_limited,
            delivered_segs: self.delivered,
            prior_delivered_segs: snapshot.delivered,
        });
    }

    pub(super) fn clear(&mut self) {
        self.snapshots.clear();
        self.lost_segments.clear();
        self.newest = None;
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn has_len(&self, entries: usize) -> bool {
        self.snapshots.len() == entries
    }

    /// Returns the number of segments delivered so far.
    pub(crate) fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Counts `segs` more delivered segments.
    pub(crate) fn on_delivered(&mut self, now: Instant, segs: u32) {
        if segs > 0 {
            self.delivered = self.delivered.wrapping_add(segs);
            self.delivered_at = now;
        }
    }

    /// Returns the sample of the flight to which the newest super-segment that the present ACK delivered
    /// belonged; `None` if it delivered no data. Samples shorter than `min_rtt` come from ambiguous
    /// retransmissions and have no rate.
    pub(crate) fn take_sample(&mut self, min_rtt: Nanos) -> Option<FlightSample> {
        let passed = |end: u32| self.delivered.wrapping_sub(end) as i32 > 0;
        if self.app_limited.is_some_and(passed) {
            self.app_limited = None;
        }
        let Newest {
            snapshot, sent_at, ..
        } = self.newest.take()?;
        let send_elapsed = sent_at.since(snapshot.first_sent);
        let ack_elapsed = self.delivered_at.since(snapshot.delivered_at);
        self.first_sent = sent_at;
        let delivered = self.delivered.wrapping_sub(snapshot.delivered);
        let interval = send_elapsed.max(ack_elapsed).max(MIN_INTERVAL);
        let sample = FlightSample {
            prior_delivered_segs: snapshot.delivered,
            delivered_segs: delivered,
            interval: (interval >= min_rtt).then_some(interval),
            lost_segs: self.lost.wrapping_sub(snapshot.lost),
            in_flight_segs: snapshot.in_flight,
            app_limited: snapshot.app_limited,
        };
        self.update_reported_rate(&sample);
        Some(sample)
    }

    /// Records the rate for `tcp_info`. As on Linux, an application-limited one only counts if it is not
    /// lower than the previous one.
    fn update_reported_rate(&mut self, sample: &FlightSample) {
        let Some(interval) = sample.interval else {
            return;
        };
        let times = |segs: u32, span: Nanos| u128::from(segs) * u128::from(span.as_nanos());
        let reported = &self.reported;
        let faster =
            times(sample.delivered_segs, reported.interval) >= times(reported.delivered, interval);
        if !sample.app_limited || faster {
            self.reported = ReportedRate {
                delivered: sample.delivered_segs,
                interval,
                app_limited: sample.app_limited,
            };
        }
    }

    /// Returns the segments of the rate in `tcp_info`, their time, and whether the application limited
    /// them.
    pub(crate) fn reported_rate(&self) -> (u32, Nanos, bool) {
        let ReportedRate {
            delivered,
            interval,
            app_limited,
        } = self.reported;
        (delivered, interval, app_limited)
    }
}

#[cfg(test)]
mod tests;

/// Least interval of a sample: a path within one machine may take less than the clock's resolution.
const MIN_INTERVAL: Nanos = Nanos::from_micros(1);

impl RtxQueue {
    /// Begins to take samples.
    pub(crate) fn start_delivery_sampling(&mut self, now: Instant) {
        if self.delivery.is_some() {
            return;
        }
        let mut delivery = DeliverySampler::new(now);
        // The intervals of data already in flight are unknown, so its samples do not count.
        let snapshot = SendSnapshot {
            app_limited: true,
            ..delivery.snapshot(self.in_flight())
        };
        delivery
            .snapshots
            .extend(self.entries.iter().map(|_| snapshot));
        self.delivery = Some(alloc::boxed::Box::new(delivery));
    }

    /// Ends sampling.
    pub(crate) fn stop_delivery_sampling(&mut self) {
        self.delivery = None;
    }

    /// Returns the sampler, if the congestion control uses one.
    #[inline]
    pub(crate) fn delivery(&self) -> Option<&DeliverySampler> {
        self.delivery.as_deref()
    }

    /// Returns the sampler of [`delivery`](Self::delivery), mutable.
    #[inline]
    pub(crate) fn delivery_mut(&mut self) -> Option<&mut DeliverySampler> {
        self.delivery.as_deref_mut()
    }

    /// Returns whether the application limits, or recently limited, the flow; `false` without a sampler.
    #[inline]
    pub(crate) fn is_app_limited(&self) -> bool {
        let Some(delivery) = &self.delivery else {
            return false;
        };
        cold_path();
        delivery.app_limited.is_some()
    }

    pub(super) fn record_sent(&mut self, at: Instant, idle: bool) {
        let in_flight = self.in_flight();
        if let Some(delivery) = &mut self.delivery {
            delivery.on_sent(at, in_flight, idle);
        }
    }

    /// Marks samples as application-limited until the data now in flight is delivered.
    pub(crate) fn mark_app_limited(&mut self) {
        let in_flight = self.in_flight();
        if let Some(delivery) = &mut self.delivery {
            delivery.app_limited = Some(delivery.delivered.wrapping_add(in_flight));
        }
    }

    /// Takes the losses since the last call. The caller returns the list's memory with
    /// [`recycle_lost`](Self::recycle_lost).
    pub(crate) fn take_lost(&mut self) -> Vec<LostSegments> {
        let delivery = self.delivery.as_deref_mut();
        delivery.map_or_else(Vec::new, |d| core::mem::take(&mut d.lost_segments))
    }

    pub(crate) fn recycle_lost(&mut self, mut lost: Vec<LostSegments>) {
        if let Some(delivery) = &mut self.delivery {
            lost.clear();
            delivery.lost_segments = lost;
        }
    }
}
