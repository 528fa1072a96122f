use alloc::vec::Vec;

use super::{FlowHeaders, HASH_BIT, HashKeys, hash};
use crate::testing::{OuterHeaders, TUNNELS, TestPacket, TunnelKind};
use crate::{Link, Packet};

fn parsed(tcp: &TestPacket) -> Packet {
    let mut packet = tcp.packet();
    packet.parse_with_tunnels(Link::Ip, &TUNNELS).unwrap();
    packet
}

/// Returns the offsets of addresses and ports in an IP packet without options or extension headers.
fn key_bytes(v6: bool) -> Vec<usize> {
    let (addresses, ports) = if v6 {
        (8..40, 40..44)
    } else {
        (12..20, 20..24)
    };
    addresses.chain(ports).collect()
}

fn hash_of(frame: &[u8], v6: bool, keys: &HashKeys) -> u32 {
    hash(frame, 0, if v6 { 40 } else { 20 }, keys).unwrap()
}

/// With any seed, every bit of addresses and ports changes the hash, so that no bits can be varied
/// to create collisions.
#[test]
fn every_bit_of_addresses_and_ports_changes_the_hash() {
    for v6 in [false, true] {
        let frame = TestPacket {
            v6,
            ..TestPacket::default()
        }
        .frame();
        for seed in [0, 1, u64::MAX] {
            let keys = HashKeys::new(seed);
            let one = hash_of(&frame, v6, &keys);
            for at in 0..44 {
                for bit in 0..8 {
                    let mut other = frame.clone();
                    other[at] ^= 1 << bit;
                    let counts = key_bytes(v6).contains(&at);
                    // The version byte is excluded: it determines where the addresses are.
                    if at > 0 && (v6 || at < 24) {
                        let moved = hash_of(&other, v6, &keys) != one;
                        assert_eq!(moved, counts, "byte {at} bit {bit} v6 {v6} seed {seed}");
                    }
                }
            }
        }
    }
}

/// Each bit of the hash, except the highest, which is always set, is set for half of the flows.
#[test]
fn hashes_of_many_flows_have_no_pattern() {
    for v6 in [false, true] {
        let mut frame = TestPacket {
            v6,
            ..TestPacket::default()
        }
        .frame();
        let keys = HashKeys::new(0);
        let mut set = [0; 32];
        for host in 0..=255 {
            for port in 0..16 {
                let at = if v6 { 23 } else { 15 };
                frame[at] = host;
                frame[if v6 { 41 } else { 21 }] = port;
                let hash = hash_of(&frame, v6, &keys);
                assert_ne!(hash & HASH_BIT, 0);
                (0..32).for_each(|bit| set[bit] += hash >> bit & 1);
            }
        }
        for (bit, set) in set[..31].iter().enumerate() {
            assert!((1800..2300).contains(set), "bit {bit}: {set} of 4096");
        }
    }
}

#[test]
fn headers_that_end_too_early_have_no_hash() {
    for v6 in [false, true] {
        let frame = TestPacket {
            v6,
            ..TestPacket::default()
        }
        .frame();
        let (keys, ports) = (HashKeys::new(0), if v6 { 40 } else { 20 });
        let of = |len: usize| hash(&frame[..len], 0, ports, &keys);
        assert!(of(ports + 4).is_some());
        assert_eq!(of(ports + 3), None);
        assert_eq!(hash(&frame[..24], 5, 20, &keys), None);
    }
}

/// Layers that do not match the header are rejected, and nothing is read beyond it.
#[test]
fn layers_that_do_not_match_the_headers_give_no_flow() {
    let tunnelled = |kind| TestPacket {
        outer: Some(OuterHeaders::new(kind, true)),
        ..TestPacket::v6()
    };
    let udp = |tcp| TestPacket { udp: true, ..tcp };
    for tcp in [
        TestPacket::default(),
        TestPacket::v6(),
        udp(TestPacket::default()),
        tunnelled(TunnelKind::Ip),
        tunnelled(TunnelKind::Vxlan),
        udp(tunnelled(TunnelKind::Gue)),
    ] {
        let packet = parsed(&tcp);
        let (header, layers) = (&packet.header, packet.layers);
        let least = usize::from(layers.transport) + if tcp.udp { 8 } else { 20 };
        for len in 0..=header.len() {
            let found = FlowHeaders::new(&header[..len], &layers);
            assert_eq!(found.is_some(), len >= least, "{len} bytes of {tcp:?}");
        }
        // The IP header, the outer one, or the inner one is too short.
        let mut short = layers;
        short.transport -= 1;
        let mut wrong = [short; 3];
        if layers.tunnel != 0 {
            wrong[1] = layers;
            wrong[1].tunnel -= 1;
            wrong[2] = layers;
            wrong[2].tunnel = layers.network[1] + 1;
        }
        for layers in wrong {
            assert!(FlowHeaders::new(header, &layers).is_none(), "{layers:?}");
        }
    }
}
