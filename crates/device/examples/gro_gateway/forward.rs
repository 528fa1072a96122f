//! One direction of a gateway: coalesces the packets of one device and sends them through another.

use std::collections::VecDeque;
use std::io;

use fullsend_device::{Caps, Device};
use fullsend_offload::{Encap, Gro, GroConfig, GsoKind, Link, Packet, Tunnels, segment};
use fullsend_wire::Instant;
use fullsend_wire::numbers::ethertype;

/// Most frames received from the device in one poll.
const BATCH: usize = 256;

/// GRO, followed by GSO if the second device does not segment.
pub(crate) struct Forwarder {
    gro: Gro,
    frames: Vec<Packet>,
    coalesced: Vec<Packet>,
    segmented: Vec<Packet>,
    out: VecDeque<Packet>,
    pub(crate) stats: ForwardStats,
}

/// Counters of the packets that carry payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ForwardStats {
    /// Packets received.
    pub(crate) segments: u64,
    /// Packets and super-segments after GRO.
    pub(crate) super_segments: u64,
    /// Length of the largest super-segment in bytes, and the most segments of one.
    pub(crate) max_len: usize,
    pub(crate) max_segments: u32,
    /// Super-segments in a UDP tunnel, and super-segments with IPv6 extension headers.
    pub(crate) tunnelled: u64,
    pub(crate) extended: u64,
    /// Bytes of payload.
    pub(crate) bytes: u64,
}

impl Forwarder {
    /// Returns a direction for devices with frames of `link`.
    pub(crate) fn new(link: Link) -> Self {
        Self {
            gro: Gro::new(GroConfig {
                link,
                enabled: true,
                max_size: 65_536,
                tunnels: Tunnels::STANDARD,
            }),
            frames: Vec::new(),
            coalesced: Vec::new(),
            segmented: Vec::new(),
            out: VecDeque::new(),
            stats: ForwardStats::default(),
        }
    }

    /// Forwards the frames available at `from` to `to`; returns the number of frames received.
    pub(crate) fn poll(
        &mut self,
        from: &mut impl Device,
        to: &mut impl Device,
    ) -> io::Result<usize> {
        let frames = from.receive(&mut self.frames, BATCH)?;
        // GRO holds no packet from poll to poll, so that no clock is needed.
        self.gro.receive_batch(Instant::ZERO, &mut self.frames);
        self.gro.flush(&mut self.coalesced);
        let caps = to.caps();
        for packet in self.coalesced.drain(..) {
            self.stats.count(&packet);
            // A VPN would process the packet here, once per super-segment.
            if is_segmented_by(&caps, &packet) {
                self.out.push_back(packet);
            } else {
                segment(packet, &mut self.segmented);
                self.out.extend(self.segmented.drain(..));
            }
        }
        to.transmit(&mut self.out)?;
        Ok(frames)
    }
}

/// Returns whether the device segments the packet and completes its checksum. No device segments
/// within a tunnel.
fn is_segmented_by(caps: &Caps, packet: &Packet) -> bool {
    let is_supported = match packet.offload.kind {
        GsoKind::None => true,
        GsoKind::TcpV4 => caps.tso4,
        GsoKind::TcpV6 => caps.tso6,
        GsoKind::Udp => caps.uso,
    };
    is_supported && caps.tx_checksum && packet.layers.encap == Encap::None
}

impl ForwardStats {
    fn count(&mut self, packet: &Packet) {
        if packet.layers.transport == 0 || packet.payload.is_empty() {
            return;
        }
        self.segments += u64::from(packet.segments());
        self.super_segments += 1;
        self.max_len = self.max_len.max(packet.len());
        self.max_segments = self.max_segments.max(packet.segments());
        if packet.segments() > 1 {
            let layers = &packet.layers;
            let extended = layers.ethertype == ethertype::IPV6
                && layers.encap == Encap::None
                && layers.transport - layers.network[0] > 40;
            self.tunnelled += u64::from(layers.encap == Encap::Udp);
            self.extended += u64::from(extended);
        }
        self.bytes += packet.payload.len() as u64;
    }

    /// Returns the mean number of segments per super-segment.
    pub(crate) fn mean(&self) -> f64 {
        self.segments as f64 / self.super_segments.max(1) as f64
    }
}
