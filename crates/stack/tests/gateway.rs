//! What transparent gateways need of a host: packets to any destination, answers from any address,
//! and the role of a router on Ethernet.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use common::{IFACE, Net, Nic, config, host};
use fullsend_offload::Slice;
use fullsend_offload::{Link, Packet};
use fullsend_stack::{
    Cidr, Host, IfaceConfig, ListenConfig, NeighbourConfig, StackError, UnreachableCode,
};
use fullsend_tcp::{State, TcpError};
use fullsend_wire::arp::{ArpOperation, ArpRepr};
use fullsend_wire::ethernet::{EthernetRepr, Mac};
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::ndp::NdpRepr;
use fullsend_wire::numbers::ethertype;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{Instant, Nanos, SeqNum, WireWindow};

/// Addresses of other hosts, for which host 1 is the gateway of host 0.
const FAR: [&str; 2] = ["203.0.113.5", "2001:db8::5"];

/// Two hosts, of which the first sends everything to the second.
fn net() -> Net {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    for destination in ["0.0.0.0/0", "::/0"] {
        for host in &mut net.hosts {
            host.add_route(destination.parse().unwrap(), None, IFACE)
                .unwrap();
        }
    }
    net
}

fn at(ip: &str, port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::new(ip.parse().unwrap(), port)
}

#[test]
fn the_socket_for_any_destination_gets_what_no_other_socket_is_bound_for() {
    let mut net = net();
    let gateway = &mut net.hosts[1];
    let any = gateway.udp_bind_any().unwrap();
    assert!(matches!(
        gateway.udp_bind_any(),
        Err(StackError::AddressInUse(_))
    ));
    let bound = gateway.udp_bind("[::]:53".parse().unwrap()).unwrap();
    let client = net.hosts[0].udp_bind("[::]:4000".parse().unwrap()).unwrap();
    let own = net.hosts[1]
        .source_address(FAR[0].parse().unwrap())
        .unwrap();
    for (to, at_any) in [
        (at(FAR[0], 53), true),
        (at(FAR[1], 53), true),
        (at(&own.to_string(), 54), true),
        // A socket that is bound to the port has it on the host's own addresses only.
        (at(&own.to_string(), 53), false),
    ] {
        let data = Slice::copied_from(b"query");
        let sent = net.hosts[0].udp(client).send_to(net.now, data, to, None);
        sent.unwrap();
        net.run_for(Nanos::from_millis(1));
        let (receiver, other) = if at_any { (any, bound) } else { (bound, any) };
        assert!(net.hosts[1].udp(other).recv().unwrap().is_none(), "{to}");
        let (_, from, received_at) = net.hosts[1].udp(receiver).recv().unwrap().expect("data");
        assert_eq!(received_at, to);
        let answer = Slice::copied_from(b"answer");
        let mut socket = net.hosts[1].udp(receiver);
        socket.send_to(net.now, answer, from, Some(to)).unwrap();
        net.run_for(Nanos::from_millis(1));
        let (_, from, _) = net.hosts[0].udp(client).recv().unwrap().expect("answer");
        assert_eq!(from, to);
    }
    net.hosts[1].udp(any).close(net.now);
    net.hosts[1]
        .udp_bind_any()
        .expect("the place is free again");
}

#[test]
fn fragments_to_any_destination_are_reassembled() {
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    for host in &mut net.hosts {
        host.add_route("0.0.0.0/0".parse().unwrap(), None, IFACE)
            .unwrap();
    }
    let any = net.hosts[1].udp_bind_any().unwrap();
    let client = net.hosts[0].udp_bind("0.0.0.0:4000".parse().unwrap());
    let data = Slice::copied_from(&common::bytes(20_000));
    let mut client = net.hosts[0].udp(client.unwrap());
    client.send_to(net.now, data, at(FAR[0], 9), None).unwrap();
    net.run_for(Nanos::from_millis(1));
    let (payload, ..) = net.hosts[1].udp(any).recv().unwrap().expect("a datagram");
    assert_eq!(payload.len(), 20_000);
}

#[test]
fn echo_requests_to_other_hosts_are_queued_and_answered_by_the_application() {
    let mut net = net();
    let mut request = vec![8, 0, 0, 0, 0, 7, 0, 1];
    request.extend(b"data");
    let (from, to) = (common::V4[0].parse().unwrap(), FAR[0].parse().unwrap());
    let send = |net: &mut Net, message: Vec<u8>| {
        let sent = net.hosts[0].icmp_send(net.now, (from, to), message, None);
        sent.unwrap();
        net.run_for(Nanos::from_millis(1));
    };
    send(&mut net, request.clone());
    assert!(net.hosts[1].icmp_recv().is_none(), "the queue is closed");
    net.hosts[1].icmp_open().unwrap();
    send(&mut net, request.clone());
    let received = net.hosts[1].icmp_recv().expect("a request");
    assert_eq!((received.from, received.to), (from, to));
    assert_eq!(received.message.len(), request.len());
    // Other messages to other hosts are not for the application.
    send(&mut net, vec![0, 0, 0, 0, 0, 7, 0, 1]);
    assert!(net.hosts[1].icmp_recv().is_none());
    // The host answers for its own address.
    let own = (from, common::V4[1].parse().unwrap());
    net.hosts[0].icmp_send(net.now, own, request, None).unwrap();
    net.run_for(Nanos::from_millis(1));
    assert!(net.hosts[1].icmp_recv().is_none());
    assert_eq!(net.counter(0, "IcmpInEchoReps"), 1);
}

/// RFC 4861 6.1.1: a router solicitation with another hop limit comes from another link.
#[test]
fn only_router_solicitations_of_the_link_are_queued() {
    let mut net = net();
    net.hosts[1].icmp_open().unwrap();
    let addrs = (common::V6[0].parse().unwrap(), "ff02::2".parse().unwrap());
    for (hop_limit, queued) in [(255, true), (254, false)] {
        let solicit = vec![133, 0, 0, 0, 0, 0, 0, 0];
        let sent = net.hosts[0].icmp_send(net.now, addrs, solicit, Some(hop_limit));
        sent.unwrap();
        net.run_for(Nanos::from_millis(1));
        assert_eq!(net.hosts[1].icmp_recv().is_some(), queued, "{hop_limit}");
    }
}

#[test]
fn the_queue_of_messages_is_bounded() {
    let mut net = net();
    net.hosts[1].icmp_open().unwrap();
    let addrs = (common::V4[0].parse().unwrap(), FAR[0].parse().unwrap());
    for _ in 0..2000 {
        let mut message = vec![8; 8];
        message.resize(1000, 0);
        message[1] = 0;
        net.hosts[0]
            .icmp_send(net.now, addrs, message, None)
            .unwrap();
        net.run_for(Nanos::from_micros(100));
    }
    let queued = std::iter::from_fn(|| net.hosts[1].icmp_recv()).count();
    assert!((50..=212).contains(&queued), "{queued} messages");
    assert_eq!(net.hosts[1].icmp_dropped(), 2000 - queued as u64);
}

/// Connects host 0 to `to`, and returns the connection and the deferred SYN at the gateway.
fn deferred(net: &mut Net, to: &str) -> (fullsend_stack::TcpId, fullsend_stack::TcpId) {
    let config = ListenConfig {
        backlog: 16,
        defer_syn_ack: true,
        any_destination: true,
    };
    let listener = net.hosts[1].tcp_listen("[::]:0".parse().unwrap(), config);
    let listener = listener.unwrap();
    let client = net.hosts[0].tcp_connect(net.now, None, at(to, 80)).unwrap();
    net.run_for(Nanos::from_millis(1));
    let incoming = net.hosts[1].listener(listener).accept().unwrap();
    (client, incoming.expect("a SYN").id)
}

#[test]
fn a_deferred_syn_is_rejected_with_the_error_of_the_destination() {
    for (code, errors) in [
        (
            UnreachableCode::Network,
            [TcpError::NetworkUnreachable, TcpError::NetworkUnreachable],
        ),
        (
            UnreachableCode::Host,
            [TcpError::HostUnreachable, TcpError::HostUnreachable],
        ),
        (
            UnreachableCode::Port,
            [TcpError::ConnectionRefused, TcpError::ConnectionRefused],
        ),
    ] {
        for (far, expected) in FAR.into_iter().zip(errors) {
            let mut net = net();
            let (client, syn) = deferred(&mut net, far);
            let now = net.now;
            net.hosts[1]
                .tcp(syn)
                .reject_deferred_with(now, code)
                .unwrap();
            net.run_for(Nanos::from_millis(1));
            assert_eq!(net.hosts[0].tcp(client).state(), Ok(State::Closed));
            assert_eq!(net.hosts[0].tcp(client).take_error(), Ok(Some(expected)));
        }
    }
}

#[test]
fn a_dropped_deferred_syn_gets_no_answer() {
    let mut net = net();
    let (client, syn) = deferred(&mut net, FAR[0]);
    net.hosts[1].tcp(syn).drop_deferred().unwrap();
    net.run_for(Nanos::from_millis(10));
    assert_eq!(net.hosts[0].tcp(client).state(), Ok(State::SynSent));
    assert_eq!(
        net.hosts[1].tcp(syn).drop_deferred(),
        Err(StackError::NoSuchSocket)
    );
}

#[test]
fn a_deferred_syn_replaces_a_connection_in_time_wait() {
    let mut net = net();
    let config = ListenConfig {
        backlog: 16,
        defer_syn_ack: true,
        any_destination: true,
    };
    let any = "[::]:0".parse().unwrap();
    let listener = net.hosts[1].tcp_listen(any, config).unwrap();
    let isn = Rc::new(Cell::new(SeqNum::new(0)));
    let seen = isn.clone();
    net.filter = Some(Box::new(move |from, packet| {
        let (repr, _) = TcpRepr::parse(packet.transport_header()).unwrap();
        if from == 1 && repr.flags.contains(TcpFlags::SYN) {
            seen.set(repr.seq);
        }
        true
    }));
    // The client uses one port again and again.
    for round in 0..200 {
        let from = Some(at(common::V4[0], 5000));
        let client = net.hosts[0].tcp_connect(net.now, from, at(FAR[0], 80));
        let client = client.unwrap();
        net.run_for(Nanos::from_millis(1));
        let syn = net.hosts[1].listener(listener).accept().unwrap();
        let syn = syn.expect("a SYN").id;
        assert_eq!(net.hosts[1].tcp_time_wait_count(), 0, "round {round}");
        let before = isn.get();
        net.hosts[1].tcp(syn).accept_deferred(net.now).unwrap();
        net.run_for(Nanos::from_millis(1));
        assert_eq!(net.hosts[1].tcp(syn).state(), Ok(State::Established));
        // RFC 6191 2: above the old numbers.
        assert!(round == 0 || isn.get().after(before + 65_536));
        // The gateway ends first, and has the TIME-WAIT entry.
        for (host, id) in [(1, syn), (0, client)] {
            net.hosts[host].tcp(id).close(net.now);
            net.run_for(Nanos::from_millis(1));
        }
        assert_eq!(net.hosts[1].tcp_time_wait_count(), 1, "round {round}");
        // The timestamp of the next SYN is later.
        net.run_for(Nanos::from_secs(2));
    }
}

#[test]
fn a_task_that_waits_for_the_end_of_a_deferred_syn_is_woken_by_a_reset() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let mut net = net();
    let config = ListenConfig {
        backlog: 16,
        defer_syn_ack: true,
        any_destination: true,
    };
    let any = "[::]:0".parse().unwrap();
    let listener = net.hosts[1].tcp_listen(any, config).unwrap();
    let host = &mut net.hosts[1];
    let receive = |host: &mut Host, flags, seq| {
        let repr = TcpRepr {
            flags,
            seq: SeqNum::new(seq),
            window: WireWindow(1000),
            ..TcpRepr::default()
        };
        let segment = common::forge::tcp(at(common::V4[0], 9), at(FAR[0], 80), repr, b"");
        host.receive(net.now, IFACE, &mut vec![segment]);
        let mut wakers = Vec::new();
        host.take_wakers(&mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    };
    receive(host, TcpFlags::SYN, 7);
    let syn = host.listener(listener).accept().unwrap().unwrap().id;
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    assert!(!host.tcp(syn).poll_deferred_ended(&waker));
    // A retransmission, and a segment outside of the connection (RFC 9293 3.10.7.4).
    receive(host, TcpFlags::SYN, 7);
    receive(host, TcpFlags::RST, 6);
    assert!(!woken.0.load(Ordering::Relaxed));
    receive(host, TcpFlags::RST, 8);
    assert!(woken.0.swap(false, Ordering::Relaxed));
    assert!(host.tcp(syn).poll_deferred_ended(&waker));

    receive(host, TcpFlags::SYN, 107);
    let syn = host.listener(listener).accept().unwrap().unwrap().id;
    assert!(!host.tcp(syn).poll_deferred_ended(&waker));
    host.tcp(syn).accept_deferred(net.now).unwrap();
    let mut wakers = Vec::new();
    host.take_wakers(&mut wakers);
    wakers.into_iter().for_each(Waker::wake);
    assert!(woken.0.load(Ordering::Relaxed), "it was accepted");
    assert!(host.tcp(syn).poll_deferred_ended(&waker));
}

#[test]
fn a_gateway_connects_from_the_address_of_its_client() {
    let mut net = net();
    for (family, far) in FAR.into_iter().enumerate() {
        let local = [common::V4, common::V6][family][0];
        let listener = net.listen(0, "[::]:80");
        let remote = at(local, 80);
        let id = net.hosts[1]
            .tcp_connect_from(net.now, at(far, 5000), remote)
            .unwrap();
        let again = net.hosts[1].tcp_connect_from(net.now, at(far, 5000), remote);
        assert!(matches!(again, Err(StackError::AddressInUse(_))));
        net.run_for(Nanos::from_millis(1));
        assert_eq!(net.hosts[1].tcp(id).state(), Ok(State::Established));
        let incoming = net.hosts[0].listener(listener).accept().unwrap().unwrap();
        assert_eq!(incoming.remote, at(far, 5000));
        net.hosts[0].listener(listener).close(net.now);
    }
    let wrong = net.hosts[1].tcp_connect_from(net.now, at(FAR[1], 1), at(common::V4[0], 80));
    assert!(matches!(wrong, Err(StackError::AddressNotAvailable(_))));
}

/// A router on Ethernet with 10.0.0.1 and fd00::1.
fn router(proxy: bool) -> Host {
    let mut host = host(1);
    let iface = host.add_interface(IfaceConfig {
        neighbours: NeighbourConfig {
            detect_duplicates: false,
            router: true,
            proxy,
        },
        ..config(Link::Ethernet, Nic::Mtu, 1)
    });
    for cidr in ["10.0.0.1/24", "fd00::1/64"] {
        let cidr: Cidr = cidr.parse().unwrap();
        host.add_address(Instant::ZERO, iface, cidr).unwrap();
    }
    host
}

const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Sends an ARP request. Returns whether it is answered.
fn answers_arp(host: &mut Host, sender: &str, target: &str) -> bool {
    let request = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: CLIENT_MAC,
        sender: sender.parse().unwrap(),
        target_mac: Mac::ZERO,
        target: target.parse().unwrap(),
    };
    let mut frame = vec![0; 14 + 28];
    let link = EthernetRepr {
        dst: Mac::BROADCAST,
        src: CLIENT_MAC,
        vlan: None,
        ethertype: ethertype::ARP,
    };
    link.emit(&mut frame[..14]);
    request.emit(&mut frame[14..]);
    let mut frames = vec![Packet::from_frame(Slice::copied_from(&frame))];
    host.receive(Instant::ZERO, IFACE, &mut frames);
    let mut out = Vec::new();
    host.transmit(Instant::ZERO, IFACE, &mut out, 64);
    !out.is_empty()
}

#[test]
fn a_proxy_answers_for_other_hosts_but_not_for_the_sender() {
    for (sender, target, own_only, proxy) in [
        ("10.0.0.9", "10.0.0.1", true, true),
        ("10.0.0.9", "10.0.0.7", false, true),
        ("10.0.0.9", "10.0.0.9", false, false),
        // A probe for an address that the sender is about to use (RFC 5227 2.1.1).
        ("0.0.0.0", "10.0.0.7", false, false),
    ] {
        for (on, expected) in [(false, own_only), (true, proxy)] {
            let answered = answers_arp(&mut router(on), sender, target);
            assert_eq!(answered, expected, "{sender} {target} {on}");
        }
    }
}

#[test]
fn a_router_uses_its_addresses_at_once_and_advertises_itself_as_one() {
    let mut host = router(false);
    assert!(
        host.addresses()
            .iter()
            .all(|own| own.state == fullsend_stack::AddressState::Preferred)
    );
    let (client, own) = ("fd00::9".parse().unwrap(), "fd00::1".parse().unwrap());
    let solicit = Icmpv6Repr::Ndp(NdpRepr::NeighbourSolicit {
        target: own,
        source_mac: Some(CLIENT_MAC),
        nonce: None,
    });
    let mut message = vec![0; solicit.len()];
    solicit.emit(client, own, &mut message);
    let mut frame = vec![0; 14];
    let link = EthernetRepr {
        dst: Mac([2, 0, 0, 0, 0, 1]),
        src: CLIENT_MAC,
        vlan: None,
        ethertype: ethertype::IPV6,
    };
    link.emit(&mut frame);
    let mut packet = common::forge::ip(client.into(), own.into(), 58, &message).to_bytes();
    packet[7] = 255;
    frame.extend(packet);
    let mut frames = vec![Packet::from_frame(Slice::copied_from(&frame))];
    host.receive(Instant::ZERO, IFACE, &mut frames);
    let mut out = Vec::new();
    host.transmit(Instant::ZERO, IFACE, &mut out, 64);
    let answer = out[0].to_bytes();
    let Ok(Icmpv6Repr::Ndp(NdpRepr::NeighbourAdvert { router, .. })) =
        Icmpv6Repr::parse(&answer[14 + 40..])
    else {
        panic!("{answer:?}");
    };
    assert!(router);
}
