use alloc::vec::Vec;

use super::{Encap, Inner, Tunnels, inner, udp_inner};
use crate::testing::TUNNELS;

/// Returns the inner packet of a UDP datagram to this port whose payload begins with `payload`,
/// with offsets from the payload.
fn of_udp(port: u16, payload: &[u8]) -> Option<Inner> {
    let datagram = [&[0; 5], &[1, 2][..], &port.to_be_bytes(), &[0; 4], payload].concat();
    relative(udp_inner(&datagram, 5, &TUNNELS), 13)
}

fn relative(found: Option<Inner>, start: usize) -> Option<Inner> {
    found.map(|inner| match inner {
        Inner::Ip { at, v6 } => Inner::Ip { at: at - start, v6 },
        Inner::Ethernet { at } => Inner::Ethernet { at: at - start },
    })
}

/// Returns the inner packet of an IP packet with this protocol whose payload begins with `payload`.
fn of_ip(protocol: u8, payload: &[u8]) -> Option<(Encap, Inner)> {
    let packet = [&[0; 5], payload].concat();
    let found = inner(&packet, 5, protocol, &TUNNELS)?;
    relative(Some(found.1), 5).map(|inner| (found.0, inner))
}

const fn v4(at: usize) -> Inner {
    Inner::Ip { at, v6: false }
}

const fn v6(at: usize) -> Inner {
    Inner::Ip { at, v6: true }
}

const fn ethernet(at: usize) -> Inner {
    Inner::Ethernet { at }
}

/// RFC 7348 5: the I flag is set, and all others are 0.
#[test]
fn vxlan_requires_exactly_the_i_flag() {
    assert_eq!(of_udp(4789, &[8, 0, 0, 0, 0, 0, 42, 0]), Some(ethernet(8)));
    for flags in [0, 0x0c, 0x88, 0xff] {
        assert_eq!(of_udp(4789, &[flags, 0, 0, 0, 0, 0, 42, 0]), None);
    }
    assert_eq!(of_udp(4789, &[]), None);
    assert_eq!(of_udp(4790, &[8, 0, 0, 0, 0, 0, 42, 0]), None);
}

/// RFC 8926 3.4: version 0, not a control packet. Options are skipped, in units of 4 bytes.
#[test]
fn geneve_options_are_skipped_and_control_packets_are_not_data() {
    let header = |first: u8, flags: u8, ethertype: [u8; 2]| {
        let [high, low] = ethertype;
        of_udp(6081, &[first, flags, high, low, 0, 0, 42, 0])
    };
    for words in [0, 1, 2, 0x3f_u8] {
        let end = 8 + 4 * usize::from(words);
        assert_eq!(header(words, 0, [0x65, 0x58]), Some(ethernet(end)));
        assert_eq!(header(words, 0, [8, 0]), Some(v4(end)));
        assert_eq!(header(words, 0x40, [0x86, 0xdd]), Some(v6(end)));
        assert_eq!(header(words | 0x40, 0, [0x65, 0x58]), None, "version 1");
        assert_eq!(header(words | 0x80, 0, [0x65, 0x58]), None, "version 2");
        assert_eq!(header(words, 0x80, [0x65, 0x58]), None, "control");
        assert_eq!(header(words, 0, [8, 6]), None, "ARP");
    }
    assert_eq!(of_udp(6081, &[0, 0, 8]), None);
}

/// draft-ietf-intarea-gue 3: version 0, no control message, no optional fields.
#[test]
fn gue_is_parsed_only_without_optional_fields() {
    assert_eq!(of_udp(6080, &[0, 4, 0, 0]), Some(v4(4)));
    assert_eq!(of_udp(6080, &[0, 41, 0, 0]), Some(v6(4)));
    assert_eq!(of_udp(6080, &[0, 6, 0, 0]), None, "TCP");
    for header in [
        [0x40, 4, 0, 0],
        [0x20, 4, 0, 0],
        [1, 4, 0, 0],
        [0, 4, 0x80, 0],
        [0, 4, 0, 1],
    ] {
        assert_eq!(of_udp(6080, &header), None, "{header:?}");
    }
    assert_eq!(of_udp(6080, &[]), None);
}

/// The inner packet of FOU begins directly after the UDP header; in these tests it is GRE.
#[test]
fn fou_has_no_header_of_its_own() {
    assert_eq!(of_udp(5555, &[0, 0, 8, 0]), Some(v4(4)));
    assert_eq!(of_udp(5556, &[0, 0, 8, 0]), None);
    let with = |protocol| Tunnels {
        fou: Some((5555, protocol)),
        ..Tunnels::NONE
    };
    let datagram = [0, 0, 21, 179, 0, 0, 0, 0];
    for (protocol, found) in [(4, Some(v4(8))), (41, Some(v6(8))), (6, None)] {
        assert_eq!(udp_inner(&datagram, 0, &with(protocol)), found);
    }
}

/// RFC 2784 2, RFC 2890 2: version 0. A key is skipped. Packets with a checksum, a sequence number
/// or any other flag are not coalesced.
#[test]
fn gre_is_parsed_with_at_most_a_key() {
    let gre = |inner| Some((Encap::Gre, inner));
    assert_eq!(of_ip(47, &[0, 0, 8, 0]), gre(v4(4)));
    assert_eq!(of_ip(47, &[0, 0, 0x86, 0xdd]), gre(v6(4)));
    assert_eq!(of_ip(47, &[0, 0, 0x65, 0x58]), gre(ethernet(4)));
    assert_eq!(of_ip(47, &[0x20, 0, 8, 0, 0, 0, 0, 1]), gre(v4(8)));
    for flags in [[0x80, 0], [0x10, 0], [0x30, 0], [0, 1], [0x20, 1], [8, 0]] {
        assert_eq!(of_ip(47, &[flags[0], flags[1], 8, 0]), None, "{flags:?}");
    }
    assert_eq!(of_ip(47, &[0, 0, 8]), None);
    assert_eq!(of_ip(47, &[]), None);
}

#[test]
fn only_enabled_tunnels_are_parsed() {
    let ip = |inner| Some((Encap::Ip, inner));
    assert_eq!(of_ip(4, &[]), ip(v4(0)));
    assert_eq!(of_ip(41, &[]), ip(v6(0)));
    for protocol in [6, 17, 50] {
        assert_eq!(of_ip(protocol, &[0, 0, 8, 0]), None);
    }
    for protocol in [4, 41, 47] {
        assert_eq!(inner(&[0, 0, 8, 0], 0, protocol, &Tunnels::NONE), None);
    }
    let zeros: Vec<u8> = [0; 16].into();
    assert_eq!(udp_inner(&zeros, 0, &Tunnels::NONE), None);
    assert_eq!(udp_inner(&zeros[..2], 0, &TUNNELS), None);
}
