use alloc::vec::Vec;

use super::{ChecksumResult, pseudo, verify};
use crate::testing::{ACK, OuterHeaders, TUNNELS, TestPacket, TunnelKind, payload};
use crate::{Chain, Checksum, HeaderBuf, Link, Packet, Slice};

fn parsed(tcp: &TestPacket) -> Packet {
    let mut packet = tcp.packet();
    packet.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
    packet
}

/// Returns a packet whose checksum field contains the sum of the pseudo-header.
fn partial(tcp: &TestPacket) -> Packet {
    let mut packet = parsed(tcp);
    let transport = usize::from(packet.layers.transport);
    let field = transport + if tcp.udp { 6 } else { 16 };
    let len = packet.len() - transport;
    let sum = pseudo(&packet.header, 0, tcp.v6, packet.layers.protocol, len).fold();
    packet.header[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    packet.offload.checksum = Checksum::Partial;
    packet
}

/// RFC 768: a computed checksum of 0 is sent as all ones, as 0 means no checksum.
#[test]
fn a_datagram_never_gets_a_checksum_of_zero() {
    for v6 in [false, true] {
        let with = |value: u16| TestPacket {
            udp: true,
            v6,
            payload: value.to_be_bytes().to_vec(),
            ..TestPacket::default()
        };
        let field = |frame: &[u8]| frame[frame.len() - 4..frame.len() - 2].to_vec();
        // With 0 in a 16-bit word the checksum has some value; with that value in the word it is 0.
        let zero = field(&with(0).frame());
        let udp = with(u16::from_be_bytes([zero[0], zero[1]]));
        assert_eq!(field(&udp.frame()), [0xff; 2]);
        let mut packet = partial(&udp);
        packet.complete_checksum();
        assert_eq!(packet.to_bytes(), udp.frame());
        assert_eq!(packet.offload.checksum, Checksum::Unverified);
    }
}

#[test]
fn the_checksum_of_a_super_segment_is_computed_per_segment() {
    let mut packet = partial(&TestPacket::default());
    packet.offload.gso_segs = 2;
    let before = packet.to_bytes();
    packet.complete_checksum();
    assert_eq!(packet.to_bytes(), before);
    assert_eq!(packet.offload.checksum, Checksum::Partial);
}

#[test]
fn a_header_without_its_checksum_field_is_unchanged() {
    let tcp = TestPacket::default();
    let whole = partial(&tcp);
    let transport = usize::from(whole.layers.transport);
    for (len, completes) in [(0, false), (1, false), (17, false), (18, true), (20, true)] {
        let mut packet = whole.clone();
        let bytes = whole.to_bytes();
        packet.header = HeaderBuf::from_slice(&bytes[..transport + len]);
        packet.payload = Slice::copied_from(&bytes[transport + len..]).into();
        packet.complete_checksum();
        let expected = if completes { tcp.frame() } else { bytes };
        assert_eq!(packet.to_bytes(), expected, "{len} bytes");
    }
}

/// Returns the verdict on a frame whose front ends `at` bytes after the end of its headers (before
/// it if negative).
fn verdict(tcp: &TestPacket, frame: &[u8], at: isize) -> ChecksumResult {
    let packet = parsed(tcp);
    let cut = packet.header.len().checked_add_signed(at).unwrap();
    let rest: Chain = [Slice::copied_from(&frame[cut..])].into_iter().collect();
    verify(&frame[..cut], rest.slices(), &packet.layers)
}

/// RFC 768: a datagram over IPv4 may have no checksum. RFC 8200 8.1: one over IPv6 must have it.
/// TCP always has one.
#[test]
fn only_a_datagram_over_ipv4_may_have_no_checksum() {
    for (udp, v6, outcome) in [
        (true, false, ChecksumResult::Good),
        (true, true, ChecksumResult::Bad),
        (false, false, ChecksumResult::Bad),
        (false, true, ChecksumResult::Bad),
    ] {
        let tcp = TestPacket {
            v6,
            udp,
            ..TestPacket::default()
        };
        let mut frame = tcp.frame();
        let field = frame.len() - tcp.payload.len() - if udp { 2 } else { 16 };
        assert_eq!(verdict(&tcp, &frame, 0), ChecksumResult::Good);
        frame[field..field + 2].fill(0);
        assert_eq!(verdict(&tcp, &frame, 0), outcome, "udp {udp} v6 {v6}");
    }
}

/// In TCP a checksum field of 0 is a checksum.
#[test]
fn a_segment_may_have_a_checksum_of_zero() {
    let with = |ack| TestPacket {
        ack,
        flags: ACK,
        payload: payload(1, 3),
        ..TestPacket::default()
    };
    // With 0 in a 16-bit word the checksum has some value; with that value in the word it is 0.
    let zero = with(0).frame();
    let tcp = with(u32::from_be_bytes([0, 0, zero[36], zero[37]]));
    assert_eq!(tcp.frame()[36..38], [0, 0]);
    assert_eq!(verdict(&tcp, &tcp.frame(), 0), ChecksumResult::Good);
    let mut frame = tcp.frame();
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(verdict(&tcp, &frame, 0), ChecksumResult::Bad);
}

/// Returns packets without a tunnel and in a tunnel with an outer checksum, of each kind one
/// datagram without a checksum of its own.
fn summed() -> Vec<TestPacket> {
    let mut all = Vec::new();
    for (v6, outer_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        for kind in [TunnelKind::Vxlan, TunnelKind::Gue] {
            for (udp, no_checksum) in [(false, false), (true, false), (true, true)] {
                let mut outer = OuterHeaders::new(kind, outer_v6);
                outer.summed = true;
                let tcp = TestPacket {
                    v6,
                    udp,
                    no_checksum: no_checksum && !v6,
                    payload: payload(1, 101),
                    ..TestPacket::default()
                };
                all.push(tcp.clone());
                all.push(TestPacket {
                    outer: Some(outer),
                    ..tcp
                });
            }
        }
    }
    all
}

/// RFC 1071 2: after a slice of odd length, bytes are in the other half of a 16-bit word.
#[test]
fn checksums_are_correct_across_slices_of_any_length() {
    for tcp in summed() {
        let frame = tcp.frame();
        for at in [0, 1, 2, 3, 50] {
            assert_eq!(
                verdict(&tcp, &frame, at),
                ChecksumResult::Good,
                "{at} {tcp:?}"
            );
        }
        let mut wrong = frame.clone();
        *wrong.last_mut().unwrap() ^= 1;
        if tcp.outer.is_some() || !tcp.no_checksum {
            for at in [0, 1] {
                assert_eq!(
                    verdict(&tcp, &wrong, at),
                    ChecksumResult::Bad,
                    "{at} {tcp:?}"
                );
            }
        }
        // Three slices.
        let cut = parsed(&tcp).header.len();
        let (first, last) = frame[cut..].split_at(31);
        let rest: Chain = [first, last].map(Slice::copied_from).into_iter().collect();
        let layers = parsed(&tcp).layers;
        assert_eq!(
            verify(&frame[..cut], rest.slices(), &layers),
            ChecksumResult::Good
        );
    }
}

/// Fragments and other protocols cannot be verified packet by packet.
#[test]
fn fragments_and_other_protocols_are_not_verifiable() {
    let mut fragment = parsed(&TestPacket::default());
    fragment.layers.fragment = true;
    let mut other = parsed(&TestPacket::default());
    other.layers.protocol = 132;
    for packet in [fragment, other] {
        let found = verify(&packet.header, packet.payload.slices(), &packet.layers);
        assert_eq!(found, ChecksumResult::Unknown);
    }
}
