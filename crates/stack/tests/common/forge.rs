//! Forged packets, sent by neither of the two hosts.

use std::net::{IpAddr, SocketAddr};

use fullsend_offload::{Packet, Slice};
use fullsend_wire::checksum::{RunningSum, Sum};
use fullsend_wire::ipv4::Ipv4Repr;
use fullsend_wire::ipv6::Ipv6Repr;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{CHECKSUM_OFFSET, TcpFlags, TcpOptions, TcpRepr, Timestamps};
use fullsend_wire::{Rng, SeqNum, WireWindow};

/// Returns a TCP segment from one address to another as a frame. Sets the ports of `repr`.
pub(crate) fn tcp(from: SocketAddr, to: SocketAddr, mut repr: TcpRepr, payload: &[u8]) -> Packet {
    (repr.src_port, repr.dst_port) = (from.port(), to.port());
    let mut segment = vec![0; repr.header_len()];
    repr.emit(&mut segment);
    segment.extend_from_slice(payload);
    let pseudo = match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Sum::pseudo_v4(src, dst, protocol::TCP, segment.len() as u32)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Sum::pseudo_v6(src, dst, protocol::TCP, segment.len() as u32)
        }
        _ => unreachable!("two families"),
    };
    let mut sum = RunningSum::from(pseudo);
    sum.push(&segment);
    let checksum = sum.sum().checksum();
    segment[CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
    ip(from.ip(), to.ip(), protocol::TCP, &segment)
}

/// Returns an IP packet as a frame.
pub(crate) fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Packet {
    Packet::from_frame(Slice::copied_from(&ip_bytes(from, to, protocol, payload)))
}

/// Returns an IP packet as bytes.
pub(crate) fn ip_bytes(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let payload_len = payload.len() as u16;
    let mut bytes = match (from, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut bytes = vec![0; 20];
            Ipv4Repr::new(src, dst, protocol, payload_len).emit(&mut bytes);
            bytes
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut bytes = vec![0; 40];
            Ipv6Repr::new(src, dst, protocol, payload_len).emit(&mut bytes);
            bytes
        }
        _ => unreachable!("two families"),
    };
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the header of a SYN with the usual options.
#[allow(dead_code, reason = "only attacks use it")]
pub(crate) fn syn(rng: &mut Rng) -> TcpRepr {
    TcpRepr {
        flags: TcpFlags::SYN,
        seq: SeqNum::new(rng.next_u32()),
        window: WireWindow(65_535),
        options: TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                val: rng.next_u32(),
                ecr: 0,
            }),
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    }
}
