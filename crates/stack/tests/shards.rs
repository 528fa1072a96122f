//! Hosts that are the shards of one stack: segments that only the first shard can reassemble.

use std::net::SocketAddr;

use fullsend_offload::{Caps, Link, Packet, Slice};
use fullsend_stack::{Host, HostConfig, IfaceId, Mac, NetConfig, Steering};
use fullsend_tcp::Sysctl;
use fullsend_wire::checksum::sum;
use fullsend_wire::{Instant, Seed};

const NOW: Instant = Instant::ZERO;

fn host(address: &str, shard: Option<(Steering, usize)>) -> (Host, IfaceId) {
    host_on(Link::Ip, address, shard)
}

fn host_on(link: Link, address: &str, shard: Option<(Steering, usize)>) -> (Host, IfaceId) {
    let mut host = Host::new(HostConfig {
        seed: Seed::from_u64(1),
        sysctl: Sysctl::default(),
        pool_bytes: 0,
    });
    if let Some((steering, index)) = shard {
        host.set_shard(steering, index);
    }
    let net = NetConfig {
        addresses: vec![address.parse().unwrap()],
        ..NetConfig::default()
    };
    let caps = Caps::plain(link, 1500);
    let iface = net.set_up(&mut host, NOW, caps, 1).unwrap();
    (host, iface)
}

fn transmit(host: &mut Host, iface: IfaceId) -> Vec<Packet> {
    let mut out = Vec::new();
    host.transmit(NOW, iface, &mut out, 64);
    out
}

/// Returns two fragments of an IPv4 packet without options, the first with 24 bytes.
fn fragments(packet: &[u8]) -> [Packet; 2] {
    let (header, payload) = packet.split_at(20);
    let (first, second) = payload.split_at(24);
    [(0x2000, first), (24 / 8, second)].map(|(field, part): (u16, _)| {
        let mut bytes = [header, part].concat();
        let len = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes[6..8].copy_from_slice(&field.to_be_bytes());
        bytes[10..12].fill(0);
        let checksum = sum(&bytes[..20]).checksum();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        Packet::from_frame(Slice::copied_from(&bytes))
    })
}

fn counter(host: &Host, name: &str) -> u64 {
    let counters = host.counters();
    counters.iter().find(|(n, _)| *n == name).unwrap().1
}

/// The first shard reassembles the segment and passes it on; the shard of its flow alone answers
/// and delivers it.
#[test]
fn a_reassembled_segment_is_answered_by_the_shard_of_its_flow() {
    for link in [Link::Ip, Link::Ethernet] {
        reassemble_on(link);
    }
}

/// Returns the frame of a packet to the shards.
fn frame(link: Link, packet: &Packet) -> Packet {
    let mut bytes = packet.to_bytes();
    if link == Link::Ethernet {
        let peer = [2, 9, 9, 9, 9, 9];
        bytes = [&Mac::local(1).0[..], &peer, &[8, 0], &bytes].concat();
    }
    Packet::from_frame(Slice::copied_from(&bytes))
}

fn reassemble_on(link: Link) {
    let steering = Steering::new(Seed::from_u64(1), 2);
    let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let (mut client, client_iface) = host("10.0.0.1/24", None);
    let mut shards: Vec<_> = (0..2)
        .map(|index| host_on(link, "10.0.0.2/24", Some((steering, index))))
        .collect();
    let mut tried = [false; 2];
    while tried != [true; 2] {
        let id = client.tcp_connect(NOW, None, to).unwrap();
        let (local, _) = client.tcp(id).addrs().unwrap();
        let owner = steering.flow_shard(local, to);
        let [syn] = &transmit(&mut client, client_iface)[..] else {
            panic!("more than a SYN");
        };
        let read = |shards: &[(Host, IfaceId)]| {
            [0, 1].map(|shard: usize| {
                ["TcpInSegs", "IpInDelivers"].map(|name| counter(&shards[shard].0, name))
            })
        };
        let before = read(&shards);
        let (first, iface) = &mut shards[0];
        for fragment in fragments(&syn.to_bytes()) {
            let fragment = frame(link, &fragment);
            assert_eq!(steering.target(link, &fragment), 0);
            first.receive(NOW, *iface, &mut vec![fragment]);
        }
        assert_eq!(first.has_misdirected(), owner == 1);
        let misdirected = first.take_misdirected();
        assert_eq!(misdirected.len(), owner);
        for (shard, packet) in misdirected {
            assert_eq!((shard, steering.target(link, &packet)), (1, 1));
            let (host, iface) = &mut shards[shard];
            host.receive(NOW, *iface, &mut vec![packet]);
            assert!(!host.has_misdirected());
        }
        for (shard, (host, iface)) in shards.iter_mut().enumerate() {
            let answers = usize::from(shard == owner);
            // A RST, as no listener is bound. On Ethernet it waits for the peer's hardware address, which
            // the first shard solicits.
            let sent = transmit(host, *iface).len() + host.take_neighbour_messages().len();
            assert_eq!(sent, answers, "shard {shard}");
        }
        let after = read(&shards);
        for shard in 0..2 {
            let delivered = [0, 1].map(|n| after[shard][n] - before[shard][n]);
            assert_eq!(delivered, [u64::from(shard == owner); 2], "shard {shard}");
        }
        tried[owner] = true;
    }
}

/// A flow has its shard for ports that the application chooses, too.
#[test]
fn connections_of_another_shard_are_refused() {
    let steering = Steering::new(Seed::from_u64(1), 2);
    let to: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let (mut first, _) = host("10.0.0.2/24", Some((steering, 0)));
    for port in 1000..1032 {
        let local = SocketAddr::new("10.0.0.2".parse().unwrap(), port);
        let owner = first.tcp_flow_shard(local, to).unwrap();
        assert_eq!(owner, steering.flow_shard(to, local));
        let opened = first.tcp_connect(NOW, Some(local), to);
        assert_eq!(opened.is_ok(), owner == 0);
        if let Err(error) = opened {
            assert!(error.to_string().contains("another shard"), "{error}");
        }
        let id = first.tcp_connect(NOW, None, to).unwrap();
        let (chosen, _) = first.tcp(id).addrs().unwrap();
        assert_eq!(steering.flow_shard(chosen, to), 0);
    }
}
