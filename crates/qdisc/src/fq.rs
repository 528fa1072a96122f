//! Fair queueing: a queue for each flow, deficit round robin between them, departure times kept.

mod flows;
mod store;
#[cfg(test)]
mod tests;

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use fullsend_units::{Instant, Nanos};

use crate::stats::Counters;
use crate::{FqConfig, FqStats, QdiscConfig, QdiscStats, Queued};
use flows::Flows;
use store::{Fifo, Store};

/// A flow's turns end when its bytes are used up (deficit round robin, Shreedhar and Varghese
/// 1995); a flow that is new goes before those that wait already (RFC 8290 4.2). A flow whose
/// first packet may not leave yet stands aside until it may, and costs the others nothing.
///
/// Packets without a flow (ARP, ICMP, pure ACKs) go first, but never all the time.
///
/// Cost, instructions for a packet out and back in (`benches/fq.rs`): 371 at 100 flows, 356 at
/// 10,000; where each packet waits for its time, 720 and 846, 920 at 100,000.
#[derive(Debug)]
pub struct Fq<P> {
    config: FqConfig,
    packets: Store<P>,
    flows: Flows,
    /// Flows that wait for a departure time, the earliest first.
    throttled: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Packets without a flow.
    internal: Fifo,
    /// Bytes they may send before a flow must have its turn.
    internal_credit: i64,
    counters: Counters,
    own: FqStats,
}

impl<P: Queued> Fq<P> {
    /// Empty, without flows.
    pub fn new(config: FqConfig) -> Self {
        Self {
            packets: Store::new(),
            flows: Flows::new(&config),
            throttled: BinaryHeap::new(),
            internal: Fifo::EMPTY,
            internal_credit: i64::from(config.initial_quantum),
            counters: Counters::default(),
            own: FqStats::default(),
            config,
        }
    }

    /// Takes a packet, or gives it back when there are too many or its time is too far away.
    pub fn enqueue(&mut self, now: Instant, packet: P) -> Result<(), P> {
        if self.packets.len() >= self.config.limit {
            self.counters.dropped += 1;
            return Err(packet);
        }
        let horizon = now + self.config.horizon;
        let mut departure = packet.departure().max(now);
        if departure > horizon {
            if self.config.horizon_drop {
                self.own.horizon_drops += 1;
                self.counters.dropped += 1;
                return Err(packet);
            }
            self.own.horizon_caps += 1;
            departure = horizon;
        }
        let bytes = u64::from(packet.wire_len());
        let fifo = match packet.flow() {
            0 => &mut self.internal,
            key => {
                let flow = self.flows.find_or_insert(now, key);
                if flow.fifo.len >= self.config.flow_limit {
                    self.own.flows_plimit += 1;
                    self.counters.dropped += 1;
                    return Err(packet);
                }
                &mut flow.fifo
            }
        };
        self.packets.push(fifo, packet, departure);
        self.counters.backlog_bytes += bytes;
        Ok(())
    }

    /// The next packet that may leave at `now`.
    pub fn dequeue(&mut self, now: Instant) -> Option<P> {
        if self.internal_credit > 0 && self.internal.len > 0 {
            return self.dequeue_internal();
        }
        self.release(now);
        match self.next_flow(now) {
            Some(index) => {
                self.internal_credit = i64::from(self.config.initial_quantum);
                self.packets.pop(&mut self.flows.get_mut(index).fifo)
            }
            None => self.dequeue_internal(),
        }
    }

    /// After [`dequeue`](Self::dequeue) gave nothing: when it will.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        if self.internal.len > 0 || self.flows.has_turns() {
            return (!self.is_empty()).then_some(Instant::ZERO);
        }
        self.throttled.peek().map(|Reverse((at, _))| *at)
    }

    /// No packet waits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.packets.len() == 0
    }

    /// What it has done, and what waits.
    pub fn stats(&self) -> QdiscStats {
        let config = QdiscConfig::Fq(self.config);
        let fq = FqStats {
            flows: self.flows.len(),
            inactive: self.flows.idle(),
            throttled_flows: self.throttled.len() as u32,
            gc: self.flows.collected(),
            ..self.own
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
        self.own.highprio += 1;
        self.counters.count_sent(bytes, packet.segments());
        self.packets.pop(&mut self.internal)
    }

    /// Flows whose time has come wait for their turn again.
    #[inline]
    fn release(&mut self, now: Instant) {
        while let Some(Reverse((at, flow))) = self.throttled.peek()
            && *at <= now
        {
            self.flows.make_old(*flow);
            self.throttled.pop();
        }
    }

    /// The flow whose first packet leaves now; it is accounted for.
    #[inline]
    fn next_flow(&mut self, now: Instant) -> Option<u32> {
        while let Some(turn) = self.flows.turn(now) {
            let index = turn.index;
            let flow = self.flows.get_mut(index);
            let (packet, departure) = self.packets.front(&flow.fifo)?;
            let due = departure.max(flow.next_at);
            if due > now {
                self.flows.unlist(turn);
                self.throttled.push(Reverse((due, index)));
                self.own.throttled += 1;
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
                self.own.ce_mark += 1;
            }
            self.counters.count_sent(bytes, packet.segments());
            return Some(index);
        }
        None
    }
}

/// When a flow may send again after a packet that takes `span`. One that came late has a credit
/// for it, up to half of the span: a timer that is late each time must not lower the rate.
fn next_departure(now: Instant, was: Instant, span: Nanos) -> Instant {
    let late = if was == Instant::ZERO {
        Nanos::ZERO
    } else {
        now.since(was)
    };
    now + span.saturating_sub(late.min(span / 2))
}
