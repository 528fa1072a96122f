//! UDP, ICMP, fragments, neighbours, and invalid packets.

mod common;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use common::{Count, IFACE, Net, Nic, V4, V6, bytes, config, forge, host, wake_all};
use fullsend_offload::{Link, Packet, Slice};
use fullsend_stack::{Cidr, Interest, ListenerId, StackError, TcpId, UdpId};
use fullsend_tcp::{State, TcpError};
use fullsend_wire::icmpv4::{Icmpv4Repr, unreachable};
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::numbers::protocol;
use fullsend_wire::{Instant, Nanos};
use proptest::prelude::*;

const ALL: [(Link, Nic); 4] = [
    (Link::Ip, Nic::Tso),
    (Link::Ip, Nic::Mtu),
    (Link::Ethernet, Nic::Tso),
    (Link::Ethernet, Nic::Mtu),
];

fn recv(net: &mut Net, who: usize, id: UdpId) -> Option<(Vec<u8>, String, String)> {
    net.run_for(Nanos::from_millis(10));
    let (payload, from, to) = net.hosts[who].udp(id).recv().unwrap()?;
    let mut data = vec![0; payload.len()];
    payload.copy_to(&mut data);
    Some((data, from.to_string(), to.to_string()))
}

/// GRO joins datagrams of one size; the reader still gets each of them.
#[test]
fn datagrams_in_a_row_are_read_one_by_one() {
    for (link, nic) in ALL {
        for at in [format!("{}:53", V4[1]), format!("[{}]:53", V6[1])] {
            let mut net = Net::new(link, nic);
            let client = net.hosts[0].udp_bind("[::]:1000".parse().unwrap()).unwrap();
            let server = net.hosts[1].udp_bind("[::]:53".parse().unwrap()).unwrap();
            let to = at.parse().unwrap();
            let sent: Vec<_> = [1000, 1000, 1000, 400, 0, 7]
                .iter()
                .enumerate()
                .map(|(i, len)| vec![i as u8; *len])
                .collect();
            for data in &sent {
                let (now, slice) = (net.now, Slice::copied_from(data));
                net.hosts[0]
                    .udp(client)
                    .send_to(now, slice, to, None)
                    .unwrap();
            }
            let got: Vec<_> = sent
                .iter()
                .map(|_| recv(&mut net, 1, server).unwrap().0)
                .collect();
            assert!(got == sent, "{link:?} {nic:?} {at}");
            assert_eq!(recv(&mut net, 1, server), None);
        }
    }
}

#[test]
fn datagrams_cross_whole_or_in_fragments_and_are_answered() {
    for (link, nic) in ALL {
        for (a, b) in [
            (format!("{}:1000", V4[0]), format!("{}:53", V4[1])),
            (format!("[{}]:1000", V6[0]), format!("[{}]:53", V6[1])),
        ] {
            let mut net = Net::new(link, nic);
            let client = net.hosts[0].udp_bind(a.parse().unwrap()).unwrap();
            let server = net.hosts[1].udp_bind("[::]:53".parse().unwrap()).unwrap();
            let (count, waker) = Count::waker();
            assert_eq!(
                net.hosts[1].udp(server).poll_ready(Interest::Read, &waker),
                Ok(false)
            );
            // RFC 768: up to the maximum of the length fields of UDP and IP.
            let most = if a.starts_with('[') { 65_527 } else { 65_507 };
            for len in [0, 1, 1400, 1473, 20_000, 65_000, 65_488, most] {
                let data = bytes(len);
                let (now, slice) = (net.now, Slice::copied_from(&data));
                let to = b.parse().unwrap();
                net.hosts[0]
                    .udp(client)
                    .send_to(now, slice, to, None)
                    .unwrap();
                assert_eq!(
                    recv(&mut net, 1, server),
                    Some((data, a.clone(), b.clone())),
                    "{link:?} {nic:?} {len}"
                );
            }
            wake_all(&mut net.hosts[1]);
            assert_eq!(count.get(), 1);
            let (now, to) = (net.now, a.parse().unwrap());
            let answer = Slice::copied_from(b"answer");
            net.hosts[1]
                .udp(server)
                .send_to(now, answer, to, None)
                .unwrap();
            let got = recv(&mut net, 0, client);
            assert_eq!(got, Some((b"answer".to_vec(), b.clone(), a.clone())));
        }
    }
}

/// Over loopback, the longest datagram of IPv6 makes a packet that exceeds the MTU of 65,536.
#[test]
fn the_longest_datagrams_arrive_over_loopback() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    for (own, len) in [("[fd00::1]:9", 65_527), ("10.0.0.1:9", 65_507)] {
        let id = net.hosts[0].udp_bind(own.parse().unwrap()).unwrap();
        let (now, data) = (net.now, bytes(len));
        let slice = Slice::copied_from(&data);
        let to = own.parse().unwrap();
        net.hosts[0].udp(id).send_to(now, slice, to, None).unwrap();
        let got = recv(&mut net, 0, id);
        assert_eq!(got, Some((data, own.into(), own.into())));
    }
}

#[test]
fn a_datagram_to_a_closed_port_draws_port_unreachable() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let client = net.hosts[0].udp_bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let (now, to) = (net.now, "10.0.0.2:9".parse().unwrap());
    net.hosts[0]
        .udp(client)
        .send_to(now, Slice::copied_from(b"x"), to, None)
        .unwrap();
    net.run_for(Nanos::from_millis(10));
    assert_eq!(net.counter(1, "UdpNoPorts"), 1);
    assert_eq!(net.counter(1, "IcmpOutDestUnreachs"), 1);
    assert_eq!(net.counter(0, "IcmpInDestUnreachs"), 1);
}

#[test]
fn a_gateway_answers_from_the_destination_address() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let client = net.hosts[0]
        .udp_bind("10.0.0.1:99".parse().unwrap())
        .unwrap();
    let server = net.hosts[1]
        .udp_bind("0.0.0.0:53".parse().unwrap())
        .unwrap();
    let (now, to) = (net.now, "10.0.0.1:99".parse().unwrap());
    let source = "203.0.113.9:53".parse().unwrap();
    net.hosts[1]
        .udp(server)
        .send_to(now, Slice::copied_from(b"x"), to, Some(source))
        .unwrap();
    let got = recv(&mut net, 0, client).unwrap();
    assert_eq!(got.1, "203.0.113.9:53");
}

#[test]
fn connecting_to_an_ipv4_mapped_address_accepts_the_ipv4_peer() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let now = net.now;
    let server = net.hosts[1].udp_bind("[::]:53".parse().unwrap()).unwrap();
    let mapped = "[::ffff:10.0.0.1]:99".parse().unwrap();
    net.hosts[1].udp(server).connect(Some(mapped)).unwrap();
    for from in ["10.0.0.1:98", "10.0.0.1:99"] {
        let client = net.hosts[0].udp_bind(from.parse().unwrap()).unwrap();
        let data = Slice::copied_from(from.as_bytes());
        let to = "10.0.0.2:53".parse().unwrap();
        let sent = net.hosts[0].udp(client).send_to(now, data, to, None);
        sent.unwrap();
    }
    let got = recv(&mut net, 1, server).unwrap();
    assert_eq!(got.1, "10.0.0.1:99");
    assert!(recv(&mut net, 1, server).is_none());
}

#[test]
fn sockets_on_an_ipv4_mapped_address_serve_ipv4_peers() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let now = net.now;
    let mapped = "[::ffff:10.0.0.2]:53".parse().unwrap();
    let server = net.hosts[1].udp_bind(mapped).unwrap();
    let client = net.hosts[0]
        .udp_bind("10.0.0.1:99".parse().unwrap())
        .unwrap();
    let to = "10.0.0.2:53".parse().unwrap();
    let query = Slice::copied_from(b"query");
    let sent = net.hosts[0].udp(client).send_to(now, query, to, None);
    sent.unwrap();
    assert!(recv(&mut net, 1, server).is_some());
    let now = net.now;
    let client_addr = "10.0.0.1:99".parse().unwrap();
    let reply = Slice::copied_from(b"reply");
    let source = Some(mapped);
    let sent = net.hosts[1]
        .udp(server)
        .send_to(now, reply, client_addr, source);
    sent.unwrap();
    assert!(recv(&mut net, 0, client).is_some());

    let listener = net.listen(1, "[::ffff:10.0.0.2]:53");
    net.connect_to(listener, "10.0.0.2:53");
}

#[test]
fn udp_errors_name_the_cause() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let now = net.now;
    let host = &mut net.hosts[0];
    let there = "192.0.2.1:80".parse().unwrap();
    assert_eq!(
        host.udp_bind(there),
        Err(StackError::AddressNotAvailable(there))
    );
    let id = host.udp_bind("10.0.0.1:80".parse().unwrap()).unwrap();
    let again = "0.0.0.0:80".parse().unwrap();
    assert_eq!(host.udp_bind(again), Err(StackError::AddressInUse(again)));
    let small = Slice::copied_from(b"x");
    let error = host.udp(id).send_to(now, small, there, None).unwrap_err();
    assert_eq!(error, StackError::NoRoute(there.ip()));
    let big = Slice::copied_from(&bytes(70_000));
    let error = host
        .udp(id)
        .send_to(now, big, "10.0.0.2:1".parse().unwrap(), None);
    let (len, max) = (70_000, 65_507);
    assert_eq!(error, Err(StackError::MessageTooLong { len, max }));
    let big = Slice::copied_from(&bytes(65_528));
    let v6 = host.udp_bind("[fd00::1]:80".parse().unwrap()).unwrap();
    let error = host
        .udp(v6)
        .send_to(now, big, "[fd00::2]:1".parse().unwrap(), None);
    let (len, max) = (65_528, 65_527);
    assert_eq!(error, Err(StackError::MessageTooLong { len, max }));
    host.udp(id).close(Instant::ZERO);
    assert_eq!(host.udp(id).addr(), Err(StackError::NoSuchSocket));
}

#[test]
fn ephemeral_ports_come_from_the_configured_range() {
    let mut host = host(1);
    host.sysctl_mut()
        .set("net.ipv4.ip_local_port_range", "40000 40003")
        .unwrap();
    let mut bind = || host.udp_bind("0.0.0.0:0".parse().unwrap());
    let ids: Vec<_> = (0..4).map(|_| bind().unwrap()).collect();
    assert_eq!(bind(), Err(StackError::NoPorts));
    for id in ids {
        assert!((40_000..=40_003).contains(&host.udp(id).addr().unwrap().port()));
    }
}

/// Returns an IP packet as a device yields it.
fn ip_frame(src: &str, dst: &str, protocol: u8, body: &[u8]) -> Packet {
    forge::ip(src.parse().unwrap(), dst.parse().unwrap(), protocol, body)
}

#[test]
fn pings_are_answered() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let request = Icmpv4Repr::EchoRequest {
        ident: 7,
        seq: 9,
        data: b"abcdefgh",
    };
    let mut message = vec![0; request.len()];
    request.emit(&mut message);
    let now = net.now;
    let frame = ip_frame(V4[1], V4[0], protocol::ICMP, &message);
    net.hosts[0].receive(now, IFACE, &mut vec![frame]);
    let mut out = Vec::new();
    net.hosts[0].transmit(now, IFACE, &mut out, 8);
    let reply = out.pop().unwrap().to_bytes();
    assert_eq!(reply[12..20], [10, 0, 0, 1, 10, 0, 0, 2]);
    let parsed = Icmpv4Repr::parse(&reply[20..]).unwrap();
    let expected = Icmpv4Repr::EchoReply {
        ident: 7,
        seq: 9,
        data: b"abcdefgh",
    };
    assert_eq!(parsed, expected);
    assert!(out.is_empty());
    assert_eq!(net.counter(0, "IcmpInEchos"), 1);
}

/// Keeps copies of the packets that host 0 sends.
fn capture(net: &mut Net) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let copy = seen.clone();
    net.filter = Some(Box::new(move |from, packet| {
        if from == 0 {
            copy.borrow_mut().push(packet.to_bytes());
        }
        true
    }));
    seen
}

#[test]
fn a_smaller_path_mtu_shrinks_segments_and_loses_nothing() {
    for v6 in [false, true] {
        let mut net = Net::new(Link::Ip, Nic::Mtu);
        let to = if v6 {
            format!("[{}]:80", V6[1])
        } else {
            format!("{}:80", V4[1])
        };
        let (client, server, _) = net.connect(&to);
        // A router on the path forwards at most 1300 bytes.
        let seen: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
        let dropped = seen.clone();
        net.filter = Some(Box::new(move |from, packet| {
            let fits = from != 0 || packet.len() <= 1300;
            if !fits {
                dropped.borrow_mut().get_or_insert(packet.to_bytes());
            }
            fits
        }));
        let data = bytes(200_000);
        let now = net.now;
        let written = net.hosts[0].tcp(client).write(now, &data, false).unwrap();
        net.run_for(Nanos::from_millis(1));
        let quote = seen.borrow().clone().expect("a packet over 1300 bytes");
        let now = net.now;
        net.hosts[0].receive(now, IFACE, &mut vec![too_big(v6, 1300, &quote[..100])]);
        let mut got = Vec::new();
        let mut buf = vec![0; 65_536];
        net.run_until(Nanos::from_secs(5), |net| {
            while let Ok(n @ 1..) = net.hosts[1].tcp(server).read(net.now, &mut buf) {
                got.extend_from_slice(&buf[..n]);
            }
            got.len() >= written
        });
        assert!(got == data[..written], "{} of {written} bytes", got.len());
        // The next connection uses the learned path MTU.
        net.filter = None;
        let seen = capture(&mut net);
        let listener = net.listen(1, &to.replace(":80", ":81"));
        let (client, server) = net.connect_to(listener, &to.replace(":80", ":81"));
        net.transfer((0, client), (1, server), &data);
        let longest = seen.borrow().iter().map(Vec::len).max();
        assert_eq!(longest, Some(1300));
    }
}

#[test]
fn a_forged_too_big_is_ignored() {
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    let (local, _) = net.hosts[0].tcp(client).addrs().unwrap();
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&local.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&80u16.to_be_bytes());
    let quote = ip_frame(V4[0], V4[1], protocol::TCP, &tcp).to_bytes();
    let frame = too_big(false, 600, &quote);
    let now = net.now;
    net.hosts[0].receive(now, IFACE, &mut vec![frame]);
    let seen = capture(&mut net);
    net.transfer((0, client), (1, server), &bytes(100_000));
    let longest = seen.borrow().iter().map(Vec::len).max();
    assert_eq!(longest, Some(1500));
}

/// Returns the report of a router, at host 1's address, that a packet of host 0 exceeds a path MTU
/// of `mtu`.
fn too_big(v6: bool, mtu: u16, quote: &[u8]) -> Packet {
    if v6 {
        let repr = Icmpv6Repr::PacketTooBig {
            mtu: mtu.into(),
            quote,
        };
        let mut message = vec![0; repr.len()];
        repr.emit(V6[1].parse().unwrap(), V6[0].parse().unwrap(), &mut message);
        return ip_frame(V6[1], V6[0], protocol::ICMPV6, &message);
    }
    let code = unreachable::FRAGMENTATION_NEEDED;
    let repr = Icmpv4Repr::Unreachable { code, mtu, quote };
    let mut message = vec![0; repr.len()];
    repr.emit(&mut message);
    ip_frame(V4[1], V4[0], protocol::ICMP, &message)
}

/// Sends `len` bytes by UDP from host 0 to host 1. Returns the lengths of the packets.
fn datagram_packets(net: &mut Net, id: UdpId, to: &str, len: usize) -> Vec<usize> {
    let seen = capture(net);
    let (now, data) = (net.now, Slice::copied_from(&bytes(len)));
    let to = to.parse().unwrap();
    net.hosts[0].udp(id).send_to(now, data, to, None).unwrap();
    net.run_for(Nanos::from_millis(1));
    net.filter = None;
    seen.borrow().iter().map(Vec::len).collect()
}

/// Returns the length of the longest packet of transfers on a new connection and on an existing
/// one.
fn longest_segments(net: &mut Net, old: (TcpId, TcpId), listener: ListenerId, to: &str) -> usize {
    let seen = capture(net);
    let new = net.connect_to(listener, to);
    for (client, server) in [old, new] {
        net.transfer((0, client), (1, server), &bytes(100_000));
    }
    net.filter = None;
    seen.borrow().iter().map(Vec::len).max().unwrap()
}

/// A message that quotes UDP is accepted only if traffic of that socket can have caused it, and
/// applies to datagrams only: TCP's path MTU follows messages about segments in flight.
#[test]
fn a_too_big_about_datagrams_does_not_reach_tcp() {
    for v6 in [false, true] {
        let (own, other, mtu) = if v6 {
            ("[fd00::1]:9", "[fd00::2]", 1280)
        } else {
            ("10.0.0.1:9", "10.0.0.2", 600)
        };
        let peer = format!("{other}:53");
        let mut net = Net::new(Link::Ip, Nic::Mtu);
        let web = format!("{other}:80");
        let (client, server, listener) = net.connect(&web);
        let udp = net.hosts[0].udp_bind(own.parse().unwrap()).unwrap();
        let quote_of = |net: &mut Net, to: &str| {
            let mut datagram = vec![0; 1408];
            datagram[..2].copy_from_slice(&9u16.to_be_bytes());
            let to: SocketAddr = to.parse().unwrap();
            datagram[2..4].copy_from_slice(&to.port().to_be_bytes());
            datagram[4..6].copy_from_slice(&1408u16.to_be_bytes());
            let own: SocketAddr = own.parse().unwrap();
            let quote = forge::ip_bytes(own.ip(), to.ip(), protocol::UDP, &datagram);
            let now = net.now;
            let frame = too_big(v6, mtu, &quote[..100]);
            net.hosts[0].receive(now, IFACE, &mut vec![frame]);
        };
        // Nothing was sent to the peer; then only a short datagram, which fits every path.
        quote_of(&mut net, &peer);
        datagram_packets(&mut net, udp, &peer, 100);
        quote_of(&mut net, &peer);
        let whole = 1400 + if v6 { 48 } else { 28 };
        assert_eq!(datagram_packets(&mut net, udp, &peer, 1400), [whole]);
        // A long datagram was sent to that port, and to no other.
        quote_of(&mut net, &peer.replace(":53", ":54"));
        assert_eq!(datagram_packets(&mut net, udp, &peer, 1400), [whole]);
        quote_of(&mut net, &peer);
        let pieces = datagram_packets(&mut net, udp, &peer, 1400);
        assert!(
            pieces.len() > 1 && pieces.iter().all(|&len| len <= mtu.into()),
            "{pieces:?}"
        );
        let longest = longest_segments(&mut net, (client, server), listener, &web);
        assert_eq!(longest, 1500);
    }
}

/// A connected socket accepts a quote of its own 4-tuple, on which it has sent a long datagram.
#[test]
fn a_connected_socket_accepts_a_too_big_about_its_peer_alone() {
    for (remote, believed) in [("10.0.0.2:53", true), ("10.0.0.2:54", false)] {
        let mut net = Net::new(Link::Ip, Nic::Mtu);
        let udp = net.hosts[0]
            .udp_bind("10.0.0.1:9".parse().unwrap())
            .unwrap();
        let connect = net.hosts[0].udp(udp).connect(Some(remote.parse().unwrap()));
        connect.unwrap();
        assert_eq!(datagram_packets(&mut net, udp, remote, 1400), [1428]);
        let datagram = [0, 9, 0, 53, 4, 0, 0, 0];
        let quote = ip_frame(V4[0], V4[1], protocol::UDP, &datagram).to_bytes();
        let now = net.now;
        let frame = too_big(false, 600, &quote);
        net.hosts[0].receive(now, IFACE, &mut vec![frame]);
        let packets = datagram_packets(&mut net, udp, remote, 1400);
        assert_eq!(packets.len() > 1, believed, "{remote}");
    }
}

#[test]
fn a_neighbour_that_does_not_answer_is_a_host_unreachable() {
    for to in ["10.0.0.77:80", "[fd00::77]:80"] {
        let mut net = Net::new(Link::Ethernet, Nic::Tso);
        let now = net.now;
        let id = net.hosts[0]
            .tcp_connect(now, None, to.parse().unwrap())
            .unwrap();
        net.run_for(Nanos::from_secs(4));
        assert_eq!(net.hosts[0].tcp(id).state(), Ok(State::Closed), "{to}");
        assert_eq!(
            net.hosts[0].tcp(id).take_error(),
            Ok(Some(TcpError::HostUnreachable))
        );
    }
}

#[test]
fn a_duplicate_address_is_not_used() {
    let mut net = Net::new(Link::Ethernet, Nic::Tso);
    let addr = Cidr {
        addr: V6[1].parse().unwrap(),
        prefix: 64,
    };
    let now = net.now;
    net.hosts[0].add_address(now, IFACE, addr).unwrap();
    net.run_for(Nanos::from_secs(3));
    assert_eq!(net.counter(0, "Ip6DadDuplicates"), 1);
    let bound = net.hosts[0].udp_bind((addr.addr, 5).into());
    assert_eq!(
        bound,
        Err(StackError::DuplicateAddress((addr.addr, 5).into()))
    );
}

/// A SYN that is dropped because the queue of its next hop is full is retransmitted; the connection
/// does not fail.
#[test]
fn connections_wait_for_a_neighbour_whose_queue_overflows() {
    let mut net = Net::new(Link::Ethernet, Nic::Tso);
    let listener = net.listen(1, "10.0.0.2:80");
    let now = net.now;
    let to = "10.0.0.2:80".parse().unwrap();
    let client = net.hosts[0].tcp_connect(now, None, to).unwrap();
    let mut out = Vec::new();
    // The SYN waits, and the ARP request is lost.
    for _ in 0..2 {
        net.hosts[0].transmit(now, IFACE, &mut out, 8);
    }
    assert_eq!(out.len(), 1);
    let udp = net.hosts[0]
        .udp_bind("10.0.0.1:9".parse().unwrap())
        .unwrap();
    let big = "10.0.0.2:9".parse().unwrap();
    for _ in 0..5 {
        let data = Slice::copied_from(&bytes(60_000));
        net.hosts[0].udp(udp).send_to(now, data, big, None).unwrap();
    }
    assert!(net.counter(0, "NeighUnresolvedDiscards") > 0);
    let connected = net.run_until(Nanos::from_secs(5), |net| {
        net.hosts[1].listener(listener).accept().unwrap().is_some()
    });
    assert!(connected);
    assert_eq!(net.hosts[0].tcp(client).state(), Ok(State::Established));
}

/// Generates bytes that are valid packets more often than by chance.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(any::<u8>(), 0..120);
    let proto = prop::sample::select(vec![0u8, 1, 6, 17, 43, 44, 58, 59, 60, 99]);
    let v4 = (body.clone(), proto.clone(), any::<u8>()).prop_map(|(body, proto, last)| {
        let dst = if last % 4 == 0 { "10.0.0.255" } else { V4[0] };
        ip_frame(&format!("10.0.0.{last}"), dst, proto, &body).to_bytes()
    });
    let v6 = (body.clone(), proto, any::<u8>()).prop_map(|(body, proto, last)| {
        let dst = if last % 4 == 0 { "ff02::1" } else { V6[0] };
        ip_frame(&format!("fd00::{last:x}"), dst, proto, &body).to_bytes()
    });
    let flipped = (v4, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut f, at, to)| {
        let at = at.index(f.len());
        f[at] = to;
        f
    });
    prop_oneof![body, flipped, v6]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The host counts and survives any input.
    #[test]
    fn random_frames_do_not_panic(
        ethernet in any::<bool>(),
        frames in prop::collection::vec(frames(), 1..40),
    ) {
        let mut host = host(1);
        let link = if ethernet { Link::Ethernet } else { Link::Ip };
        let iface = host.add_interface(config(link, Nic::Mtu, 1));
        for (addr, prefix) in [(V4[0], 24), (V6[0], 64)] {
            let addr = Cidr { addr: addr.parse().unwrap(), prefix };
            host.add_address(Instant::ZERO, iface, addr).unwrap();
        }
        let mut now = Instant::from_nanos(5_000_000_000);
        host.poll(now);
        let count = frames.len() as u64;
        let mut packets: Vec<Packet> = frames
            .into_iter()
            .map(|bytes| {
                let mut frame = Vec::new();
                if ethernet {
                    let v6 = bytes.first().is_some_and(|b| b >> 4 == 6);
                    frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
                    frame.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
                }
                frame.extend(bytes);
                Packet::from_frame(Slice::copied_from(&frame))
            })
            .collect();
        host.receive(now, iface, &mut packets);
        let mut out = Vec::new();
        for _ in 0..100 {
            host.transmit(now, iface, &mut out, 100);
            now += Nanos::from_secs(1);
            host.poll(now);
        }
        let counter = |name| host.counters().into_iter().find(|(n, _)| *n == name).unwrap().1;
        let seen = counter("IpInReceives") + counter("Ip6InReceives") + counter("GroMalformed");
        prop_assert_eq!(seen, count);
        // The number of answers is bounded by that of the frames (neighbours are solicited three
        // times).
        prop_assert!(out.len() as u64 <= 4 * count + 4);
    }
}
