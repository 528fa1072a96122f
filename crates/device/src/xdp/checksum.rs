//! Detection of checksums that the sender's kernel has left to a network card.

use fullsend_wire::checksum::Sum;
use fullsend_wire::ethernet::EthernetView;
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{tcp, udp};

/// Returns whether the checksum field of a TCP or UDP packet holds only the sum of the pseudo-header, as
/// a kernel leaves it for a network card that computes checksums.
///
/// A veth does not compute them, and XDP has no metadata that reports it. A computed checksum has this
/// value with a probability of 2^-16; such a packet is not verified.
pub(crate) fn is_partial(frame: &[u8]) -> bool {
    partial_sum(frame).is_some_and(|(field, pseudo)| field == pseudo.fold())
}

/// Returns the checksum field and the sum of the pseudo-header of a packet that has both.
fn partial_sum(frame: &[u8]) -> Option<(u16, Sum)> {
    let ethernet = EthernetView::new(frame).ok()?;
    let packet = frame.get(ethernet.header_len()..)?;
    let (protocol, upper, pseudo) = match ethernet.ethertype() {
        ethertype::IPV4 => {
            let ip = Ipv4View::new(packet).ok().filter(|ip| !ip.is_fragment())?;
            (ip.protocol(), ip.payload(), ip.pseudo_sum())
        }
        ethertype::IPV6 => {
            let ip = Ipv6View::new(packet).ok()?;
            let len = ip.payload_len() as u32;
            let pseudo = Sum::pseudo_v6(ip.src(), ip.dst(), ip.next_header(), len);
            (ip.next_header(), ip.payload(), pseudo)
        }
        _ => return None,
    };
    let at = match protocol {
        protocol::TCP => tcp::CHECKSUM_OFFSET,
        protocol::UDP => udp::CHECKSUM_OFFSET,
        _ => return None,
    };
    let field = upper.get(at..at + 2)?;
    Some((u16::from_be_bytes([field[0], field[1]]), pseudo))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use fullsend_offload::{Checksum, Packet};

    use super::is_partial;
    use crate::test_packet;

    fn frame(packet: &Packet) -> Vec<u8> {
        let ethertype = packet.layers.ethertype.to_be_bytes();
        [&[2; 12][..], &ethertype, &packet.to_bytes()].concat()
    }

    #[test]
    fn only_uncomputed_checksums_are_partial() {
        for (from, to) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
            let [from, to] = [from, to].map(|a| a.parse::<IpAddr>().unwrap());
            let mut packet = test_packet::udp((from, to), (9, 10), b"data", 0);
            assert_eq!(packet.offload.checksum, Checksum::Partial);
            let partial = frame(&packet);
            assert!(is_partial(&partial));
            packet.complete_checksum();
            assert!(!is_partial(&frame(&packet)));
            // Neither a cut nor a changed frame is accepted, nor causes a panic.
            for len in 0..partial.len() - 6 {
                assert!(!is_partial(&partial[..len]), "{len} bytes");
            }
            for at in 12..partial.len() {
                let mut changed = partial.clone();
                changed[at] ^= 0x55;
                is_partial(&changed);
            }
            let mut changed = partial;
            changed[30] ^= 1;
            assert!(!is_partial(&changed));
        }
    }

    #[test]
    fn other_protocols_have_no_partial_checksum() {
        let ends = ["10.9.0.1", "10.9.0.2"].map(|a| a.parse::<IpAddr>().unwrap());
        let ping = test_packet::ping((ends[0], ends[1]), &[0; 64]);
        assert!(!is_partial(&frame(&ping)));
        assert!(!is_partial(&[0; 60]));
    }
}
