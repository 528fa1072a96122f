use alloc::vec;
use alloc::vec::Vec;

use super::segment;
use crate::testing::{ACK, CWR, FIN, OuterHeaders, PSH, TUNNELS, TestPacket, TunnelKind, payload};
use crate::{Chain, Checksum, Encap, GsoKind, HeaderBuf, Link, Offload, Packet, Slice, TxToken};

/// Returns a super-segment of `len` payload bytes as a sender builds it.
fn super_segment(tcp: &TestPacket, len: usize, size: u16) -> Packet {
    let whole = TestPacket {
        payload: payload(tcp.seq, len),
        ..tcp.clone()
    };
    let mut packet = whole.packet();
    packet.parse_with_tunnels(tcp.link, &TUNNELS).unwrap();
    packet.offload = Offload {
        gso_size: size,
        gso_segs: len.div_ceil(usize::from(size)) as u16,
        kind: match (tcp.udp, tcp.v6) {
            (true, _) => GsoKind::Udp,
            (false, false) => GsoKind::TcpV4,
            (false, true) => GsoKind::TcpV6,
        },
        checksum: Checksum::Partial,
        ..Offload::default()
    };
    packet
}

fn segmented(packet: Packet) -> Vec<Packet> {
    let mut out = Vec::new();
    segment(packet, &mut out);
    out
}

fn frames(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::to_bytes).collect()
}

#[test]
fn segments_are_what_a_sender_without_offload_writes() {
    for link in [Link::Ip, Link::Ethernet] {
        for v6 in [false, true] {
            let tcp = TestPacket {
                v6,
                link,
                ip_id: if v6 { 0 } else { 0xffff },
                seq: u32::MAX - 1500,
                ..TestPacket::default()
            };
            let out = segmented(super_segment(&tcp, 3500, 1000));
            let mut expected = tcp.run(4, 1000);
            expected[3].payload.truncate(500);
            let expected: Vec<_> = expected.iter().map(TestPacket::frame).collect();
            assert_eq!(frames(&out), expected, "v6 {v6} {link:?}");
            assert!(out.iter().all(|p| p.offload == Offload::default()));
        }
    }
}

#[test]
fn fin_psh_and_cwr_are_set_on_the_right_segment() {
    let tcp = TestPacket {
        flags: ACK | FIN | PSH | CWR,
        ..TestPacket::default()
    };
    let flags: Vec<_> = segmented(super_segment(&tcp, 3000, 1000))
        .iter()
        .map(|p| u16::from(p.transport_header()[13]))
        .collect();
    assert_eq!(flags, [ACK | CWR, ACK, ACK | FIN | PSH]);
}

/// RFC 9768 3.2.2: CWR is part of each segment's counter.
#[test]
fn ace_counter_is_copied_to_every_segment() {
    let tcp = TestPacket {
        flags: ACK | PSH | CWR,
        ..TestPacket::default()
    };
    let mut packet = super_segment(&tcp, 2500, 1000);
    packet.offload.repeats_cwr = true;
    let out = segmented(packet);
    let flags: Vec<_> = out
        .iter()
        .map(|p| u16::from(p.transport_header()[13]))
        .collect();
    assert_eq!(flags, [ACK | CWR, ACK | CWR, ACK | PSH | CWR]);
    assert!(out.iter().all(|p| p.offload == Offload::default()));
}

#[test]
fn a_fixed_id_stays_fixed() {
    let mut packet = super_segment(&TestPacket::default(), 3000, 1000);
    packet.offload.fixed_id = [true; 2];
    let ids: Vec<_> = segmented(packet)
        .iter()
        .map(|p| p.network_header()[4..6].to_vec())
        .collect();
    assert_eq!(ids, vec![vec![0, 100]; 3]);
}

#[test]
fn extension_headers_and_ip_options_are_copied_to_every_segment() {
    let v6 = TestPacket {
        extensions: vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        ..TestPacket::v6()
    };
    let v4 = TestPacket {
        ip_options: vec![1, 1, 1, 0],
        ..TestPacket::default()
    };
    for tcp in [v6, v4] {
        let expected: Vec<_> = tcp.run(3, 700).iter().map(TestPacket::frame).collect();
        assert_eq!(frames(&segmented(super_segment(&tcp, 2100, 700))), expected);
    }
}

#[test]
fn the_last_segment_gets_the_tx_token() {
    let mut packet = super_segment(&TestPacket::default(), 2500, 1000);
    packet.tx = TxToken {
        socket: 9,
        truesize: 4000,
        departure_ns: 5,
    };
    let tokens: Vec<_> = segmented(packet).iter().map(|p| p.tx.socket).collect();
    assert_eq!(tokens, [0, 0, 9]);
}

#[test]
fn payload_is_shared_and_checksums_span_slices_of_any_length() {
    let tcp = TestPacket::default();
    let mut packet = super_segment(&tcp, 5000, 1000);
    let bytes = Slice::copied_from(&payload(tcp.seq, 5000));
    // Slices of odd lengths, with boundaries inside of segments and at their ends.
    packet.payload = [0, 7, 1000, 1001, 2000, 4999, 5000]
        .windows(2)
        .map(|w| Slice::copied_from(&bytes[w[0]..w[1]]))
        .collect::<Chain>();
    let first = packet.payload.slices()[0].as_ptr();
    let out = segmented(packet);
    assert_eq!(out[0].payload.slices()[0].as_ptr(), first);
    let expected: Vec<_> = tcp.run(5, 1000).iter().map(TestPacket::frame).collect();
    assert_eq!(frames(&out), expected);
}

#[test]
fn an_unsegmented_packet_gets_its_checksum() {
    for v6 in [false, true] {
        let tcp = TestPacket {
            v6,
            ..TestPacket::default()
        };
        // Without a GSO kind, and as a super-segment of a single segment.
        for (kind, size) in [(GsoKind::None, 0), (GsoKind::TcpV4, 1448)] {
            let mut packet = super_segment(&tcp, 999, 1000);
            let t = usize::from(packet.layers.transport);
            let partial = crate::checksum::pseudo(&packet.header, 0, v6, 6, 32 + 999);
            packet.header[t + 16..t + 18].copy_from_slice(&partial.fold().to_be_bytes());
            packet.offload.kind = kind;
            packet.offload.gso_size = size;
            packet.offload.gso_segs = 1;
            assert_eq!(frames(&segmented(packet)), [tcp.run(1, 999)[0].frame()]);
        }
    }
}

#[test]
fn each_segmented_datagram_has_a_udp_header() {
    for v6 in [false, true] {
        let mut packet = super_segment(
            &TestPacket {
                v6,
                ..TestPacket::default()
            },
            2500,
            1000,
        );
        // Changes the TCP header into a UDP header.
        let t = usize::from(packet.layers.transport);
        let mut header = packet.header[..t + 8].to_vec();
        header[if v6 { 6 } else { 9 }] = 17;
        packet.header = HeaderBuf::from_slice(&header);
        packet.layers.protocol = 17;
        packet.offload.kind = GsoKind::Udp;
        let out = segmented(packet);
        assert_eq!(out.len(), 3);
        for (packet, len) in out.iter().zip([1000u16, 1000, 500]) {
            let mut again = Packet::from_frame(Slice::copied_from(&packet.to_bytes()));
            again.parse(Link::Ip).unwrap();
            assert_eq!(again.payload.len(), usize::from(len));
            let verdict = crate::checksum::verify(
                again.leading_bytes(),
                again.remaining_slices(),
                &again.layers,
            );
            assert_eq!(verdict, crate::checksum::ChecksumResult::Good);
            assert_eq!(again.transport_header()[4..6], (len + 8).to_be_bytes());
        }
    }
}

#[test]
fn packets_with_headers_that_do_not_match_their_gso_type_are_dropped() {
    let good = super_segment(&TestPacket::default(), 3000, 1000);
    let mut no_header = good.clone();
    no_header.header.clear();
    let mut wrong_kind = good.clone();
    wrong_kind.offload.kind = GsoKind::TcpV6;
    let mut transport_beyond = good.clone();
    transport_beyond.layers.transport = 500;
    let mut too_long = super_segment(&TestPacket::default(), 65000, 1000);
    too_long.payload.append(good.payload.clone());
    too_long.offload.gso_size = u16::MAX;
    for packet in [no_header, wrong_kind, transport_beyond, too_long] {
        assert!(segmented(packet).is_empty());
    }
}

/// Returns whether the packet is segmented, not dropped.
fn is_segmented(packet: &Packet) -> bool {
    !segmented(packet.clone()).is_empty()
}

/// Returns a super-segment whose headers have the minimum length.
fn bare(v6: bool, udp: bool) -> Packet {
    let tcp = TestPacket {
        v6,
        udp,
        options: vec![],
        ..TestPacket::default()
    };
    super_segment(&tcp, 3000, 1000)
}

#[test]
fn gso_kind_must_match_ip_version_and_protocol() {
    for v6 in [false, true] {
        for udp in [false, true] {
            for (kind, fits) in [
                (GsoKind::TcpV4, !v6 && !udp),
                (GsoKind::TcpV6, v6 && !udp),
                (GsoKind::Udp, udp),
            ] {
                let mut packet = bare(v6, udp);
                packet.offload.kind = kind;
                assert_eq!(is_segmented(&packet), fits, "{kind:?} v6 {v6} udp {udp}");
            }
        }
    }
}

/// Each header must have the minimum length of its protocol.
#[test]
fn layers_that_are_too_short_are_not_segmented() {
    for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let packet = bare(v6, udp);
        assert!(is_segmented(&packet));
        let mut short_ip = packet.clone();
        short_ip.layers.transport -= 1;
        let mut behind = packet.clone();
        behind.layers.network[0] = 1;
        let mut short_upper = packet.clone();
        let len = packet.header.len();
        short_upper.header = HeaderBuf::from_slice(&packet.header[..len - 1]);
        let mut fragment = packet.clone();
        fragment.layers.fragment = true;
        let mut other = packet.clone();
        other.layers.ethertype = 0x0806;
        for (what, packet) in [short_ip, behind, short_upper, fragment, other]
            .iter()
            .enumerate()
        {
            assert!(!is_segmented(packet), "case {what}, v6 {v6} udp {udp}");
        }
    }
}

/// RFC 791 3.1: a segment has at most 65,535 bytes without the link header.
#[test]
fn segment_length_is_limited_by_the_ip_length_field() {
    for link in [Link::Ip, Link::Ethernet] {
        let tcp = TestPacket {
            link,
            ..TestPacket::default()
        };
        let mut packet = super_segment(&tcp, 40_000, 1000);
        packet.payload.append(packet.payload.clone());
        packet.offload.gso_size = 65_535 - 52;
        assert_eq!(segmented(packet.clone()).len(), 2, "{link:?}");
        packet.offload.gso_size += 1;
        assert!(!is_segmented(&packet), "{link:?}");
    }
}

#[test]
fn a_packet_of_one_segment_is_not_segmented() {
    for udp in [false, true] {
        let whole = |packet: Packet| {
            let out = segmented(packet);
            (out.len(), out[0].payload.len(), out[0].offload.gso_size)
        };
        let tcp = TestPacket {
            udp,
            ..TestPacket::default()
        };
        assert_eq!(whole(super_segment(&tcp, 1000, 1000)), (1, 1000, 0));
        assert_eq!(whole(super_segment(&tcp, 1001, 1000)).0, 2);
        // No segmentation is requested.
        let mut packet = super_segment(&tcp, 3000, 1000);
        packet.offload.kind = GsoKind::None;
        assert_eq!(whole(packet), (1, 3000, 0));
        let mut packet = super_segment(&tcp, 3000, 1000);
        packet.offload.gso_size = 0;
        assert_eq!(whole(packet), (1, 3000, 0));
    }
}

#[test]
fn tunnels_with_invalid_layers_are_not_segmented() {
    for kind in TunnelKind::COALESCED {
        for outer_v6 in [false, true] {
            for v6 in [false, true] {
                let tcp = TestPacket {
                    v6,
                    options: vec![],
                    outer: Some(OuterHeaders::new(kind, outer_v6)),
                    ..TestPacket::default()
                };
                let packet = super_segment(&tcp, 3000, 1000);
                assert!(
                    packet.layers.encap != Encap::None && is_segmented(&packet),
                    "{kind:?}"
                );
                // The outer IP header is too short.
                let mut short_ip = packet.clone();
                short_ip.layers.tunnel -= 1;
                assert!(!is_segmented(&short_ip), "{kind:?}");
                // There is no room for the headers between the IP headers, or for the inner one.
                let mut no_tunnel = packet.clone();
                no_tunnel.layers.tunnel = packet.layers.network[1] + 1;
                assert!(!is_segmented(&no_tunnel), "{kind:?}");
                if packet.layers.encap == Encap::Udp {
                    no_tunnel.layers.tunnel = packet.layers.network[1] - 7;
                    assert!(!is_segmented(&no_tunnel), "{kind:?}");
                    no_tunnel.layers.tunnel = packet.layers.network[1] - 8;
                    assert!(is_segmented(&no_tunnel), "{kind:?}");
                }
                let mut wrong_version = packet.clone();
                wrong_version.offload.kind = if v6 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
                assert!(!is_segmented(&wrong_version), "{kind:?}");
            }
        }
    }
}

/// Packets that are in the list already remain unchanged.
#[test]
fn segments_are_appended() {
    let mut out = vec![super_segment(&TestPacket::default(), 100, 1000)];
    let before = out[0].to_bytes();
    segment(super_segment(&TestPacket::default(), 2000, 1000), &mut out);
    assert_eq!((out.len(), out[0].to_bytes()), (3, before));
    assert_eq!(out[1].payload.len(), 1000);
}
