//! What tokio's own tests require beside its methods: readiness, forms of addresses, and errors.

mod common;

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use common::{connected, pair, paused};
use fullsend::{Pair, Stack, TcpListener, TcpSocket, TcpStream, ToAddrs, UdpSocket};
use nix::libc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

fn is_ready(poll: impl FnOnce(&mut Context<'_>) -> Poll<std::io::Result<()>>) -> bool {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => {
            result.unwrap();
            true
        }
        Poll::Pending => false,
    }
}

fn is_readable(stream: &TcpStream) -> bool {
    is_ready(|cx| stream.poll_read_ready(cx))
}

fn is_writable(stream: &TcpStream) -> bool {
    is_ready(|cx| stream.poll_write_ready(cx))
}

/// Ends the readiness to read: nothing has arrived.
fn assert_unreadable(stream: &TcpStream) {
    let would_block = stream.try_read(&mut [0; 4]).unwrap_err();
    assert_eq!(would_block.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_stream_is_readable_until_a_read_would_block() {
    paused(async {
        let (a, b) = pair();
        let (mut client, mut server) = connected(&a, &b).await;
        assert!(!is_readable(&client), "nothing has arrived");
        assert!(
            is_readable(&server),
            "accepted streams try their first read"
        );
        assert_unreadable(&server);
        assert!(!is_readable(&server));
        client.write_all(b"ping").await.unwrap();
        server.readable().await.unwrap();
        let mut buf = [0; 4];
        server.read_exact(&mut buf).await.unwrap();
        assert!(
            is_readable(&server),
            "all was read, and no read has blocked"
        );
        let ready = server.ready(Interest::READABLE).await.unwrap();
        assert!(ready.is_readable() && !ready.is_read_closed());
        let would_block = server.try_read(&mut buf).unwrap_err();
        assert_eq!(would_block.kind(), ErrorKind::WouldBlock);
        assert!(!is_readable(&server));
        // A read that is not filled shows that the next one would block.
        client.write_all(b"pong").await.unwrap();
        assert_eq!(server.read(&mut [0; 64]).await.unwrap(), 4);
        assert!(!is_readable(&server));
        // So does a read that waits.
        client.write_all(b"pong").await.unwrap();
        server.read_exact(&mut buf).await.unwrap();
        assert!(is_readable(&server));
        let mut read = tokio::io::ReadBuf::new(&mut buf);
        let waiting = poll_fn(|cx| Poll::Ready(server.poll_peek(cx, &mut read).is_pending()));
        assert!(waiting.await);
        assert!(!is_readable(&server));
        drop(client);
        server.readable().await.unwrap();
        assert_eq!(server.try_read(&mut buf).unwrap(), 0);
        assert!(is_readable(&server));
    });
}

#[test]
fn a_stream_is_writable_until_a_write_would_block() {
    paused(async {
        let (a, b) = pair();
        let (client, server) = connected(&a, &b).await;
        let chunk = [7; 4000];
        let parts: Vec<_> = chunk.chunks(10).map(IoSlice::new).collect();
        for vectored in [false, true] {
            let mut written = 0;
            loop {
                assert!(is_writable(&client), "after {written} bytes");
                let write = if vectored {
                    client.try_write_vectored(&parts)
                } else {
                    client.try_write(&chunk)
                };
                match write {
                    Ok(n) => written += n,
                    Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            assert!(!is_writable(&client));
            let mut buf = vec![0; 1 << 20];
            let mut read = 0;
            while read < written {
                server.readable().await.unwrap();
                match server.try_read(&mut buf) {
                    Ok(n) => read += n,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            client.writable().await.unwrap();
        }
    });
}

#[test]
fn a_closure_that_would_block_ends_readiness() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        assert_unreadable(&server);
        client.write_all(b"ping").await.unwrap();
        server.readable().await.unwrap();
        let read = server.try_io(Interest::READABLE, || server.try_read(&mut [0; 4]));
        assert_eq!(read.unwrap(), 4);
        assert!(is_readable(&server));
        let would_block = || -> std::io::Result<()> { Err(ErrorKind::WouldBlock.into()) };
        assert!(server.try_io(Interest::READABLE, would_block).is_err());
        assert!(!is_readable(&server));
    });
}

/// Counts the calls of a future's closure until it has run to its end or waits.
async fn calls_until_idle<T>(wait: impl Future<Output = std::io::Result<T>>, calls: &Cell<u32>) {
    let mut wait = std::pin::pin!(wait);
    for _ in 0..100 {
        let done = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_ready())).await;
        assert!(!done, "nothing has arrived");
        tokio::task::yield_now().await;
    }
    assert!(calls.get() <= 2, "{} calls", calls.get());
}

/// A stream that can be written is no reason to call again a closure that reads.
#[test]
fn a_call_for_both_directions_waits_for_the_one_that_is_not_ready() {
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        let both = Interest::READABLE | Interest::WRITABLE;
        let calls = Cell::new(0);
        let read = || {
            calls.set(calls.get() + 1);
            server.try_read(&mut [0; 4])
        };
        calls_until_idle(server.async_io(both, read), &calls).await;
        client.write_all(b"ping").await.unwrap();
        assert_eq!(server.async_io(both, read).await.unwrap(), 4);
        // A UDP socket can always be written.
        let udp = UdpSocket::bind(&b, "10.0.0.2:7").unwrap();
        let calls = Cell::new(0);
        let receive = || {
            calls.set(calls.get() + 1);
            udp.try_recv(&mut [0; 4])
        };
        calls_until_idle(udp.async_io(both, receive), &calls).await;
        let sender = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        sender.send_to(b"ping", "10.0.0.2:7").await.unwrap();
        assert_eq!(udp.async_io(both, receive).await.unwrap(), 4);
    });
}

#[test]
fn a_udp_socket_is_readable_until_a_call_would_block() {
    paused(async {
        let (a, b) = pair();
        let client = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        let server = UdpSocket::bind(&b, "10.0.0.2:7").unwrap();
        let is_readable = || is_ready(|cx| server.poll_recv_ready(cx));
        assert!(!is_readable());
        client.send_to(b"ping", "10.0.0.2:7").await.unwrap();
        server.readable().await.unwrap();
        assert_eq!(server.try_recv(&mut [0; 4]).unwrap(), 4);
        assert!(is_readable());
        let would_block = server.try_recv(&mut [0; 4]).unwrap_err();
        assert_eq!(would_block.kind(), ErrorKind::WouldBlock);
        assert!(!is_readable());
    });
}

/// More calls than tokio's budget allows within one poll of a task.
const BEYOND_BUDGET: usize = 1000;

#[test]
fn waiting_for_readiness_is_not_a_part_of_the_budget() {
    async fn assert_ready<T>(wait: impl Future<Output = std::io::Result<T>>) {
        let mut wait = std::pin::pin!(wait);
        let done = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await;
        assert!(matches!(done, Poll::Ready(Ok(_))));
    }
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        client.write_all(b"ping").await.unwrap();
        server.readable().await.unwrap();
        let sender = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        let receiver = UdpSocket::bind(&b, "10.0.0.2:7").unwrap();
        sender.send_to(b"ping", "10.0.0.2:7").await.unwrap();
        receiver.readable().await.unwrap();
        let both = Interest::READABLE | Interest::WRITABLE;
        for _ in 0..BEYOND_BUDGET {
            assert_ready(server.readable()).await;
            assert_ready(server.writable()).await;
            assert_ready(server.has_room()).await;
            assert_ready(server.ready(both)).await;
            assert_ready(receiver.readable()).await;
            assert_ready(receiver.ready(Interest::READABLE)).await;
        }
    });
}

#[test]
fn calls_are_a_part_of_the_budget() {
    async fn assert_yields<T, F: Future<Output = std::io::Result<T>>>(mut call: impl FnMut() -> F) {
        tokio::task::yield_now().await;
        let mut calls = std::pin::pin!(async {
            for _ in 0..BEYOND_BUDGET {
                call().await.unwrap();
            }
        });
        let once = poll_fn(|cx| Poll::Ready(calls.as_mut().poll(cx))).await;
        assert!(once.is_pending());
        calls.await;
    }
    paused(async {
        let (a, b) = pair();
        let (mut client, server) = connected(&a, &b).await;
        client.write_all(b"ping").await.unwrap();
        server.readable().await.unwrap();
        assert_yields(|| poll_fn(|cx| server.poll_read_ready(cx))).await;
        assert_yields(|| poll_fn(|cx| server.poll_write_ready(cx))).await;
        assert_yields(|| server.async_io(Interest::READABLE, || Ok(()))).await;
        // A UDP socket is always ready to send: without the budget, a sender would never yield.
        let udp = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
        assert_yields(|| udp.writable()).await;
        assert_yields(|| udp.ready(Interest::WRITABLE)).await;
    });
}

#[test]
fn every_form_of_an_address_can_be_bound() {
    fn bound(stack: &Stack, addr: impl ToAddrs) -> SocketAddr {
        let udp = UdpSocket::bind(stack, &addr).unwrap();
        let tcp = TcpListener::bind(stack, addr).unwrap();
        let local = tcp.local_addr().unwrap();
        assert_eq!(local.ip(), udp.local_addr().unwrap().ip());
        local
    }
    paused(async {
        let (a, _b) = pair();
        let own: SocketAddr = "10.0.0.1:0".parse().unwrap();
        let foreign: SocketAddr = "10.3.3.3:0".parse().unwrap();
        let v6: SocketAddr = "[fd00::1]:0".parse().unwrap();
        assert_eq!(bound(&a, "10.0.0.1:0").ip(), own.ip());
        assert_eq!(bound(&a, String::from("[fd00::1]:0")).ip(), v6.ip());
        assert_eq!(bound(&a, own).ip(), own.ip());
        assert_eq!(bound(&a, (own.ip(), 0)).ip(), own.ip());
        assert_eq!(bound(&a, ("10.0.0.1", 0)).ip(), own.ip());
        assert_eq!(bound(&a, ("fd00::1".to_owned(), 0)).ip(), v6.ip());
        assert_eq!(bound(&a, ([10, 0, 0, 1], 0)).ip(), own.ip());
        // The first address that is available.
        assert_eq!(bound(&a, &[foreign, own, v6][..]).ip(), own.ip());
        for name in ["localhost:0", "LOCALHOST.:0", "app.localhost:0"] {
            assert_eq!(
                bound(&a, name).to_string().split(':').next(),
                Some("127.0.0.1")
            );
        }
        let client = TcpStream::connect_from(&a, ("10.0.0.1", 777), "10.0.0.2:1").await;
        assert_eq!(client.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let empty: &[SocketAddr] = &[];
        let error = TcpListener::bind(&a, empty).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn errors_have_the_kernels_numbers() {
    fn number<T>(result: std::io::Result<T>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }
    paused(async {
        let (a, b) = pair();
        let (client, mut server) = connected(&a, &b).await;
        assert_eq!(number(server.try_read(&mut [0; 1])), Some(libc::EAGAIN));
        let refused = TcpStream::connect(&a, "10.0.0.2:9").await;
        assert_eq!(number(refused), Some(libc::ECONNREFUSED));
        let listener = TcpListener::bind(&b, "10.0.0.2:7").unwrap();
        let taken = TcpListener::bind(&b, "10.0.0.2:7");
        assert_eq!(number(taken), Some(libc::EADDRINUSE));
        drop(listener);
        let foreign = UdpSocket::bind(&a, "10.3.3.3:1");
        assert_eq!(number(foreign), Some(libc::EADDRNOTAVAIL));
        let socket = TcpSocket::new_v4(&a).unwrap();
        let foreign = socket.bind("10.3.3.3:1".parse().unwrap());
        assert_eq!(number(foreign), Some(libc::EADDRNOTAVAIL));
        let udp = UdpSocket::bind(&a, "0.0.0.0:0").unwrap();
        assert_eq!(number(udp.send(b"x").await), Some(libc::EDESTADDRREQ));
        assert_eq!(number(udp.peer_addr()), Some(libc::ENOTCONN));
        let long = udp.send_to(&vec![0; 65_508], "10.0.0.2:9").await;
        assert_eq!(number(long), Some(libc::EMSGSIZE));
        let broadcast = udp.send_to(b"x", "255.255.255.255:9").await;
        assert_eq!(number(broadcast), Some(libc::EACCES));
        client.set_zero_linger().unwrap();
        drop(client);
        server.readable().await.unwrap();
        assert_eq!(number(server.read_u8().await), Some(libc::ECONNRESET));
        assert_eq!(number(server.write_all(b"x").await), Some(libc::EPIPE));
    });
}

#[test]
fn a_runtime_without_its_time_driver_is_an_error_of_build() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let error = runtime.block_on(async { Stack::pair(&Pair::default()).err().unwrap() });
    let text = error.to_string();
    assert!(text.contains("enable_time()"), "{text}");
}

#[test]
fn a_stack_without_files_needs_no_io_driver() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        // Paced: the packets have departure times, for which a timer of the kernel is not available.
        let config = Pair {
            sysctl: vec![("tcp_congestion_control".to_owned(), "bbr".to_owned())],
            ..Pair::default()
        };
        let (a, b) = Stack::pair(&config).unwrap();
        let (mut client, mut server) = connected(&a, &b).await;
        let received = tokio::spawn(async move {
            let mut data = Vec::new();
            server.read_to_end(&mut data).await.unwrap();
            data.len()
        });
        client.write_all(&vec![7; 300_000]).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(received.await.unwrap(), 300_000);
    });
}
