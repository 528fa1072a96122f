//! Tests on veth pairs, each in its own network namespace.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use fullsend_offload::{HeaderBuf, Packet};

use super::XdpSocket;
use crate::sys::testing::{in_own_network, ip, wait_readable};
use crate::sys::{IfName, Iface, XdpMode, XdpProgram};
use crate::{Device, test_packet};

/// Destination and source.
const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// Returns devices at both ends of a veth that sends no packets of its own, once frames cross it.
fn open_both() -> (XdpSocket, XdpSocket) {
    ip("link add ve0 type veth peer name ve1");
    for end in ["ve0", "ve1"] {
        ip(&format!("link set {end} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
    let [mut a, mut b] = ["ve0", "ve1"].map(|name| XdpSocket::open(name).unwrap());
    wait_for_link(&mut a, &mut b);
    (a, b)
}

/// Waits until frames from `a` arrive at `b`: the kernel drops them until it has noticed that the
/// link is up.
fn wait_for_link(a: &mut XdpSocket, b: &mut XdpSocket) {
    let arrived = (0..500).any(|_| {
        send(a, udp(b"probe"));
        wait_readable(b.fd().unwrap(), 100)
    });
    assert!(arrived, "the link stays down");
    while !receive(b, 100).is_empty() {}
}

fn udp(payload: &[u8]) -> Packet {
    let [from, to] = ["10.9.0.1", "10.9.0.2"].map(|a| a.parse::<IpAddr>().unwrap());
    let mut packet = test_packet::udp((from, to), (9, 9), payload, 0);
    packet.complete_checksum();
    let header = [&ETHERNET[..], &[8, 0], &packet.header].concat();
    packet.header = HeaderBuf::from_slice(&header);
    packet
}

fn send(device: &mut XdpSocket, packet: Packet) {
    let mut batch = VecDeque::from([packet]);
    device.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
}

fn receive(device: &mut XdpSocket, max: usize) -> Vec<Packet> {
    let mut batch = Vec::new();
    device.receive(&mut batch, max).unwrap();
    batch
}

fn numbered(count: u32) -> VecDeque<Packet> {
    (0..count).map(|i| udp(&i.to_be_bytes())).collect()
}

#[test]
fn frames_arrive_unchanged_and_in_order() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        // The indices of the rings, which have 2048 entries, wrap.
        for round in 0..30u32 {
            let mut batch = numbered(300);
            let sent: Vec<_> = batch.iter().map(Packet::to_bytes).collect();
            a.transmit(&mut batch).unwrap();
            assert!(batch.is_empty());
            let mut got = Vec::new();
            while got.len() < sent.len() {
                assert!(wait_readable(b.fd().unwrap(), 20_000), "round {round}");
                got.extend(receive(&mut b, 64).iter().map(Packet::to_bytes));
            }
            assert!(got == sent, "round {round}");
        }
        assert_eq!(b.stats().rx_dropped, 0);
        assert!(receive(&mut a, 1).is_empty(), "own frames are not received");
    });
}

#[test]
fn packets_that_find_the_ring_full_stay_with_the_caller() {
    in_own_network(|| {
        let (mut a, _b) = open_both();
        let before = a.stats();
        let mut batch = numbered(3000);
        a.queue(&mut batch);
        assert_eq!(batch.len(), 3000 - 2048);
        // A batch whose last packet is in the ring, but not sent.
        a.transmit(&mut batch).unwrap();
        let mut last = numbered(1);
        a.queue(&mut last);
        assert_eq!(last.len(), 1);
        a.transmit(&mut last).unwrap();
        assert!(batch.is_empty() && last.is_empty());
        let after = a.stats();
        assert_eq!(after.tx_packets - before.tx_packets, 3001);
        assert_eq!(after.tx_dropped, before.tx_dropped);
    });
}

#[test]
fn packets_of_wrong_lengths_are_dropped() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        let dropped = a.stats().tx_dropped;
        let mut batch = VecDeque::from([udp(&[0; 1600]), Packet::default(), udp(b"last")]);
        a.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
        assert_eq!(a.stats().tx_dropped - dropped, 2);
        assert!(wait_readable(b.fd().unwrap(), 20_000));
        let [packet] = &receive(&mut b, 10)[..] else {
            panic!("one frame was sent")
        };
        assert!(packet.to_bytes().ends_with(b"last"));
    });
}

#[test]
fn an_interface_that_is_down_drops_packets_and_serves_again_when_up() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        ip("link set ve0 down");
        assert!(receive(&mut a, 1).is_empty());
        let dropped = a.stats().tx_dropped;
        for _ in 0..3 {
            send(&mut a, udp(b"lost"));
        }
        assert!(a.stats().tx_dropped >= dropped + 2);
        ip("link set ve0 up");
        wait_for_link(&mut a, &mut b);
        wait_for_link(&mut b, &mut a);
    });
}

#[test]
fn a_link_without_a_carrier_drops_packets_and_does_not_block() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        ip("link set ve1 down");
        let mut batch = numbered(500);
        for _ in 0..1000 {
            a.transmit(&mut batch).unwrap();
        }
        assert!(batch.is_empty(), "{} packets are left", batch.len());
        ip("link set ve1 up");
        wait_for_link(&mut a, &mut b);
    });
}

#[test]
fn a_removed_interface_ends_the_device() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        ip("link delete ve0");
        let error = a.receive(&mut Vec::new(), 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let error = b.transmit(&mut numbered(1)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    });
}

#[test]
fn frames_arrive_when_the_kernel_runs_the_program() {
    in_own_network(|| {
        let (mut a, mut b) = open_both();
        let iface = Iface::new(IfName::new("ve1").unwrap()).unwrap();
        b.close();
        let program = XdpProgram::load(b.xsk.fd()).unwrap();
        let generic = program.attach(iface.index().unwrap(), XdpMode::Generic);
        let _attached = generic.unwrap();
        wait_for_link(&mut a, &mut b);
        send(&mut a, udp(b"generic"));
        assert!(wait_readable(b.fd().unwrap(), 20_000));
        assert!(receive(&mut b, 1)[0].to_bytes().ends_with(b"generic"));
    });
}

#[test]
fn another_program_on_the_interface_is_an_error() {
    in_own_network(|| {
        let (_a, mut b) = open_both();
        let program = b.attachment.take();
        drop(b);
        let error = XdpSocket::open("ve1").map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        let text = error.to_string();
        assert!(text.contains("another XDP program"), "{text}");
        drop(program);
        XdpSocket::open("ve1").unwrap();
    });
}
