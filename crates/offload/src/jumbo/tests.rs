use alloc::vec;
use alloc::vec::Vec;

use fullsend_wire::Instant;

use crate::testing::{TestPacket, payload};
use crate::{Encap, Gro, GroConfig, GsoKind, HeaderBuf, Link, Packet, Slice, Tunnels, segment};

fn poll(packets: impl IntoIterator<Item = Packet>) -> Vec<Packet> {
    let mut gro = Gro::new(GroConfig {
        link: Link::Ip,
        enabled: true,
        max_size: 8 * 65_535,
        tunnels: Tunnels::NONE,
    });
    for packet in packets {
        gro.receive(Instant::ZERO, packet);
    }
    let mut out = Vec::new();
    gro.flush(&mut out);
    out
}

fn segmented(packets: Vec<Packet>) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for packet in packets {
        segment(packet, &mut out);
    }
    out.iter().map(Packet::to_bytes).collect()
}

fn coalesced(tcp: &TestPacket, count: usize) -> (Packet, Vec<Vec<u8>>) {
    let run = tcp.run(count, 1400);
    let mut out = poll(run.iter().map(TestPacket::packet));
    assert_eq!(out.len(), 1);
    (out.remove(0), run.iter().map(TestPacket::frame).collect())
}

#[test]
fn the_jumbo_option_has_the_length_and_segmentation_removes_it() {
    let (mut packet, frames) = coalesced(&TestPacket::v6(), 100);
    let transport = packet.transport_header().to_vec();
    assert!(packet.insert_jumbo_option());
    let len = 8 + 32 + 140_000_u32;
    let [a, b, c, d] = len.to_be_bytes();
    assert_eq!(packet.header[4..8], [0, 0, 0, 64]);
    assert_eq!(packet.header[40..48], [6, 0, 0xc2, 4, a, b, c, d]);
    assert_eq!(packet.transport_header(), transport);
    assert!(!packet.insert_jumbo_option());
    // Received over a link in this process, its headers are parsed as they are.
    let mut parsed = packet.clone();
    parsed.parse(Link::Ip).unwrap();
    assert_eq!(parsed.layers, packet.layers);
    assert_eq!(segmented(vec![packet]), frames);
}

/// RFC 2675 3: with a non-zero payload length the option is an error, which the destination
/// reports. It remains in each packet.
#[test]
fn a_received_jumbo_option_stays_on_each_segment() {
    let tcp = TestPacket {
        extensions: vec![(0, vec![0, 0xc2, 4, 0, 1, 0, 0])],
        ..TestPacket::v6()
    };
    let run = tcp.run(60, 1400);
    let frames: Vec<_> = run.iter().map(TestPacket::frame).collect();
    let packets = poll(run.iter().map(TestPacket::packet));
    assert_eq!(segmented(packets), frames);
    // The same packets, coalesced by a device.
    let mut coalesced = TestPacket {
        payload: payload(tcp.seq, 3 * 1400),
        ..tcp
    }
    .packet();
    coalesced.offload.kind = GsoKind::TcpV6;
    coalesced.offload.gso_size = 1400;
    coalesced.parse(Link::Ip).unwrap();
    assert_eq!(segmented(vec![coalesced]), frames[..3]);
}

#[test]
fn super_segments_with_the_jumbo_option_are_merged() {
    let run = TestPacket::v6().run(100, 1400);
    let mut halves = run
        .chunks(50)
        .flat_map(|half| poll(half.iter().map(TestPacket::packet)));
    let mut with_option = || {
        let mut half = halves.next().unwrap();
        assert!(half.insert_jumbo_option());
        half
    };
    let packets = poll([with_option(), with_option()]);
    assert_eq!(packets.len(), 1);
    let frames: Vec<_> = run.iter().map(TestPacket::frame).collect();
    assert_eq!(segmented(packets), frames);
}

/// The payload length of IPv6 is counted from the end of the fixed header, with any link header.
#[test]
fn jumbo_option_requires_65536_bytes() {
    for link in [Link::Ip, Link::Ethernet] {
        let tcp = TestPacket {
            link,
            payload: payload(1, 1000),
            ..TestPacket::v6()
        };
        let of = |len: usize| {
            let mut packet = tcp.packet();
            packet.parse(link).unwrap();
            packet.offload.gso_size = 1000;
            packet.offload.kind = GsoKind::TcpV6;
            packet.payload = Slice::copied_from(&payload(1, len - 32)).into();
            packet
        };
        let mut packet = of(65_535);
        assert!(!packet.insert_jumbo_option());
        let mut packet = of(65_536);
        assert!(packet.insert_jumbo_option());
        let at = usize::from(packet.layers.network[0]) + 40;
        // RFC 2675 2: the length is counted from the end of the fixed header and includes the
        // option.
        let option = [6, 0, 0xc2, 4, 0, 1, 0, 8];
        assert_eq!(packet.header[at..at + 8], option);
        assert_eq!(packet.header[..at - 40], tcp.frame()[..at - 40]);
        assert_eq!(packet.header[at - 34], 0, "next header: hop-by-hop");
        assert_eq!(packet.header[at - 32..at], tcp.frame()[at - 32..at]);
        assert_eq!(packet.transport_header().len(), 32);
        let header = of(65_536).header;
        packet.remove_jumbo_option();
        let mut expected = header.to_vec();
        expected[at - 36..at - 34].fill(0);
        assert_eq!(&*packet.header, expected);
        assert_eq!(usize::from(packet.layers.transport), at);
    }
}

#[test]
fn a_short_header_does_not_get_the_jumbo_option() {
    let (whole, _) = coalesced(&TestPacket::v6(), 100);
    let mut tunnelled = whole.clone();
    tunnelled.layers.encap = Encap::Ip;
    let mut short = whole.clone();
    short.header = HeaderBuf::from_slice(&whole.header[..39]);
    let mut behind = whole.clone();
    behind.layers.network[0] = 33;
    // Segmentation would not change these and so leave the option in them.
    let mut one = whole.clone();
    one.offload.gso_size = u16::MAX;
    one.payload = Slice::copied_from(&payload(1, 65_535)).into();
    let mut unsized_ = whole.clone();
    unsized_.offload.gso_size = 0;
    let mut unknown = whole.clone();
    unknown.offload.kind = GsoKind::None;
    let none = Packet::default();
    for mut packet in [tunnelled, short, behind, one, unsized_, unknown, none] {
        let before = packet.to_bytes();
        assert!(!packet.insert_jumbo_option());
        assert_eq!(packet.to_bytes(), before);
    }
    let mut exact = whole.clone();
    exact.header = HeaderBuf::from_slice(&whole.header[..40]);
    assert!(exact.insert_jumbo_option());
}

/// Other bytes are not mistaken for the option, and headers too short for it are left unchanged.
#[test]
fn only_the_jumbo_option_is_removed() {
    let (mut whole, _) = coalesced(&TestPacket::v6(), 100);
    assert!(whole.insert_jumbo_option());
    let cases: [fn(&mut Packet); 7] = [
        |p| p.layers.ethertype = 0x0800,
        |p| p.layers.encap = Encap::Ip,
        |p| p.layers.transport = 47,
        |p| p.header = HeaderBuf::from_slice(&p.header[..47]),
        |p| p.header[6] = 60,
        |p| p.header[42] = 0xc3,
        |p| p.header[5] = 1,
    ];
    for (case, change) in cases.into_iter().enumerate() {
        let mut packet = whole.clone();
        change(&mut packet);
        let before = (packet.to_bytes(), packet.layers);
        packet.remove_jumbo_option();
        assert_eq!((packet.to_bytes(), packet.layers), before, "case {case}");
    }
    let mut exact = whole.clone();
    exact.header = HeaderBuf::from_slice(&whole.header[..48]);
    exact.remove_jumbo_option();
    assert_eq!((exact.header.len(), exact.layers.transport), (40, 40));
}

#[test]
fn jumbo_option_requires_ipv6_above_64_kib() {
    for (tcp, count) in [(TestPacket::v6(), 46), (TestPacket::default(), 100)] {
        let (mut packet, _) = coalesced(&tcp, count);
        let before = packet.to_bytes();
        assert!(!packet.insert_jumbo_option());
        assert_eq!(packet.to_bytes(), before);
    }
}
