//! Attacks below TCP: fragments that are never complete, datagrams and segments without a socket,
//! and garbage.

use std::net::SocketAddr;

use fullsend_offload::{Packet, Slice};
use fullsend_wire::ipv4::Ipv4Repr;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use crate::attack_bench::{AttackBench, Attacker, packets};
use crate::common::{V4, V6, forge};

/// Reassembly holds 4 MiB (`ipfrag_high_thresh`), and the table of its packets.
const REASSEMBLY: isize = (4 << 20) + (2 << 20);
const BOUND: isize = 2 << 20;

fn fragment(attacker: &mut Attacker<'_>, from: SocketAddr) -> Packet {
    let SocketAddr::V4(from) = from else {
        unreachable!("IPv4")
    };
    let offset_units = attacker.rng.below(8000) as u16;
    let len = 8 * (1 + attacker.rng.below(180) as usize);
    let to = V4[1].parse().unwrap();
    let repr = Ipv4Repr {
        ident: attacker.rng.next_u32() as u16,
        dont_fragment: false,
        more_fragments: attacker.rng.chance(0.9),
        fragment_offset: offset_units * 8,
        ..Ipv4Repr::new(*from.ip(), to, protocol::UDP, len as u16)
    };
    let mut bytes = vec![0xee; 20 + len];
    repr.emit(&mut bytes);
    Packet::from_frame(Slice::copied_from(&bytes))
}

#[test]
fn fragments_from_random_sources() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(REASSEMBLY, |attacker| {
        let from = attacker.random_source(true);
        (1, fragment(attacker, from))
    });
    assert!(attack_bench.net.counter(1, "IpReasmFails") > packets() as u64 / 2);
}

#[test]
fn fragments_from_one_host() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(REASSEMBLY, |attacker| {
        let from = "11.1.1.1:1".parse().unwrap();
        (1, fragment(attacker, from))
    });
}

fn per_second(rate: u64) -> u64 {
    rate * (AttackBench::span().as_millis() / 1000 + 1)
}

#[test]
fn datagrams_to_closed_ports() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let v4 = attacker.rng.chance(0.5);
        let from = attacker.random_source(v4);
        let to = if v4 { V4[1] } else { V6[1] };
        let mut datagram = [0, 9, 0, 9, 0, 8, 0, 0];
        if !v4 {
            // Without a checksum, IPv6 must drop it; the other half of the packets suffices.
            datagram[6] = 1;
        }
        let to = to.parse().unwrap();
        (1, forge::ip(from.ip(), to, protocol::UDP, &datagram))
    });
    let errors = attack_bench.net.counter(1, "IcmpOutDestUnreachs");
    assert!(errors > 0 && errors <= per_second(1500), "{errors}");
}

#[test]
fn segments_of_no_connection() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let v4 = attacker.rng.chance(0.5);
        let from = attacker.random_source(v4);
        let ip = if v4 { V4[1] } else { V6[1] };
        let to = SocketAddr::new(ip.parse().unwrap(), attacker.rng.next_u32() as u16);
        let repr = TcpRepr {
            flags: TcpFlags(attacker.rng.below(0x200) as u16),
            seq: attacker.seq(),
            ack: attacker.seq(),
            ..TcpRepr::default()
        };
        (1, forge::tcp(from, to, repr, b"hello"))
    });
    let resets = attack_bench.net.counter(1, "TcpOutRsts");
    assert!(resets > 0 && resets <= per_second(15_000), "{resets}");
}

#[test]
fn random_bytes() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let len = attacker.rng.below(200) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| attacker.rng.next_u32() as u8).collect();
        if let Some(first) = bytes.first_mut() {
            *first = if *first & 1 == 0 { 0x45 } else { 0x60 };
        }
        (1, Packet::from_frame(Slice::copied_from(&bytes)))
    });
}
