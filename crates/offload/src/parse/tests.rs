use alloc::vec;
use alloc::vec::Vec;

use fullsend_buf::{Chain, Slice};
use proptest::prelude::*;

use super::{plain, walk};
use crate::testing::{Kind, Outer, TUNNELS, Tcp};
use crate::{Encap, Layers, Link, Packet, ParseError, Tunnels};

fn parsed(frame: &[u8], link: Link) -> Result<Packet, ParseError> {
    let mut packet = Packet::from_frame(Slice::copied_from(frame));
    packet.parse(link)?;
    Ok(packet)
}

/// The frame in slices cut at `cuts`.
fn chopped(frame: &[u8], cuts: &[usize]) -> Packet {
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
        let tcp = Tcp {
            v6,
            ..Tcp::default()
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
        let tcp = Tcp {
            link: Link::Ethernet,
            vlan,
            payload: vec![1, 2, 3],
            ..Tcp::default()
        };
        let padded = Tcp {
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
fn extension_headers_lead_to_the_transport() {
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    let tcp = Tcp {
        extensions: vec![(0, options.clone()), (43, options.clone()), (60, options)],
        ..Tcp::v6()
    };
    let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
    assert_eq!((packet.layers.transport, packet.layers.protocol), (64, 6));
    assert_eq!(packet.header.len(), 96);
}

#[test]
fn hop_by_hop_after_another_header_is_an_unknown_protocol() {
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    let tcp = Tcp {
        extensions: vec![(60, options.clone()), (0, options)],
        ..Tcp::v6()
    };
    let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
    assert_eq!((packet.layers.transport, packet.layers.protocol), (48, 0));
    assert_eq!(packet.header.len(), 48);
}

#[test]
fn fragments_keep_their_transport_header_in_the_payload() {
    let v4 = Tcp {
        df: false,
        fragment: 0x2000,
        ..Tcp::default()
    };
    let packet = parsed(&v4.frame(), Link::Ip).unwrap();
    assert!(packet.layers.fragment && packet.header.len() == 20);
    // More fragments; then an atomic fragment, which is a whole packet (RFC 6946).
    for (offset_and_more, fragment) in [(1, true), (8, true), (0, false)] {
        let v6 = Tcp {
            extensions: vec![(44, vec![0, 0, offset_and_more, 0, 0, 0, 1])],
            ..Tcp::v6()
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
    let mut icmp = Tcp::v6().frame();
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
    let mut frame = Tcp::v6().frame();
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
fn contradictions_are_malformed() {
    let v4 = Tcp::default().frame();
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
    let tcp = Tcp {
        extensions: vec![(60, vec![0; 7])],
        ..Tcp::v6()
    };
    for frame in [Tcp::default().frame(), tcp.frame()] {
        for len in 0..frame.len() {
            assert!(parsed(&frame[..len], Link::Ip).is_err(), "{len}");
        }
    }
}

#[test]
fn a_header_apart_is_parsed_from_it() {
    let frame = Tcp::v6().frame();
    for at in [30, 72, 100] {
        let mut packet = Packet {
            header: crate::HeaderBuf::from_slice(&frame[..at]),
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
fn usual_tcp_takes_the_short_walk() {
    let usual = |link, v6: bool, options: usize, len: usize| Tcp {
        link,
        v6,
        options: vec![1; options],
        payload: vec![9; len],
        ..Tcp::default()
    };
    for link in [Link::Ip, Link::Ethernet] {
        for v6 in [false, true] {
            for (options, len) in [(0, 0), (0, 1), (12, 0), (12, 1000), (40, 7)] {
                let frame = usual(link, v6, options, len).frame();
                // IPv4 needs 40 bytes from the network header on, IPv6 60.
                let found = plain(&frame, frame.len(), link);
                assert_eq!(
                    found,
                    walk(&frame, frame.len(), link, &Tunnels::NONE, false).ok(),
                    "{link:?} {v6} {options} {len}"
                );
                assert!(found.is_some());
                // The bytes at hand may end where the headers do.
                let headers = frame.len() - len;
                let found = plain(&frame[..headers], frame.len(), link);
                assert_eq!(found.map(|walk| walk.header_len), Some(headers));
                assert_eq!(plain(&frame[..headers - 1], frame.len(), link), None);
            }
        }
    }
    for unusual in [
        Tcp {
            vlan: Some(3),
            link: Link::Ethernet,
            ..Tcp::default()
        },
        Tcp {
            udp: true,
            ..Tcp::default()
        },
        Tcp {
            fragment: 1,
            df: false,
            ..Tcp::default()
        },
        Tcp {
            fragment: 0x2000,
            df: false,
            ..Tcp::default()
        },
        Tcp {
            ip_options: vec![1; 4],
            ..Tcp::default()
        },
        Tcp {
            extensions: vec![(60, vec![0; 7])],
            ..Tcp::v6()
        },
        Tcp {
            padding: 1,
            ..Tcp::v6()
        },
        Tcp {
            padding: 1,
            ..Tcp::default()
        },
    ] {
        let frame = unusual.frame();
        assert_eq!(
            plain(&frame, frame.len(), unusual.link),
            None,
            "{unusual:?}"
        );
    }
}

#[test]
fn headers_may_end_exactly_where_the_packet_does() {
    let ends = |frame: &[u8]| parsed(frame, Link::Ip).map(|packet| packet.payload.len());
    let with_len = |tcp: &Tcp, len: usize| {
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
    let extended = Tcp {
        extensions: vec![(60, options)],
        ..Tcp::v6()
    };
    let udp = |tcp: Tcp| Tcp {
        udp: true,
        payload: vec![],
        ..tcp
    };
    for (tcp, len) in [
        (Tcp::default(), 52),
        (Tcp::v6(), 72),
        (extended.clone(), 80),
        (udp(Tcp::default()), 28),
        (udp(Tcp::v6()), 48),
        (udp(extended), 56),
    ] {
        assert_eq!(ends(&with_len(&tcp, len)), Ok(0), "{tcp:?}");
        for short in 1..=20 {
            let least = if tcp.v6 { 40 } else { 20 };
            let frame = with_len(&tcp, (len - short).max(least));
            assert!(ends(&frame).is_err(), "{short} bytes short: {tcp:?}");
        }
    }
    // Without TCP options the header is 20 bytes.
    let bare = Tcp {
        options: vec![],
        payload: vec![],
        ..Tcp::v6()
    };
    assert_eq!(ends(&bare.frame()), Ok(0));
}

#[test]
fn an_authentication_header_counts_in_words_of_four_bytes() {
    // RFC 4302 2.2: in words of 4 bytes, less two; this one has 16 bytes.
    let tcp = Tcp {
        extensions: vec![(51, [&[2][..], &[0; 14]].concat())],
        ..Tcp::v6()
    };
    let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
    assert_eq!((packet.layers.protocol, packet.layers.transport), (6, 56));
}

#[test]
fn an_empty_packet_has_no_bytes_and_a_super_segment_many_headers() {
    assert!(Packet::default().is_empty());
    let mut packet = parsed(&Tcp::default().frame(), Link::Ip).unwrap();
    assert!(!packet.is_empty());
    assert_eq!(packet.wire_len(), 1052);
    packet.offload.gso_segs = 3;
    assert_eq!(packet.wire_len(), 1000 + 3 * 52);
    packet.payload = Chain::new();
    assert!(!packet.is_empty());
}

proptest! {
    /// However a frame is cut into slices, the parse is the same.
    #[test]
    fn slices_do_not_matter(
        cuts in prop::collection::vec(0..200usize, 0..5),
        bytes in prop::collection::vec((0..120usize, any::<u8>()), 0..3),
        v6: bool,
    ) {
        let mut frame = Tcp { v6, link: Link::Ethernet, ..Tcp::default() }.frame();
        for (at, value) in bytes {
            frame[at] = value;
        }
        let mut cuts = cuts;
        cuts.sort_unstable();
        let whole = parsed(&frame, Link::Ethernet);
        let mut pieces = chopped(&frame, &cuts);
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
    fn garbage_does_not_panic(frame: Vec<u8>, cuts in prop::collection::vec(0..100usize, 0..4)) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        for link in [Link::Ip, Link::Ethernet] {
            let _ = chopped(&frame, &cuts).parse(link);
        }
    }
}

/// What leads into a tunnel may lie in the next slice.
#[test]
fn slices_do_not_matter_in_tunnels() {
    for kind in Kind::COALESCED {
        for v6 in [false, true] {
            let tcp = Tcp {
                v6,
                payload: vec![7; 20],
                outer: Some(Outer::new(kind, v6)),
                ..Tcp::default()
            };
            let frame = tcp.frame();
            let mut whole = tcp.packet();
            whole.parse_through(Link::Ip, &TUNNELS).unwrap();
            assert_ne!(whole.layers.encap, Encap::None);
            for cut in 0..frame.len() {
                let mut pieces = chopped(&frame, &[cut]);
                pieces.parse_through(Link::Ip, &TUNNELS).unwrap();
                assert_eq!(pieces.layers, whole.layers, "cut at {cut}: {kind:?}");
                assert_eq!(pieces.header, whole.header, "cut at {cut}: {kind:?}");
                assert_eq!(pieces.payload, whole.payload, "cut at {cut}: {kind:?}");
            }
        }
    }
}

#[test]
fn more_than_eight_extension_headers_are_not_looked_through() {
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    for (count, protocol, len) in [(8, 6, 104 + 32), (9, 60, 104)] {
        let tcp = Tcp {
            extensions: vec![(60, options.clone()); count],
            ..Tcp::v6()
        };
        let packet = parsed(&tcp.frame(), Link::Ip).unwrap();
        let found = (packet.layers.protocol, packet.header.len());
        assert_eq!(found, (protocol, len));
    }
}
