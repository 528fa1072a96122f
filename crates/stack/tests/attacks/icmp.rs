//! ICMP errors about packets that the attacker has not observed (RFC 5927).

use std::net::{IpAddr, SocketAddr};

use fullsend_offload::{Packet, Slice};
use fullsend_stack::Host;
use fullsend_wire::SeqNum;
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::numbers::protocol;

use crate::attack_bench::{AttackBench, FlowDirection};
use crate::common::{Net, V4, V6, forge};

const BOUND: isize = 2 << 20;

/// Returns the error of a router at `from` about the segment of `direction` at `seq`: "too big" with
/// `mtu`, or "unreachable" with this code.
fn error(
    from: SocketAddr,
    direction: &FlowDirection,
    seq: SeqNum,
    mtu: Option<u32>,
    code: u8,
) -> Packet {
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&direction.from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&direction.to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.raw().to_be_bytes());
    tcp[12] = 0x50;
    let quote = forge::ip_bytes(direction.from.ip(), direction.to.ip(), protocol::TCP, &tcp);
    error_about(from, direction, &quote, mtu, code)
}

/// Returns the error of a router at `from` about any packet of the sender of `direction`.
fn error_about(
    from: SocketAddr,
    direction: &FlowDirection,
    quote: &[u8],
    mtu: Option<u32>,
    code: u8,
) -> Packet {
    match (from.ip(), direction.from.ip()) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let repr = match mtu {
                Some(mtu) => Icmpv6Repr::PacketTooBig { mtu, quote },
                None => Icmpv6Repr::Unreachable { code, quote },
            };
            let mut bytes = vec![0; repr.len()];
            repr.emit(src, dst, &mut bytes);
            forge::ip(src.into(), dst.into(), protocol::ICMPV6, &bytes)
        }
        (src, dst) => {
            let repr = Icmpv4Repr::Unreachable {
                code: if mtu.is_some() { 4 } else { code },
                mtu: mtu.unwrap_or(0) as u16,
                quote,
            };
            let mut bytes = vec![0; repr.len()];
            repr.emit(&mut bytes);
            forge::ip(src, dst, protocol::ICMP, &bytes)
        }
    }
}

fn out_of_window(attack_bench: &AttackBench) -> u64 {
    let name = "TcpExtOutOfWindowIcmps";
    (0..2)
        .map(|host| attack_bench.net.counter(host, name))
        .sum()
}

#[test]
fn unreachables_about_any_segment() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let from = attacker.random_source(direction.from.is_ipv4());
        let seq = attacker.seq();
        let code = attacker.rng.below(5) as u8;
        (direction.host, error(from, &direction, seq, None, code))
    });
    assert!(out_of_window(&attack_bench) > 0);
}

#[test]
fn unreachables_about_segments_in_flight() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let from = attacker.random_source(direction.from.is_ipv4());
        // The code of "port unreachable".
        let code = if direction.from.is_ipv4() { 3 } else { 4 };
        (
            direction.host,
            error(from, &direction, direction.repr.seq, None, code),
        )
    });
}

#[test]
fn too_big_with_tiny_mtu_about_any_segment() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let from = attacker.random_source(direction.from.is_ipv4());
        let (seq, mtu) = (attacker.seq(), 1 + attacker.rng.below(1500) as u32);
        (direction.host, error(from, &direction, seq, Some(mtu), 0))
    });
}

/// Even an attacker who observes the segments cannot make them small while they arrive.
#[test]
fn too_big_with_tiny_mtu_about_segments_in_flight() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let from = attacker.random_source(direction.from.is_ipv4());
        let mtu = 1499 - (attacker.number as u32 / 10) % 1400;
        (
            direction.host,
            error(from, &direction, direction.repr.seq, Some(mtu), 0),
        )
    });
    for mss in attack_bench.segment_sizes() {
        assert!(mss > 1400, "{mss}");
    }
}

/// Datagrams have no sequence number to guess, only a port: a claim about them does not affect TCP,
/// nor datagrams to destinations that none was sent to.
#[test]
fn too_big_with_tiny_mtu_about_datagrams() {
    let mut attack_bench = AttackBench::new();
    let bind = |host: &mut Host| host.udp_bind("[::]:53".parse().unwrap()).unwrap();
    let sockets = [0, 1].map(|n| bind(&mut attack_bench.net.hosts[n]));
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let from = attacker.random_source(direction.from.is_ipv4());
        let port = attacker.rng.next_u32() as u16;
        let mut datagram = [0, 53, 0, 0, 0x05, 0xa0, 0, 0];
        datagram[2..4].copy_from_slice(&port.to_be_bytes());
        let quote = forge::ip_bytes(
            direction.from.ip(),
            direction.to.ip(),
            protocol::UDP,
            &datagram,
        );
        let mtu = 1 + attacker.rng.below(1500) as u32;
        (
            direction.host,
            error_about(from, &direction, &quote, Some(mtu), 0),
        )
    });
    for mss in attack_bench.segment_sizes() {
        assert!(mss > 1400, "{mss}");
    }
    // A datagram of 1400 bytes is still sent in one packet.
    for (host, socket) in sockets.into_iter().enumerate() {
        for to in [V4[1 - host], V6[1 - host]] {
            let to = SocketAddr::new(to.parse().unwrap(), 9);
            let counters = |net: &Net| {
                let names = ["IpFragCreates", "Ip6FragCreates"];
                let sent = ["UdpOutDatagrams", "Udp6OutDatagrams"];
                let sum = |names: [&str; 2]| names.map(|n| net.counter(host, n)).iter().sum();
                (sum(names), sum(sent))
            };
            let (fragments, sent): (u64, u64) = counters(&attack_bench.net);
            let (now, data) = (attack_bench.net.now, Slice::copied_from(&[7; 1400]));
            let result = attack_bench.net.hosts[host]
                .udp(socket)
                .send_to(now, data, to, None);
            assert_eq!(result, Ok(()));
            assert_eq!(counters(&attack_bench.net), (fragments, sent + 1), "{to}");
        }
    }
}
