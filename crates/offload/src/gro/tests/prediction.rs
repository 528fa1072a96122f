//! Packets that continue a held one are not parsed, whatever their header shape.
//!
//! Prediction never decides differently than the parser, so that the other tests pass without it.
//! These tests count parses.

use super::*;

/// Returns TCP packets with options of different lengths, and with extension headers of different
/// lengths and orders.
fn lengths() -> Vec<TestPacket> {
    let nops = |len: usize| vec![1; len];
    let options = [0, 4, 8, 12, 16, 20, 28, 40].map(|len| (nops(len), vec![]));
    let extensions = [
        vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        vec![(60, [&[1][..], &[0; 14]].concat())],
        vec![
            (0, vec![0, 1, 4, 0, 0, 0, 0]),
            (60, vec![0, 1, 4, 0, 0, 0, 0]),
        ],
        vec![(60, [&[3][..], &[0; 30]].concat())],
    ]
    .into_iter()
    .flat_map(|extensions| [0, 12, 20, 28].map(|len| (nops(len), extensions.clone())));
    let mut all = Vec::new();
    for (options, extensions) in options.into_iter().chain(extensions) {
        for base in both_ip_versions() {
            if base.v6 || extensions.is_empty() {
                all.push(TestPacket {
                    options: options.clone(),
                    extensions: extensions.clone(),
                    ..base
                });
            }
        }
    }
    all
}

/// Returns packets of every shape, over IP and over Ethernet without and with VLAN tags, with TCP
/// and with UDP.
fn everything() -> Vec<TestPacket> {
    let mut all = Vec::new();
    for shape in shapes().into_iter().chain(lengths()) {
        for (link, vlan, service_vlan) in [
            (Link::Ip, None, None),
            (Link::Ethernet, None, None),
            (Link::Ethernet, Some(7), None),
            (Link::Ethernet, Some(7), Some(9)),
        ] {
            let tcp = TestPacket {
                link,
                vlan,
                service_vlan,
                ..shape.clone()
            };
            all.push(TestPacket {
                udp: true,
                ..tcp.clone()
            });
            all.push(tcp);
        }
    }
    all
}

fn gro_for_link(link: Link) -> Gro {
    Gro::new(GroConfig {
        link,
        enabled: true,
        max_size: 65_536,
        tunnels: TUNNELS,
    })
}

/// Returns the number of parses for these packets, and how many of them were merged.
fn parsed_and_merged(link: Link, packets: impl Iterator<Item = Packet>) -> (u64, u64) {
    let mut gro = gro_for_link(link);
    poll(&mut gro, packets);
    (gro.stats().parsed, gro.stats().merged)
}

#[test]
fn only_the_first_packet_of_a_run_is_parsed() {
    for shape in everything() {
        let run = shape.run(6, 1000);
        let found = parsed_and_merged(shape.link, run.iter().map(TestPacket::packet));
        assert_eq!(found, (1, 5), "{shape:?}");
        // A checksum that the device has verified or left incomplete makes no difference, except in
        // a tunnel, where an incomplete one may be that of either layer.
        for checksum in [Checksum::Valid, Checksum::Partial] {
            if checksum == Checksum::Partial && shape.outer.is_some() {
                continue;
            }
            let with = |tcp: &TestPacket| {
                let mut packet = tcp.packet();
                packet.offload.checksum = checksum;
                packet
            };
            let found = parsed_and_merged(shape.link, run.iter().map(with));
            assert_eq!(found, (1, 5), "{checksum:?} {shape:?}");
        }
    }
}

#[test]
fn the_last_packet_of_a_run_may_be_short_or_have_psh_or_fin() {
    for shape in everything() {
        let mut run = shape.run(3, 1000);
        run[2].payload.truncate(10);
        run[2].flags |= if shape.udp { 0 } else { FIN | PSH };
        let found = parsed_and_merged(shape.link, run.iter().map(TestPacket::packet));
        assert_eq!(found, (1, 2), "{shape:?}");
    }
}

#[test]
fn a_packet_with_a_separate_header_is_predicted() {
    for shape in everything() {
        let apart = |tcp: &TestPacket| {
            let mut packet = tcp.packet();
            packet.parse_with_tunnels(tcp.link, &TUNNELS).unwrap();
            packet
        };
        let run = shape.run(4, 1000);
        let found = parsed_and_merged(shape.link, run.iter().map(apart));
        assert_eq!(found, (1, 3), "{shape:?}");
    }
}

#[test]
fn interleaved_ipv4_and_ipv6_flows_are_predicted() {
    for link in [Link::Ip, Link::Ethernet] {
        let runs = both_ip_versions().map(|tcp| TestPacket { link, ..tcp }.run(5, 1000));
        let mixed = runs[0].iter().zip(&runs[1]).flat_map(|(a, b)| [a, b]);
        assert_eq!(
            parsed_and_merged(link, mixed.map(TestPacket::packet)),
            (2, 8),
            "{link:?}"
        );
    }
}

/// The flow hash must not be computed with the layout of another flow.
#[test]
fn interleaved_flows_with_different_header_lengths_are_merged() {
    for v6 in [false, true] {
        let shapes = shapes().into_iter().filter(|tcp| tcp.v6 == v6);
        let shapes: Vec<_> = shapes.step_by(3).collect();
        for (port, pair) in shapes.windows(2).enumerate() {
            let runs = [0, 1].map(|i| {
                let port = 3000 + 2 * port as u16 + i as u16;
                let shape = pair[i].clone();
                TestPacket { port, ..shape }.run(4, 500)
            });
            let mixed = (0..4).flat_map(|i| runs.iter().map(move |run| run[i].packet()));
            let out = poll(&mut new_gro(), mixed);
            assert_eq!(show(&out), "2000/500*4 2000/500*4", "{pair:?}");
        }
    }
}

#[test]
fn interleaved_flows_are_predicted() {
    for shape in shapes() {
        let runs: Vec<Vec<TestPacket>> = (0..6)
            .map(|port| {
                let port = 2000 + port;
                TestPacket {
                    port,
                    ..shape.clone()
                }
                .run(4, 500)
            })
            .collect();
        let mixed = (0..4).flat_map(|i| runs.iter().map(move |run| run[i].packet()));
        assert_eq!(parsed_and_merged(shape.link, mixed), (6, 18), "{shape:?}");
    }
}

#[test]
fn super_segments_of_a_device_are_parsed_and_merged() {
    for tcp in both_ip_versions() {
        let with = |(i, tcp): (usize, &TestPacket)| {
            // Each is a super-segment of two packets, with one IP ID each.
            let ip_id = tcp.ip_id + if tcp.v6 { 0 } else { i as u16 };
            let mut packet = TestPacket {
                ip_id,
                ..tcp.clone()
            }
            .packet();
            packet.offload.gso_size = 500;
            packet.offload.checksum = Checksum::Partial;
            packet
        };
        let found = parsed_and_merged(Link::Ip, tcp.run(3, 1000).iter().enumerate().map(with));
        assert_eq!(found, (3, 2), "{tcp:?}");
    }
}

/// RFC 1624: ones' complement numbers have several representations. When the ID wraps, the sum of
/// length, ID and checksum changes from one to another.
#[test]
fn checksums_of_varying_fields_are_normalized_before_comparison() {
    let varying = |tcp: &TestPacket| {
        let frame = tcp.frame();
        let word = |at: usize| u32::from(u16::from_ne_bytes([frame[at], frame[at + 1]]));
        word(2) + word(4) + word(10)
    };
    let with = |value: u16| {
        let [ttl, host] = value.to_be_bytes();
        TestPacket {
            ttl,
            host,
            ip_id: 0xffff,
            ..TestPacket::default()
        }
    };
    // The checksum decreases by what TTL and address increase, and with it the sum of the varying
    // fields, which is to become 1.
    let sum = varying(&with(0));
    let folded = (sum as u16 + (sum >> 16) as u16).to_ne_bytes();
    let one = u16::from_be_bytes(1_u16.to_ne_bytes());
    let tcp = with(u16::from_be_bytes(folded).wrapping_sub(one));
    assert_eq!(varying(&tcp), 0x1_ffff);
    let run = tcp.run(3, 1000);
    assert_eq!(
        parsed_and_merged(Link::Ip, run.iter().map(TestPacket::packet)),
        (1, 2)
    );
}
