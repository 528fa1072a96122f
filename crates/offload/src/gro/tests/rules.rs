use super::*;
use crate::gro::fast_path::Layout;
use crate::{Packet, Slice};

#[test]
fn consecutive_packets_are_merged() {
    for tcp in both_ip_versions() {
        let run = tcp.run(5, 1000);
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "5000/1000*5");
        let kind = if tcp.v6 {
            GsoKind::TcpV6
        } else {
            GsoKind::TcpV4
        };
        assert_eq!(
            out[0].offload,
            Offload {
                gso_size: 1000,
                gso_segs: 5,
                kind,
                checksum: Checksum::Partial,
                fixed_id: [false; 2],
                repeats_cwr: false,
            }
        );
        let mut bytes = vec![0; 5000];
        out[0].payload.copy_to(&mut bytes);
        assert_eq!(bytes, payload(tcp.seq, 5000));
        // The headers are those of a single packet of that length, except the checksum field.
        let whole = TestPacket {
            payload: payload(tcp.seq, 5000),
            ..tcp
        };
        let mut expected = whole.packet();
        expected.parse(Link::Ip).unwrap();
        let field = usize::from(expected.layers.transport) + 16;
        let partial = crate::checksum::pseudo(&expected.header, 0, whole.v6, 6, 5032);
        expected.header[field..field + 2].copy_from_slice(&partial.fold().to_be_bytes());
        assert_eq!(out[0].header, expected.header);
    }
}

#[test]
fn a_single_packet_is_unchanged() {
    for tcp in shapes() {
        let out = poll(&mut new_gro(), [tcp.packet()]);
        assert_eq!(out[0].to_bytes(), tcp.frame());
        assert_eq!(
            out[0].offload,
            Offload {
                checksum: Checksum::Valid,
                ..Offload::default()
            }
        );
        // `receive_single` has the same result.
        let (mut gro, mut alone) = (new_gro(), tcp.packet());
        assert!(gro.receive_single(&mut alone));
        assert_eq!(
            (alone.to_bytes(), alone.offload),
            (tcp.frame(), out[0].offload)
        );
        assert_eq!(
            (&alone.header, alone.layers),
            (&out[0].header, out[0].layers)
        );
        assert_eq!((gro.stats().received, gro.stats().parsed), (1, 1));
    }
}

#[test]
fn receive_single_reports_bad_packets() {
    let mut gro = new_gro();
    let mut short = Packet::from_frame(Slice::copied_from(&[0x45; 10]));
    assert!(!gro.receive_single(&mut short));
    assert_eq!(gro.stats().malformed, 1);
    let mut frame = both_ip_versions()[0].frame();
    *frame.last_mut().unwrap() ^= 1;
    let mut wrong = Packet::from_frame(Slice::copied_from(&frame));
    assert!(gro.receive_single(&mut wrong));
    assert_eq!(wrong.offload.checksum, Checksum::Unverified);
    assert_eq!(gro.stats().bad_checksum, 1);
}

#[test]
fn pure_acks_pass_unmerged_and_flush_their_flow() {
    for tcp in shapes() {
        let mut run = tcp.run(3, 1000);
        run[2].payload.clear();
        assert_eq!(trace(&run), "2000/1000*2 0");
        assert_eq!(trace(&[run[2].clone(), run[2].clone()]), "0 0");
    }
}

#[test]
fn psh_and_fin_are_merged_and_end_the_super_segment() {
    for tcp in shapes() {
        for (flag, shown) in [(PSH, "2000/1000*2P 1000"), (FIN, "2000/1000*2F 1000")] {
            assert_eq!(with_second(&tcp, |p| p.flags |= flag), shown);
        }
        // A packet with PSH is not held if none is held before it.
        let mut run = tcp.run(2, 1000);
        run[0].flags |= PSH;
        assert_eq!(trace(&run), "1000P 1000");
    }
}

#[test]
fn packets_with_other_flags_are_not_merged() {
    for tcp in shapes() {
        assert_eq!(with_second(&tcp, |p| p.flags |= SYN), "1000 1000S 1000");
        assert_eq!(with_second(&tcp, |p| p.flags |= RST), "1000 1000R 1000");
        assert_eq!(with_second(&tcp, |p| p.flags |= URG), "1000 1000U 1000");
        assert_eq!(with_second(&tcp, |p| p.flags |= ECE), "1000 1000 1000");
        assert_eq!(with_second(&tcp, |p| p.flags |= CWR), "1000 1000 1000");
        let all_with = |flag| TestPacket {
            flags: ACK | flag,
            ..tcp.clone()
        };
        assert_eq!(trace(&all_with(ECE).run(3, 1000)), "3000/1000*3");
        // Equal flags do not help those that end a super-segment.
        for (flag, shown) in [
            (SYN, "1000S 1000S 1000S"),
            (RST, "1000R 1000R 1000R"),
            (URG, "1000U 1000U 1000U"),
        ] {
            assert_eq!(trace(&all_with(flag).run(3, 1000)), shown);
        }
        // RFC 9768: CWR may be part of each segment's counter.
        let counting = all_with(CWR);
        let run = counting.run(3, 1000);
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "3000/1000*3");
        assert!(out[0].offload.repeats_cwr);
        assert_restored(&out, &run, &counting);
    }
}

#[test]
fn a_shorter_segment_ends_and_a_longer_one_starts_a_super_segment() {
    for tcp in shapes() {
        let run = consecutive(&tcp, &[1000, 1000, 400, 1000, 1000, 1200]);
        assert_eq!(trace(&run), "2400/1000*3 2000/1000*2 1200");
        // If none is held before it, a short packet determines the segment size.
        let run = consecutive(&tcp, &[400, 400, 1000, 400]);
        assert_eq!(trace(&run), "800/400*2 1400/1000*2");
    }
}

#[test]
fn out_of_order_segments_are_not_merged() {
    for tcp in shapes() {
        assert_eq!(with_second(&tcp, |p| p.seq += 1), "1000 1000 1000");
        // A retransmission of the held packet.
        assert_eq!(with_second(&tcp, |p| p.seq -= 1000), "1000 1000 1000");
    }
}

#[test]
fn sequence_numbers_wrap() {
    for tcp in shapes() {
        let tcp = TestPacket {
            seq: u32::MAX - 1499,
            ..tcp
        };
        assert_eq!(trace(&tcp.run(4, 1000)), "4000/1000*4");
    }
}

#[test]
fn packets_with_different_header_fields_are_not_merged() {
    let changes: [fn(&mut TestPacket); 6] = [
        |p| p.ack += 1,
        |p| p.window += 1,
        |p| p.urgent = 1,
        |p| p.ttl -= 1,
        |p| p.tos = 1,
        |p| p.options[7] += 1,
    ];
    for tcp in shapes() {
        for change in changes {
            assert_eq!(with_second(&tcp, change), "1000 1000 1000");
        }
        assert_eq!(
            with_second(&tcp, |p| p.options.extend([1; 4])),
            "1000 1000 1000"
        );
    }
    for tcp in over_v4() {
        assert_eq!(with_second(&tcp, |p| p.df = false), "1000 1000 1000");
    }
}

/// Returns the shapes whose innermost packet is IPv4.
fn over_v4() -> impl Iterator<Item = TestPacket> {
    shapes().into_iter().filter(|tcp| !tcp.v6)
}

/// Returns the shapes whose innermost packet is IPv6.
fn over_v6() -> impl Iterator<Item = TestPacket> {
    shapes().into_iter().filter(|tcp| tcp.v6)
}

#[test]
fn flows_are_merged_independently() {
    let changes: [fn(&mut TestPacket); 2] = [|p| p.port += 1, |p| p.host += 1];
    for tcp in shapes() {
        for change in changes {
            let other = {
                let mut tcp = tcp.clone();
                change(&mut tcp);
                tcp
            };
            let mixed: Vec<_> = tcp
                .run(4, 1000)
                .into_iter()
                .zip(other.run(4, 1000))
                .flat_map(|(a, b)| [a, b])
                .collect();
            assert_eq!(trace(&mixed), "4000/1000*4 4000/1000*4");
        }
    }
    for tcp in over_v6() {
        assert_eq!(with_second(&tcp, |p| p.label += 1), "1000 1000 1000");
        let longer = |p: &mut TestPacket| p.extensions.push((60, vec![0, 1, 4, 0, 0, 0, 0]));
        assert_eq!(with_second(&tcp, longer), "1000 1000 1000");
    }
}

#[test]
fn link_headers_belong_to_the_flow() {
    let mut gro = Gro::new(GroConfig {
        link: Link::Ethernet,
        enabled: true,
        max_size: 65_536,
        tunnels: TUNNELS,
    });
    for tcp in both_ip_versions() {
        let tcp = TestPacket {
            link: Link::Ethernet,
            vlan: Some(5),
            ..tcp
        };
        let mut run = tcp.run(3, 1000);
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "3000/1000*3");
        run[2].vlan = Some(6);
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "2000/1000*2 1000");
        run[2].vlan = None;
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "2000/1000*2 1000");
    }
}

#[test]
fn ip_ids_increment_or_are_fixed() {
    for tcp in over_v4() {
        let of = |ids: [u16; 4]| {
            let run = tcp.run(4, 1000).into_iter().zip(ids);
            let run: Vec<_> = run.map(|(p, ip_id)| TestPacket { ip_id, ..p }).collect();
            let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
            assert_restored(&out, &run, &tcp);
            (show(&out), out[0].offload.fixed_id[1])
        };
        let one = |fixed| ("4000/1000*4".into(), fixed);
        assert_eq!(of([5, 6, 7, 8]), one(false));
        assert_eq!(of([0xfffe, 0xffff, 0, 1]), one(false));
        assert_eq!(of([5, 5, 5, 5]), one(true));
        assert_eq!(of([5, 5, 6, 7]).0, "2000/1000*2 2000/1000*2");
        assert_eq!(of([5, 6, 6, 6]).0, "2000/1000*2 2000/1000*2");
        assert_eq!(of([5, 7, 8, 9]).0, "1000 3000/1000*3");
        assert_eq!(of([5, 4, 3, 2]).0, "1000 1000 1000 1000");
    }
}

#[test]
fn ip_options_and_fragments_are_not_merged() {
    for tcp in over_v4() {
        let options = |p: &mut TestPacket| p.ip_options = vec![1, 1, 1, 0];
        let mut one = tcp.run(3, 1000);
        options(&mut one[1]);
        assert_unmerged(&one, &tcp);
        let all = TestPacket {
            ip_options: vec![1, 1, 1, 0],
            ..tcp.clone()
        };
        assert_unmerged(&all.run(3, 1000), &all);
        for fragment in [0x2000, 100] {
            let pieces = TestPacket {
                fragment,
                df: false,
                ..tcp.clone()
            };
            assert_unmerged(&pieces.run(3, 1000), &pieces);
        }
    }
    for tcp in over_v6() {
        let mut pieces = tcp.clone();
        pieces.extensions.push((44, vec![0, 0, 1, 0, 0, 0, 1]));
        assert_unmerged(&pieces.run(3, 1000), &pieces);
    }
}

fn assert_unmerged(run: &[TestPacket], shape: &TestPacket) {
    let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
    assert!(out.iter().all(|p| p.segments() == 1), "{shape:?}");
    assert_restored(&out, run, shape);
}

#[test]
fn only_equal_extension_headers_are_merged() {
    let options = vec![0, 1, 4, 0, 0, 0, 0];
    let long = [vec![2], vec![1, 20], vec![0; 20]].concat();
    for tcp in over_v6() {
        for (kind, bytes) in [(0, &options), (43, &options), (60, &options), (60, &long)] {
            let tcp = TestPacket {
                extensions: vec![(kind, bytes.clone())],
                ..tcp.clone()
            };
            let run = tcp.run(3, 1000);
            let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
            assert_eq!(show(&out), "3000/1000*3");
            assert_restored(&out, &run, &tcp);
            let other = |p: &mut TestPacket| p.extensions[0].1[3] ^= 9;
            assert_eq!(with_second(&tcp, other), "1000 1000 1000");
        }
        // The fragment header of an atomic fragment prevents coalescing.
        let atomic = TestPacket {
            extensions: vec![(44, vec![0, 0, 0, 0, 0, 0, 1])],
            ..tcp.clone()
        };
        assert_unmerged(&atomic.run(3, 1000), &atomic);
    }
}

/// Ethernet pads frames to 60 bytes (IEEE 802.3 3.2.8). The padding is not part of the packet, so a
/// padded packet is coalesced like any other, at any position in the flow.
#[test]
fn link_layer_padding_is_removed_before_comparison() {
    for tcp in shapes() {
        for padded in [vec![1], vec![0], vec![2], vec![0, 1, 2]] {
            let run = tcp.run(3, 4);
            let mut frames = run.clone();
            for at in padded {
                frames[at].padding = 2;
            }
            let mut gro = new_gro();
            let out = poll(&mut gro, frames.iter().map(TestPacket::packet));
            assert_eq!(show(&out), "12/4*3");
            assert_restored(&out, &run, &tcp);
        }
    }
}

/// A datagram that ends before its IP packet is passed on unchanged, except the bytes after it.
#[test]
fn a_datagram_with_a_trailer_flushes_its_flow() {
    let udp = TestPacket {
        udp: true,
        options: Vec::new(),
        ..TestPacket::default()
    };
    let mut frames: Vec<_> = udp.run(3, 1000).iter().map(TestPacket::frame).collect();
    let second = &mut frames[1];
    let at = second.len() - 1008;
    // The length field is 8 bytes less than the payload.
    second[at + 4..at + 6].copy_from_slice(&1000u16.to_be_bytes());
    let packets = frames.iter().map(|frame| {
        let mut packet = Packet::from_frame(Slice::copied_from(frame));
        packet.offload.checksum = Checksum::Partial;
        packet
    });
    let out = poll(&mut new_gro(), packets);
    assert_eq!(show(&out), "1000 992 1000");
}

#[test]
fn bad_checksums_pass_unmerged_and_are_counted() {
    for tcp in shapes() {
        let mut run = tcp.run(3, 1000);
        run[1].break_checksum = true;
        let mut gro = new_gro();
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "1000 1000 1000");
        assert_eq!(out[1].offload.checksum, Checksum::Unverified);
        assert_eq!(gro.stats().bad_checksum, 1);
    }
}

#[test]
fn checksums_marked_as_verified_are_not_checked() {
    let plain = shapes().into_iter().filter(|tcp| tcp.outer.is_none());
    let no_checksum = shapes()
        .into_iter()
        .filter(|tcp| tcp.outer.as_ref().is_some_and(|o| !o.summed));
    let valid = plain
        .clone()
        .chain(no_checksum)
        .map(|tcp| (tcp, Checksum::Valid));
    let partial = plain.map(|tcp| (tcp, Checksum::Partial));
    for (tcp, state) in valid.chain(partial) {
        let run = TestPacket {
            break_checksum: true,
            ..tcp
        }
        .run(3, 1000);
        let packets = run.iter().map(|p| {
            let mut packet = p.packet();
            packet.offload.checksum = state;
            packet
        });
        let mut gro = new_gro();
        assert_eq!(show(&poll(&mut gro, packets)), "3000/1000*3");
        assert_eq!(gro.stats().bad_checksum, 0);
    }
}

#[test]
fn a_full_bucket_completes_its_oldest() {
    for tcp in shapes() {
        // Nine flows of one bucket, two packets of each: the first packet of a flow is no longer
        // held when its second one is received, which evicts the first of the next flow, and so on.
        let hash = |port| {
            let mut packet = TestPacket {
                port,
                ..tcp.clone()
            }
            .packet();
            packet.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
            Layout::of(&packet.layers)
                .hash(&packet.header, &new_gro().keys)
                .unwrap()
        };
        let same = (1..).filter(|&port| hash(port) % 8 == hash(1) % 8);
        let ports: Vec<u16> = same.take(9).collect();
        let run = |port: u16| {
            TestPacket {
                port,
                ..tcp.clone()
            }
            .run(2, 1000)
        };
        let packets = |ports: &[u16]| -> Vec<_> {
            let nth = |n: usize| ports.iter().map(move |&port| run(port)[n].packet());
            nth(0).chain(nth(1)).collect()
        };
        let coalesced = ["2000/1000*2"; 8].join(" ");
        assert_eq!(show(&poll(&mut new_gro(), packets(&ports[..8]))), coalesced);
        let apart = ["1000"; 18].join(" ");
        assert_eq!(show(&poll(&mut new_gro(), packets(&ports))), apart);
    }
}

#[test]
fn an_unknown_seed_prevents_bucket_collisions() {
    for tcp in both_ip_versions() {
        let of = |port| TestPacket {
            port,
            ..tcp.clone()
        };
        let hash = |port: u16, gro: &Gro| {
            let mut packet = of(port).packet();
            packet.parse(Link::Ip).unwrap();
            Layout::of(&packet.layers)
                .hash(&packet.header, &gro.keys)
                .unwrap()
        };
        let known = new_gro();
        let crowd = |port: &u16| hash(*port, &known) % 64 == hash(1, &known) % 64;
        let ports: Vec<u16> = (1..).filter(crowd).take(64).collect();
        let config = GroConfig::new(Link::Ip);
        let merged = [0, 0x1234_5678_9abc_def0].map(|seed| {
            let mut gro = Gro::with_seed(config, seed);
            let runs: Vec<_> = ports.iter().map(|port| of(*port).run(2, 1000)).collect();
            let nth = |n: usize| runs.iter().map(move |run| run[n].packet());
            poll(&mut gro, nth(0).chain(nth(1)));
            gro.stats().merged
        });
        assert_eq!(merged[0], 0);
        assert!(merged[1] > 48, "{merged:?}");
    }
}

#[test]
fn a_thousand_interleaved_flows_are_merged() {
    for tcp in [TestPacket::default(), TestPacket::v6(), in_vxlan()] {
        let runs: Vec<_> = (0..1000)
            .map(|port| {
                TestPacket {
                    port,
                    ..tcp.clone()
                }
                .run(3, 100)
            })
            .collect();
        let nth = |n: usize| runs.iter().map(move |run| run[n].packet());
        let mut gro = new_gro();
        let out = poll(&mut gro, nth(0).chain(nth(1)).chain(nth(2)));
        // Some buckets were full before their number was increased.
        assert!(gro.stats().merged > 1900, "{:?}", gro.stats());
        assert_eq!(out.len() as u64, 3000 - gro.stats().merged);
        let flows =
            |p: &Packet| u16::from_be_bytes([p.transport_header()[0], p.transport_header()[1]]);
        let mut ports: Vec<_> = out.iter().map(flows).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports, (0..1000).collect::<Vec<_>>());
    }
}

#[test]
fn flows_with_equal_sequence_numbers_are_not_merged() {
    for tcp in shapes() {
        let runs = [1000, 1001].map(|port| {
            TestPacket {
                port,
                ..tcp.clone()
            }
            .run(3, 1000)
        });
        let [a, b] = runs;
        let order = [&a[0], &b[0], &a[1], &b[1], &a[2], &b[2]];
        let mut gro = new_gro();
        let out = poll(&mut gro, order.map(TestPacket::packet));
        assert_eq!(show(&out), "3000/1000*3 3000/1000*3");
    }
}

#[test]
fn flush_older_than_keeps_recent_packets() {
    let at = Instant::from_nanos;
    for tcp in shapes() {
        let mut gro = new_gro();
        let mut out = Vec::new();
        let flow = |port: u16| {
            TestPacket {
                port,
                ..tcp.clone()
            }
            .run(2, 1000)
        };
        for port in 0..20u16 {
            gro.receive(at(u64::from(port)), flow(port)[0].packet());
        }
        // It is passed on without waiting for the held packets.
        gro.receive(
            at(20),
            TestPacket {
                flags: ACK | SYN,
                port: 99,
                ..tcp.clone()
            }
            .packet(),
        );
        gro.flush_older_than(at(12), &mut out);
        assert_eq!(
            show(&out),
            [&["1000"; 12][..], &["1000S"]].concat().join(" ")
        );
        // The packets that are still held grow, in the order in which they were received.
        for port in (0..20).rev() {
            gro.receive(at(30), flow(port)[1].packet());
        }
        out.clear();
        gro.flush_older_than(at(30), &mut out);
        assert_eq!(show(&out), ["2000/1000*2"; 8].join(" "));
        let port =
            |p: &Packet| u16::from_be_bytes([p.transport_header()[0], p.transport_header()[1]]);
        assert!(out.iter().map(port).eq(12..20));
        out.clear();
        gro.flush(&mut out);
        assert!(out.iter().map(port).eq((0..12).rev()));
    }
}

#[test]
fn super_segments_are_merged() {
    for tcp in both_ip_versions() {
        let make =
            |run: &[TestPacket]| poll(&mut new_gro(), run.iter().map(TestPacket::packet)).remove(0);
        let run = tcp.run(9, 1000);
        let (a, b, c) = (make(&run[..4]), make(&run[4..8]), run[8].packet());
        assert_eq!(
            show(&poll(&mut new_gro(), [a.clone(), b, c])),
            "9000/1000*9"
        );
        // A packet with a different segment size does not join.
        let other = TestPacket {
            seq: 4001,
            ip_id: if tcp.v6 { 0 } else { 104 },
            ..tcp.clone()
        };
        let other = make(&other.run(3, 900));
        assert_eq!(
            show(&poll(&mut new_gro(), [a.clone(), other])),
            "4000/1000*4 2700/900*3"
        );
        // A super-segment with a short last segment joins, and nothing can follow it.
        let mut short = run[4..7].to_vec();
        short[2].payload.truncate(300);
        let short = make(&short);
        let next = TestPacket {
            seq: 6301,
            ..run[7].clone()
        }
        .packet();
        assert_eq!(
            show(&poll(&mut new_gro(), [a, short, next])),
            "6300/1000*7 1000"
        );
    }
}

/// A device gives only the size of the segments. Counters and the charge of a link need their
/// number.
#[test]
fn missing_segment_counts_of_a_device_are_computed() {
    for tcp in shapes() {
        for (udp, flags) in [(false, ACK), (false, ACK | PSH), (true, 0)] {
            for (len, segments) in [(1000, 1), (1001, 2), (2500, 3), (3000, 3)] {
                let whole = TestPacket {
                    udp,
                    flags,
                    payload: payload(1, len),
                    ..tcp.clone()
                };
                let mut packet = whole.packet();
                packet.offload.gso_size = 1000;
                packet.offload.checksum = Checksum::Partial;
                let count = |out: &[Packet]| out.iter().map(Packet::segments).sum::<u32>();
                let out = poll(&mut new_gro(), [packet.clone()]);
                assert_eq!(count(&out), segments, "{whole:?}");
                assert!(new_gro().receive_single(&mut packet));
                assert_eq!(packet.segments(), segments, "{whole:?}");
            }
        }
    }
}

#[test]
fn disabled_gro_still_parses_and_verifies() {
    let mut gro = Gro::new(GroConfig {
        link: Link::Ip,
        enabled: false,
        max_size: 65_536,
        tunnels: TUNNELS,
    });
    let mut run = TestPacket::default().run(3, 1000);
    run[1].break_checksum = true;
    let out = poll(&mut gro, run.iter().map(TestPacket::packet));
    assert_eq!(show(&out), "1000 1000 1000");
    let states: Vec<_> = out.iter().map(|p| p.offload.checksum).collect();
    assert_eq!(
        states,
        [Checksum::Valid, Checksum::Unverified, Checksum::Valid]
    );
    assert_eq!(gro.stats().bad_checksum, 1);
}

#[test]
fn malformed_packets_are_counted_and_dropped() {
    let mut gro = new_gro();
    let frame = TestPacket::default().frame();
    let bad = [&frame[..30], &[], &[0x50; 40]];
    let packets = bad.map(|b| Packet::from_frame(Slice::copied_from(b)));
    assert!(poll(&mut gro, packets).is_empty());
    assert_eq!((gro.stats().malformed, gro.stats().received), (3, 3));
}

#[test]
fn receive_batch_equals_receive_of_each_packet() {
    let run = TestPacket::default().run(7, 1000);
    let mut packets: Vec<_> = run.iter().map(TestPacket::packet).collect();
    let (mut gro, mut out) = (new_gro(), Vec::new());
    gro.receive_batch(Instant::ZERO, &mut packets);
    assert!(packets.is_empty() && out.is_empty());
    gro.flush(&mut out);
    assert_eq!(show(&out), "7000/1000*7");
    assert_eq!(gro.stats().merged, 6);
}

/// RFC 8200 6, RFC 6437 2: a different flow label is a different flow, whose packets may come
/// between.
#[test]
fn flow_labels_distinguish_flows() {
    for tcp in over_v6() {
        let other = TestPacket {
            label: tcp.label + 1,
            ..tcp.clone()
        };
        let runs = [tcp, other].map(|tcp| tcp.run(4, 1000));
        let mixed = runs[0].iter().zip(&runs[1]).flat_map(|(a, b)| [a, b]);
        let out = poll(&mut new_gro(), mixed.map(TestPacket::packet));
        assert_eq!(show(&out), "4000/1000*4 4000/1000*4");
    }
}

/// RFC 1071: all ones and 0 are the same number, of which a checksum computation gives only one.
/// Segmentation would write that one, so a packet with the other is passed on unchanged.
#[test]
fn checksums_of_0xffff_flush_the_flow() {
    // With 0 in a 16-bit word the checksum has some value; with that value in the word it is 0.
    let zero_of = |at: usize, tcp: &TestPacket, change: fn(&mut TestPacket, u16)| {
        let mut tcp = tcp.clone();
        change(&mut tcp, 0);
        let frame = tcp.frame();
        change(&mut tcp, u16::from_be_bytes([frame[at], frame[at + 1]]));
        assert_eq!(tcp.frame()[at..at + 2], [0, 0]);
        tcp
    };
    let tunnelled = |outer_v6, tcp: TestPacket| TestPacket {
        outer: Some(OuterHeaders::new(TunnelKind::Ip, outer_v6)),
        ..tcp
    };
    let short = |tcp: TestPacket| TestPacket {
        options: vec![],
        payload: payload(1, 20),
        ..tcp
    };
    let udp = |tcp| TestPacket { udp: true, ..tcp };
    let id: fn(&mut TestPacket, u16) = |tcp, value| tcp.ip_id = value;
    let outer_id: fn(&mut TestPacket, u16) =
        |tcp, value| tcp.outer.iter_mut().for_each(|o| o.ip_id = value);
    let window: fn(&mut TestPacket, u16) = |tcp, value| tcp.window = value;
    let [v4, v6] = both_ip_versions().map(short);
    for (tcp, field, change) in [
        (v4.clone(), 10, id),
        (v4.clone(), 36, window),
        (v6.clone(), 56, window),
        (udp(v4.clone()), 10, id),
        (tunnelled(false, v6.clone()), 10, outer_id),
        (tunnelled(false, v4.clone()), 30, id),
        (tunnelled(true, v4), 50, id),
        (tunnelled(true, v6), 96, window),
    ] {
        let second = zero_of(field, &tcp, change);
        let mut run = TestPacket {
            seq: second.seq.wrapping_sub(20),
            ..second
        }
        .run(3, 20);
        for packet in [0, 2] {
            // The IDs are consecutive, whatever that of the second packet is.
            run[packet].ip_id = run[packet].ip_id.wrapping_sub(u16::from(!tcp.v6));
            run[packet].outer.iter_mut().for_each(|o| {
                o.ip_id = o.ip_id.wrapping_sub(u16::from(!o.v6));
            });
        }
        run[1] = zero_of(field, &run[1], change);
        let mut frames: Vec<_> = run.iter().map(TestPacket::frame).collect();
        frames[1][field..field + 2].fill(0xff);
        for gso_size in [0, u16::MAX] {
            let packets = frames.iter().map(|frame| {
                let mut packet = Packet::from_frame(Slice::copied_from(frame));
                packet.offload.gso_size = gso_size;
                packet
            });
            let out = poll(&mut new_gro(), packets);
            let mut segmented = Vec::new();
            for packet in out {
                segment(packet, &mut segmented);
            }
            let segmented: Vec<_> = segmented.iter().map(Packet::to_bytes).collect();
            assert!(segmented == frames, "{field} {tcp:?}");
        }
    }
}

/// A partial checksum field contains no checksum yet, so that any value in it is valid.
#[test]
fn a_partial_checksum_may_hold_any_value() {
    for tcp in both_ip_versions() {
        let packets = tcp.run(3, 1000).into_iter().map(|tcp| {
            let mut frame = tcp.frame();
            let field = if tcp.v6 { 56 } else { 36 };
            frame[field..field + 2].fill(0xff);
            let mut packet = Packet::from_frame(Slice::copied_from(&frame));
            packet.offload.checksum = Checksum::Partial;
            packet
        });
        assert_eq!(show(&poll(&mut new_gro(), packets)), "3000/1000*3");
    }
}

/// The device does not report to which layer a partial checksum in a tunnel belongs. In a
/// super-segment it is that of the innermost packet.
#[test]
fn partial_checksums_in_tunnels_are_not_merged() {
    for tcp in shapes().into_iter().filter(|tcp| tcp.outer.is_some()) {
        for udp in [false, true] {
            let packets = TestPacket { udp, ..tcp.clone() }
                .run(3, 1000)
                .into_iter()
                .map(|tcp| {
                    let mut packet = tcp.packet();
                    packet.offload.checksum = Checksum::Partial;
                    packet
                });
            let out = poll(&mut new_gro(), packets);
            assert_eq!(out.len(), 3, "{tcp:?}");
        }
    }
}

/// Returns a device's super-segment of `len` bytes in segments of `size`.
fn from_device(tcp: &TestPacket, len: usize, size: u16) -> Packet {
    let whole = TestPacket {
        payload: payload(tcp.seq, len),
        ..tcp.clone()
    };
    let mut packet = whole.packet();
    packet.offload.gso_size = size;
    packet.offload.checksum = Checksum::Partial;
    packet
}

#[test]
fn super_segments_of_different_gso_size_are_not_merged() {
    for tcp in both_ip_versions() {
        let run = tcp.run(2, 1000);
        let second = from_device(&run[1], 1000, 500);
        let out = poll(&mut new_gro(), [run[0].packet(), second]);
        assert_eq!(show(&out), "1000 1000/500*2");
    }
}

/// Within the result, the IDs of all segments are equal or all increase: segmentation restores only
/// these.
#[test]
fn super_segments_are_merged_only_if_their_ids_continue_in_the_same_way() {
    for tcp in both_ip_versions().into_iter().filter(|tcp| !tcp.v6) {
        for (first_is_fixed, second_is_fixed) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let second = TestPacket {
                seq: tcp.seq + 2000,
                ip_id: tcp.ip_id + if first_is_fixed { 0 } else { 2 },
                ..tcp.clone()
            };
            let packets =
                [(&tcp, first_is_fixed), (&second, second_is_fixed)].map(|(tcp, fixed)| {
                    let mut packet = from_device(tcp, 2000, 1000);
                    packet.offload.fixed_id = [fixed; 2];
                    packet
                });
            let shown = if first_is_fixed == second_is_fixed {
                "4000/1000*4"
            } else {
                "2000/1000*2 2000/1000*2"
            };
            assert_eq!(show(&poll(&mut new_gro(), packets)), shown);
        }
    }
}

/// RFC 3168 6.1.2: only the first segment has CWR, unless it is part of each segment's counter (RFC
/// 9768).
#[test]
fn a_super_segment_with_cwr_is_merged_only_if_all_segments_have_it() {
    for tcp in both_ip_versions() {
        for (repeats_cwr, shown) in [(false, "2000/1000*2 2000/1000*2"), (true, "4000/1000*4")] {
            let tcp = TestPacket {
                flags: ACK | CWR,
                ..tcp.clone()
            };
            let second = TestPacket {
                seq: tcp.seq + 2000,
                ip_id: tcp.ip_id + if tcp.v6 { 0 } else { 2 },
                ..tcp.clone()
            };
            let packets = [tcp, second].map(|tcp| {
                let mut packet = from_device(&tcp, 2000, 1000);
                packet.offload.repeats_cwr = repeats_cwr;
                packet
            });
            assert_eq!(show(&poll(&mut new_gro(), packets)), shown);
        }
    }
}

/// Super-segments with more segments than the counter can express are not coalesced, but are passed
/// on.
#[test]
fn a_super_segment_of_too_many_segments_passes_unmerged() {
    for (flags, len, merged) in [(ACK, 65_534, 1), (ACK, 65_536, 0), (ACK | CWR, 65_536, 0)] {
        let tcp = TestPacket {
            flags,
            ..TestPacket::v6()
        };
        let next = TestPacket {
            seq: tcp.seq + len as u32,
            payload: vec![7],
            ..tcp.clone()
        };
        // Its length field is 0.
        let mut first = from_device(&tcp, len, 1).to_bytes();
        first[4..6].fill(0);
        let mut first = Packet::from_frame(Slice::copied_from(&first));
        first.offload.gso_size = 1;
        first.offload.checksum = Checksum::Partial;
        let mut gro = gro_with_max_size(300_000);
        let out = poll(&mut gro, [first, next.packet()]);
        assert_eq!(gro.stats().merged, merged, "{len} {flags:#x}");
        assert_eq!(out[0].offload.gso_segs, 65_535);
    }
}

#[test]
fn batches_within_a_poll_are_merged() {
    for tcp in both_ip_versions() {
        let run = tcp.run(6, 1000);
        let (mut gro, mut out) = (new_gro(), Vec::new());
        for part in [&run[..1], &run[1..4], &run[4..]] {
            let mut packets: Vec<_> = part.iter().map(TestPacket::packet).collect();
            gro.receive_batch(Instant::ZERO, &mut packets);
            assert!(packets.is_empty());
        }
        gro.receive(
            Instant::ZERO,
            TestPacket {
                port: 9,
                ..tcp.clone()
            }
            .packet(),
        );
        gro.receive(
            Instant::ZERO,
            TestPacket {
                port: 8,
                ..tcp.clone()
            }
            .packet(),
        );
        assert_eq!(gro.stats().received, 8);
        gro.flush(&mut out);
        assert_eq!(show(&out), "6000/1000*6 1000 1000");
        // Packets that are in the list already stay at its front.
        gro.receive(Instant::ZERO, TestPacket { port: 7, ..tcp }.packet());
        gro.flush(&mut out);
        assert_eq!(show(&out), "6000/1000*6 1000 1000 1000");
    }
}
