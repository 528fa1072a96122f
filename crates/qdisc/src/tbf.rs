//! Token bucket filter: a FIFO with a rate and a burst.

use alloc::collections::VecDeque;

use fullsend_wire::{Instant, Nanos};

use crate::stats::CommonCounters;
use crate::{QdiscConfig, QdiscStats, QueuedPacket, TbfConfig};

/// A queue that limits all packets to one rate.
///
/// The state of the bucket is the time at which it will be full again (the virtual scheduling form
/// of ITU-T I.371's algorithm), so that no tokens need to be refilled. A super-segment larger than
/// the bucket waits for a full bucket and leaves it in debt, so that the rate holds for any size.
#[derive(Debug)]
pub struct Tbf<P> {
    config: TbfConfig,
    queue: VecDeque<P>,
    full_at: Instant,
    /// Rounding remainder of `full_at`: the part of a nanosecond, in units of 1 / rate.
    remainder: u64,
    /// Departure time of the head that was last counted, so that a wait counts once.
    counted_departure: Instant,
    counters: CommonCounters,
}

impl<P: QueuedPacket> Tbf<P> {
    /// Returns an empty queue with a full bucket.
    pub fn new(config: TbfConfig) -> Self {
        Self {
            config,
            queue: VecDeque::new(),
            full_at: Instant::ZERO,
            remainder: 0,
            counted_departure: Instant::ZERO,
            counters: CommonCounters::default(),
        }
    }

    /// Queues a packet.
    ///
    /// An empty queue accepts any packet, or a super-segment above the limit could never be sent.
    ///
    /// # Errors
    /// Returns the packet if the backlog would exceed the limit, and counts it as dropped.
    #[inline]
    pub fn enqueue(&mut self, packet: P) -> Result<(), P> {
        let bytes = u64::from(packet.wire_len());
        let backlog = self.counters.backlog_bytes + bytes;
        if backlog > self.config.limit && !self.queue.is_empty() {
            self.counters.count_dropped(packet.segments());
            return Err(packet);
        }
        self.counters.backlog_bytes = backlog;
        self.queue.push_back(packet);
        Ok(())
    }

    /// Removes and returns the first packet, if the bucket has tokens for it at `now`.
    #[inline]
    pub fn dequeue(&mut self, now: Instant) -> Option<P> {
        let conforms_at = self.next_departure()?;
        if conforms_at > now {
            self.counters.overlimits += u64::from(self.counted_departure != conforms_at);
            self.counted_departure = conforms_at;
            return None;
        }
        let packet = self.queue.pop_front()?;
        let bytes = packet.wire_len();
        self.counters.count_sent(bytes, packet.segments());
        self.full_at = self.full_at.max(now) + self.charge(bytes);
        Some(packet)
    }

    /// Returns the time at which the first packet may leave; `None` if no packet is queued.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        let bytes = self.queue.front()?.wire_len();
        let burst = u64::from(self.config.burst);
        // The tokens that the bucket may lack: all but those of the first packet.
        let spare = burst - u64::from(bytes).min(burst);
        let spare = spare * 1_000_000_000 / self.config.rate.0.max(1);
        let at = self.full_at.as_nanos().saturating_sub(spare);
        Some(Instant::from_nanos(at))
    }

    /// Returns whether no packet is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the counters and the backlog.
    pub fn stats(&self) -> QdiscStats {
        let config = QdiscConfig::Tbf(self.config);
        self.counters.stats(config, self.queue.len() as u32)
    }

    /// Returns the time that `bytes` take; the rounding remainder is added to the next call.
    fn charge(&mut self, bytes: u32) -> Nanos {
        let rate = self.config.rate.0.max(1);
        let time = (u64::from(bytes) * 1_000_000_000).saturating_add(self.remainder);
        self.remainder = time % rate;
        Nanos::from_nanos(time / rate)
    }
}

#[cfg(test)]
mod tests;
