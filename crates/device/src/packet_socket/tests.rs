//! Tests on veth pairs, each in its own network namespace.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::process::Command;

use fullsend_offload::{Checksum, GsoKind, HeaderBuf, Packet};

use super::PacketSocket;
use crate::sys::testing::{in_own_network, wait_readable};
use crate::{Device, test_packet};

/// A locally administered address for both ends: promiscuous sockets receive any.
const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// Makes a veth pair that sends no packets of its own.
fn veth() {
    ip("link add ve0 type veth peer name ve1");
    for end in ["ve0", "ve1"] {
        ip(&format!("link set {end} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
}

fn open_both() -> (PacketSocket, PacketSocket) {
    veth();
    let [a, b] = ["ve0", "ve1"].map(|name| PacketSocket::open(name).unwrap());
    (a, b)
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
    assert!(wait_readable(device.fd().unwrap(), 2000), "nothing came");
    let mut batch = Vec::new();
    assert_eq!(device.receive(&mut batch, 1).unwrap(), 1);
    batch.pop().unwrap()
}

#[test]
fn packets_and_super_segments_cross_a_veth_whole() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
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
        assert_eq!((a.stats().tx_packets, a.stats().tx_dropped), (4, 0));
        assert_eq!((b.stats().rx_packets, b.stats().rx_dropped), (4, 0));
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
        send(&mut a, udp(false, b"lost", 0));
        assert_eq!((a.stats().tx_packets, a.stats().tx_dropped), (0, 1));
        ip("link set ve0 up");
        send(&mut a, udp(false, b"first after it", 0));
        assert!(receive_one(&mut b).to_bytes().ends_with(b"first after it"));
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
        let stats = b.stats();
        assert_eq!(stats.rx_packets, stats.rx_dropped + received);
        assert!(stats.rx_dropped > 0, "{stats:?}");
        assert_eq!(b.stats(), stats, "drops are counted once");
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
