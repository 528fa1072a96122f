//! The guest's UDP flows, with the kernel as the guest and as the host. Needs root.

mod common;

use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;

use common::{
    DNS, GATEWAY, GUEST, Guest, HOST, LIMIT, LOOPBACK, Rig, ip, pattern, wait_until, with_gateway,
    with_port,
};
use fullsend_gateway::{Config, Forward, Limits, Protocol, Side};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::gettid;

fn bind(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// Returns a socket of the guest that is connected to `to`.
fn guest_socket(rig: &Rig, to: SocketAddr) -> UdpSocket {
    rig.guest.run(move || {
        let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
        let socket = bind(any);
        socket.connect(to).unwrap();
        socket
    })
}

/// Sends `len` bytes in each direction, and returns the server's socket and the address of the
/// gateway's.
fn exchange(guest: &UdpSocket, server: &UdpSocket, len: usize) -> SocketAddr {
    let mut buf = vec![0; 65_536];
    let request = pattern(len, 5);
    guest.send(&request).unwrap();
    let (received, from) = server.recv_from(&mut buf).unwrap();
    assert!(buf[..received] == request, "{len} bytes to the host");
    let answer = pattern(len, 6);
    server.send_to(&answer, from).unwrap();
    let received = guest.recv(&mut buf).unwrap();
    assert!(buf[..received] == answer, "{len} bytes to the guest");
    from
}

#[test]
fn datagrams_pass_in_both_directions_and_keep_their_sizes() {
    with_gateway(Config::default(), |rig| {
        for host in HOST {
            let server = bind(host);
            let guest = guest_socket(rig, server.local_addr().unwrap());
            let mut flows: Vec<_> = [1, 64, 1400, 9000, 65_000, 0]
                .map(|len| exchange(&guest, &server, len))
                .into();
            flows.dedup();
            assert_eq!(flows.len(), 1, "one host socket for one flow: {flows:?}");
        }
        wait_until("all datagrams are counted", || {
            let counters = rig.gateway.counters();
            (counters.udp_tx_datagrams, counters.udp_rx_datagrams) == (12, 12)
        });
        let counters = rig.gateway.counters();
        assert_eq!((counters.udp_flows, counters.udp_open), (2, 2));
    });
}

#[test]
fn datagrams_longer_than_the_mtu_are_fragmented_and_reassembled() {
    let config = Config {
        mtu: 1500,
        ..Config::default()
    };
    with_gateway(config, |rig| {
        for host in HOST {
            let server = bind(host);
            let guest = guest_socket(rig, server.local_addr().unwrap());
            for len in [1473, 5000, 60_000] {
                exchange(&guest, &server, len);
            }
        }
    });
}

#[test]
fn coalesced_datagrams_arrive_one_by_one() {
    with_gateway(Config::default(), |rig| {
        for host in HOST {
            let server = bind(host);
            let guest = guest_socket(rig, server.local_addr().unwrap());
            for socket in [&guest, &server] {
                setsockopt(socket, sockopt::UdpGsoSegment, &1000).unwrap();
                setsockopt(socket, sockopt::RcvBuf, &(4 << 20)).unwrap();
            }
            let data = pattern(20_500, 7);
            let mut buf = vec![0; 65_536];
            let mut client = None;
            for to_host in [true, false] {
                let receiver = if to_host {
                    guest.send(&data).unwrap();
                    &server
                } else {
                    server.send_to(&data, client.unwrap()).unwrap();
                    &guest
                };
                for expected in data.chunks(1000) {
                    let (len, from) = receiver.recv_from(&mut buf).unwrap();
                    assert!(&buf[..len] == expected, "{len} bytes");
                    client = Some(from);
                }
            }
        }
    });
}

/// Sends until `recv` reports an error, and returns its kind.
fn error_of(socket: &UdpSocket) -> ErrorKind {
    socket.set_read_timeout(Some(LIMIT / 20)).unwrap();
    for _ in 0..20 {
        let sent = socket.send(b"anybody?");
        match sent.and_then(|_| socket.recv(&mut [0; 9])) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return error.kind(),
            _ => {}
        }
    }
    panic!("no error");
}

#[test]
fn the_guest_sees_the_errors_of_the_hosts_socket() {
    with_gateway(Config::default(), |rig| {
        ip("route add unreachable 198.51.100.0/24");
        ip("-6 route add prohibit 2001:db8:2::/48 dev lo");
        for (to, expected) in [
            ("192.0.2.1:9", ErrorKind::ConnectionRefused),
            ("[2001:db8::1]:9", ErrorKind::ConnectionRefused),
            ("10.0.2.2:9", ErrorKind::ConnectionRefused),
            ("[fd00::2]:9", ErrorKind::ConnectionRefused),
            ("192.88.99.1:9", ErrorKind::NetworkUnreachable),
            ("[2001:db8:9::1]:9", ErrorKind::NetworkUnreachable),
            ("198.51.100.1:9", ErrorKind::HostUnreachable),
            ("[2001:db8:2::1]:9", ErrorKind::PermissionDenied),
        ] {
            let to: SocketAddr = to.parse().unwrap();
            let socket = guest_socket(rig, to);
            // Only sockets that request all errors receive those that are not hard.
            if to.is_ipv4() {
                setsockopt(&socket, sockopt::Ipv4RecvErr, &true).unwrap();
            } else {
                setsockopt(&socket, sockopt::Ipv6RecvErr, &true).unwrap();
            }
            assert_eq!(error_of(&socket), expected, "{to}");
        }
        wait_until("all errors are counted", || {
            rig.gateway.counters().icmp_errors >= 8
        });
    });
}

#[test]
fn the_number_of_flows_is_bounded() {
    let config = Config {
        limits: Limits {
            udp_flows: 8,
            ..Limits::default()
        },
        ..Config::default()
    };
    with_gateway(config, |rig| {
        let server = bind(HOST[0]);
        let to = server.local_addr().unwrap();
        let first = guest_socket(rig, to);
        let first_flow = exchange(&first, &server, 10);
        // All stay open, so that each has a port of its own.
        let mut others = Vec::new();
        for _ in 0..100 {
            let other = guest_socket(rig, to);
            other.send(b"flood").unwrap();
            server.recv_from(&mut [0; 9]).unwrap();
            others.push(other);
        }
        wait_until("all flows are counted", || {
            rig.gateway.counters().udp_replaced == 93
        });
        assert_eq!(rig.gateway.counters().udp_open, 8);
        // A flow with answers is kept as long as others without answers can be replaced.
        assert_eq!(exchange(&first, &server, 10), first_flow);
    });
}

#[test]
fn a_forward_leads_to_the_guest_and_shows_the_client() {
    with_gateway(Config::default(), |rig| {
        for (family, host, client) in [
            (0, HOST[0], HOST[0]),
            (1, HOST[1], HOST[1]),
            (0, LOOPBACK[0], GATEWAY[0]),
            (1, LOOPBACK[1], GATEWAY[1]),
        ] {
            let server = rig.guest.run(move || bind(GUEST[family]));
            let forward = Forward {
                from: Side::Host,
                protocol: Protocol::Udp,
                host: with_port(host, 0),
                guest: server.local_addr().unwrap(),
                interface: None,
            };
            let id = rig.gateway.add_forward(forward).unwrap();
            let bound = rig.gateway.list_forwards()[0].1.host;
            // Two clients of the forward are two flows.
            let clients = [bind(host), bind(host)];
            for socket in &clients {
                socket.connect(bound).unwrap();
                let from = exchange(socket, &server, 1200);
                assert_eq!(from.ip().to_string(), client);
                assert_eq!(from.port(), socket.local_addr().unwrap().port());
            }
            rig.gateway.remove_forward(id).unwrap();
        }
    });
}

#[test]
fn a_forward_answers_from_the_address_that_was_asked() {
    with_gateway(Config::default(), |rig| {
        ip("addr add 192.0.2.5/24 dev up0");
        ip("addr add 2001:db8::5/64 dev up0 nodad");
        // The kernel adds the local route of an IPv6 address later. A socket connected before that
        // keeps the route of the prefix, and sends to the wire.
        wait_until("the address has its route", || {
            let args = ["-6", "route", "show", "table", "local"];
            let routes = Command::new("ip").args(args).output().unwrap();
            String::from_utf8_lossy(&routes.stdout).contains("local 2001:db8::5 ")
        });
        for (family, any, asked) in [(0, "0.0.0.0", "192.0.2.5"), (1, "::", "2001:db8::5")] {
            let server = rig.guest.run(move || bind(GUEST[family]));
            let forward = Forward {
                from: Side::Host,
                protocol: Protocol::Udp,
                host: with_port(any, 0),
                guest: server.local_addr().unwrap(),
                interface: None,
            };
            rig.gateway.add_forward(forward).unwrap();
            let port = rig.gateway.list_forwards()[family].1.host.port();
            // A connected socket receives only what comes from its peer.
            let client = bind(HOST[family]);
            client.connect(with_port(asked, port)).unwrap();
            exchange(&client, &server, 1200);
            client.connect(with_port(HOST[family], port)).unwrap();
            exchange(&client, &server, 1200);
        }
    });
}

#[test]
fn clients_with_the_same_link_local_address_on_two_links_are_two_clients() {
    with_gateway(Config::default(), |rig| {
        let server = rig.guest.run(|| bind(GUEST[1]));
        let guest = server.local_addr().unwrap();
        let links = ["link0", "link1"].map(|name| {
            let machine = Guest::start();
            let thread = machine.run(gettid);
            ip(&format!(
                "link add {name} type veth peer name eth0 netns {thread}"
            ));
            ip(&format!("link set {name} up"));
            ip(&format!("addr add fe80::1/64 dev {name} nodad"));
            let (socket, on_machine) = machine.run(|| {
                ip("link set eth0 up");
                ip("addr add fe80::2/64 dev eth0 nodad");
                let scope = if_nametoindex("eth0").unwrap();
                let local = SocketAddrV6::new("fe80::2".parse().unwrap(), 5000, 0, scope);
                let socket = UdpSocket::bind(local).unwrap();
                socket.set_read_timeout(Some(LIMIT)).unwrap();
                (socket, scope)
            });
            (socket, on_machine, if_nametoindex(name).unwrap(), machine)
        });
        let add = |host: SocketAddr| {
            let forward = Forward {
                from: Side::Host,
                protocol: Protocol::Udp,
                host,
                guest,
                interface: None,
            };
            rig.gateway.add_forward(forward).unwrap();
            let forwards = rig.gateway.list_forwards();
            forwards.last().unwrap().1.host.port()
        };
        let all = add("[::]:0".parse().unwrap());
        for (client, on_machine, on_host, _machine) in &links {
            // A forward of this link's address only, and that of all addresses.
            let host = "fe80::1".parse().unwrap();
            let own = add(SocketAddrV6::new(host, 0, 0, *on_host).into());
            for port in [all, own] {
                client
                    .connect(SocketAddrV6::new(host, port, 0, *on_machine))
                    .unwrap();
                let from = exchange(client, &server, 1200);
                assert_eq!(from.ip().to_string(), GATEWAY[1]);
            }
        }
        // Four flows: each client and forward has its own.
        assert_eq!(rig.gateway.counters().forwarded, 4);
    });
}

#[test]
fn clients_of_a_forward_do_not_end_the_guests_flows() {
    let config = Config {
        limits: Limits {
            udp_flows: 4,
            forwarded_udp_flows: 4,
            ..Limits::default()
        },
        ..Config::default()
    };
    with_gateway(config, |rig| {
        let server = bind(HOST[0]);
        let own = guest_socket(rig, server.local_addr().unwrap());
        let flow = exchange(&own, &server, 10);
        let inside = rig.guest.run(|| bind(GUEST[0]));
        let forward = Forward {
            from: Side::Host,
            protocol: Protocol::Udp,
            host: with_port(LOOPBACK[0], 0),
            guest: inside.local_addr().unwrap(),
            interface: None,
        };
        let id = rig.gateway.add_forward(forward.clone()).unwrap();
        let bound = rig.gateway.list_forwards()[0].1.host;
        let mut clients = Vec::new();
        for _ in 0..50 {
            let client = bind(LOOPBACK[0]);
            client.connect(bound).unwrap();
            exchange(&client, &inside, 10);
            clients.push(client);
        }
        assert_eq!(rig.gateway.counters().udp_replaced, 46);
        assert_eq!(exchange(&own, &server, 10), flow);
        // The flows of a removed forward do not keep its port.
        rig.gateway.remove_forward(id).unwrap();
        let again = Forward {
            host: bound,
            ..forward
        };
        wait_until("the port is free", || {
            rig.gateway.add_forward(again.clone()).is_ok()
        });
    });
}

#[test]
fn ports_of_the_dns_address_other_than_53_are_unreachable() {
    with_gateway(Config::default(), |rig| {
        for dns in DNS {
            let socket = guest_socket(rig, with_port(dns, 9));
            if dns == DNS[0] {
                setsockopt(&socket, sockopt::Ipv4RecvErr, &true).unwrap();
            } else {
                setsockopt(&socket, sockopt::Ipv6RecvErr, &true).unwrap();
            }
            assert_eq!(error_of(&socket), ErrorKind::NetworkUnreachable);
        }
    });
}

#[test]
fn datagrams_beyond_the_rate_of_a_guest_are_dropped() {
    let config = Config {
        limits: Limits {
            rate: Some(1000),
            ..Limits::default()
        },
        ..Config::default()
    };
    with_gateway(config, |rig| {
        let server = bind(HOST[0]);
        let guest = guest_socket(rig, server.local_addr().unwrap());
        wait_until("datagrams beyond the rate are dropped", || {
            guest.send(&[0; 1000]).unwrap();
            rig.gateway.counters().udp_dropped >= 40
        });
        server.recv_from(&mut [0; 1000]).unwrap();
    });
}
