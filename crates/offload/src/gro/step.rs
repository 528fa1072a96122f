//! What a packet would do to the one held before it.

use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;

use super::ids::{Ids, LayerIds};
use crate::bytes::{be16, be32};
use crate::parse::Walk;
use crate::{Checksum, Encap, Layers, Packet};

/// Flags of a segment that nothing may follow in a super-segment.
const LAST: TcpFlags = TcpFlags(
    TcpFlags::URG.0 | TcpFlags::PSH.0 | TcpFlags::RST.0 | TcpFlags::SYN.0 | TcpFlags::FIN.0,
);

/// A TCP packet that nothing may follow in a super-segment, as its flags say or for want of
/// payload.
#[inline]
pub(super) fn is_last(packet: &Packet, walk: &Walk) -> bool {
    walk.layers.protocol == protocol::TCP && {
        let at = usize::from(walk.layers.transport) + 12;
        let flags = TcpFlags(be16(packet.front(), at));
        flags.intersects(LAST) || packet.len() == walk.header_len
    }
}

/// What a packet brings.
#[derive(Debug)]
pub(super) struct Step<I> {
    /// TCP's sequence number, and what it must be next. Of UDP both are the ports.
    pub(super) seq: u32,
    pub(super) next: u32,
    /// Payload bytes.
    pub(super) len: u32,
    /// Payload bytes of each segment.
    pub(super) size: u16,
    /// Segments it stands for.
    pub(super) count: u16,
    /// Of each layer, if it stands for several: they all carry one IP ID.
    pub(super) fixed_id: Option<[bool; 2]>,
    pub(super) flags: TcpFlags,
    pub(super) ids: I,
    /// It must not be held or join, though its flow must not overtake it.
    pub(super) flush: bool,
}

impl<I: Ids> Step<I> {
    /// What a TCP segment that is one packet would do, which has this header and `len` bytes of
    /// payload.
    #[inline(always)]
    pub(super) fn segment(tcp: &[u8; 20], len: u32, ids: I, checksum: Checksum) -> Self {
        let seq = be32(tcp, 4);
        let flags = TcpFlags(be16(tcp, 12) & 0x1ff);
        // No sum over these headers gives 0xffff: whoever wrote it meant 0, and cutting would
        // write 0.
        let odd_checksum = be16(tcp, 16) == 0xffff || ids.has_odd_checksum();
        Self {
            seq,
            next: seq.wrapping_add(len),
            len,
            size: len as u16,
            count: 1,
            fixed_id: None,
            flags,
            ids,
            flush: odd_checksum && checksum != Checksum::Partial,
        }
    }

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
        let len = (packet.len() - header.len()) as u32;
        let tcp = header[transport..].first_chunk().unwrap_or(&[0; 20]);
        let mut step = Self::segment(tcp, len, ids, packet.offload.checksum);
        step.flush |= flush;
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
        let odd_checksum = unsummed || ids.has_odd_checksum();
        let ports = be32(header, transport);
        let mut step = Self {
            seq: ports,
            next: ports,
            len,
            size: len as u16,
            count: 1,
            fixed_id: None,
            flags: TcpFlags(0),
            ids,
            flush: flush || odd_checksum && packet.offload.checksum != Checksum::Partial,
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
        // Its first segment alone has CWR.
        self.flush |= self.flags.contains(TcpFlags::CWR) && !packet.offload.repeats_cwr;
    }

    #[inline]
    pub(super) fn is_gso(&self) -> bool {
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
}

impl Step<LayerIds> {
    /// What a packet of any shape would do.
    #[inline]
    pub(super) fn any(header: &[u8], layers: &Layers, packet: &Packet, flush: bool) -> Self {
        let ids = LayerIds::new(header, layers);
        let transport = usize::from(layers.transport);
        // Of a tunnelled packet whose checksum is not complete, nobody says which one that is.
        let unclear = layers.encap != Encap::None
            && packet.offload.checksum == Checksum::Partial
            && packet.offload.gso_size == 0;
        if layers.protocol == protocol::UDP {
            Self::udp(header, transport, packet, ids, flush || unclear)
        } else {
            Self::tcp(header, transport, packet, ids, flush || unclear)
        }
    }
}
