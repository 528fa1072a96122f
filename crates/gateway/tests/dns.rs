//! The sockets and the messages of the DNS relay. Needs root.

mod common;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;

use common::{
    DNS, HOST, LIMIT, Rig, ip, read_framed, wait_until, with_gateway, with_port, write_framed,
};
use fullsend_gateway::{AllowAll, Config, DnsConfig, DnsVerdict, Limits, Outbound, Policy};

/// A query for the A record of x.
const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01x\0\0\x01\0\x01";

/// UPDATE (RFC 2136), which the relay itself answers.
const UPDATE: &[u8] = b"\x12\x34\x28\0\0\x01\0\0\0\0\0\0\x01x\0\0\x06\0\x01";

fn answer(query: &[u8]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2] |= 0x80;
    message
}

/// Sends a query over UDP and one over TCP, and returns the answers.
fn ask_both(rig: &Rig, relay: &'static str, query: &'static [u8]) -> [Vec<u8>; 2] {
    rig.guest.run(move || {
        let to = with_port(relay, 53);
        let any: IpAddr = if to.is_ipv4() {
            [0; 4].into()
        } else {
            [0; 16].into()
        };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.send_to(query, to).unwrap();
        let mut buf = vec![0; 4096];
        let len = socket.recv(&mut buf).unwrap();
        buf.truncate(len);
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let _ = write_framed(&mut stream, query);
        [buf, read_framed(&mut stream).unwrap()]
    })
}

fn config(resolvers: &[SocketAddr]) -> Config {
    Config {
        dns: DnsConfig {
            upstream: resolvers.to_vec(),
            ..DnsConfig::default()
        },
        ..Config::default()
    }
}

#[test]
fn queries_come_from_the_configured_address_with_other_identifiers() {
    let resolver = with_port(HOST[0], 53);
    let config = Config {
        outbound: Outbound {
            ipv4: Some([192, 0, 2, 6].into()),
            ..Outbound::default()
        },
        ..config(&[resolver])
    };
    with_gateway(config, move |rig| {
        ip("addr add 192.0.2.6/24 dev up0");
        let (seen, queries) = mpsc::channel();
        let udp = UdpSocket::bind(resolver).unwrap();
        let tcp = TcpListener::bind(resolver).unwrap();
        let by_udp = seen.clone();
        thread::spawn(move || {
            let mut buf = [0; 512];
            let (len, from) = udp.recv_from(&mut buf).unwrap();
            by_udp.send((from.ip(), buf[..len].to_vec())).unwrap();
            udp.send_to(&answer(&buf[..len]), from).unwrap();
        });
        thread::spawn(move || {
            let (mut stream, from) = tcp.accept().unwrap();
            let query = read_framed(&mut stream).unwrap();
            seen.send((from.ip(), query.clone())).unwrap();
            let _ = write_framed(&mut stream, &answer(&query));
        });
        let answers = ask_both(rig, DNS[0], QUERY);
        assert_eq!(answers, [answer(QUERY), answer(QUERY)]);
        let queries: Vec<_> = queries.iter().collect();
        assert_eq!(queries.len(), 2);
        for (from, query) in &queries {
            assert_eq!(from.to_string(), "192.0.2.6");
            assert_eq!(query[2..], QUERY[2..]);
        }
        let id = |n: usize| &queries[n].1[..2];
        assert!(id(0) != &QUERY[..2] || id(1) != &QUERY[..2]);
    });
}

#[test]
fn an_answer_over_tcp_to_another_query_ends_the_upstream_connection() {
    let resolvers = [with_port("127.0.0.53", 53), with_port("127.0.0.54", 53)];
    with_gateway(config(&resolvers), move |rig| {
        let listeners = resolvers.map(|at| TcpListener::bind(at).unwrap());
        let [wrong, right] = listeners;
        let serving = thread::spawn(move || {
            let (mut stream, _) = wrong.accept().unwrap();
            let mut query = read_framed(&mut stream).unwrap();
            query[0] ^= 1;
            let _ = write_framed(&mut stream, &answer(&query));
            read_framed(&mut stream)
        });
        thread::spawn(move || {
            let (mut stream, _) = right.accept().unwrap();
            let query = read_framed(&mut stream).unwrap();
            let _ = write_framed(&mut stream, &answer(&query));
        });
        let received = rig.guest.run(|| {
            let mut stream = TcpStream::connect(with_port(DNS[0], 53)).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let _ = write_framed(&mut stream, QUERY);
            read_framed(&mut stream)
        });
        assert_eq!(received, Some(answer(QUERY)));
        assert_eq!(serving.join().unwrap(), None, "the connection is closed");
    });
}

#[test]
fn a_resolver_that_does_not_answer_is_given_up_for_the_next_one() {
    let resolvers = [with_port("127.0.0.53", 53), with_port("127.0.0.54", 53)];
    with_gateway(config(&resolvers), move |rig| {
        // It accepts connections and receives queries, and no program reads them.
        let _silent = (
            UdpSocket::bind(resolvers[0]).unwrap(),
            TcpListener::bind(resolvers[0]).unwrap(),
        );
        let udp = UdpSocket::bind(resolvers[1]).unwrap();
        let tcp = TcpListener::bind(resolvers[1]).unwrap();
        thread::spawn(move || {
            let mut buf = [0; 512];
            let (len, from) = udp.recv_from(&mut buf).unwrap();
            udp.send_to(&answer(&buf[..len]), from).unwrap();
        });
        thread::spawn(move || {
            let (mut stream, _) = tcp.accept().unwrap();
            let query = read_framed(&mut stream).unwrap();
            let _ = write_framed(&mut stream, &answer(&query));
        });
        assert_eq!(ask_both(rig, DNS[0], QUERY), [answer(QUERY), answer(QUERY)]);
    });
}

#[test]
fn the_guest_gets_a_failure_when_no_resolver_answers() {
    let resolver = with_port("127.0.0.53", 53);
    with_gateway(config(&[resolver]), move |rig| {
        let _silent = (
            UdpSocket::bind(resolver).unwrap(),
            TcpListener::bind(resolver).unwrap(),
        );
        for answer in ask_both(rig, DNS[1], QUERY) {
            assert_eq!(answer[..2], QUERY[..2]);
            assert_eq!((answer[2] & 0x80, answer[3] & 0xf), (0x80, 2), "SERVFAIL");
        }
        // The slots of these queries are free again, and no socket is left.
        assert_eq!(rig.gateway.counters().dns_dropped, 0);
    });
}

#[test]
fn queries_beyond_the_rate_of_a_guest_are_dropped() {
    let config = Config {
        limits: Limits {
            rate: Some(1000),
            ..Limits::default()
        },
        ..config(&[])
    };
    with_gateway(config, |rig| {
        let mut stream = rig.guest.run(|| {
            let stream = TcpStream::connect(with_port(DNS[0], 53)).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream
        });
        let socket = rig.guest.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        wait_until("queries beyond the rate are dropped", || {
            socket.send_to(UPDATE, with_port(DNS[0], 53)).unwrap();
            rig.gateway.counters().dns_dropped >= 40
        });
        // Those of a stream wait.
        let _ = write_framed(&mut stream, UPDATE);
        assert!(read_framed(&mut stream).is_some());
    });
}

#[test]
fn messages_that_ask_for_no_records_are_not_relayed() {
    // No resolver is bound there.
    with_gateway(config(&[with_port("127.0.0.53", 53)]), |rig| {
        for relay in DNS {
            for answer in ask_both(rig, relay, UPDATE) {
                assert_eq!(answer[..2], UPDATE[..2]);
                assert_eq!((answer[2], answer[3] & 0xf), (0xa8, 4), "NOTIMP");
            }
        }
    });
}

/// Denies all names.
struct NoNames;

impl Policy for NoNames {
    fn dns(&self, _: &str, _: u16) -> DnsVerdict {
        DnsVerdict::Deny
    }
}

#[test]
fn dns_over_tls_is_relayed_unless_a_policy_filters_names_or_it_opens_the_hosts_loopback() {
    let allow = || std::sync::Arc::new(AllowAll) as std::sync::Arc<dyn Policy>;
    let mappings = Config::default().mappings;
    for (policy, mappings, at, open) in [
        (allow(), mappings.clone(), "127.0.0.53", true),
        (allow(), Vec::new(), HOST[0], true),
        (allow(), Vec::new(), "127.0.0.53", false),
        (std::sync::Arc::new(NoNames), mappings, "127.0.0.53", false),
    ] {
        let filters = policy.filters_names();
        let config = Config {
            policy,
            mappings,
            ..config(&[with_port(at, 53)])
        };
        with_gateway(config, move |rig| {
            let _listener = TcpListener::bind(with_port(at, 853)).unwrap();
            let udp = UdpSocket::bind(with_port(at, 853)).unwrap();
            for relay in DNS {
                let connected = rig.guest.run(|| {
                    let any = if relay.contains(':') { "::" } else { "0.0.0.0" };
                    let udp = UdpSocket::bind(with_port(any, 0)).unwrap();
                    udp.send_to(b"quic", with_port(relay, 853)).unwrap();
                    TcpStream::connect_timeout(&with_port(relay, 853), LIMIT)
                });
                assert_eq!(connected.is_ok(), open, "{connected:?}");
                udp.set_read_timeout(open.then_some(LIMIT)).unwrap();
                udp.set_nonblocking(!open).unwrap();
                // The datagram came before the connection.
                assert_eq!(udp.recv(&mut [0; 9]).is_ok(), open);
            }
            let refused = if filters { DNS.len() as u64 } else { 0 };
            let counters = rig.gateway.counters();
            assert_eq!(counters.policy_denied_tcp, refused);
            assert_eq!(counters.policy_denied_udp, refused);
        });
    }
}
