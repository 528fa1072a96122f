//! One host socket for each of the guest's UDP ports (RFC 4787), the datagrams that it lets in, and the
//! errors of routers, with the kernel as the guest, as the host and as routers. Needs root.

mod common;

use std::fs;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;

use common::{GATEWAY, GUEST, Guest, HOST, LIMIT, Rig, ip, wait_until, with_gateway, with_port};
use fullsend_gateway::{
    Config, EgressPolicy, FlowProtocol, Forward, Protocol, Rule, Side, UdpFiltering,
};
use nix::cmsg_space;
use nix::libc;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use nix::unistd::gettid;

/// Returns a socket on any port of an address of the current namespace.
fn bind(address: &str) -> UdpSocket {
    bind_to(with_port(address, 0))
}

fn bind_to(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// Returns an unconnected socket of the guest.
fn guest_socket(rig: &Rig, family: usize) -> UdpSocket {
    rig.guest.run(move || bind(["0.0.0.0", "::"][family]))
}

/// Sends a datagram of the guest to `server`, at `to` as the guest sees it. Returns the address that the
/// server sees.
fn send(guest: &UdpSocket, to: SocketAddr, server: &UdpSocket) -> SocketAddr {
    guest.send_to(b"request", to).unwrap();
    let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
    from
}

/// Returns the source of the next datagram, which is `expected`.
fn receive(socket: &UdpSocket, expected: &[u8]) -> SocketAddr {
    let mut buf = [0; 64];
    let (len, from) = socket.recv_from(&mut buf).unwrap();
    assert_eq!(&buf[..len], expected);
    from
}

#[test]
fn all_destinations_of_a_port_see_one_port_of_the_host() {
    with_gateway(Config::default(), |rig| {
        for family in [0, 1] {
            let guest = guest_socket(rig, family);
            let servers = [bind(HOST[family]), bind(HOST[family])];
            let local = bind(["127.0.0.1", "::1"][family]);
            let mut ports = Vec::new();
            for server in &servers {
                let to = server.local_addr().unwrap();
                let from = send(&guest, to, server);
                assert_eq!(from.ip().to_string(), HOST[family]);
                ports.push(from.port());
                server.send_to(b"answer", from).unwrap();
                assert_eq!(receive(&guest, b"answer"), to);
            }
            // The gateway's address stands for the host's loopback.
            let to = with_port(GATEWAY[family], local.local_addr().unwrap().port());
            let from = send(&guest, to, &local);
            ports.push(from.port());
            local.send_to(b"local", from).unwrap();
            assert_eq!(receive(&guest, b"local"), to);
            ports.dedup();
            assert_eq!(ports.len(), 1, "{ports:?}");
        }
        let counters = rig.gateway.counters();
        assert_eq!((counters.udp_open, counters.udp_sockets), (6, 2));
    });
}

#[test]
fn an_answer_from_another_port_arrives_and_can_be_answered() {
    with_gateway(Config::default(), |rig| {
        for family in [0, 1] {
            let guest = guest_socket(rig, family);
            let server = bind(HOST[family]);
            let outside = send(&guest, server.local_addr().unwrap(), &server);
            // A TFTP server answers from another port, and goes on with it.
            let other = bind(HOST[family]);
            let at = other.local_addr().unwrap();
            for _ in 0..3 {
                other.send_to(b"data", outside).unwrap();
                assert_eq!(receive(&guest, b"data"), at);
                assert_eq!(send(&guest, at, &other), outside);
            }
        }
        assert_eq!(rig.gateway.counters().udp_filtered, 0);
    });
}

/// Adds a second address of each family to the host.
fn add_addresses() -> [&'static str; 2] {
    ip("addr add 192.0.2.5/24 dev up0");
    ip("addr add 2001:db8::5/64 dev up0 nodad");
    wait_until("the address has its route", || {
        let args = ["-6", "route", "show", "table", "local"];
        let routes = Command::new("ip").args(args).output().unwrap();
        String::from_utf8_lossy(&routes.stdout).contains("local 2001:db8::5 ")
    });
    ["192.0.2.5", "2001:db8::5"]
}

#[test]
fn the_filter_lets_in_the_hosts_that_it_names() {
    let rows = [
        (UdpFiltering::default(), true, false),
        (UdpFiltering::AddressAndPortDependent, false, false),
        (UdpFiltering::EndpointIndependent, true, true),
    ];
    for (udp_filtering, other_port, other_address) in rows {
        let config = Config {
            udp_filtering,
            ..Config::default()
        };
        with_gateway(config, move |rig| {
            let others = add_addresses();
            for family in [0, 1] {
                let guest = guest_socket(rig, family);
                let server = bind(HOST[family]);
                let outside = send(&guest, server.local_addr().unwrap(), &server);
                let unknown = [
                    (bind(HOST[family]), other_port),
                    (bind(others[family]), other_address),
                ];
                let mut dropped = rig.gateway.counters().udp_filtered;
                for (socket, is_let_in) in unknown {
                    socket.send_to(b"unknown", outside).unwrap();
                    if is_let_in {
                        let from = receive(&guest, b"unknown");
                        assert_eq!(from, socket.local_addr().unwrap());
                    } else {
                        dropped += 1;
                        wait_until("the datagram is dropped", || {
                            rig.gateway.counters().udp_filtered == dropped
                        });
                    }
                }
                server.send_to(b"answer", outside).unwrap();
                receive(&guest, b"answer");
            }
        });
    }
}

#[test]
fn a_host_that_the_guest_may_not_send_to_is_not_let_in() {
    let rule = Rule::allow()
        .network("192.0.2.0/24")
        .and_then(|rule| rule.network("10.0.2.2/32"));
    let rule = rule.unwrap().protocol(FlowProtocol::Udp).ports(0..=1000);
    let config = Config {
        udp_filtering: UdpFiltering::EndpointIndependent,
        policy: Arc::new(EgressPolicy::new().rule(rule)),
        ..Config::default()
    };
    with_gateway(config, |rig| {
        let guest = guest_socket(rig, 0);
        let server = bind_to(with_port(HOST[0], 700));
        let outside = send(&guest, with_port(HOST[0], 700), &server);
        let mut dropped = 0;
        for (from, to, seen) in [
            ("192.0.2.1:701", HOST[0], Some("192.0.2.1:701")),
            ("192.0.2.1:1701", HOST[0], None),
            ("127.0.0.1:700", "127.0.0.1", Some("10.0.2.2:700")),
            ("127.0.0.1:1700", "127.0.0.1", None),
            ("127.0.0.2:702", "127.0.0.1", None),
        ] {
            let sender = bind_to(from.parse().unwrap());
            sender.send_to(b"x", with_port(to, outside.port())).unwrap();
            if let Some(seen) = seen {
                assert_eq!(receive(&guest, b"x"), seen.parse().unwrap());
                continue;
            }
            dropped += 1;
            wait_until("the datagram is dropped", || {
                rig.gateway.counters().udp_filtered == dropped
            });
        }
        // Only requests of the guest are refusals.
        assert_eq!(rig.gateway.counters().policy_denied, 0);
    });
}

#[test]
fn a_socket_under_a_forward_that_speaks_first_uses_the_forwards_port() {
    with_gateway(Config::default(), |rig| {
        for family in [0, 1] {
            let inside = rig
                .guest
                .run(move || bind_to(with_port(GUEST[family], 5353)));
            let forward = Forward {
                from: Side::Host,
                protocol: Protocol::Udp,
                host: with_port(["0.0.0.0", "::"][family], 0),
                guest: with_port(GUEST[family], 5353),
                interface: None,
            };
            let id = rig.gateway.add_forward(forward).unwrap();
            let bound = rig.gateway.list_forwards()[0].1.host.port();
            let server = bind(HOST[family]);
            let to = server.local_addr().unwrap();
            let from = send(&inside, to, &server);
            assert_eq!(from, with_port(HOST[family], bound));
            server.send_to(b"answer", from).unwrap();
            assert_eq!(receive(&inside, b"answer"), to);
            // Its clients reach the guest as before, and are answered from the same port.
            let client = bind(HOST[family]);
            client.send_to(b"client", from).unwrap();
            let seen = receive(&inside, b"client");
            assert_eq!(seen, client.local_addr().unwrap());
            assert_eq!(send(&inside, seen, &client), from);
            rig.gateway.remove_forward(id).unwrap();
        }
        assert_eq!(rig.gateway.counters().udp_sockets, 0);
    });
}

/// Makes a socket keep the errors about its datagrams.
fn keep_errors(socket: &UdpSocket) {
    if socket.local_addr().unwrap().is_ipv4() {
        setsockopt(socket, sockopt::Ipv4RecvErr, &true).unwrap();
    } else {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true).unwrap();
    }
}

/// The next error of a socket: the destination of its datagram, the ICMP type and code, and the sender.
fn next_error(socket: &UdpSocket) -> (SocketAddr, [u8; 2], IpAddr) {
    let mut found = None;
    wait_until("an error", || {
        found = read_error(socket);
        found.is_some()
    });
    found.unwrap()
}

fn read_error(socket: &UdpSocket) -> Option<(SocketAddr, [u8; 2], IpAddr)> {
    let mut buf = [0; 64];
    let mut vectors = [IoSliceMut::new(&mut buf)];
    let mut control = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let fd = socket.as_raw_fd();
    let received = recvmsg::<SockaddrStorage>(fd, &mut vectors, Some(&mut control), flags).ok()?;
    let to = received.address.unwrap();
    let v4 = to.as_sockaddr_in();
    let v4 = v4.map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    let v6 = to.as_sockaddr_in6();
    let v6 = v6.map(|v6| SocketAddr::from((v6.ip(), v6.port())));
    let to = v4.or(v6).unwrap();
    received.cmsgs().unwrap().find_map(|message| match message {
        ControlMessageOwned::Ipv4RecvErr(error, Some(from)) => {
            let from = IpAddr::from(from.sin_addr.s_addr.to_ne_bytes());
            Some((to, [error.ee_type, error.ee_code], from))
        }
        ControlMessageOwned::Ipv6RecvErr(error, Some(from)) => {
            let from = IpAddr::from(from.sin6_addr.s6_addr);
            Some((to, [error.ee_type, error.ee_code], from))
        }
        _ => None,
    })
}

#[test]
fn an_error_reaches_the_flow_that_it_is_about() {
    with_gateway(Config::default(), |rig| {
        for (family, unreachable) in [(0, [3, 3]), (1, [1, 4])] {
            let guest = guest_socket(rig, family);
            keep_errors(&guest);
            let server = bind(HOST[family]);
            let outside = send(&guest, server.local_addr().unwrap(), &server);
            let closed = [GATEWAY[family], HOST[family]].map(|host| with_port(host, 9));
            for to in closed {
                guest.send_to(b"anybody?", to).unwrap();
                assert_eq!(next_error(&guest), (to, unreachable, to.ip()));
                // The pending error of the host's socket costs no datagram of another flow.
                assert_eq!(send(&guest, server.local_addr().unwrap(), &server), outside);
            }
        }
    });
}

#[test]
fn a_busy_flow_keeps_its_port_and_lets_in_others() {
    with_gateway(Config::default(), |rig| {
        for (family, unreachable) in [(0, [3, 3]), (1, [1, 4])] {
            let guest = guest_socket(rig, family);
            keep_errors(&guest);
            let [server, other] = [bind(HOST[family]), bind(HOST[family])];
            let to = server.local_addr().unwrap();
            let outside = send(&guest, to, &server);
            let before = rig.gateway.counters().udp_sockets;
            for _ in 0..100 {
                assert_eq!(send(&guest, to, &server), outside);
                server.send_to(b"answer", outside).unwrap();
                assert_eq!(receive(&guest, b"answer"), to);
            }
            // It has a connected socket beside the shared one.
            assert_eq!(rig.gateway.counters().udp_sockets, before + 1);
            let at = other.local_addr().unwrap();
            other.send_to(b"data", outside).unwrap();
            assert_eq!(receive(&guest, b"data"), at);
            assert_eq!(send(&guest, at, &other), outside);
            drop(server);
            guest.send_to(b"gone?", to).unwrap();
            assert_eq!(next_error(&guest), (to, unreachable, to.ip()));
        }
        assert_eq!(rig.gateway.counters().udp_filtered, 0);
    });
}

/// Routers behind the host, and a machine behind the last one; the addresses at which they answer.
struct Chain {
    _machines: Vec<Guest>,
    hops: [Vec<IpAddr>; 2],
}

/// Adds a chain of two routers and a machine behind the host's namespace.
fn chain() -> Chain {
    let sysctl = |key: &str, value: &str| {
        fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
    };
    let mut machines: Vec<Guest> = Vec::new();
    let mut hops = [Vec::new(), Vec::new()];
    for n in 0..3_usize {
        let machine = Guest::start();
        let thread = machine.run(gettid);
        // The link to the machine before.
        let link = move || {
            ip(&format!(
                "link add down{n} type veth peer name eth0 netns {thread}"
            ));
            ip(&format!("addr add 10.9.{n}.1/24 dev down{n}"));
            ip(&format!("addr add fd09:{n}::1/64 dev down{n} nodad"));
            ip(&format!("link set down{n} up"));
            // The nets behind that of the link.
            for behind in n + 1..3 {
                ip(&format!("route add 10.9.{behind}.0/24 via 10.9.{n}.2"));
                ip(&format!("-6 route add fd09:{behind}::/64 via fd09:{n}::2"));
            }
        };
        match machines.last() {
            Some(before) => before.run(link),
            None => link(),
        }
        machine.run(move || {
            ip("link set eth0 up");
            ip(&format!("addr add 10.9.{n}.2/24 dev eth0"));
            ip(&format!("addr add fd09:{n}::2/64 dev eth0 nodad"));
            ip(&format!("route add default via 10.9.{n}.1"));
            ip(&format!("-6 route add default via fd09:{n}::1"));
            sysctl("ipv4/ip_forward", "1");
            sysctl("ipv6/conf/all/forwarding", "1");
            sysctl("ipv4/icmp_ratelimit", "0");
            sysctl("ipv6/icmp/ratelimit", "0");
        });
        hops[0].push(IpAddr::from([10, 9, n as u8, 2]));
        hops[1].push(IpAddr::from([0xfd09, n as u16, 0, 0, 0, 0, 0, 2]));
        machines.push(machine);
    }
    Chain {
        _machines: machines,
        hops,
    }
}

fn set_hops(socket: &UdpSocket, hops: u32) {
    let socket = socket2::SockRef::from(socket);
    if socket.local_addr().unwrap().is_ipv4() {
        socket.set_ttl_v4(hops).unwrap();
    } else {
        socket.set_unicast_hops_v6(hops).unwrap();
    }
}

#[test]
fn datagrams_keep_their_ttl_and_routers_report_those_that_expire() {
    with_gateway(Config::default(), |rig| {
        let chain = chain();
        for (family, exceeded, unreachable) in [(0, [11, 0], [3, 3]), (1, [3, 0], [1, 4])] {
            let guest = guest_socket(rig, family);
            keep_errors(&guest);
            let hops = &chain.hops[family];
            // One flow, as of `paris-traceroute`; and flows as of `traceroute`.
            for ports in [[33_434; 3], [33_435, 33_436, 33_437]] {
                for (hop, port) in (1..).zip(ports) {
                    set_hops(&guest, hop);
                    let to = SocketAddr::new(hops[2], port);
                    guest.send_to(b"probe", to).unwrap();
                    let at = hops[hop as usize - 1];
                    let kind = if hop < 3 { exceeded } else { unreachable };
                    assert_eq!(next_error(&guest), (to, kind, at), "hop {hop}");
                }
            }
        }
    });
}

#[test]
fn pings_keep_their_ttl_and_their_errors_reach_the_guest() {
    if Command::new("ping").arg("-V").output().is_err() {
        return println!("skipped: needs ping (iputils-ping)");
    }
    with_gateway(Config::default(), |rig| {
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
        let chain = chain();
        let ping = |to: String, hops: usize| {
            rig.guest.run(move || {
                let hops = hops.to_string();
                let args = ["-n", "-c", "1", "-W", "20", "-t", &hops, &to];
                let output = Command::new("ping").args(args).output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            })
        };
        for hops in &chain.hops {
            for hop in 1..=2 {
                let output = ping(hops[2].to_string(), hop);
                let from = format!("From {} icmp_seq=1 Time ", hops[hop - 1]);
                assert!(output.contains(&from), "{output}");
            }
            let output = ping(hops[2].to_string(), 3);
            assert!(output.contains(" 0% packet loss"), "{output}");
        }
        // The last router has no route to it.
        let output = ping("10.9.2.77".to_owned(), 64);
        assert!(
            output.contains("From 10.9.1.2 icmp_seq=1 Destination Host"),
            "{output}"
        );
    });
}
