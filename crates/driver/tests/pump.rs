//! A call of a socket transmits the packets that it makes possible, without waiting for a timer.

use fullsend_device::{Device, PairConfig, PairEnd, pair};
use fullsend_driver::Pump;
use fullsend_offload::{Link, Packet, Slice};
use fullsend_stack::{Cidr, Host, HostConfig, IfaceConfig, Mac};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Seed};

const NOW: Instant = Instant::from_nanos(5_000_000_000);

/// Returns a host with a pump over one end of a link, and the link's other end.
fn pumped(link: Link, address: &str) -> (Host, Pump<PairEnd>, PairEnd) {
    let (end, other) = pair(PairConfig {
        link,
        ..PairConfig::default()
    });
    let mut host = Host::new(HostConfig {
        seed: Seed::from_u64(1),
        sysctl: Sysctl::default(),
        pool_bytes: 0,
    });
    let iface = host.add_interface(IfaceConfig::new(end.caps(), Mac([2, 0, 0, 0, 0, 1])));
    let cidr: Cidr = address.parse().unwrap();
    host.add_address(Instant::ZERO, iface, cidr).unwrap();
    // Duplicate address detection has ended.
    host.poll(NOW);
    let mut pump = Pump::new(iface, end);
    let _ = pump.poll(&mut host, &NOW, true).unwrap();
    (host, pump, other)
}

fn ethertypes(other: &mut PairEnd) -> Vec<u16> {
    let mut frames = Vec::new();
    other.receive(&mut frames, 64).unwrap();
    let ethertype = |frame: &Packet| {
        let bytes = frame.to_bytes();
        u16::from_be_bytes([bytes[12], bytes[13]])
    };
    frames.iter().map(ethertype).collect()
}

#[test]
fn an_arp_request_leaves_with_the_call_that_needs_it() {
    let (mut host, mut pump, mut other) = pumped(Link::Ethernet, "10.0.0.1/24");
    let peer = "10.0.0.2:9".parse().unwrap();
    host.tcp_connect(NOW, None, peer).unwrap();
    let _ = pump.transmit(&mut host, NOW, &NOW);
    assert_eq!(ethertypes(&mut other), [0x0806]);
}

#[test]
fn a_neighbor_solicitation_leaves_with_the_call_that_needs_it() {
    let (mut host, mut pump, mut other) = pumped(Link::Ethernet, "fd00::1/64");
    ethertypes(&mut other);
    let id = host.udp_bind("[fd00::1]:9".parse().unwrap()).unwrap();
    let peer = "[fd00::2]:9".parse().unwrap();
    host.udp(id)
        .send_to(NOW, Slice::copied_from(b"x"), peer, None)
        .unwrap();
    let _ = pump.transmit(&mut host, NOW, &NOW);
    assert_eq!(ethertypes(&mut other), [0x86dd]);
}

#[test]
fn datagrams_to_an_own_address_arrive_within_the_call() {
    let (mut host, mut pump, _other) = pumped(Link::Ip, "10.0.0.1/24");
    for address in ["10.0.0.1:9", "127.0.0.1:10"] {
        let address = address.parse().unwrap();
        let id = host.udp_bind(address).unwrap();
        host.udp(id)
            .send_to(NOW, Slice::copied_from(b"x"), address, None)
            .unwrap();
        let left = pump.transmit(&mut host, NOW, &NOW);
        assert!(!left.more);
        assert!(host.udp(id).recv().unwrap().is_some());
    }
}
