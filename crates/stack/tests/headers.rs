//! IPv6 extension headers and fragments, and IPv4 options, that a host must not accept, and the exact ICMP
//! message that reports each.

mod common;

use common::forge::{ip_bytes, tcp};
use common::{IFACE, Net, Nic, V4, V6};
use fullsend_offload::{Link, Packet, Slice};
use fullsend_wire::Nanos;
use fullsend_wire::checksum::{RunningSum, Sum, sum};
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::ipv4::CHECKSUM_OFFSET;
use fullsend_wire::numbers::protocol::{
    DESTINATION, FRAGMENT, HOP_BY_HOP, ICMPV6, NO_NEXT_HEADER, ROUTING, TCP, UDP,
};
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

const AUTHENTICATION: u8 = 51;

/// Type, code and pointer of an ICMPv6 message; the pointer is 0 where the message has none.
type Message = (u8, u8, u32);

const fn problem(code: u8, pointer: u32) -> Message {
    (4, code, pointer)
}

struct Receiver {
    net: Net,
}

impl Receiver {
    fn new() -> Self {
        let mut net = Net::new(Link::Ip, Nic::Mtu);
        net.listen(1, &format!("[{}]:80", V6[1]));
        net.listen(1, &format!("{}:80", V4[1]));
        Self { net }
    }

    /// Delivers a packet and returns what the host sends.
    fn deliver(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        // Outside of all rate limits.
        self.net.now += Nanos::from_secs(5);
        let now = self.net.now;
        let host = &mut self.net.hosts[1];
        host.poll(now);
        let frame = Packet::from_frame(Slice::copied_from(packet));
        host.receive(now, IFACE, &mut vec![frame]);
        let mut out = Vec::new();
        host.transmit(now, IFACE, &mut out, 8);
        out.iter().map(Packet::to_bytes).collect()
    }

    /// Delivers an IPv6 packet and returns the error that answers it. Checks its addresses, checksum
    /// and quote.
    fn answer_v6(&mut self, packet: &[u8]) -> Option<Message> {
        let answers = self.deliver(packet);
        let [answer] = answers.as_slice() else {
            assert!(answers.is_empty(), "{answers:?}");
            return None;
        };
        let (header, message) = answer.split_at(40);
        assert_eq!(header[8..24], packet[24..40]);
        assert_eq!(header[24..40], packet[8..24]);
        let (src, dst) = (V6[1].parse().unwrap(), V6[0].parse().unwrap());
        let mut checked = RunningSum::from(Sum::pseudo_v6(src, dst, ICMPV6, message.len() as u32));
        checked.push(message);
        assert!(header[6] == ICMPV6 && checked.sum().is_valid());
        let (pointer, quote) = match Icmpv6Repr::parse(message).unwrap() {
            Icmpv6Repr::ParameterProblem { pointer, quote, .. } => (pointer, quote),
            Icmpv6Repr::Unreachable { quote, .. } => (0, quote),
            other => panic!("{other:?}"),
        };
        assert_eq!(quote, packet);
        Some((message[0], message[1], pointer))
    }
}

fn v6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let [from, to] = V6.map(|addr| addr.parse().unwrap());
    ip_bytes(from, to, next_header, payload)
}

/// Returns headers of 8 bytes of these kinds, the last of which names `last`.
fn chain(kinds: &[u8], last: u8) -> Vec<u8> {
    let next = kinds[1..].iter().copied().chain([last]);
    next.flat_map(|next| [next, 0, 1, 4, 0, 0, 0, 0]).collect()
}

fn fragment(next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![next_header, 0, 0, 0, 0, 0, 0, 7];
    bytes[2..4].copy_from_slice(&(offset | u16::from(more)).to_be_bytes());
    bytes.extend_from_slice(payload);
    v6(FRAGMENT, &bytes)
}

/// Returns a SYN for port 80, without IP header.
fn syn() -> Vec<u8> {
    let [from, to] = [(V6[0], 4000), (V6[1], 80)].map(|(addr, port)| {
        let addr: std::net::IpAddr = addr.parse().unwrap();
        (addr, port).into()
    });
    let repr = TcpRepr {
        flags: TcpFlags::SYN,
        ..TcpRepr::default()
    };
    tcp(from, to, repr, &[]).to_bytes()[40..].to_vec()
}

/// RFC 8200 4.7: a packet without a next header is no error.
#[test]
fn no_next_header_is_not_answered() {
    let mut host = Receiver::new();
    assert_eq!(host.answer_v6(&v6(NO_NEXT_HEADER, b"ignored!")), None);
    let options = chain(&[DESTINATION], NO_NEXT_HEADER);
    assert_eq!(host.answer_v6(&v6(DESTINATION, &options)), None);
    assert_eq!(host.net.counter(1, "Ip6InUnknownProtos"), 0);
    // Another protocol is.
    assert_eq!(host.answer_v6(&v6(200, &[0; 8])), Some(problem(1, 6)));
}

/// RFC 8200 4: a hop-by-hop header follows the fixed header only. The pointer is at the field that names
/// it.
#[test]
fn a_hop_by_hop_header_in_another_place_is_an_unknown_header() {
    let mut host = Receiver::new();
    for (kinds, pointer) in [
        (&[HOP_BY_HOP, HOP_BY_HOP][..], 0x28),
        (&[DESTINATION, HOP_BY_HOP], 0x28),
        (&[HOP_BY_HOP, DESTINATION, HOP_BY_HOP, DESTINATION], 0x30),
    ] {
        let mut bytes = chain(kinds, TCP);
        bytes.extend(syn());
        assert_eq!(
            host.answer_v6(&v6(kinds[0], &bytes)),
            Some(problem(1, pointer))
        );
    }
    let inner = chain(&[HOP_BY_HOP], UDP);
    let first = fragment(HOP_BY_HOP, 0, true, &[&inner[..], &[0; 8]].concat());
    assert_eq!(host.answer_v6(&first), Some(problem(1, 0x28)));
    // In its place it is skipped, and the SYN is answered.
    let mut bytes = chain(&[HOP_BY_HOP, DESTINATION], TCP);
    bytes.extend(syn());
    assert_eq!(host.deliver(&v6(HOP_BY_HOP, &bytes))[0][6], TCP);
}

/// RFC 8883, code 8: the pointer is at the first header beyond the limit of eight.
#[test]
fn too_many_extension_headers_are_reported() {
    let mut host = Receiver::new();
    for (count, expected) in [
        (8, None),
        (9, Some(problem(8, 40 + 64))),
        (20, Some(problem(8, 40 + 64))),
    ] {
        let mut bytes = chain(&vec![DESTINATION; count], UDP);
        bytes.extend([0; 8]);
        let answer = host.answer_v6(&v6(DESTINATION, &bytes));
        assert_eq!(answer, expected, "{count}");
    }
}

/// RFC 4302 3.4: what is not verified is not accepted. A host without the header treats it as unknown.
#[test]
fn an_authentication_header_is_not_skipped() {
    let mut host = Receiver::new();
    for (kinds, pointer) in [
        (&[AUTHENTICATION][..], 6),
        (&[DESTINATION, AUTHENTICATION], 40),
        (&[AUTHENTICATION, DESTINATION], 6),
    ] {
        let mut bytes = chain(kinds, TCP);
        // In units of four bytes, less two.
        bytes[8 * kinds
            .iter()
            .position(|kind| *kind == AUTHENTICATION)
            .unwrap()
            + 1] = 0;
        bytes.extend(syn());
        assert_eq!(
            host.answer_v6(&v6(kinds[0], &bytes)),
            Some(problem(1, pointer))
        );
    }
    assert_eq!(host.net.counter(1, "TcpInSegs"), 0);
}

/// RFC 8200 4.5, RFC 7112 5.
#[test]
fn a_first_fragment_without_all_headers_is_reported() {
    let mut host = Receiver::new();
    let all_headers = chain(&[DESTINATION], TCP);
    let cut = [&all_headers[..], &[0; 16]].concat();
    let incomplete = Some(problem(3, 0));
    assert_eq!(host.answer_v6(&fragment(TCP, 0, true, &[0; 8])), incomplete);
    assert_eq!(
        host.answer_v6(&fragment(TCP, 0, true, &[0; 16])),
        incomplete
    );
    assert_eq!(
        host.answer_v6(&fragment(DESTINATION, 0, true, &cut)),
        incomplete
    );
    assert_eq!(
        host.answer_v6(&fragment(ROUTING, 0, true, &[UDP, 9, 0, 0, 0, 0, 0, 0])),
        incomplete
    );
    // An empty one has no header at all, unless none is announced.
    assert_eq!(host.answer_v6(&fragment(TCP, 0, true, &[])), incomplete);
    assert_eq!(
        host.answer_v6(&fragment(NO_NEXT_HEADER, 0, true, &[])),
        None
    );
    assert_eq!(host.answer_v6(&fragment(TCP, 64, true, &[])), None);
    assert_eq!(host.net.counter(1, "Ip6ReasmFails"), 7);
    // Later fragments need none.
    assert_eq!(host.answer_v6(&fragment(TCP, 64, true, &[0; 8])), None);
    assert_eq!(host.answer_v6(&fragment(TCP, 0, true, &[0; 24])), None);
}

/// RFC 8200 4.5: the pointers are at the payload length and at the fragment offset.
#[test]
fn fragments_of_invalid_lengths_are_reported() {
    let mut host = Receiver::new();
    assert_eq!(
        host.answer_v6(&fragment(UDP, 0, true, &[0; 12])),
        Some(problem(0, 4))
    );
    assert_eq!(
        host.answer_v6(&fragment(UDP, 80, true, &[0; 12])),
        Some(problem(0, 4))
    );
    assert_eq!(
        host.answer_v6(&fragment(UDP, 65_528, false, &[0; 8])),
        Some(problem(0, 42))
    );
    let behind_options = {
        let mut bytes = chain(&[DESTINATION], FRAGMENT);
        bytes.extend([UDP, 0, 0xff, 0xf8, 0, 0, 0, 9]);
        bytes.extend([0; 8]);
        v6(DESTINATION, &bytes)
    };
    assert_eq!(host.answer_v6(&behind_options), Some(problem(0, 50)));
    // The last one may have any length.
    assert_eq!(host.answer_v6(&fragment(UDP, 80, false, &[0; 12])), None);
}

/// RFC 2675 3: the option in a packet with a payload length is an erroneous field.
#[test]
fn a_jumbo_payload_option_contradicts_a_payload_length() {
    let mut host = Receiver::new();
    let mut bytes = vec![TCP, 0, 0xc2, 4, 0, 1, 0, 0];
    bytes.extend(syn());
    assert_eq!(
        host.answer_v6(&v6(HOP_BY_HOP, &bytes)),
        Some(problem(0, 42))
    );
}

/// RFC 2675 3: without the option a hop-by-hop header contradicts a payload length of 0, as does an option
/// whose length the payload length could express.
#[test]
fn a_hop_by_hop_header_contradicts_a_payload_length_of_0() {
    let mut host = Receiver::new();
    let padded = chain(&[HOP_BY_HOP], TCP);
    let short = [TCP, 0, 0xc2, 4, 0, 0, 0xff, 0xff];
    let jumbo = [TCP, 0, 0xc2, 4, 0, 1, 0, 0];
    for (bytes, expected) in [
        (&padded[..], Some(problem(0, 4))),
        (&[][..], Some(problem(0, 4))),
        (&short, Some(problem(0, 44))),
        // Most of it is missing.
        (&jumbo, None),
    ] {
        let mut packet = v6(HOP_BY_HOP, bytes);
        packet[4..6].fill(0);
        assert_eq!(host.answer_v6(&packet), expected, "{bytes:?}");
    }
    assert_eq!(host.net.counter(1, "Ip6InHdrErrors"), 4);
}

/// RFC 4443 2.4 e: an error is not answered by an error, whatever is wrong with its extension headers.
#[test]
fn an_icmp_error_behind_extension_headers_is_not_answered() {
    let mut host = Receiver::new();
    let (error, echo) = ([1, 4, 0, 0, 0, 0, 0, 0], [128, 0, 0, 0, 0, 0, 0, 0]);
    for (kinds, fault) in [
        (&[HOP_BY_HOP, HOP_BY_HOP][..], problem(1, 0x28)),
        (&[DESTINATION, HOP_BY_HOP, DESTINATION], problem(1, 0x28)),
        (&[DESTINATION; 11], problem(8, 40 + 64)),
    ] {
        let with = |message: &[u8]| v6(kinds[0], &[&chain(kinds, ICMPV6)[..], message].concat());
        assert_eq!(host.answer_v6(&with(&error)), None, "{kinds:?}");
        assert_eq!(host.answer_v6(&with(&echo)), Some(fault));
    }
    for (message, expected) in [(error, None), (echo, Some(problem(0, 4)))] {
        let bytes = [&chain(&[HOP_BY_HOP], ICMPV6)[..], &message].concat();
        let mut packet = v6(HOP_BY_HOP, &bytes);
        packet[4..6].fill(0);
        assert_eq!(host.answer_v6(&packet), expected);
    }
    // In a fragment, too.
    for (message, expected) in [(error, None), (echo, Some(problem(0, 4)))] {
        let bytes = [&chain(&[DESTINATION], ICMPV6)[..], &message, &[0; 4]].concat();
        assert_eq!(
            host.answer_v6(&fragment(DESTINATION, 0, true, &bytes)),
            expected
        );
    }
}

/// An error about a packet to another host is never sent, whatever its options require.
#[test]
fn packets_to_others_are_not_answered() {
    let mut host = Receiver::new();
    let [from, to] = [V6[0], "fd00::99"].map(|addr| addr.parse().unwrap());
    let bytes = [NO_NEXT_HEADER, 0, 0xbe, 4, 0, 0, 0, 0];
    assert_eq!(
        host.answer_v6(&ip_bytes(from, to, DESTINATION, &bytes)),
        None
    );
}

/// Returns a SYN for port 80 with IPv4 options.
fn v4_with_options(options: &[u8]) -> Vec<u8> {
    let [from, to] = [(V4[0], 4000), (V4[1], 80)].map(|(addr, port)| {
        let addr: std::net::IpAddr = addr.parse().unwrap();
        (addr, port).into()
    });
    let repr = TcpRepr {
        flags: TcpFlags::SYN,
        ..TcpRepr::default()
    };
    let plain = tcp(from, to, repr, &[]).to_bytes();
    let mut packet = [&plain[..20], options, &plain[20..]].concat();
    packet[0] = 0x45 + (options.len() / 4) as u8;
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[CHECKSUM_OFFSET..][..2].fill(0);
    let checksum = sum(&packet[..20 + options.len()]).checksum();
    packet[CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// RFC 1122 3.2.2.5 and 3.2.1.8, RFC 7126 4.3 and 4.4.
#[test]
fn malformed_ipv4_options_are_reported_and_source_routes_dropped() {
    let mut host = Receiver::new();
    for (options, pointer) in [
        (&[1, 1, 1, 200][..], 23),
        (&[200, 0, 0, 0], 20),
        (&[1, 200, 40, 0], 21),
        (&[7, 7, 3, 0, 0, 0, 0, 0], 22),
    ] {
        let packet = v4_with_options(options);
        let answers = host.deliver(&packet);
        let message = &answers[0][20..];
        let expected = Icmpv4Repr::ParameterProblem {
            code: 0,
            pointer,
            quote: &packet,
        };
        assert_eq!(Icmpv4Repr::parse(message), Ok(expected));
        assert!(answers.len() == 1 && sum(message).is_valid());
    }
    assert_eq!(host.net.counter(1, "IcmpOutParmProbs"), 4);
    for kind in [131, 137] {
        for next in [4, 8] {
            let route = [1, kind, 7, next, 10, 0, 0, 9];
            assert!(host.deliver(&v4_with_options(&route)).is_empty());
        }
    }
    assert_eq!(host.net.counter(1, "IpInHdrErrors"), 8);
    // Well-formed options are ignored: the SYN is answered.
    for options in [
        &[1, 1, 1, 0][..],
        &[148, 4, 0, 0],
        &[7, 7, 4, 0, 0, 0, 0, 0],
    ] {
        assert_eq!(host.deliver(&v4_with_options(options))[0][9], TCP);
    }
}

/// RFC 1122 3.2.1.3: a loopback address is not answered on a link, whatever else is wrong with the packet.
#[test]
fn malformed_options_of_a_packet_to_loopback_are_not_reported() {
    let mut host = Receiver::new();
    let mut packet = v4_with_options(&[1, 1, 1, 200]);
    packet[16..20].copy_from_slice(&[127, 0, 0, 1]);
    packet[CHECKSUM_OFFSET..][..2].fill(0);
    let checksum = sum(&packet[..24]).checksum();
    packet[CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
    assert!(host.deliver(&packet).is_empty());
    assert_eq!(host.net.counter(1, "IcmpOutParmProbs"), 0);
    assert_eq!(host.net.counter(1, "IpInAddrErrors"), 1);
}
