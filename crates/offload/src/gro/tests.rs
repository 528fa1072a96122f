//! One test per rule, which compares the packets out with the packets in.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write as _;

use fullsend_wire::Instant;

use super::{Gro, GroConfig};
use crate::testing::{
    ACK, CWR, ECE, FIN, OuterHeaders, PSH, RST, SYN, TUNNELS, TestPacket, TunnelKind, URG, payload,
};
use crate::{Checksum, Encap, GsoKind, Link, Offload, Packet, segment};

mod acc_ecn;
mod bits;
mod datagrams;
mod limits;
mod prediction;
mod roundtrip;
mod rules;
mod tunnels;

fn new_gro() -> Gro {
    gro_with_max_size(65_536)
}

fn gro_with_max_size(max_size: u32) -> Gro {
    Gro::new(GroConfig {
        link: Link::Ip,
        enabled: true,
        max_size,
        tunnels: TUNNELS,
    })
}

/// Returns the packets that one device poll delivers.
fn poll(gro: &mut Gro, packets: impl IntoIterator<Item = Packet>) -> Vec<Packet> {
    let mut out = Vec::new();
    for packet in packets {
        gro.receive(Instant::ZERO, packet);
    }
    gro.flush(&mut out);
    out
}

/// Returns the packets that one poll delivers for these frames, as one line: `len` for a packet,
/// `len/size*segs` for a super-segment, followed by flags other than ACK.
fn trace(packets: &[TestPacket]) -> String {
    show(&poll(
        &mut new_gro(),
        packets.iter().map(TestPacket::packet),
    ))
}

fn show(out: &[Packet]) -> String {
    let one = |packet: &Packet| {
        let mut line = alloc::format!("{}", packet.payload.len());
        if packet.segments() > 1 {
            let Offload {
                gso_size, gso_segs, ..
            } = packet.offload;
            let _ = write!(line, "/{gso_size}*{gso_segs}");
        }
        let flags = u16::from(*packet.transport_header().get(13).unwrap_or(&0));
        for (flag, letter) in [(FIN, 'F'), (SYN, 'S'), (RST, 'R'), (PSH, 'P'), (URG, 'U')] {
            if flags & flag != 0 {
                line.push(letter);
            }
        }
        line
    };
    let lines: Vec<_> = out.iter().map(one).collect();
    lines.join(" ")
}

/// Returns one packet of each IP version.
fn both_ip_versions() -> [TestPacket; 2] {
    [TestPacket::default(), TestPacket::v6()]
}

/// Returns one packet of every header shape: each rule applies with and without extension headers
/// and tunnels.
fn shapes() -> Vec<TestPacket> {
    let with_options = TestPacket {
        extensions: vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        ..TestPacket::v6()
    };
    let mut all = vec![TestPacket::default(), TestPacket::v6(), with_options];
    for kind in TunnelKind::COALESCED {
        for (outer_v6, summed) in [(false, false), (true, false), (false, true), (true, true)] {
            for inner in both_ip_versions() {
                let mut outer = OuterHeaders::new(kind, outer_v6);
                outer.summed = summed;
                all.push(TestPacket {
                    outer: Some(outer),
                    ..inner
                });
            }
        }
    }
    all
}

fn in_vxlan() -> TestPacket {
    TestPacket {
        outer: Some(OuterHeaders::new(TunnelKind::Vxlan, false)),
        ..TestPacket::default()
    }
}

/// Returns the length of a shape's headers, in bytes.
fn header_len(shape: &TestPacket) -> usize {
    shape.frame().len() - shape.payload.len()
}

#[test]
fn a_batch_equals_its_packets_one_by_one() {
    for tcp in both_ip_versions() {
        let data = tcp.run(3, 1000);
        let with = |flags: u16| TestPacket {
            flags: ACK | flags,
            ..tcp.clone()
        };
        let alone = [with(PSH), with(FIN), with(RST), with(SYN)];
        let mixes: [&[TestPacket]; 5] = [
            &[],
            &alone,
            &data,
            &[&alone[..], &data].concat(),
            &[&data[..1], &alone, &data[1..], &alone[..1]].concat(),
        ];
        for mix in mixes {
            let (mut gro, mut out) = (new_gro(), Vec::new());
            let mut packets: Vec<_> = mix.iter().map(TestPacket::packet).collect();
            gro.receive_batch(Instant::ZERO, &mut packets);
            gro.flush(&mut out);
            assert!(packets.is_empty());
            assert_eq!(gro.stats().received, mix.len() as u64);
            assert_eq!(show(&out), trace(mix));
            let checked = |p: &Packet| p.offload.checksum != Checksum::Unverified;
            assert!(out.iter().all(checked));
        }
    }
}

/// Returns consecutive packets of a flow with these payload lengths.
fn consecutive(tcp: &TestPacket, lens: &[usize]) -> Vec<TestPacket> {
    let mut seq = tcp.seq;
    let mut run = tcp.run(lens.len(), 0);
    for (packet, len) in run.iter_mut().zip(lens) {
        packet.seq = seq;
        packet.payload = payload(seq, *len);
        seq = seq.wrapping_add(*len as u32);
    }
    run
}

/// Returns what a poll delivers for three consecutive packets of which the second is changed.
fn with_second(tcp: &TestPacket, change: impl Fn(&mut TestPacket)) -> String {
    let mut run = tcp.run(3, 1000);
    change(&mut run[1]);
    trace(&run)
}

/// Asserts that segmentation of the delivered packets restores the frames in the order of their
/// flow.
fn assert_restored(out: &[Packet], frames: &[TestPacket], shape: &TestPacket) {
    let mut segmented = Vec::new();
    for packet in out {
        segment(packet.clone(), &mut segmented);
    }
    let segmented: Vec<_> = segmented.iter().map(Packet::to_bytes).collect();
    let frames: Vec<_> = frames.iter().map(TestPacket::frame).collect();
    assert!(segmented == frames, "{shape:?}");
}
