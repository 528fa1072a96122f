//! Tests on veth pairs, each in its own network namespace.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use fullsend_offload::{Checksum, GsoKind, HeaderBuf, Packet};

use super::PacketSocket;
use crate::sys::testing::{in_own_network, ip, wait_readable};
use crate::tun::TunStats;
use crate::{Device, test_packet};

/// A locally administered address for both ends: promiscuous sockets receive any.
const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// Makes a veth pair that sends no packets of its own.
fn veth() {
    ip("link add ve0 type veth peer name ve1");
    for end in ["ve0", "ve1"] {
        ip(&format!("link set {end} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
}

/// Returns devices at both ends of a veth, once frames cross it in both directions.
fn open_both() -> (PacketSocket, PacketSocket) {
    veth();
    let [mut a, mut b] = ["ve0", "ve1"].map(|name| PacketSocket::open(name).unwrap());
    wait_for_link(&mut a, &mut b);
    wait_for_link(&mut b, &mut a);
    (a, b)
}

/// Waits until frames from `a` arrive at `b`: the kernel drops them until it has noticed that the
/// link is up.
fn wait_for_link(a: &mut PacketSocket, b: &mut PacketSocket) {
    let arrived = (0..500).any(|_| {
        send(a, udp(false, b"probe", 0));
        wait_readable(b.fd().unwrap(), 100)
    });
    assert!(arrived, "the link stays down");
    while !receive(b).is_empty() {}
}

/// Returns the packets received and dropped since `before`.
fn received_since(device: &mut PacketSocket, before: TunStats) -> (u64, u64) {
    let now = device.stats();
    let packets = now.rx_packets - before.rx_packets;
    (packets, now.rx_dropped - before.rx_dropped)
}

fn ends(v6: bool) -> (IpAddr, IpAddr) {
    let [a, b] = if v6 {
        ["fd09::1", "fd09::2"]
    } else {
        ["10.9.0.1", "10.9.0.2"]
    };
    (a.parse().unwrap(), b.parse().unwrap())
}

/// Prepends an Ethernet header, and further bytes, to a packet that begins with its IP header.
fn framed(mut packet: Packet, further: &[u8]) -> Packet {
    let ethertype = packet.layers.ethertype.to_be_bytes();
    let mut header = [&ETHERNET[..], further, &ethertype].concat();
    packet.layers.transport += header.len() as u16;
    header.extend_from_slice(&packet.header);
    packet.header = HeaderBuf::from_slice(&header);
    packet
}

fn udp(v6: bool, payload: &[u8], gso_size: u16) -> Packet {
    framed(test_packet::udp(ends(v6), (9, 9), payload, gso_size), &[])
}

fn send(device: &mut PacketSocket, packet: Packet) {
    let mut batch = VecDeque::from([packet]);
    device.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
}

/// Returns the frames that have arrived.
fn receive(device: &mut PacketSocket) -> Vec<Packet> {
    let mut batch = Vec::new();
    device.receive(&mut batch, 100).unwrap();
    batch
}

/// Returns the next frame.
fn receive_one(device: &mut PacketSocket) -> Packet {
    assert!(wait_readable(device.fd().unwrap(), 20_000), "nothing came");
    let mut batch = Vec::new();
    assert_eq!(device.receive(&mut batch, 1).unwrap(), 1);
    batch.pop().unwrap()
}

#[test]
fn packets_and_super_segments_cross_a_veth_whole() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        let before = (a.stats(), b.stats());
        let payload: Vec<u8> = (0..60_000u32).map(|i| (i * 7 / 3) as u8).collect();
        for v6 in [false, true] {
            for (len, gso_size) in [(100, 0), (60_000, 1400)] {
                if gso_size > 0 && !a.caps().uso {
                    println!("this kernel's packet sockets have no UDP super-segments");
                    continue;
                }
                let sent = udp(v6, &payload[..len], gso_size);
                let bytes = sent.to_bytes();
                send(&mut a, sent);
                let mut packet = receive_one(&mut b);
                assert_eq!(packet.to_bytes(), bytes);
                packet.parse(b.caps().link).unwrap();
                let kind = if gso_size > 0 {
                    GsoKind::Udp
                } else {
                    GsoKind::None
                };
                let offload = packet.offload;
                assert_eq!((offload.kind, offload.gso_size), (kind, gso_size));
                assert_eq!(offload.checksum, Checksum::Partial);
            }
        }
        assert!(receive(&mut a).is_empty(), "own frames are not received");
        let sent = a.stats().tx_packets - before.0.tx_packets;
        assert_eq!(sent, received_since(&mut b, before.1).0);
        assert_eq!(received_since(&mut b, before.1).1, 0);
    });
}

#[test]
fn frames_of_a_vlan_are_not_received() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        let tagged = test_packet::udp(ends(false), (9, 9), b"of VLAN 5", 0);
        send(&mut a, framed(tagged, &[0x81, 0, 0, 5]));
        send(&mut a, udp(false, b"without a VLAN", 0));
        let packet = receive_one(&mut b);
        assert!(packet.to_bytes().ends_with(b"without a VLAN"));
        assert!(receive(&mut b).is_empty());
    });
}

#[test]
fn an_interface_that_is_down_drops_packets_and_serves_again_when_up() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        ip("link set ve0 down");
        assert!(receive(&mut a).is_empty());
        let dropped = a.stats().tx_dropped;
        send(&mut a, udp(false, b"lost", 0));
        assert_eq!(a.stats().tx_dropped, dropped + 1);
        ip("link set ve0 up");
        wait_for_link(&mut a, &mut b);
        wait_for_link(&mut b, &mut a);
        send(&mut b, udp(false, b"answer", 0));
        assert!(receive_one(&mut a).to_bytes().ends_with(b"answer"));
    });
}

#[test]
fn a_removed_interface_ends_the_device() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        ip("link delete ve0");
        let gone = |error: io::Error| error.raw_os_error() == Some(libc::ENODEV);
        assert!(gone(a.receive(&mut Vec::new(), 1).unwrap_err()));
        let mut batch = VecDeque::from([udp(false, b"", 0)]);
        assert!(b.transmit(&mut batch).is_err());
    });
}

#[test]
fn frames_that_find_the_queue_full_are_counted() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        let before = b.stats();
        let sent = 40_000;
        let mut batch = VecDeque::new();
        for _ in 0..sent {
            batch.push_back(udp(false, &[7; 1000], 0));
            a.transmit(&mut batch).unwrap();
        }
        let mut received = 0;
        while wait_readable(b.fd().unwrap(), 0) {
            let n = receive(&mut b).len();
            received += n as u64;
        }
        let (packets, dropped) = received_since(&mut b, before);
        assert_eq!(packets, dropped + received);
        assert!(dropped > 0);
        assert_eq!(received_since(&mut b, before), (packets, dropped));
    });
}

#[test]
fn errors_name_the_interface_and_what_to_do() {
    in_own_network(|| {
        let error = |name: &str| PacketSocket::open(name).map(drop).unwrap_err();
        let missing = error("ve9");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("\"ve9\""), "{missing}");
        for name in ["lo", "a name", "an-interface-name"] {
            let error = error(name);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(
                error.to_string().contains(&format!("\"{name}\"")),
                "{error}"
            );
        }
    });
}
