//! Hosts that are the shards of one stack on Ethernet, in virtual time: the first resolves the
//! neighbours of all.

mod common;

use std::net::SocketAddr;

use common::{IFACE, Nic, bytes, config, host};
use fullsend_offload::{Link, Packet, Slice};
use fullsend_stack::{
    AddressState, Cidr, Host, ListenConfig, ListenerId, Mac, NeighbourMessage, Steering, TcpId,
};
use fullsend_tcp::{State, TcpError};
use fullsend_wire::ethernet::EthernetView;
use fullsend_wire::numbers::ethertype;
use fullsend_wire::{Instant, Nanos, Seed};

const SHARDS: usize = 3;
const OURS: u8 = 1;
const PEER: u8 = 2;

/// A frame that a shard has sent.
struct Sent {
    shard: usize,
    dst: Mac,
    ethertype: u16,
    is_solicitation: bool,
}

/// The shards of one stack, and a peer on their link.
struct Net {
    steering: Steering,
    shards: Vec<Host>,
    /// `None` while it is off.
    peer: Option<Host>,
    now: Instant,
    /// Whether messages between the shards are lost.
    loses_messages: bool,
    messages: Vec<(usize, NeighbourMessage)>,
    sent: Vec<Sent>,
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns a peer with the hardware address number `mac`.
fn peer(now: Instant, mac: u8) -> Host {
    let mut host = host(mac.into());
    host.add_interface(config(Link::Ethernet, Nic::Mtu, mac));
    for address in ["10.0.0.2/24", "fd00::2/64"] {
        host.add_address(now, IFACE, cidr(address)).unwrap();
    }
    host
}

impl Net {
    fn new() -> Self {
        let steering = Steering::new(Seed::from_u64(1), SHARDS);
        let now = Instant::from_nanos(1_000_000_000);
        let shards = (0..SHARDS).map(|index| {
            let mut host = host(7);
            host.set_shard(steering, index);
            host.add_interface(config(Link::Ethernet, Nic::Mtu, OURS));
            for address in ["10.0.0.1/24", "fd00::1/64"] {
                host.add_address(now, IFACE, cidr(address)).unwrap();
            }
            host
        });
        Self {
            steering,
            shards: shards.collect(),
            peer: Some(peer(now, PEER)),
            now,
            loses_messages: false,
            messages: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Carries frames and messages until there are none. Returns whether there were any.
    fn carry(&mut self) -> bool {
        let mut moved = false;
        for shard in 0..SHARDS {
            let mut out = Vec::new();
            self.shards[shard].transmit(self.now, IFACE, &mut out, 64);
            for packet in out {
                moved = true;
                self.shards[shard].complete(self.now, packet.tx);
                let bytes = packet.to_bytes();
                let view = EthernetView::new(&bytes).unwrap();
                self.sent.push(Sent {
                    shard,
                    dst: view.dst(),
                    ethertype: view.ethertype(),
                    is_solicitation: view.ethertype() == ethertype::ARP && view.payload()[7] == 1
                        || view.ethertype() == ethertype::IPV6 && view.payload()[40] == 135,
                });
                if let Some(peer) = &mut self.peer {
                    let frame = Packet::from_frame(Slice::copied_from(&bytes));
                    peer.receive(self.now, IFACE, &mut vec![frame]);
                }
            }
            for (to, message) in self.shards[shard].take_neighbour_messages() {
                moved = true;
                self.messages.push((to, message));
                if !self.loses_messages {
                    self.shards[to].on_neighbour_message(self.now, message);
                }
            }
        }
        let mut out = Vec::new();
        if let Some(peer) = &mut self.peer {
            peer.transmit(self.now, IFACE, &mut out, 64);
            for packet in &out {
                peer.complete(self.now, packet.tx);
            }
        }
        moved |= !out.is_empty();
        for packet in out {
            self.receive(&packet.to_bytes());
        }
        moved
    }

    /// Passes a frame to the shard that it belongs to.
    fn receive(&mut self, frame: &[u8]) {
        let frame = Packet::from_frame(Slice::copied_from(frame));
        let shard = self.steering.target(Link::Ethernet, &frame);
        self.shards[shard].receive(self.now, IFACE, &mut vec![frame]);
        for (to, packet) in self.shards[shard].take_misdirected() {
            self.shards[to].receive(self.now, IFACE, &mut vec![packet]);
        }
    }

    fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            while self.carry() {}
            let hosts = self.shards.iter_mut().chain(&mut self.peer);
            let next = hosts.filter_map(|host| host.poll_deadline()).min();
            self.now = match next {
                Some(at) if at <= end => self.now.max(at),
                _ => return self.now = end,
            };
            let now = self.now;
            let hosts = self.shards.iter_mut().chain(&mut self.peer);
            hosts.for_each(|host| host.poll(now));
        }
    }

    fn seconds(&mut self, seconds: u64) {
        self.run_for(Nanos::from_secs(seconds));
    }

    /// Lets the peer listen, after the hosts have their addresses.
    fn listen(&mut self) -> ListenerId {
        self.seconds(3);
        let config = ListenConfig {
            backlog: 64,
            defer_syn_ack: false,
            any_destination: false,
        };
        let peer = self.peer.as_mut().unwrap();
        peer.tcp_listen(at("[::]:80"), config).unwrap()
    }

    fn connect(&mut self, shard: usize, to: &str) -> TcpId {
        let now = self.now;
        self.shards[shard].tcp_connect(now, None, at(to)).unwrap()
    }

    fn state(&mut self, shard: usize, id: TcpId) -> State {
        self.shards[shard].tcp(id).state().unwrap()
    }

    fn write(&mut self, shard: usize, id: TcpId, data: &[u8]) {
        let now = self.now;
        let written = self.shards[shard].tcp(id).write(now, data, false);
        assert_eq!(written, Ok(data.len()));
    }

    /// Returns a counter of all shards together.
    fn counter(&self, name: &str) -> u64 {
        let of = |host: &Host| {
            let counters = host.counters();
            counters.iter().find(|(n, _)| *n == name).unwrap().1
        };
        self.shards.iter().map(of).sum()
    }

    /// Returns the frames of a shard since the last call.
    fn sent(&mut self, shard: usize) -> Vec<Sent> {
        let (of_shard, others) = self.sent.drain(..).partition(|sent| sent.shard == shard);
        self.sent = others;
        of_shard
    }
}

fn mac(number: u8) -> Mac {
    config(Link::Ethernet, Nic::Mtu, number).mac
}

/// Returns an ARP message.
fn arp(operation: u8, sender: (Mac, [u8; 4]), target: [u8; 4]) -> Vec<u8> {
    let (mac, ip) = sender;
    let mut frame = vec![0xff; 6];
    frame.extend(mac.0);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(mac.0);
    frame.extend(ip);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

#[test]
fn the_first_shard_alone_resolves_and_detects_duplicates() {
    let mut net = Net::new();
    assert!(net.shards.iter().all(|host| {
        let states = host.addresses();
        states
            .iter()
            .any(|own| own.state == AddressState::Tentative)
    }));
    net.listen();
    for to in ["10.0.0.2:80", "[fd00::2]:80"] {
        let ids: Vec<_> = (0..SHARDS).map(|shard| net.connect(shard, to)).collect();
        net.seconds(1);
        for (shard, id) in ids.into_iter().enumerate() {
            assert_eq!(net.state(shard, id), State::Established, "{shard} {to}");
        }
    }
    assert!(net.sent(0).iter().any(|sent| sent.is_solicitation));
    for shard in 1..SHARDS {
        let sent = net.sent(shard);
        assert!(!sent.is_empty() && sent.iter().all(|sent| !sent.is_solicitation));
        assert!(sent.iter().all(|sent| sent.dst == mac(PEER)));
    }
    // The result of the detection for each other shard, and a request and an answer for each
    // neighbour.
    assert_eq!(net.messages.len(), (SHARDS - 1) * (1 + 2 * 2));
}

#[test]
fn an_unreachable_neighbour_is_reported_by_the_shard_of_the_flow() {
    let mut net = Net::new();
    net.listen();
    for to in ["10.0.0.77:80", "[fd00::77]:80"] {
        for shard in 0..SHARDS {
            net.sent.clear();
            let id = net.connect(shard, to);
            net.seconds(4);
            assert_eq!(net.state(shard, id), State::Closed, "{to}");
            let error = net.shards[shard].tcp(id).take_error();
            assert_eq!(error, Ok(Some(TcpError::HostUnreachable)), "{to}");
            let solicitations = net.sent(0).iter().filter(|s| s.is_solicitation).count();
            assert_eq!(solicitations, 3);
        }
    }
}

#[test]
fn lost_messages_are_repeated() {
    let mut net = Net::new();
    net.listen();
    net.loses_messages = true;
    let id = net.connect(1, "10.0.0.2:80");
    net.run_for(Nanos::from_millis(1500));
    assert_eq!(net.state(1, id), State::SynSent);
    net.loses_messages = false;
    net.run_for(Nanos::from_millis(600));
    assert_eq!(net.state(1, id), State::Established);
    // With all messages lost, the shard itself reports the failure.
    net.loses_messages = true;
    let id = net.connect(1, "[fd00::2]:80");
    net.seconds(4);
    let error = net.shards[1].tcp(id).take_error();
    assert_eq!(error, Ok(Some(TcpError::HostUnreachable)));
}

#[test]
fn a_changed_hardware_address_reaches_all_shards() {
    let mut net = Net::new();
    net.listen();
    let ids: Vec<_> = (0..SHARDS)
        .map(|shard| net.connect(shard, "10.0.0.2:80"))
        .collect();
    net.seconds(1);
    let other = mac(9);
    net.receive(&arp(1, (other, [10, 0, 0, 2]), [10, 0, 0, 2]));
    while net.carry() {}
    net.sent.clear();
    for (shard, id) in ids.into_iter().enumerate() {
        net.write(shard, id, b"data");
        net.carry();
        let sent = net.sent(shard);
        let data = sent.iter().filter(|sent| sent.ethertype == ethertype::IPV4);
        assert!(data.clone().count() > 0);
        assert!(data.into_iter().all(|sent| sent.dst == other), "{shard}");
    }
}

/// RFC 4861 7.3: the entry becomes stale, its use is a reason to probe, and without an answer it is
/// removed. The next packet begins the resolution again.
#[test]
fn unreachability_is_detected_for_the_flows_of_other_shards() {
    let mut net = Net::new();
    net.listen();
    let id = net.connect(1, "10.0.0.2:80");
    net.seconds(1);
    net.sent.clear();
    net.messages.clear();
    // While it is unused, it is not probed.
    net.seconds(60);
    assert!(net.sent(0).iter().all(|sent| !sent.is_solicitation) && net.messages.is_empty());
    // It is confirmed for a flow of shard 1 by a probe of the first.
    net.write(1, id, b"a");
    net.seconds(10);
    let sent = net.sent(0);
    let probes: Vec<_> = sent.iter().filter(|sent| sent.is_solicitation).collect();
    assert_eq!(probes.len(), 1);
    assert_eq!(probes[0].dst, mac(PEER));
    assert_eq!(net.messages.len(), 2, "a request and its answer");
    // Then the peer fails.
    let off = net.peer.take();
    net.write(1, id, b"b");
    net.seconds(60);
    let sent = net.sent(0);
    let unicast = sent.iter().filter(|sent| sent.dst == mac(PEER)).count();
    assert_eq!(unicast, 3);
    assert!(sent.iter().any(|sent| sent.dst == Mac::BROADCAST));
    assert_eq!(net.state(1, id), State::Established);
    // And returns.
    net.peer = off;
    net.seconds(120);
    let peer = net.peer.as_ref().unwrap();
    assert_eq!(peer.tcp_socket_count(), 1);
    let queues = net.shards[1].tcp(id).queues().unwrap();
    assert_eq!(queues.unacked, 0, "acknowledged");
}

/// The neighbour was confirmed for the first shard, and is resolved for a flow of another shortly before
/// it is due to be confirmed again.
#[test]
fn unreachability_is_detected_as_soon_for_a_shard_that_resolves_late() {
    let mut net = Net::new();
    net.listen();
    net.connect(0, "10.0.0.2:80");
    net.seconds(25);
    let id = net.connect(1, "10.0.0.2:80");
    net.seconds(1);
    assert_eq!(net.state(1, id), State::Established);
    net.peer = None;
    net.sent.clear();
    net.write(1, id, b"data");
    net.seconds(20);
    let sent = net.sent(0);
    let mut probes = sent.iter().filter(|sent| sent.is_solicitation);
    assert!(probes.any(|sent| sent.dst == mac(PEER)));
}

/// Unauthenticated hosts make entries in the first shard's table alone, and do not remove those
/// that other shards use.
#[test]
fn a_flood_of_neighbours_leaves_the_other_shards_alone() {
    let mut net = Net::new();
    net.listen();
    let id = net.connect(1, "10.0.0.2:80");
    net.seconds(1);
    net.messages.clear();
    net.sent.clear();
    for n in 0..5000u16 {
        let [high, low] = n.to_be_bytes();
        let sender = (Mac([2, 9, 9, 9, high, low]), [10, 0, high + 1, low]);
        net.receive(&arp(1, sender, [10, 0, 0, 1]));
        net.carry();
    }
    assert!(net.messages.is_empty());
    net.write(1, id, &bytes(1000));
    net.run_for(Nanos::from_millis(500));
    assert_eq!(net.shards[1].tcp(id).queues().unwrap().unacked, 0);
    assert!(net.messages.is_empty());
    // A change is still reported.
    net.receive(&arp(1, (mac(9), [10, 0, 0, 2]), [10, 0, 0, 2]));
    net.carry();
    assert_eq!(net.messages.len(), 1);
}

#[test]
fn a_duplicate_address_is_used_by_no_shard() {
    let mut net = Net::new();
    let now = net.now;
    net.listen();
    for host in &mut net.shards {
        host.add_address(now, IFACE, cidr("fd00::2/64")).unwrap();
    }
    net.seconds(2);
    for host in &net.shards {
        let states: Vec<_> = host.addresses().iter().map(|own| own.state).collect();
        let preferred = AddressState::Preferred;
        assert_eq!(states, [preferred, preferred, AddressState::Duplicate]);
    }
    assert_eq!(net.counter("Ip6DadDuplicates"), 1);
}
