//! Between IP and a device: an interface's qdisc, filled by sockets and emptied by the device.

use alloc::vec::Vec;

use fullsend_offload::Packet;
use fullsend_qdisc::QdiscStats;
use fullsend_units::Instant;
use fullsend_wire::numbers::ethertype;

use crate::interface::Interface;
use crate::{Host, IfaceId};

/// Super-segments taken from sockets before they are queued.
const PULL: usize = 32;

impl Interface {
    /// When the device should ask again, without anything else happening.
    #[inline]
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        // Zero: it may ask at once, and does when it has room.
        let timed = self.departure != Instant::ZERO && self.departure != Instant::FAR_FUTURE;
        timed.then_some(self.departure)
    }

    /// Gives the device what may leave now, `max` super-segments at most.
    fn drain_qdisc(&mut self, now: Instant, out: &mut Vec<Packet>, max: usize) {
        let Some(qdisc) = &mut self.qdisc else {
            return;
        };
        for _ in 0..max {
            let Some(packet) = qdisc.dequeue(now) else {
                self.departure = qdisc.next_departure().unwrap_or(Instant::FAR_FUTURE);
                return;
            };
            self.config.hand_over(packet, out);
        }
        self.departure = if qdisc.is_empty() {
            Instant::FAR_FUTURE
        } else {
            Instant::ZERO
        };
    }
}

impl Host {
    /// What an interface's qdisc has done and holds; nothing if there is no such interface.
    pub fn qdisc_stats(&self, iface: IfaceId) -> Option<QdiscStats> {
        let interface = self.ifaces.get(usize::from(iface.0))?;
        Some(match &interface.qdisc {
            Some(qdisc) => qdisc.stats(),
            None => interface.config.qdisc.no_stats(),
        })
    }

    /// When a qdisc next gives a packet that waits for its time, or a connection that paces itself
    /// may go on. `poll_deadline` covers it; being late for it costs throughput, so it is worth an
    /// exact timer.
    #[inline]
    pub fn next_departure(&self) -> Option<Instant> {
        let queued = self.ifaces.iter().filter_map(Interface::wakes_at).min();
        let timer = self.tcp.wheel.next();
        let paced = timer.filter(|at| *at <= self.paced_until);
        queued.into_iter().chain(paced).min()
    }

    /// `transmit` for an interface with a qdisc.
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

    /// Takes all that sockets may send: their small-queue limit bounds it.
    fn fill_qdisc(&mut self, now: Instant, iface: u16) {
        let mut staged = core::mem::take(&mut self.staged);
        while !self.ifaces[usize::from(iface)].ready.is_empty() {
            self.tcp_transmit(now, iface, &mut staged, PULL);
            for packet in staged.drain(..) {
                let is_v4 = packet.layers.ethertype == ethertype::IPV4;
                self.queue_packet(now, iface, is_v4, packet);
            }
        }
        self.staged = staged;
    }

    /// Lets the device ask qdiscs whose time has come.
    pub(crate) fn poll_qdiscs(&mut self, now: Instant) {
        for interface in &mut self.ifaces {
            if interface.departure <= now {
                interface.departure = Instant::ZERO;
            }
        }
    }
}
