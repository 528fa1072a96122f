//! Test packets in the form in which a host sends them.

use std::net::IpAddr;

use fullsend_offload::{Checksum, GsoKind, HeaderBuf, Layers, Offload, Packet, Slice};
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::ipv4::Ipv4Repr;
use fullsend_wire::ipv6::Ipv6Repr;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::TcpRepr;

fn ip_header(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> Vec<u8> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let repr = Ipv4Repr {
                ident: 1,
                ..Ipv4Repr::new(src, dst, protocol, len as u16)
            };
            let mut out = vec![0; 20];
            repr.emit(&mut out);
            out
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut out = vec![0; 40];
            Ipv6Repr::new(src, dst, protocol, len as u16).emit(&mut out);
            out
        }
        _ => panic!("addresses of one family"),
    }
}

/// Returns a packet with a partial checksum, to be segmented by `gso_size` unless that is 0.
fn packet(
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    transport: &mut [u8],
    checksum_at: usize,
    payload: &[u8],
    gso_size: u16,
) -> Packet {
    let len = transport.len() + payload.len();
    let partial = Sum::pseudo(src, dst, protocol, len as u32).fold();
    transport[checksum_at..checksum_at + 2].copy_from_slice(&partial.to_be_bytes());
    let mut header = ip_header(src, dst, protocol, len);
    let transport_at = header.len() as u16;
    header.extend_from_slice(transport);
    let kind = match (gso_size, protocol, src) {
        (0, ..) => GsoKind::None,
        (_, protocol::UDP, _) => GsoKind::Udp,
        (_, _, IpAddr::V4(_)) => GsoKind::TcpV4,
        (_, _, IpAddr::V6(_)) => GsoKind::TcpV6,
    };
    Packet {
        header: HeaderBuf::from_slice(&header),
        payload: Slice::copied_from(payload).into(),
        layers: Layers {
            transport: transport_at,
            ethertype: if src.is_ipv4() {
                ethertype::IPV4
            } else {
                ethertype::IPV6
            },
            protocol,
            ..Layers::default()
        },
        offload: Offload {
            gso_size,
            gso_segs: match gso_size {
                0 => 0,
                size => payload.len().div_ceil(usize::from(size)) as u16,
            },
            kind,
            checksum: Checksum::Partial,
            ..Offload::default()
        },
        ..Packet::default()
    }
}

/// The source and destination ports.
pub(crate) type Ports = (u16, u16);

pub(crate) fn udp(
    ends: (IpAddr, IpAddr),
    (src_port, dst_port): Ports,
    payload: &[u8],
    gso_size: u16,
) -> Packet {
    let len = 8 + payload.len() as u16;
    let fields = [src_port, dst_port, len, 0];
    let mut header = fields.map(u16::to_be_bytes).concat();
    packet(ends, protocol::UDP, &mut header, 6, payload, gso_size)
}

pub(crate) fn tcp(ends: (IpAddr, IpAddr), repr: &TcpRepr, payload: &[u8], gso_size: u16) -> Packet {
    let mut header = [0; 60];
    let len = repr.emit(&mut header);
    packet(
        ends,
        protocol::TCP,
        &mut header[..len],
        16,
        payload,
        gso_size,
    )
}

/// Returns an ICMP echo request with its checksum.
pub(crate) fn ping((src, dst): (IpAddr, IpAddr), data: &[u8]) -> Packet {
    let (protocol, kind) = match src {
        IpAddr::V4(_) => (protocol::ICMP, 8),
        IpAddr::V6(_) => (protocol::ICMPV6, 128),
    };
    let mut message = vec![kind, 0, 0, 0, 0, 7, 0, 1];
    message.extend_from_slice(data);
    let pseudo = match src {
        IpAddr::V4(_) => Sum::default(),
        IpAddr::V6(_) => Sum::pseudo(src, dst, protocol, message.len() as u32),
    };
    let checksum = (pseudo + sum(&message)).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = ip_header(src, dst, protocol, message.len());
    frame.extend_from_slice(&message);
    Packet::from_frame(Slice::copied_from(&frame))
}
