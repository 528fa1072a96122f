//! The headers of a super-segment, computed from the record of the held packet without parsing it
//! again.

use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpFlags;

use super::held::HeldState;
use crate::bytes::{be16, put16};
use crate::{Checksum, Encap, GsoKind, Offload, Packet, checksum};

/// Turns the headers of the first packet into those of the super-segment.
pub(super) fn write_headers(state: &HeldState, packet: &mut Packet) {
    let layers = packet.layers;
    let total_len = packet.len();
    let header = &mut packet.header;
    let mut v6 = layers.ethertype == ethertype::IPV6;
    put_len(header, usize::from(layers.network[0]), v6, total_len);
    if layers.encap != Encap::None {
        put_tunnel_len(header, &layers, total_len);
        v6 = layers.inner_v6(header);
        put_len(header, usize::from(layers.network[1]), v6, total_len);
    }
    let transport = usize::from(layers.transport);
    let len = total_len - transport;
    let network = usize::from(layers.network[1]);
    let partial = checksum::pseudo(header, network, v6, layers.protocol, len).fold();
    let mut repeats_cwr = false;
    let kind = if layers.protocol == protocol::UDP {
        put16(header, transport + 4, len as u16);
        put16(header, transport + 6, partial);
        GsoKind::Udp
    } else {
        put16(header, transport + 16, partial);
        repeats_cwr = TcpFlags(be16(header, transport + 12)).contains(TcpFlags::CWR);
        if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 }
    };
    packet.offload = Offload {
        gso_size: state.size,
        gso_segs: state.count,
        kind,
        checksum: Checksum::Partial,
        fixed_id: state.fixed_id,
        // All segments have the same CWR flag.
        repeats_cwr,
    };
}

/// Writes the length of the IP header at `network` in a packet of `total_len` bytes, and IPv4's
/// checksum.
fn put_len(header: &mut [u8], network: usize, v6: bool, total_len: usize) {
    // Beyond 64 KiB the field is 0 and the packet's own length applies.
    let field = |len: usize| u16::try_from(len).unwrap_or(0);
    if v6 {
        put16(header, network + 4, field(total_len - network - 40));
    } else {
        put16(header, network + 2, field(total_len - network));
        put16(header, network + 10, 0);
        let value = sum(&header[network..network + 20]).checksum();
        put16(header, network + 10, value);
    }
}

/// Writes the length of a UDP tunnel. A checksum, if present, becomes the sum of the pseudo-header,
/// as segmentation computes one per packet.
fn put_tunnel_len(header: &mut [u8], layers: &crate::Layers, total_len: usize) {
    if layers.encap != Encap::Udp {
        return;
    }
    let at = usize::from(layers.tunnel);
    let len = total_len - at;
    put16(header, at + 4, len as u16);
    if be16(header, at + 6) != 0 {
        let v6 = layers.ethertype == ethertype::IPV6;
        let network = usize::from(layers.network[0]);
        let partial = checksum::pseudo(header, network, v6, protocol::UDP, len).fold();
        put16(header, at + 6, partial);
    }
}
