//! The record of a held packet, and the rule that decides whether another may join it.

use fullsend_units::Instant;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;

use super::ids::{Ids, LayerIds};
use super::predict::{Head, Shape};
use super::step::Step;
use super::super_segment;
use crate::bytes::{be16, put16};
use crate::{Encap, Packet};

/// Upper bound (exclusive) of the IP length field.
const MAX_IP: u32 = 65_536;

/// The most datagrams that a device accepts in one super-segment (`UDP_MAX_SEGMENTS`).
const MAX_DATAGRAMS: u32 = 64;

/// The state of a held packet. Until a second packet of its flow arrives, only its age, its index
/// and `shape` are meaningful: with many busy flows most held packets never get a second one.
#[derive(Debug, Default)]
pub(super) struct Control {
    since: Instant,
    next: u32,
    /// Payload bytes that may still be added.
    room: u32,
    /// Index of the packet among those received since the last flush.
    place: u32,
    /// Payload bytes per segment.
    pub(super) size: u16,
    /// Number of segments.
    pub(super) count: u16,
    /// IPv4 IDs of the first segment, outer and inner.
    pub(super) ip_id: [u16; 2],
    /// The offsets of both network headers, of the transport header, and of the payload.
    pub(super) network: [u16; 2],
    pub(super) transport: u16,
    pub(super) header_len: u16,
    /// Whether all segments have the ID of the first one. Meaningful if `count` is above 1.
    pub(super) fixed_id: [bool; 2],
    merged: bool,
    pub(super) shape: Shape,
}

const _: () = assert!(size_of::<Control>() <= 40);

/// The changes that a packet makes to the record of the held one that it joins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining {
    fixed_id: [bool; 2],
    next: u32,
    len: u32,
    count: u16,
    /// The FIN and PSH flags of the packet.
    last: u16,
    /// Whether nothing more may join.
    ends: bool,
}

/// The record of a packet that is held for its successor. It includes the first bytes of the
/// packet's headers, so that packets that do not follow are recognized without accessing the
/// packet.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Held {
    pub(super) control: Control,
    pub(super) head: Head,
}

// Two cache lines.
const _: () = assert!(size_of::<Held>() == 128);

impl Held {
    /// Assigns the record to the packet at index `place`, without reading its headers yet.
    #[inline]
    pub(super) fn hold(&mut self, place: usize, now: Instant) {
        self.control.since = now;
        self.control.place = place as u32;
        self.control.merged = false;
        self.control.shape = Shape::Unread;
    }

    /// Records the fields that a second packet is compared with.
    #[inline(never)]
    pub(super) fn read(&mut self, packet: &Packet, max_size: u32) {
        let (layers, header) = (&packet.layers, packet.header.as_slice());
        let step = Step::<LayerIds>::any(header, layers, packet, false);
        let shape = Shape::of(layers, header.len());
        self.control = Control {
            next: step.next,
            room: room(packet, &step, max_size),
            size: step.size,
            count: step.count,
            ip_id: step.ids.both(),
            network: layers.network,
            transport: layers.transport,
            header_len: header.len() as u16,
            fixed_id: step.fixed_id.unwrap_or_default(),
            merged: false,
            shape,
            ..self.control
        };
        if matches!(shape, Shape::V4 | Shape::V6) {
            self.head = Head::of(header, layers);
        }
    }

    #[inline]
    pub(super) fn since(&self) -> Instant {
        self.control.since
    }

    #[inline]
    pub(super) fn place(&self) -> usize {
        self.control.place as usize
    }

    #[inline]
    pub(super) fn move_to(&mut self, place: usize) {
        self.control.place = place as u32;
    }

    /// Returns the update of the record if the packet continues this one in sequence number and
    /// size.
    #[inline(always)]
    pub(super) fn accepts<I: Ids>(&self, step: &Step<I>) -> Option<Joining> {
        let control = &self.control;
        let size_fits = if step.is_gso() {
            step.size == control.size
        } else {
            step.len <= u32::from(control.size)
        };
        let fits = step.seq == control.next
            && step.len > 0
            && size_fits
            && step.len <= control.room
            && !step.flush;
        if !fits {
            return None;
        }
        let is_short = !step.is_gso() && step.size < control.size;
        Some(Joining {
            fixed_id: step.ids.follow(control, step.fixed_id)?,
            next: step.next,
            len: step.len,
            count: step.count,
            last: step.flags.0 & (TcpFlags::FIN.0 | TcpFlags::PSH.0),
            ends: is_short || step.flush_now(),
        })
    }

    /// Appends the payload of `next` to `packet`, the one held. Returns whether nothing more may
    /// join it.
    #[inline(always)]
    pub(super) fn join(
        &mut self,
        joining: Joining,
        packet: &mut Packet,
        next: &mut Packet,
    ) -> bool {
        let control = &mut self.control;
        debug_assert!(control.shape != Shape::Unread);
        control.fixed_id = joining.fixed_id;
        control.merged = true;
        control.count += joining.count;
        control.room -= joining.len;
        control.next = joining.next;
        let skip = if next.header.is_empty() {
            usize::from(control.header_len)
        } else {
            0
        };
        packet.payload.append_behind(&mut next.payload, skip);
        if joining.last != 0 {
            let at = usize::from(control.transport) + 12;
            let word = be16(&packet.header, at) | joining.last;
            put16(&mut packet.header, at, word);
        }
        joining.ends
    }

    /// Rewrites the headers as those of a super-segment if packets were merged.
    #[inline]
    pub(super) fn complete(&mut self, packets: &mut [Packet]) {
        if self.control.merged {
            super_segment::describe(&self.control, &mut packets[self.place()]);
            self.control.merged = false;
        }
    }
}

/// Returns the payload bytes that may be added to a packet.
#[inline]
fn room<I>(packet: &Packet, step: &Step<I>, max_size: u32) -> u32 {
    let layers = &packet.layers;
    let tcp = layers.protocol == protocol::TCP;
    // A length field of 0 is not defined for tunnels and UDP.
    let limit = if tcp && layers.encap == Encap::None {
        max_size
    } else {
        max_size.min(MAX_IP)
    };
    let span = (packet.len() - usize::from(layers.network[0])) as u32;
    // All segments but the last are full, so this limits their number too.
    let segments = if tcp { 65_535 } else { MAX_DATAGRAMS };
    let more = segments.saturating_sub(u32::from(step.count)) * u32::from(step.size);
    limit.saturating_sub(1 + span).min(more)
}
