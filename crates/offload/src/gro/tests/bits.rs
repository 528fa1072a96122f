//! Tests of every header bit: one or two bits of a packet are changed, with the checksums unchanged
//! or corrected.
//!
//! Prediction must decide as the parser does, and segmentation must restore the packets.

use fullsend_buf::Slice;

use super::*;

fn inside(kind: Kind, outer_v6: bool, summed: bool, tcp: Tcp) -> Tcp {
    Tcp {
        outer: Some(Outer {
            summed,
            ..Outer::new(kind, outer_v6)
        }),
        ..tcp
    }
}

fn extended() -> Tcp {
    Tcp {
        extensions: vec![(60, vec![0, 1, 4, 0, 0, 0, 0])],
        ..Tcp::v6()
    }
}

/// Three GROs: one predicts, one parses each packet, and one does not coalesce.
struct Engines([Gro; 3]);

impl Engines {
    fn new(link: Link) -> Self {
        let engine = |enabled| {
            Gro::new(GroConfig {
                link,
                enabled,
                max_size: 65_536,
                tunnels: TUNNELS,
            })
        };
        Self([true, true, false].map(engine))
    }

    /// Returns what each GRO delivers. Prediction does not apply to packets with a `gso_size`,
    /// although here each of them is a single packet.
    fn poll(&mut self, frames: &[Vec<u8>]) -> [Vec<Packet>; 3] {
        let mut poll_one = |engine: usize, gso_size| {
            let packets = frames.iter().map(|frame| {
                let mut packet = Packet::from_frame(Slice::copied_from(frame));
                packet.offload.gso_size = gso_size;
                packet
            });
            poll(&mut self.0[engine], packets)
        };
        [poll_one(0, 0), poll_one(1, u16::MAX), poll_one(2, 0)]
    }
}

fn cut(packets: Vec<Packet>) -> Vec<Vec<u8>> {
    let mut cut = Vec::new();
    for packet in packets {
        segment(packet, &mut cut);
    }
    let mut frames: Vec<_> = cut.iter().map(Packet::to_bytes).collect();
    frames.sort_unstable();
    frames
}

/// Tests three consecutive packets of which the second has the bits `mask` changed in these bytes.
fn check(shape: &Tcp, engines: &mut Engines, run: &[Vec<u8>], bytes: &[usize], mask: u8) {
    for right in [false, true] {
        let mut frames = run.to_vec();
        for at in bytes {
            frames[1][*at] ^= mask;
        }
        if right {
            shape.resum(&mut frames[1]);
        }
        let what = || alloc::format!("{bytes:?} {mask:#x} right {right} {shape:?}");
        let [predicted, walked, apart] = engines.poll(&frames);
        let known = |p: &Packet| (p.to_bytes(), p.layers, p.segments(), p.offload.checksum);
        let both = [&predicted, &walked].map(|out| out.iter().map(known).collect::<Vec<_>>());
        assert!(both[0] == both[1], "{}", what());
        let counted = |engine: usize| {
            let stats = engines.0[engine].stats();
            (stats.merged, stats.malformed, stats.bad_checksum)
        };
        assert_eq!(counted(0), counted(1), "{}", what());
        // If nothing was coalesced, both are the same packets.
        if predicted.len() < apart.len() {
            assert!(cut(predicted) == cut(apart), "{}", what());
        }
    }
}

/// Changes each bit of the headers, and pairs of the same bit in two bytes, whose changes must not
/// cancel each other out.
fn check_all(shapes: &[Tcp]) {
    for shape in shapes {
        let mut engines = Engines::new(shape.link);
        let run: Vec<_> = shape.run(3, 30).iter().map(Tcp::frame).collect();
        let header_len = run[1].len() - 30;
        for at in 0..header_len {
            for bit in 0..8 {
                check(shape, &mut engines, &run, &[at], 1 << bit);
            }
            for other in [4, 8, 16].map(|distance| at + distance) {
                if other < header_len {
                    check(shape, &mut engines, &run, &[at, other], 1 << (at % 8));
                }
            }
        }
    }
}

#[test]
fn every_bit_of_a_tcp_header_counts() {
    let options = |len: u8, tcp: Tcp| Tcp {
        options: (0..len).collect(),
        ..tcp
    };
    let tagged = Tcp {
        link: Link::Ethernet,
        vlan: Some(5),
        ..Tcp::v6()
    };
    let [v4, v6] = both();
    let long = options(36, v6.clone());
    check_all(&[v4.clone(), v6, extended(), tagged, long]);
    check_all(&[options(20, v4), options(8, extended())]);
}

#[test]
fn every_bit_of_a_datagram_header_counts() {
    let [v4, v6] = both();
    let udp = |tcp| Tcp { udp: true, ..tcp };
    check_all(&[v4, v6, extended()].map(udp));
}

#[test]
fn every_bit_of_a_tunnel_in_ip_counts() {
    let [v4, v6] = both();
    check_all(&[
        inside(Kind::Ip, false, false, v6),
        inside(Kind::Ip, true, false, extended()),
        inside(Kind::GreKey, false, false, v4.clone()),
        inside(Kind::GreEthernet, true, false, v4),
    ]);
}

#[test]
fn every_bit_of_a_tunnel_in_udp_counts() {
    let [v4, v6] = both();
    let udp = |tcp| Tcp { udp: true, ..tcp };
    check_all(&[
        inside(Kind::Fou, false, true, v4.clone()),
        inside(Kind::Gue, true, true, v4.clone()),
        inside(Kind::Vxlan, false, false, v6.clone()),
        inside(Kind::Vxlan, false, true, udp(v4)),
        inside(Kind::Geneve, true, true, v6),
    ]);
}
