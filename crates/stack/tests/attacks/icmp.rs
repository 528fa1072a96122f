//! ICMP errors about packets that the attacker has not observed (RFC 5927).

use std::net::{IpAddr, SocketAddr};

use fullsend_buf::Slice;
use fullsend_offload::Packet;
use fullsend_stack::Host;
use fullsend_units::SeqNum;
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::numbers::protocol;

use crate::common::{Net, V4, V6, forge};
use crate::siege::{Seen, Siege};

const BOUND: isize = 2 << 20;

/// Returns the error of a router at `from` about the segment of `seen` at `seq`: "too big" with
/// `mtu`, or "unreachable" with this code.
fn error(from: SocketAddr, seen: &Seen, seq: SeqNum, mtu: Option<u32>, code: u8) -> Packet {
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&seen.from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&seen.to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.raw().to_be_bytes());
    tcp[12] = 0x50;
    let quote = forge::ip_bytes(seen.from.ip(), seen.to.ip(), protocol::TCP, &tcp);
    error_about(from, seen, &quote, mtu, code)
}

/// Returns the error of a router at `from` about any packet of the sender of `seen`.
fn error_about(from: SocketAddr, seen: &Seen, quote: &[u8], mtu: Option<u32>, code: u8) -> Packet {
    match (from.ip(), seen.from.ip()) {
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

fn out_of_window(siege: &Siege) -> u64 {
    let name = "TcpExtOutOfWindowIcmps";
    (0..2).map(|host| siege.net.counter(host, name)).sum()
}

#[test]
fn unreachables_about_any_segment() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let from = attacker.stranger(seen.from.is_ipv4());
        let seq = attacker.seq();
        let code = attacker.rng.below(5) as u8;
        (seen.host, error(from, &seen, seq, None, code))
    });
    assert!(out_of_window(&siege) > 0);
}

#[test]
fn unreachables_about_what_is_under_way() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let from = attacker.stranger(seen.from.is_ipv4());
        // The code of "port unreachable".
        let code = if seen.from.is_ipv4() { 3 } else { 4 };
        (seen.host, error(from, &seen, seen.repr.seq, None, code))
    });
}

#[test]
fn tiny_paths_claimed_about_any_segment() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let from = attacker.stranger(seen.from.is_ipv4());
        let (seq, mtu) = (attacker.seq(), 1 + attacker.rng.below(1500) as u32);
        (seen.host, error(from, &seen, seq, Some(mtu), 0))
    });
}

/// Even an attacker who observes the segments cannot make them small while they arrive.
#[test]
fn tiny_paths_claimed_about_what_is_under_way() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let from = attacker.stranger(seen.from.is_ipv4());
        let mtu = 1499 - (attacker.number as u32 / 10) % 1400;
        (seen.host, error(from, &seen, seen.repr.seq, Some(mtu), 0))
    });
    for mss in siege.segment_sizes() {
        assert!(mss > 1400, "{mss}");
    }
}

/// Datagrams have no sequence number to guess, only a port: a claim about them does not affect TCP,
/// nor datagrams to destinations that none was sent to.
#[test]
fn tiny_paths_claimed_about_datagrams() {
    let mut siege = Siege::new();
    let bind = |host: &mut Host| host.udp_bind("[::]:53".parse().unwrap()).unwrap();
    let sockets = [0, 1].map(|n| bind(&mut siege.net.hosts[n]));
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let from = attacker.stranger(seen.from.is_ipv4());
        let port = attacker.rng.next_u32() as u16;
        let mut datagram = [0, 53, 0, 0, 0x05, 0xa0, 0, 0];
        datagram[2..4].copy_from_slice(&port.to_be_bytes());
        let quote = forge::ip_bytes(seen.from.ip(), seen.to.ip(), protocol::UDP, &datagram);
        let mtu = 1 + attacker.rng.below(1500) as u32;
        (seen.host, error_about(from, &seen, &quote, Some(mtu), 0))
    });
    for mss in siege.segment_sizes() {
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
            let (fragments, sent): (u64, u64) = counters(&siege.net);
            let (now, data) = (siege.net.now, Slice::copied_from(&[7; 1400]));
            let result = siege.net.hosts[host].udp_send(now, socket, data, to, None);
            assert_eq!(result, Ok(()));
            assert_eq!(counters(&siege.net), (fragments, sent + 1), "{to}");
        }
    }
}
