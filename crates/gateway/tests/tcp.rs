//! The guest's TCP connections, with the kernel as the guest and as the host. Needs root.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use common::{
    GATEWAY, HOST, LIMIT, LOOPBACK, exchange, ip, pattern, wait_until, with_gateway, with_port,
    with_waiting_gateway,
};
use fullsend_gateway::{
    Config, Flow, Forward, ForwardId, Limits, Mapping, Outbound, Policy, Protocol, Side, Target,
    Verdict,
};
use socket2::{Domain, SockRef, Socket, Type};

fn listen(address: &str) -> (TcpListener, u16) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Returns a connection: the guest's end and the host's.
fn connected(rig: &common::Rig, host: &str) -> (TcpStream, TcpStream) {
    let (listener, port) = listen(host);
    let to = with_port(host, port);
    let guest = rig.guest.run(move || TcpStream::connect(to).unwrap());
    let (server, _) = listener.accept().unwrap();
    for stream in [&guest, &server] {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
    }
    (guest, server)
}

/// Resets the connection of `stream` (`SO_LINGER` 0).
#[allow(clippy::needless_pass_by_value, reason = "the stream is closed here")]
fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(std::time::Duration::ZERO))
        .unwrap();
}

fn assert_reset(stream: &mut TcpStream) {
    let mut buf = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buf) {
            Ok(0) => panic!("a FIN instead of a RST"),
            Ok(_) => {}
            Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn connections_to_the_loopback_have_the_configured_address_if_that_is_configured() {
    for (loopback, expected) in [(false, LOOPBACK[0]), (true, HOST[0])] {
        let outbound = Outbound {
            ipv4: Some(HOST[0].parse().unwrap()),
            loopback,
            ..Outbound::default()
        };
        let config = Config {
            outbound,
            ..Config::default()
        };
        with_gateway(config, move |rig| {
            let (listener, port) = listen(LOOPBACK[0]);
            let to = with_port(GATEWAY[0], port);
            let _guest = rig.guest.run(move || TcpStream::connect(to).unwrap());
            let (_, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), expected);
        });
    }
}

#[test]
fn data_and_half_closes_pass_in_both_directions() {
    with_gateway(Config::default(), |rig| {
        for host in HOST {
            let (guest, server) = connected(rig, host);
            let (up, down) = (pattern(20_000_000, 1), pattern(20_000_000, 2));
            let expected = up.clone();
            let reply = down.clone();
            // The server answers only after the guest's FIN.
            let serving = thread::spawn(move || {
                let mut received = Vec::new();
                (&server).read_to_end(&mut received).unwrap();
                assert!(received == expected);
                (&server).write_all(&reply).unwrap();
            });
            let received = rig.guest.run(move || exchange(&guest, up));
            assert!(received == down);
            serving.join().unwrap();
        }
        wait_until("no connection is left", || {
            rig.gateway.counters().tcp_open == 0
        });
        let counters = rig.gateway.counters();
        assert_eq!(counters.tcp_established, 2);
        assert_eq!(counters.tcp_reset, 0);
        assert_eq!(counters.tcp_tx_bytes, 40_000_000);
        assert_eq!(counters.tcp_rx_bytes, 40_000_000);
    });
}

#[test]
fn data_passes_at_mtu_1500_in_both_directions_at_once() {
    let config = Config {
        mtu: 1500,
        ..Config::default()
    };
    with_gateway(config, |rig| {
        for host in HOST {
            let (guest, server) = connected(rig, host);
            let (up, down) = (pattern(10_000_000, 3), pattern(10_000_000, 4));
            let (sent, expected) = (down.clone(), up.clone());
            let serving = thread::spawn(move || exchange(&server, sent));
            assert!(rig.guest.run(move || exchange(&guest, up)) == down);
            assert!(serving.join().unwrap() == expected);
        }
    });
}

#[test]
fn requests_and_responses_pass_one_by_one() {
    with_gateway(Config::default(), |rig| {
        let (guest, mut server) = connected(rig, HOST[0]);
        let echo = thread::spawn(move || {
            let mut buf = [0; 4096];
            while server.read_exact(&mut buf).is_ok() {
                server.write_all(&buf).unwrap();
            }
        });
        rig.guest.run(move || {
            let mut stream = guest;
            for n in 0..1000_u32 {
                let request = pattern(4096, n.into());
                stream.write_all(&request).unwrap();
                let mut answer = [0; 4096];
                stream.read_exact(&mut answer).unwrap();
                assert!(request == answer);
            }
        });
        echo.join().unwrap();
    });
}

#[test]
fn a_refused_connection_is_refused_to_the_guest() {
    with_gateway(Config::default(), |rig| {
        for host in HOST.into_iter().chain(GATEWAY) {
            let to = with_port(host, 9);
            let error = rig.guest.run(move || TcpStream::connect(to).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
        }
        wait_until("all are counted", || {
            rig.gateway.counters().tcp_refused == 4
        });
    });
}

#[test]
fn the_guest_sees_the_error_of_the_hosts_connect() {
    with_gateway(Config::default(), |rig| {
        ip("route add unreachable 198.51.100.0/24");
        ip("route add prohibit 203.0.113.0/24");
        ip("-6 route add unreachable 2001:db8:1::/48 dev lo");
        ip("-6 route add prohibit 2001:db8:2::/48 dev lo");
        for (to, expected) in [
            // There is no default route.
            ("192.88.99.1:80", ErrorKind::NetworkUnreachable),
            ("[2001:db8:9::1]:80", ErrorKind::NetworkUnreachable),
            ("198.51.100.1:80", ErrorKind::HostUnreachable),
            ("[2001:db8:1::1]:80", ErrorKind::HostUnreachable),
            // Linux reports a filter of an IPv4 router as an unreachable host.
            ("203.0.113.1:80", ErrorKind::HostUnreachable),
            ("[2001:db8:2::1]:80", ErrorKind::PermissionDenied),
        ] {
            let to: SocketAddr = to.parse().unwrap();
            let error = rig.guest.run(move || TcpStream::connect(to).unwrap_err());
            assert_eq!(error.kind(), expected, "{to}: {error}");
        }
        wait_until("all errors are counted", || {
            let counters = rig.gateway.counters();
            (counters.tcp_unreachable, counters.icmp_errors) == (6, 6)
        });
    });
}

#[test]
fn a_syn_is_held_until_the_host_answers() {
    with_gateway(Config::default(), |rig| {
        // The uplink leads nowhere.
        let to = with_port("192.0.2.77", 80);
        let socket = rig.guest.run(move || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket.connect(&to.into()).unwrap_err();
            socket
        });
        wait_until("the SYN is held", || rig.gateway.counters().tcp_open == 1);
        assert!(socket.peer_addr().is_err(), "connected");
        assert!(socket.take_error().unwrap().is_none());
    });
}

#[test]
fn a_reset_of_one_side_resets_the_other() {
    with_gateway(Config::default(), |rig| {
        let (guest, mut server) = connected(rig, HOST[0]);
        reset(guest);
        assert_reset(&mut server);

        let (mut guest, server) = connected(rig, HOST[1]);
        reset(server);
        assert_reset(&mut guest);

        // After a FIN in the other direction.
        let (guest, mut server) = connected(rig, HOST[0]);
        guest.shutdown(Shutdown::Write).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
        reset(guest);
        wait_until("the server is reset", || {
            server.write(&[0]).is_err() || SockRef::from(&server).take_error().unwrap().is_some()
        });

        let (mut guest, server) = connected(rig, HOST[0]);
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(guest.read(&mut [0]).unwrap(), 0);
        reset(server);
        wait_until("the guest is reset", || {
            guest.write(&[0]).is_err() || SockRef::from(&guest).take_error().unwrap().is_some()
        });
        wait_until("all connections end", || {
            rig.gateway.counters().tcp_open == 0
        });
        assert_eq!(rig.gateway.counters().tcp_reset, 4);
    });
}

/// Writes until the peer accepts no more. Returns the number of bytes.
fn fill(stream: &mut TcpStream) -> usize {
    stream.set_write_timeout(Some(LIMIT / 40)).unwrap();
    let block = vec![7; 1 << 20];
    let mut filled = 0;
    while let Ok(n) = stream.write(&block) {
        filled += n;
    }
    filled
}

#[test]
fn a_side_that_does_not_read_stops_the_other() {
    with_gateway(Config::default(), |rig| {
        let (mut guest, mut server) = connected(rig, HOST[0]);
        for to_host in [true, false] {
            let (writer, reader) = if to_host {
                (&mut guest, &mut server)
            } else {
                (&mut server, &mut guest)
            };
            let filled = fill(writer);
            // The buffers of two kernels and of the gateway.
            assert!((1 << 16..96 << 20).contains(&filled), "{filled} bytes");
            let mut received = 0;
            let mut buf = vec![0; 1 << 20];
            while received < filled {
                let n = reader.read(&mut buf).unwrap();
                assert!(buf[..n].iter().all(|byte| *byte == 7));
                received += n;
            }
            assert_eq!(received, filled);
        }
    });
}

#[test]
fn a_reset_passes_through_full_buffers() {
    with_gateway(Config::default(), |rig| {
        let (mut guest, mut server) = connected(rig, HOST[0]);
        fill(&mut guest);
        reset(guest);
        assert_reset(&mut server);

        let (mut guest, mut server) = connected(rig, HOST[0]);
        fill(&mut server);
        reset(server);
        assert_reset(&mut guest);
    });
}

#[test]
fn the_gateways_address_is_the_hosts_loopback() {
    with_gateway(Config::default(), |rig| {
        for (gateway, loopback) in GATEWAY.into_iter().zip(LOOPBACK) {
            let (listener, port) = listen(loopback);
            let to = with_port(gateway, port);
            let guest = rig.guest.run(move || TcpStream::connect(to).unwrap());
            let (mut server, from) = listener.accept().unwrap();
            assert!(from.ip().is_loopback());
            server.write_all(b"hello").unwrap();
            let mut received = [0; 5];
            (&guest).read_exact(&mut received).unwrap();
            assert_eq!(&received, b"hello");
        }
    });
}

#[test]
fn connections_beyond_the_limit_wait() {
    let config = Config {
        limits: Limits {
            tcp_connections: 2,
            ..Limits::default()
        },
        ..Config::default()
    };
    with_gateway(config, |rig| {
        let (first, first_server) = connected(rig, HOST[0]);
        let (_second, _other) = connected(rig, HOST[0]);
        let (listener, port) = listen(HOST[0]);
        let to = with_port(HOST[0], port);
        let (done, connected) = mpsc::channel();
        rig.guest.spawn(move || {
            done.send(TcpStream::connect(to)).unwrap();
        });
        wait_until("the SYN is dropped", || {
            rig.gateway.counters().tcp_dropped > 0
        });
        assert!(connected.try_recv().is_err());
        drop(first);
        drop(first_server);
        // The guest's retransmitted SYN is accepted.
        connected.recv_timeout(LIMIT).unwrap().unwrap();
        listener.accept().unwrap();
    });
}

#[test]
fn data_arrives_completely_after_a_half_close_by_the_server() {
    with_gateway(Config::default(), |rig| {
        for host in HOST {
            let (mut guest, mut server) = connected(rig, host);
            server.shutdown(Shutdown::Write).unwrap();
            assert_eq!(guest.read(&mut [0]).unwrap(), 0);
            let data = pattern(10_000_000, 8);
            let expected = data.clone();
            let writing = rig.guest.spawn(move || {
                guest.write_all(&data).unwrap();
                guest.shutdown(Shutdown::Write).unwrap();
                guest
            });
            // A slow reader: the guest's FIN arrives long before the last of its data is read.
            let mut received: Vec<u8> = Vec::new();
            let mut buf = vec![0; 100_000];
            loop {
                match server.read(&mut buf).unwrap() {
                    0 => break,
                    n => received.extend(&buf[..n]),
                }
                thread::sleep(std::time::Duration::from_millis(1));
            }
            assert!(received == expected, "{} bytes", received.len());
            writing.join().unwrap();
        }
        assert_eq!(rig.gateway.counters().tcp_reset, 0);
    });
}

#[test]
fn forwards_without_clients_do_not_use_up_connections() {
    let config = Config {
        limits: Limits {
            tcp_connections: 2,
            ..Limits::default()
        },
        ..Config::default()
    };
    with_gateway(config, |rig| {
        for port in 1..=8 {
            let guest = with_port(common::GUEST[0], port);
            add_forward(rig, forward(with_port(LOOPBACK[0], 0), guest));
        }
        let _connections = [connected(rig, HOST[0]), connected(rig, HOST[1])];
        assert_eq!(rig.gateway.counters().tcp_dropped, 0);
    });
}

#[test]
fn many_connections_at_once_are_all_relayed() {
    with_gateway(Config::default(), |rig| {
        let (listener, port) = listen(HOST[0]);
        let serving = thread::spawn(move || {
            let streams: Vec<_> = (0..400).map(|_| listener.accept().unwrap().0).collect();
            for mut stream in streams {
                let mut buf = [0; 64];
                stream.read_exact(&mut buf).unwrap();
                stream.write_all(&buf).unwrap();
            }
        });
        let to = with_port(HOST[0], port);
        rig.guest.run(move || {
            let streams: Vec<_> = (0..400).map(|_| TcpStream::connect(to).unwrap()).collect();
            for (n, mut stream) in streams.iter().enumerate() {
                stream.write_all(&pattern(64, n as u64)).unwrap();
            }
            for (n, mut stream) in streams.iter().enumerate() {
                let mut buf = [0; 64];
                stream.read_exact(&mut buf).unwrap();
                assert_eq!(buf.as_slice(), pattern(64, n as u64));
            }
        });
        serving.join().unwrap();
    });
}

fn forward(host: SocketAddr, guest: SocketAddr) -> Forward {
    Forward {
        from: Side::Host,
        protocol: Protocol::Tcp,
        host,
        guest,
        interface: None,
    }
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
            let (listener, port) = rig.guest.run(move || listen(common::GUEST[family]));
            let guest = with_port(common::GUEST[family], port);
            let id = add_forward(rig, forward(with_port(host, 0), guest));
            let bound = rig.gateway.list_forwards()[0].1.host;
            assert_ne!(bound.port(), 0);
            let mut stream = TcpStream::connect(bound).unwrap();
            let (mut accepted, from) = rig.guest.run(move || listener.accept().unwrap());
            assert_eq!(from.ip().to_string(), client);
            assert_eq!(from.port(), stream.local_addr().unwrap().port());
            stream.write_all(b"request").unwrap();
            let mut buf = [0; 7];
            accepted.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"request");
            // The connection goes on without its forward.
            rig.gateway.remove_forward(id).unwrap();
            assert!(rig.gateway.list_forwards().is_empty());
            accepted.write_all(b"answer").unwrap();
            let mut buf = [0; 6];
            stream.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"answer");
            let refused = TcpStream::connect(bound).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        }
    });
}

/// Adds a forward from outside of the gateway's runtime.
fn add_forward(rig: &common::Rig, forward: Forward) -> ForwardId {
    rig.gateway.add_forward(forward).unwrap()
}

#[test]
fn a_forward_to_a_closed_port_resets_its_client() {
    with_gateway(Config::default(), |rig| {
        let guest = with_port(common::GUEST[0], 9);
        add_forward(rig, forward(with_port(LOOPBACK[0], 0), guest));
        let bound = rig.gateway.list_forwards()[0].1.host;
        let mut stream = TcpStream::connect(bound).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert_reset(&mut stream);
    });
}

#[test]
fn urgent_data_and_what_follows_arrive_in_order() {
    with_waiting_gateway(Config::default(), |rig, run| {
        let (listener, port) = rig.guest.run(|| listen(common::GUEST[0]));
        let guest = with_port(common::GUEST[0], port);
        add_forward(rig, forward(with_port(LOOPBACK[0], 0), guest));
        let mut client = TcpStream::connect(rig.gateway.list_forwards()[0].1.host).unwrap();
        client.write_all(b"before the").unwrap();
        SockRef::from(&client).send_out_of_band(b"!").unwrap();
        client.write_all(b"after mark").unwrap();
        // All data is in the gateway's socket before its first read, and neither side closes.
        run();
        let (mut accepted, _) = rig.guest.run(move || listener.accept().unwrap());
        accepted.set_read_timeout(Some(LIMIT)).unwrap();
        let mut received = [0; 21];
        accepted.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"before the!after mark");
    });
}

#[test]
fn forwards_have_half_of_the_connections() {
    let config = Config {
        limits: Limits {
            tcp_connections: 4,
            ..Limits::default()
        },
        ..Config::default()
    };
    with_gateway(config, |rig| {
        let (_listener, port) = rig.guest.run(|| listen(common::GUEST[0]));
        let guest = with_port(common::GUEST[0], port);
        add_forward(rig, forward(with_port(LOOPBACK[0], 0), guest));
        let bound = rig.gateway.list_forwards()[0].1.host;
        let _clients: Vec<_> = (0..8).map(|_| TcpStream::connect(bound).unwrap()).collect();
        wait_until("two clients are connected", || {
            rig.gateway.counters().forwarded == 2
        });
        for _ in 0..3 {
            let connections = [connected(rig, HOST[0]), connected(rig, HOST[1])];
            assert_eq!(rig.gateway.counters().tcp_open, 4);
            drop(connections);
            wait_until("the guest's connections end", || {
                rig.gateway.counters().tcp_open == 2
            });
        }
        let counters = rig.gateway.counters();
        assert_eq!((counters.forwarded, counters.tcp_dropped), (2, 0));
    });
}

#[test]
fn a_client_that_has_gone_does_not_wait_for_the_guest() {
    with_gateway(Config::default(), |rig| {
        // The guest cannot answer the SYN.
        rig.guest.run(|| ip("route add blackhole 192.0.2.1/32"));
        let guest = with_port(common::GUEST[0], 80);
        add_forward(rig, forward(with_port(HOST[0], 0), guest));
        let bound = rig.gateway.list_forwards()[0].1.host;
        for resets in [true, false] {
            let client = TcpStream::connect(bound).unwrap();
            wait_until("the client is accepted", || {
                rig.gateway.counters().tcp_open == 1
            });
            if resets {
                reset(client);
            } else {
                drop(client);
            }
            wait_until("the connection ends", || {
                rig.gateway.counters().tcp_open == 0
            });
        }
    });
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    with_gateway(Config::default(), |rig| {
        let (_listener, port) = listen(LOOPBACK[0]);
        let host = with_port(LOOPBACK[0], port);
        let error = rig
            .gateway
            .add_forward(forward(host, with_port(common::GUEST[0], 80)))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&host.to_string()), "{error}");
    });
}

#[test]
fn mapped_addresses_of_the_guests_link_are_resolved() {
    let mut config = Config::default();
    let mut map = |guest: &str, target| {
        let guest = guest.parse().unwrap();
        config.mappings.push(Mapping { guest, target });
    };
    map("10.0.2.7", Target::Loopback);
    map("fd00::7", Target::Loopback);
    map("10.0.2.8", Target::Unreachable);
    map("fd00::8", Target::Unreachable);
    with_gateway(config, |rig| {
        for (family, mapped, unreachable) in
            [(0, "10.0.2.7", "10.0.2.8"), (1, "fd00::7", "fd00::8")]
        {
            let (listener, port) = listen(LOOPBACK[family]);
            let to = with_port(mapped, port);
            let _stream = rig.guest.run(move || TcpStream::connect(to).unwrap());
            listener.accept().unwrap();
            let to = with_port(unreachable, port);
            let error = rig.guest.run(move || TcpStream::connect(to).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{to}");
        }
    });
}

/// Rejects port 1, drops port 2, and redirects port 3 to a port of the loopback.
struct ByPort(SocketAddr);

impl Policy for ByPort {
    fn flow(&self, flow: &Flow) -> Verdict {
        match flow.destination.port() {
            1 => Verdict::Reject,
            2 => Verdict::Drop,
            3 => Verdict::Redirect(self.0),
            _ => Verdict::Allow,
        }
    }
}

#[test]
fn the_policy_rejects_and_redirects_connections() {
    // The redirection needs a port before the host's namespace exists.
    let redirected = with_port(LOOPBACK[0], 7007);
    let config = Config {
        policy: std::sync::Arc::new(ByPort(redirected)),
        ..Config::default()
    };
    with_gateway(config, move |rig| {
        let listener = TcpListener::bind(redirected).unwrap();
        let to = with_port("192.0.2.55", 1);
        let error = rig.guest.run(move || TcpStream::connect(to).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let to = with_port("192.0.2.55", 3);
        let _stream = rig.guest.run(move || TcpStream::connect(to).unwrap());
        listener.accept().unwrap();
        assert_eq!(rig.gateway.counters().policy_denied, 1);
    });
}
