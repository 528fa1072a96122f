//! A policy between a guest and the host's network, with the kernel as both of them. Needs root.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use common::{
    DNS, GATEWAY, GUEST, Guest, LIMIT, LOOPBACK, Rig, TwoRigs, ip, read_framed, wait_until,
    with_gateway, with_port, with_two_guests, write_framed,
};
use fullsend_gateway::{
    Action, Config, DnsConfig, EgressPolicy, FlowProtocol, Forward, Limits, PolicyError, Protocol,
    Rule, Side,
};
use nix::unistd::gettid;

/// The addresses of servers beyond the host, by their last number.
const HOSTS: [u8; 3] = [11, 12, 13];
/// The port of the servers.
const PORT: u16 = 8080;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const NO_ERROR: u8 = 0;
const REFUSED: u8 = 5;

fn host(n: u8) -> String {
    format!("192.0.2.{n}")
}

fn host6(n: u8) -> String {
    format!("2001:db8::{n}")
}

/// The records of the resolver: the addresses of a name, and for `alias` the name that it stands for.
fn addresses(name: &str) -> Vec<IpAddr> {
    let texts = match name {
        "a.allowed.test" | "shared.other.test" => [host(11), host6(11)],
        "b.allowed.test" | "alias.allowed.test" => [host(12), host6(12)],
        "own.allowed.test" => [host(1), host6(1)],
        "rebind.allowed.test" => ["127.0.0.1", "::1"].map(String::from),
        "gateway.allowed.test" => GATEWAY.map(String::from),
        _ => [host(13), host6(13)],
    };
    texts.map(|text| text.parse().unwrap()).into()
}

fn wire(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

fn query(name: &str, query_type: u16) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(wire(name));
    message.extend(query_type.to_be_bytes());
    message.extend([0, 1]);
    message
}

/// Answers a query, with a TTL of 5 minutes.
fn answer(query: &[u8]) -> Vec<u8> {
    let question = &query[12..query.len() - 5];
    let mut name = String::new();
    let mut at = 0;
    while at < question.len() {
        let len = usize::from(question[at]);
        let label = &question[at + 1..][..len];
        name.extend([".", std::str::from_utf8(label).unwrap()]);
        at += 1 + len;
    }
    let name = name[1..].to_lowercase();
    let is_v4 = query[query.len() - 3] == TYPE_A as u8;
    let mut records: Vec<(Vec<u8>, u16, Vec<u8>)> = Vec::new();
    let mut owner = vec![0xc0, 12];
    if name == "alias.allowed.test" {
        let target = wire("edge.CDN.test");
        records.push((owner, 5, target));
        owner = wire("Edge.cdn.test");
    }
    for address in addresses(&name) {
        match address {
            IpAddr::V4(v4) if is_v4 => records.push((owner.clone(), TYPE_A, v4.octets().into())),
            IpAddr::V6(v6) if !is_v4 => {
                records.push((owner.clone(), TYPE_AAAA, v6.octets().into()));
            }
            _ => {}
        }
    }
    let mut message = query.to_vec();
    message[2] |= 0x80;
    message[7] = records.len() as u8;
    for (owner, kind, data) in records {
        message.extend(owner);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1, 0, 0, 1, 44]);
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(data);
    }
    message
}

/// Starts the resolver, over UDP and TCP, and servers at the host's addresses and beyond it.
fn start_servers() {
    let beyond = Guest::start();
    let thread = beyond.run(gettid);
    ip(&format!(
        "link add wan0 type veth peer name wan1 netns {thread}"
    ));
    for args in [
        "link set wan0 up",
        "addr add 198.51.100.1/24 dev wan0",
        "addr add 2001:db8:1::1/64 dev wan0 nodad",
    ] {
        ip(args);
    }
    beyond.run(|| {
        for args in [
            "link set wan1 up",
            "addr add 198.51.100.2/24 dev wan1",
            "addr add 2001:db8:1::2/64 dev wan1 nodad",
            "route add default via 198.51.100.1",
            "-6 route add default via 2001:db8:1::1",
        ] {
            ip(args);
        }
        for n in HOSTS {
            ip(&format!("addr add {}/32 dev lo", host(n)));
            ip(&format!("addr add {}/128 dev lo nodad", host6(n)));
        }
        accept_clients();
    });
    for n in HOSTS {
        ip(&format!("route add {}/32 via 198.51.100.2", host(n)));
        ip(&format!("-6 route add {}/128 via 2001:db8:1::2", host6(n)));
    }
    let at = with_port(LOOPBACK[0], 53);
    let (udp, tcp) = (UdpSocket::bind(at).unwrap(), TcpListener::bind(at).unwrap());
    thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((len, from)) = udp.recv_from(&mut buf) {
            udp.send_to(&answer(&buf[..len]), from).unwrap();
        }
    });
    thread::spawn(move || {
        while let Ok((mut stream, _)) = tcp.accept() {
            while let Some(query) = read_framed(&mut stream) {
                let _ = write_framed(&mut stream, &answer(&query));
            }
        }
    });
    accept_clients();
}

/// Serves all addresses of the calling thread's namespace.
fn accept_clients() {
    for any in ["0.0.0.0", "::"] {
        let listener = TcpListener::bind(with_port(any, PORT + u16::from(any == "::"))).unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(drop));
    }
}

/// Resolves a name in the guest over UDP. Returns the response code and the number of answers.
fn resolve(rig: &Rig, name: &str, query_type: u16) -> (u8, u8) {
    let query = query(name, query_type);
    rig.guest.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.send_to(&query, with_port(DNS[0], 53)).unwrap();
        let mut buf = [0; 512];
        socket.recv(&mut buf).unwrap();
        (buf[3] & 0xf, buf[7])
    })
}

/// Resolves a name in the guest over TCP and IPv6.
fn resolve_over_tcp(rig: &Rig, name: &str) -> (u8, u8) {
    let query = query(name, TYPE_A);
    rig.guest.run(move || {
        let mut stream = TcpStream::connect_timeout(&with_port(DNS[1], 53), LIMIT).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let _ = write_framed(&mut stream, &query);
        let answer = read_framed(&mut stream).unwrap();
        (answer[3] & 0xf, answer[7])
    })
}

/// Connects from the guest. `None` if that is refused with a RST.
fn connect(rig: &Rig, to: &str) -> Option<TcpStream> {
    let to = with_port(to, PORT + u16::from(to.contains(':')));
    // A SYN that gets no answer is a failure of the test.
    let connected = rig
        .guest
        .run(move || TcpStream::connect_timeout(&to, LIMIT));
    match connected {
        Ok(stream) => Some(stream),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
            None
        }
    }
}

fn config(policy: EgressPolicy) -> Config {
    Config {
        policy: Arc::new(policy),
        dns: DnsConfig {
            upstream: vec![with_port(LOOPBACK[0], 53)],
            ..DnsConfig::default()
        },
        ..Config::default()
    }
}

/// Allows the names below allowed.test.
fn by_domain() -> Result<EgressPolicy, PolicyError> {
    let rule = Rule::allow().domain("*.Allowed.test.")?;
    let rule = rule.ports(PORT..=PORT + 1).protocol(FlowProtocol::Tcp);
    Ok(EgressPolicy::new().rule(rule))
}

#[test]
fn the_guest_reaches_the_addresses_of_allowed_names_only() {
    with_gateway(config(by_domain().unwrap()), |rig| {
        start_servers();
        assert!(connect(rig, &host(11)).is_none(), "not resolved yet");
        assert_eq!(resolve(rig, "A.allowed.TEST", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(11)).is_some());
        assert!(
            connect(rig, &host6(11)).is_none(),
            "only its IPv4 address is resolved"
        );
        assert_eq!(resolve(rig, "a.allowed.test", TYPE_AAAA), (NO_ERROR, 1));
        assert!(connect(rig, &host6(11)).is_some());
        // The alias gives its target's addresses the name.
        assert!(connect(rig, &host(12)).is_none());
        assert_eq!(resolve_over_tcp(rig, "alias.allowed.test"), (NO_ERROR, 2));
        assert!(connect(rig, &host(12)).is_some());
        // Neither a name of another domain nor its address.
        assert_eq!(resolve(rig, "c.other.test", TYPE_A), (REFUSED, 0));
        assert_eq!(resolve_over_tcp(rig, "allowed.test"), (REFUSED, 0));
        assert!(connect(rig, &host(13)).is_none());
        let counters = rig.gateway.counters();
        assert_eq!(counters.policy_denied_tcp, 4);
        assert_eq!(counters.policy_denied_names, 2);
        assert_eq!(counters.policy_denied, 6);
        assert_eq!(counters.dns_addresses, 3);
        wait_until("three connections were established", || {
            rig.gateway.counters().tcp_established == 3
        });
    });
}

#[test]
fn datagrams_and_pings_get_an_icmp_error() {
    with_gateway(config(by_domain().unwrap()), |rig| {
        // Port 53 of another resolver is a destination as any other.
        for to in [with_port(&host(1), 53), with_port("2001:db8::1", 9)] {
            let error = rig.guest.run(move || {
                let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any).unwrap();
                socket.set_read_timeout(Some(LIMIT)).unwrap();
                socket.connect(to).unwrap();
                socket.send(b"x").unwrap();
                socket.recv(&mut [0]).unwrap_err()
            });
            let expected = match to {
                SocketAddr::V4(_) => ErrorKind::HostUnreachable,
                SocketAddr::V6(_) => ErrorKind::PermissionDenied,
            };
            assert_eq!(error.kind(), expected, "{to}");
        }
        let ping = |to: &'static str| {
            rig.guest.run(move || {
                let output = Command::new("ping")
                    .args(["-n", "-c", "1", "-W", "10", to])
                    .output();
                String::from_utf8(output.unwrap().stdout).unwrap()
            })
        };
        let output = ping("192.0.2.1");
        assert!(
            output.contains("From 10.0.2.2 icmp_seq=1 Packet filtered"),
            "{output}"
        );
        let output = ping("2001:db8::1");
        assert!(output.contains("Administratively prohibited"), "{output}");
        // Those to the gateway itself are answered by its stack.
        let output = ping(GATEWAY[0]);
        assert!(output.contains(" 0% packet loss"), "{output}");
        let counters = rig.gateway.counters();
        assert_eq!(
            (counters.policy_denied_udp, counters.policy_denied_ping),
            (2, 2)
        );
        assert_eq!((counters.udp_flows, counters.icmp_errors), (0, 4));
    });
}

#[test]
fn answers_with_local_addresses_are_refused_unless_a_network_allows_them() {
    with_gateway(config(by_domain().unwrap()), |rig| {
        start_servers();
        for name in ["rebind.allowed.test", "gateway.allowed.test"] {
            for query_type in [TYPE_A, TYPE_AAAA] {
                assert_eq!(resolve(rig, name, query_type), (REFUSED, 0), "{name}");
            }
            assert_eq!(resolve_over_tcp(rig, name), (REFUSED, 0));
        }
        assert!(connect(rig, GATEWAY[0]).is_none());
        let counters = rig.gateway.counters();
        assert_eq!(
            (counters.policy_denied_answers, counters.dns_addresses),
            (6, 0)
        );
    });
    let rule = Rule::allow().domain("gateway.allowed.test").unwrap();
    let rule = rule.network(GATEWAY[0]).unwrap();
    with_gateway(config(by_domain().unwrap().rule(rule)), |rig| {
        start_servers();
        assert!(connect(rig, GATEWAY[0]).is_none());
        assert_eq!(resolve(rig, "gateway.allowed.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, GATEWAY[0]).is_some(), "the host's loopback");
        assert_eq!(
            resolve(rig, "gateway.allowed.test", TYPE_AAAA),
            (REFUSED, 0)
        );
    });
}

#[test]
fn the_hosts_own_addresses_are_local_as_they_change() {
    let rule = Rule::deny().network("local").unwrap();
    let policy = EgressPolicy::new().rule(rule).otherwise(Action::Allow);
    with_gateway(config(policy), |rig| {
        start_servers();
        for own in [host(1), host6(1)] {
            assert!(connect(rig, &own).is_none(), "{own}");
        }
        for (address, bits) in [(host(11), "32"), (host6(11), "128 nodad")] {
            assert!(connect(rig, &address).is_some());
            let (prefix, _) = bits.split_once(' ').unwrap_or((bits, ""));
            ip(&format!("addr add {address}/{bits} dev up0"));
            // The kernel begins to receive packets to an IPv6 address a moment later.
            wait_until("it is the host's", || connect(rig, &address).is_none());
            ip(&format!("addr del {address}/{prefix} dev up0"));
            wait_until("it is another host's", || connect(rig, &address).is_some());
        }
        // Of a second address of a network, the kernel's source address is the first.
        ip(&format!("addr add {}/24 dev up0", host(99)));
        assert!(connect(rig, &host(99)).is_none());
    });
}

#[test]
fn an_allowed_name_does_not_open_the_hosts_own_addresses() {
    with_gateway(config(by_domain().unwrap()), |rig| {
        start_servers();
        for (address, query_type) in [(host(1), TYPE_A), (host6(1), TYPE_AAAA)] {
            assert_eq!(resolve(rig, "own.allowed.test", query_type), (REFUSED, 0));
            assert!(connect(rig, &address).is_none());
        }
        assert_eq!(rig.gateway.counters().policy_denied_answers, 2);
        // An address that becomes the host's after it was resolved.
        assert_eq!(resolve(rig, "a.allowed.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(11)).is_some());
        ip(&format!("addr add {}/32 dev up0", host(11)));
        assert!(connect(rig, &host(11)).is_none());
    });
}

#[test]
fn a_rule_that_denies_judges_each_name_of_a_chain_of_aliases() {
    let edge = || Rule::deny().domain("edge.cdn.test").unwrap();
    let allowed = || Rule::allow().domain("*.allowed.test").unwrap();
    // A name that is denied altogether.
    let policy = EgressPolicy::new().rule(edge()).rule(allowed());
    with_gateway(config(policy), |rig| {
        start_servers();
        assert_eq!(resolve(rig, "alias.allowed.test", TYPE_A), (REFUSED, 0));
        assert_eq!(resolve_over_tcp(rig, "alias.allowed.test"), (REFUSED, 0));
        assert!(connect(rig, &host(12)).is_none());
        let counters = rig.gateway.counters();
        assert_eq!(
            (counters.policy_denied_answers, counters.dns_addresses),
            (2, 0)
        );
        // The same address under a name without the alias.
        assert_eq!(resolve(rig, "b.allowed.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(12)).is_some());
    });
    // One whose port is denied: the answer passes, and the address is that of both names.
    let policy = EgressPolicy::new()
        .rule(edge().ports(PORT..=PORT))
        .rule(allowed());
    with_gateway(config(policy), |rig| {
        start_servers();
        assert_eq!(resolve(rig, "b.allowed.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(12)).is_some());
        assert_eq!(resolve(rig, "alias.allowed.test", TYPE_A), (NO_ERROR, 2));
        assert!(connect(rig, &host(12)).is_none());
        // Another port of it.
        assert_eq!(resolve(rig, "alias.allowed.test", TYPE_AAAA), (NO_ERROR, 2));
        assert!(connect(rig, &host6(12)).is_some());
    });
    // A rule that allows the end of a chain opens nothing to those who query its beginning.
    let target = Rule::allow().domain("edge.cdn.test").unwrap();
    let policy = EgressPolicy::new()
        .rule(allowed().ports(1..=1))
        .rule(target);
    with_gateway(config(policy), |rig| {
        start_servers();
        assert_eq!(resolve(rig, "alias.allowed.test", TYPE_A), (NO_ERROR, 2));
        assert!(connect(rig, &host(12)).is_none());
    });
}

#[test]
fn an_answer_that_a_rule_for_pings_lets_pass_opens_no_ports() {
    let pings = Rule::allow().network("local").unwrap();
    let policy = by_domain().unwrap();
    let policy = policy.rule(pings.protocol(FlowProtocol::Ping));
    with_gateway(config(policy), |rig| {
        start_servers();
        for (address, query_type) in GATEWAY.into_iter().zip([TYPE_A, TYPE_AAAA]) {
            let resolved = resolve(rig, "gateway.allowed.test", query_type);
            assert_eq!(resolved, (NO_ERROR, 1));
            assert!(connect(rig, address).is_none(), "{address}");
        }
        assert_eq!(rig.gateway.counters().dns_addresses, 2);
    });
}

#[test]
fn own_names_lead_to_the_addresses_of_the_policy() {
    let policy = by_domain().unwrap();
    let policy = policy.name("host.allowed.test", [GATEWAY[0].parse().unwrap()]);
    let policy = policy
        .unwrap()
        .name("db.internal", [[192, 0, 2, 13].into()]);
    with_gateway(config(policy.unwrap()), |rig| {
        start_servers();
        assert_eq!(resolve(rig, "host.Allowed.test", TYPE_A), (NO_ERROR, 1));
        assert_eq!(resolve(rig, "host.allowed.test", TYPE_AAAA), (NO_ERROR, 0));
        assert!(connect(rig, GATEWAY[0]).is_some());
        // No rule allows connections to it.
        assert_eq!(resolve(rig, "db.internal", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(13)).is_none());
    });
}

#[test]
fn a_name_may_be_denied_where_others_are_allowed() {
    let policy = EgressPolicy::new()
        .rule(
            Rule::deny()
                .domain("shared.other.test")
                .unwrap()
                .ports(PORT..=PORT),
        )
        .otherwise(Action::Allow);
    with_gateway(config(policy), |rig| {
        start_servers();
        assert_eq!(resolve(rig, "a.allowed.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(11)).is_some());
        // The address of an allowed name, requested by the name that is denied.
        assert_eq!(resolve(rig, "shared.other.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(11)).is_none());
    });
}

#[test]
fn known_addresses_are_limited_and_the_bound_has_a_counter() {
    let mut config = config(by_domain().unwrap());
    config.limits = Limits {
        dns_addresses: 1,
        ..Limits::default()
    };
    with_gateway(config, |rig| {
        start_servers();
        assert_eq!(resolve(rig, "a.allowed.test", TYPE_A), (NO_ERROR, 1));
        let stream = connect(rig, &host(11));
        assert!(stream.is_some());
        assert_eq!(resolve(rig, "b.allowed.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(rig, &host(12)).is_some());
        assert!(connect(rig, &host(11)).is_none());
        let counters = rig.gateway.counters();
        assert_eq!(
            (counters.dns_addresses, counters.dns_addresses_replaced),
            (1, 1)
        );
    });
}

#[test]
fn a_flood_of_refusals_is_counted_one_by_one_and_logged_in_part() {
    with_gateway(config(by_domain().unwrap()), |rig| {
        rig.guest.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            for n in 0..200 {
                let query = query(&format!("n{n}.other.test"), TYPE_A);
                socket.send_to(&query, with_port(DNS[0], 53)).unwrap();
                // The answer, so that none of them is lost.
                socket.recv(&mut [0; 512]).expect("an answer");
            }
        });
        let counters = rig.gateway.counters();
        assert_eq!(counters.policy_denied_names, 200);
        let logged = counters.policy_denied_names - counters.log_suppressed;
        assert!((20..100).contains(&logged), "{logged}");
    });
}

#[test]
fn guests_with_one_policy_do_not_share_what_they_have_resolved() {
    with_two_guests(config(by_domain().unwrap()), |rigs: &TwoRigs| {
        start_servers();
        let [first, second] = &rigs.0;
        assert_eq!(resolve(first, "a.allowed.test", TYPE_A), (NO_ERROR, 1));
        assert!(connect(first, &host(11)).is_some());
        assert!(connect(second, &host(11)).is_none());
        // Each has the address of the other, and neither reaches it.
        assert!(connect(first, GUEST[0]).is_none());
        let counters = [first, second].map(|rig| rig.gateway.counters());
        assert_eq!(counters.map(|c| c.dns_addresses), [1, 0]);
        assert_eq!(counters.map(|c| c.policy_denied_tcp), [0, 1]);
        wait_until("the connection is gone", || {
            first.gateway.counters().tcp_open == 0
        });
    });
}

#[test]
fn a_redirection_to_a_forward_joins_two_guests() {
    let join = with_port(LOOPBACK[0], 8090);
    let rule = Rule::new(Action::Redirect(join))
        .domain("second.internal")
        .unwrap();
    let policy = EgressPolicy::new().rule(rule.ports(80..=80));
    let policy = policy
        .name("second.internal", [[10, 9, 9, 2].into()])
        .unwrap();
    with_two_guests(config(policy), move |rigs: &TwoRigs| {
        let [first, second] = &rigs.0;
        let forward = Forward {
            from: Side::Host,
            protocol: Protocol::Tcp,
            host: join,
            guest: with_port(GUEST[0], 80),
            interface: None,
        };
        second.gateway.add_forward(forward).unwrap();
        let listener = second
            .guest
            .run(|| TcpListener::bind("0.0.0.0:80").unwrap());
        assert_eq!(resolve(first, "second.internal", TYPE_A), (NO_ERROR, 1));
        let connect = |port| {
            first
                .guest
                .run(move || TcpStream::connect_timeout(&with_port("10.9.9.2", port), LIMIT))
        };
        let mut stream = connect(80).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        listener.accept().unwrap().0.write_all(b"second").unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        assert_eq!(received, "second");
        // Nothing else of it, and nothing in the other direction.
        assert_eq!(
            connect(81).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        assert_eq!(second.gateway.counters().tcp_established, 0);
    });
}
