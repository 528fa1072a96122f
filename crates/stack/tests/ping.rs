//! Ping sockets: echo requests, their replies, and errors about them.

mod common;

use std::net::IpAddr;

use common::{Count, IFACE, Net, Nic, V4, V6, wake_all};
use fullsend_offload::{Link, Packet};
use fullsend_stack::{PingId, PingReply, StackError, WaitOn};
use fullsend_tcp::TcpError;
use fullsend_wire::Nanos;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net() -> Net {
    Net::new(Link::Ip, Nic::Mtu)
}

fn open(net: &mut Net) -> PingId {
    net.hosts[0].ping_open().unwrap()
}

/// Sends a request from the first host and lets time pass.
fn ping(net: &mut Net, id: PingId, to: IpAddr, seq: u16, data: &[u8]) {
    net.hosts[0]
        .ping(id)
        .send_to(net.now, to, seq, data)
        .unwrap();
    // Delivers what the host sends to itself.
    net.poll();
    net.run_for(Nanos::from_millis(10));
}

fn recv(net: &mut Net, id: PingId) -> Option<PingReply> {
    net.hosts[0].ping(id).recv().unwrap()
}

fn data_of(reply: &PingReply) -> Vec<u8> {
    let mut data = vec![0; reply.data.len()];
    reply.data.copy_to(&mut data);
    data
}

#[test]
fn replies_reach_the_socket_whose_identifier_they_have() {
    let mut net = net();
    let [one, other] = [open(&mut net), open(&mut net)];
    let idents = [one, other].map(|id| net.hosts[0].ping(id).ident().unwrap());
    assert_ne!(idents[0], idents[1]);
    for [_, peer] in [V4, V6] {
        // The longest one is sent in fragments.
        for (seq, len) in [(1, 0), (2, 56), (u16::MAX, 65_000)] {
            let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
            ping(&mut net, one, ip(peer), seq, &data);
            let reply = recv(&mut net, one).unwrap();
            assert_eq!((reply.peer, reply.seq, reply.ttl), (ip(peer), seq, 64));
            assert_eq!(reply.error, None);
            assert!(data_of(&reply) == data);
        }
    }
    assert!(recv(&mut net, one).is_none());
    assert!(recv(&mut net, other).is_none());
    assert_eq!(net.counter(0, "IcmpOutEchos"), 3);
    assert_eq!(net.counter(0, "Icmp6OutEchos"), 3);
}

#[test]
fn a_host_pings_its_own_addresses() {
    let mut net = net();
    let id = open(&mut net);
    for own in [V4[0], V6[0], "127.0.0.1", "::1", "::ffff:10.0.0.1"] {
        ping(&mut net, id, ip(own), 1, b"data");
        let reply = recv(&mut net, id).expect(own);
        assert_eq!(reply.peer, ip(own).to_canonical());
    }
}

/// Two neighbours that do not exist: the host's own errors report it.
#[test]
fn an_unreachable_neighbour_is_reported() {
    let mut net = Net::new(Link::Ethernet, Nic::Mtu);
    let id = open(&mut net);
    for (seq, nowhere) in [(1, "10.0.0.77"), (2, "fd00::77")] {
        net.hosts[0]
            .ping(id)
            .send_to(net.now, ip(nowhere), seq, b"data")
            .unwrap();
        net.run_for(Nanos::from_secs(5));
        let reply = recv(&mut net, id).unwrap();
        assert_eq!((reply.peer, reply.seq), (ip(nowhere), seq));
        assert_eq!(reply.error.unwrap().error, TcpError::HostUnreachable);
    }
}

/// Returns an ICMP or ICMPv6 error from the second host about an echo request of the first.
fn error_message(kind: u8, code: u8, word: [u8; 4], quoted: (u8, u16, u16), v6: bool) -> Vec<u8> {
    let (quoted_kind, ident, seq) = quoted;
    let mut message = vec![kind, code, 0, 0];
    message.extend(word);
    if v6 {
        message.extend([0x60, 0, 0, 0, 0, 12, 58, 64]);
        for end in ["fd00::1", "fd01::9"] {
            let IpAddr::V6(addr) = ip(end) else {
                unreachable!()
            };
            message.extend(addr.octets());
        }
    } else {
        message.extend([0x45, 0, 0, 32, 0, 1, 0, 0, 64, 1, 0, 0]);
        message.extend([10, 0, 0, 1, 10, 1, 0, 9]);
    }
    message.extend([quoted_kind, 0, 0, 0]);
    message.extend(ident.to_be_bytes());
    message.extend(seq.to_be_bytes());
    message.extend(b"data");
    message
}

#[test]
fn errors_of_routers_are_reported_with_the_request() {
    let mut net = net();
    let id = open(&mut net);
    let ident = net.hosts[0].ping(id).ident().unwrap();
    let cases = [
        (false, 11, 0, [0; 4], TcpError::HostUnreachable, 0),
        (false, 3, 0, [0; 4], TcpError::NetworkUnreachable, 0),
        (false, 3, 4, [0, 0, 5, 0], TcpError::MessageTooLong, 1280),
        (true, 3, 0, [0; 4], TcpError::HostUnreachable, 0),
        (true, 2, 0, [0, 0, 5, 0], TcpError::MessageTooLong, 1280),
    ];
    for (v6, kind, code, word, error, mtu) in cases {
        let [here, router] = if v6 { V6 } else { V4 };
        let request = if v6 { 128 } else { 8 };
        // A reply that is quoted, and the request of another socket, are not this socket's.
        for quoted in [
            (0, ident, 9),
            (129, ident, 9),
            (request, ident ^ 1, 9),
            (request, ident, 7),
        ] {
            let message = error_message(kind, code, word, quoted, v6);
            let addrs = (ip(router), ip(here));
            net.hosts[1]
                .icmp_send(net.now, addrs, message, None)
                .unwrap();
        }
        net.run_for(Nanos::from_millis(10));
        let reply = recv(&mut net, id).unwrap();
        let target = if v6 { "fd01::9" } else { "10.1.0.9" };
        assert_eq!((reply.peer, reply.seq), (ip(target), 7));
        assert_eq!(data_of(&reply), b"data");
        let reported = reply.error.unwrap();
        assert_eq!((reported.error, reported.kind), (error, (kind, code)));
        assert_eq!((reported.mtu, reported.offender), (mtu, ip(router)));
        assert!(recv(&mut net, id).is_none());
    }
}

#[test]
fn a_queue_is_bounded_and_counts_what_it_drops() {
    let mut net = net();
    let id = open(&mut net);
    let data = vec![0; 40_000];
    for seq in 0..10 {
        ping(&mut net, id, ip(V4[1]), seq, &data);
    }
    let mut received = Vec::new();
    while let Some(reply) = recv(&mut net, id) {
        received.push(reply.seq);
    }
    let dropped = net.hosts[0].ping(id).dropped().unwrap();
    assert!((1..=5).contains(&received.len()), "{received:?}");
    assert_eq!(received.len() as u64 + dropped, 10);
    assert_eq!(net.counter(0, "IcmpFullsendPingDropped"), dropped);
    // There is room again.
    ping(&mut net, id, ip(V4[1]), 99, &data);
    assert_eq!(recv(&mut net, id).unwrap().seq, 99);
}

/// `udp_mem` limits the queues of all UDP and ping sockets together.
#[test]
fn the_queues_of_all_sockets_are_bounded_together() {
    let mut net = net();
    net.hosts[0]
        .sysctl_mut()
        .set("net.ipv4.udp_mem", "8 8 8")
        .unwrap();
    let ids: Vec<PingId> = (0..20).map(|_| open(&mut net)).collect();
    for &id in &ids {
        ping(&mut net, id, ip(V4[1]), 1, &[0; 3000]);
    }
    let replies = ids.iter().filter_map(|&id| recv(&mut net, id)).count();
    assert!((1..=10).contains(&replies), "{replies}");
}

#[test]
fn a_waiting_task_is_woken_once_and_by_the_close() {
    let mut net = net();
    let id = open(&mut net);
    let (count, waker) = Count::waker();
    assert!(!net.hosts[0].ping(id).poll_ready(&waker).unwrap());
    ping(&mut net, id, ip(V4[1]), 1, b"");
    ping(&mut net, id, ip(V4[1]), 2, b"");
    wake_all(&mut net.hosts[0]);
    assert_eq!(count.get(), 1);
    assert!(net.hosts[0].ping(id).poll_ready(&waker).unwrap());
    assert_eq!(net.hosts[0].ping(id).peek().unwrap().unwrap().seq, 1);
    while recv(&mut net, id).is_some() {}
    assert!(!net.hosts[0].ping(id).poll_ready(&waker).unwrap());
    assert!(net.hosts[0].stop_waiting(WaitOn::Ping(id), None).is_some());
    assert!(!net.hosts[0].ping(id).poll_ready(&waker).unwrap());
    net.hosts[0].ping(id).close();
    wake_all(&mut net.hosts[0]);
    assert_eq!(count.get(), 2);
    let closed = net.hosts[0].ping(id).recv().unwrap_err();
    assert_eq!(closed, StackError::NoSuchSocket);
}

#[test]
fn requests_that_cannot_be_sent_are_refused() {
    let mut net = net();
    let id = open(&mut net);
    let now = net.now;
    let mut send = |to: &str, len: usize| {
        let error = net.hosts[0].ping(id).send_to(now, ip(to), 1, &vec![0; len]);
        error.unwrap_err()
    };
    assert_eq!(send("192.0.2.1", 1), StackError::NoRoute(ip("192.0.2.1")));
    let too_long = |len, max| StackError::MessageTooLong { len, max };
    assert_eq!(send(V4[1], 65_508), too_long(65_508, 65_507));
    assert_eq!(send(V6[1], 65_528), too_long(65_528, 65_527));
    for to in ["0.0.0.0", "::", "255.255.255.255", "10.0.0.255"] {
        let error = send(to, 1).to_string();
        assert!(error.contains(to), "{error}");
    }
}

#[test]
fn the_hop_limit_of_requests_is_an_option() {
    let mut net = net();
    let id = open(&mut net);
    assert_eq!(net.hosts[0].ping(id).ttl().unwrap(), None);
    net.hosts[0].ping(id).set_ttl(Some(7)).unwrap();
    net.filter = Some(Box::new(|sender, packet| {
        if sender == 0 {
            assert_eq!(packet.network_header()[8], 7);
        }
        true
    }));
    ping(&mut net, id, ip(V4[1]), 1, b"");
    assert!(recv(&mut net, id).is_some());
}

/// As on Linux, requests to groups stay in the local network unless the application has set a TTL.
#[test]
fn requests_to_groups_have_a_ttl_of_their_own() {
    let mut net = net();
    let id = open(&mut net);
    for (ttl, expected) in [(None, 1), (Some(7), 7)] {
        net.hosts[0].ping(id).set_ttl(ttl).unwrap();
        for (group, offset) in [("239.1.2.3", 8), ("ff15::7", 7)] {
            let now = net.now;
            net.hosts[0]
                .ping(id)
                .send_to(now, ip(group), 1, b"")
                .unwrap();
            let mut sent = Vec::new();
            net.hosts[0].transmit(now, IFACE, &mut sent, 64);
            let ttls: Vec<u8> = sent.iter().map(|p| p.network_header()[offset]).collect();
            assert_eq!(ttls, [expected], "{group}");
        }
    }
}

/// Sends a request with 1400 bytes of data and returns the lengths of the packets.
fn send_long(net: &mut Net, id: PingId, to: IpAddr, seq: u16) -> Vec<usize> {
    let now = net.now;
    let mut ping = net.hosts[0].ping(id);
    ping.send_to(now, to, seq, &[0; 1400]).unwrap();
    let mut sent = Vec::new();
    net.hosts[0].transmit(now, IFACE, &mut sent, 64);
    sent.iter().map(Packet::len).collect()
}

/// Delivers the report of a router that the last request to `to` exceeds `mtu`.
fn report_too_big(net: &mut Net, ident: u16, v6: bool, mtu: u16) {
    let [here, router] = if v6 { V6 } else { V4 };
    let [m0, m1] = mtu.to_be_bytes();
    let (kind, code, request) = if v6 { (2, 0, 128) } else { (3, 4, 8) };
    let message = error_message(kind, code, [0, 0, m0, m1], (request, ident, 7), v6);
    let addrs = (ip(router), ip(here));
    net.hosts[1]
        .icmp_send(net.now, addrs, message, None)
        .unwrap();
    net.run_for(Nanos::from_millis(10));
}

#[test]
fn a_too_big_reduces_the_path_mtu_of_a_sent_request_only() {
    for (v6, to, headers) in [(false, "10.1.0.9", 28), (true, "fd01::9", 48)] {
        let mut net = net();
        let any = if v6 { "::/0" } else { "0.0.0.0/0" };
        let any = any.parse().unwrap();
        net.hosts[0].add_route(any, None, IFACE).unwrap();
        let [id, other] = [open(&mut net), open(&mut net)];
        let [ident, other_ident] = [id, other].map(|id| net.hosts[0].ping(id).ident().unwrap());
        let (to, whole) = (ip(to), vec![1400 + headers]);
        // The first request is sent by another socket, so that the error quotes none of this one's.
        assert_eq!(send_long(&mut net, other, to, 7), whole);
        ping(&mut net, id, to, 7, &[0; 500]);
        report_too_big(&mut net, ident, v6, 1300);
        let reported = recv(&mut net, id).unwrap().error.unwrap();
        assert_eq!(
            (reported.error, reported.mtu),
            (TcpError::MessageTooLong, 1300)
        );
        assert_eq!(send_long(&mut net, id, to, 7), whole);
        // No socket has this identifier any longer.
        net.hosts[0].ping(other).close();
        report_too_big(&mut net, other_ident, v6, 1300);
        assert_eq!(send_long(&mut net, id, to, 7), whole);
        // Now the request was sent. A smaller MTU than every path has is not accepted.
        for (mtu, longest) in [(1300, 1300), (100, if v6 { 1280 } else { 552 })] {
            report_too_big(&mut net, ident, v6, mtu);
            assert!(recv(&mut net, id).unwrap().error.is_some());
            let lens = send_long(&mut net, id, to, 7);
            assert!(lens.len() > 1, "{lens:?}");
            assert!(lens.iter().all(|&len| len <= longest), "{lens:?}");
            assert!(lens[0] > longest - 8, "{lens:?}");
        }
    }
}
