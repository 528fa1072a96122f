//! The network card at each end of a link.

use fullsend_offload::{Caps, Link, Packet};
use fullsend_stack::{IfaceConfig, Mac, QdiscConfig};
use fullsend_wire::{Instant, Nanos, Rate};

/// The offloads of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicMode {
    /// Super-segments pass the link whole; checksums are neither computed nor verified.
    Tso,
    /// Only packets of at most the MTU pass, with checksums that the host computes and verifies.
    Mtu,
}

/// The configuration of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// The offloads.
    pub mode: NicMode,
    /// IP or Ethernet frames.
    pub link: Link,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Send rate. A packet is completed when it is sent; with no limit, at once.
    pub rate: Rate,
    /// Bytes that each packet takes on the wire in addition, at that rate: preamble, checksum and
    /// gap, and on a link of IP packets the Ethernet header. 38 for Ethernet.
    pub overhead: u32,
    /// Most packets accepted from the host and not yet sent.
    pub ring: usize,
    /// Time to gather received packets before they are passed to the host (interrupt moderation).
    pub rx_coalesce: Nanos,
    /// Time to gather completions before they are reported to the host (interrupt moderation).
    pub tx_coalesce: Nanos,
    /// Largest super-segment in bytes, IP header included.
    pub gso_max_size: u32,
    /// Queueing discipline in front of the ring.
    pub qdisc: QdiscConfig,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            mode: NicMode::Tso,
            link: Link::Ip,
            mtu: 1500,
            rate: Rate::UNLIMITED,
            overhead: 0,
            ring: 256,
            rx_coalesce: Nanos::ZERO,
            tx_coalesce: Nanos::ZERO,
            gso_max_size: Caps::GSO_MAX_SIZE,
            qdisc: QdiscConfig::NoQueue,
        }
    }
}

impl NicConfig {
    /// Returns the configuration of the interface of a host with the hardware address `mac`.
    pub(crate) const fn iface(&self, mac: Mac) -> IfaceConfig {
        let caps = match self.mode {
            NicMode::Tso => Caps::offloading(self.link, self.mtu),
            NicMode::Mtu => Caps::plain(self.link, self.mtu),
        };
        let caps = Caps {
            gso_max_size: self.gso_max_size,
            ..caps
        };
        IfaceConfig {
            qdisc: self.qdisc,
            ..IfaceConfig::new(caps, mac)
        }
    }
}

/// A card with the state of its transmit ring.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) config: NicConfig,
    queued: usize,
    busy_until: Instant,
}

impl Nic {
    pub(crate) const fn new(config: NicConfig) -> Self {
        Self {
            config,
            queued: 0,
            busy_until: Instant::ZERO,
        }
    }

    pub(crate) const fn has_room(&self) -> bool {
        self.queued < self.config.ring
    }

    /// Accepts a packet; returns the time when it will be sent, `None`: at once.
    pub(crate) fn enqueue(&mut self, now: Instant, packet: &Packet) -> Option<Instant> {
        if self.config.rate == Rate::UNLIMITED {
            return None;
        }
        self.queued += 1;
        let overhead = u64::from(self.config.overhead) * u64::from(packet.segments());
        let bytes = packet.wire_len() as u64 + overhead;
        self.busy_until = self.busy_until.max(now) + self.config.rate.time_for(bytes);
        Some(self.busy_until)
    }

    pub(crate) const fn on_sent(&mut self) {
        self.queued -= 1;
    }
}
