//! What the gateway itself answers: DNS, DHCP, router advertisements and pings, with the kernel as
//! the guest and as the host. Needs root.

mod common;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use common::{
    DNS, GATEWAY, GUEST, HOST, LIMIT, Rig, ip, read_framed, wait_until, with_gateway, with_guest,
    with_port, write_framed,
};
use fullsend_gateway::{Config, DnsConfig, DnsVerdict, Ipv6Config, Limits, Policy};
use nix::sys::socket::{setsockopt, sockopt};

/// Returns a query for the A record of `name`.
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Answers a query with one more byte, `mark`.
fn answer(query: &[u8], mark: u8) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2] |= 0x80;
    message.push(mark);
    message
}

/// Starts a resolver that answers over UDP and TCP.
fn start_resolver(address: &str, mark: u8) {
    let at = with_port(address, 53);
    let (udp, tcp) = (UdpSocket::bind(at).unwrap(), TcpListener::bind(at).unwrap());
    thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((len, from)) = udp.recv_from(&mut buf) {
            udp.send_to(&answer(&buf[..len], mark), from).unwrap();
        }
    });
    thread::spawn(move || {
        while let Ok((mut stream, _)) = tcp.accept() {
            while let Some(query) = read_framed(&mut stream) {
                write_framed(&mut stream, &answer(&query, mark)).unwrap();
            }
        }
    });
}

/// Asks the relay over UDP from the guest.
fn ask(rig: &Rig, relay: &'static str, query: Vec<u8>) -> Option<Vec<u8>> {
    rig.guest.run(move || {
        let any = if relay.contains(':') { "::" } else { "0.0.0.0" };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.connect(with_port(relay, 53)).unwrap();
        socket.send(&query).unwrap();
        let mut buf = vec![0; 4096];
        let len = socket.recv(&mut buf).ok()?;
        Some(buf[..len].to_vec())
    })
}

fn with_upstream(upstream: &[&str]) -> Config {
    Config {
        dns: DnsConfig {
            upstream: upstream.iter().map(|at| at.parse().unwrap()).collect(),
            ..DnsConfig::default()
        },
        ..Config::default()
    }
}

#[test]
fn queries_go_to_the_hosts_resolver_over_udp_and_tcp() {
    for (upstream, resolver) in [("127.0.0.53:53", "127.0.0.53"), ("[::1]:53", "::1")] {
        with_gateway(with_upstream(&[upstream]), move |rig| {
            start_resolver(resolver, 7);
            let sent = query(0x1234, "www.example.com");
            for relay in DNS {
                let received = ask(rig, relay, sent.clone());
                assert_eq!(received, Some(answer(&sent, 7)), "{relay}");
                let (first, second) = (sent.clone(), query(2, "example.net"));
                rig.guest.run(move || {
                    let mut stream = TcpStream::connect(with_port(relay, 53)).unwrap();
                    for sent in [first, second] {
                        write_framed(&mut stream, &sent).unwrap();
                        let received = read_framed(&mut stream).unwrap();
                        assert_eq!(received, answer(&sent, 7), "{relay}");
                    }
                });
            }
            wait_until("all answers are counted", || {
                rig.gateway.counters().dns_answers == 6
            });
            let counters = rig.gateway.counters();
            assert_eq!(counters.dns_queries, 6);
            // Queries use no flows of the table.
            assert_eq!(counters.udp_flows, 0);
        });
    }
}

#[test]
fn the_next_resolver_is_asked_if_one_refuses_and_without_any_the_query_fails() {
    with_gateway(with_upstream(&["127.0.0.1:54", "127.0.0.2:53"]), |rig| {
        let sent = query(1, "example.com");
        let failure = ask(rig, DNS[0], sent.clone()).unwrap();
        assert_eq!(failure[3] & 0xf, 2, "SERVFAIL");
        start_resolver("127.0.0.2", 9);
        assert_eq!(ask(rig, DNS[0], sent.clone()), Some(answer(&sent, 9)));
    });
}

#[test]
fn a_changed_resolv_conf_applies_to_later_queries() {
    let path = std::env::temp_dir().join(format!("gateway-resolv-{}", std::process::id()));
    fs::write(&path, "nameserver 127.0.0.11\n").unwrap();
    let mut config = with_upstream(&[]);
    config.dns.resolv_conf.clone_from(&path);
    with_gateway(config, move |rig| {
        start_resolver("127.0.0.11", 1);
        start_resolver("127.0.0.12", 2);
        let sent = query(1, "example.com");
        assert_eq!(ask(rig, DNS[0], sent.clone()), Some(answer(&sent, 1)));
        fs::write(&path, "# other\nnameserver 127.0.0.12\n").unwrap();
        wait_until("the other resolver is queried", || {
            ask(rig, DNS[0], sent.clone()) == Some(answer(&sent, 2))
        });
        fs::remove_file(&path).unwrap();
    });
}

/// Denies one name and redirects another.
struct ByName;

impl Policy for ByName {
    fn dns(&self, name: &str, _: u16) -> DnsVerdict {
        match name {
            "denied.example" => DnsVerdict::Deny,
            "moved.example" => DnsVerdict::Redirect(vec![IpAddr::from([192, 0, 2, 99])]),
            _ => DnsVerdict::Allow,
        }
    }
}

#[test]
fn the_policy_denies_and_redirects_names() {
    let config = Config {
        policy: Arc::new(ByName),
        ..with_upstream(&["127.0.0.1:53"])
    };
    with_gateway(config, |rig| {
        start_resolver("127.0.0.1", 5);
        let denied = ask(rig, DNS[0], query(1, "Denied.Example")).unwrap();
        assert_eq!(denied[3] & 0xf, 3, "NXDOMAIN");
        let moved = ask(rig, DNS[1], query(2, "moved.example")).unwrap();
        assert!(moved.ends_with(&[0, 4, 192, 0, 2, 99]), "{moved:?}");
        let sent = query(3, "example.com");
        assert_eq!(ask(rig, DNS[0], sent.clone()), Some(answer(&sent, 5)));
        assert_eq!(rig.gateway.counters().policy_denied, 1);
    });
}

#[test]
fn malformed_queries_and_those_beyond_the_limit_are_dropped() {
    let mut config = with_upstream(&["127.0.0.1:53"]);
    config.limits = Limits {
        dns_queries: 4,
        ..Limits::default()
    };
    with_gateway(config, |rig| {
        // A resolver that does not answer.
        let _silent = UdpSocket::bind("127.0.0.1:53").unwrap();
        rig.guest.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(with_port(DNS[0], 53)).unwrap();
            for id in 0..20 {
                socket.send(&query(id, "example.com")).unwrap();
            }
            socket.send(b"not a query").unwrap();
        });
        wait_until("all are counted", || {
            rig.gateway.counters().dns_queries == 21
        });
        wait_until("the others are dropped", || {
            rig.gateway.counters().dns_dropped == 17
        });
    });
}

fn ping(rig: &Rig, to: &'static str, size: usize) -> bool {
    rig.guest.run(move || {
        let size = size.to_string();
        let args = ["-c", "1", "-W", "5", "-n", "-s", &size, to];
        let output = Command::new("ping").args(args).output().unwrap();
        output.status.success()
    })
}

fn has_ping() -> bool {
    let found = Command::new("ping").arg("-V").output().is_ok();
    if !found {
        println!("skipped: needs ping (iputils-ping)");
    }
    found
}

#[test]
fn pings_reach_other_hosts_through_ping_sockets() {
    if !has_ping() {
        return;
    }
    with_gateway(Config::default(), |rig| {
        for gateway in GATEWAY {
            assert!(ping(rig, gateway, 56), "{gateway}");
        }
        // Not for any group, as by default.
        fs::write("/proc/sys/net/ipv4/ping_group_range", "1 0").unwrap();
        assert!(!ping(rig, "192.0.2.77", 56));
        assert_eq!(rig.gateway.counters().ping_requests, 0);
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
        for host in HOST {
            for size in [56, 1472, 20_000] {
                assert!(ping(rig, host, size), "{host} {size}");
            }
        }
        wait_until("all replies are counted", || {
            rig.gateway.counters().ping_replies == 6
        });
        assert_eq!(rig.gateway.counters().ping_requests, 6);
    });
}

#[test]
fn the_guest_makes_an_address_and_a_default_route_of_the_router_advertisement() {
    let config = Config {
        mtu: 1400,
        ..Config::default()
    };
    with_guest(config, false, |rig| {
        let show = |args: &'static str| {
            rig.guest.run(move || {
                let output = Command::new("ip").args(args.split(' ')).output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            })
        };
        wait_until("an address of the prefix", || {
            show("-6 addr show dev tap0 scope global").contains("inet6 fd00:")
        });
        let route = show("-6 route show default");
        assert!(route.contains("via fe80::5055:aff:fe00:202"), "{route}");
        assert!(rig.gateway.counters().router_advertisements > 0);
        // The gateway and what is behind it can be reached over that route.
        wait_until("the address is no longer tentative", || {
            !show("-6 addr show dev tap0").contains("tentative")
        });
        let listener = TcpListener::bind((HOST[1], 0)).unwrap();
        let to = listener.local_addr().unwrap();
        rig.guest.run(move || TcpStream::connect(to).unwrap());
    });
}

/// Sends a DHCP message from the guest's interface, and returns the answer.
fn dhcp(rig: &Rig, options: &'static [u8]) -> Vec<u8> {
    rig.guest.run(move || {
        // A process that another test starts may keep the last socket open until it executes its
        // program.
        let mut bound = None;
        wait_until("the port is free", || {
            bound = UdpSocket::bind("0.0.0.0:68").ok();
            bound.is_some()
        });
        let socket = bound.unwrap();
        socket.set_broadcast(true).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        setsockopt(&socket, sockopt::BindToDevice, &"tap0".into()).unwrap();
        let mut message = vec![0; 236];
        message[..8].copy_from_slice(&[1, 1, 6, 0, 9, 9, 9, 9]);
        message[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 5]);
        message.extend([0x63, 0x82, 0x53, 0x63]);
        message.extend(options);
        socket.send_to(&message, (Ipv4Addr::BROADCAST, 67)).unwrap();
        let mut buf = vec![0; 1500];
        let (len, from) = socket.recv_from(&mut buf).unwrap();
        assert_eq!(from, with_port(GATEWAY[0], 67));
        buf[..len].to_vec()
    })
}

#[test]
fn a_guest_without_an_address_gets_one_by_dhcp() {
    with_guest(Config::default(), false, |rig| {
        let offer = dhcp(rig, &[53, 1, 1, 255]);
        assert_eq!(offer[16..20], [10, 0, 2, 100]);
        assert_eq!(offer[240..243], [53, 1, 2]);
        let ack = dhcp(rig, &[53, 1, 3, 50, 4, 10, 0, 2, 100, 255]);
        assert_eq!(ack[16..20], [10, 0, 2, 100]);
        assert_eq!(ack[240..243], [53, 1, 5]);
        let nak = dhcp(rig, &[53, 1, 3, 50, 4, 10, 0, 2, 77, 255]);
        assert_eq!(nak[240..243], [53, 1, 6]);
        wait_until("all answers are counted", || {
            rig.gateway.counters().dhcp_answers == 3
        });
    });
}

#[test]
fn a_guest_gets_its_address_by_dhcpv6() {
    let mut config = Config::default();
    config.ipv6 = config.ipv6.map(|v6| Ipv6Config {
        guest: Some(GUEST[1].parse().unwrap()),
        dhcp: true,
        ..v6
    });
    with_guest(config, false, |rig| {
        let answer = rig.guest.run(|| {
            // The link-local address is tentative at first.
            let socket = UdpSocket::bind("[::]:546").unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            let index = nix::net::if_::if_nametoindex("tap0").unwrap();
            let servers = "ff02::1:2".parse().unwrap();
            let to = std::net::SocketAddrV6::new(servers, 547, 0, index);
            // SOLICIT with a client identifier and an association.
            let mut message = vec![1, 7, 8, 9, 0, 1, 0, 4, 1, 2, 3, 4];
            message.extend([0, 3, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
            wait_until("the solicitation is sent", || {
                socket.send_to(&message, SocketAddr::V6(to)).is_ok()
            });
            let mut buf = vec![0; 1500];
            let (len, _) = socket.recv_from(&mut buf).unwrap();
            buf[..len].to_vec()
        });
        assert_eq!(answer[..4], [2, 7, 8, 9], "ADVERTISE");
        let address: IpAddr = GUEST[1].parse().unwrap();
        let IpAddr::V6(address) = address else {
            panic!("not IPv6");
        };
        let found = answer.windows(16).any(|w| w == address.octets());
        assert!(found, "{answer:?}");
    });
}

#[test]
fn a_guest_reaches_its_neighbours_addresses_if_the_gateway_answers_for_them() {
    for proxy_neighbors in [false, true] {
        let config = Config {
            proxy_neighbors,
            ..Config::default()
        };
        with_gateway(config, move |rig| {
            ip("addr add 10.0.2.50/32 dev lo");
            ip("addr add fd00::50/128 dev lo");
            for neighbour in ["10.0.2.50", "fd00::50"] {
                let mut listener = None;
                wait_until("the kernel has the address", || {
                    listener = TcpListener::bind((neighbour, 0)).ok();
                    listener.is_some()
                });
                let listener = listener.unwrap();
                let to = listener.local_addr().unwrap();
                // Without an answer for the address, no time is long enough.
                let timeout = if proxy_neighbors { LIMIT } else { LIMIT / 40 };
                let connected = rig
                    .guest
                    .run(move || TcpStream::connect_timeout(&to, timeout).is_ok());
                assert_eq!(connected, proxy_neighbors, "{neighbour}");
            }
        });
    }
}
