//! A packet that is held, and whether another may join it.

use fullsend_units::Instant;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;

use super::flow::Flow;
use super::ids::Ids;
use super::predict::{self, Shape};
use super::super_segment;
use crate::bytes::{be16, be32, put16};
use crate::{Checksum, Encap, Layers, Packet};

/// Flags of a segment that nothing may follow in a super-segment.
pub(super) const LAST: TcpFlags = TcpFlags(
    TcpFlags::URG.0 | TcpFlags::PSH.0 | TcpFlags::RST.0 | TcpFlags::SYN.0 | TcpFlags::FIN.0,
);

/// What IP's length fields can tell.
const MAX_IP: u32 = 65_536;

/// Datagrams that a device cuts a super-segment into at most (`UDP_MAX_SEGMENTS`).
const MAX_DATAGRAMS: u32 = 64;

/// What a packet would do to the one held before it.
pub(super) struct Step<I> {
    /// TCP's sequence number, and what it must be next. Both 0 for UDP, which has none.
    seq: u32,
    next: u32,
    /// Payload bytes.
    len: u32,
    /// Payload bytes of each segment.
    size: u16,
    /// Segments it stands for.
    count: u16,
    /// Of each layer, if it stands for several: they all carry one IP ID.
    fixed_id: Option<[bool; 2]>,
    flags: TcpFlags,
    ids: I,
    /// It must not be held or join, though its flow must not overtake it.
    flush: bool,
}

impl<I: Ids> Step<I> {
    /// What a TCP `packet`, whose headers are `header` and parsed, would do; `flush` says that it
    /// must neither join nor be held.
    #[inline(always)]
    pub(super) fn tcp(
        header: &[u8],
        transport: usize,
        packet: &Packet,
        ids: I,
        flush: bool,
    ) -> Self {
        let seq = be32(header, transport + 4);
        let len = (packet.len() - header.len()) as u32;
        // No sum over these headers gives 0xffff: whoever wrote it meant 0, and cutting would
        // write 0.
        let odd_checksum = be16(header, transport + 16) == 0xffff || ids.has_odd_checksum();
        let mut step = Self {
            seq,
            next: seq.wrapping_add(len),
            len,
            size: len as u16,
            count: 1,
            fixed_id: None,
            flags: TcpFlags(be16(header, transport + 12) & 0x1ff),
            ids,
            flush: flush || (odd_checksum && packet.offload.checksum != Checksum::Partial),
        };
        if packet.offload.gso_size != 0 {
            step.count_segments(packet);
        }
        step
    }

    /// The same of UDP.
    pub(super) fn udp(
        header: &[u8],
        transport: usize,
        packet: &Packet,
        ids: I,
        flush: bool,
    ) -> Self {
        let len = (packet.len() - header.len()) as u32;
        // Cutting writes a checksum to each.
        let unsummed = be16(header, transport + 6) == 0;
        let mut step = Self {
            seq: 0,
            next: 0,
            len,
            size: len as u16,
            count: 1,
            fixed_id: None,
            flags: TcpFlags(0),
            flush: flush
                || (unsummed || ids.has_odd_checksum())
                    && packet.offload.checksum != Checksum::Partial,
            ids,
        };
        if packet.offload.gso_size != 0 {
            step.count_segments(packet);
        }
        step
    }

    /// A device says of a super-segment how long its segments are, not always how many.
    #[cold]
    fn count_segments(&mut self, packet: &Packet) {
        let size = u32::from(packet.offload.gso_size);
        if self.len <= size {
            return;
        }
        match u16::try_from(self.len.div_ceil(size)) {
            Ok(count) => self.count = count,
            Err(_) => self.flush = true,
        }
        self.size = packet.offload.gso_size;
        self.fixed_id = Some(packet.offload.fixed_id);
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
pub(super) struct Control {
    since: Instant,
    next: u32,
    /// Payload bytes that may still join.
    room: u32,
    /// Payload bytes of each segment.
    pub(super) size: u16,
    /// Segments held.
    pub(super) count: u16,
    /// IPv4 IDs of the first: outer and inner.
    pub(super) ip_id: [u16; 2],
    /// All segments have the first one's ID. Meaningful when `count` is above 1.
    pub(super) fixed_id: [bool; 2],
    merged: bool,
    shape: Shape,
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
    /// Takes a packet into an empty place, and leaves an empty one behind.
    #[inline]
    pub(super) fn hold<I: Ids>(
        &mut self,
        packet: &mut Packet,
        step: &Step<I>,
        now: Instant,
        max_size: u32,
    ) {
        self.control = Control {
            since: now,
            next: step.next,
            room: room(packet, step, max_size),
            size: step.size,
            count: step.count,
            ip_id: step.ids.both(),
            fixed_id: step.fixed_id.unwrap_or_default(),
            merged: false,
            shape: Shape::of(&packet.layers),
        };
        // In place: packets are too big to be moved often.
        core::mem::swap(&mut self.packet, packet);
    }

    #[inline]
    pub(super) fn since(&self) -> Instant {
        self.control.since
    }

    #[inline]
    pub(super) fn shape(&self) -> Shape {
        self.control.shape
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
    /// this packet, whose shape this is.
    #[inline(always)]
    pub(super) fn predicts<const V6: bool, const EXT: bool>(
        &self,
        packet: &Packet,
    ) -> Option<usize> {
        let (head, layers) = (&self.packet.header, &self.packet.layers);
        let apart = packet.header.len();
        ((apart == 0 || apart == head.len())
            && predict::continues::<V6, EXT>(packet.front(), packet.len(), head, layers))
        .then_some(head.len())
    }

    /// The same for other shapes.
    pub(super) fn predicts_any(&self, packet: &Packet) -> Option<usize> {
        let (head, layers) = (&self.packet.header, &self.packet.layers);
        let apart = packet.header.len();
        ((apart == 0 || apart == head.len())
            && predict::continues_any(packet.front(), packet.len(), head, layers))
        .then_some(head.len())
    }

    /// Nothing but what joining may change sets the packet's headers apart.
    #[inline]
    pub(super) fn is_like(&self, flow: &Flow<'_>) -> bool {
        self.flow().is_some_and(|head| flow.is_like(&head))
    }

    /// The packet continues this one in number and size: which IDs stay the same.
    #[inline(always)]
    pub(super) fn accepts<I: Ids>(&self, step: &Step<I>) -> Option<[bool; 2]> {
        let control = &self.control;
        let size_fits = if step.is_gso() {
            step.size == control.size
        } else {
            step.len <= u32::from(control.size)
        };
        // CWR stands on the first segment only when a super-segment is cut, so it cannot join.
        let fits = step.seq == control.next
            && step.len > 0
            && size_fits
            && step.len <= control.room
            && !step.flush
            && !step.flags.contains(TcpFlags::CWR);
        if fits {
            step.ids.follow(control, step.fixed_id)
        } else {
            None
        }
    }

    /// Takes the packet's payload; its headers are this one's.
    #[inline(always)]
    pub(super) fn join<I: Ids>(
        &mut self,
        step: &Step<I>,
        fixed_id: [bool; 2],
        packet: &mut Packet,
        header_len: usize,
    ) {
        self.control.fixed_id = fixed_id;
        self.control.merged = true;
        self.control.count += step.count;
        self.control.room -= step.len;
        self.control.next = step.next;
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
            super_segment::describe(&self.control, &mut packet);
        }
        packet
    }
}

/// Payload bytes that may join a packet.
fn room<I>(packet: &Packet, step: &Step<I>, max_size: u32) -> u32 {
    let layers = &packet.layers;
    let tcp = layers.protocol == protocol::TCP;
    // The length fields of tunnels and of UDP do not know 0.
    let limit = if tcp && layers.encap == Encap::None {
        max_size
    } else {
        max_size.min(MAX_IP)
    };
    let span = (packet.len() - usize::from(layers.network[0])) as u32;
    // All but the last are full, so this bounds their number too.
    let segments = if tcp { 65_535 } else { MAX_DATAGRAMS };
    let more = segments.saturating_sub(u32::from(step.count)) * u32::from(step.size);
    limit.saturating_sub(1 + span).min(more)
}
