//! UDP over the in-process link.

mod common;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{pair, pair_with, pattern, paused};
use fullsend::{NicMode, Slice, UdpSocket};
use nix::libc;
use tokio::task::JoinSet;

#[test]
fn datagrams_are_sent_and_received() {
    for (here, there) in [
        ("10.0.0.1:0", "10.0.0.2:53"),
        ("[fd00::1]:0", "[fd00::2]:53"),
    ] {
        for nic in [NicMode::Tso, NicMode::Mtu] {
            paused(async {
                let (a, b) = pair_with(nic, 1500);
                let client = UdpSocket::bind(&a, here).unwrap();
                let server = UdpSocket::bind(&b, there).unwrap();
                // The last one is fragmented.
                for len in [0, 1, 1400, 9000] {
                    let data = pattern(len, 3);
                    assert_eq!(client.send_to(&data, there).await.unwrap(), len);
                    let mut buf = vec![0; 10_000];
                    let (n, from) = server.recv_from(&mut buf).await.unwrap();
                    assert_eq!(from, client.local_addr().unwrap());
                    assert!(buf[..n] == data);
                    server.send_to(&buf[..n], from).await.unwrap();
                    let (n, from) = client.recv_from(&mut buf).await.unwrap();
                    assert_eq!(from, there.parse().unwrap());
                    assert!(buf[..n] == data);
                }
            });
        }
    }
}

#[test]
fn a_connected_socket_receives_from_its_peer_only() {
    paused(async {
        let (a, b) = pair();
        let client = UdpSocket::bind(&a, "10.0.0.1:1000").unwrap();
        let other_peer = UdpSocket::bind(&b, "10.0.0.2:1").unwrap();
        let server = UdpSocket::bind(&b, "10.0.0.2:2").unwrap();
        let error = client.send(b"x").await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EDESTADDRREQ));
        client.connect("10.0.0.2:2").await.unwrap();
        other_peer
            .send_to(b"strange", "10.0.0.1:1000")
            .await
            .unwrap();
        server.send_to(b"known", "10.0.0.1:1000").await.unwrap();
        let mut buf = [0; 16];
        assert_eq!(client.recv(&mut buf).await.unwrap(), 5);
        assert_eq!(&buf[..5], b"known");
        other_peer
            .send_to(b"strange", "10.0.0.1:1000")
            .await
            .unwrap();
        server.send_to(b"batch", "10.0.0.1:1000").await.unwrap();
        let mut batch = Vec::new();
        assert_eq!(client.recv_many(&mut batch, 8).await.unwrap(), 1);
        assert_eq!(batch[0].from, server.local_addr().unwrap());
        client.send(b"back").await.unwrap();
        assert_eq!(server.recv_from(&mut buf).await.unwrap().0, 4);
    });
}

#[test]
fn connecting_to_an_ipv4_mapped_address_accepts_the_ipv4_peer() {
    paused(async {
        let (a, b) = pair();
        let client = UdpSocket::bind(&a, "[::]:1000").unwrap();
        let server = UdpSocket::bind(&b, "10.0.0.2:2").unwrap();
        client.connect("[::ffff:10.0.0.2]:2").await.unwrap();
        client.send(b"there").await.unwrap();
        let mut buf = [0; 16];
        let (len, from) = server.recv_from(&mut buf).await.unwrap();
        server.send_to(&buf[..len], from).await.unwrap();
        assert_eq!(client.recv(&mut buf).await.unwrap(), 5);
    });
}

/// Linux returns EINVAL.
#[test]
fn sending_to_port_0_is_invalid_input() {
    paused(async {
        let (a, _b) = pair();
        let client = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        let to: SocketAddr = "10.0.0.2:0".parse().unwrap();
        let results = [
            client.try_send_to(b"x", to),
            client.send_to(b"x", to).await,
            client
                .send_from(b"x", "10.0.0.1:7".parse().unwrap(), to)
                .await,
        ];
        for result in results {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    });
}

#[test]
fn addresses_are_preserved_both_ways() {
    paused(async {
        let (a, b) = pair();
        let client = UdpSocket::bind(&a, "10.0.0.1:1000").unwrap();
        let gateway = UdpSocket::bind(&b, "0.0.0.0:53").unwrap();
        client.send_to(b"q", "10.0.0.2:53").await.unwrap();
        let mut buf = [0; 16];
        let (_, from, to) = gateway.recv_from_to(&mut buf).await.unwrap();
        assert_eq!(to, "10.0.0.2:53".parse().unwrap());
        let foreign: SocketAddr = "203.0.113.9:53".parse().unwrap();
        gateway.send_from(b"a", foreign, from).await.unwrap();
        assert_eq!(client.recv_from(&mut buf).await.unwrap(), (1, foreign));
    });
}

#[test]
fn datagrams_of_a_batch_keep_their_sizes_and_order() {
    for client_addr in ["10.0.0.1:1000", "[fd00::1]:1000"] {
        for nic in [NicMode::Tso, NicMode::Mtu] {
            paused(async {
                let (a, b) = pair_with(nic, 1500);
                let to: SocketAddr = client_addr.parse().unwrap();
                let client = UdpSocket::bind(&a, to).unwrap();
                let gateway = UdpSocket::bind_any(&b, 1 << 20).unwrap();
                let sources = if to.is_ipv4() {
                    ["203.0.113.9:53", "203.0.113.9:54"]
                } else {
                    ["[2001:db8::9]:53", "[2001:db8::9]:54"]
                };
                let sources = sources.map(|source| source.parse::<SocketAddr>().unwrap());
                // More of one size than leave together, a shorter one, longer ones than the MTU.
                let lens = [&[1000; 70][..], &[300, 1000, 0, 0, 1, 1472], &[3000; 3]].concat();
                let batch = (0..).zip(&lens).map(|(n, &len)| {
                    let data = Slice::copied_from(&pattern(len, n));
                    (data, sources[usize::from(n >= 40)], to)
                });
                assert_eq!(gateway.send_batch(batch).unwrap(), lens.len());
                let mut buf = vec![0; 10_000];
                for (n, &len) in (0..).zip(&lens) {
                    let (received, from) = client.recv_from(&mut buf).await.unwrap();
                    assert_eq!(from, sources[usize::from(n >= 40)]);
                    assert!(buf[..received] == pattern(len, n), "{n}: {received} bytes");
                }
            });
        }
    }
}

#[test]
fn oversized_datagrams_are_truncated_or_refused() {
    paused(async {
        let (a, b) = pair();
        let client = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        let server = UdpSocket::bind(&b, "10.0.0.2:53").unwrap();
        let error = client
            .send_to(&vec![0; 70_000], "10.0.0.2:53")
            .await
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        client.send_to(b"0123456789", "10.0.0.2:53").await.unwrap();
        let mut buf = [0; 4];
        assert_eq!(server.recv_from(&mut buf).await.unwrap().0, 4);
        assert_eq!(&buf, b"0123");
        assert_eq!(
            server.try_recv_from(&mut buf).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    });
}

#[test]
fn several_tasks_receive_on_one_socket() {
    paused(async {
        let (a, b) = pair();
        let client = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        let server = Arc::new(UdpSocket::bind(&b, "10.0.0.2:53").unwrap());
        let mut receivers = JoinSet::new();
        for _ in 0..5 {
            let server = server.clone();
            receivers.spawn(async move { server.recv_from(&mut [0; 8]).await.unwrap().0 });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        for _ in 0..5 {
            client.send_to(b"x", "10.0.0.2:53").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while let Some(done) = receivers.join_next().await {
            assert_eq!(done.unwrap(), 1);
        }
    });
}
