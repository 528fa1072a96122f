use alloc::vec;
use alloc::vec::Vec;

use fullsend_buf::{Chain, Slice};

use super::segment;
use crate::testing::{ACK, CWR, FIN, PSH, Tcp, payload};
use crate::{Checksum, GsoKind, HeaderBuf, Link, Offload, Packet, TxToken};

/// A super-segment as a sender builds it.
fn super_segment(tcp: &Tcp, len: usize, size: u16) -> Packet {
    let whole = Tcp {
        payload: payload(tcp.seq, len),
        ..tcp.clone()
    };
    let mut packet = whole.packet();
    packet.parse(tcp.link).unwrap();
    packet.offload = Offload {
        gso_size: size,
        gso_segs: len.div_ceil(usize::from(size)) as u16,
        kind: if tcp.v6 {
            GsoKind::TcpV6
        } else {
            GsoKind::TcpV4
        },
        checksum: Checksum::Partial,
        ..Offload::default()
    };
    packet
}

fn cut(packet: Packet) -> Vec<Packet> {
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
            let tcp = Tcp {
                v6,
                link,
                ip_id: if v6 { 0 } else { 0xffff },
                seq: u32::MAX - 1500,
                ..Tcp::default()
            };
            let out = cut(super_segment(&tcp, 3500, 1000));
            let mut expected = tcp.run(4, 1000);
            expected[3].payload.truncate(500);
            let expected: Vec<_> = expected.iter().map(Tcp::frame).collect();
            assert_eq!(frames(&out), expected, "v6 {v6} {link:?}");
            assert!(out.iter().all(|p| p.offload == Offload::default()));
        }
    }
}

#[test]
fn flags_stay_with_their_segment() {
    let tcp = Tcp {
        flags: ACK | FIN | PSH | CWR,
        ..Tcp::default()
    };
    let flags: Vec<_> = cut(super_segment(&tcp, 3000, 1000))
        .iter()
        .map(|p| u16::from(p.transport_header()[13]))
        .collect();
    assert_eq!(flags, [ACK | CWR, ACK, ACK | FIN | PSH]);
}

/// RFC 9768 3.2.2: CWR is a part of each segment's count.
#[test]
fn a_count_stands_on_every_segment() {
    let tcp = Tcp {
        flags: ACK | PSH | CWR,
        ..Tcp::default()
    };
    let mut packet = super_segment(&tcp, 2500, 1000);
    packet.offload.repeats_cwr = true;
    let out = cut(packet);
    let flags: Vec<_> = out
        .iter()
        .map(|p| u16::from(p.transport_header()[13]))
        .collect();
    assert_eq!(flags, [ACK | CWR, ACK | CWR, ACK | PSH | CWR]);
    assert!(out.iter().all(|p| p.offload == Offload::default()));
}

#[test]
fn a_fixed_id_stays_fixed() {
    let mut packet = super_segment(&Tcp::default(), 3000, 1000);
    packet.offload.fixed_id = [true; 2];
    let ids: Vec<_> = cut(packet)
        .iter()
        .map(|p| p.network_header()[4..6].to_vec())
        .collect();
    assert_eq!(ids, vec![vec![0, 100]; 3]);
}

#[test]
fn extension_headers_and_ip_options_go_on_every_segment() {
    let v6 = Tcp {
        extensions: vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        ..Tcp::v6()
    };
    let v4 = Tcp {
        ip_options: vec![1, 1, 1, 0],
        ..Tcp::default()
    };
    for tcp in [v6, v4] {
        let expected: Vec<_> = tcp.run(3, 700).iter().map(Tcp::frame).collect();
        assert_eq!(frames(&cut(super_segment(&tcp, 2100, 700))), expected);
    }
}

#[test]
fn the_token_goes_to_the_last() {
    let mut packet = super_segment(&Tcp::default(), 2500, 1000);
    packet.tx = TxToken {
        socket: 9,
        truesize: 4000,
        departure_ns: 5,
    };
    let tokens: Vec<_> = cut(packet).iter().map(|p| p.tx.socket).collect();
    assert_eq!(tokens, [0, 0, 9]);
}

#[test]
fn payload_is_shared_not_copied_and_pieces_of_any_length_sum_right() {
    let tcp = Tcp::default();
    let mut packet = super_segment(&tcp, 5000, 1000);
    let bytes = Slice::copied_from(&payload(tcp.seq, 5000));
    // Odd lengths, and boundaries within and at segment ends.
    packet.payload = [0, 7, 1000, 1001, 2000, 4999, 5000]
        .windows(2)
        .map(|w| Slice::copied_from(&bytes[w[0]..w[1]]))
        .collect::<Chain>();
    let first = packet.payload.slices()[0].as_ptr();
    let out = cut(packet);
    assert_eq!(out[0].payload.slices()[0].as_ptr(), first);
    let expected: Vec<_> = tcp.run(5, 1000).iter().map(Tcp::frame).collect();
    assert_eq!(frames(&out), expected);
}

#[test]
fn an_uncut_packet_gets_its_checksum() {
    for v6 in [false, true] {
        let tcp = Tcp {
            v6,
            ..Tcp::default()
        };
        // As a run of one, and as a plain packet.
        for (kind, size) in [(GsoKind::None, 0), (GsoKind::TcpV4, 1448)] {
            let mut packet = super_segment(&tcp, 999, 1000);
            let t = usize::from(packet.layers.transport);
            let partial = crate::checksum::pseudo(&packet.header, 0, v6, 6, 32 + 999);
            packet.header[t + 16..t + 18].copy_from_slice(&partial.fold().to_be_bytes());
            packet.offload.kind = kind;
            packet.offload.gso_size = size;
            packet.offload.gso_segs = 1;
            assert_eq!(frames(&cut(packet)), [tcp.run(1, 999)[0].frame()]);
        }
    }
}

#[test]
fn datagrams_are_cut_with_a_udp_header_each() {
    for v6 in [false, true] {
        let mut packet = super_segment(
            &Tcp {
                v6,
                ..Tcp::default()
            },
            2500,
            1000,
        );
        // Turns the TCP header into a UDP one.
        let t = usize::from(packet.layers.transport);
        let mut header = packet.header[..t + 8].to_vec();
        header[if v6 { 6 } else { 9 }] = 17;
        packet.header = HeaderBuf::from_slice(&header);
        packet.layers.protocol = 17;
        packet.offload.kind = GsoKind::Udp;
        let out = cut(packet);
        assert_eq!(out.len(), 3);
        for (packet, len) in out.iter().zip([1000u16, 1000, 500]) {
            let mut again = Packet::from_frame(Slice::copied_from(&packet.to_bytes()));
            again.parse(Link::Ip).unwrap();
            assert_eq!(again.payload.len(), usize::from(len));
            let verdict = crate::checksum::verify(again.front(), again.rest(), &again.layers);
            assert_eq!(verdict, crate::checksum::Verdict::Good);
            assert_eq!(again.transport_header()[4..6], (len + 8).to_be_bytes());
        }
    }
}

#[test]
fn headers_that_do_not_fit_their_kind_are_dropped() {
    let good = super_segment(&Tcp::default(), 3000, 1000);
    let mut no_header = good.clone();
    no_header.header.clear();
    let mut wrong_kind = good.clone();
    wrong_kind.offload.kind = GsoKind::TcpV6;
    let mut transport_beyond = good.clone();
    transport_beyond.layers.transport = 500;
    let mut too_long = super_segment(&Tcp::default(), 65000, 1000);
    too_long.payload.append(good.payload.clone());
    too_long.offload.gso_size = u16::MAX;
    for packet in [no_header, wrong_kind, transport_beyond, too_long] {
        assert!(cut(packet).is_empty());
    }
}
