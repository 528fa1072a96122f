//! Duplicate address detection on a host that has no other address of the family (RFC 4862 5.4).

mod common;

use std::net::{IpAddr, Ipv6Addr};

use common::{IFACE, Nic, config, host};
use fullsend_offload::{Link, Packet, Slice};
use fullsend_stack::{AddressState, Cidr, Host, ListenConfig, StackError};
use fullsend_wire::ethernet::EthernetView;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::ndp::NdpRepr;
use fullsend_wire::{Instant, Nanos};

const SHARED: &str = "fe80::7";

/// Hosts on one Ethernet segment, each with its own hardware address.
struct Segment {
    hosts: Vec<Host>,
    now: Instant,
    /// Whether a sender receives its own frames, too.
    loops: bool,
    frames: Vec<Vec<u8>>,
}

impl Segment {
    fn new(hosts: u64) -> Self {
        let hosts = (1..=hosts).map(|n| {
            let mut host = host(n);
            host.add_interface(config(Link::Ethernet, Nic::Mtu, n as u8));
            host
        });
        Self {
            hosts: hosts.collect(),
            now: Instant::from_nanos(1_000_000_000),
            loops: false,
            frames: Vec::new(),
        }
    }

    fn add(&mut self, who: usize, cidr: &str) {
        let cidr: Cidr = cidr.parse().unwrap();
        self.hosts[who].add_address(self.now, IFACE, cidr).unwrap();
    }

    /// Carries frames until there are none, then advances the time.
    fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            while self.carry() {}
            let next = self.hosts.iter().filter_map(Host::poll_deadline).min();
            self.now = match next {
                Some(at) if at <= end => self.now.max(at),
                _ => return self.now = end,
            };
            self.hosts.iter_mut().for_each(|host| host.poll(self.now));
        }
    }

    fn carry(&mut self) -> bool {
        let mut moved = false;
        for sender in 0..self.hosts.len() {
            let mut out = Vec::new();
            self.hosts[sender].transmit(self.now, IFACE, &mut out, 64);
            for packet in out {
                moved = true;
                let bytes = packet.to_bytes();
                for (i, host) in self.hosts.iter_mut().enumerate() {
                    if i != sender || self.loops {
                        let frame = Packet::from_frame(Slice::copied_from(&bytes));
                        host.receive(self.now, IFACE, &mut vec![frame]);
                    }
                }
                self.frames.push(bytes);
            }
        }
        moved
    }

    fn states(&self, who: usize) -> Vec<AddressState> {
        let addresses = self.hosts[who].addresses();
        addresses.iter().map(|own| own.state).collect()
    }

    fn counter(&self, who: usize, name: &str) -> u64 {
        common::counter(&self.hosts[who], name)
    }
}

/// The owner advertises to all nodes, and a host without any address must process that.
#[test]
fn the_only_address_of_a_host_is_abandoned_when_another_host_has_it() {
    for others in [&[][..], &["10.0.0.1/24"], &["fe80::9/64"]] {
        let mut net = Segment::new(2);
        net.add(0, "fe80::7/64");
        net.run_for(Nanos::from_secs(2));
        assert_eq!(net.states(0), [AddressState::Preferred]);
        for other in others {
            net.add(1, other);
            net.run_for(Nanos::from_secs(2));
        }
        net.add(1, "fe80::7/64");
        net.run_for(Nanos::from_secs(2));
        assert_eq!(net.states(0), [AddressState::Preferred]);
        assert_eq!(net.states(1).last(), Some(&AddressState::Duplicate));
        assert_eq!(net.counter(1, "Ip6DadDuplicates"), 1);
        // Binding and listening fail with the reason.
        let addr = (SHARED.parse::<IpAddr>().unwrap(), 80).into();
        let refused = StackError::DuplicateAddress(addr);
        let host = &mut net.hosts[1];
        assert_eq!(host.udp_bind(addr), Err(refused.clone()));
        let config = ListenConfig {
            backlog: 1,
            defer_syn_ack: false,
            any_destination: false,
        };
        assert_eq!(host.tcp_listen(addr, config), Err(refused));
        assert!(!host.is_own_address(addr.ip()));
        // Once the other host is gone, the address may be tried again.
        net.hosts.remove(0);
        net.add(0, "fe80::7/64");
        assert_eq!(net.states(0).last(), Some(&AddressState::Tentative));
        let bound = net.hosts[0].udp_bind(addr);
        assert_eq!(bound, Err(StackError::TentativeAddress(addr)));
        net.run_for(Nanos::from_secs(2));
        assert_eq!(net.states(0).last(), Some(&AddressState::Preferred));
        assert!(net.hosts[0].udp_bind(addr).is_ok());
    }
}

/// RFC 3590 4, RFC 3810 5.2.13: routers ignore reports from the unspecified address.
#[test]
fn groups_are_reported_again_once_the_link_local_address_is_valid() {
    let mut net = Segment::new(1);
    net.add(0, "fe80::7/64");
    let host = &mut net.hosts[0];
    let socket = host.udp_bind("[::]:9".parse().unwrap()).unwrap();
    let group = "ff05::7".parse().unwrap();
    host.udp(socket).join_group(net.now, group, None).unwrap();
    net.run_for(Nanos::from_secs(9));
    let mut sources = Vec::new();
    for frame in &net.frames {
        // Only reports have a hop-by-hop header.
        let ip = Ipv6View::new(&frame[14..]).unwrap();
        if frame[14 + 6] == 0 {
            sources.push(ip.src());
        }
    }
    assert_eq!(sources[0], Ipv6Addr::UNSPECIFIED);
    let own: Ipv6Addr = SHARED.parse().unwrap();
    assert_eq!(sources.iter().filter(|ip| **ip == own).count(), 2);
}

/// RFC 4862 5.4.3: if two hosts try to configure an address at once, neither gets it.
#[test]
fn two_hosts_probing_one_address_at_once_both_abandon_it() {
    let mut net = Segment::new(2);
    for who in 0..2 {
        net.add(who, "fe80::7/64");
    }
    net.run_for(Nanos::from_secs(2));
    for who in 0..2 {
        assert_eq!(net.states(who), [AddressState::Duplicate]);
        assert_eq!(net.counter(who, "Ip6DadDuplicates"), 1);
    }
}

/// RFC 7527: on a link that loops frames back to their sender, a host's own solicitation is not
/// another host's.
#[test]
fn a_looped_back_solicitation_is_not_a_duplicate() {
    let mut net = Segment::new(1);
    net.loops = true;
    net.add(0, "fe80::7/64");
    net.add(0, "fe80::8/64");
    net.run_for(Nanos::from_secs(2));
    assert_eq!(net.states(0), [AddressState::Preferred; 2]);
    assert_eq!(net.counter(0, "Ip6DadLoopbacks"), 2);
    assert_eq!(net.counter(0, "Ip6DadDuplicates"), 0);
    let nonces: Vec<_> = net.frames.iter().filter_map(|frame| nonce(frame)).collect();
    assert_eq!(nonces.len(), 2);
    assert_ne!(nonces[0], nonces[1]);
}

/// RFC 7527 4.3: on such a link, only the nonce distinguishes the solicitation of another host that
/// tries to configure the address, too.
#[test]
fn a_nonce_distinguishes_two_hosts_where_solicitations_are_looped_back() {
    let mut net = Segment::new(2);
    net.loops = true;
    for who in 0..2 {
        net.add(who, "fe80::7/64");
    }
    net.run_for(Nanos::from_secs(2));
    for who in 0..2 {
        assert_eq!(net.states(who), [AddressState::Duplicate]);
        assert_eq!(net.counter(who, "Ip6DadDuplicates"), 1);
    }
    // The first host's own solicitation was looped back before the second host's arrived.
    assert_eq!(net.counter(0, "Ip6DadLoopbacks"), 1);
    let nonces: Vec<_> = net.frames.iter().filter_map(|frame| nonce(frame)).collect();
    assert_eq!(nonces.len(), 2);
    assert_ne!(nonces[0], nonces[1]);
}

/// Returns the nonce of a solicitation in duplicate address detection.
fn nonce(frame: &[u8]) -> Option<[u8; 6]> {
    let link = EthernetView::new(frame).unwrap();
    let ip = Ipv6View::new(link.payload()).ok()?;
    assert_eq!(ip.src(), Ipv6Addr::UNSPECIFIED);
    match Icmpv6Repr::parse(ip.payload()) {
        Ok(Icmpv6Repr::Ndp(NdpRepr::NeighbourSolicit { nonce, .. })) => nonce,
        _ => None,
    }
}
