//! First in, first out, bounded by packets.

use alloc::collections::VecDeque;

use crate::stats::CommonCounters;
use crate::{QdiscConfig, QdiscStats, QueuedPacket};

/// A first-in, first-out queue with a limit in packets.
#[derive(Debug)]
pub struct Pfifo<P> {
    limit: u32,
    queue: VecDeque<P>,
    counters: CommonCounters,
}

impl<P: QueuedPacket> Pfifo<P> {
    /// Returns an empty queue for at most `limit` packets.
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            queue: VecDeque::new(),
            counters: CommonCounters::default(),
        }
    }

    /// Queues a packet.
    ///
    /// # Errors
    /// Returns the packet if the queue is full, and counts it as dropped.
    #[inline]
    pub fn enqueue(&mut self, packet: P) -> Result<(), P> {
        if self.queue.len() >= self.limit as usize {
            self.counters.count_dropped(packet.segments());
            return Err(packet);
        }
        self.counters.backlog_bytes += u64::from(packet.wire_len());
        self.queue.push_back(packet);
        Ok(())
    }

    /// Removes and returns the packet that has waited longest.
    #[inline]
    pub fn dequeue(&mut self) -> Option<P> {
        let packet = self.queue.pop_front()?;
        self.counters
            .count_sent(packet.wire_len(), packet.segments());
        Some(packet)
    }

    /// Returns whether no packet is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the counters and the backlog.
    pub fn stats(&self) -> QdiscStats {
        let config = QdiscConfig::Pfifo { limit: self.limit };
        self.counters.stats(config, self.queue.len() as u32)
    }
}

#[cfg(test)]
mod tests;
