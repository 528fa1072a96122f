//! TCP sockets in the cases in which programs rely on the behaviour of `tokio::net`.

mod common;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use common::{connected, pair, paused};
use fullsend::{TcpListener, TcpSocket, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, ReadBuf};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn calls_that_do_not_wait() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let mut parts = [[0; 3], [0; 3]];
        let [first, second] = &mut parts;
        let mut bufs = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let error = server.try_read_vectored(&mut bufs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let slices = [
            IoSlice::new(b"01"),
            IoSlice::new(b""),
            IoSlice::new(b"23456789"),
        ];
        assert_eq!(client.try_write_vectored(&slices).unwrap(), 10);
        server.readable().await.unwrap();
        assert_eq!(server.try_read_vectored(&mut bufs).unwrap(), 6);
        assert_eq!(parts.concat(), b"012345");
        let mut buf = Vec::with_capacity(3);
        assert_eq!(server.try_read_buf(&mut buf).unwrap(), 3);
        buf.reserve_exact(10);
        assert_eq!(server.try_read_buf(&mut buf).unwrap(), 1);
        assert_eq!(buf, b"6789");
        let error = server.try_read_buf(&mut buf).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop(client);
        server.readable().await.unwrap();
        assert_eq!(server.try_read_buf(&mut buf).unwrap(), 0);
        assert_eq!(server.try_read_vectored(&mut []).unwrap(), 0);
    });
}

#[test]
fn peeking_leaves_the_data() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        client.write_all(b"data").await.unwrap();
        let mut buf = [0; 8];
        let mut read = ReadBuf::new(&mut buf);
        let peeked = poll_fn(|cx| server.poll_peek(cx, &mut read)).await;
        assert_eq!((peeked.unwrap(), read.filled()), (4, &b"data"[..]));
        {
            let (mut half, _) = server.split();
            assert_eq!(half.peek(&mut buf).await.unwrap(), 4);
        }
        let (mut half, _write) = server.into_split();
        assert_eq!(half.peek(&mut buf[..2]).await.unwrap(), 2);
        assert_eq!(half.read(&mut buf).await.unwrap(), 4);
        drop(client);
        let mut read = ReadBuf::new(&mut buf);
        let end = poll_fn(|cx| half.poll_peek(cx, &mut read)).await;
        assert_eq!(end.unwrap(), 0);
    });
}

#[test]
fn io_closures_run_when_the_stream_is_ready() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        // An accepted stream is ready until its first read.
        let nothing = server.try_read(&mut [0; 1]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        let error = server.try_io(Interest::READABLE, || -> std::io::Result<()> {
            panic!("it is not readable")
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut buf = [0; 8];
        let read = server.async_io(Interest::READABLE, || server.try_read(&mut buf));
        let write = client.async_io(Interest::WRITABLE, || client.try_write(b"data"));
        let (read, written) = tokio::join!(read, write);
        assert_eq!((read.unwrap(), written.unwrap()), (4, 4));
        // Until a read would block, the stream stays ready.
        let nothing = server.try_read(&mut [0; 1]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        client.shutdown_write().unwrap();
        let ready = server.ready(Interest::READABLE).await.unwrap();
        assert!(ready.is_readable() && ready.is_read_closed() && !ready.is_writable());
        let end = server.try_io(Interest::READABLE, || server.try_read(&mut [0; 1]));
        assert_eq!(end.unwrap(), 0);
        let error = server.ready(Interest::ERROR).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn halves_have_the_methods_of_their_direction() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let (read, write) = client.into_split();
        for addrs in [
            (read.local_addr(), read.peer_addr()),
            (write.local_addr(), write.peer_addr()),
        ] {
            assert_eq!((addrs.0.unwrap(), addrs.1.unwrap()), (local, peer));
        }
        write.writable().await.unwrap();
        assert_eq!(write.try_write(b"ab").unwrap(), 2);
        assert_eq!(write.try_write_vectored(&[IoSlice::new(b"c")]).unwrap(), 1);
        write.write_bytes("def".into()).await.unwrap();
        write.flushed().await.unwrap();
        let mut buf = [0; 8];
        assert_eq!(server.try_read(&mut buf).unwrap(), 6);
        assert!(write.ready(Interest::WRITABLE).await.unwrap().is_writable());
        server.try_write(b"answer").unwrap();
        read.readable().await.unwrap();
        assert_eq!(read.try_read(&mut buf[..1]).unwrap(), 1);
        let mut rest = Vec::with_capacity(2);
        assert_eq!(read.try_read_buf(&mut rest).unwrap(), 2);
        assert_eq!(read.read_chunk(9).await.unwrap().unwrap(), "wer");
        // The whole stream is at hand for what neither half has.
        read.as_ref().set_nodelay(true).unwrap();
        assert!(write.as_ref().nodelay().unwrap());
        let stream = read.reunite(write).unwrap();
        assert_eq!(stream.local_addr().unwrap(), local);
    });
}

#[test]
fn options_of_a_stream_have_getters() {
    paused(async {
        let (a, b) = pair();
        let (client, mut server) = connected(&a, &b).await;
        assert_eq!((client.ttl().unwrap(), client.tos().unwrap()), (64, 0));
        client.set_ttl(9).unwrap();
        client.set_quickack(false).unwrap();
        assert_eq!(
            (client.ttl().unwrap(), client.quickack().unwrap()),
            (9, false)
        );
        client.set_quickack(true).unwrap();
        assert!(client.quickack().unwrap());
        let error = client.set_ttl(256).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("256"), "{error}");
        assert_eq!(client.linger().unwrap(), None);
        client.set_zero_linger().unwrap();
        assert_eq!(client.linger().unwrap(), Some(Duration::ZERO));
        drop(client);
        let error = server.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn options_of_a_socket_apply_to_the_connection_that_it_opens() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "[::]:80").unwrap();
        for (v6, local, remote) in [
            (false, "10.0.0.1:5000", "10.0.0.2:80"),
            (true, "[fd00::1]:5000", "[fd00::2]:80"),
        ] {
            let socket = if v6 {
                TcpSocket::new_v6(&a).unwrap()
            } else {
                TcpSocket::new_v4(&a).unwrap()
            };
            assert_eq!(socket.local_addr().unwrap().port(), 0);
            let default = (
                socket.send_buffer_size().unwrap(),
                socket.recv_buffer_size().unwrap(),
            );
            assert_eq!(default, (16_384, 131_072));
            socket.set_send_buffer_size(50_000).unwrap();
            socket.set_recv_buffer_size(60_000).unwrap();
            socket.set_nodelay(true).unwrap();
            socket.set_keepalive(true).unwrap();
            socket.set_linger(Some(Duration::from_secs(2))).unwrap();
            socket.set_tos_v4(0x20).unwrap();
            socket.set_ttl(33).unwrap();
            socket.set_congestion("reno").unwrap();
            assert!(socket.nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.linger().unwrap(), Some(Duration::from_secs(2)));
            assert_eq!(
                (socket.tos_v4().unwrap(), socket.recv_buffer_size().unwrap()),
                (32, 120_000)
            );
            socket.bind(at(local)).unwrap();
            let again = socket.bind(at(local)).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::InvalidInput);
            let stream = socket.connect(at(remote)).await.unwrap();
            let (_server, from) = listener.accept().await.unwrap();
            assert_eq!((stream.local_addr().unwrap(), from), (at(local), at(local)));
            assert_eq!(
                (stream.sndbuf().unwrap(), stream.rcvbuf().unwrap()),
                (100_000, 120_000)
            );
            assert!(stream.nodelay().unwrap() && stream.keepalive().unwrap());
            assert_eq!((stream.ttl().unwrap(), stream.tos().unwrap()), (33, 32));
            assert_eq!(stream.linger().unwrap(), Some(Duration::from_secs(2)));
            assert_eq!(stream.congestion().unwrap(), "reno");
        }
    });
}

#[test]
fn options_of_a_socket_apply_to_the_connections_that_it_accepts() {
    paused(async {
        let (a, b) = pair();
        let socket = TcpSocket::new_v4(&b).unwrap();
        socket.bind(at("10.0.0.2:0")).unwrap();
        let local = socket.local_addr().unwrap();
        assert_ne!(local.port(), 0);
        socket.set_reuseaddr(true).unwrap();
        socket.set_ttl(44).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_congestion("reno").unwrap();
        let listener = socket.listen(16).unwrap();
        assert_eq!(
            (listener.local_addr().unwrap(), listener.ttl().unwrap()),
            (local, 44)
        );
        for ttl in [44, 55] {
            listener.set_ttl(ttl).unwrap();
            let connect = TcpStream::connect(&a, local);
            let (client, accepted) = tokio::join!(connect, listener.accept());
            let (server, from) = accepted.unwrap();
            assert_eq!(client.unwrap().local_addr().unwrap(), from);
            assert_eq!(
                (server.ttl().unwrap(), server.nodelay().unwrap()),
                (ttl, true)
            );
            assert_eq!(server.congestion().unwrap(), "reno");
        }
        let error = TcpSocket::new_v4(&b).unwrap();
        error.bind(local).unwrap();
        assert_eq!(error.listen(1).unwrap_err().kind(), ErrorKind::AddrInUse);
        let shared = || {
            let socket = TcpSocket::new_v6(&b).unwrap();
            socket.set_reuseport(true).unwrap();
            socket.bind(at("[fd00::2]:81")).unwrap();
            socket.listen(4)
        };
        let (_first, _second) = (shared().unwrap(), shared().unwrap());
    });
}

#[test]
fn sockets_refuse_what_does_not_fit() {
    paused(async {
        let (a, b) = pair();
        let v4 = TcpSocket::new_v4(&a).unwrap();
        let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(v4.bind(at("[fd00::1]:1"))), ErrorKind::InvalidInput);
        assert_eq!(kind(v4.bind(at("10.0.0.9:1"))), ErrorKind::AddrNotAvailable);
        assert_eq!(kind(v4.set_congestion("warp")), ErrorKind::InvalidInput);
        assert_eq!(kind(v4.set_ttl(0)), ErrorKind::InvalidInput);
        let error = v4.connect(at("[fd00::2]:80")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let v6 = TcpSocket::new_v6(&a).unwrap();
        v6.set_option(fullsend::SocketOption::TcpMaxseg(1));
        let _listener = TcpListener::bind(&b, "[fd00::2]:80").unwrap();
        let error = v6.connect(at("[fd00::2]:80")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("TcpMaxseg"), "{error}");
        let refused = TcpSocket::new_v6(&a)
            .unwrap()
            .connect(at("[fd00::2]:81"))
            .await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn the_addresses_of_a_list_are_tried_in_order() {
    paused(async {
        let (a, b) = pair();
        let _listener = TcpListener::bind(&b, "10.0.0.2:80").unwrap();
        let list = [at("10.0.0.2:81"), at("10.0.0.2:80"), at("10.0.0.2:82")];
        let stream = TcpStream::connect(&a, &list[..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), list[1]);
        let refused = TcpStream::connect(&a, &list[2..]).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        for remote in ["nonsense", ":80", "fd00::2:80", "10.0.0.2:65536"] {
            let error = TcpStream::connect(&a, remote).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{remote}");
        }
        let none: &[SocketAddr] = &[];
        let error = TcpStream::connect(&a, none).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}
