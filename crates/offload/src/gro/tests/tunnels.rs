//! The rules for tunnelled packets.

use super::*;

/// Returns a packet in each kind of tunnel, over each IP version, with and without an outer UDP
/// checksum.
fn tunnelled() -> Vec<(Tcp, Outer)> {
    let with_outer = |tcp: Tcp| tcp.outer.clone().map(|outer| (tcp, outer));
    shapes().into_iter().filter_map(with_outer).collect()
}

fn is_udp(outer: &Outer) -> bool {
    [Kind::Vxlan, Kind::Geneve, Kind::Fou, Kind::Gue].contains(&outer.kind)
}

/// Returns what a poll delivers for three packets of which the second has another outer header.
fn with_second_outer(tcp: &Tcp, change: impl Fn(&mut Outer)) -> String {
    with_second(tcp, |p| p.outer.iter_mut().for_each(&change))
}

#[test]
fn packets_in_a_row_become_one_and_are_cut_again() {
    for shape in shapes() {
        let mut run = shape.run(5, 1000);
        run[4].payload.truncate(300);
        run[4].flags |= PSH;
        let out = poll(&mut engine(), run.iter().map(Tcp::packet));
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
        let out = poll(&mut engine(), tcp.run(3, 1000).iter().map(Tcp::packet));
        let whole = Tcp {
            payload: payload(tcp.seq, 3000),
            ..tcp.clone()
        };
        let mut expected = whole.packet();
        expected.parse_through(Link::Ip, &TUNNELS).unwrap();
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
fn outer_fields_that_differ_keep_packets_apart() {
    let changes: [fn(&mut Outer); 7] = [
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
fn ids_of_both_layers_follow_the_rule() {
    let ids = |outer: [u16; 4], inner: [u16; 4]| {
        let shape = Tcp {
            outer: Some(Outer::new(Kind::Vxlan, false)),
            ..Tcp::default()
        };
        let mut run = shape.run(4, 1000);
        for (i, packet) in run.iter_mut().enumerate() {
            packet.ip_id = inner[i];
            packet.outer.iter_mut().for_each(|o| o.ip_id = outer[i]);
        }
        let out = poll(&mut engine(), run.iter().map(Tcp::packet));
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
        let mut gro = engine();
        let out = poll(&mut gro, run.iter().map(Tcp::packet));
        assert_eq!(show(&out), "1000 1000 1000");
        assert_eq!(gro.stats().bad_checksum, 1);
        // The device may have verified only one of the two checksums.
        let packets = run.iter().map(|p| {
            let mut packet = p.packet();
            packet.offload.checksum = Checksum::Valid;
            packet
        });
        assert_eq!(show(&poll(&mut engine(), packets)), "1000 1000 1000");
    }
}

#[test]
fn a_tunnel_with_and_one_without_a_checksum_stay_apart() {
    let shape = Tcp {
        outer: Some(Outer::new(Kind::Vxlan, true)),
        ..Tcp::default()
    };
    assert_eq!(
        with_second_outer(&shape, |o| o.summed = true),
        "1000 1000 1000"
    );
}

#[test]
fn what_cannot_be_looked_into_goes_by_and_overtakes_nothing() {
    for (tcp, _) in tunnelled() {
        // GRE with a sequence number, and a malformed inner packet.
        let sequence = with_second_outer(&tcp, |o| o.kind = Kind::GreSequence);
        let lengths = |line: &str| line.split(' ').count();
        assert_eq!(lengths(&sequence), 3, "{sequence}");
        let mut run = tcp.run(3, 1000);
        run[1].fragment = 0x2000;
        run[1].v6 = false;
        let out = poll(&mut engine(), run.iter().map(Tcp::packet));
        assert_eq!(out.len(), 3);
        assert_restored(&out, &run, &tcp);
    }
}

#[test]
fn one_level_only() {
    let mut inner = Tcp {
        outer: Some(Outer::new(Kind::Vxlan, false)),
        ..Tcp::default()
    };
    inner.link = Link::Ip;
    for kind in Kind::COALESCED {
        let frames: Vec<_> = inner
            .run(3, 1000)
            .iter()
            .map(|p| Outer::new(kind, true).around(&p.frame(), false))
            .collect();
        let packets = frames
            .iter()
            .map(|f| Packet::from_frame(fullsend_buf::Slice::copied_from(f)));
        let out = poll(&mut engine(), packets);
        assert_eq!(out.len(), 3, "{kind:?}");
        assert!(out.iter().all(|p| p.layers.encap == Encap::None));
        assert_eq!(out.iter().map(Packet::to_bytes).collect::<Vec<_>>(), frames);
    }
}

#[test]
fn tunnels_not_asked_for_are_protocols_like_others() {
    for (tcp, outer) in tunnelled() {
        let mut gro = Gro::new(GroConfig {
            tunnels: crate::Tunnels::NONE,
            link: Link::Ip,
            enabled: true,
            max_size: 65_536,
        });
        let run = tcp.run(3, 1000);
        let out = poll(&mut gro, run.iter().map(Tcp::packet));
        assert!(out.iter().all(|p| p.layers.encap == Encap::None));
        // The outer packets are still datagrams of one size, and join if each has a checksum.
        let joined = is_udp(&outer) && outer.summed;
        assert_eq!(out.len(), if joined { 1 } else { 3 });
        assert_restored(&out, &run, &tcp);
    }
}

#[test]
fn super_segments_in_tunnels_join_again() {
    for (tcp, _) in tunnelled() {
        let run = tcp.run(8, 1000);
        let make = |run: &[Tcp]| poll(&mut engine(), run.iter().map(Tcp::packet)).remove(0);
        let out = poll(&mut engine(), [make(&run[..4]), make(&run[4..])]);
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
        let tcp = Tcp {
            link: Link::Ethernet,
            vlan: Some(5),
            service_vlan: Some(9),
            ..tcp
        };
        let mut run = tcp.run(3, 1000);
        let out = poll(&mut gro, run.iter().map(Tcp::packet));
        assert_eq!(show(&out), "3000/1000*3");
        assert_restored(&out, &run, &tcp);
        run[1].service_vlan = Some(8);
        let out = poll(&mut gro, run.iter().map(Tcp::packet));
        assert_eq!(out.len(), 3);
    }
}

/// The datagrams of a tunnel do not overtake a packet that may be of their flow but cannot be
/// parsed completely.
#[test]
fn datagrams_do_not_overtake_what_cannot_be_looked_into() {
    for (tcp, _) in tunnelled() {
        let udp = Tcp { udp: true, ..tcp };
        let mut run = udp.run(3, 1000);
        run[1].fragment = 0x2000;
        run[1].v6 = false;
        // With its IP IDs the third packet could join the first.
        run[2].ip_id = run[0].ip_id;
        run[2].outer = run[0].outer.clone();
        let out = poll(&mut engine(), run.iter().map(Tcp::packet));
        assert_eq!(out.len(), 3, "{udp:?}");
        assert_restored(&out, &run, &udp);
    }
}

/// A packet that is parsed completely, but not coalesced, does not end flows in tunnels.
#[test]
fn a_packet_without_a_tunnel_does_not_end_those_of_tunnels() {
    for (tcp, _) in tunnelled() {
        let run = tcp.run(2, 1000);
        let wrong = Tcp {
            break_checksum: true,
            ..Tcp::default()
        };
        let out = poll(&mut engine(), [&run[0], &wrong, &run[1]].map(Tcp::packet));
        assert_eq!(show(&out), "2000/1000*2 1000");
    }
    // A flow without a tunnel is not ended by a packet whose tunnel is not parsed either.
    let run = Tcp::default().run(2, 1000);
    let mut outer = Outer::new(Kind::GreSequence, false);
    outer.host = 8;
    let other = Tcp {
        outer: Some(outer),
        ..Tcp::default()
    };
    let out = poll(&mut engine(), [&run[0], &other, &run[1]].map(Tcp::packet));
    assert_eq!(out.len(), 2);
    assert_eq!(out[0].segments(), 2);
}

/// The headers of a tunnelled packet may be no longer than those of one without a tunnel.
#[test]
fn short_headers_in_tunnels_are_compared_in_both_layers() {
    for kind in [Kind::Ip, Kind::Gre] {
        for outer_v6 in [false, true] {
            let tcp = Tcp {
                options: vec![],
                outer: Some(Outer::new(kind, outer_v6)),
                ..Tcp::default()
            };
            let mut run = tcp.run(4, 1000);
            for (packet, ip_id) in run.iter_mut().zip([5, 7, 8, 9]) {
                packet.ip_id = ip_id;
            }
            let out = poll(&mut engine(), run.iter().map(Tcp::packet));
            assert_eq!(show(&out), "1000 3000/1000*3");
            assert_restored(&out, &run, &tcp);
        }
    }
}

/// A datagram to the port of a tunnel that contains no supported tunnel header is not coalesced.
#[test]
fn datagrams_to_a_tunnels_port_pass_as_they_are() {
    let udp = Tcp {
        udp: true,
        ..Tcp::default()
    };
    let frames: Vec<_> = udp
        .run(3, 100)
        .iter()
        .map(|udp| {
            let mut frame = udp.frame();
            frame[22..24].copy_from_slice(&4789_u16.to_be_bytes());
            udp.resum(&mut frame);
            frame
        })
        .collect();
    let packets = frames
        .iter()
        .map(|f| Packet::from_frame(fullsend_buf::Slice::copied_from(f)));
    let out = poll(&mut engine(), packets);
    assert_eq!(out.len(), 3);
    assert_eq!(out.iter().map(Packet::to_bytes).collect::<Vec<_>>(), frames);
}
