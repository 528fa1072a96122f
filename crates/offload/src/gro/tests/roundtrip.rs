//! Property tests of the invariant that segmentation restores the packets that were coalesced.

use proptest::prelude::*;

use super::*;

/// Number of flows, of every shape.
const FLOWS: usize = 9;

/// A packet of one of a few flows, which mostly continues the previous one of its flow.
#[derive(Clone, Debug)]
struct Move {
    flow: usize,
    len: usize,
    /// The change to make to the packet.
    quirk: u8,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let len = prop_oneof![4 => Just(1000usize), 1 => 0..1500usize, 1 => Just(200usize)];
    let one = (0..FLOWS, len, 0..50u8).prop_map(|(flow, len, quirk)| Move { flow, len, quirk });
    prop::collection::vec(one, 0..60)
}

/// Returns the flows' packets in the order of the moves.
fn packets(moves: &[Move]) -> Vec<Tcp> {
    let around = |kind, v6, summed, tcp| Tcp {
        outer: Some(Outer {
            summed,
            ..Outer::new(kind, v6)
        }),
        ..tcp
    };
    let datagrams = Tcp {
        udp: true,
        ..Tcp::v6()
    };
    let late = Tcp {
        ip_id: 0xfffd,
        seq: u32::MAX - 3000,
        ..Tcp::default()
    };
    let with_options = Tcp {
        extensions: vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        ..Tcp::v6()
    };
    let mut flows: [Tcp; FLOWS] = [
        Tcp::default(),
        Tcp::v6(),
        late.clone(),
        with_options.clone(),
        around(Kind::Vxlan, false, true, late.clone()),
        around(Kind::Geneve, true, true, with_options),
        around(Kind::Ip, true, false, Tcp::v6()),
        around(Kind::Fou, true, true, datagrams.clone()),
        datagrams,
    ];
    for (port, flow) in flows.iter_mut().enumerate() {
        flow.port = port as u16;
    }
    let mut out = Vec::new();
    for step in moves {
        let flow = &mut flows[step.flow];
        let mut packet = flow.clone();
        match step.quirk {
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
            16 => packet.unsummed = packet.udp && !packet.v6,
            _ => {}
        }
        packet = Tcp {
            flags: packet.flags,
            break_checksum: packet.break_checksum,
            unsummed: packet.unsummed,
            outer: flow
                .outer
                .clone()
                .zip(packet.outer)
                .map(|(lasting, once)| Outer {
                    break_checksum: once.break_checksum,
                    ..lasting
                }),
            payload: payload(flow.seq, step.len),
            ..flow.clone()
        };
        flow.seq = flow.seq.wrapping_add(step.len as u32);
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
        let mut packet = Packet::from_frame(fullsend_buf::Slice::copied_from(frame));
        packet.parse_through(Link::Ip, &TUNNELS).unwrap();
        packet.transport_header()[..2].to_vec()
    };
    let own = key(like);
    frames.iter().filter(|f| key(f) == own).collect()
}

fn is_bad(packet: &Tcp) -> bool {
    packet.break_checksum || packet.outer.as_ref().is_some_and(|o| o.break_checksum)
}

fn check(gro: &mut Gro, input: &[Tcp]) -> Result<(), TestCaseError> {
    let frames: Vec<_> = input.iter().map(Tcp::frame).collect();
    let mut cut = Vec::new();
    for packet in poll(gro, input.iter().map(Tcp::packet)) {
        segment(packet, &mut cut);
    }
    let cut: Vec<_> = cut.iter().map(Packet::to_bytes).collect();
    prop_assert_eq!(cut.len(), frames.len());
    // A datagram may overtake one with a wrong checksum, which the stack drops later.
    let bad = |frame: &Vec<u8>| {
        input
            .iter()
            .any(|p| p.udp && is_bad(p) && p.frame() == *frame)
    };
    for frame in &frames {
        let [before, after] = [&frames, &cut].map(|all| {
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
    fn cutting_undoes_coalescing(moves in moves()) {
        check(&mut engine(), &packets(&moves))?;
    }

    /// A super-segment that is segmented and coalesced again is unchanged.
    #[test]
    fn coalescing_undoes_cutting(len in 1001..65_000usize, v6: bool, push: bool, seq: u32) {
        let tcp = Tcp {
            v6,
            seq,
            ip_id: if v6 { 0 } else { seq as u16 },
            flags: if push { ACK | PSH } else { ACK },
            ..Tcp::default()
        };
        let mut run = tcp.run(len / 1000, 1000);
        run.extend(Tcp { seq: seq.wrapping_add((len / 1000 * 1000) as u32), ..tcp.clone() }.run(1, len % 1000));
        let last = run.len() - 1;
        for (i, packet) in run.iter_mut().enumerate() {
            packet.flags = if i == last { tcp.flags } else { ACK };
            packet.ip_id = if v6 { 0 } else { tcp.ip_id.wrapping_add(i as u16) };
        }
        if len % 1000 == 0 {
            run.pop();
            run[last - 1].flags = tcp.flags;
        }
        let mut joined = poll(&mut engine(), run.iter().map(Tcp::packet));
        prop_assert_eq!(joined.len(), 1);
        let whole = joined.remove(0);
        let mut cut = Vec::new();
        segment(whole.clone(), &mut cut);
        let mut joined = poll(&mut engine(), cut);
        prop_assert_eq!(joined.len(), 1);
        let again = joined.remove(0);
        prop_assert_eq!(again.header, whole.header);
        prop_assert_eq!(again.payload, whole.payload);
        prop_assert_eq!(again.offload, whole.offload);
    }

    #[test]
    fn garbage_does_not_panic(frames: Vec<Vec<u8>>, flips in prop::collection::vec((0..60usize, any::<u8>()), 0..4)) {
        let mut damaged = Tcp::default().frame();
        for (at, value) in flips {
            damaged[at] = value;
        }
        let mut gro = engine();
        let all = frames.into_iter().chain([damaged]);
        let packets = all.map(|f| Packet::from_frame(fullsend_buf::Slice::copied_from(&f)));
        for packet in poll(&mut gro, packets) {
            segment(packet, &mut Vec::new());
        }
    }
}
