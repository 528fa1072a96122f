//! Generic segmentation offload (GSO): splits a super-segment into its packets.

use alloc::vec::Vec;

use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpFlags;

use crate::bytes::{be16, be32, put16, put32};
use crate::checksum::sum_chain;
use crate::{Chain, Encap, GsoKind, HeaderBuf, Layers, Offload, Packet, Slice, checksum};

mod network;
#[cfg(test)]
mod tests;
mod tunnel;

use network::IpTemplate;
use tunnel::OuterTemplate;

/// Splits a super-segment into packets of `gso_size` payload bytes and appends them to `out`.
///
/// Their headers and checksums are complete. The payload is shared, not copied. The last packet
/// gets the [`TxToken`](crate::TxToken). A packet that needs no segmentation only has its checksum
/// completed. A super-segment whose headers do not match its [`GsoKind`] is dropped.
///
/// ```
/// use fullsend_offload::{Checksum, GsoKind, Link, Offload, Packet, Slice, segment};
///
/// // TCP over IPv4, 40 bytes of headers, whose checksum GSO completes.
/// let mut frame = vec![
///     0x45, 0, 11, 224, 0, 1, 0x40, 0, 64, 6, 0x1b, 0x15, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
///     4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0, // TCP
/// ];
/// frame.resize(40 + 3000, 0);
/// let mut packet = Packet::from_frame(Slice::copied_from(&frame));
/// packet.offload = Offload {
///     kind: GsoKind::TcpV4,
///     gso_size: 1460,
///     checksum: Checksum::Partial,
///     ..Offload::default()
/// };
/// packet.parse(Link::Ip).unwrap();
///
/// let mut segments = Vec::new();
/// segment(packet, &mut segments);
/// let lengths: Vec<usize> = segments.iter().map(Packet::len).collect();
/// assert_eq!(lengths, [1500, 1500, 40 + 80]);
/// ```
pub fn segment(mut packet: Packet, out: &mut Vec<Packet>) {
    let size = usize::from(packet.offload.gso_size);
    if packet.offload.kind == GsoKind::None || size == 0 || packet.payload.len() <= size {
        packet.offload = Offload {
            checksum: packet.offload.checksum,
            ..Offload::default()
        };
        packet.complete_checksum();
        out.push(packet);
        return;
    }
    packet.remove_jumbo_option();
    let Some(template) = Template::new(&packet) else {
        return;
    };
    let total = packet.payload.len();
    let mut cursor = PayloadCursor::new(&packet.payload);
    let first = out.len();
    // Packets are written in place: they are too large to be built elsewhere and moved.
    out.resize_with(first + total.div_ceil(size), Packet::default);
    let segments = &mut out[first..];
    // In a loop of its own: reference-count updates among the sums would prevent the processor from
    // prefetching payload.
    for segment in segments.iter_mut() {
        cursor.append_next(size, &mut segment.payload);
        segment.layers = packet.layers;
    }
    let mut start = 0;
    for (index, segment) in segments.iter_mut().enumerate() {
        let len = segment.payload.len();
        let position = SegmentPosition {
            index: index as u16,
            start: start as u32,
            len,
            last: start + len == total,
            payload_sum: sum_chain(Sum::ZERO, &segment.payload),
        };
        template.write(&position, segment.header.prepend(template.header.len()));
        start += len;
    }
    if let Some(last) = out.last_mut() {
        last.tx = packet.tx;
    }
}

/// The position, length and sum of a segment, from which its header is written.
struct SegmentPosition {
    index: u16,
    start: u32,
    len: usize,
    last: bool,
    payload_sum: Sum,
}

/// The headers of the super-segment, and the sums of the fields that all segments share.
struct Template {
    header: HeaderBuf,
    transport: usize,
    /// The innermost network header.
    network: IpTemplate,
    outer: Option<OuterTemplate>,
    upper: TransportTemplate,
    /// The sum of pseudo-header and transport header without lengths, sequence number, flags and
    /// checksum.
    transport_sum: Sum,
}

/// The state that depends on the transport protocol.
enum TransportTemplate {
    Tcp {
        seq: u32,
        offset_and_flags: u16,
        /// Flags that only the first segment carries.
        first_only: u16,
    },
    Udp,
}

impl Template {
    fn new(packet: &Packet) -> Option<Self> {
        let (layers, kind) = (&packet.layers, packet.offload.kind);
        let network = usize::from(layers.network[1]);
        let transport = usize::from(layers.transport);
        let v6 = is_innermost_v6(packet);
        if !matches_kind(packet, network, transport, v6) {
            return None;
        }
        let mut header = packet.header.clone();
        let upper = if kind == GsoKind::Udp {
            put16(&mut header, transport + 4, 0);
            put16(&mut header, transport + 6, 0);
            TransportTemplate::Udp
        } else {
            let (seq, word) = (be32(&header, transport + 4), be16(&header, transport + 12));
            put32(&mut header, transport + 4, 0);
            put16(&mut header, transport + 12, 0);
            put16(&mut header, transport + 16, 0);
            TransportTemplate::Tcp {
                seq,
                offset_and_flags: word,
                first_only: if packet.offload.repeats_cwr {
                    0
                } else {
                    TcpFlags::CWR.0
                },
            }
        };
        let fixed_id = packet.offload.fixed_id;
        let outer = match layers.encap {
            Encap::None => None,
            _ => Some(OuterTemplate::new(&mut header, layers, fixed_id[0])?),
        };
        let transport_sum =
            checksum::pseudo(&header, network, v6, layers.protocol, 0) + sum(&header[transport..]);
        Some(Self {
            network: IpTemplate::new(&mut header, network, transport, v6, fixed_id[1]),
            header,
            transport,
            outer,
            upper,
            transport_sum,
        })
    }

    #[inline]
    fn write(&self, position: &SegmentPosition, header: &mut [u8]) {
        header.copy_from_slice(&self.header);
        self.network.write(position, header);
        match self.upper {
            TransportTemplate::Tcp {
                seq,
                offset_and_flags,
                first_only,
            } => self.write_tcp(header, position, seq, (offset_and_flags, first_only)),
            TransportTemplate::Udp => self.write_udp(header, position),
        }
        if let Some(outer) = &self.outer {
            outer.write(position, header);
        }
    }

    #[inline]
    fn write_tcp(
        &self,
        header: &mut [u8],
        position: &SegmentPosition,
        seq: u32,
        flags: (u16, u16),
    ) {
        let (mut word, first_only) = flags;
        // FIN and PSH belong to the last byte; CWR (RFC 3168 6.1.2) to the first segment.
        if !position.last {
            word &= !(TcpFlags::FIN.0 | TcpFlags::PSH.0);
        }
        if position.index != 0 {
            word &= !first_only;
        }
        let seq = seq.wrapping_add(position.start);
        let len = header.len() - self.transport + position.len;
        let sum = self.transport_sum
            + position.payload_sum
            + Sum::dword(len as u32)
            + Sum::dword(seq)
            + Sum::word(word);
        put32(header, self.transport + 4, seq);
        put16(header, self.transport + 12, word);
        put16(header, self.transport + 16, sum.checksum());
    }

    #[inline]
    fn write_udp(&self, header: &mut [u8], position: &SegmentPosition) {
        let len = (8 + position.len) as u16;
        // The length is both in the pseudo-header and in the UDP header.
        let sum = self.transport_sum + position.payload_sum + Sum::word(len) + Sum::word(len);
        put16(header, self.transport + 4, len);
        put16(header, self.transport + 6, sum.udp_checksum());
    }
}

#[inline]
fn is_innermost_v6(packet: &Packet) -> bool {
    let layers = &packet.layers;
    if layers.encap == Encap::None {
        layers.ethertype == ethertype::IPV6
    } else {
        layers.inner_v6(&packet.header)
    }
}

/// Returns whether the headers match the kind of segmentation.
fn matches_kind(packet: &Packet, network: usize, transport: usize, v6: bool) -> bool {
    let Packet {
        header,
        layers,
        offload,
        ..
    } = packet;
    let Layers {
        ethertype,
        protocol,
        fragment,
        ..
    } = *layers;
    let protocol_matches = match offload.kind {
        GsoKind::TcpV4 => !v6 && protocol == protocol::TCP,
        GsoKind::TcpV6 => v6 && protocol == protocol::TCP,
        GsoKind::Udp => protocol == protocol::UDP,
        GsoKind::None => false,
    };
    let (network_len, transport_len) = (
        if v6 { 40 } else { 20 },
        if protocol == protocol::TCP { 20 } else { 8 },
    );
    let outermost = usize::from(layers.network[0]);
    protocol_matches
        && matches!(ethertype, ethertype::IPV4 | ethertype::IPV6)
        && !fragment
        && outermost <= network
        && network + network_len <= transport
        && transport + transport_len <= header.len()
        && u16::try_from(header.len() - outermost + usize::from(offload.gso_size)).is_ok()
}

/// A cursor over the payload.
struct PayloadCursor<'a> {
    slices: &'a [Slice],
    /// Bytes of the first slice that are consumed.
    consumed: usize,
}

impl<'a> PayloadCursor<'a> {
    fn new(chain: &'a Chain) -> Self {
        Self {
            slices: chain.slices(),
            consumed: 0,
        }
    }

    /// Appends the next `len` bytes, or all that remain if fewer, to `out`.
    #[inline]
    fn append_next(&mut self, len: usize, out: &mut Chain) {
        match self.slices {
            [first, ..] if first.len() - self.consumed > len => {
                out.push(first.slice(self.consumed..self.consumed + len));
                self.consumed += len;
            }
            _ => self.append_across_slices(len, out),
        }
    }

    fn append_across_slices(&mut self, len: usize, out: &mut Chain) {
        let mut remaining = len;
        while let Some((first, rest)) = self.slices.split_first()
            && remaining > 0
        {
            let n = remaining.min(first.len() - self.consumed);
            out.push(first.slice(self.consumed..self.consumed + n));
            remaining -= n;
            self.consumed += n;
            if self.consumed == first.len() {
                self.slices = rest;
                self.consumed = 0;
            }
        }
    }
}
