//! The offloads of a packet as a `virtio_net_hdr`, which precedes packets of TUN, TAP and virtio devices.

use fullsend_offload::{Checksum, GsoKind, Offload, Packet};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::TcpFlags;
use fullsend_wire::vnet::{VnetGso, VnetHdr};

/// Returns the offloads of a received packet, or `None` if the header requests an offload that
/// [`Offload`] cannot express: UFO, an unknown type, or segments of zero bytes.
///
/// `csum_start` and `csum_offset` are ignored: the parser finds the transport header itself.
///
/// ```
/// use fullsend_device::vnet::offload_of;
/// use fullsend_offload::{Checksum, GsoKind};
/// use fullsend_wire::vnet::{VnetGso, VnetHdr};
///
/// let hdr = VnetHdr { needs_csum: true, gso: VnetGso::TcpV4, gso_size: 1448, ..VnetHdr::default() };
/// let offload = offload_of(&hdr).unwrap();
/// assert_eq!((offload.kind, offload.gso_size), (GsoKind::TcpV4, 1448));
/// assert_eq!(offload.checksum, Checksum::Partial);
/// ```
pub fn offload_of(hdr: &VnetHdr) -> Option<Offload> {
    let kind = match hdr.gso {
        VnetGso::None => GsoKind::None,
        VnetGso::TcpV4 => GsoKind::TcpV4,
        VnetGso::TcpV6 => GsoKind::TcpV6,
        VnetGso::UdpL4 => GsoKind::Udp,
        // No device offers these offloads.
        VnetGso::UdpFragments | VnetGso::Unknown(_) => return None,
    };
    let gso_size = match kind {
        GsoKind::None => 0,
        _ if hdr.gso_size == 0 => return None,
        _ => hdr.gso_size,
    };
    let checksum = if hdr.needs_csum {
        Checksum::Partial
    } else if hdr.data_valid {
        Checksum::Valid
    } else {
        Checksum::Unverified
    };
    Some(Offload {
        gso_size,
        kind,
        checksum,
        // The parser, which finds the start of the payload, counts the segments.
        ..Offload::default()
    })
}

/// Returns the header of a parsed packet to be sent.
pub fn header_of(packet: &Packet) -> VnetHdr {
    let Offload {
        gso_size,
        kind,
        checksum,
        ..
    } = packet.offload;
    let layers = &packet.layers;
    let gso = match kind {
        _ if packet.payload.len() <= usize::from(gso_size) => VnetGso::None,
        GsoKind::None => VnetGso::None,
        GsoKind::TcpV4 => VnetGso::TcpV4,
        GsoKind::TcpV6 => VnetGso::TcpV6,
        GsoKind::Udp => VnetGso::UdpL4,
    };
    let mut hdr = VnetHdr {
        gso,
        hdr_len: packet.header.len() as u16,
        ..VnetHdr::default()
    };
    if gso != VnetGso::None {
        hdr.gso_size = gso_size;
        hdr.ecn = kind != GsoKind::Udp && has_cwr(packet.transport_header());
    }
    match checksum {
        Checksum::Partial => {
            hdr.needs_csum = true;
            hdr.csum_start = layers.transport;
            hdr.csum_offset = checksum_offset(layers.protocol);
        }
        Checksum::Valid => hdr.data_valid = true,
        Checksum::Unverified => {}
    }
    hdr
}

/// Returns the offset of the checksum in the protocol's header, in bytes.
fn checksum_offset(protocol_number: u8) -> u16 {
    match protocol_number {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => 2,
    }
}

fn has_cwr(tcp_header: &[u8]) -> bool {
    tcp_header
        .get(13)
        .is_some_and(|&flags| TcpFlags(u16::from(flags)).contains(TcpFlags::CWR))
}
