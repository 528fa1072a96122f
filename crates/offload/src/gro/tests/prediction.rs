//! Packets that continue a held one are not parsed, whatever their header shape.
//!
//! Prediction never decides differently than the parser, so that the other tests pass without it.
//! These tests count parses.

use super::*;

/// Returns TCP packets with options of different lengths, and with extension headers of different
/// lengths and orders.
fn lengths() -> Vec<Tcp> {
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
        for base in both() {
            if base.v6 || extensions.is_empty() {
                all.push(Tcp {
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
fn everything() -> Vec<Tcp> {
    let mut all = Vec::new();
    for shape in shapes().into_iter().chain(lengths()) {
        for (link, vlan, service_vlan) in [
            (Link::Ip, None, None),
            (Link::Ethernet, None, None),
            (Link::Ethernet, Some(7), None),
            (Link::Ethernet, Some(7), Some(9)),
        ] {
            let tcp = Tcp {
                link,
                vlan,
                service_vlan,
                ..shape.clone()
            };
            all.push(Tcp {
                udp: true,
                ..tcp.clone()
            });
            all.push(tcp);
        }
    }
    all
}

fn engine_of(link: Link) -> Gro {
    Gro::new(GroConfig {
        link,
        enabled: true,
        max_size: 65_536,
        tunnels: TUNNELS,
    })
}

/// Returns the number of parses for these packets, and how many of them were merged.
fn walks(link: Link, packets: impl Iterator<Item = Packet>) -> (u64, u64) {
    let mut gro = engine_of(link);
    poll(&mut gro, packets);
    (gro.stats().walks, gro.stats().merged)
}

#[test]
fn the_first_of_a_run_alone_is_walked() {
    for shape in everything() {
        let run = shape.run(6, 1000);
        let found = walks(shape.link, run.iter().map(Tcp::packet));
        assert_eq!(found, (1, 5), "{shape:?}");
        // A checksum that the device has verified or left incomplete makes no difference, except in
        // a tunnel, where an incomplete one may be that of either layer.
        for checksum in [Checksum::Valid, Checksum::Partial] {
            if checksum == Checksum::Partial && shape.outer.is_some() {
                continue;
            }
            let with = |tcp: &Tcp| {
                let mut packet = tcp.packet();
                packet.offload.checksum = checksum;
                packet
            };
            let found = walks(shape.link, run.iter().map(with));
            assert_eq!(found, (1, 5), "{checksum:?} {shape:?}");
        }
    }
}

#[test]
fn the_last_of_a_run_may_be_short_pushed_or_finished() {
    for shape in everything() {
        let mut run = shape.run(3, 1000);
        run[2].payload.truncate(10);
        run[2].flags |= if shape.udp { 0 } else { FIN | PSH };
        let found = walks(shape.link, run.iter().map(Tcp::packet));
        assert_eq!(found, (1, 2), "{shape:?}");
    }
}

#[test]
fn a_header_of_its_own_is_predicted_as_well() {
    for shape in everything() {
        let apart = |tcp: &Tcp| {
            let mut packet = tcp.packet();
            packet.parse_through(tcp.link, &TUNNELS).unwrap();
            packet
        };
        let run = shape.run(4, 1000);
        let found = walks(shape.link, run.iter().map(apart));
        assert_eq!(found, (1, 3), "{shape:?}");
    }
}

#[test]
fn flows_of_both_ip_versions_in_turns_are_both_predicted() {
    for link in [Link::Ip, Link::Ethernet] {
        let runs = both().map(|tcp| Tcp { link, ..tcp }.run(5, 1000));
        let mixed = runs[0].iter().zip(&runs[1]).flat_map(|(a, b)| [a, b]);
        assert_eq!(walks(link, mixed.map(Tcp::packet)), (2, 8), "{link:?}");
    }
}

/// The flow hash must not be computed with the layout of another flow.
#[test]
fn flows_with_headers_of_other_lengths_join_in_turns() {
    for v6 in [false, true] {
        let shapes = shapes().into_iter().filter(|tcp| tcp.v6 == v6);
        let shapes: Vec<_> = shapes.step_by(3).collect();
        for (port, pair) in shapes.windows(2).enumerate() {
            let runs = [0, 1].map(|i| {
                let port = 3000 + 2 * port as u16 + i as u16;
                let shape = pair[i].clone();
                Tcp { port, ..shape }.run(4, 500)
            });
            let mixed = (0..4).flat_map(|i| runs.iter().map(move |run| run[i].packet()));
            let out = poll(&mut engine(), mixed);
            assert_eq!(show(&out), "2000/500*4 2000/500*4", "{pair:?}");
        }
    }
}

#[test]
fn flows_side_by_side_are_all_predicted() {
    for shape in shapes() {
        let runs: Vec<Vec<Tcp>> = (0..6)
            .map(|port| {
                let port = 2000 + port;
                Tcp {
                    port,
                    ..shape.clone()
                }
                .run(4, 500)
            })
            .collect();
        let mixed = (0..4).flat_map(|i| runs.iter().map(move |run| run[i].packet()));
        assert_eq!(walks(shape.link, mixed), (6, 18), "{shape:?}");
    }
}

#[test]
fn super_segments_of_a_device_are_walked_and_join() {
    for tcp in both() {
        let with = |(i, tcp): (usize, &Tcp)| {
            // Each is a super-segment of two packets, with one IP ID each.
            let ip_id = tcp.ip_id + if tcp.v6 { 0 } else { i as u16 };
            let mut packet = Tcp {
                ip_id,
                ..tcp.clone()
            }
            .packet();
            packet.offload.gso_size = 500;
            packet.offload.checksum = Checksum::Partial;
            packet
        };
        let found = walks(Link::Ip, tcp.run(3, 1000).iter().enumerate().map(with));
        assert_eq!(found, (3, 2), "{tcp:?}");
    }
}

/// RFC 1624: ones' complement numbers have several representations. When the ID wraps, the sum of
/// length, ID and checksum changes from one to another.
#[test]
fn sums_of_varying_fields_are_compared_in_one_form() {
    let varying = |tcp: &Tcp| {
        let frame = tcp.frame();
        let word = |at: usize| u32::from(u16::from_ne_bytes([frame[at], frame[at + 1]]));
        word(2) + word(4) + word(10)
    };
    let with = |value: u16| {
        let [ttl, host] = value.to_be_bytes();
        Tcp {
            ttl,
            host,
            ip_id: 0xffff,
            ..Tcp::default()
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
    assert_eq!(walks(Link::Ip, run.iter().map(Tcp::packet)), (1, 2));
}
