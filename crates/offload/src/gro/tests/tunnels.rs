//! The rules for tunnelled packets.

use super::*;
use crate::Slice;

/// Returns a packet in each kind of tunnel, over each IP version, with and without an outer UDP
/// checksum.
fn tunnelled() -> Vec<(TestPacket, OuterHeaders)> {
    let with_outer = |tcp: TestPacket| tcp.outer.clone().map(|outer| (tcp, outer));
    shapes().into_iter().filter_map(with_outer).collect()
}

fn is_udp(outer: &OuterHeaders) -> bool {
    [
        TunnelKind::Vxlan,
        TunnelKind::Geneve,
        TunnelKind::Fou,
        TunnelKind::Gue,
    ]
    .contains(&outer.kind)
}

/// Returns what a poll delivers for three packets of which the second has another outer header.
fn with_second_outer(tcp: &TestPacket, change: impl Fn(&mut OuterHeaders)) -> String {
    with_second(tcp, |p| p.outer.iter_mut().for_each(&change))
}

#[test]
fn consecutive_tunnelled_packets_are_merged_and_segmented_again() {
    for shape in shapes() {
        let mut run = shape.run(5, 1000);
        run[4].payload.truncate(300);
        run[4].flags |= PSH;
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "4300/1000*5P", "{shape:?}");
        assert_restored(&out, &run, &shape);
        let layers = out[0].layers;
        assert_eq!(layers.encap == Encap::None, shape.outer.is_none());
        assert_eq!(usize::from(layers.transport) + 32, header_len(&shape));
        let inner = out[0].header[usize::from(layers.network[1])] >> 4;
        assert_eq!(inner == 6, shape.v6);
    }
}

#[test]
fn lengths_of_all_layers_are_those_of_the_super_segment() {
    for (tcp, outer) in tunnelled() {
        let out = poll(
            &mut new_gro(),
            tcp.run(3, 1000).iter().map(TestPacket::packet),
        );
        let whole = TestPacket {
            payload: payload(tcp.seq, 3000),
            ..tcp.clone()
        };
        let mut expected = whole.packet();
        expected.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
        let mut header = expected.header.to_vec();
        let layers = expected.layers;
        // Checksums that segmentation completes contain the sum of the pseudo-header.
        let mut fields = vec![usize::from(layers.transport) + 16];
        if is_udp(&outer) && outer.summed {
            fields.push(usize::from(layers.tunnel) + 6);
        }
        let sums = [
            (1, tcp.v6, layers.transport, 6),
            (0, outer.v6, layers.tunnel, 17),
        ];
        for (at, (layer, v6, upper, protocol)) in fields.into_iter().zip(sums) {
            let len = out[0].len() - usize::from(upper);
            let network = usize::from(layers.network[layer]);
            let sum = crate::checksum::pseudo(&header, network, v6, protocol, len).fold();
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        assert_eq!(&*out[0].header, &header, "{tcp:?}");
    }
}

#[test]
fn packets_with_different_outer_headers_are_not_merged() {
    let changes: [fn(&mut OuterHeaders); 7] = [
        |o| o.ttl -= 1,
        |o| o.tos = 4,
        |o| o.df = !o.df,
        |o| o.label += 1,
        |o| o.host += 1,
        |o| o.key += 1,
        |o| o.port += 1,
    ];
    for (tcp, outer) in tunnelled() {
        let before = tcp.frame();
        for change in changes {
            let mut other = tcp.clone();
            other.outer.iter_mut().for_each(change);
            let apart = with_second_outer(&tcp, change);
            // Some tunnels do not have the field.
            if other.frame() == before {
                assert_eq!(apart, "3000/1000*3");
            } else {
                assert_eq!(apart.split('/').count(), 1, "{outer:?} {apart}");
            }
        }
    }
}

#[test]
fn inner_and_outer_ip_ids_increment_or_are_fixed() {
    let ids = |outer: [u16; 4], inner: [u16; 4]| {
        let shape = TestPacket {
            outer: Some(OuterHeaders::new(TunnelKind::Vxlan, false)),
            ..TestPacket::default()
        };
        let mut run = shape.run(4, 1000);
        for (i, packet) in run.iter_mut().enumerate() {
            packet.ip_id = inner[i];
            packet.outer.iter_mut().for_each(|o| o.ip_id = outer[i]);
        }
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_restored(&out, &run, &shape);
        (show(&out), out[0].offload.fixed_id)
    };
    let one = |fixed| ("4000/1000*4".into(), fixed);
    let up = [0xfffe, 0xffff, 0, 1];
    let same = [5; 4];
    assert_eq!(ids(up, up), one([false, false]));
    assert_eq!(ids(same, up), one([true, false]));
    assert_eq!(ids(up, same), one([false, true]));
    assert_eq!(ids(same, same), one([true, true]));
    assert_eq!(ids([5, 6, 6, 6], up).0, "2000/1000*2 2000/1000*2");
    assert_eq!(ids(up, [5, 5, 6, 7]).0, "2000/1000*2 2000/1000*2");
    assert_eq!(ids([5, 7, 8, 9], same).0, "1000 3000/1000*3");
}

#[test]
fn a_wrong_outer_checksum_passes_unmerged() {
    for (tcp, outer) in tunnelled() {
        if !is_udp(&outer) || !outer.summed {
            continue;
        }
        let mut run = tcp.run(3, 1000);
        run[1]
            .outer
            .iter_mut()
            .for_each(|o| o.break_checksum = true);
        let mut gro = new_gro();
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "1000 1000 1000");
        assert_eq!(gro.stats().bad_checksum, 1);
        // The device may have verified only one of the two checksums.
        let packets = run.iter().map(|p| {
            let mut packet = p.packet();
            packet.offload.checksum = Checksum::Valid;
            packet
        });
        assert_eq!(show(&poll(&mut new_gro(), packets)), "1000 1000 1000");
    }
}

#[test]
fn tunnels_with_and_without_a_checksum_are_not_merged() {
    let shape = TestPacket {
        outer: Some(OuterHeaders::new(TunnelKind::Vxlan, true)),
        ..TestPacket::default()
    };
    assert_eq!(
        with_second_outer(&shape, |o| o.summed = true),
        "1000 1000 1000"
    );
}

#[test]
fn opaque_tunnel_packets_pass_unmerged_in_order() {
    for (tcp, _) in tunnelled() {
        // GRE with a sequence number, and a malformed inner packet.
        let sequence = with_second_outer(&tcp, |o| o.kind = TunnelKind::GreSequence);
        let lengths = |line: &str| line.split(' ').count();
        assert_eq!(lengths(&sequence), 3, "{sequence}");
        let mut run = tcp.run(3, 1000);
        run[1].fragment = 0x2000;
        run[1].v6 = false;
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_eq!(out.len(), 3);
        assert_restored(&out, &run, &tcp);
    }
}

#[test]
fn only_one_tunnel_level_is_parsed() {
    let mut inner = TestPacket {
        outer: Some(OuterHeaders::new(TunnelKind::Vxlan, false)),
        ..TestPacket::default()
    };
    inner.link = Link::Ip;
    for kind in TunnelKind::COALESCED {
        let frames: Vec<_> = inner
            .run(3, 1000)
            .iter()
            .map(|p| OuterHeaders::new(kind, true).around(&p.frame(), false))
            .collect();
        let packets = frames
            .iter()
            .map(|f| Packet::from_frame(Slice::copied_from(f)));
        let out = poll(&mut new_gro(), packets);
        assert_eq!(out.len(), 3, "{kind:?}");
        assert!(out.iter().all(|p| p.layers.encap == Encap::None));
        assert_eq!(out.iter().map(Packet::to_bytes).collect::<Vec<_>>(), frames);
    }
}

#[test]
fn disabled_tunnels_are_other_protocols() {
    for (tcp, outer) in tunnelled() {
        let mut gro = Gro::new(GroConfig {
            tunnels: crate::Tunnels::NONE,
            link: Link::Ip,
            enabled: true,
            max_size: 65_536,
        });
        let run = tcp.run(3, 1000);
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert!(out.iter().all(|p| p.layers.encap == Encap::None));
        // The outer packets are still datagrams of one size, and join if each has a checksum.
        let coalesced = is_udp(&outer) && outer.summed;
        assert_eq!(out.len(), if coalesced { 1 } else { 3 });
        assert_restored(&out, &run, &tcp);
    }
}

#[test]
fn segmented_tunnel_packets_are_merged_again() {
    for (tcp, _) in tunnelled() {
        let run = tcp.run(8, 1000);
        let make =
            |run: &[TestPacket]| poll(&mut new_gro(), run.iter().map(TestPacket::packet)).remove(0);
        let out = poll(&mut new_gro(), [make(&run[..4]), make(&run[4..])]);
        assert_eq!(show(&out), "8000/1000*8");
        assert_restored(&out, &run, &tcp);
    }
}

#[test]
fn service_and_customer_tags_belong_to_the_flow() {
    let mut gro = Gro::new(GroConfig {
        link: Link::Ethernet,
        enabled: true,
        max_size: 65_536,
        tunnels: TUNNELS,
    });
    for tcp in shapes() {
        let tcp = TestPacket {
            link: Link::Ethernet,
            vlan: Some(5),
            service_vlan: Some(9),
            ..tcp
        };
        let mut run = tcp.run(3, 1000);
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "3000/1000*3");
        assert_restored(&out, &run, &tcp);
        run[1].service_vlan = Some(8);
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(out.len(), 3);
    }
}

/// The datagrams of a tunnel do not overtake a packet that may be of their flow but cannot be
/// parsed completely.
#[test]
fn datagrams_do_not_overtake_opaque_tunnel_packets() {
    for (tcp, _) in tunnelled() {
        let udp = TestPacket { udp: true, ..tcp };
        let mut run = udp.run(3, 1000);
        run[1].fragment = 0x2000;
        run[1].v6 = false;
        // With its IP IDs the third packet could join the first.
        run[2].ip_id = run[0].ip_id;
        run[2].outer = run[0].outer.clone();
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_eq!(out.len(), 3, "{udp:?}");
        assert_restored(&out, &run, &udp);
    }
}

/// A packet that is parsed completely, but not coalesced, does not end flows in tunnels.
#[test]
fn an_untunnelled_packet_does_not_flush_tunnelled_ones() {
    for (tcp, _) in tunnelled() {
        let run = tcp.run(2, 1000);
        let wrong = TestPacket {
            break_checksum: true,
            ..TestPacket::default()
        };
        let out = poll(
            &mut new_gro(),
            [&run[0], &wrong, &run[1]].map(TestPacket::packet),
        );
        assert_eq!(show(&out), "2000/1000*2 1000");
    }
    // A flow without a tunnel is not ended by a packet whose tunnel is not parsed either.
    let run = TestPacket::default().run(2, 1000);
    let mut outer = OuterHeaders::new(TunnelKind::GreSequence, false);
    outer.host = 8;
    let other = TestPacket {
        outer: Some(outer),
        ..TestPacket::default()
    };
    let out = poll(
        &mut new_gro(),
        [&run[0], &other, &run[1]].map(TestPacket::packet),
    );
    assert_eq!(out.len(), 2);
    assert_eq!(out[0].segments(), 2);
}

/// The headers of a tunnelled packet may be no longer than those of one without a tunnel.
#[test]
fn short_headers_in_tunnels_are_compared_in_both_layers() {
    for kind in [TunnelKind::Ip, TunnelKind::Gre] {
        for outer_v6 in [false, true] {
            let tcp = TestPacket {
                options: vec![],
                outer: Some(OuterHeaders::new(kind, outer_v6)),
                ..TestPacket::default()
            };
            let mut run = tcp.run(4, 1000);
            for (packet, ip_id) in run.iter_mut().zip([5, 7, 8, 9]) {
                packet.ip_id = ip_id;
            }
            let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
            assert_eq!(show(&out), "1000 3000/1000*3");
            assert_restored(&out, &run, &tcp);
        }
    }
}

/// A datagram to the port of a tunnel that contains no supported tunnel header is not coalesced.
#[test]
fn datagrams_to_a_tunnel_port_pass_unmerged() {
    let udp = TestPacket {
        udp: true,
        ..TestPacket::default()
    };
    let frames: Vec<_> = udp
        .run(3, 100)
        .iter()
        .map(|udp| {
            let mut frame = udp.frame();
            frame[22..24].copy_from_slice(&4789_u16.to_be_bytes());
            udp.fix_checksums(&mut frame);
            frame
        })
        .collect();
    let packets = frames
        .iter()
        .map(|f| Packet::from_frame(Slice::copied_from(f)));
    let out = poll(&mut new_gro(), packets);
    assert_eq!(out.len(), 3);
    assert_eq!(out.iter().map(Packet::to_bytes).collect::<Vec<_>>(), frames);
}
