//! Packets and frames that are not for this host, or whose source no host can have: they are
//! counted, but neither delivered nor answered.

mod common;

use std::net::{IpAddr, SocketAddr};

use common::{IFACE, Net, Nic, config, forge, host};
use fullsend_offload::{Link, Packet, Slice};
use fullsend_stack::{Cidr, Host, ListenConfig, UdpId};
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::ethernet::{EthernetRepr, Mac};
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{Instant, Nanos, SeqNum, WireWindow};

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// A host with an address of each family and default routes, a UDP socket on port 53 and a listener
/// on port 80.
struct Rig {
    host: Host,
    link: Link,
    udp: UdpId,
    now: Instant,
}

impl Rig {
    fn new(link: Link) -> Self {
        let mut host = host(1);
        let iface = host.add_interface(config(link, Nic::Mtu, 1));
        let mut now = Instant::from_nanos(1);
        for (addr, all, gateway) in [
            ("10.0.0.1/24", "0.0.0.0/0", "10.0.0.2"),
            ("fd00::1/64", "::/0", "fd00::2"),
        ] {
            host.add_address(now, iface, addr.parse().unwrap()).unwrap();
            let gateway = (link == Link::Ethernet).then(|| gateway.parse().unwrap());
            let all: Cidr = all.parse().unwrap();
            host.add_route(all, gateway, iface).unwrap();
        }
        let udp = host.udp_bind("[::]:53".parse().unwrap()).unwrap();
        let config = ListenConfig {
            backlog: 9,
            defer_syn_ack: false,
            any_destination: false,
        };
        host.tcp_listen("[::]:80".parse().unwrap(), config).unwrap();
        // Waits for duplicate address detection.
        now += Nanos::from_secs(2);
        host.poll(now);
        host.transmit(now, iface, &mut Vec::new(), 64);
        Self {
            host,
            link,
            udp,
            now,
        }
    }

    /// Makes the UDP socket join a group, and discards the report.
    fn join(&mut self, group: &str) {
        let group = group.parse().unwrap();
        self.host
            .udp(self.udp)
            .join_group(self.now, group, None)
            .unwrap();
        self.host.transmit(self.now, IFACE, &mut Vec::new(), 64);
    }

    fn counter(&self, name: &str) -> u64 {
        common::counter(&self.host, name)
    }

    /// Delivers an IP packet in a frame to `dst` with `tags`. Returns the number of frames that the
    /// host sends.
    fn frame(&mut self, dst: Mac, tags: &[u16], ip: &[u8]) -> usize {
        let mut bytes = Vec::new();
        if self.link == Link::Ethernet {
            let repr = EthernetRepr {
                dst,
                src: OTHER,
                vlan: None,
                ethertype: if ip[0] >> 4 == 6 {
                    ethertype::IPV6
                } else {
                    ethertype::IPV4
                },
            };
            bytes.resize(repr.header_len(), 0);
            repr.emit(&mut bytes);
            for (i, tag) in tags.iter().enumerate() {
                let kind = bytes.len() - 2;
                let inner = [bytes[kind], bytes[kind + 1]];
                let outer = if i + 1 < tags.len() {
                    ethertype::QINQ
                } else {
                    ethertype::VLAN
                };
                bytes.truncate(kind);
                bytes.extend(outer.to_be_bytes());
                bytes.extend(tag.to_be_bytes());
                bytes.extend(inner);
            }
        }
        bytes.extend(ip);
        let frame = Packet::from_frame(Slice::copied_from(&bytes));
        self.host.receive(self.now, IFACE, &mut vec![frame]);
        let mut out = Vec::new();
        for _ in 0..3 {
            self.host.transmit(self.now, IFACE, &mut out, 64);
        }
        out.len()
    }

    fn packet(&mut self, ip: &[u8]) -> usize {
        self.frame(OWN, &[], ip)
    }

    fn datagrams(&mut self) -> usize {
        let udp = self.udp;
        let next = || self.host.udp(udp).recv().unwrap();
        core::iter::from_fn(next).count()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn echo(src: &str, dst: &str) -> Vec<u8> {
    match (ip(src), ip(dst)) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let repr = Icmpv6Repr::EchoRequest {
                ident: 1,
                seq: 1,
                data: b"ping",
            };
            let mut message = vec![0; repr.len()];
            repr.emit(src, dst, &mut message);
            forge::ip_bytes(src.into(), dst.into(), protocol::ICMPV6, &message)
        }
        (src, dst) => {
            let repr = Icmpv4Repr::EchoRequest {
                ident: 1,
                seq: 1,
                data: b"ping",
            };
            let mut message = vec![0; repr.len()];
            repr.emit(&mut message);
            forge::ip_bytes(src, dst, protocol::ICMP, &message)
        }
    }
}

fn datagram(src: &str, dst: &str, port: u16) -> Vec<u8> {
    let (src, dst) = (ip(src), ip(dst));
    let mut bytes = vec![0, 68, 0, 0, 0, 12, 0, 0, 1, 2, 3, 4];
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    let checksum = Sum::pseudo(src, dst, protocol::UDP, 12) + sum(&bytes);
    bytes[6..8].copy_from_slice(&checksum.checksum().to_be_bytes());
    forge::ip_bytes(src, dst, protocol::UDP, &bytes)
}

/// Returns a SYN with 8 bytes of data.
fn segment(src: &str, dst: &str, port: u16) -> Vec<u8> {
    let repr = TcpRepr {
        flags: TcpFlags::SYN,
        seq: SeqNum::new(7),
        window: WireWindow(1000),
        ..TcpRepr::default()
    };
    let (from, to) = (SocketAddr::new(ip(src), 9), SocketAddr::new(ip(dst), port));
    forge::tcp(from, to, repr, &[0; 8]).to_bytes()
}

const BAD: [(&str, &str); 13] = [
    ("10.0.0.255", "10.0.0.1"),
    ("10.0.0.0", "10.0.0.1"),
    ("255.255.255.255", "10.0.0.1"),
    ("224.0.0.1", "10.0.0.1"),
    ("239.255.255.250", "10.0.0.1"),
    ("0.0.0.0", "10.0.0.1"),
    ("240.0.0.1", "10.0.0.1"),
    ("127.0.0.1", "10.0.0.1"),
    ("127.9.9.9", "10.0.0.1"),
    ("ff02::1", "fd00::1"),
    ("ff0e::1", "fd00::1"),
    ("::", "fd00::1"),
    ("::1", "fd00::1"),
];

/// RFC 1122 3.2.1.3 and 3.2.2, RFC 4291 2.5.2, 2.5.3 and 2.7.
#[test]
fn packets_from_invalid_sources_get_no_answer() {
    for link in [Link::Ip, Link::Ethernet] {
        let mut rig = Rig::new(link);
        let dropped = |rig: &Rig| -> u64 {
            let names = [
                "RtCacheInMartianSrc",
                "Ip6InHdrErrors",
                "Ip6InAddrErrors",
                "TcpInErrs",
            ];
            names.map(|name| rig.counter(name)).into_iter().sum()
        };
        for (src, dst) in BAD {
            for (what, packet) in [
                ("echo", echo(src, dst)),
                ("bound", datagram(src, dst, 53)),
                ("unbound", datagram(src, dst, 54)),
                ("listener", segment(src, dst, 80)),
                ("closed", segment(src, dst, 81)),
            ] {
                let before = dropped(&rig);
                assert_eq!(rig.packet(&packet), 0, "{link:?} {src} {what}");
                assert_eq!(rig.datagrams(), 0, "{link:?} {src} {what}");
                assert!(dropped(&rig) > before, "{link:?} {src} {what}");
            }
        }
        assert_eq!(rig.counter("TcpOutRsts"), 0);
    }
}

/// Packets from a host of the local network, and from one of another network, are answered.
#[test]
fn packets_from_valid_sources_are_answered() {
    for link in [Link::Ip, Link::Ethernet] {
        for (src, dst) in [
            ("10.0.0.2", "10.0.0.1"),
            ("192.0.2.255", "10.0.0.1"),
            ("fd00::2", "fd00::1"),
            ("2001:db8::", "fd00::1"),
        ] {
            for packet in [
                echo(src, dst),
                datagram(src, dst, 54),
                segment(src, dst, 80),
            ] {
                let mut rig = Rig::new(link);
                assert_eq!(rig.packet(&packet), 1, "{link:?} {src}");
            }
            let mut rig = Rig::new(link);
            rig.packet(&datagram(src, dst, 53));
            assert_eq!(rig.datagrams(), 1);
        }
    }
}

/// A host that has no address yet requests one by broadcast (RFC 2131 4.1).
#[test]
fn an_unspecified_source_is_accepted_only_for_broadcast_and_multicast() {
    for (dst, taken) in [
        ("255.255.255.255", 1),
        ("224.0.0.251", 1),
        ("239.1.2.3", 0),
        ("10.0.0.255", 0),
        ("10.0.0.1", 0),
    ] {
        let mut rig = Rig::new(Link::Ethernet);
        if matches!(dst, "224.0.0.251" | "239.1.2.3") {
            rig.join(dst);
        }
        let mac = if dst == "10.0.0.1" {
            OWN
        } else {
            Mac::BROADCAST
        };
        assert_eq!(rig.frame(mac, &[], &datagram("0.0.0.0", dst, 53)), 0);
        assert_eq!(rig.datagrams(), taken, "{dst}");
        assert_eq!(
            rig.counter("RtCacheInMartianSrc"),
            1 - taken as u64,
            "{dst}"
        );
        // The unspecified address cannot be answered.
        assert_eq!(rig.frame(mac, &[], &datagram("0.0.0.0", dst, 54)), 0);
        assert_eq!(rig.frame(mac, &[], &echo("0.0.0.0", dst)), 0);
    }
    let mut rig = Rig::new(Link::Ethernet);
    let group = Mac::of_v6_group("ff02::1".parse().unwrap());
    assert_eq!(rig.frame(group, &[], &echo("::", "ff02::1")), 0);
    assert_eq!(rig.frame(group, &[], &datagram("::", "ff02::1", 53)), 0);
    assert_eq!(rig.datagrams(), 0);
    assert_eq!(rig.frame(group, &[], &echo("fd00::2", "ff02::1")), 1);
}

/// A query that a router has forwarded, or one that is too long, is not answered.
#[test]
fn igmp_is_accepted_only_if_it_was_sent_to_a_group() {
    for (dst, len, accepted) in [
        ("224.0.0.1", 8, 1),
        ("10.0.0.1", 8, 0),
        ("10.0.0.255", 8, 0),
        ("224.0.0.1", 1504, 0),
    ] {
        let mut rig = Rig::new(Link::Ip);
        rig.join("239.1.2.3");
        let mut query = vec![0; len];
        query[..2].copy_from_slice(&[0x11, 10]);
        let checksum = sum(&query).checksum();
        query[2..4].copy_from_slice(&checksum.to_be_bytes());
        let (src, dst) = (ip("10.0.0.2"), ip(dst));
        rig.packet(&forge::ip_bytes(src, dst, protocol::IGMP, &query));
        let queries = rig.counter("FullsendMcastQueriesReceived");
        assert_eq!(queries, accepted, "{dst} {len}");
    }
}

/// RFC 2236 3: a report suppresses the answer to a query if it was sent to its group.
#[test]
fn reports_suppress_an_answer_only_if_they_were_sent_to_their_group() {
    for (dst, answers) in [("239.1.2.3", 0), ("224.0.0.1", 1)] {
        let mut rig = Rig::new(Link::Ip);
        rig.join("239.1.2.3");
        let mut message = |kind: u8, group: [u8; 4], dst: &str| {
            let mut message = [kind, 10, 0, 0, group[0], group[1], group[2], group[3]];
            let checksum = sum(&message).checksum();
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            rig.packet(&forge::ip_bytes(
                ip("10.0.0.2"),
                ip(dst),
                protocol::IGMP,
                &message,
            ));
        };
        message(0x11, [0; 4], "224.0.0.1");
        message(0x16, [239, 1, 2, 3], dst);
        // The report of joining is repeated.
        let sent = |rig: &Rig| rig.counter("FullsendMcastReportsSent");
        let before = sent(&rig);
        rig.now += Nanos::from_secs(11);
        rig.host.poll(rig.now);
        assert_eq!(sent(&rig) - before, 1 + answers, "{dst}");
    }
}

#[test]
fn nothing_is_sent_to_an_invalid_destination() {
    let mut rig = Rig::new(Link::Ip);
    for to in ["0.0.0.0:9", "[::]:9"] {
        let data = Slice::copied_from(b"x");
        let sent = rig
            .host
            .udp(rig.udp)
            .send_to(rig.now, data, to.parse().unwrap(), None);
        assert!(sent.is_err(), "{to}");
    }
}

/// RFC 1122 3.2.1.3, RFC 4291 2.5.2. A gateway that passed such a packet on would connect to its own
/// host.
#[test]
fn the_unspecified_address_is_no_destination_even_for_sockets_for_any() {
    for link in [Link::Ip, Link::Ethernet] {
        let mut rig = Rig::new(link);
        let config = ListenConfig {
            backlog: 9,
            defer_syn_ack: true,
            any_destination: true,
        };
        let any = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], 0));
        let listener = rig.host.tcp_listen(any, config).unwrap();
        let udp = rig.host.udp_bind_any().unwrap();
        rig.host.icmp_open().unwrap();
        for (src, dst, valid) in [
            ("10.0.0.2", "192.0.2.1", true),
            ("fd00::2", "2001:db8::1", true),
            ("10.0.0.2", "0.0.0.0", false),
            ("fd00::2", "::", false),
        ] {
            let dropped =
                |rig: &Rig| rig.counter("IpInAddrErrors") + rig.counter("Ip6InAddrErrors");
            let before = dropped(&rig);
            for packet in [echo(src, dst), datagram(src, dst, 9), segment(src, dst, 9)] {
                rig.packet(&packet);
            }
            assert_eq!(rig.host.icmp_recv().is_some(), valid, "{dst}");
            assert_eq!(rig.host.udp(udp).recv().unwrap().is_some(), valid, "{dst}");
            let syn = rig.host.listener(listener).accept().unwrap();
            assert_eq!(syn.is_some(), valid, "{dst}");
            assert_eq!(dropped(&rig) - before, if valid { 0 } else { 3 }, "{dst}");
        }
    }
}

/// RFC 4291 2.7: groups of reserved or interface-local scope never come from a link.
#[test]
fn multicast_of_reserved_or_interface_scope_is_dropped() {
    let mut rig = Rig::new(Link::Ip);
    for (group, taken) in [
        ("ff00::1", 0),
        ("ff01::1", 0),
        ("ff02::1", 1),
        ("ff15::1", 1),
    ] {
        rig.join(group);
        rig.packet(&datagram("fd00::2", group, 53));
        assert_eq!(rig.datagrams(), taken, "{group}");
    }
}

/// Linux drops `PACKET_OTHERHOST` frames of ARP, IPv4 and IPv6.
#[test]
fn frames_for_other_stations_are_dropped() {
    for packet in [
        echo("10.0.0.2", "10.0.0.1"),
        datagram("10.0.0.2", "10.0.0.1", 53),
        segment("10.0.0.2", "10.0.0.1", 80),
        segment("fd00::2", "fd00::1", 80),
        echo("fd00::2", "fd00::1"),
    ] {
        let mut rig = Rig::new(Link::Ethernet);
        assert_eq!(rig.frame(OTHER, &[], &packet), 0);
        assert_eq!(rig.datagrams(), 0);
        assert_eq!(rig.counter("LinkRxOtherhostDropped"), 1);
        let received = rig.counter("IpInReceives") + rig.counter("Ip6InReceives");
        assert_eq!(received, 0);
    }
}

/// As on Linux: TCP is never accepted. A unicast datagram in a broadcast frame is delivered, but no
/// error is sent about it (RFC 1122 3.2.2).
#[test]
fn tcp_in_broadcast_frames_is_dropped() {
    for mac in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        let mut rig = Rig::new(Link::Ethernet);
        for port in [80, 81] {
            assert_eq!(
                rig.frame(mac, &[], &segment("10.0.0.2", "10.0.0.1", port)),
                0
            );
            assert_eq!(rig.frame(mac, &[], &segment("fd00::2", "fd00::1", port)), 0);
        }
        assert_eq!(rig.counter("TcpExtFullsendGroupFrames"), 4);
        assert_eq!(rig.counter("TcpInSegs"), 0);
        assert_eq!(
            rig.frame(mac, &[], &datagram("10.0.0.2", "10.0.0.1", 53)),
            0
        );
        assert_eq!(rig.datagrams(), 1);
        assert_eq!(
            rig.frame(mac, &[], &datagram("10.0.0.2", "10.0.0.1", 54)),
            0
        );
    }
}

/// Returns two fragments of a packet: the first has all headers (RFC 7112 5), the last at most 8 bytes.
fn fragments(packet: &[u8]) -> [Vec<u8>; 2] {
    let v6 = packet[0] >> 4 == 6;
    let (header, payload) = packet.split_at(if v6 { 40 } else { 20 });
    let units = (payload.len() - 1) / 8;
    let (first, last) = payload.split_at(units * 8);
    let piece = |data: &[u8], offset_units: u16, more: bool| {
        let mut bytes = header.to_vec();
        if v6 {
            bytes[4..6].copy_from_slice(&(data.len() as u16 + 8).to_be_bytes());
            bytes.extend([bytes[6], 0]);
            bytes[6] = protocol::FRAGMENT;
            bytes.extend((offset_units << 3 | u16::from(more)).to_be_bytes());
            bytes.extend(7u32.to_be_bytes());
        } else {
            bytes[2..4].copy_from_slice(&(data.len() as u16 + 20).to_be_bytes());
            let field = offset_units | u16::from(more) << 13;
            bytes[6..8].copy_from_slice(&field.to_be_bytes());
            bytes[10..12].fill(0);
            let checksum = sum(&bytes).checksum();
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        bytes.extend(data);
        bytes
    };
    [piece(first, 0, true), piece(last, units as u16, false)]
}

/// The rules for frames to groups also hold for packets that are reassembled from them: no TCP, and
/// no errors (RFC 1122 3.2.2).
#[test]
fn fragmented_tcp_in_broadcast_frames_is_dropped_without_an_icmp_error() {
    let group = Mac::of_v6_group("ff02::1:ff00:1".parse().unwrap());
    for (src, dst, to_all) in [
        ("10.0.0.2", "10.0.0.1", Mac::BROADCAST),
        ("fd00::2", "fd00::1", group),
    ] {
        for (macs, answers) in [
            ([OWN, OWN], 1),
            ([OWN, to_all], 0),
            ([to_all, OWN], 0),
            ([to_all, to_all], 0),
        ] {
            for packet in [segment(src, dst, 80), datagram(src, dst, 54)] {
                let mut rig = Rig::new(Link::Ethernet);
                let pieces = fragments(&packet);
                let sent: Vec<_> = (macs.iter().zip(&pieces))
                    .map(|(&mac, piece)| rig.frame(mac, &[], piece))
                    .collect();
                assert_eq!(sent, [0, answers], "{dst} {macs:?}");
            }
            // A datagram for a socket is delivered nevertheless.
            let mut rig = Rig::new(Link::Ethernet);
            for (mac, piece) in macs.into_iter().zip(fragments(&datagram(src, dst, 53))) {
                rig.frame(mac, &[], &piece);
            }
            assert_eq!(rig.datagrams(), 1, "{dst} {macs:?}");
        }
        // No error is sent either if the other fragment does not arrive.
        for (mac, errors) in [(OWN, 1), (to_all, 0)] {
            let mut rig = Rig::new(Link::Ethernet);
            let [first, _] = fragments(&datagram(src, dst, 53));
            assert_eq!(rig.frame(mac, &[], &first), 0);
            rig.now += Nanos::from_secs(31);
            rig.host.poll(rig.now);
            let mut out = Vec::new();
            rig.host.transmit(rig.now, IFACE, &mut out, 64);
            assert_eq!(out.len(), errors, "{dst} {mac:?}");
        }
    }
}

/// With an extension header, the second fragment does not show that it carries TCP.
#[test]
fn fragmented_tcp_in_multicast_frames_is_dropped() {
    let group = Mac::of_v6_group("ff02::1:ff00:1".parse().unwrap());
    let segment = segment("fd00::2", "fd00::1", 80);
    let (header, tcp) = segment.split_at(40);
    let mut hidden = header.to_vec();
    hidden[6] = protocol::DESTINATION;
    // A header of 8 bytes, with 4 bytes of padding (RFC 8200 4.2).
    hidden.extend([protocol::TCP, 0, 1, 4, 0, 0, 0, 0]);
    hidden.extend(tcp);
    let len = (hidden.len() - 40) as u16;
    hidden[4..6].copy_from_slice(&len.to_be_bytes());
    for (mac, answers) in [(OWN, 1), (group, 0)] {
        let mut rig = Rig::new(Link::Ethernet);
        let pieces = fragments(&hidden);
        assert_eq!(rig.frame(OWN, &[], &pieces[0]), 0);
        assert_eq!(rig.frame(mac, &[], &pieces[1]), answers, "{mac}");
        let dropped = rig.counter("TcpExtFullsendGroupFrames");
        assert_eq!(dropped, 1 - answers as u64);
    }
}

/// Class E (RFC 1112 4) has hosts only where a local network or a route covers the address. From
/// there packets are accepted, and errors are sent.
#[test]
fn class_e_addresses_are_valid_where_a_prefix_or_route_covers_them() {
    let src = "240.0.0.2";
    for (network, route) in [(false, false), (true, false), (false, true)] {
        let mut rig = Rig::new(Link::Ip);
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        if network {
            let own = cidr("240.0.0.1/24");
            rig.host.add_address(rig.now, IFACE, own).unwrap();
        }
        if route {
            let to = cidr("240.0.0.0/4");
            rig.host.add_route(to, None, IFACE).unwrap();
        }
        let answers = usize::from(network || route);
        for packet in [
            echo(src, "10.0.0.1"),
            datagram(src, "10.0.0.1", 54),
            segment(src, "10.0.0.1", 80),
        ] {
            assert_eq!(rig.packet(&packet), answers, "{network} {route}");
        }
        rig.packet(&datagram(src, "10.0.0.1", 53));
        assert_eq!(rig.datagrams(), answers, "{network} {route}");
    }
}

/// IEEE 802.1Q: frames of a VLAN are not for an interface without one; VLAN 0 carries only a
/// priority.
#[test]
fn vlan_frames_are_dropped_by_an_untagged_interface() {
    for (tags, taken) in [
        (&[5][..], 0),
        (&[0xe005], 0),
        (&[0], 1),
        (&[0xe000], 1),
        (&[0, 5], 0),
        (&[5, 0], 0),
        (&[0, 0], 1),
    ] {
        let mut rig = Rig::new(Link::Ethernet);
        rig.frame(OWN, tags, &datagram("10.0.0.2", "10.0.0.1", 53));
        assert_eq!(rig.datagrams(), taken, "{tags:?}");
        let dropped = rig.counter("LinkRxOtherhostDropped");
        assert_eq!(dropped, 1 - taken as u64, "{tags:?}");
    }
}

/// RFC 6946: an atomic fragment is a whole packet and does not interfere with fragments of another
/// packet that have the same addresses and identification.
#[test]
fn atomic_fragments_are_processed_on_their_own() {
    let whole = datagram("fd00::2", "fd00::1", 53);
    let fragment = |start: usize, end: usize, field: u16| {
        let mut payload = vec![protocol::UDP, 0];
        payload.extend(field.to_be_bytes());
        payload.extend(7u32.to_be_bytes());
        payload.extend(&whole[40 + start..40 + end]);
        forge::ip_bytes(ip("fd00::2"), ip("fd00::1"), protocol::FRAGMENT, &payload)
    };
    let mut rig = Rig::new(Link::Ip);
    rig.packet(&fragment(0, 8, 1));
    assert_eq!(rig.datagrams(), 0);
    for atomic in 1..3 {
        rig.packet(&fragment(0, 12, 0));
        assert_eq!(rig.datagrams(), 1, "atomic fragment {atomic}");
    }
    rig.packet(&fragment(8, 12, 8));
    assert_eq!(rig.datagrams(), 1);
    assert_eq!(rig.counter("Ip6ReasmFails"), 0);
    assert_eq!(rig.counter("Ip6ReasmOKs"), 1);
}

/// Hosts of a link can still reach each other.
#[test]
fn transfers_cross_ethernet() {
    for to in ["10.0.0.2:80", "[fd00::2]:80"] {
        let mut net = Net::new(Link::Ethernet, Nic::Mtu);
        let (client, server, _) = net.connect(to);
        net.transfer((0, client), (1, server), &common::bytes(100_000));
        assert_eq!(net.counter(1, "LinkRxOtherhostDropped"), 0);
    }
}
