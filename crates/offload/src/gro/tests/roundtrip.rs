//! Property tests of the invariant that segmentation restores the packets that were coalesced.

use proptest::prelude::*;

use super::*;
use crate::Slice;

/// Number of flows, of every shape.
const FLOWS: usize = 9;

/// A packet of one of a few flows, which mostly continues the previous one of its flow.
#[derive(Clone, Debug)]
struct PacketSpec {
    flow: usize,
    len: usize,
    /// The change to make to the packet.
    change: u8,
}

fn specs() -> impl Strategy<Value = Vec<PacketSpec>> {
    let len = prop_oneof![4 => Just(1000usize), 1 => 0..1500usize, 1 => Just(200usize)];
    let one =
        (0..FLOWS, len, 0..50u8).prop_map(|(flow, len, change)| PacketSpec { flow, len, change });
    prop::collection::vec(one, 0..60)
}

/// Returns the flows' packets in the order of the moves.
fn packets(specs: &[PacketSpec]) -> Vec<TestPacket> {
    let around = |kind, v6, summed, tcp| TestPacket {
        outer: Some(OuterHeaders {
            summed,
            ..OuterHeaders::new(kind, v6)
        }),
        ..tcp
    };
    let datagrams = TestPacket {
        udp: true,
        ..TestPacket::v6()
    };
    let late = TestPacket {
        ip_id: 0xfffd,
        seq: u32::MAX - 3000,
        ..TestPacket::default()
    };
    let with_options = TestPacket {
        extensions: vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        ..TestPacket::v6()
    };
    let mut flows: [TestPacket; FLOWS] = [
        TestPacket::default(),
        TestPacket::v6(),
        late.clone(),
        with_options.clone(),
        around(TunnelKind::Vxlan, false, true, late.clone()),
        around(TunnelKind::Geneve, true, true, with_options),
        around(TunnelKind::Ip, true, false, TestPacket::v6()),
        around(TunnelKind::Fou, true, true, datagrams.clone()),
        datagrams,
    ];
    for (port, flow) in flows.iter_mut().enumerate() {
        flow.port = port as u16;
    }
    let mut out = Vec::new();
    for spec in specs {
        let flow = &mut flows[spec.flow];
        let mut packet = flow.clone();
        match spec.change {
            0 => flow.seq = flow.seq.wrapping_add(100),
            1 => packet.flags |= PSH,
            2 => packet.flags |= FIN,
            3 => packet.flags |= CWR,
            4 => packet.flags |= ECE,
            5 => flow.ack += 1,
            6 => flow.options[7] ^= 1,
            7 => flow.ip_id = flow.ip_id.wrapping_sub(u16::from(!flow.v6)),
            8 => flow.ttl ^= 1,
            9 => packet.break_checksum = true,
            10 => flow.window ^= 1,
            11 => packet.flags |= SYN,
            12 => flow.tos ^= 1,
            13 => flow.outer.iter_mut().for_each(|o| o.ttl ^= 1),
            14 => flow
                .outer
                .iter_mut()
                .for_each(|o| o.ip_id ^= u16::from(!o.v6)),
            15 => packet
                .outer
                .iter_mut()
                .for_each(|o| o.break_checksum = o.summed),
            16 => packet.no_checksum = packet.udp && !packet.v6,
            _ => {}
        }
        packet = TestPacket {
            flags: packet.flags,
            break_checksum: packet.break_checksum,
            no_checksum: packet.no_checksum,
            outer: flow
                .outer
                .clone()
                .zip(packet.outer)
                .map(|(lasting, once)| OuterHeaders {
                    break_checksum: once.break_checksum,
                    ..lasting
                }),
            payload: payload(flow.seq, spec.len),
            ..flow.clone()
        };
        flow.seq = flow.seq.wrapping_add(spec.len as u32);
        flow.ip_id = flow.ip_id.wrapping_add(u16::from(!flow.v6));
        if let Some(outer) = &mut flow.outer {
            outer.ip_id = outer.ip_id.wrapping_add(u16::from(!outer.v6));
        }
        out.push(packet);
    }
    out
}

/// Returns the frames of one flow, which has a port of its own, in order.
fn of_flow<'a>(frames: &'a [Vec<u8>], like: &[u8]) -> Vec<&'a Vec<u8>> {
    let key = |frame: &[u8]| {
        let mut packet = Packet::from_frame(Slice::copied_from(frame));
        packet.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
        packet.transport_header()[..2].to_vec()
    };
    let own = key(like);
    frames.iter().filter(|f| key(f) == own).collect()
}

fn is_bad(packet: &TestPacket) -> bool {
    packet.break_checksum || packet.outer.as_ref().is_some_and(|o| o.break_checksum)
}

fn check(gro: &mut Gro, input: &[TestPacket]) -> Result<(), TestCaseError> {
    let frames: Vec<_> = input.iter().map(TestPacket::frame).collect();
    let mut segmented = Vec::new();
    for packet in poll(gro, input.iter().map(TestPacket::packet)) {
        segment(packet, &mut segmented);
    }
    let segmented: Vec<_> = segmented.iter().map(Packet::to_bytes).collect();
    prop_assert_eq!(segmented.len(), frames.len());
    // A datagram may overtake one with a wrong checksum, which the stack drops later.
    let bad = |frame: &Vec<u8>| {
        input
            .iter()
            .any(|p| p.udp && is_bad(p) && p.frame() == *frame)
    };
    for frame in &frames {
        let [before, after] = [&frames, &segmented].map(|all| {
            let flow = of_flow(all, frame).into_iter();
            flow.filter(|f| !bad(f)).collect::<Vec<_>>()
        });
        prop_assert!(before == after);
    }
    Ok(())
}

proptest! {
    /// Segmentation restores each flow's packets bit by bit and in order.
    #[test]
    fn gso_restores_coalesced_packets(specs in specs()) {
        check(&mut new_gro(), &packets(&specs))?;
    }

    /// A super-segment that is segmented and coalesced again is unchanged.
    #[test]
    fn gro_restores_a_segmented_packet(len in 1001..65_000usize, v6: bool, push: bool, seq: u32) {
        let tcp = TestPacket {
            v6,
            seq,
            ip_id: if v6 { 0 } else { seq as u16 },
            flags: if push { ACK | PSH } else { ACK },
            ..TestPacket::default()
        };
        let mut run = tcp.run(len / 1000, 1000);
        run.extend(TestPacket { seq: seq.wrapping_add((len / 1000 * 1000) as u32), ..tcp.clone() }.run(1, len % 1000));
        let last = run.len() - 1;
        for (i, packet) in run.iter_mut().enumerate() {
            packet.flags = if i == last { tcp.flags } else { ACK };
            packet.ip_id = if v6 { 0 } else { tcp.ip_id.wrapping_add(i as u16) };
        }
        if len % 1000 == 0 {
            run.pop();
            run[last - 1].flags = tcp.flags;
        }
        let mut coalesced = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        prop_assert_eq!(coalesced.len(), 1);
        let whole = coalesced.remove(0);
        let mut segmented = Vec::new();
        segment(whole.clone(), &mut segmented);
        let mut coalesced = poll(&mut new_gro(), segmented);
        prop_assert_eq!(coalesced.len(), 1);
        let again = coalesced.remove(0);
        prop_assert_eq!(again.header, whole.header);
        prop_assert_eq!(again.payload, whole.payload);
        prop_assert_eq!(again.offload, whole.offload);
    }

    #[test]
    fn random_frames_do_not_panic(frames: Vec<Vec<u8>>, flips in prop::collection::vec((0..60usize, any::<u8>()), 0..4)) {
        let mut damaged = TestPacket::default().frame();
        for (at, value) in flips {
            damaged[at] = value;
        }
        let mut gro = new_gro();
        let all = frames.into_iter().chain([damaged]);
        let packets = all.map(|f| Packet::from_frame(Slice::copied_from(&f)));
        for packet in poll(&mut gro, packets) {
            segment(packet, &mut Vec::new());
        }
    }
}
