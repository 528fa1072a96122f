//! `UdpSocket` in the cases in which programs rely on the behaviour of `tokio::net::UdpSocket`.

mod common;

use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;

use common::{pair, pattern, paused};
use fullsend::{Stack, Transmit, UdpBind, UdpSocket};
use nix::libc;
use tokio::io::{Interest, ReadBuf, Ready};

const FAMILIES: [[&str; 2]; 2] = [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]];

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Returns a socket on each stack, connected to each other.
async fn connected(a: &Stack, b: &Stack, ips: [&str; 2]) -> [UdpSocket; 2] {
    let here = UdpSocket::bind(a, at(ips[0], 0)).unwrap();
    let there = UdpSocket::bind(b, at(ips[1], 0)).unwrap();
    here.connect(there.local_addr().unwrap()).await.unwrap();
    there.connect(here.local_addr().unwrap()).await.unwrap();
    [here, there]
}

#[test]
fn connect_chooses_the_local_address_and_disconnect_releases_it() {
    paused(async {
        let (a, b) = pair();
        let peer = UdpSocket::bind(&b, "[::]:7").unwrap();
        let socket = UdpSocket::bind(&a, "[::]:1000").unwrap();
        let error = socket.peer_addr().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        for [here, there] in FAMILIES {
            socket.connect(at(there, 7)).await.unwrap();
            assert_eq!(socket.local_addr().unwrap(), at(here, 1000));
            assert_eq!(socket.peer_addr().unwrap(), at(there, 7));
            socket.send(b"x").await.unwrap();
            assert_eq!(peer.recv_from(&mut [0; 4]).await.unwrap().1, at(here, 1000));
        }
        socket.disconnect().unwrap();
        assert_eq!(socket.local_addr().unwrap(), at("::", 1000));
        let v4 = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        let error = v4.connect("[fd00::2]:7").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        let error = v4.connect("10.0.0.2:0").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn the_connected_socket_of_a_port_receives_from_its_peer_and_the_other_from_all_others() {
    paused(async {
        let (a, b) = pair();
        let shared = UdpBind::new().reuse_address(true);
        let bind = || UdpSocket::bind_with(&a, "10.0.0.1:1000", shared).unwrap();
        let connected = bind();
        connected.connect("10.0.0.2:1").await.unwrap();
        // Bound last, so that it would receive everything if neither were connected.
        let open = bind();
        let to = at("10.0.0.1", 1000);
        for (port, receiver, data) in [(1, &connected, b"peer "), (2, &open, b"other")] {
            let sender = UdpSocket::bind(&b, at("10.0.0.2", port)).unwrap();
            sender.send_to(data, to).await.unwrap();
            let mut buf = [0; 8];
            let (len, from) = receiver.recv_from(&mut buf).await.unwrap();
            assert_eq!((&buf[..len], from.port()), (&data[..], port));
        }
        for socket in [&connected, &open] {
            let error = socket.try_recv(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    });
}

#[test]
fn icmp_errors_are_returned_once_by_the_next_call_of_a_connected_socket() {
    paused(async {
        for ips in FAMILIES {
            let (a, b) = pair();
            let closed = UdpSocket::bind(&b, at(ips[1], 0)).unwrap();
            let to = closed.local_addr().unwrap();
            drop(closed);
            let socket = UdpSocket::bind(&a, at(ips[0], 0)).unwrap();
            // An unconnected socket does not report errors.
            socket.send_to(b"x", to).await.unwrap();
            tokio::task::yield_now().await;
            assert!(socket.take_error().unwrap().is_none());
            socket.connect(to).await.unwrap();
            socket.send(b"x").await.unwrap();
            socket.readable().await.unwrap();
            let refused = |result: std::io::Result<usize>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            };
            refused(socket.recv(&mut [0; 4]).await);
            let would_block = |result: std::io::Result<usize>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
            };
            // Until a call would block, the socket stays ready.
            would_block(socket.try_recv(&mut [0; 4]));
            assert_eq!(socket.send(b"x").await.unwrap(), 1);
            let ready = socket.ready(Interest::READABLE | Interest::ERROR).await;
            let ready = ready.unwrap();
            assert!(ready.is_readable() && ready.is_error());
            refused(socket.send(b"x").await);
            would_block(socket.try_recv(&mut [0; 4]));
            socket.send(b"x").await.unwrap();
            socket.readable().await.unwrap();
            let error = socket.take_error().unwrap().unwrap();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(socket.take_error().unwrap().is_none());
        }
    });
}

#[test]
fn peeking_leaves_the_datagram() {
    paused(async {
        let (a, b) = pair();
        let [client, server] = connected(&a, &b, FAMILIES[0]).await;
        let from = client.local_addr().unwrap();
        let mut buf = [0; 16];
        for result in [
            server.try_peek(&mut buf).map(|_| ()),
            server.try_peek_sender().map(|_| ()),
        ] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        client.send(b"datagram").await.unwrap();
        assert_eq!(server.peek(&mut buf[..4]).await.unwrap(), 4);
        assert_eq!(server.peek_from(&mut buf).await.unwrap(), (8, from));
        assert_eq!(server.peek_sender().await.unwrap(), from);
        assert_eq!(server.try_peek(&mut buf).unwrap(), 8);
        assert_eq!(server.try_peek_from(&mut buf).unwrap(), (8, from));
        assert_eq!(server.try_peek_sender().unwrap(), from);
        let mut read = ReadBuf::new(&mut buf);
        poll_fn(|cx| server.poll_peek(cx, &mut read)).await.unwrap();
        assert_eq!(read.filled(), b"datagram");
        read.clear();
        let sender = poll_fn(|cx| server.poll_peek_from(cx, &mut read)).await;
        assert_eq!((sender.unwrap(), read.filled().len()), (from, 8));
        let sender = poll_fn(|cx| server.poll_peek_sender(cx)).await;
        assert_eq!(sender.unwrap(), from);
        assert_eq!(server.recv(&mut buf).await.unwrap(), 8);
        assert_eq!(
            server.try_peek(&mut buf).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    });
}

#[test]
fn polling_registers_a_wake_up() {
    paused(async {
        let (a, b) = pair();
        let [client, server] = connected(&a, &b, FAMILIES[1]).await;
        let mut buf = [0; 16];
        let mut read = ReadBuf::new(&mut buf);
        let mut polls = 0;
        let received = poll_fn(|cx| {
            polls += 1;
            server.poll_recv(cx, &mut read)
        });
        let send = async {
            tokio::task::yield_now().await;
            poll_fn(|cx| client.poll_send_ready(cx)).await.unwrap();
            poll_fn(|cx| client.poll_send(cx, b"one")).await.unwrap()
        };
        let (received, sent) = tokio::join!(received, send);
        received.unwrap();
        assert_eq!((sent, read.filled(), polls), (3, &b"one"[..], 2));
        let to = server.local_addr().unwrap();
        let send = poll_fn(|cx| client.poll_send_to(cx, b"two", to));
        assert_eq!(send.await.unwrap(), 3);
        poll_fn(|cx| server.poll_recv_ready(cx)).await.unwrap();
        read.clear();
        let from = poll_fn(|cx| server.poll_recv_from(cx, &mut read)).await;
        assert_eq!(from.unwrap(), client.local_addr().unwrap());
        assert!(server.try_recv(&mut [0; 4]).is_err());
        let pending = poll_fn(|cx| Poll::Ready(server.poll_recv_ready(cx).is_pending())).await;
        assert!(pending);
    });
}

#[test]
fn buffers_with_spare_capacity_receive_a_datagram_each() {
    paused(async {
        let (a, b) = pair();
        let [client, server] = connected(&a, &b, FAMILIES[0]).await;
        for _ in 0..4 {
            client.try_send(b"0123456789").unwrap();
        }
        let mut buf = Vec::with_capacity(25);
        assert_eq!(server.recv_buf(&mut buf).await.unwrap(), 10);
        let from = client.local_addr().unwrap();
        assert_eq!(server.recv_buf_from(&mut buf).await.unwrap(), (10, from));
        // Only five bytes fit; the rest of the datagram is lost.
        assert_eq!(server.try_recv_buf(&mut buf).unwrap(), 5);
        assert_eq!(buf, b"0123456789012345678901234");
        buf.clear();
        assert_eq!(server.try_recv_buf_from(&mut buf).unwrap(), (10, from));
        let error = server.try_recv_buf(&mut buf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn readiness_and_the_calls_that_depend_on_it() {
    paused(async {
        let (a, b) = pair();
        let [client, server] = connected(&a, &b, FAMILIES[0]).await;
        let both = Interest::READABLE | Interest::WRITABLE;
        assert_eq!(server.ready(both).await.unwrap(), Ready::WRITABLE);
        let not_ready = server.try_io(Interest::READABLE, || -> std::io::Result<()> {
            panic!("it is not readable")
        });
        assert_eq!(not_ready.unwrap_err().kind(), ErrorKind::WouldBlock);
        let receive = server.async_io(Interest::READABLE, || {
            let mut buf = [0; 4];
            server.try_recv(&mut buf).map(|len| buf[..len].to_vec())
        });
        let send = async {
            tokio::task::yield_now().await;
            client
                .async_io(Interest::WRITABLE, || client.try_send(b"ping"))
                .await
        };
        let (received, sent) = tokio::join!(receive, send);
        assert_eq!((received.unwrap(), sent.unwrap()), (b"ping".to_vec(), 4));
        client.send(b"more").await.unwrap();
        let ready = server.ready(both).await.unwrap();
        assert!(ready.is_readable() && ready.is_writable());
        let len = server.try_io(Interest::READABLE, || server.try_recv(&mut [0; 9]));
        assert_eq!(len.unwrap(), 4);
        let error = server.ready(Interest::ERROR).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn options_are_checked_and_returned() {
    paused(async {
        let (a, _b) = pair();
        let socket = UdpSocket::bind(&a, "0.0.0.0:0").unwrap();
        assert_eq!((socket.ttl().unwrap(), socket.tos_v4().unwrap()), (64, 0));
        socket.set_ttl(17).unwrap();
        socket.set_tos_v4(0xb8).unwrap();
        assert_eq!(
            (socket.ttl().unwrap(), socket.tclass_v6().unwrap()),
            (17, 0xb8)
        );
        assert_eq!(socket.multicast_ttl_v4().unwrap(), 1);
        socket.set_multicast_ttl_v4(255).unwrap();
        assert_eq!(socket.multicast_ttl_v4().unwrap(), 255);
        for result in [
            socket.set_ttl(0),
            socket.set_ttl(256),
            socket.set_multicast_ttl_v4(256),
        ] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        for on in [false, true] {
            socket.set_broadcast(on).unwrap();
            socket.set_multicast_loop_v4(on).unwrap();
            socket.set_multicast_loop_v6(!on).unwrap();
            assert_eq!(socket.broadcast().unwrap(), on);
            assert_eq!(socket.multicast_loop_v4().unwrap(), on);
            assert_eq!(socket.multicast_loop_v6().unwrap(), !on);
        }
        socket.set_recv_buffer_size(5000).unwrap();
        assert_eq!(socket.recv_buffer_size().unwrap(), 10_000);
    });
}

#[test]
fn broadcasts_need_permission() {
    paused(async {
        let (a, b) = pair();
        let receiver = UdpSocket::bind(&b, "0.0.0.0:9").unwrap();
        let sender = UdpSocket::bind(&a, "0.0.0.0:0").unwrap();
        let to = at("10.0.0.255", 9);
        let denied = [
            sender.send_to(b"x", to).await,
            sender.connect(to).await.map(|()| 0),
        ];
        for result in denied {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        sender.set_broadcast(true).unwrap();
        sender.send_to(b"x", to).await.unwrap();
        let (_, _, destination) = receiver.recv_from_to(&mut [0; 4]).await.unwrap();
        assert_eq!(destination, to);
    });
}

#[test]
fn groups_are_received_while_a_socket_has_joined_them() {
    paused(async {
        let groups: [IpAddr; 2] = [
            Ipv4Addr::new(239, 7, 7, 7).into(),
            "ff05::77".parse::<Ipv6Addr>().unwrap().into(),
        ];
        let (a, b) = pair();
        let member = UdpSocket::bind(&b, "[::]:9").unwrap();
        let sender = UdpSocket::bind(&a, "[::]:9").unwrap();
        let change = |socket: &UdpSocket, group: IpAddr, join: bool| match (group, join) {
            (IpAddr::V4(group), true) => socket.join_multicast_v4(group, Ipv4Addr::UNSPECIFIED),
            (IpAddr::V4(group), false) => socket.leave_multicast_v4(group, Ipv4Addr::UNSPECIFIED),
            (IpAddr::V6(group), true) => socket.join_multicast_v6(&group, 2),
            (IpAddr::V6(group), false) => socket.leave_multicast_v6(&group, 0),
        };
        for group in groups {
            let to = SocketAddr::new(group, 9);
            let send = |text: &'static [u8]| sender.send_to(text, to);
            send(b"before").await.unwrap();
            let left = change(&member, group, false).unwrap_err();
            assert_eq!(left.kind(), ErrorKind::AddrNotAvailable);
            change(&member, group, true).unwrap();
            let again = change(&member, group, true).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::AddrInUse);
            send(b"joined").await.unwrap();
            let mut buf = [0; 8];
            let (len, _, destination) = member.recv_from_to(&mut buf).await.unwrap();
            assert_eq!((&buf[..len], destination), (&b"joined"[..], to));
            // The sender has not joined, so its own stack does not receive the group.
            assert!(sender.try_recv(&mut buf).is_err());
            change(&sender, group, true).unwrap();
            send(b"looped").await.unwrap();
            assert_eq!(sender.recv(&mut buf).await.unwrap(), 6);
            assert_eq!(member.recv(&mut buf).await.unwrap(), 6);
            change(&member, group, false).unwrap();
            change(&sender, group, false).unwrap();
            send(b"after").await.unwrap();
            tokio::task::yield_now().await;
            assert!(member.try_recv(&mut buf).is_err() && sender.try_recv(&mut buf).is_err());
        }
        // A group of the interface-local scope is received, but only within the stack.
        let group: Ipv6Addr = "ff01::77".parse().unwrap();
        for socket in [&member, &sender] {
            change(socket, group.into(), true).unwrap();
        }
        sender.send_to(b"local", (group, 9)).await.unwrap();
        assert_eq!(sender.recv(&mut [0; 8]).await.unwrap(), 5);
        tokio::task::yield_now().await;
        assert!(member.try_recv(&mut [0; 8]).is_err());
        change(&member, group.into(), false).unwrap();
        let error = member
            .join_multicast_v4(Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::UNSPECIFIED)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        for n in 0..20 {
            let group = Ipv4Addr::new(239, 0, 0, n);
            member
                .join_multicast_v4(group, Ipv4Addr::new(10, 0, 0, 2))
                .unwrap();
        }
        let error = member
            .join_multicast_v6(&"ff05::1".parse().unwrap(), 0)
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
    });
}

#[test]
fn segments_are_sent_and_received_together() {
    paused(async {
        for ips in FAMILIES {
            let (a, b) = pair();
            let [client, server] = connected(&a, &b, ips).await;
            let to = server.local_addr().unwrap();
            // More than one packet holds: 64 datagrams at most.
            let data = pattern(100 * 1000 + 10, 3);
            assert_eq!(
                client.send_segments(&data, 1000, to).await.unwrap(),
                data.len()
            );
            let mut got = Vec::new();
            for n in 0..=100 {
                let mut buf = [0; 2000];
                let len = server.recv(&mut buf).await.unwrap();
                assert_eq!(len, if n < 100 { 1000 } else { 10 });
                got.extend_from_slice(&buf[..len]);
            }
            assert!(got == data);
            server.set_gro(true).unwrap();
            client.send_segments(&data, 1000, to).await.unwrap();
            let mut batch = Vec::new();
            assert_eq!(server.recv_many(&mut batch, 8).await.unwrap(), 2);
            let segments = batch.iter().flat_map(|datagram| {
                assert_eq!((datagram.segment_size, datagram.to), (1000, to));
                datagram
                    .segments()
                    .map(|segment| segment.len())
                    .collect::<Vec<_>>()
            });
            assert_eq!(
                segments.collect::<Vec<_>>(),
                [&[1000; 100][..], &[10]].concat()
            );
            let error = client.send_segments(&data, 0, to).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let error = server.try_recv_many(&mut batch, 8).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    });
}

#[test]
fn messages_are_sent_together_until_the_first_error() {
    paused(async {
        let (a, b) = pair();
        let client = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        let server = UdpSocket::bind(&b, "10.0.0.2:9").unwrap();
        server.set_gro(true).unwrap();
        let to = at("10.0.0.2", 9);
        let data = pattern(4000, 1);
        let sized = Transmit {
            segment_size: Some(500),
            ..Transmit::new(to, &data)
        };
        let single = Transmit::new(to, &data[..300]);
        let unreachable = Transmit::new(at("fd00::2", 9), &data[..1]);
        let sent = client.send_many(&[sized, single, single, single, unreachable, single]);
        assert_eq!(sent.unwrap(), 4);
        let mut batch = Vec::new();
        while batch.len() < 2 {
            server.recv_many(&mut batch, 8).await.unwrap();
        }
        let shape = batch
            .iter()
            .map(|datagram| (datagram.payload.len(), datagram.segment_size));
        assert_eq!(shape.collect::<Vec<_>>(), [(4000, 500), (900, 300)]);
        let error = client.send_many(&[unreachable, single]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        assert_eq!(client.send_many(&[]).unwrap(), 0);
    });
}
