use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use fullsend_offload::{Chain, Link, Packet, Slice};
use fullsend_wire::Seed;
use fullsend_wire::numbers::protocol;
use proptest::prelude::*;

use super::Steering;

const SHARDS: usize = 7;

fn steering() -> Steering {
    Steering::new(Seed::from_u64(1), SHARDS)
}

/// Returns an IP packet. `fragment` is the offset of a fragment, in units of 8 bytes, with more to
/// come.
fn ip(from: IpAddr, to: IpAddr, protocol: u8, fragment: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
            let field = fragment.map_or(0x4000, |offset| offset | 0x2000);
            header[6..8].copy_from_slice(&field.to_be_bytes());
            header.extend(from.octets());
            header.extend(to.octets());
            header
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let next = fragment.map_or(protocol, |_| protocol::FRAGMENT);
            let mut header = vec![0x60, 0, 0, 0, 0, 0, next, 64];
            header.extend(from.octets());
            header.extend(to.octets());
            if let Some(offset) = fragment {
                let [high, low] = (offset << 3 | 1).to_be_bytes();
                header.extend([protocol, 0, high, low, 0, 0, 0, 9]);
            }
            header
        }
        _ => panic!("the families differ"),
    };
    bytes.extend(payload);
    bytes
}

fn segment(from: SocketAddr, to: SocketAddr, fragment: Option<u16>) -> Vec<u8> {
    let mut payload = from.port().to_be_bytes().to_vec();
    payload.extend(to.port().to_be_bytes());
    payload.extend([0; 16]);
    ip(from.ip(), to.ip(), protocol::TCP, fragment, &payload)
}

/// Returns an ICMP message of type `kind` with `quoted` after its header.
fn icmp(kind: u8, from: IpAddr, to: IpAddr, quoted: &[u8]) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0, 0, 0, 0, 0], quoted].concat();
    let number = match from {
        IpAddr::V4(_) => protocol::ICMP,
        IpAddr::V6(_) => protocol::ICMPV6,
    };
    ip(from, to, number, None, &message)
}

/// Returns the target of an IP packet, which is that of Ethernet frames with the packet, too.
fn target(bytes: &[u8]) -> usize {
    let of = |link, bytes: &[u8]| {
        let frame = Packet::from_frame(Slice::copied_from(bytes));
        steering().target(link, &frame)
    };
    let target = of(Link::Ip, bytes);
    let is_v6 = bytes.first().is_some_and(|first| first >> 4 == 6);
    let ethertype = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
    for tags in [
        &[][..],
        &[0x81, 0, 0xe0, 0],
        &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6],
    ] {
        let frame = [&[2; 12], tags, &ethertype, bytes].concat();
        assert_eq!(of(Link::Ethernet, &frame), target, "{tags:x?}");
    }
    target
}

fn addresses() -> [(SocketAddr, SocketAddr); 2] {
    ["10.0.0.2:80 10.0.0.1:40000", "[fd00::2]:80 [fd00::1]:40000"].map(|text| {
        let (ours, peer) = text.split_once(' ').unwrap();
        (ours.parse().unwrap(), peer.parse().unwrap())
    })
}

/// Returns a peer's address whose flow to `ours` does not belong to shard 0.
fn elsewhere(ours: SocketAddr, mut peer: SocketAddr) -> (SocketAddr, usize) {
    loop {
        match steering().flow_shard(ours, peer) {
            0 => peer.set_port(peer.port() + 1),
            shard => return (peer, shard),
        }
    }
}

#[test]
fn segments_of_a_flow_have_one_shard_in_both_directions() {
    for (ours, peer) in addresses() {
        let mut used = [0_usize; SHARDS];
        for port in 1..=1000 {
            let peer = SocketAddr::new(peer.ip(), port);
            let shard = steering().flow_shard(ours, peer);
            used[shard] += 1;
            for segment in [segment(ours, peer, None), segment(peer, ours, None)] {
                assert_eq!(target(&segment), shard);
            }
        }
        let expected = 1000 / SHARDS;
        assert!(used.iter().all(|n| n.abs_diff(expected) < 50), "{used:?}");
    }
}

#[test]
fn a_mapped_address_stands_for_the_ipv4_address() {
    let (a, b): (SocketAddr, SocketAddr) = addresses()[0];
    let mapped = "[::ffff:10.0.0.2]:80".parse().unwrap();
    assert_eq!(
        steering().flow_shard(a, b),
        steering().flow_shard(mapped, b)
    );
}

#[test]
fn fragments_and_datagrams_reach_the_first_shard() {
    for (ours, peer) in addresses() {
        let (peer, _) = elsewhere(ours, peer);
        for offset in [0, 8] {
            assert_eq!(target(&segment(peer, ours, Some(offset))), 0);
        }
        let udp = ip(peer.ip(), ours.ip(), protocol::UDP, None, &[1; 32]);
        assert_eq!(target(&udp), 0);
    }
}

#[test]
fn icmp_errors_reach_the_shard_of_the_quoted_flow() {
    for (ours, peer) in addresses() {
        let (peer, shard) = elsewhere(ours, peer);
        let quoted = segment(ours, peer, None);
        let (error, echo) = if ours.is_ipv4() { (3, 8) } else { (1, 128) };
        // RFC 792: a router may quote only 8 bytes after the IP header.
        for len in [quoted.len(), quoted.len() - 12] {
            let message = icmp(error, peer.ip(), ours.ip(), &quoted[..len]);
            assert_eq!(target(&message), shard);
        }
        let first_fragment = icmp(error, peer.ip(), ours.ip(), &segment(ours, peer, Some(0)));
        assert_eq!(target(&first_fragment), shard);
        let later_fragment = icmp(error, peer.ip(), ours.ip(), &segment(ours, peer, Some(8)));
        assert_eq!(target(&later_fragment), 0);
        for (kind, len) in [(echo, quoted.len()), (error, 4), (error, 0)] {
            let message = icmp(kind, peer.ip(), ours.ip(), &quoted[..len]);
            assert_eq!(target(&message), 0);
        }
    }
}

#[test]
fn headers_in_several_slices_are_found() {
    for (ours, peer) in addresses() {
        let (peer, shard) = elsewhere(ours, peer);
        let bytes = segment(peer, ours, None);
        for split in 1..bytes.len() {
            let mut frame = Chain::from(Slice::copied_from(&bytes[..split]));
            frame.push(Slice::copied_from(&bytes[split..]));
            let target = steering().target(Link::Ip, &Packet::from_frame(frame));
            assert_eq!(target, shard, "split at {split}");
        }
    }
}

#[test]
fn frames_of_other_protocols_belong_to_the_first_shard() {
    for (ours, peer) in addresses() {
        let (peer, _) = elsewhere(ours, peer);
        let packet = segment(peer, ours, None);
        // ARP, LLC, and the EtherType of a third tag.
        for ethertype in [[8, 6], [0, 100], [0x81, 0]] {
            let frame = [&[2; 12], &ethertype[..], &packet].concat();
            let frame = Packet::from_frame(Slice::copied_from(&frame));
            assert_eq!(steering().target(Link::Ethernet, &frame), 0);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_have_an_existing_target(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        version in prop::sample::select(vec![0x45_u8, 0x4f, 0x60, 0]),
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        prop_assert!(target(&bytes) < SHARDS);
    }
}
