//! The properties of a received packet that decide whether it joins the held one.

use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;

use super::ids::{IpIds, LayerIds};
use crate::bytes::{be16, be32};
use crate::parse::ParsedHeaders;
use crate::{Checksum, Encap, Layers, Packet};

/// Flags that end a super-segment.
const FLUSH_FLAGS: TcpFlags = TcpFlags(
    TcpFlags::URG.0 | TcpFlags::PSH.0 | TcpFlags::RST.0 | TcpFlags::SYN.0 | TcpFlags::FIN.0,
);

/// Returns whether a TCP packet ends a super-segment, because of its flags or because it has no
/// payload.
#[inline]
pub(super) fn ends_super_segment(packet: &Packet, headers: &ParsedHeaders) -> bool {
    headers.layers.protocol == protocol::TCP && {
        let at = usize::from(headers.layers.transport) + 12;
        let flags = TcpFlags(be16(packet.leading_bytes(), at));
        flags.intersects(FLUSH_FLAGS) || packet.len() == headers.header_len
    }
}

/// The properties of a received packet that decide whether it joins the held one.
#[derive(Debug)]
pub(super) struct Candidate<I> {
    /// TCP's sequence number, and that of the following packet (`next`). For UDP both are the
    /// ports.
    pub(super) seq: u32,
    pub(super) next: u32,
    /// Payload bytes in all segments.
    pub(super) len: u32,
    /// Payload bytes per segment.
    pub(super) size: u16,
    /// Number of segments.
    pub(super) count: u16,
    /// Whether all segments of a super-segment carry one IP ID, for each layer; `None` for other packets.
    pub(super) fixed_id: Option<[bool; 2]>,
    pub(super) flags: TcpFlags,
    pub(super) ids: I,
    /// Whether the packet must neither be held nor join. Packets of its flow must still not overtake it.
    pub(super) flush: bool,
}

impl<I: IpIds> Candidate<I> {
    /// Returns the properties of a single TCP segment with this header and `len` bytes of payload.
    #[inline(always)]
    pub(super) fn from_tcp_segment(tcp: &[u8; 20], len: u32, ids: I, checksum: Checksum) -> Self {
        let seq = be32(tcp, 4);
        let flags = TcpFlags(be16(tcp, 12) & 0x1ff);
        // No checksum computation gives 0xffff. The sender wrote it instead of 0, which
        // segmentation would write.
        let is_unrestorable = be16(tcp, 16) == 0xffff || ids.has_ffff_checksum();
        Self {
            seq,
            next: seq.wrapping_add(len),
            len,
            size: len as u16,
            count: 1,
            fixed_id: None,
            flags,
            ids,
            flush: is_unrestorable && checksum != Checksum::Partial,
        }
    }

    /// Returns the properties of a parsed TCP `packet` with this `header`. `flush` prevents it from
    /// joining and from being held.
    #[inline(always)]
    pub(super) fn from_tcp(
        header: &[u8],
        transport: usize,
        packet: &Packet,
        ids: I,
        flush: bool,
    ) -> Self {
        let len = (packet.len() - header.len()) as u32;
        let tcp = header[transport..].first_chunk().unwrap_or(&[0; 20]);
        let mut candidate = Self::from_tcp_segment(tcp, len, ids, packet.offload.checksum);
        candidate.flush |= flush;
        if packet.offload.gso_size != 0 {
            candidate.count_segments(packet);
        }
        candidate
    }

    /// Returns the properties of a parsed UDP `packet` with this `header`. `flush` prevents it from
    /// joining and from being held.
    pub(super) fn from_udp(
        header: &[u8],
        transport: usize,
        packet: &Packet,
        ids: I,
        flush: bool,
    ) -> Self {
        let len = (packet.len() - header.len()) as u32;
        // Segmentation writes a checksum to each datagram, and would not restore an absent one.
        let has_no_checksum = be16(header, transport + 6) == 0;
        let is_unrestorable = has_no_checksum || ids.has_ffff_checksum();
        let ports = be32(header, transport);
        let mut candidate = Self {
            seq: ports,
            next: ports,
            len,
            size: len as u16,
            count: 1,
            fixed_id: None,
            flags: TcpFlags(0),
            ids,
            flush: flush || is_unrestorable && packet.offload.checksum != Checksum::Partial,
        };
        if packet.offload.gso_size != 0 {
            candidate.count_segments(packet);
        }
        candidate
    }

    /// Computes the number of segments: a device always gives the size of each, but not always
    /// their number.
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
        // Only its first segment has CWR.
        self.flush |= self.flags.contains(TcpFlags::CWR) && !packet.offload.repeats_cwr;
    }

    #[inline]
    pub(super) fn is_gso(&self) -> bool {
        self.count > 1
    }

    /// Returns whether no packet may follow it in a super-segment.
    #[inline]
    pub(super) fn ends_super_segment(&self) -> bool {
        self.len == 0
            || self.flags.intersects(FLUSH_FLAGS)
            || (self.is_gso() && self.len != u32::from(self.size) * u32::from(self.count))
    }

    #[inline]
    pub(super) fn is_holdable(&self) -> bool {
        !self.flush && !self.ends_super_segment()
    }
}

impl Candidate<LayerIds> {
    /// Returns the properties of a parsed packet of any shape.
    #[inline]
    pub(super) fn from_packet(
        header: &[u8],
        layers: &Layers,
        packet: &Packet,
        flush: bool,
    ) -> Self {
        let ids = LayerIds::new(header, layers);
        let transport = usize::from(layers.transport);
        // A device does not report which checksum of a tunnelled packet is incomplete.
        let is_ambiguous = layers.encap != Encap::None
            && packet.offload.checksum == Checksum::Partial
            && packet.offload.gso_size == 0;
        if layers.protocol == protocol::UDP {
            Self::from_udp(header, transport, packet, ids, flush || is_ambiguous)
        } else {
            Self::from_tcp(header, transport, packet, ids, flush || is_ambiguous)
        }
    }
}
