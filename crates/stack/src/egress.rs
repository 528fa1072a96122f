//! An interface's qdisc, between IP and the device: it is filled from sockets and drained by the
//! device.

use alloc::vec::Vec;

use fullsend_offload::Packet;
use fullsend_qdisc::QdiscStats;
use fullsend_wire::Instant;
use fullsend_wire::numbers::ethertype;

use crate::interface::{Interface, cost};
use crate::{Host, IfaceId};

/// Maximum number of super-segments pulled from sockets at a time, before they are queued.
const PULL_BATCH: usize = 32;

impl Interface {
    /// Returns when the device should poll the interface again if nothing else happens; the far
    /// future for never.
    #[inline]
    pub(crate) fn poll_at(&self) -> Instant {
        // Zero means that the device may poll now; it does so when it has room.
        if self.departure == Instant::ZERO {
            return Instant::FAR_FUTURE;
        }
        self.departure
    }

    /// Moves the packets that may leave now to `out`, `max` super-segments at most.
    pub(crate) fn drain_qdisc(&mut self, now: Instant, out: &mut Vec<Packet>, max: usize) {
        let Some(qdisc) = &mut self.qdisc else {
            return;
        };
        for _ in 0..max {
            let Some(packet) = qdisc.dequeue(now) else {
                self.departure = qdisc.next_departure().unwrap_or(Instant::FAR_FUTURE);
                return;
            };
            if packet.tx.socket == 0 {
                self.uncharged_bytes -= cost(&packet);
            }
            self.config.push_segmented(packet, out);
        }
        self.departure = if qdisc.is_empty() {
            Instant::FAR_FUTURE
        } else {
            Instant::ZERO
        };
    }
}

impl Host {
    /// Returns the counters and the backlog of an interface's qdisc, or `None` if there is no such
    /// interface.
    pub fn qdisc_stats(&self, iface: IfaceId) -> Option<QdiscStats> {
        let interface = self.ifaces.get(usize::from(iface.0))?;
        Some(match &interface.qdisc {
            Some(qdisc) => qdisc.stats(),
            None => interface.config.qdisc.empty_stats(),
        })
    }

    /// Returns when a qdisc may next release a packet, or a paced connection may next send.
    /// `poll_deadline` includes this time. Being late for it costs throughput, so it is worth a
    /// precise timer.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        let mut first = Instant::FAR_FUTURE;
        for interface in &self.ifaces {
            first = first.min(interface.poll_at());
        }
        let timer = self.tcp.wheel.next();
        if timer <= self.paced_until {
            first = first.min(timer);
        }
        (first != Instant::FAR_FUTURE).then_some(first)
    }

    /// Fills the qdisc of an interface from the sockets and dequeues the packets that may leave.
    #[inline(never)]
    pub(crate) fn qdisc_transmit(
        &mut self,
        now: Instant,
        iface: u16,
        out: &mut Vec<Packet>,
        max: usize,
    ) {
        self.fill_qdisc(now, iface);
        self.ifaces[usize::from(iface)].drain_qdisc(now, out, max);
    }

    /// Queues all packets that sockets may send. Their TCP Small Queues limit bounds the amount.
    fn fill_qdisc(&mut self, now: Instant, iface: u16) {
        let mut staged = core::mem::take(&mut self.staged);
        while !self.ifaces[usize::from(iface)].ready.is_empty() {
            self.tcp_transmit(now, iface, &mut staged, PULL_BATCH);
            for packet in staged.drain(..) {
                let is_v4 = packet.layers.ethertype == ethertype::IPV4;
                self.queue_packet(now, iface, is_v4, packet);
            }
        }
        self.staged = staged;
    }

    /// Marks the qdiscs whose departure time has come as ready to be drained.
    pub(crate) fn poll_qdiscs(&mut self, now: Instant) {
        for interface in &mut self.ifaces {
            if interface.departure <= now {
                interface.departure = Instant::ZERO;
            }
        }
    }
}
