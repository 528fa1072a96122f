use fullsend_device::{Device, PairConfig, PairEnd, pair};
use fullsend_offload::{Link, Packet, Slice};
use fullsend_stack::Steering;
use fullsend_wire::Seed;

use super::{BACKLOG_BYTES, BACKLOG_PACKETS, MAX_PINNED, SteeredDevice};

const SHARDS: usize = 3;

/// Returns the devices of the shards, and the other ends of their links.
fn devices() -> (Steering, Vec<SteeredDevice<PairEnd>>, Vec<PairEnd>) {
    let steering = Steering::new(Seed::from_u64(1), SHARDS);
    let config = PairConfig {
        queue: 2 * BACKLOG_PACKETS,
        ..PairConfig::default()
    };
    let (ends, others) = (0..SHARDS).map(|_| pair(config)).unzip();
    let devices = SteeredDevice::for_shards(steering, ends).unwrap();
    (steering, devices, others)
}

/// Returns a TCP packet of the flow with this source port.
fn packet(port: u16) -> Packet {
    packet_of(port, 40)
}

/// Returns a TCP packet of the flow with this source port, `len` bytes long.
fn packet_of(port: u16, len: usize) -> Packet {
    let mut bytes = vec![0; len];
    bytes[0] = 0x45;
    bytes[9] = 6;
    bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[20..22].copy_from_slice(&port.to_be_bytes());
    Packet::from_frame(Slice::copied_from(&bytes))
}

fn port(packet: &Packet) -> u16 {
    let bytes = packet.to_bytes();
    u16::from_be_bytes([bytes[20], bytes[21]])
}

/// Returns `count` ports whose flows belong to `shard`.
fn ports_of(steering: Steering, shard: usize, count: usize) -> Vec<u16> {
    let belongs = |port: &u16| steering.target(Link::Ip, &packet(*port)) == shard;
    (1..).filter(belongs).take(count).collect()
}

fn send(end: &mut PairEnd, packets: impl IntoIterator<Item = Packet>) {
    let mut batch = packets.into_iter().collect();
    end.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
}

fn receive(device: &mut SteeredDevice<PairEnd>, max: usize) -> (usize, Vec<u16>) {
    let mut batch = Vec::new();
    let count = device.receive(&mut batch, max).unwrap();
    (count, batch.iter().map(port).collect())
}

#[test]
fn packets_reach_their_shard_in_order() {
    let (steering, mut devices, mut others) = devices();
    let ports: Vec<_> = (0..SHARDS)
        .map(|shard| ports_of(steering, shard, 4))
        .collect();
    // All arrive at the queue of shard 1, those of the shards in turn.
    let mixed = (0..4).flat_map(|i| ports.iter().map(move |ports| ports[i]));
    send(&mut others[1], mixed.map(packet));
    assert!(devices.iter().all(|device| !device.has_received()));
    // The count is that of the queue.
    assert_eq!(receive(&mut devices[1], 64), (12, ports[1].clone()));
    let handover = devices[1].handover();
    assert!(handover.take_woken().eq([0, 2]));
    assert!(handover.take_woken().eq([]));
    for shard in [0, 2] {
        assert!(devices[shard].has_received());
        // With more packets than requested the device counts as not empty.
        assert_eq!(
            receive(&mut devices[shard], 3),
            (3, ports[shard][..3].to_vec())
        );
        assert!(devices[shard].has_received());
        assert_eq!(
            receive(&mut devices[shard], 3),
            (0, ports[shard][3..].to_vec())
        );
        assert!(!devices[shard].has_received());
    }
    // Each time that the first packet waits, the shard is woken again.
    send(&mut others[1], [packet(ports[0][0])]);
    receive(&mut devices[1], 64);
    assert!(handover.take_woken().eq([0]));
    send(&mut others[1], [packet(ports[0][1])]);
    receive(&mut devices[1], 64);
    assert!(handover.take_woken().eq([]));
}

#[test]
fn packets_beyond_the_limits_are_dropped_and_counted() {
    let (steering, mut devices, mut others) = devices();
    let port = ports_of(steering, 0, 1)[0];
    let stats = devices[0].handover();
    for (len, room) in [(40, BACKLOG_PACKETS), (60_000, BACKLOG_BYTES / 60_000)] {
        let (dropped, sent) = (stats.dropped(), room + 10);
        send(&mut others[1], (0..sent).map(|_| packet_of(port, len)));
        assert_eq!(receive(&mut devices[1], sent), (sent, vec![]));
        assert_eq!(stats.dropped() - dropped, 10);
        assert_eq!(receive(&mut devices[0], sent).1.len(), room);
    }
    // The room is free again.
    send(&mut others[1], [packet_of(port, 60_000)]);
    receive(&mut devices[1], 64);
    assert_eq!(receive(&mut devices[0], 64).1, [port]);
}

/// Otherwise a few small packets would keep whole read buffers allocated.
#[test]
fn a_small_packet_of_a_large_block_is_copied() {
    let (steering, mut devices, mut others) = devices();
    let port = ports_of(steering, 0, 1)[0];
    for (len, copied) in [(60, true), (40_000, false)] {
        let mut block = packet_of(port, 100_000).to_bytes();
        block[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let mut slice = Slice::copied_from(&block);
        slice.truncate(len);
        send(&mut others[1], [Packet::from_frame(slice)]);
        receive(&mut devices[1], 64);
        let mut batch = Vec::new();
        devices[0].receive(&mut batch, 64).unwrap();
        assert_eq!(batch[0].to_bytes(), block[..len]);
        let pinned = batch[0].payload.pinned();
        assert!(pinned <= MAX_PINNED * len);
        assert_eq!(pinned < 100_000, copied, "{pinned}");
    }
}

#[test]
fn packets_of_the_backlog_come_before_newer_ones() {
    let (steering, mut devices, mut others) = devices();
    let ports = ports_of(steering, 0, 2);
    send(&mut others[1], [packet(ports[0])]);
    receive(&mut devices[1], 64);
    send(&mut others[0], [packet(ports[1])]);
    assert_eq!(receive(&mut devices[0], 64), (1, ports));
    let stats = devices[0].handover();
    assert_eq!((stats.received(), stats.dropped()), (1, 0));
}

#[test]
fn wrong_queues_are_rejected() {
    let steering = Steering::new(Seed::from_u64(1), 2);
    let queues = |count, link| -> Vec<PairEnd> {
        let config = PairConfig {
            link,
            ..PairConfig::default()
        };
        (0..count).map(|_| pair(config).0).collect()
    };
    let mut mixed = queues(1, Link::Ip);
    mixed.extend(queues(1, Link::Ethernet));
    for (queues, text) in [
        (queues(1, Link::Ip), "shards is 2, that of device queues 1"),
        (queues(3, Link::Ip), "shards is 2, that of device queues 3"),
        (mixed, "some of the device queues have Ethernet frames"),
    ] {
        let error = SteeredDevice::for_shards(steering, queues).err().unwrap();
        assert!(error.to_string().contains(text), "{error}");
    }
    for link in [Link::Ip, Link::Ethernet] {
        assert!(SteeredDevice::for_shards(steering, queues(2, link)).is_ok());
    }
}

#[test]
fn ethernet_frames_reach_the_shard_of_their_packet() {
    let (steering, _, _) = devices();
    let config = PairConfig {
        link: Link::Ethernet,
        ..PairConfig::default()
    };
    let (ends, mut others): (Vec<_>, Vec<_>) = (0..SHARDS).map(|_| pair(config)).unzip();
    let mut devices = SteeredDevice::for_shards(steering, ends).unwrap();
    for shard in 0..SHARDS {
        let bytes = packet(ports_of(steering, shard, 1)[0]).to_bytes();
        let frame = [&[2; 12], &[8, 0][..], &bytes].concat();
        send(
            &mut others[1],
            [Packet::from_frame(Slice::copied_from(&frame))],
        );
        devices[1].receive(&mut Vec::new(), 0).unwrap();
        let mut batch = Vec::new();
        devices[1].receive(&mut batch, 64).unwrap();
        if shard != 1 {
            assert!(batch.is_empty());
            devices[shard].receive(&mut batch, 64).unwrap();
        }
        assert_eq!(batch[0].to_bytes(), frame);
    }
}
