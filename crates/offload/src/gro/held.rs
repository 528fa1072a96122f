//! A packet that is held, and whether another may join it.

use fullsend_units::Instant;
use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::ethertype;
use fullsend_wire::tcp::TcpFlags;

use super::flow::Flow;
use super::predict;
use crate::bytes::{be16, be32, put16};
use crate::{Checksum, GsoKind, Layers, Offload, Packet, checksum};

/// Flags of a segment that nothing may follow in a super-segment.
pub(super) const LAST: TcpFlags = TcpFlags(
    TcpFlags::URG.0 | TcpFlags::PSH.0 | TcpFlags::RST.0 | TcpFlags::SYN.0 | TcpFlags::FIN.0,
);

/// What a packet would do to the one held before it.
pub(super) struct Step {
    seq: u32,
    /// Payload bytes.
    len: u32,
    /// Bytes from the network header on.
    span: u32,
    /// Payload bytes of each segment.
    size: u16,
    /// Segments it stands for.
    count: u16,
    flags: TcpFlags,
    ip_id: u16,
    v6: bool,
    fixed_id: bool,
    /// It must not be held or join, though its flow must not overtake it.
    flush: bool,
}

impl Step {
    /// What `packet`, whose headers are `header` and parsed, would do; `flush` says that it must
    /// neither join nor be held.
    #[inline]
    pub(super) fn new(header: &[u8], layers: &Layers, packet: &Packet, flush: bool) -> Self {
        let offload = &packet.offload;
        let network = usize::from(layers.network[0]);
        let transport = usize::from(layers.transport);
        let v6 = layers.ethertype == ethertype::IPV6;
        let whole = packet.len();
        let len = (whole - header.len()) as u32;
        let is_gso = offload.gso_segs > 1;
        // No sum over these headers gives 0xffff: whoever wrote it meant 0, and cutting would
        // write 0.
        let odd_checksum =
            be16(header, transport + 16) == 0xffff || (!v6 && be16(header, network + 10) == 0xffff);
        Self {
            seq: be32(header, transport + 4),
            len,
            span: (whole - network) as u32,
            size: if is_gso { offload.gso_size } else { len as u16 },
            count: offload.gso_segs.max(1),
            flags: TcpFlags(be16(header, transport + 12) & 0x1ff),
            ip_id: if v6 { 0 } else { be16(header, network + 4) },
            v6,
            fixed_id: offload.fixed_id[1],
            flush: flush || (offload.checksum != Checksum::Partial && odd_checksum),
        }
    }

    #[inline]
    fn is_gso(&self) -> bool {
        self.count > 1
    }

    /// Nothing may follow it in a super-segment.
    #[inline]
    pub(super) fn flush_now(&self) -> bool {
        self.len == 0
            || self.flags.intersects(LAST)
            || (self.is_gso() && self.len != u32::from(self.size) * u32::from(self.count))
    }

    #[inline]
    pub(super) fn may_be_held(&self) -> bool {
        !self.flush && !self.flush_now()
    }

    /// It ends a super-segment by being shorter than what came before.
    #[inline]
    pub(super) fn is_short_for(&self, held: &Held) -> bool {
        !self.is_gso() && self.size < held.control.size
    }
}

/// What is kept about a held packet beside the packet.
#[derive(Debug, Default)]
struct Control {
    since: Instant,
    hash: u32,
    next_seq: u32,
    /// Bytes from the network header on.
    span: u32,
    /// Payload bytes of each segment.
    size: u16,
    /// Segments held.
    count: u16,
    /// IPv4 ID of the first.
    ip_id: u16,
    /// All segments have the first one's ID. Meaningful when `count` is above 1.
    fixed_id: bool,
    merged: bool,
}

// The record per held packet, with the offsets of both network headers.
const _: () = assert!(size_of::<Control>() + size_of::<[u16; 2]>() <= 40);

/// A packet waiting for its successor.
#[derive(Debug, Default)]
pub(super) struct Held {
    packet: Packet,
    control: Control,
}

impl Held {
    pub(super) fn new(packet: Packet, step: &Step, hash: u32, now: Instant) -> Self {
        Self {
            packet,
            control: Control {
                since: now,
                hash,
                next_seq: step.seq.wrapping_add(step.len),
                span: step.span,
                size: step.size,
                count: step.count,
                ip_id: step.ip_id,
                fixed_id: step.fixed_id,
                merged: false,
            },
        }
    }

    #[inline]
    pub(super) fn hash(&self) -> u32 {
        self.control.hash
    }

    #[inline]
    pub(super) fn since(&self) -> Instant {
        self.control.since
    }

    #[inline]
    pub(super) fn flow(&self) -> Option<Flow<'_>> {
        Flow::new(&self.packet.header, &self.packet.layers)
    }

    #[inline]
    pub(super) fn layers(&self) -> &Layers {
        &self.packet.layers
    }

    /// The length of its headers, if they show without a parse that it is of this flow and like
    /// this packet.
    #[inline]
    pub(super) fn predicts(&self, packet: &Packet) -> Option<usize> {
        let (head, layers) = (&self.packet.header, &self.packet.layers);
        let apart = packet.header.len();
        let v6 = layers.ethertype == ethertype::IPV6;
        ((apart == 0 || apart == head.len())
            && predict::continues(packet.front(), packet.len(), head, layers, v6))
        .then_some(head.len())
    }

    /// Nothing but what joining may change sets the packet's headers apart.
    #[inline]
    pub(super) fn is_like(&self, flow: &Flow<'_>) -> bool {
        self.flow().is_some_and(|head| flow.is_like(&head))
    }

    /// The packet continues this one in number and size.
    #[inline]
    pub(super) fn accepts(&self, step: &Step, max_size: u32) -> bool {
        let control = &self.control;
        let size_fits = if step.is_gso() {
            step.size == control.size
        } else {
            step.len <= u32::from(control.size)
        };
        let room =
            control.span + step.len < max_size && control.count.checked_add(step.count).is_some();
        // CWR stands on the first segment only when a super-segment is cut, so it cannot join.
        step.seq == control.next_seq
            && step.len > 0
            && size_fits
            && room
            && !step.flush
            && !step.flags.contains(TcpFlags::CWR)
            && (step.v6 || self.id_follows(step))
    }

    /// The ID is the first one's, or counts up by one a segment; the second segment decides.
    #[inline]
    fn id_follows(&self, step: &Step) -> bool {
        let fixed = self.fixed_id_with(step);
        let expected = if fixed { 0 } else { self.control.count };
        step.ip_id.wrapping_sub(self.control.ip_id) == expected
            && (!step.is_gso() || step.fixed_id == fixed)
    }

    #[inline]
    fn fixed_id_with(&self, step: &Step) -> bool {
        if self.control.count == 1 {
            step.ip_id == self.control.ip_id && !step.v6
        } else {
            self.control.fixed_id
        }
    }

    /// Takes the packet's payload; its headers are this one's.
    #[inline]
    pub(super) fn join(&mut self, step: &Step, packet: &mut Packet, header_len: usize) {
        self.control.fixed_id = self.fixed_id_with(step);
        self.control.merged = true;
        self.control.count += step.count;
        self.control.span += step.len;
        self.control.next_seq = self.control.next_seq.wrapping_add(step.len);
        let last = step.flags.0 & (TcpFlags::FIN.0 | TcpFlags::PSH.0);
        if last != 0 {
            let at = usize::from(self.packet.layers.transport) + 12;
            let word = be16(&self.packet.header, at) | last;
            put16(&mut self.packet.header, at, word);
        }
        let skip = if packet.header.is_empty() {
            header_len
        } else {
            0
        };
        self.packet.payload.append_behind(&mut packet.payload, skip);
    }

    /// The packet as it goes on: unchanged, or a super-segment.
    #[inline]
    pub(super) fn complete(&mut self) -> Packet {
        let mut packet = core::mem::take(&mut self.packet);
        if self.control.merged {
            self.control.describe(&mut packet);
        }
        packet
    }
}

impl Control {
    /// Makes the headers those of a super-segment.
    fn describe(&self, packet: &mut Packet) {
        let Packet {
            header,
            payload,
            layers,
            offload,
            ..
        } = packet;
        let network = usize::from(layers.network[0]);
        let transport = usize::from(layers.transport);
        let v6 = layers.ethertype == ethertype::IPV6;
        // Beyond 64 KiB the field says 0 and the packet's own length counts.
        let field = |len: usize| u16::try_from(len).unwrap_or(0);
        let behind_network = header.len() - network + payload.len();
        if v6 {
            put16(header, network + 4, field(behind_network - 40));
        } else {
            put16(header, network + 2, field(behind_network));
            put16(header, network + 10, 0);
            let value = sum(&header[network..network + 20]).checksum();
            put16(header, network + 10, value);
        }
        let len = header.len() - transport + payload.len();
        let partial = checksum::pseudo(header, layers, v6, len).fold();
        put16(header, transport + 16, partial);
        *offload = Offload {
            gso_size: self.size,
            gso_segs: self.count,
            kind: if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 },
            checksum: Checksum::Partial,
            fixed_id: [self.fixed_id; 2],
        };
    }
}
