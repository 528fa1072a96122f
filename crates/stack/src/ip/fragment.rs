//! Fragmentation of the host's own packets that exceed the path MTU (RFC 791 3.2, RFC 8200 4.5).
//! TCP never needs it.

use alloc::vec::Vec;

use fullsend_offload::{Chain, HeaderBuf, Layers, Offload, Packet, Slice, TxToken};
use fullsend_wire::checksum::sum;
use fullsend_wire::extension::{FRAGMENT_LEN, FragmentRepr};
use fullsend_wire::ipv4;
use fullsend_wire::numbers::{ethertype, protocol};

/// Splits `packet`, which has all its headers but no IPv6 extension headers, into fragments of at
/// most `mtu` bytes of IP packet, and appends them to `out`. `ident` must differ from those of
/// other packets in flight between the same addresses.
pub(crate) fn fragment(mut packet: Packet, mtu: usize, ident: u32, out: &mut Vec<Packet>) {
    // The transport checksum covers the whole packet.
    packet.complete_checksum();
    let transport = usize::from(packet.layers.transport);
    let network_len = transport - usize::from(packet.layers.network[0]);
    let v6 = packet.layers.ethertype == ethertype::IPV6;
    let headers = network_len + if v6 { FRAGMENT_LEN } else { 0 };
    let room = mtu.saturating_sub(headers).max(8) & !7;
    let mut body = Chain::from(Slice::copied_from(&packet.header[transport..]));
    body.append(packet.payload);
    let total = body.len();
    for start in (0..total).step_by(room) {
        let len = room.min(total - start);
        let fields = FragmentFields {
            start: start as u16,
            len: len as u16,
            more: start + len < total,
            ident,
        };
        let front = &packet.header[..transport];
        let header = if v6 {
            fields.header_v6(front, packet.layers)
        } else {
            fields.header_v4(front, packet.layers)
        };
        out.push(Packet {
            layers: Layers {
                transport: header.len() as u16,
                fragment: true,
                ..packet.layers
            },
            header,
            payload: body.split_to(len),
            offload: Offload::default(),
            tx: if fields.more {
                TxToken::default()
            } else {
                packet.tx
            },
        });
    }
}

struct FragmentFields {
    start: u16,
    len: u16,
    more: bool,
    ident: u32,
}

impl FragmentFields {
    fn header_v4(&self, front: &[u8], layers: Layers) -> HeaderBuf {
        let mut header = HeaderBuf::from_slice(front);
        let ip = &mut header[usize::from(layers.network[0])..];
        let total = ip.len() as u16 + self.len;
        let more = u16::from(self.more) << 13;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[4..6].copy_from_slice(&(self.ident as u16).to_be_bytes());
        ip[6..8].copy_from_slice(&(more | self.start >> 3).to_be_bytes());
        ip[ipv4::CHECKSUM_OFFSET..][..2].fill(0);
        let checksum = sum(ip).checksum();
        ip[ipv4::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn header_v6(&self, front: &[u8], layers: Layers) -> HeaderBuf {
        let fragment = FragmentRepr {
            next_header: layers.protocol,
            offset: self.start,
            more: self.more,
            ident: self.ident,
        };
        let mut header = HeaderBuf::new();
        fragment.emit(header.prepend(FRAGMENT_LEN));
        let all = header.prepend(front.len());
        all.copy_from_slice(front);
        let ip = &mut all[usize::from(layers.network[0])..];
        ip[4..6].copy_from_slice(&(self.len + FRAGMENT_LEN as u16).to_be_bytes());
        ip[6] = protocol::FRAGMENT;
        header
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use fullsend_offload::{Link, Packet, Slice};
    use fullsend_wire::Instant;
    use fullsend_wire::ipv4::Ipv4Repr;
    use fullsend_wire::ipv6::Ipv6Repr;
    use fullsend_wire::numbers::protocol;
    use proptest::prelude::*;

    use super::fragment;
    use crate::ip::reassembly::{Reassembled, Reassembly};

    fn packet(v6: bool, len: usize) -> Packet {
        let mut bytes = alloc::vec![0; if v6 { 40 } else { 20 }];
        let payload_len = len as u16;
        if v6 {
            let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
            Ipv6Repr::new(src, dst, protocol::ICMPV6, payload_len).emit(&mut bytes);
        } else {
            let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            let repr = Ipv4Repr {
                ident: 7,
                dont_fragment: false,
                ..Ipv4Repr::new(src, dst, protocol::ICMP, payload_len)
            };
            repr.emit(&mut bytes);
        }
        bytes.extend((0..len).map(|i| (i / 8) as u8));
        let mut packet = Packet::from_frame(Slice::copied_from(&bytes));
        packet.parse(Link::Ip).unwrap();
        packet
    }

    proptest! {
        #[test]
        fn reassembly_restores_the_packet(v6: bool, len in 1300usize..9000, mtu in 576usize..2000) {
            let mtu = if v6 { mtu.max(1280) } else { mtu };
            prop_assume!(len + if v6 { 40 } else { 20 } > mtu);
            let original = packet(v6, len);
            let mut fragments = Vec::new();
            fragment(original.clone(), mtu, 7, &mut fragments);
            let mut reassembly = Reassembly::default();
            let mut whole = None;
            for fragment in fragments {
                prop_assert!(fragment.len() <= mtu);
                prop_assert!(whole.is_none());
                let mut received = Packet::from_frame(Slice::copied_from(&fragment.to_bytes()));
                received.parse(Link::Ip).unwrap();
                prop_assert_eq!(received.layers, fragment.layers);
                if let Reassembled::Complete(packet, _) = reassembly.input(Instant::ZERO, received) {
                    whole = Some(packet.to_bytes());
                }
            }
            prop_assert_eq!(whole, Some(original.to_bytes()));
        }
    }
}
