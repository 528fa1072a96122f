//! What tokio's own tests require of `TcpListener`, `TcpSocket` and `TcpStream`.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::task::noop_waker_ref;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};

use super::{client, run, server};

/// Returns a listener of the server, and its address.
async fn listening(server: &server::Net) -> (server::TcpListener, SocketAddr) {
    let listener = server.listen((server.ips()[0], 0).into()).await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Returns the two ends of a connection.
async fn connected(
    client: &client::Net,
    server: &server::Net,
) -> (client::TcpStream, server::TcpStream) {
    let (listener, at) = listening(server).await;
    let (stream, accepted) = tokio::join!(client.connect(at), listener.accept());
    (stream.unwrap(), accepted.unwrap().0)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

#[test]
fn an_echo_server_returns_all_bytes_and_the_end() {
    run(async |client, server| {
        for ip in server.ips() {
            let listener = server.listen((ip, 0).into()).await.unwrap();
            let at = listener.local_addr().unwrap();
            let serve = async {
                let (mut stream, from) = listener.accept().await.unwrap();
                assert_eq!(stream.peer_addr().unwrap(), from);
                assert_eq!(stream.local_addr().unwrap(), at);
                let (mut read, mut write) = stream.split();
                let copied = tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
                copied
            };
            let data = pattern(1_000_000);
            let call = async {
                let stream = client.connect(at).await.unwrap();
                assert_eq!(stream.peer_addr().unwrap(), at);
                let (mut read, mut write) = stream.into_split();
                let send = async {
                    write.write_all(&data).await.unwrap();
                    write.shutdown().await.unwrap();
                };
                let mut received = Vec::new();
                let ((), read) = tokio::join!(send, read.read_to_end(&mut received));
                read.unwrap();
                received
            };
            let (copied, received) = tokio::join!(serve, call);
            assert_eq!(copied, 1_000_000);
            assert!(received == data);
        }
    });
}

#[test]
fn a_listener_accepts_many_connections_while_others_wait() {
    run(async |client, server| {
        let (listener, at) = listening(&server).await;
        let calls = tokio::spawn(async move {
            let mut streams = Vec::new();
            for n in 0..100_u8 {
                let mut stream = client.connect(at).await.unwrap();
                stream.write_all(&[n]).await.unwrap();
                streams.push(stream);
            }
            for (n, stream) in streams.iter_mut().enumerate() {
                assert_eq!(stream.read_u8().await.unwrap() as usize, n);
            }
        });
        for _ in 0..100 {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let n = stream.read_u8().await.unwrap();
                stream.write_u8(n).await.unwrap();
            });
        }
        calls.await.unwrap();
    });
}

#[test]
fn dropping_accept_loses_no_connection() {
    run(async |client, server| {
        let (listener, at) = listening(&server).await;
        for _ in 0..10 {
            let mut accept = std::pin::pin!(listener.accept());
            let first = poll_fn(|cx| Poll::Ready(accept.as_mut().poll(cx))).await;
            assert!(first.is_pending());
        }
        let stream = client.connect(at).await.unwrap();
        let (_, from) = listener.accept().await.unwrap();
        assert_eq!(from, stream.local_addr().unwrap());
        let cx = &mut std::task::Context::from_waker(noop_waker_ref());
        assert!(listener.poll_accept(cx).is_pending());
    });
}

#[test]
fn connecting_where_nothing_listens_is_refused() {
    run(async |client, server| {
        let (listener, at) = listening(&server).await;
        drop(listener);
        let error = client.connect(at).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn an_address_in_use_is_refused() {
    run(async |_client, server| {
        let (_listener, at) = listening(&server).await;
        let error = server.listen(at).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let elsewhere = "192.0.2.1:0".parse().unwrap();
        let error = server.listen(elsewhere).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    });
}

#[test]
fn halves_are_reunited_with_their_own_counterpart_only() {
    run(async |client, server| {
        let (a, mut peer_a) = connected(&client, &server).await;
        let (b, _peer_b) = connected(&client, &server).await;
        let local = a.local_addr().unwrap();
        let (read_a, write_a) = a.into_split();
        let (read_b, write_b) = b.into_split();
        let error = read_a.reunite(write_b).unwrap_err();
        assert!(!error.to_string().is_empty());
        let (read_a, write_b) = (error.0, error.1);
        let error = write_a.reunite(read_b).unwrap_err();
        let (read_b, write_a) = (error.0, error.1);
        let mut a = read_a.reunite(write_a).unwrap();
        assert_eq!(a.local_addr().unwrap(), local);
        write_b.reunite(read_b).unwrap();
        // The stream is whole: dropping its halves has ended neither direction.
        a.write_all(b"ab").await.unwrap();
        peer_a.write_all(b"cd").await.unwrap();
        let mut buf = [0; 2];
        peer_a.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"ab");
        a.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"cd");
    });
}

#[test]
fn dropping_the_write_half_ends_its_direction() {
    run(async |client, server| {
        let (stream, mut peer) = connected(&client, &server).await;
        let (mut read, mut write) = stream.into_split();
        write.write_all(b"last").await.unwrap();
        drop(write);
        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"last");
        peer.write_all(b"answer").await.unwrap();
        drop(peer);
        received.clear();
        read.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"answer");
    });
}

#[test]
fn forgetting_the_write_half_does_not_end_its_direction() {
    run(async |client, server| {
        let (stream, mut peer) = connected(&client, &server).await;
        let (mut read, write) = stream.into_split();
        write.forget();
        peer.write_all(b"x").await.unwrap();
        assert_eq!(read.read_u8().await.unwrap(), b'x');
        let error = peer.try_read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        // The last half ends the connection.
        drop(read);
        assert_eq!(peer.read(&mut [0; 8]).await.unwrap(), 0);
    });
}

#[test]
fn halves_are_used_by_two_tasks() {
    run(async |client, server| {
        let (stream, peer) = connected(&client, &server).await;
        let (mut read, mut write) = stream.into_split();
        let (mut peer_read, mut peer_write) = peer.into_split();
        let echo = tokio::spawn(async move {
            tokio::io::copy(&mut peer_read, &mut peer_write)
                .await
                .unwrap();
        });
        let writer = tokio::spawn(async move {
            for _ in 0..100 {
                write.write_all(&pattern(10_000)).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut received = Vec::new();
        read.read_to_end(&mut received).await.unwrap();
        assert_eq!(received.len(), 1_000_000);
        writer.await.unwrap();
        echo.await.unwrap();
    });
}

#[test]
fn writing_after_shutdown_fails_and_shutdown_may_be_repeated() {
    run(async |client, server| {
        let (mut stream, mut peer) = connected(&client, &server).await;
        stream.write_all(b"end").await.unwrap();
        stream.shutdown().await.unwrap();
        stream.shutdown().await.unwrap();
        let error = stream.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"end");
        assert_eq!(peer.read(&mut [0; 8]).await.unwrap(), 0);
        peer.write_all(b"answer").await.unwrap();
        peer.shutdown().await.unwrap();
        received.clear();
        stream.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"answer");
    });
}

#[test]
fn a_zero_linger_resets_the_connection() {
    run(async |client, server| {
        let (stream, mut peer) = connected(&client, &server).await;
        stream.set_zero_linger().unwrap();
        assert_eq!(stream.linger().unwrap(), Some(Duration::ZERO));
        drop(stream);
        let error = peer.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn closing_with_unread_data_resets_the_connection() {
    run(async |client, server| {
        let (stream, mut peer) = connected(&client, &server).await;
        peer.write_all(b"unread").await.unwrap();
        stream.readable().await.unwrap();
        drop(stream);
        let error = peer.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn writing_to_a_closed_peer_fails() {
    run(async |client, server| {
        let (mut stream, peer) = connected(&client, &server).await;
        drop(peer);
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        // The answer to the first write is a reset.
        let kind = loop {
            if let Err(error) = stream.write_all(b"x").await {
                break error.kind();
            }
            let closed = stream.ready(Interest::READABLE | Interest::WRITABLE);
            assert!(closed.await.unwrap().is_read_closed());
            tokio::task::yield_now().await;
        };
        let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        assert!(kinds.contains(&kind), "{kind:?}");
    });
}

#[test]
fn peeking_leaves_the_data() {
    run(async |client, server| {
        let (mut stream, mut peer) = connected(&client, &server).await;
        let cx = &mut std::task::Context::from_waker(noop_waker_ref());
        let mut buf = [0; 8];
        let peeked = stream.poll_peek(cx, &mut ReadBuf::new(&mut buf));
        assert!(peeked.is_pending());
        peer.write_all(b"data").await.unwrap();
        for _ in 0..2 {
            assert_eq!(stream.peek(&mut buf).await.unwrap(), 4);
            assert_eq!(&buf[..4], b"data");
        }
        assert_eq!(stream.peek(&mut buf[..1]).await.unwrap(), 1);
        {
            let (mut half, _) = stream.split();
            assert_eq!(half.peek(&mut buf).await.unwrap(), 4);
        }
        let (mut half, write) = stream.into_split();
        assert_eq!(half.peek(&mut buf).await.unwrap(), 4);
        let mut read = ReadBuf::new(&mut buf);
        let peeked = poll_fn(|cx| half.poll_peek(cx, &mut read)).await;
        assert_eq!((peeked.unwrap(), read.filled()), (4, &b"data"[..]));
        assert_eq!(half.read(&mut buf).await.unwrap(), 4);
        drop(peer);
        assert_eq!(half.peek(&mut buf).await.unwrap(), 0);
        drop(write);
    });
}

#[test]
fn a_full_stream_is_writable_again_after_the_peer_has_read() {
    run(async |client, server| {
        let (stream, peer) = connected(&client, &server).await;
        stream.writable().await.unwrap();
        let data = pattern(1 << 16);
        let mut written = Vec::new();
        // Full once no write has succeeded after all wake-ups of the peer's side.
        let mut refused = 0;
        while refused < 100 {
            match stream.try_write(&data) {
                Ok(n) => {
                    refused = 0;
                    written.extend_from_slice(&data[..n]);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    refused += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        let cx = &mut std::task::Context::from_waker(noop_waker_ref());
        assert!(stream.poll_write_ready(cx).is_pending());
        let drain = async {
            let mut received = Vec::new();
            let mut buf = vec![0; 1 << 16];
            while received.len() < written.len() {
                peer.readable().await.unwrap();
                match peer.try_read(&mut buf) {
                    Ok(n) => received.extend_from_slice(&buf[..n]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            received
        };
        let (received, writable) = tokio::join!(drain, stream.writable());
        writable.unwrap();
        assert!(received == written);
        let error = peer.try_read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop(stream);
        peer.readable().await.unwrap();
        assert_eq!(peer.try_read(&mut [0; 8]).unwrap(), 0);
    });
}

#[test]
fn vectored_calls_use_all_buffers() {
    run(async |client, server| {
        let (stream, peer) = connected(&client, &server).await;
        stream.writable().await.unwrap();
        let slices = [
            IoSlice::new(b"01"),
            IoSlice::new(b""),
            IoSlice::new(b"23456789"),
        ];
        assert_eq!(stream.try_write_vectored(&slices).unwrap(), 10);
        peer.readable().await.unwrap();
        let (mut first, mut second) = ([0; 3], [0; 3]);
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(peer.try_read_vectored(&mut bufs).unwrap(), 6);
        assert_eq!((&first, &second), (b"012", b"345"));
        let mut rest = Vec::with_capacity(16);
        assert_eq!(peer.try_read_buf(&mut rest).unwrap(), 4);
        assert_eq!(rest, b"6789");
        let error = peer.try_read_buf(&mut rest).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let mut bufs = [IoSliceMut::new(&mut first)];
        let error = peer.try_read_vectored(&mut bufs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(stream.is_write_vectored());
    });
}

#[test]
fn readiness_reports_both_directions_and_their_ends() {
    run(async |client, server| {
        let (mut stream, mut peer) = connected(&client, &server).await;
        let both = Interest::READABLE | Interest::WRITABLE;
        let ready = stream.ready(both).await.unwrap();
        assert!(ready.is_writable() && !ready.is_read_closed());
        let error = stream.try_io(Interest::READABLE, || stream.try_read(&mut [0; 8]));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::WouldBlock);
        peer.write_all(b"data").await.unwrap();
        assert!(
            stream
                .ready(Interest::READABLE)
                .await
                .unwrap()
                .is_readable()
        );
        let mut buf = [0; 8];
        let read = stream.async_io(Interest::READABLE, || stream.try_read(&mut buf));
        assert_eq!(read.await.unwrap(), 4);
        peer.shutdown().await.unwrap();
        let ready = loop {
            let ready = stream.ready(Interest::READABLE).await.unwrap();
            if ready.is_read_closed() {
                break ready;
            }
            // tokio remembers earlier readiness until its driver runs.
            let _ = stream.try_read(&mut buf);
            tokio::task::yield_now().await;
        };
        assert!(ready.is_readable());
        assert_eq!(stream.try_read(&mut buf).unwrap(), 0);
        stream.shutdown().await.unwrap();
        let ready = stream.ready(Interest::WRITABLE).await.unwrap();
        assert!(ready.is_writable());
    });
}

#[test]
fn a_read_and_a_write_of_one_stream_wait_at_once() {
    run(async |client, server| {
        let (stream, mut peer) = connected(&client, &server).await;
        let stream = Arc::new(stream);
        let reader = {
            let stream = stream.clone();
            tokio::spawn(async move {
                stream.readable().await.unwrap();
                stream.try_read(&mut [0; 8]).unwrap()
            })
        };
        tokio::task::yield_now().await;
        stream.writable().await.unwrap();
        assert_eq!(stream.try_write(b"request").unwrap(), 7);
        let mut buf = [0; 7];
        peer.read_exact(&mut buf).await.unwrap();
        peer.write_all(b"yes").await.unwrap();
        assert_eq!(reader.await.unwrap(), 3);
    });
}

#[test]
fn a_polled_write_is_pending_until_there_is_space() {
    run(async |client, server| {
        let (mut stream, mut peer) = connected(&client, &server).await;
        let data = pattern(1 << 16);
        let mut written = 0;
        let mut pending = 0;
        while pending < 100 {
            let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, &data)));
            match polled.await {
                Poll::Ready(n) => (written, pending) = (written + n.unwrap(), 0),
                Poll::Pending => {
                    pending += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        let drain = async {
            let mut left = written + 1;
            let mut buf = vec![0; 1 << 16];
            while left > 0 {
                left -= peer.read(&mut buf).await.unwrap();
            }
        };
        let ((), sent) = tokio::join!(drain, stream.write_all(b"x"));
        sent.unwrap();
    });
}

#[test]
fn options_of_a_stream_have_getters() {
    run(async |client, server| {
        let (stream, _peer) = connected(&client, &server).await;
        assert!(!stream.nodelay().unwrap());
        stream.set_nodelay(true).unwrap();
        assert!(stream.nodelay().unwrap());
        stream.set_ttl(9).unwrap();
        assert_eq!(stream.ttl().unwrap(), 9);
        assert_eq!(stream.linger().unwrap(), None);
        stream.set_zero_linger().unwrap();
        assert!(stream.take_error().unwrap().is_none());
    });
}

#[test]
fn a_socket_is_configured_before_it_listens_or_connects() {
    run(async |client, server| {
        let socket = server.tcp_socket().unwrap();
        socket.set_reuseaddr(true).unwrap();
        assert!(socket.reuseaddr().unwrap());
        socket.bind((server.ips()[0], 0).into()).unwrap();
        let at = socket.local_addr().unwrap();
        assert_ne!(at.port(), 0);
        socket.set_recv_buffer_size(32 << 10).unwrap();
        let listener = socket.listen(128).unwrap();
        assert_eq!(listener.local_addr().unwrap(), at);

        let socket = client.tcp_socket().unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_keepalive(true).unwrap();
        assert!(socket.keepalive().unwrap() && socket.nodelay().unwrap());
        socket.set_send_buffer_size(50_000).unwrap();
        // As on Linux: twice the size that was set.
        assert_eq!(socket.send_buffer_size().unwrap(), 100_000);
        let from = SocketAddr::from((client.ips()[0], 0));
        socket.bind(from).unwrap();
        let from = socket.local_addr().unwrap();
        let (stream, accepted) = tokio::join!(socket.connect(at), listener.accept());
        let stream = stream.unwrap();
        assert!(stream.nodelay().unwrap());
        assert_eq!(stream.local_addr().unwrap(), from);
        assert_eq!(accepted.unwrap().1, from);
    });
}

#[test]
fn data_is_relayed_in_both_directions() {
    run(async |client, server| {
        let (mut outer, mut relay_in) = connected(&client, &server).await;
        let (mut relay_out, mut inner) = connected(&client, &server).await;
        let relay = async {
            tokio::io::copy_bidirectional(&mut relay_in, &mut relay_out)
                .await
                .unwrap()
        };
        let request = async {
            outer.write_all(&pattern(300_000)).await.unwrap();
            outer.shutdown().await.unwrap();
            let mut answer = Vec::new();
            outer.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let answer = async {
            let mut request = Vec::new();
            inner.read_to_end(&mut request).await.unwrap();
            inner.write_all(&request[..1000]).await.unwrap();
            inner.shutdown().await.unwrap();
        };
        let (relayed, answer, ()) = tokio::join!(relay, request, answer);
        assert_eq!(relayed, (300_000, 1000));
        assert!(answer == pattern(1000));
    });
}
