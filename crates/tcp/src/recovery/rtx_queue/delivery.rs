//! Delivery-rate samples (draft-ietf-ccwg-bbr 4.1, once draft-cheng-iccrg-delivery-rate-estimation):
//! how fast the path delivered the last flight, and whether the application held it back.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fullsend_units::{Instant, Nanos, SeqNum};

use super::RtxQueue;
use crate::congestion::{FlightSample, LostUnit};

/// What was known of the path as a unit was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// Segments delivered and lost by then.
    delivered: u32,
    lost: u32,
    /// Segments in flight, the unit's own included.
    in_flight: u32,
    /// Sent while the application, not the path, was the limit.
    app_limited: bool,
    /// When `delivered` had last grown.
    delivered_at: Instant,
    /// When the unit had been sent that was the newest delivered one.
    first_sent: Instant,
}

/// The newest unit that an ACK delivered.
#[derive(Clone, Copy, Debug)]
struct Newest {
    stamp: Stamp,
    sent_at: Instant,
    end: SeqNum,
}

/// The rate that `tcp_info` tells.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    delivered: u32,
    interval: Nanos,
    app_limited: bool,
}

/// The sampler of one connection. Only those have one whose congestion control asks.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// One for each unit of the queue.
    stamps: VecDeque<Stamp>,
    /// Marked lost since the congestion control was last told.
    lost_units: Vec<LostUnit>,
    /// Segments delivered and lost so far; they wrap.
    delivered: u32,
    lost: u32,
    delivered_at: Instant,
    first_sent: Instant,
    /// Once more than this is delivered, the gap that the application left has passed the path.
    app_limited: Option<u32>,
    newest: Option<Newest>,
    told: Told,
}

impl Delivery {
    fn new(now: Instant) -> Self {
        Self {
            stamps: VecDeque::new(),
            lost_units: Vec::new(),
            delivered: 0,
            lost: 0,
            delivered_at: now,
            first_sent: now,
            app_limited: None,
            newest: None,
            told: Told::default(),
        }
    }

    pub(super) fn stamp(&self, in_flight: u32) -> Stamp {
        Stamp {
            delivered: self.delivered,
            lost: self.lost,
            in_flight,
            app_limited: self.app_limited.is_some(),
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
        }
    }

    /// A unit was sent for the first time; `idle`: nothing else was outstanding, so that the
    /// interval of the sample can begin now.
    pub(super) fn on_sent(&mut self, at: Instant, in_flight: u32, idle: bool) {
        if idle {
            self.first_sent = at;
            self.delivered_at = at;
        }
        self.stamps.push_back(self.stamp(in_flight));
    }

    pub(super) fn on_retired(&mut self) {
        self.stamps.pop_front();
    }

    /// What was known as unit `i` was first sent.
    pub(super) fn stamp_of(&self, i: usize) -> Stamp {
        self.stamps[i]
    }

    /// Unit `i`, or its part before `end`, has arrived.
    pub(super) fn on_arrived(&mut self, i: usize, sent_at: Instant, end: SeqNum) {
        self.on_copy_arrived(self.stamps[i], sent_at, end);
    }

    /// What was sent at `sent_at` has arrived, up to `end`.
    pub(super) fn on_copy_arrived(&mut self, stamp: Stamp, sent_at: Instant, end: SeqNum) {
        let newer = self
            .newest
            .is_none_or(|n| sent_at > n.sent_at || (sent_at == n.sent_at && end.after(n.end)));
        if newer {
            self.newest = Some(Newest {
                stamp,
                sent_at,
                end,
            });
        }
    }

    /// Segments of a unit are lost that were sent with `stamp`, and `behind` more.
    pub(super) fn on_lost(
        &mut self,
        stamp: Stamp,
        seq: SeqNum,
        end: SeqNum,
        segs: u32,
        behind: u32,
    ) {
        self.lost = self.lost.wrapping_add(segs);
        self.lost_units.push(LostUnit {
            seq,
            end,
            segs,
            lost_segs: self.lost.wrapping_sub(stamp.lost),
            in_flight_segs: stamp.in_flight.saturating_sub(behind),
            app_limited: stamp.app_limited,
            delivered_segs: self.delivered,
            prior_delivered_segs: stamp.delivered,
        });
    }

    pub(super) fn clear(&mut self) {
        self.stamps.clear();
        self.lost_units.clear();
        self.newest = None;
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn is_for(&self, units: usize) -> bool {
        self.stamps.len() == units
    }

    /// Segments delivered so far.
    pub(crate) fn delivered(&self) -> u32 {
        self.delivered
    }

    /// An ACK told of `segs` more segments that have arrived.
    pub(crate) fn on_delivered(&mut self, now: Instant, segs: u32) {
        if segs > 0 {
            self.delivered = self.delivered.wrapping_add(segs);
            self.delivered_at = now;
        }
    }

    /// What the present ACK tells of the flight that its newest unit belonged to; `None` if it
    /// delivered nothing. Samples shorter than `min_rtt` come from ambiguous retransmissions and
    /// tell no rate.
    pub(crate) fn take_sample(&mut self, min_rtt: Nanos) -> Option<FlightSample> {
        let passed = |end: u32| self.delivered.wrapping_sub(end) as i32 > 0;
        if self.app_limited.is_some_and(passed) {
            self.app_limited = None;
        }
        let Newest { stamp, sent_at, .. } = self.newest.take()?;
        let send_elapsed = sent_at.since(stamp.first_sent);
        let ack_elapsed = self.delivered_at.since(stamp.delivered_at);
        self.first_sent = sent_at;
        let delivered = self.delivered.wrapping_sub(stamp.delivered);
        let interval = send_elapsed.max(ack_elapsed).max(MIN_INTERVAL);
        let sample = FlightSample {
            prior_delivered_segs: stamp.delivered,
            delivered_segs: delivered,
            interval: (interval >= min_rtt).then_some(interval),
            lost_segs: self.lost.wrapping_sub(stamp.lost),
            in_flight_segs: stamp.in_flight,
            app_limited: stamp.app_limited,
        };
        self.tell(&sample);
        Some(sample)
    }

    /// Linux tells an application-limited rate only if it is no lower than the one before.
    fn tell(&mut self, sample: &FlightSample) {
        let Some(interval) = sample.interval else {
            return;
        };
        let times = |segs: u32, span: Nanos| u128::from(segs) * u128::from(span.as_nanos());
        let told = &self.told;
        let faster = times(sample.delivered_segs, told.interval) >= times(told.delivered, interval);
        if !sample.app_limited || faster {
            self.told = Told {
                delivered: sample.delivered_segs,
                interval,
                app_limited: sample.app_limited,
            };
        }
    }

    /// Segments and the time they took, and whether the application was the limit.
    pub(crate) fn told_rate(&self) -> (u32, Nanos, bool) {
        let Told {
            delivered,
            interval,
            app_limited,
        } = self.told;
        (delivered, interval, app_limited)
    }
}

#[cfg(test)]
mod tests;

/// A path within one machine may take no time that the clock can tell.
const MIN_INTERVAL: Nanos = Nanos::from_micros(1);

impl RtxQueue {
    /// Samples are taken from now on.
    pub(crate) fn sample_delivery(&mut self, now: Instant) {
        if self.delivery.is_some() {
            return;
        }
        let mut delivery = Delivery::new(now);
        // Too late to know of these; their samples are too short to be believed.
        let stamp = Stamp {
            app_limited: true,
            ..delivery.stamp(self.in_flight())
        };
        delivery.stamps.extend(self.units.iter().map(|_| stamp));
        self.delivery = Some(alloc::boxed::Box::new(delivery));
    }

    /// No samples any more.
    pub(crate) fn forget_delivery(&mut self) {
        self.delivery = None;
    }

    /// The sampler, if the congestion control asked for one.
    #[inline]
    pub(crate) fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_deref()
    }

    /// See [`delivery`](Self::delivery).
    #[inline]
    pub(crate) fn delivery_mut(&mut self) -> Option<&mut Delivery> {
        self.delivery.as_deref_mut()
    }

    /// The path is not, or was not lately, used to the full; false if nobody asks for samples.
    pub(crate) fn is_app_limited(&self) -> bool {
        let delivery = self.delivery.as_ref();
        delivery.is_some_and(|d| d.app_limited.is_some())
    }

    #[inline(never)]
    pub(super) fn stamp_sent(&mut self, at: Instant, idle: bool) {
        let in_flight = self.in_flight();
        if let Some(delivery) = &mut self.delivery {
            delivery.on_sent(at, in_flight, idle);
        }
    }

    /// The application leaves a gap in what the path carries: samples are marked until it has
    /// passed.
    pub(crate) fn mark_app_limited(&mut self) {
        let in_flight = self.in_flight();
        if let Some(delivery) = &mut self.delivery {
            delivery.app_limited = Some(delivery.delivered.wrapping_add(in_flight));
        }
    }

    /// What was marked lost since the last call. Give the memory back by
    /// [`recycle_lost`](Self::recycle_lost).
    pub(crate) fn take_lost(&mut self) -> Vec<LostUnit> {
        let delivery = self.delivery.as_deref_mut();
        delivery.map_or_else(Vec::new, |d| core::mem::take(&mut d.lost_units))
    }

    pub(crate) fn recycle_lost(&mut self, mut units: Vec<LostUnit>) {
        if let Some(delivery) = &mut self.delivery {
            units.clear();
            delivery.lost_units = units;
        }
    }
}
