//! Fair queueing: a queue for each flow, deficit round robin between them, with departure times.

mod flows;
mod slab;
#[cfg(test)]
mod tests;

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use fullsend_wire::{Instant, Nanos};

use crate::stats::CommonCounters;
use crate::{FqConfig, FqStats, QdiscConfig, QdiscStats, QueuedPacket};
use flows::Flows;
use slab::{Fifo, PacketSlab};

/// A fair queueing discipline with departure times, like Linux's `fq`.
///
/// Flows are served by deficit round robin (Shreedhar and Varghese 1995); a new flow goes before
/// those that are queued already (RFC 8290 4.2). A flow whose first packet may not leave yet is
/// throttled until it may, at no cost to the others. Packets without a flow (ARP, ICMP, pure ACKs)
/// go first, up to a quota.
///
/// Cost in instructions per packet, dequeued and queued again (`benches/fq.rs`): 371 at 100 flows,
/// 356 at 10,000; if each packet waits for its departure time, 720 and 846, and 920 at 100,000.
#[derive(Debug)]
pub struct Fq<P> {
    config: FqConfig,
    packets: PacketSlab<P>,
    flows: Flows,
    /// Throttled flows with their departure times, the earliest first.
    throttled: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Packets without a flow.
    internal: Fifo,
    /// Bytes that packets without a flow may send before a flow must be served.
    internal_credit: i64,
    counters: CommonCounters,
    own_counters: FqStats,
}

impl<P: QueuedPacket> Fq<P> {
    /// Returns an empty queue.
    pub fn new(config: FqConfig) -> Self {
        Self {
            packets: PacketSlab::new(),
            flows: Flows::new(&config),
            throttled: BinaryHeap::new(),
            internal: Fifo::EMPTY,
            internal_credit: i64::from(config.initial_quantum),
            counters: CommonCounters::default(),
            own_counters: FqStats::default(),
            config,
        }
    }

    /// Queues a packet.
    ///
    /// # Errors
    /// Returns the packet, and counts it as dropped, if a limit is reached or its departure time
    /// lies beyond the horizon.
    pub fn enqueue(&mut self, now: Instant, packet: P) -> Result<(), P> {
        if self.packets.len() >= self.config.limit {
            self.counters.count_dropped(packet.segments());
            return Err(packet);
        }
        let horizon = now + self.config.horizon;
        let mut departure = packet.departure().max(now);
        if departure > horizon {
            if self.config.horizon_drop {
                self.own_counters.horizon_drops += u64::from(packet.segments());
                self.counters.count_dropped(packet.segments());
                return Err(packet);
            }
            self.own_counters.horizon_caps += 1;
            departure = horizon;
        }
        let bytes = u64::from(packet.wire_len());
        let fifo = match packet.flow() {
            0 => &mut self.internal,
            key => {
                let flow = self.flows.find_or_insert(now, key);
                if flow.fifo.len >= self.config.flow_limit {
                    self.own_counters.flows_plimit += u64::from(packet.segments());
                    self.counters.count_dropped(packet.segments());
                    return Err(packet);
                }
                &mut flow.fifo
            }
        };
        self.packets.push(fifo, packet, departure);
        self.counters.backlog_bytes += bytes;
        Ok(())
    }

    /// Removes and returns the next packet that may leave at `now`.
    pub fn dequeue(&mut self, now: Instant) -> Option<P> {
        if self.internal_credit > 0 && self.internal.len > 0 {
            return self.dequeue_internal();
        }
        self.unthrottle(now);
        match self.next_flow(now) {
            Some(index) => {
                self.internal_credit = i64::from(self.config.initial_quantum);
                self.packets.pop(&mut self.flows.get_mut(index).fifo)
            }
            None => self.dequeue_internal(),
        }
    }

    /// Returns the time of the next departure, after [`dequeue`](Self::dequeue) has returned
    /// `None`.
    ///
    /// [`Instant::ZERO`] means at once; `None` if no packet is queued.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        if self.internal.len > 0 || self.flows.has_ready() {
            return (!self.is_empty()).then_some(Instant::ZERO);
        }
        self.throttled.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns whether no packet is queued.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.packets.len() == 0
    }

    /// Returns the counters and the backlog.
    pub fn stats(&self) -> QdiscStats {
        let config = QdiscConfig::Fq(self.config);
        let fq = FqStats {
            flows: self.flows.len(),
            inactive: self.flows.idle(),
            throttled_flows: self.throttled.len() as u32,
            gc: self.flows.evicted(),
            ..self.own_counters
        };
        QdiscStats {
            fq: Some(fq),
            ..self.counters.stats(config, self.packets.len())
        }
    }

    fn dequeue_internal(&mut self) -> Option<P> {
        let (packet, _) = self.packets.front(&self.internal)?;
        let bytes = packet.wire_len();
        self.internal_credit -= i64::from(bytes);
        self.own_counters.highprio += 1;
        self.counters.count_sent(bytes, packet.segments());
        self.packets.pop(&mut self.internal)
    }

    /// Moves flows whose departure time has come back to the round robin.
    #[inline]
    fn unthrottle(&mut self, now: Instant) {
        while let Some(Reverse((at, flow))) = self.throttled.peek()
            && *at <= now
        {
            self.flows.push_old(*flow);
            self.throttled.pop();
        }
    }

    /// Returns the flow whose first packet leaves now, and charges the flow for it.
    #[inline]
    fn next_flow(&mut self, now: Instant) -> Option<u32> {
        while let Some(ready) = self.flows.next_ready(now) {
            let index = ready.index;
            let flow = self.flows.get_mut(index);
            let (packet, departure) = self.packets.front(&flow.fifo)?;
            let due = departure.max(flow.next_at);
            if due > now {
                self.flows.remove_ready(ready);
                self.throttled.push(Reverse((due, index)));
                self.own_counters.throttled += 1;
                self.counters.overlimits += 1;
                continue;
            }
            let bytes = packet.wire_len();
            flow.credit -= i64::from(bytes);
            if let Some(rate) = self.config.maxrate {
                flow.next_at = next_departure(now, flow.next_at, rate.time_for(bytes.into()));
            }
            if let Some(threshold) = self.config.ce_threshold
                && now.since(due) > threshold
                && packet.mark_ce()
            {
                self.own_counters.ce_mark += 1;
            }
            self.counters.count_sent(bytes, packet.segments());
            return Some(index);
        }
        None
    }
}

/// Returns the earliest next departure of a flow after a packet that takes `span`.
///
/// Compensates late packets by up to half of the span, so that a timer that is always late does
/// not lower the rate.
fn next_departure(now: Instant, previous: Instant, span: Nanos) -> Instant {
    let late = if previous == Instant::ZERO {
        Nanos::ZERO
    } else {
        now.since(previous)
    };
    now + span.saturating_sub(late.min(span / 2))
}
