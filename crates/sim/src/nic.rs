//! The network card at each end of a link.

use fullsend_offload::{Caps, Link, Packet};
use fullsend_stack::{IfaceConfig, Mac, QdiscConfig};
use fullsend_units::{Instant, Nanos, Rate};

/// What a card does for its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicMode {
    /// Super-segments cross the link whole; checksums are neither computed nor verified.
    Tso,
    /// Only packets of the MTU cross, with checksums that the host computes and verifies.
    Mtu,
}

/// A card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// What it does for its host.
    pub mode: NicMode,
    /// IP or Ethernet frames.
    pub link: Link,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// How fast it sends. A packet is completed when it is sent; with no limit, at once.
    pub rate: Rate,
    /// Bytes that each packet takes on the wire beside itself, at that rate: preamble, checksum
    /// and gap, and on a link of IP packets the Ethernet header. 38 is Ethernet's.
    pub overhead: u32,
    /// Packets it takes from its host and has not sent yet.
    pub ring: usize,
    /// How long it gathers what arrives before it tells its host (interrupt moderation).
    pub rx_wait: Nanos,
    /// How long it gathers completions before it tells its host (the same on the way out).
    pub tx_wait: Nanos,
    /// Largest super-segment, IP header included.
    pub gso_max_size: u32,
    /// What waits in front of the ring.
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
            rx_wait: Nanos::ZERO,
            tx_wait: Nanos::ZERO,
            gso_max_size: Caps::GSO_MAX_SIZE,
            qdisc: QdiscConfig::NoQueue,
        }
    }
}

impl NicConfig {
    /// The interface that a host with the hardware address `mac` has of it.
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
            ..IfaceConfig::over(caps, mac)
        }
    }
}

/// A card at work: what it still has to send.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) config: NicConfig,
    waiting: usize,
    busy_until: Instant,
}

impl Nic {
    pub(crate) const fn new(config: NicConfig) -> Self {
        Self {
            config,
            waiting: 0,
            busy_until: Instant::ZERO,
        }
    }

    pub(crate) const fn has_room(&self) -> bool {
        self.waiting < self.config.ring
    }

    /// Takes a packet; when it will be sent, if not at once.
    pub(crate) fn take(&mut self, now: Instant, packet: &Packet) -> Option<Instant> {
        if self.config.rate == Rate::UNLIMITED {
            return None;
        }
        self.waiting += 1;
        let overhead = u64::from(self.config.overhead) * u64::from(packet.segments());
        let bytes = packet.wire_len() as u64 + overhead;
        self.busy_until = self.busy_until.max(now) + self.config.rate.time_for(bytes);
        Some(self.busy_until)
    }

    pub(crate) const fn sent(&mut self) {
        self.waiting -= 1;
    }
}
