use alloc::vec;
use alloc::vec::Vec;

use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::protocol::UDP;
use proptest::prelude::*;

use super::{parse_headers, parse_plain_tcp};
use crate::bytes::put16;
use crate::checksum::pseudo;
use crate::testing::{OuterHeaders, TUNNELS, TestPacket, TunnelKind};
use crate::{Chain, Checksum, Encap, HeaderBuf, Layers, Link, Packet, ParseError, Slice, Tunnels};

fn parsed(frame: &[u8], link: Link) -> Result<Packet, ParseError> {
    let mut packet = Packet::from_frame(Slice::copied_from(frame));
    packet.parse(link)?;
    Ok(packet)
}

/// Returns a packet that holds the frame in slices with these boundaries.
fn split_frame(frame: &[u8], cuts: &[usize]) -> Packet {
    let mut chain = Chain::new();
    let mut at = 0;
    for &cut in cuts.iter().chain([&frame.len()]) {
        let cut = cut.clamp(at, frame.len());
        chain.push(Slice::copied_from(&frame[at..cut]));
        at = cut;
    }
    Packet::from_frame(chain)
}

#[test]
fn finds_the_layers_of_plain_tcp() {
    for (v6, network) in [(false, 20), (true, 40)] {
        let tcp = TestPacket {
            v6,
            ..TestPacket::default()
        };
        let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
        let layers = Layers {
            network: [0, 0],
            transport: network,
            ethertype: if v6 { 0x86dd } else { 0x0800 },
            tunnel: 0,
            protocol: 6,
            encap: Encap::None,
            fragment: false,
        };
        assert_eq!(packet.layers, layers);
        assert_eq!(packet.header.len(), usize::from(network) + 32);
        assert_eq!(packet.payload, Slice::copied_from(&tcp.payload).into());
        assert_eq!(packet.to_bytes(), tcp.frame());
        assert_eq!(packet.transport_header().len(), 32);
    }
}

#[test]
fn skips_ethernet_and_vlan_tags_and_cuts_padding() {
    for (vlan, network) in [(None, 14), (Some(7), 18)] {
        let tcp = TestPacket {
            link: Link::Ethernet,
            vlan,
            payload: vec![1, 2, 3],
            ..TestPacket::default()
        };
        let padded = TestPacket {
            padding: 20,
            ..tcp.clone()
        };
        let packet = parsed(&padded.frame(), Link::Ethernet).unwrap();
        assert_eq!(packet.layers.network, [network; 2]);
        assert_eq!(packet.layers.transport, network + 20);
        assert_eq!(packet.to_bytes(), tcp.frame());
    }
}

#[test]
fn extension_headers_are_skipped() {
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    let tcp = TestPacket {
        extensions: vec![(0, options.clone()), (43, options.clone()), (60, options)],
        ..TestPacket::v6()
    };
    let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
    assert_eq!((packet.layers.transport, packet.layers.protocol), (64, 6));
    assert_eq!(packet.header.len(), 96);
}

#[test]
fn hop_by_hop_after_another_header_is_an_unknown_protocol() {
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    let tcp = TestPacket {
        extensions: vec![(60, options.clone()), (0, options)],
        ..TestPacket::v6()
    };
    let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
    assert_eq!((packet.layers.transport, packet.layers.protocol), (48, 0));
    assert_eq!(packet.header.len(), 48);
}

#[test]
fn fragments_keep_their_transport_header_in_the_payload() {
    let v4 = TestPacket {
        df: false,
        fragment: 0x2000,
        ..TestPacket::default()
    };
    let packet = parsed(&v4.frame(), Link::Ip).unwrap();
    assert!(packet.layers.fragment && packet.header.len() == 20);
    // The M flag; an offset; then an atomic fragment, which is a complete packet (RFC 6946).
    for (offset_and_more, fragment) in [(1, true), (8, true), (0, false)] {
        let v6 = TestPacket {
            extensions: vec![(44, vec![0, 0, offset_and_more, 0, 0, 0, 1])],
            ..TestPacket::v6()
        };
        let packet = parsed(&v6.frame(), Link::Ip).unwrap();
        assert_eq!(
            (packet.layers.fragment, packet.layers.transport),
            (fragment, 48)
        );
    }
}

#[test]
fn other_protocols_and_ethertypes_pass() {
    let mut icmp = TestPacket::v6().frame();
    icmp[6] = 58;
    let packet = parsed(&icmp, Link::Ip).unwrap();
    assert_eq!((packet.layers.protocol, packet.header.len()), (58, 40));
    let mut arp = vec![0xff; 14];
    arp[12..].copy_from_slice(&[8, 6]);
    arp.extend([1; 28]);
    let packet = parsed(&arp, Link::Ethernet).unwrap();
    assert_eq!((packet.layers.ethertype, packet.header.len()), (0x0806, 14));
    assert_eq!(packet.payload.len(), 28);
}

#[test]
fn a_datagram_may_end_before_its_packet() {
    let mut frame = TestPacket::v6().frame();
    frame[6] = 17;
    for (len, result) in [
        (8u16, Ok(0)),
        (20, Ok(12)),
        (7, Err(ParseError::Malformed)),
        (5000, Err(ParseError::Truncated)),
    ] {
        frame[44..46].copy_from_slice(&len.to_be_bytes());
        assert_eq!(parsed(&frame, Link::Ip).map(|p| p.payload.len()), result);
    }
}

#[test]
fn inconsistent_headers_are_malformed() {
    let v4 = TestPacket::default().frame();
    let broken = |at: usize, value: u8| {
        let mut frame = v4.clone();
        frame[at] = value;
        frame[10..12].fill(0);
        let sum = crate::testing::checksum(&frame[..20]);
        frame[10..12].copy_from_slice(&sum.to_be_bytes());
        parsed(&frame, Link::Ip).unwrap_err()
    };
    assert_eq!(broken(0, 0x44), ParseError::Malformed); // IHL below 5
    assert_eq!(broken(0, 0x55), ParseError::Malformed); // version 5
    assert_eq!(broken(2, 0xff), ParseError::Truncated); // total length beyond the frame
    assert_eq!(broken(32, 0x40), ParseError::Malformed); // TCP data offset below 5
    let mut bad_sum = v4.clone();
    bad_sum[10] ^= 1;
    assert_eq!(
        parsed(&bad_sum, Link::Ip).unwrap_err(),
        ParseError::Malformed
    );
}

#[test]
fn every_truncation_is_an_error() {
    let tcp = TestPacket {
        extensions: vec![(60, vec![0; 7])],
        ..TestPacket::v6()
    };
    for frame in [TestPacket::default().frame(), tcp.frame()] {
        for len in 0..frame.len() {
            assert!(parsed(&frame[..len], Link::Ip).is_err(), "{len}");
        }
    }
}

#[test]
fn a_separate_header_is_parsed() {
    let frame = TestPacket::v6().frame();
    for at in [30, 72, 100] {
        let mut packet = Packet {
            header: HeaderBuf::from_slice(&frame[..at]),
            payload: Slice::copied_from(&frame[at..]).into(),
            ..Packet::default()
        };
        packet.parse(Link::Ip).unwrap();
        assert_eq!(
            (packet.header.len(), packet.to_bytes()),
            (72, frame.clone())
        );
    }
}

#[test]
fn plain_tcp_takes_the_fast_parser() {
    let usual = |link, v6: bool, options: usize, len: usize| TestPacket {
        link,
        v6,
        options: vec![1; options],
        payload: vec![9; len],
        ..TestPacket::default()
    };
    for link in [Link::Ip, Link::Ethernet] {
        for v6 in [false, true] {
            for (options, len) in [(0, 0), (0, 1), (12, 0), (12, 1000), (40, 7)] {
                let frame = usual(link, v6, options, len).frame();
                // `plain` needs 40 bytes from the network header on for IPv4, 60 for IPv6.
                let found = parse_plain_tcp(&frame, frame.len(), link);
                assert_eq!(
                    found,
                    parse_headers(&frame, frame.len(), link, &Tunnels::NONE, false).ok(),
                    "{link:?} {v6} {options} {len}"
                );
                assert!(found.is_some());
                // The slice may end directly after the headers.
                let headers = frame.len() - len;
                let found = parse_plain_tcp(&frame[..headers], frame.len(), link);
                assert_eq!(found.map(|headers| headers.header_len), Some(headers));
                assert_eq!(
                    parse_plain_tcp(&frame[..headers - 1], frame.len(), link),
                    None
                );
            }
        }
    }
    for unusual in [
        TestPacket {
            vlan: Some(3),
            link: Link::Ethernet,
            ..TestPacket::default()
        },
        TestPacket {
            udp: true,
            ..TestPacket::default()
        },
        TestPacket {
            fragment: 1,
            df: false,
            ..TestPacket::default()
        },
        TestPacket {
            fragment: 0x2000,
            df: false,
            ..TestPacket::default()
        },
        TestPacket {
            ip_options: vec![1; 4],
            ..TestPacket::default()
        },
        TestPacket {
            extensions: vec![(60, vec![0; 7])],
            ..TestPacket::v6()
        },
        TestPacket {
            padding: 1,
            ..TestPacket::v6()
        },
        TestPacket {
            padding: 1,
            ..TestPacket::default()
        },
    ] {
        let frame = unusual.frame();
        assert_eq!(
            parse_plain_tcp(&frame, frame.len(), unusual.link),
            None,
            "{unusual:?}"
        );
    }
}

#[test]
fn headers_may_end_exactly_where_the_packet_does() {
    let ends = |frame: &[u8]| parsed(frame, Link::Ip).map(|packet| packet.payload.len());
    let with_len = |tcp: &TestPacket, len: usize| {
        let mut frame = tcp.frame();
        frame.truncate(len);
        if tcp.v6 {
            frame[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        } else {
            frame[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            frame[10..12].fill(0);
            let sum = crate::testing::checksum(&frame[..20]);
            frame[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    };
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    let extended = TestPacket {
        extensions: vec![(60, options)],
        ..TestPacket::v6()
    };
    let udp = |tcp: TestPacket| TestPacket {
        udp: true,
        payload: vec![],
        ..tcp
    };
    for (tcp, len) in [
        (TestPacket::default(), 52),
        (TestPacket::v6(), 72),
        (extended.clone(), 80),
        (udp(TestPacket::default()), 28),
        (udp(TestPacket::v6()), 48),
        (udp(extended), 56),
    ] {
        assert_eq!(ends(&with_len(&tcp, len)), Ok(0), "{tcp:?}");
        for short in 1..=20 {
            let least = if tcp.v6 { 40 } else { 20 };
            let frame = with_len(&tcp, (len - short).max(least));
            assert!(ends(&frame).is_err(), "{short} bytes short: {tcp:?}");
        }
    }
    // Without TCP options the header has 20 bytes.
    let bare = TestPacket {
        options: vec![],
        payload: vec![],
        ..TestPacket::v6()
    };
    assert_eq!(ends(&bare.frame()), Ok(0));
}

#[test]
fn an_authentication_header_length_is_in_4_byte_words() {
    // RFC 4302 2.2: the length is in units of 4 bytes, minus 2; this header has 16 bytes.
    let tcp = TestPacket {
        extensions: vec![(51, [&[2][..], &[0; 14]].concat())],
        ..TestPacket::v6()
    };
    let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
    assert_eq!((packet.layers.protocol, packet.layers.transport), (6, 56));
}

#[test]
fn an_empty_packet_has_no_bytes_and_a_super_segment_many_headers() {
    assert!(Packet::default().is_empty());
    let mut packet = parsed(&TestPacket::default().frame(), Link::Ip).unwrap();
    assert!(!packet.is_empty());
    assert_eq!(packet.wire_len(), 1052);
    packet.offload.gso_segs = 3;
    assert_eq!(packet.wire_len(), 1000 + 3 * 52);
    packet.payload = Chain::new();
    assert!(!packet.is_empty());
}

proptest! {
    /// The result of the parse does not depend on slice boundaries.
    #[test]
    fn the_result_does_not_depend_on_slices(
        cuts in prop::collection::vec(0..200usize, 0..5),
        bytes in prop::collection::vec((0..120usize, any::<u8>()), 0..3),
        v6: bool,
    ) {
        let mut frame = TestPacket { v6, link: Link::Ethernet, ..TestPacket::default() }.frame();
        for (at, value) in bytes {
            frame[at] = value;
        }
        let mut cuts = cuts;
        cuts.sort_unstable();
        let whole = parsed(&frame, Link::Ethernet);
        let mut pieces = split_frame(&frame, &cuts);
        let result = pieces.parse(Link::Ethernet);
        match whole {
            Ok(whole) => {
                prop_assert_eq!(result, Ok(()));
                prop_assert_eq!(pieces.layers, whole.layers);
                prop_assert_eq!(&*pieces.header, &*whole.header);
                prop_assert_eq!(pieces.payload, whole.payload);
            }
            Err(error) => prop_assert_eq!(result, Err(error)),
        }
    }

    #[test]
    fn random_bytes_do_not_panic(frame: Vec<u8>, cuts in prop::collection::vec(0..100usize, 0..4)) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        for link in [Link::Ip, Link::Ethernet] {
            let _ = split_frame(&frame, &cuts).parse(link);
        }
    }
}

/// An application of this host may build a tunnel's packets itself: its datagrams have a header of
/// their own, whose checksum is partial, and a payload with an inner checksum that is complete.
#[test]
fn a_partial_checksum_belongs_to_the_separate_header() {
    for kind in [
        TunnelKind::Vxlan,
        TunnelKind::Geneve,
        TunnelKind::Fou,
        TunnelKind::Gue,
    ] {
        for v6 in [false, true] {
            let tcp = TestPacket {
                v6,
                payload: vec![7; 20],
                outer: Some(OuterHeaders::new(kind, v6)),
                ..TestPacket::default()
            };
            let frame = tcp.frame();
            let udp = if v6 { 40 } else { 20 };
            let (header, inner) = frame.split_at(udp + 8);
            let mut packet = Packet::from_frame(Slice::copied_from(inner));
            packet.header = HeaderBuf::from_slice(header);
            let own = pseudo(header, 0, v6, UDP, frame.len() - udp);
            put16(&mut packet.header, udp + 6, own.fold());
            packet.offload.checksum = Checksum::Partial;
            packet.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
            assert_eq!(packet.layers.encap, Encap::None, "{kind:?}");
            packet.complete_checksum();
            let whole = packet.to_bytes();
            assert!((own + sum(&whole[udp..])).is_valid(), "{kind:?}");
            assert_eq!(whole[udp + 8..], *inner, "{kind:?}");
        }
    }
}

/// A tunnel's headers may be in the next slice.
#[test]
fn the_result_in_tunnels_does_not_depend_on_slices() {
    for kind in TunnelKind::COALESCED {
        for v6 in [false, true] {
            let tcp = TestPacket {
                v6,
                payload: vec![7; 20],
                outer: Some(OuterHeaders::new(kind, v6)),
                ..TestPacket::default()
            };
            let frame = tcp.frame();
            let mut whole = tcp.packet();
            whole.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
            assert_ne!(whole.layers.encap, Encap::None);
            for cut in 0..frame.len() {
                let mut pieces = split_frame(&frame, &[cut]);
                pieces.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
                assert_eq!(pieces.layers, whole.layers, "cut at {cut}: {kind:?}");
                assert_eq!(pieces.header, whole.header, "cut at {cut}: {kind:?}");
                assert_eq!(pieces.payload, whole.payload, "cut at {cut}: {kind:?}");
            }
        }
    }
}

#[test]
fn at_most_eight_extension_headers_are_parsed() {
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    for (count, protocol, len) in [(8, 6, 104 + 32), (9, 60, 104)] {
        let tcp = TestPacket {
            extensions: vec![(60, options.clone()); count],
            ..TestPacket::v6()
        };
        let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
        let found = (packet.layers.protocol, packet.header.len());
        assert_eq!(found, (protocol, len));
    }
}

/// Returns an IPv4 or IPv6 frame with this length field and a correct header checksum.
fn with_length(tcp: &TestPacket, len: u16) -> Vec<u8> {
    let mut frame = tcp.frame();
    if tcp.v6 {
        frame[4..6].copy_from_slice(&len.to_be_bytes());
    } else {
        frame[2..4].copy_from_slice(&len.to_be_bytes());
        resum_v4(&mut frame, 20);
    }
    frame
}

fn resum_v4(frame: &mut [u8], len: usize) {
    frame[10..12].fill(0);
    let sum = crate::testing::checksum(&frame[..len]);
    frame[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn error(frame: &[u8]) -> ParseError {
    parsed(frame, Link::Ip).unwrap_err()
}

/// RFC 791 3.1: the header has at least five 32-bit words, and the total length includes it.
#[test]
fn ipv4_headers_have_at_least_20_bytes() {
    let mut short = TestPacket::default().frame();
    short[0] = 0x44;
    resum_v4(&mut short, 16);
    assert_eq!(error(&short), ParseError::Malformed);
    for len in [0, 4, 19] {
        let frame = with_length(&TestPacket::default(), len);
        assert_eq!(error(&frame), ParseError::Malformed, "{len}");
    }
    // The payload may be empty.
    let mut bare = TestPacket::default().frame();
    bare[9] = 59;
    bare[2..4].copy_from_slice(&20_u16.to_be_bytes());
    resum_v4(&mut bare, 20);
    assert_eq!(parsed(&bare, Link::Ip).unwrap().len(), 20);
    // The EtherType does not match the IP version.
    let mut other = TestPacket::default().frame();
    other[0] = 0x65;
    resum_v4(&mut other, 20);
    let frame = [&[2; 12][..], &[8, 0], &other].concat();
    assert_eq!(
        parsed(&frame, Link::Ethernet).unwrap_err(),
        ParseError::Malformed
    );
}

/// Bytes after the end of the IP packet are not read as a transport header.
#[test]
fn padding_is_not_parsed_as_a_transport_header() {
    for v6 in [false, true] {
        for (udp, least) in [(false, 20), (true, 8)] {
            let tcp = TestPacket {
                v6,
                udp,
                payload: vec![],
                options: vec![],
                ..TestPacket::default()
            };
            for len in 0..least {
                let mut frame = with_length(&tcp, if v6 { len } else { 20 + len });
                let end = usize::from(len) + if v6 { 40 } else { 20 };
                frame[end..].fill(0);
                assert_eq!(error(&frame), ParseError::Truncated, "{len} bytes, {tcp:?}");
            }
        }
    }
}

/// RFC 8200 4: extension headers must not extend beyond the end of the packet.
#[test]
fn extension_headers_must_end_within_the_packet() {
    let with = |kind, bytes: Vec<u8>, len: u16| {
        let tcp = TestPacket {
            extensions: vec![(kind, bytes)],
            ..TestPacket::v6()
        };
        with_length(&tcp, len)
    };
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    // Nothing follows the extension header.
    let mut last = with(60, options.clone(), 8);
    last[40] = 59;
    for frame in [&last[..], &last[..48]] {
        let packet = parsed(frame, Link::Ip).unwrap();
        assert_eq!((packet.header.len(), packet.len()), (48, 48));
        assert_eq!(packet.layers.protocol, 59);
    }
    for len in 0..8 {
        assert_eq!(
            error(&with(60, options.clone(), len)),
            ParseError::Truncated
        );
        let fragment = with(44, vec![0, 0, 8, 0, 0, 0, 1], len);
        assert_eq!(error(&fragment), ParseError::Truncated, "{len}");
    }
    let fragment = with(44, vec![0, 0, 8, 0, 0, 0, 1], 8);
    assert_eq!(parsed(&fragment, Link::Ip).unwrap().len(), 48);
}

/// RFC 8200 4.5: the reserved byte is ignored. RFC 4302 2.2: the length is in units of 4 bytes,
/// minus 2.
#[test]
fn fragment_and_authentication_headers_have_lengths_of_their_own() {
    let fragment = (44, vec![7, 0, 0, 0, 0, 0, 1]);
    let auth = (51, [&[4][..], &[0; 22]].concat());
    for (extensions, transport) in [
        (vec![fragment.clone()], 48),
        (vec![auth.clone()], 64),
        (vec![auth, fragment], 72),
    ] {
        let frame = TestPacket {
            extensions,
            ..TestPacket::v6()
        }
        .frame();
        let headers = parse_headers(&frame, frame.len(), Link::Ip, &TUNNELS, false).unwrap();
        assert_eq!(
            (headers.layers.protocol, headers.layers.transport),
            (6, transport)
        );
        // These headers differ from packet to packet.
        assert!(headers.opaque);
    }
}

/// Returns a super-segment from a device, of `len` bytes including headers, with these length
/// fields.
fn oversize(v6: bool, udp: bool, len: usize, field: u16, gso_size: u16) -> Packet {
    let tcp = TestPacket {
        v6,
        udp,
        ..TestPacket::default()
    };
    let mut frame = with_length(&tcp, field);
    if udp {
        let at = if v6 { 44 } else { 24 };
        frame[at..at + 2].fill(0);
    }
    frame.resize(len, 7);
    let mut packet = Packet::from_frame(Slice::copied_from(&frame));
    packet.offload.gso_size = gso_size;
    packet
}

/// A length field of 0 is valid only in a super-segment that is too long for the field.
#[test]
fn a_length_of_zero_is_valid_only_for_super_segments_above_64_kib() {
    for (v6, bad) in [
        (false, ParseError::Malformed),
        (true, ParseError::Truncated),
    ] {
        let parse = |len, field, gso_size| {
            let mut packet = oversize(v6, false, len, field, gso_size);
            packet.parse(Link::Ip).map(|()| packet.len())
        };
        assert_eq!(parse(65_536, 0, 1000), Ok(65_536));
        assert_eq!(parse(65_535, 0, 1000), Err(bad));
        assert_eq!(parse(65_536, 0, 0), Err(bad));
        let header = if v6 { 40 } else { 0 };
        assert_eq!(parse(65_536, 1000, 1000), Ok(1000 + header));
    }
}

/// RFC 768: the length includes the header. Here 0 stands for a length that the field cannot
/// express.
#[test]
fn a_udp_length_of_zero_is_valid_only_for_super_segments_above_64_kib() {
    for (v6, at) in [(false, 20_usize), (true, 40)] {
        let parse = |len, gso_size| {
            let mut packet = oversize(v6, true, at + len, 0, gso_size);
            packet.parse(Link::Ip).map(|()| packet.payload.len())
        };
        assert_eq!(parse(65_536, 1000), Ok(65_528));
        assert_eq!(parse(65_535, 1000), Err(ParseError::Malformed));
    }
}

/// The headers are copied and the payload is not, unless the headers span several slices.
#[test]
fn payload_is_not_copied() {
    for udp in [false, true] {
        let tcp = TestPacket {
            udp,
            ..TestPacket::default()
        };
        let mut packet = tcp.packet();
        let start = packet.payload.slices()[0].as_ptr() as usize;
        packet.parse(Link::Ip).unwrap();
        let payload = packet.payload.slices()[0].as_ptr() as usize;
        assert_eq!(payload - start, packet.header.len());
        // The payload is not copied either when a packet with separate headers is parsed again.
        packet.parse(Link::Ip).unwrap();
        assert_eq!(packet.payload.slices()[0].as_ptr() as usize, payload);
    }
}

/// Slices are joined only where what leads into a tunnel may lie in the next one.
#[test]
fn datagrams_to_a_tunnel_port_are_not_linearized() {
    let mut frame = TestPacket {
        udp: true,
        payload: vec![0xff; 200],
        ..TestPacket::default()
    }
    .frame();
    frame[22..24].copy_from_slice(&4789_u16.to_be_bytes());
    for (cut, stays) in [(28, false), (35, false), (36, true), (100, true)] {
        let mut packet = split_frame(&frame, &[cut]);
        let second = packet.payload.slices()[1].as_ptr();
        packet.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
        let last = packet.payload.slices().last().unwrap().as_ptr();
        assert_eq!(last == second, stays, "cut at {cut}");
        assert_eq!(packet.to_bytes(), frame);
    }
}

#[test]
fn padding_after_a_separate_header_is_removed() {
    let tcp = TestPacket::default();
    let mut packet = tcp.packet();
    packet.parse(Link::Ip).unwrap();
    packet.payload.push(Slice::copied_from(&[0; 6]));
    packet.parse(Link::Ip).unwrap();
    assert_eq!(packet.to_bytes(), tcp.frame());
}

/// Returns whether the parser reports a tunnel, and whether it reports opaque headers.
fn is_tunnel_and_opaque(frame: &[u8]) -> (bool, bool) {
    let headers = parse_headers(frame, frame.len(), Link::Ip, &TUNNELS, false).unwrap();
    (headers.layers.encap != Encap::None, headers.opaque)
}

#[test]
fn inner_packets_are_parsed_if_all_headers_are_known() {
    let inner = TestPacket {
        payload: vec![7; 60],
        ..TestPacket::default()
    };
    let frame = inner.frame();
    let mut longer = frame.clone();
    longer.push(0);
    let fragment = TestPacket {
        fragment: 0x2000,
        ..inner.clone()
    };
    let options = TestPacket {
        ip_options: vec![1; 4],
        ..inner.clone()
    };
    let mut icmp = frame.clone();
    icmp[9] = 1;
    resum_v4(&mut icmp, 20);
    for kind in TunnelKind::COALESCED {
        for outer_v6 in [false, true] {
            let outer = OuterHeaders::new(kind, outer_v6);
            let around = |inner: &[u8]| is_tunnel_and_opaque(&outer.around(inner, false));
            assert_eq!(around(&frame), (true, false), "{kind:?}");
            // Truncated at any byte, longer than its length field, or of an unsupported kind.
            for len in 0..frame.len() {
                assert_eq!(around(&frame[..len]), (false, true), "{kind:?} {len}");
            }
            for other in [&longer, &fragment.frame(), &options.frame(), &icmp] {
                assert_eq!(around(other), (false, true), "{kind:?}");
            }
        }
    }
}

/// A fragment does not contain a complete packet.
#[test]
fn fragments_of_a_tunnel_are_not_parsed() {
    for kind in TunnelKind::COALESCED {
        let mut frame =
            OuterHeaders::new(kind, false).around(&TestPacket::default().frame(), false);
        frame[6] = 0x20;
        resum_v4(&mut frame, 20);
        let headers = parse_headers(&frame, frame.len(), Link::Ip, &TUNNELS, false).unwrap();
        assert!(
            headers.layers.fragment && headers.layers.encap == Encap::None,
            "{kind:?}"
        );
        assert_eq!(headers.header_len, 20);
    }
}

/// An inner packet after the fragment header of an atomic fragment, and one that contains such a
/// header.
#[test]
fn unknown_headers_in_tunnels_are_opaque() {
    let atomic = TestPacket {
        extensions: vec![(44, vec![0, 0, 0, 0, 0, 0, 1])],
        ..TestPacket::v6()
    };
    for inner in [TestPacket::v6(), atomic.clone()] {
        let mut frame = atomic.frame()[..48].to_vec();
        frame[40] = 41;
        frame.extend(inner.frame());
        let len = (frame.len() - 40) as u16;
        frame[4..6].copy_from_slice(&len.to_be_bytes());
        assert_eq!(is_tunnel_and_opaque(&frame), (true, true));
    }
    // Datagrams to the port of a tunnel that contain no tunnel header.
    for (extensions, v6) in [(vec![], false), (vec![], true), (atomic.extensions, true)] {
        for len in [0, 1, 7, 8, 30] {
            let mut frame = TestPacket {
                v6,
                extensions: extensions.clone(),
                udp: true,
                payload: vec![0xff; len],
                ..TestPacket::default()
            }
            .frame();
            let port = frame.len() - len - 6;
            frame[port..port + 2].copy_from_slice(&4789_u16.to_be_bytes());
            assert_eq!(is_tunnel_and_opaque(&frame), (false, true), "{len} bytes");
        }
    }
}
