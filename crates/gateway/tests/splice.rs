//! Connections and UDP flows between the loopbacks of the host and the guest.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use common::{GATEWAY, GUEST, HOST, LOOPBACK, Rig, exchange, pattern, wait_until, with_port};
use fullsend_gateway::{Config, Flow, Forward, LoopbackClients, Policy, Protocol, Side, Verdict};
use socket2::SockRef;

/// Settings with which clients on the host's loopback reach this part of the guest.
fn config(clients: LoopbackClients) -> Config {
    let mut config = Config {
        loopback_clients: clients,
        ..Config::default()
    };
    if let Some(v6) = &mut config.ipv6 {
        v6.guest = Some(GUEST[1].parse().unwrap());
    }
    config
}

fn with_gateway(clients: LoopbackClients, test: impl FnOnce(&Rig) + Send + 'static) {
    common::with_gateway(config(clients), test);
}

/// Listens in the guest; returns the port.
fn listen_in_guest(rig: &Rig, address: &'static str) -> (TcpListener, u16) {
    rig.guest.run(move || {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    })
}

/// Adds a forward of any free port at `host`; returns its address.
fn to_guest(rig: &Rig, host: &str, guest: SocketAddr) -> SocketAddr {
    let id = rig.gateway.add_forward(Forward {
        from: Side::Host,
        protocol: Protocol::Tcp,
        host: with_port(host, 0),
        guest,
        interface: None,
    });
    bound(rig, id.unwrap()).host
}

/// Adds a forward of any free port at `guest`; returns its address.
fn to_host(rig: &Rig, guest: &str, host: SocketAddr) -> SocketAddr {
    let id = rig.gateway.add_forward(from_guest(guest, host));
    bound(rig, id.unwrap()).guest
}

fn from_guest(guest: &str, host: SocketAddr) -> Forward {
    Forward {
        from: Side::Guest,
        protocol: Protocol::Tcp,
        host,
        guest: with_port(guest, 0),
        interface: None,
    }
}

fn bound(rig: &Rig, id: fullsend_gateway::ForwardId) -> Forward {
    let forwards = rig.gateway.list_forwards();
    let found = forwards.into_iter().find(|(other, _)| *other == id);
    found.expect("the forward exists").1
}

fn spliced(rig: &Rig) -> u64 {
    rig.gateway.counters().spliced
}

/// Waits until no connection is left.
fn wait_for_end(rig: &Rig) {
    wait_until("the connection ends", || {
        rig.gateway.counters().tcp_open == 0
    });
}

#[test]
fn a_client_on_the_loopback_reaches_the_guests_address_from_there() {
    with_gateway(LoopbackClients::GuestAddress, |rig| {
        for family in [0, 1] {
            let (listener, port) = listen_in_guest(rig, GUEST[family]);
            let guest = with_port(GUEST[family], port);
            let host = to_guest(rig, LOOPBACK[family], guest);
            let client = TcpStream::connect(host).unwrap();
            let (server, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), GUEST[family]);
            assert_eq!(server.local_addr().unwrap(), guest);
            wait_until("the connection is counted", || {
                spliced(rig) == family as u64 + 1
            });
            drop((client, server));
        }
        wait_for_end(rig);
    });
}

#[test]
fn a_client_on_the_loopback_reaches_the_guests_loopback() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        for family in [0, 1] {
            let (listener, port) = listen_in_guest(rig, LOOPBACK[family]);
            let host = to_guest(rig, LOOPBACK[family], with_port(GUEST[family], port));
            let _client = TcpStream::connect(host).unwrap();
            let (_server, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), LOOPBACK[family]);
        }
    });
}

#[test]
fn other_clients_and_other_destinations_use_the_link() {
    with_gateway(LoopbackClients::GuestAddress, |rig| {
        let (listener, port) = listen_in_guest(rig, GUEST[0]);
        let host = to_guest(rig, HOST[0], with_port(GUEST[0], port));
        let _client = TcpStream::connect(host).unwrap();
        let (_server, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), HOST[0]);
        // A second address of the guest is not in the gateway's settings.
        rig.guest
            .run(|| common::ip("addr add 10.0.2.77/24 dev tap0"));
        let (listener, port) = listen_in_guest(rig, "10.0.2.77");
        let host = to_guest(rig, LOOPBACK[0], with_port("10.0.2.77", port));
        let _client = TcpStream::connect(host).unwrap();
        let (_server, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), GATEWAY[0]);
        assert_eq!(spliced(rig), 0);
    });
    with_gateway(LoopbackClients::Link, |rig| {
        let (listener, port) = listen_in_guest(rig, GUEST[0]);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], port));
        let _client = TcpStream::connect(host).unwrap();
        let (_server, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), GATEWAY[0]);
        assert_eq!(spliced(rig), 0);
    });
}

#[test]
fn a_client_in_the_guest_reaches_the_host() {
    with_gateway(LoopbackClients::Link, |rig| {
        for family in [0, 1] {
            let listener = TcpListener::bind((LOOPBACK[family], 0)).unwrap();
            let host = listener.local_addr().unwrap();
            let guest = to_host(rig, LOOPBACK[family], host);
            let client = rig.guest.run(move || TcpStream::connect(guest).unwrap());
            let (server, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), LOOPBACK[family]);
            let data = pattern(3 << 20, 5);
            let sent = data.clone();
            let echo = thread::spawn(move || {
                let mut server = server;
                let mut received = Vec::new();
                server.read_to_end(&mut received).unwrap();
                server.write_all(&received).unwrap();
            });
            assert!(exchange(&client, sent) == data);
            echo.join().unwrap();
        }
        assert_eq!(spliced(rig), 2);
        wait_for_end(rig);
        let counters = rig.gateway.counters();
        assert_eq!(counters.tcp_tx_bytes, 2 * (3 << 20));
        assert_eq!(counters.tcp_rx_bytes, 2 * (3 << 20));
    });
}

#[test]
fn a_removed_forward_of_the_guest_refuses_clients_and_its_connections_go_on() {
    with_gateway(LoopbackClients::Link, |rig| {
        let listener = TcpListener::bind((LOOPBACK[0], 0)).unwrap();
        let host = listener.local_addr().unwrap();
        let id = rig.gateway.add_forward(from_guest(LOOPBACK[0], host));
        let id = id.unwrap();
        let guest = bound(rig, id).guest;
        let mut client = rig.guest.run(move || TcpStream::connect(guest).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        rig.gateway.remove_forward(id).unwrap();
        server.write_all(b"late").unwrap();
        let mut buf = [0; 4];
        client.read_exact(&mut buf).unwrap();
        let error = rig
            .guest
            .run(move || TcpStream::connect(guest).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn each_direction_ends_on_its_own() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let (listener, port) = listen_in_guest(rig, LOOPBACK[0]);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], port));
        let mut client = TcpStream::connect(host).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"request").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut request = String::new();
        server.read_to_string(&mut request).unwrap();
        assert_eq!(request, "request");
        for part in [&b"first"[..], b"second"] {
            server.write_all(part).unwrap();
            let mut buf = vec![0; part.len()];
            client.read_exact(&mut buf).unwrap();
            assert_eq!(buf, part);
        }
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        wait_for_end(rig);
        assert_eq!(rig.gateway.counters().tcp_reset, 0);
    });
}

#[test]
fn a_reset_of_one_side_resets_the_other() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let (listener, port) = listen_in_guest(rig, LOOPBACK[0]);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], port));
        for by_client in [false, true] {
            for half_closed in [false, true] {
                let client = TcpStream::connect(host).unwrap();
                let (server, _) = listener.accept().unwrap();
                let (ended, mut other) = if by_client {
                    (client, server)
                } else {
                    (server, client)
                };
                if half_closed {
                    ended.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(other.read(&mut [0]).unwrap(), 0);
                }
                SockRef::from(&ended)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                drop(ended);
                // After the end of the stream, only a write reports the RST.
                let mut error = other.read(&mut [0]).err();
                while error.is_none() {
                    error = other.write_all(&[0]).err();
                }
                let kind = error.unwrap().kind();
                let is_reset = matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                assert!(is_reset, "{kind}");
            }
        }
        wait_for_end(rig);
    });
}

#[test]
fn data_waits_for_a_reader_that_is_slow() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let (listener, port) = listen_in_guest(rig, LOOPBACK[0]);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], port));
        let client = TcpStream::connect(host).unwrap();
        let (server, _) = listener.accept().unwrap();
        let data = pattern(32 << 20, 3);
        let sent = data.clone();
        let writing = thread::spawn(move || exchange(&client, sent));
        // More than all buffers hold: the pipe is full when the reader begins.
        wait_until("the buffers are full", || {
            let before = rig.gateway.counters().tcp_rx_bytes;
            thread::sleep(Duration::from_millis(50));
            before > 0 && before == rig.gateway.counters().tcp_rx_bytes
        });
        let mut received = Vec::new();
        (&server).read_to_end(&mut received).unwrap();
        assert!(received == data);
        drop(server);
        assert!(writing.join().unwrap().is_empty());
        wait_for_end(rig);
    });
}

#[test]
fn the_end_of_the_gateway_resets_both_sides() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let (listener, port) = listen_in_guest(rig, LOOPBACK[0]);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], port));
        let mut client = TcpStream::connect(host).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        wait_until("the connection is relayed", || spliced(rig) == 1);
        rig.gateway.stop();
        for side in [&mut client, &mut server] {
            let error = side.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    });
}

#[test]
fn a_port_on_which_no_program_listens_resets_the_client() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let unused = TcpListener::bind((LOOPBACK[0], 0)).unwrap();
        let closed = unused.local_addr().unwrap();
        let guest = to_host(rig, LOOPBACK[0], closed);
        drop(unused);
        let error = rig.guest.run(move || {
            let mut client = TcpStream::connect(guest).unwrap();
            client.read(&mut [0]).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], 9));
        let mut client = TcpStream::connect(host).unwrap();
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        wait_for_end(rig);
    });
}

#[test]
fn a_server_of_the_gateways_program_is_not_reached() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let listeners = LOOPBACK.map(|at| TcpListener::bind((at, 0)).unwrap());
        let [hidden, open] = listeners.each_ref().map(|l| l.local_addr().unwrap());
        rig.gateway.hide_from_guests(hidden);
        let guest = to_host(rig, LOOPBACK[0], hidden);
        let error = rig.guest.run(move || {
            let mut client = TcpStream::connect(guest).unwrap();
            client.read(&mut [0]).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(rig.gateway.counters().service_refused, 1);
        let guest = to_host(rig, LOOPBACK[1], open);
        rig.guest.run(move || TcpStream::connect(guest).unwrap());
        listeners[1].accept().unwrap();
        wait_for_end(rig);
    });
}

#[test]
fn hundreds_of_connections_are_spliced_at_once() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let (listener, port) = listen_in_guest(rig, LOOPBACK[0]);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], port));
        let connect = |_| {
            let client = TcpStream::connect(host).unwrap();
            (client, listener.accept().unwrap().0)
        };
        let pairs: Vec<_> = (0..300).map(connect).collect();
        for (n, (client, server)) in pairs.iter().enumerate() {
            let (mut client, mut server) = (client, server);
            let data = pattern(100, n as u64);
            client.write_all(&data).unwrap();
            let mut buf = [0; 100];
            server.read_exact(&mut buf).unwrap();
            assert_eq!(buf.as_slice(), data);
        }
        assert_eq!(spliced(rig), 300);
        drop(pairs);
        wait_for_end(rig);
    });
}

#[test]
fn forwards_of_the_guest_that_cannot_be_bound_are_refused() {
    with_gateway(LoopbackClients::Link, |rig| {
        let host = with_port(LOOPBACK[0], 80);
        let (_listener, port) = listen_in_guest(rig, LOOPBACK[0]);
        let mut forward = from_guest(LOOPBACK[0], host);
        forward.guest.set_port(port);
        let error = rig.gateway.add_forward(forward.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let at = format!("cannot bind TCP {} in the guest", forward.guest);
        assert!(error.to_string().starts_with(&at), "{error}");
        forward.interface = Some("lo".to_owned());
        let error = rig.gateway.add_forward(forward).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        // The gateway still opens sockets.
        to_host(rig, LOOPBACK[0], host);
    });
}

#[test]
fn urgent_data_and_what_follows_arrive_in_order() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        let (listener, port) = listen_in_guest(rig, LOOPBACK[0]);
        let host = to_guest(rig, LOOPBACK[0], with_port(GUEST[0], port));
        for pause in [false, true] {
            let client = TcpStream::connect(host).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            (&client).write_all(b"before").unwrap();
            if pause {
                server.read_exact(&mut [0; 3]).unwrap();
            }
            SockRef::from(&client).send_out_of_band(b"!").unwrap();
            (&client).write_all(b"after").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut received = String::new();
            server.read_to_string(&mut received).unwrap();
            let expected = if pause { "ore!after" } else { "before!after" };
            assert_eq!(received, expected);
        }
        wait_for_end(rig);
    });
}

#[test]
fn a_server_of_the_other_family_is_reached() {
    with_gateway(LoopbackClients::GuestLoopback, |rig| {
        for (client, server) in [(0, 1), (1, 0)] {
            let listener = TcpListener::bind((LOOPBACK[server], 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let guest = to_host(rig, LOOPBACK[client], with_port(LOOPBACK[client], port));
            let mut stream = rig.guest.run(move || TcpStream::connect(guest).unwrap());
            listener.accept().unwrap().0.write_all(b"host").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "host");
            let (listener, port) = listen_in_guest(rig, LOOPBACK[server]);
            let host = to_guest(rig, LOOPBACK[client], with_port(GUEST[client], port));
            let mut stream = TcpStream::connect(host).unwrap();
            listener.accept().unwrap().0.write_all(b"guest").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "guest");
        }
    });
}

/// Denies each flow.
struct DenyAll;

impl Policy for DenyAll {
    fn flow(&self, _: &Flow) -> Verdict {
        Verdict::Reject
    }
}

#[test]
fn the_policy_may_deny_clients_in_the_guest() {
    let mut config = config(LoopbackClients::Link);
    config.policy = std::sync::Arc::new(DenyAll);
    common::with_gateway(config, |rig| {
        let listener = TcpListener::bind((LOOPBACK[0], 0)).unwrap();
        let guest = to_host(rig, LOOPBACK[0], listener.local_addr().unwrap());
        let error = rig.guest.run(move || {
            let mut client = TcpStream::connect(guest).unwrap();
            client.read(&mut [0]).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(rig.gateway.counters().policy_denied, 1);
    });
}

/// Adds a UDP forward of any free port of the guest's loopback to `host`.
fn udp_to_host(rig: &Rig, host: SocketAddr) -> (fullsend_gateway::ForwardId, SocketAddr) {
    let forward = Forward {
        protocol: Protocol::Udp,
        ..from_guest(LOOPBACK[0], host)
    };
    let id = rig.gateway.add_forward(forward).unwrap();
    (id, bound(rig, id).guest)
}

/// Returns a socket of the guest that is connected to `guest`, an address there.
fn udp_client(rig: &Rig, guest: SocketAddr) -> UdpSocket {
    rig.guest.run(move || {
        let client = UdpSocket::bind((LOOPBACK[0], 0)).unwrap();
        client.connect(guest).unwrap();
        client
    })
}

#[test]
fn a_udp_client_in_the_guest_reaches_the_host_until_its_forward_is_removed() {
    with_gateway(LoopbackClients::Link, |rig| {
        let server = UdpSocket::bind((LOOPBACK[0], 0)).unwrap();
        server.set_read_timeout(Some(common::LIMIT)).unwrap();
        let (id, guest) = udp_to_host(rig, server.local_addr().unwrap());
        let client = udp_client(rig, guest);
        client.set_read_timeout(Some(common::LIMIT)).unwrap();
        let mut data = [0; 64];
        for request in ["first", ""] {
            client.send(request.as_bytes()).unwrap();
            let (len, from) = server.recv_from(&mut data).unwrap();
            assert_eq!(&data[..len], request.as_bytes());
            assert!(from.ip().is_loopback());
            server.send_to(b"answer", from).unwrap();
            let len = client.recv(&mut data).unwrap();
            assert_eq!(&data[..len], b"answer");
        }
        let counters = rig.gateway.counters();
        let open = (counters.udp_open, counters.udp_sockets, counters.forwarded);
        assert_eq!(open, (1, 1, 1));
        // A datagram is counted after it has been sent.
        wait_until("both answers are counted", || {
            let counters = rig.gateway.counters();
            (counters.udp_tx_datagrams, counters.udp_rx_datagrams) == (2, 2)
        });
        rig.gateway.remove_forward(id).unwrap();
        let counters = rig.gateway.counters();
        assert_eq!((counters.udp_open, counters.udp_sockets), (0, 0));
        wait_until("the socket in the guest is closed", || {
            client.send(b"late").is_err()
        });
    });
}

#[test]
fn the_policy_may_deny_udp_clients_in_the_guest() {
    let mut config = config(LoopbackClients::Link);
    config.policy = std::sync::Arc::new(DenyAll);
    common::with_gateway(config, |rig| {
        let server = UdpSocket::bind((LOOPBACK[0], 0)).unwrap();
        server.set_nonblocking(true).unwrap();
        let (_, guest) = udp_to_host(rig, server.local_addr().unwrap());
        udp_client(rig, guest).send(b"request").unwrap();
        wait_until("the datagram is dropped", || {
            let counters = rig.gateway.counters();
            (counters.udp_dropped, counters.policy_denied_udp) == (1, 1)
        });
        assert_eq!(rig.gateway.counters().udp_flows, 0);
        let received = server.recv_from(&mut [0; 64]);
        assert_eq!(received.unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn a_udp_client_on_the_loopback_uses_the_link_where_the_guest_has_another_address() {
    let mut config = config(LoopbackClients::GuestAddress);
    // The guest does not have it.
    config.ipv4.as_mut().unwrap().guest = [10, 0, 2, 77].into();
    common::with_gateway(config, |rig| {
        let id = rig.gateway.add_forward(Forward::new(
            Side::Host,
            Protocol::Udp,
            with_port(LOOPBACK[0], 0),
            with_port("10.0.2.77", 5001),
        ));
        let host = bound(rig, id.unwrap()).host;
        let client = UdpSocket::bind((LOOPBACK[0], 0)).unwrap();
        client.send_to(b"request", host).unwrap();
        wait_until("a datagram over the link", || {
            rig.gateway.counters().udp_rx_datagrams == 1
        });
        let counters = rig.gateway.counters();
        assert_eq!((counters.udp_open, counters.udp_sockets), (1, 0));
    });
}
