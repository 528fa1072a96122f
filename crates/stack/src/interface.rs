//! Interfaces: their configuration, GRO on input, and the queue and software GSO on output.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fullsend_offload::{
    Caps, Checksum, Gro, GroConfig, GsoKind, Link, Packet, Tunnels, TxToken, segment,
};
use fullsend_qdisc::{Qdisc, QdiscConfig};
use fullsend_tcp::DeviceCaps;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{Instant, SeqNum};

use crate::inspect::LinkStats;
use crate::ip::{Neighbours, compact};

/// The number of an interface on its host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IfaceId(pub u16);

impl IfaceId {
    /// Returns the interface index in Linux's numbering: loopback is 1, and the others follow.
    pub const fn index(self) -> u32 {
        if self.0 == LOOPBACK {
            1
        } else {
            self.0 as u32 + 2
        }
    }
}

pub use fullsend_wire::ethernet::Mac;

/// The configuration of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IfaceConfig {
    /// The device's capabilities. Segmentation and checksums that it does not do are done in
    /// software in `transmit`.
    pub caps: Caps,
    /// The interface's hardware address; used with Ethernet only.
    pub mac: Mac,
    /// Whether TCP builds super-segments; if not, TCP sends single packets.
    pub gso: bool,
    /// Whether GRO coalesces received packets.
    pub gro: bool,
    /// The queueing discipline. Without a queue, the device pulls packets from the sockets.
    pub qdisc: QdiscConfig,
    /// The host's role on an Ethernet link.
    pub neighbours: NeighbourConfig,
}

/// The role of a host on an Ethernet link. The default is that of an end system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourConfig {
    /// Whether IPv6 addresses are used only after duplicate address detection (RFC 4862 5.4;
    /// Linux's `accept_dad`).
    pub detect_duplicates: bool,
    /// Whether advertisements show that the host is a router (RFC 4861 4.4). Hosts forget a default
    /// router that does not.
    pub router: bool,
    /// Whether solicitations for other hosts' addresses are answered, too (Linux's `proxy_arp` and
    /// `proxy_ndp`), so that the link's hosts send this host what they send to each other.
    pub proxy: bool,
}

impl NeighbourConfig {
    /// The role of an end system.
    pub const HOST: Self = Self {
        detect_duplicates: true,
        router: false,
        proxy: false,
    };
}

impl Default for NeighbourConfig {
    fn default() -> Self {
        Self::HOST
    }
}

/// The number of the loopback interface, which carries packets from the host to itself.
pub(crate) const LOOPBACK: u16 = u16::MAX;

/// Maximum number of packets in the interface's queue (Linux's txqueuelen). TCP data is not in it:
/// it waits in the sockets.
const MAX_QUEUED: usize = 1000;
/// Maximum memory of the packets in the interface's queue, in bytes. An empty queue accepts a packet
/// of any size.
const MAX_QUEUED_BYTES: usize = 16 << 20;

/// Returns what a packet in the interface's queue is charged, in bytes.
pub(crate) fn cost(packet: &Packet) -> usize {
    packet.len() + size_of::<Packet>()
}

/// Copies the payload if it keeps much more memory allocated than its length: an echo reply shares
/// the buffer of its request. Returns whether there was memory for the copy.
fn compact_payload(packet: &mut Packet) -> bool {
    let payload = compact(core::mem::take(&mut packet.payload));
    let has_memory = payload.is_some();
    packet.payload = payload.unwrap_or_default();
    has_memory
}

impl IfaceConfig {
    /// Returns a configuration that uses all capabilities of the device, with super-segments in
    /// both directions and no queue.
    pub const fn new(caps: Caps, mac: Mac) -> Self {
        Self {
            caps,
            mac,
            gso: true,
            gro: true,
            qdisc: QdiscConfig::NoQueue,
            neighbours: NeighbourConfig::HOST,
        }
    }

    pub(crate) const fn loopback() -> Self {
        Self {
            gro: false,
            ..Self::new(Caps::offloading(Link::Ip, 65_536), Mac([0; 6]))
        }
    }

    /// Returns the capabilities of the device for TCP.
    pub(crate) fn device_caps(&self) -> DeviceCaps {
        let Caps {
            mtu, gso_max_size, ..
        } = self.caps;
        DeviceCaps {
            mtu,
            gso_max_size: if self.gso { gso_max_size.max(mtu) } else { mtu },
            gso_max_segs: if self.gso { u16::MAX.into() } else { 1 },
            fq: matches!(self.qdisc, QdiscConfig::Fq(_)),
        }
    }

    /// Appends a packet to the device's batch, segmented and checksummed if the device cannot do
    /// so.
    #[inline]
    pub(crate) fn push_segmented(&self, packet: Packet, out: &mut Vec<Packet>) {
        let partial = packet.offload.checksum == Checksum::Partial;
        let offload = packet.offload;
        if offload.repeats_cwr || self.needs_software(offload.kind, partial) {
            segment(packet, out);
        } else {
            out.push(packet);
        }
    }

    /// Returns whether a packet of this kind must be segmented or checksummed in software for the
    /// device.
    #[inline]
    pub(crate) const fn needs_software(&self, kind: GsoKind, partial: bool) -> bool {
        let supported = match kind {
            GsoKind::None => true,
            GsoKind::TcpV4 => self.caps.tso4,
            GsoKind::TcpV6 => self.caps.tso6,
            GsoKind::Udp => self.caps.uso,
        };
        !supported || partial && !self.caps.tx_checksum
    }
}

/// A packet that a queue dropped.
pub(crate) struct DroppedPacket {
    pub(crate) tx: TxToken,
    /// The sequence range of the socket's TCP segment: the first number, and the one after the
    /// last.
    pub(crate) seq_range: Option<(SeqNum, SeqNum)>,
}

impl DroppedPacket {
    #[cold]
    fn of(packet: &Packet) -> Self {
        let charged = packet.tx.socket != 0 && packet.layers.protocol == protocol::TCP;
        let repr = charged.then(|| TcpRepr::parse(packet.transport_header()).ok());
        Self {
            tx: packet.tx,
            seq_range: repr.flatten().map(|(repr, _)| {
                let fin = repr.flags.contains(TcpFlags::FIN);
                let len = packet.payload.len() as u32 + u32::from(fin);
                (repr.seq, repr.seq + len)
            }),
        }
    }
}

/// One interface.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) config: IfaceConfig,
    /// The device's capabilities, including those that are switched off.
    pub(crate) device: Caps,
    pub(crate) gro: Gro,
    pub(crate) stats: LinkStats,
    /// The neighbour table; Ethernet only.
    pub(crate) neighbours: Option<Neighbours>,
    /// Complete packets that wait for `transmit`, their memory, and its limit.
    out: VecDeque<Packet>,
    out_bytes: usize,
    max_out_bytes: usize,
    /// Whether packets in `out` are copied if they keep much more memory than their length.
    compacts_out: bool,
    /// The qdisc. If there is one, it replaces `out` and also carries TCP data.
    pub(crate) qdisc: Option<Qdisc<Packet>>,
    /// Memory of the packets in the qdisc that no connection is charged for.
    pub(crate) uncharged_bytes: usize,
    /// The time at which the qdisc will release a packet; zero means now, the far future never.
    pub(crate) departure: Instant,
    /// The ready queue: sockets that have something to send, in order, each once.
    pub(crate) ready: VecDeque<u32>,
}

impl Interface {
    /// Creates an interface. `seed` keys the hash by which GRO distinguishes flows.
    pub(crate) fn new(config: IfaceConfig, seed: u64) -> Self {
        let gro = GroConfig {
            link: config.caps.link,
            enabled: config.gro,
            max_size: 65_536,
            tunnels: Tunnels::NONE,
        };
        Self {
            gro: Gro::with_seed(gro, seed),
            stats: LinkStats::default(),
            neighbours: match config.caps.link {
                Link::Ip => None,
                Link::Ethernet => Some(Neighbours::new(config.mac, config.neighbours)),
            },
            out: VecDeque::new(),
            out_bytes: 0,
            max_out_bytes: MAX_QUEUED_BYTES,
            compacts_out: false,
            qdisc: Qdisc::new(config.qdisc),
            uncharged_bytes: 0,
            departure: Instant::FAR_FUTURE,
            ready: VecDeque::new(),
            device: config.caps,
            config,
        }
    }

    /// Limits the packets that wait for the device, and those that wait for neighbours, to about
    /// `bytes` of memory each.
    pub(crate) fn limit_memory(&mut self, bytes: usize) {
        self.max_out_bytes = bytes.min(MAX_QUEUED_BYTES);
        self.compacts_out = true;
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.limit_memory(bytes);
        }
    }

    /// Queues a complete packet. Returns the drop to report if the queue does not accept it.
    pub(crate) fn push(&mut self, now: Instant, mut packet: Packet) -> Result<(), DroppedPacket> {
        if let Some(qdisc) = &mut self.qdisc {
            // The memory of connections includes their packets.
            let charged = packet.tx.socket != 0;
            let bytes = cost(&packet);
            if !charged && self.compacts_out {
                let is_full = self.uncharged_bytes + bytes > self.max_out_bytes;
                if is_full && self.uncharged_bytes != 0 || !compact_payload(&mut packet) {
                    return Err(DroppedPacket::of(&packet));
                }
            }
            self.departure = Instant::ZERO;
            let result = qdisc.enqueue(now, packet);
            if result.is_ok() && !charged {
                self.uncharged_bytes += bytes;
            }
            return result.map_err(|packet| DroppedPacket::of(&packet));
        }
        let bytes = self.out_bytes + cost(&packet);
        let is_full = self.out.len() >= MAX_QUEUED || bytes > self.max_out_bytes;
        if is_full && !self.out.is_empty() {
            return Err(DroppedPacket::of(&packet));
        }
        if self.compacts_out && !compact_payload(&mut packet) {
            return Err(DroppedPacket::of(&packet));
        }
        self.out_bytes = bytes;
        self.out.push_back(packet);
        Ok(())
    }

    /// Returns whether TCP packets of this kind must be segmented or checksummed when they leave
    /// the socket.
    #[inline]
    pub(crate) const fn segments_at_socket(&self, kind: GsoKind, repeats_cwr: bool) -> bool {
        // A qdisc holds super-segments whole.
        self.qdisc.is_none() && (repeats_cwr || self.config.needs_software(kind, true))
    }

    #[inline]
    pub(crate) fn needs_transmit(&self) -> bool {
        !self.ready.is_empty() || !self.out.is_empty() || self.departure == Instant::ZERO
    }

    /// Appends at most `max` queued packets to the device's batch, segmented and checksummed if the
    /// device cannot do so. Returns the number of queued packets taken.
    #[inline]
    pub(crate) fn drain(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        if self.out.is_empty() {
            return 0;
        }
        self.drain_queue(out, max)
    }

    #[inline(never)]
    fn drain_queue(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let count = self.out.len().min(max);
        for packet in self.out.drain(..count) {
            self.out_bytes -= cost(&packet);
            self.config.push_segmented(packet, out);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_qdisc_limits_the_memory_of_packets_that_no_connection_is_charged_for() {
        let config = IfaceConfig {
            qdisc: "pfifo limit 1000".parse().unwrap(),
            ..IfaceConfig::loopback()
        };
        let mut interface = Interface::new(config, 0);
        interface.limit_memory(4096);
        let now = Instant::from_nanos(1);
        let packet = |socket, len| {
            let mut packet = Packet {
                payload: fullsend_offload::Slice::copied_from(&vec![0; len]).into(),
                ..Packet::default()
            };
            packet.tx.socket = socket;
            packet
        };
        for _ in 0..10 {
            assert!(interface.push(now, packet(1, 1000)).is_ok());
        }
        // The data of connections leaves room for other packets.
        let max = (4096 / cost(&packet(0, 100))) as u64;
        for _ in 0..max {
            assert!(interface.push(now, packet(0, 100)).is_ok());
        }
        assert!(interface.push(now, packet(0, 100)).is_err());
        assert!(interface.push(now, packet(1, 1000)).is_ok());
        interface.drain_qdisc(now, &mut Vec::new(), 100);
        assert!(interface.qdisc.as_ref().unwrap().is_empty() && interface.uncharged_bytes == 0);
        assert!(
            interface.push(now, packet(0, 10_000)).is_ok(),
            "the first may be larger"
        );
    }
}
