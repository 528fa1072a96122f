//! Token bucket filter: a rate with a burst, first in, first out.

use alloc::collections::VecDeque;

use fullsend_units::{Instant, Nanos};

use crate::stats::Counters;
use crate::{QdiscConfig, QdiscStats, Queued, TbfConfig};

/// Shapes everything to one rate.
///
/// The bucket is kept as the time at which it will be full again (the virtual scheduling form of
/// ITU-T I.371's algorithm): no tokens to refill. A super-segment larger than the bucket waits
/// for a full one and leaves it in debt, so the rate holds whatever its size.
#[derive(Debug)]
pub struct Tbf<P> {
    config: TbfConfig,
    queue: VecDeque<P>,
    full_at: Instant,
    /// Of a nanosecond, in units of 1 / rate: what rounding left over.
    remainder: u64,
    /// When the head was seen to have to wait, so that it counts once.
    waits_until: Instant,
    counters: Counters,
}

impl<P: Queued> Tbf<P> {
    /// An empty queue and a full bucket.
    pub fn new(config: TbfConfig) -> Self {
        Self {
            config,
            queue: VecDeque::new(),
            full_at: Instant::ZERO,
            remainder: 0,
            waits_until: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    /// Takes a packet, or gives it back when more bytes than the limit would wait. One always
    /// may, else a super-segment above the limit would never go.
    #[inline]
    pub fn enqueue(&mut self, packet: P) -> Result<(), P> {
        let bytes = u64::from(packet.wire_len());
        let backlog = self.counters.backlog_bytes + bytes;
        if backlog > self.config.limit && !self.queue.is_empty() {
            self.counters.dropped += 1;
            return Err(packet);
        }
        self.counters.backlog_bytes = backlog;
        self.queue.push_back(packet);
        Ok(())
    }

    /// The head, if the bucket has tokens for it.
    #[inline]
    pub fn dequeue(&mut self, now: Instant) -> Option<P> {
        let conforms_at = self.next_departure()?;
        if conforms_at > now {
            self.counters.overlimits += u64::from(self.waits_until != conforms_at);
            self.waits_until = conforms_at;
            return None;
        }
        let packet = self.queue.pop_front()?;
        let bytes = packet.wire_len();
        self.counters.count_sent(bytes, packet.segments());
        self.full_at = self.full_at.max(now) + self.charge(bytes);
        Some(packet)
    }

    /// When the head conforms; nothing if none waits.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        let bytes = self.queue.front()?.wire_len();
        let burst = u64::from(self.config.burst);
        // What the bucket must not lack: all but the head's tokens.
        let spare = burst - u64::from(bytes).min(burst);
        let spare = spare * 1_000_000_000 / self.config.rate.0.max(1);
        let at = self.full_at.as_nanos().saturating_sub(spare);
        Some(Instant::from_nanos(at))
    }

    /// No packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What it has done, and what waits.
    pub fn stats(&self) -> QdiscStats {
        let config = QdiscConfig::Tbf(self.config);
        self.counters.stats(config, self.queue.len() as u32)
    }

    /// The time that `bytes` take; what is lost to rounding now counts the next time.
    fn charge(&mut self, bytes: u32) -> Nanos {
        let rate = self.config.rate.0.max(1);
        let time = (u64::from(bytes) * 1_000_000_000).saturating_add(self.remainder);
        self.remainder = time % rate;
        Nanos::from_nanos(time / rate)
    }
}

#[cfg(test)]
mod tests;
