//! One direction of a gateway: what one device brings, joined, leaves through another.

use std::collections::VecDeque;
use std::io;

use fullsend_device::{Caps, Device};
use fullsend_offload::{Encap, Gro, GroConfig, GsoKind, Link, Packet, Tunnels, segment};
use fullsend_units::Instant;
use fullsend_wire::numbers::ethertype;

/// Frames to take from the device in one poll.
const BATCH: usize = 256;

/// GRO, and GSO behind it where the second device does not cut by itself.
pub(crate) struct Forward {
    gro: Gro,
    frames: Vec<Packet>,
    joined: Vec<Packet>,
    cut: Vec<Packet>,
    out: VecDeque<Packet>,
    pub(crate) carried: Carried,
}

/// What passed, of the packets that carry payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carried {
    /// Packets as they came.
    pub(crate) segments: u64,
    /// Packets and super-segments that were made of them.
    pub(crate) super_segments: u64,
    /// The largest of them: bytes, and packets.
    pub(crate) largest: usize,
    pub(crate) most: u32,
    /// Super-segments in a UDP tunnel; behind IPv6 extension headers.
    pub(crate) tunnelled: u64,
    pub(crate) extended: u64,
    /// Bytes in all.
    pub(crate) bytes: u64,
}

impl Forward {
    /// For devices whose frames begin with `link`.
    pub(crate) fn new(link: Link) -> Self {
        Self {
            gro: Gro::new(GroConfig {
                link,
                enabled: true,
                max_size: 65_536,
                tunnels: Tunnels::STANDARD,
            }),
            frames: Vec::new(),
            joined: Vec::new(),
            cut: Vec::new(),
            out: VecDeque::new(),
            carried: Carried::default(),
        }
    }

    /// Everything that `from` has now goes to `to`; how many frames came.
    pub(crate) fn poll(
        &mut self,
        from: &mut impl Device,
        to: &mut impl Device,
    ) -> io::Result<usize> {
        let frames = from.receive(&mut self.frames, BATCH)?;
        // Nothing is held from poll to poll, so no clock is needed.
        self.gro.receive_batch(Instant::ZERO, &mut self.frames);
        self.gro.flush(&mut self.joined);
        let caps = to.caps();
        for packet in self.joined.drain(..) {
            self.carried.count(&packet);
            // A VPN would do its work here, once for a super-segment.
            if is_cut_by(&caps, &packet) {
                self.out.push_back(packet);
            } else {
                segment(packet, &mut self.cut);
                self.out.extend(self.cut.drain(..));
            }
        }
        to.transmit(&mut self.out)?;
        Ok(frames)
    }
}

/// The device cuts the packet, and completes its checksum. None cuts through a tunnel.
fn is_cut_by(caps: &Caps, packet: &Packet) -> bool {
    let cuts = match packet.offload.kind {
        GsoKind::None => true,
        GsoKind::TcpV4 => caps.tso4,
        GsoKind::TcpV6 => caps.tso6,
        GsoKind::Udp => caps.uso,
    };
    cuts && caps.tx_checksum && packet.layers.encap == Encap::None
}

impl Carried {
    fn count(&mut self, packet: &Packet) {
        if packet.layers.transport == 0 || packet.payload.is_empty() {
            return;
        }
        self.segments += u64::from(packet.segments());
        self.super_segments += 1;
        self.largest = self.largest.max(packet.len());
        self.most = self.most.max(packet.segments());
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

    /// Segments per super-segment.
    pub(crate) fn mean(&self) -> f64 {
        self.segments as f64 / self.super_segments.max(1) as f64
    }
}
