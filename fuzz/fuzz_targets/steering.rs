//! Steers arbitrary IP packets, also in Ethernet frames with tags, to the shards of a stack: no panic,
//! an existing shard, the same one however the packet is divided into slices, and that of its flow if
//! the packet parser finds a TCP segment.
#![no_main]

use arbitrary::Arbitrary;
use fullsend_offload::{Chain, Link, Packet, Slice};
use fullsend_stack::Steering;
use fullsend_wire::Seed;
use fullsend_wire::numbers::{ethertype, protocol};
use libfuzzer_sys::fuzz_target;
use std::net::{IpAddr, SocketAddr};

const SHARDS: usize = 5;

#[derive(Arbitrary, Debug)]
struct Input {
    bytes: Vec<u8>,
    /// Makes the packet plausible: IPv4 or IPv6 with TCP or ICMP.
    kind: u8,
    split: u16,
}

fn plausible(input: &Input) -> Vec<u8> {
    let mut bytes = input.bytes.clone();
    let (first, at, numbers) = match input.kind % 3 {
        0 => (0x45, 9, [protocol::TCP, protocol::ICMP]),
        1 => (0x60, 6, [protocol::TCP, protocol::ICMPV6]),
        _ => return bytes,
    };
    if bytes.len() > at {
        bytes[0] = first;
        bytes[at] = numbers[usize::from(input.kind / 128)];
    }
    bytes
}

/// Returns the ends of a TCP segment without IPv6 extension headers.
fn segment_ends(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let mut packet = Packet::from_frame(Slice::copied_from(bytes));
    packet.parse(Link::Ip).ok()?;
    if packet.layers.protocol != protocol::TCP || packet.layers.fragment {
        return None;
    }
    let (header, ports) = (packet.network_header(), packet.transport_header());
    let ends: [IpAddr; 2] = if packet.layers.ethertype == ethertype::IPV4 {
        let (src, dst) = header.get(12..20)?.split_at(4);
        [src, dst].map(|octets| <[u8; 4]>::try_from(octets).unwrap().into())
    } else if header[6] == protocol::TCP {
        let (src, dst) = header.get(8..40)?.split_at(16);
        [src, dst].map(|octets| <[u8; 16]>::try_from(octets).unwrap().into())
    } else {
        return None;
    };
    // A mapped address in an IPv6 header is another address than the IPv4 one; both are dropped.
    if ends.iter().any(|ip| ip.to_canonical() != *ip) {
        return None;
    }
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    Some((
        SocketAddr::new(ends[0], port(0)),
        SocketAddr::new(ends[1], port(2)),
    ))
}

/// Steers the packet in an Ethernet frame, and any bytes as one.
fn check_frame(steering: &Steering, input: &Input, packet: &[u8], target: usize) {
    let of = |bytes: &[u8]| {
        let frame = Packet::from_frame(Slice::copied_from(bytes));
        steering.target(Link::Ethernet, &frame)
    };
    assert!(of(&input.bytes) < SHARDS);
    let ethertype: &[u8] = match packet.first() {
        Some(first) if first >> 4 == 6 => &[0x86, 0xdd],
        _ => &[8, 0],
    };
    let tag: &[u8] = if input.split & 1 != 0 {
        &[0x81, 0, 0xe0, 0]
    } else {
        &[]
    };
    let frame = [&[2; 12], tag, ethertype, packet].concat();
    // Both inspect the same number of bytes, here of a frame.
    if packet.len() < 490 {
        assert_eq!(of(&frame), target);
    }
}

fuzz_target!(|input: Input| {
    let steering = Steering::new(Seed::from_u64(1), SHARDS);
    let bytes = plausible(&input);
    let target = steering.target(Link::Ip, &Packet::from_frame(Slice::copied_from(&bytes)));
    assert!(target < SHARDS);
    check_frame(&steering, &input, &bytes, target);
    let split = usize::from(input.split) % (bytes.len() + 1);
    let mut chain = Chain::from(Slice::copied_from(&bytes[..split]));
    chain.push(Slice::copied_from(&bytes[split..]));
    assert_eq!(
        steering.target(Link::Ip, &Packet::from_frame(chain)),
        target
    );
    if let Some((src, dst)) = segment_ends(&bytes) {
        assert_eq!(target, steering.flow_shard(src, dst));
    }
});
