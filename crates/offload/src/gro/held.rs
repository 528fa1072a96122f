//! The record of a held packet, and the rule that decides whether another may join it.

use fullsend_wire::Instant;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;

use super::candidate::Candidate;
use super::ids::{IpIds, LayerIds};
use super::predict::{HeaderKind, HeldHeaders};
use super::super_segment;
use crate::bytes::{be16, put16};
use crate::{Encap, Packet};

/// Upper bound (exclusive) of the IP length field.
const MAX_IP: u32 = 65_536;

/// The most datagrams that a device accepts in one super-segment (`UDP_MAX_SEGMENTS`).
const MAX_DATAGRAMS: u32 = 64;

/// The state of a held packet. Until a second packet of its flow arrives, only its age, its index
/// and `header_kind` are meaningful: with many busy flows most held packets never get a second one.
#[derive(Debug, Default)]
pub(super) struct HeldState {
    since: Instant,
    next: u32,
    /// Payload bytes that may still be added.
    remaining: u32,
    /// Index of the packet among those received since the last flush.
    index: u32,
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
    pub(super) header_kind: HeaderKind,
}

const _: () = assert!(size_of::<HeldState>() <= 40);

/// The changes that a packet makes to the record of the held one that it joins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    fixed_id: [bool; 2],
    next: u32,
    len: u32,
    count: u16,
    /// The FIN and PSH flags of the packet.
    fin_psh: u16,
    /// Whether nothing more may join.
    is_complete: bool,
}

/// The record of a packet that is held for its successor. It includes the first bytes of the
/// packet's headers, so that packets that do not follow are recognized without accessing the
/// packet.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct HeldPacket {
    pub(super) state: HeldState,
    pub(super) head: HeldHeaders,
}

// Two cache lines.
const _: () = assert!(size_of::<HeldPacket>() == 128);

impl HeldPacket {
    /// Assigns the record to the packet at index `index`, without reading its headers yet.
    #[inline]
    pub(super) fn hold(&mut self, index: usize, now: Instant) {
        self.state.since = now;
        self.state.index = index as u32;
        self.state.merged = false;
        self.state.header_kind = HeaderKind::Unknown;
    }

    /// Records the fields that a second packet is compared with.
    pub(super) fn read(&mut self, packet: &Packet, max_size: u32) {
        let (layers, header) = (&packet.layers, packet.header.as_slice());
        let candidate = Candidate::<LayerIds>::from_packet(header, layers, packet, false);
        let header_kind = HeaderKind::of(layers, header.len());
        self.state = HeldState {
            next: candidate.next,
            remaining: remaining(packet, &candidate, max_size),
            size: candidate.size,
            count: candidate.count,
            ip_id: candidate.ids.both(),
            network: layers.network,
            transport: layers.transport,
            header_len: header.len() as u16,
            fixed_id: candidate.fixed_id.unwrap_or_default(),
            merged: false,
            header_kind,
            ..self.state
        };
        if matches!(header_kind, HeaderKind::TcpV4 | HeaderKind::TcpV6) {
            self.head = HeldHeaders::of(header, layers);
        }
    }

    #[inline]
    pub(super) fn since(&self) -> Instant {
        self.state.since
    }

    #[inline]
    pub(super) fn index(&self) -> usize {
        self.state.index as usize
    }

    #[inline]
    pub(super) fn move_to(&mut self, index: usize) {
        self.state.index = index as u32;
    }

    /// Returns the update of the record if the packet continues this one in sequence number and
    /// size.
    #[inline(always)]
    pub(super) fn accepts<I: IpIds>(&self, candidate: &Candidate<I>) -> Option<Merge> {
        let state = &self.state;
        let size_fits = if candidate.is_gso() {
            candidate.size == state.size
        } else {
            candidate.len <= u32::from(state.size)
        };
        let fits = candidate.seq == state.next
            && candidate.len > 0
            && size_fits
            && candidate.len <= state.remaining
            && !candidate.flush;
        if !fits {
            return None;
        }
        let is_short = !candidate.is_gso() && candidate.size < state.size;
        Some(Merge {
            fixed_id: candidate.ids.check(state, candidate.fixed_id)?,
            next: candidate.next,
            len: candidate.len,
            count: candidate.count,
            fin_psh: candidate.flags.0 & (TcpFlags::FIN.0 | TcpFlags::PSH.0),
            is_complete: is_short || candidate.ends_super_segment(),
        })
    }

    /// Appends the payload of `next` to `packet`, the one held. Returns whether nothing more may
    /// join it.
    #[inline(always)]
    pub(super) fn merge(&mut self, merge: Merge, packet: &mut Packet, next: &mut Packet) -> bool {
        let state = &mut self.state;
        debug_assert!(state.header_kind != HeaderKind::Unknown);
        state.fixed_id = merge.fixed_id;
        state.merged = true;
        state.count += merge.count;
        state.remaining -= merge.len;
        state.next = merge.next;
        let skip = if next.header.is_empty() {
            usize::from(state.header_len)
        } else {
            0
        };
        packet.payload.append_skipping(&mut next.payload, skip);
        if merge.fin_psh != 0 {
            let at = usize::from(state.transport) + 12;
            let word = be16(&packet.header, at) | merge.fin_psh;
            put16(&mut packet.header, at, word);
        }
        merge.is_complete
    }

    /// Rewrites the headers as those of a super-segment if packets were merged.
    #[inline]
    pub(super) fn complete(&mut self, packets: &mut [Packet]) {
        if self.state.merged {
            super_segment::write_headers(&self.state, &mut packets[self.index()]);
            self.state.merged = false;
        }
    }
}

/// Returns the payload bytes that may be added to a packet.
#[inline]
fn remaining<I>(packet: &Packet, candidate: &Candidate<I>, max_size: u32) -> u32 {
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
    let more = segments.saturating_sub(u32::from(candidate.count)) * u32::from(candidate.size);
    limit.saturating_sub(1 + span).min(more)
}
