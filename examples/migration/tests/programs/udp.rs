//! What tokio's own tests require of `UdpSocket`.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::task::noop_waker_ref;
use tokio::io::{Interest, ReadBuf};

use super::{client, run, server};

/// Returns a socket of each side, of the family with this index.
async fn bound(
    client: &client::Net,
    server: &server::Net,
    family: usize,
) -> (client::UdpSocket, server::UdpSocket) {
    let here = client.bind_udp((client.ips()[family], 0).into()).await;
    let there = server.bind_udp((server.ips()[family], 0).into()).await;
    (here.unwrap(), there.unwrap())
}

/// Returns a socket of each side, connected to each other.
async fn connected(
    client: &client::Net,
    server: &server::Net,
) -> (client::UdpSocket, server::UdpSocket) {
    let (here, there) = bound(client, server, 0).await;
    here.connect(there.local_addr().unwrap()).await.unwrap();
    there.connect(here.local_addr().unwrap()).await.unwrap();
    (here, there)
}

fn would_block<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn datagrams_keep_their_boundaries_and_senders() {
    run(async |client, server| {
        for family in [0, 1] {
            let (here, there) = bound(&client, &server, family).await;
            let to = there.local_addr().unwrap();
            for data in [&b"first"[..], b"", b"third"] {
                assert_eq!(here.send_to(data, to).await.unwrap(), data.len());
            }
            let mut buf = [0; 16];
            for data in [&b"first"[..], b"", b"third"] {
                let (len, from) = there.recv_from(&mut buf).await.unwrap();
                assert_eq!(&buf[..len], data);
                assert_eq!(from, here.local_addr().unwrap());
            }
            there
                .send_to(b"answer", here.local_addr().unwrap())
                .await
                .unwrap();
            assert_eq!(here.recv_from(&mut buf).await.unwrap(), (6, to));
        }
    });
}

#[test]
fn the_rest_of_a_long_datagram_is_lost() {
    run(async |client, server| {
        let (here, there) = connected(&client, &server).await;
        here.send(b"0123456789").await.unwrap();
        here.send(b"next").await.unwrap();
        let mut buf = [0; 4];
        assert_eq!(there.recv(&mut buf).await.unwrap(), 4);
        assert_eq!(&buf, b"0123");
        assert_eq!(there.recv(&mut buf).await.unwrap(), 4);
        assert_eq!(&buf, b"next");
    });
}

#[test]
fn connected_sockets_receive_from_their_peer_only() {
    run(async |client, server| {
        let (here, there) = connected(&client, &server).await;
        assert_eq!(there.peer_addr().unwrap(), here.local_addr().unwrap());
        let other = client.bind_udp((client.ips()[0], 0).into()).await.unwrap();
        other
            .send_to(b"other", there.local_addr().unwrap())
            .await
            .unwrap();
        here.send(b"peer").await.unwrap();
        let mut buf = [0; 16];
        assert_eq!(there.recv(&mut buf).await.unwrap(), 4);
        assert_eq!(&buf[..4], b"peer");
        would_block(there.try_recv(&mut buf));
    });
}

#[test]
fn an_unconnected_socket_has_no_peer() {
    run(async |client, server| {
        let (here, _there) = bound(&client, &server, 0).await;
        assert_eq!(
            here.peer_addr().unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        // Linux reports EDESTADDRREQ, for which ErrorKind has no stable name.
        assert!(here.send(b"x").await.is_err());
    });
}

#[test]
fn a_refused_datagram_is_reported_to_a_connected_socket() {
    run(async |client, server| {
        let (here, there) = bound(&client, &server, 0).await;
        here.connect(there.local_addr().unwrap()).await.unwrap();
        drop(there);
        here.send(b"x").await.unwrap();
        let error = here.recv(&mut [0; 4]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(here.take_error().unwrap().is_none());
    });
}

#[test]
fn one_socket_is_shared_by_a_sending_and_a_receiving_task() {
    run(async |client, server| {
        let (here, there) = connected(&client, &server).await;
        let (here, there) = (Arc::new(here), Arc::new(there));
        let echo = tokio::spawn(async move {
            let mut buf = [0; 16];
            for _ in 0..50 {
                let len = there.recv(&mut buf).await.unwrap();
                there.send(&buf[..len]).await.unwrap();
            }
        });
        let receiver = {
            let here = here.clone();
            tokio::spawn(async move {
                let mut received = Vec::new();
                for _ in 0..50 {
                    let mut buf = [0; 16];
                    assert_eq!(here.recv(&mut buf).await.unwrap(), 1);
                    received.push(buf[0]);
                }
                received
            })
        };
        for n in 0..50 {
            here.send(&[n]).await.unwrap();
        }
        assert_eq!(receiver.await.unwrap(), (0..50).collect::<Vec<u8>>());
        echo.await.unwrap();
    });
}

#[test]
fn polled_calls_wait_and_are_woken() {
    run(async |client, server| {
        let (here, there) = connected(&client, &server).await;
        let from = here.local_addr().unwrap();
        let to = there.local_addr().unwrap();
        let mut buf = [0; 16];
        let cx = &mut Context::from_waker(noop_waker_ref());
        assert!(
            there
                .poll_recv(cx, &mut ReadBuf::new(&mut buf))
                .is_pending()
        );
        assert!(there.poll_recv_ready(cx).is_pending());
        let sent = poll_fn(|cx| here.poll_send(cx, b"1")).await;
        assert_eq!(sent.unwrap(), 1);
        poll_fn(|cx| there.poll_recv_ready(cx)).await.unwrap();
        let mut read = ReadBuf::new(&mut buf);
        poll_fn(|cx| there.poll_recv(cx, &mut read)).await.unwrap();
        assert_eq!(read.filled(), b"1");
        poll_fn(|cx| here.poll_send_ready(cx)).await.unwrap();
        // A connected socket may name its peer.
        let sent = poll_fn(|cx| here.poll_send_to(cx, b"22", to)).await;
        assert_eq!(sent.unwrap(), 2);
        let mut read = ReadBuf::new(&mut buf);
        let sender = poll_fn(|cx| there.poll_recv_from(cx, &mut read)).await;
        assert_eq!((sender.unwrap(), read.filled()), (from, &b"22"[..]));
        let mut read = ReadBuf::new(&mut buf);
        let polled = poll_fn(|cx| Poll::Ready(there.poll_peek_from(cx, &mut read))).await;
        assert!(polled.is_pending());
    });
}

#[test]
fn calls_that_do_not_wait() {
    run(async |client, server| {
        let (here, there) = connected(&client, &server).await;
        let from = here.local_addr().unwrap();
        let to = there.local_addr().unwrap();
        let mut buf = [0; 16];
        would_block(there.try_recv(&mut buf));
        would_block(there.try_recv_from(&mut buf));
        would_block(there.try_peek(&mut buf));
        would_block(there.try_peek_from(&mut buf));
        would_block(there.try_peek_sender());
        would_block(there.try_recv_buf(&mut Vec::with_capacity(4)));
        here.writable().await.unwrap();
        assert_eq!(here.try_send(b"1").unwrap(), 1);
        assert_eq!(here.try_send_to(b"22", to).unwrap(), 2);
        assert_eq!(here.try_send(b"333").unwrap(), 3);
        assert_eq!(here.try_send(b"4444").unwrap(), 4);
        there.readable().await.unwrap();
        assert_eq!(there.try_peek(&mut buf).unwrap(), 1);
        assert_eq!(there.try_peek_from(&mut buf).unwrap(), (1, from));
        assert_eq!(there.try_peek_sender().unwrap(), from);
        assert_eq!(there.try_recv(&mut buf).unwrap(), 1);
        // Each may still be on its way.
        assert_eq!(
            retry(&there, || there.try_recv_from(&mut buf)).await,
            (2, from)
        );
        let mut vec = Vec::with_capacity(16);
        assert_eq!(retry(&there, || there.try_recv_buf(&mut vec)).await, 3);
        let received = retry(&there, || there.try_recv_buf_from(&mut vec)).await;
        assert_eq!(received, (4, from));
        assert_eq!(vec, b"3334444");
    });
}

/// Calls `call` until it returns something else than `WouldBlock`.
async fn retry<T>(socket: &server::UdpSocket, mut call: impl FnMut() -> io::Result<T>) -> T {
    loop {
        socket.readable().await.unwrap();
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return result.unwrap(),
        }
    }
}

#[test]
fn peeking_leaves_the_datagram() {
    run(async |client, server| {
        let (here, there) = bound(&client, &server, 0).await;
        let from = here.local_addr().unwrap();
        here.send_to(b"data", there.local_addr().unwrap())
            .await
            .unwrap();
        let mut buf = [0; 16];
        assert_eq!(there.peek_sender().await.unwrap(), from);
        assert_eq!(there.peek_from(&mut buf).await.unwrap(), (4, from));
        assert_eq!(there.peek(&mut buf[..2]).await.unwrap(), 2);
        let mut read = ReadBuf::new(&mut buf);
        poll_fn(|cx| there.poll_peek(cx, &mut read)).await.unwrap();
        assert_eq!(read.filled(), b"data");
        let mut vec = Vec::with_capacity(16);
        assert_eq!(there.recv_buf_from(&mut vec).await.unwrap(), (4, from));
        assert_eq!(vec, b"data");
        would_block(there.try_recv(&mut buf));
    });
}

#[test]
fn readiness_and_closures() {
    run(async |client, server| {
        let (here, there) = connected(&client, &server).await;
        let both = Interest::READABLE | Interest::WRITABLE;
        assert!(there.ready(both).await.unwrap().is_writable());
        would_block(there.try_io(Interest::READABLE, || there.try_recv(&mut [0; 8])));
        here.ready(Interest::WRITABLE).await.unwrap();
        let sent = here.try_io(Interest::WRITABLE, || here.try_send(b"data"));
        assert_eq!(sent.unwrap(), 4);
        let mut buf = [0; 8];
        let received = there.async_io(Interest::READABLE, || there.try_recv(&mut buf));
        assert_eq!(received.await.unwrap(), 4);
        here.send(b"more").await.unwrap();
        assert!(there.ready(Interest::READABLE).await.unwrap().is_readable());
        let mut vec = Vec::with_capacity(8);
        assert_eq!(there.recv_buf(&mut vec).await.unwrap(), 4);
    });
}

#[test]
fn dropping_a_receiving_future_loses_nothing() {
    run(async |client, server| {
        let (here, there) = connected(&client, &server).await;
        for _ in 0..10 {
            let mut buf = [0; 8];
            let mut recv = std::pin::pin!(there.recv(&mut buf));
            let first = poll_fn(|cx| Poll::Ready(recv.as_mut().poll(cx))).await;
            assert!(first.is_pending());
        }
        here.send(b"kept").await.unwrap();
        assert_eq!(there.recv(&mut [0; 8]).await.unwrap(), 4);
    });
}

#[test]
fn options_have_getters() {
    run(async |client, server| {
        let (here, _there) = bound(&client, &server, 0).await;
        here.set_ttl(7).unwrap();
        assert_eq!(here.ttl().unwrap(), 7);
        assert!(!here.broadcast().unwrap());
        here.set_broadcast(true).unwrap();
        assert!(here.broadcast().unwrap());
        assert!(here.multicast_loop_v4().unwrap());
        here.set_multicast_ttl_v4(3).unwrap();
        assert_eq!(here.multicast_ttl_v4().unwrap(), 3);
        let taken = client.bind_udp(here.local_addr().unwrap()).await;
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::AddrInUse);
    });
}
