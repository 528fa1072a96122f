//! Tests of every header bit: one or two bits of a packet are changed, with the checksums unchanged
//! or corrected.
//!
//! Prediction must decide as the parser does, and segmentation must restore the packets.

use super::*;
use crate::Slice;

fn inside(kind: TunnelKind, outer_v6: bool, summed: bool, tcp: TestPacket) -> TestPacket {
    TestPacket {
        outer: Some(OuterHeaders {
            summed,
            ..OuterHeaders::new(kind, outer_v6)
        }),
        ..tcp
    }
}

fn extended() -> TestPacket {
    TestPacket {
        extensions: vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        ..TestPacket::v6()
    }
}

/// Three GROs: one predicts, one parses each packet, and one does not coalesce.
struct GroVariants([Gro; 3]);

impl GroVariants {
    fn new(link: Link) -> Self {
        let variant = |enabled| {
            Gro::new(GroConfig {
                link,
                enabled,
                max_size: 65_536,
                tunnels: TUNNELS,
            })
        };
        Self([true, true, false].map(variant))
    }

    /// Returns what each GRO delivers. Prediction does not apply to packets with a `gso_size`,
    /// although here each of them is a single packet.
    fn poll(&mut self, frames: &[Vec<u8>]) -> [Vec<Packet>; 3] {
        let mut poll_one = |variant: usize, gso_size| {
            let packets = frames.iter().map(|frame| {
                let mut packet = Packet::from_frame(Slice::copied_from(frame));
                packet.offload.gso_size = gso_size;
                packet
            });
            poll(&mut self.0[variant], packets)
        };
        [poll_one(0, 0), poll_one(1, u16::MAX), poll_one(2, 0)]
    }
}

fn segmented(packets: Vec<Packet>) -> Vec<Vec<u8>> {
    let mut segmented = Vec::new();
    for packet in packets {
        segment(packet, &mut segmented);
    }
    let mut frames: Vec<_> = segmented.iter().map(Packet::to_bytes).collect();
    frames.sort_unstable();
    frames
}

/// Tests three consecutive packets of which the second has the bits `mask` changed in these bytes.
fn check(
    shape: &TestPacket,
    variants: &mut GroVariants,
    run: &[Vec<u8>],
    bytes: &[usize],
    mask: u8,
) {
    for right in [false, true] {
        let mut frames = run.to_vec();
        for at in bytes {
            frames[1][*at] ^= mask;
        }
        if right {
            shape.fix_checksums(&mut frames[1]);
        }
        let what = || alloc::format!("{bytes:?} {mask:#x} right {right} {shape:?}");
        let [predicted, walked, apart] = variants.poll(&frames);
        let known = |p: &Packet| (p.to_bytes(), p.layers, p.segments(), p.offload.checksum);
        let both = [&predicted, &walked].map(|out| out.iter().map(known).collect::<Vec<_>>());
        assert!(both[0] == both[1], "{}", what());
        let counted = |variant: usize| {
            let stats = variants.0[variant].stats();
            (stats.merged, stats.malformed, stats.bad_checksum)
        };
        assert_eq!(counted(0), counted(1), "{}", what());
        // If nothing was coalesced, both are the same packets.
        if predicted.len() < apart.len() {
            assert!(segmented(predicted) == segmented(apart), "{}", what());
        }
    }
}

/// Changes each bit of the headers, and pairs of the same bit in two bytes, whose changes must not
/// cancel each other out.
fn check_all(shapes: &[TestPacket]) {
    for shape in shapes {
        let mut variants = GroVariants::new(shape.link);
        let run: Vec<_> = shape.run(3, 30).iter().map(TestPacket::frame).collect();
        let header_len = run[1].len() - 30;
        for at in 0..header_len {
            for bit in 0..8 {
                check(shape, &mut variants, &run, &[at], 1 << bit);
            }
            for other in [4, 8, 16].map(|distance| at + distance) {
                if other < header_len {
                    check(shape, &mut variants, &run, &[at, other], 1 << (at % 8));
                }
            }
        }
    }
}

#[test]
fn every_bit_of_a_tcp_header_is_compared() {
    let options = |len: u8, tcp: TestPacket| TestPacket {
        options: (0..len).collect(),
        ..tcp
    };
    let tagged = TestPacket {
        link: Link::Ethernet,
        vlan: Some(5),
        ..TestPacket::v6()
    };
    let [v4, v6] = both_ip_versions();
    let long = options(36, v6.clone());
    check_all(&[v4.clone(), v6, extended(), tagged, long]);
    check_all(&[options(20, v4), options(8, extended())]);
}

#[test]
fn every_bit_of_a_udp_header_is_compared() {
    let [v4, v6] = both_ip_versions();
    let udp = |tcp| TestPacket { udp: true, ..tcp };
    check_all(&[v4, v6, extended()].map(udp));
}

#[test]
fn every_bit_of_an_ip_tunnel_header_is_compared() {
    let [v4, v6] = both_ip_versions();
    check_all(&[
        inside(TunnelKind::Ip, false, false, v6),
        inside(TunnelKind::Ip, true, false, extended()),
        inside(TunnelKind::GreKey, false, false, v4.clone()),
        inside(TunnelKind::GreEthernet, true, false, v4),
    ]);
}

#[test]
fn every_bit_of_a_udp_tunnel_header_is_compared() {
    let [v4, v6] = both_ip_versions();
    let udp = |tcp| TestPacket { udp: true, ..tcp };
    check_all(&[
        inside(TunnelKind::Fou, false, true, v4.clone()),
        inside(TunnelKind::Gue, true, true, v4.clone()),
        inside(TunnelKind::Vxlan, false, false, v6.clone()),
        inside(TunnelKind::Vxlan, false, true, udp(v4)),
        inside(TunnelKind::Geneve, true, true, v6),
    ]);
}
