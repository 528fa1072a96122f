//! Connections of a stack to itself need no timer: virtual time does not advance while data flows.

mod common;

use std::time::Duration;

use fullsend::{TcpListener, TcpStream, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

const ADDRESSES: [&str; 4] = ["127.0.0.1", "10.0.0.1", "[::1]", "[fd00::1]"];
const ECHOES: usize = 50;

#[tokio::test(start_paused = true)]
async fn tcp_echoes_over_own_addresses_need_no_timer() {
    let (stack, _peer) = common::pair();
    for address in ADDRESSES {
        let listener = TcpListener::bind(&stack, format!("{address}:7")).unwrap();
        let begin = Instant::now();
        let mut client = TcpStream::connect(&stack, format!("{address}:7"))
            .await
            .unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let echo = tokio::spawn(async move {
            let mut buf = [0; 5];
            for _ in 0..ECHOES {
                server.read_exact(&mut buf).await.unwrap();
                server.write_all(&buf).await.unwrap();
            }
            server
        });
        let mut buf = [0; 5];
        for _ in 0..ECHOES {
            client.write_all(b"hello").await.unwrap();
            client.read_exact(&mut buf).await.unwrap();
            assert_eq!(&buf, b"hello");
        }
        let mut server = echo.await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut buf).await.unwrap(), 0);
        assert_eq!(begin.elapsed().as_nanos(), 0, "{address}");
    }
}

#[tokio::test(start_paused = true)]
async fn udp_echoes_over_own_addresses_need_no_timer() {
    let (stack, _peer) = common::pair();
    for address in ADDRESSES {
        let server = UdpSocket::bind(&stack, format!("{address}:7")).unwrap();
        let client = UdpSocket::bind(&stack, format!("{address}:0")).unwrap();
        let to = server.local_addr().unwrap();
        let begin = Instant::now();
        let echo = tokio::spawn(async move {
            let mut buf = [0; 16];
            for _ in 0..ECHOES {
                let (len, from) = server.recv_from(&mut buf).await.unwrap();
                server.send_to(&buf[..len], from).await.unwrap();
            }
        });
        let mut buf = [0; 16];
        for _ in 0..ECHOES {
            client.send_to(b"hello", to).await.unwrap();
            let (len, from) = client.recv_from(&mut buf).await.unwrap();
            assert_eq!((&buf[..len], from), (&b"hello"[..], to));
        }
        echo.await.unwrap();
        assert_eq!(begin.elapsed().as_nanos(), 0, "{address}");
    }
}

/// Sends more than the send and receive buffers hold, so that both sides wait for each other.
#[tokio::test(start_paused = true)]
async fn a_stream_to_itself_waits_for_one_delayed_ack_at_most() {
    const LEN: usize = 32 << 20;
    let (stack, _peer) = common::pair();
    let listener = TcpListener::bind(&stack, "10.0.0.1:7").unwrap();
    let mut client = TcpStream::connect(&stack, "10.0.0.1:7").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let begin = Instant::now();
    let send = tokio::spawn(async move {
        client.write_all(&vec![7; LEN]).await.unwrap();
        client.shutdown().await.unwrap();
        client
    });
    let mut got = Vec::new();
    server.read_to_end(&mut got).await.unwrap();
    assert_eq!(got.len(), LEN);
    send.await.unwrap();
    // Allows for the delayed ACK of a tail, and the timer's rounding to milliseconds.
    let elapsed = begin.elapsed();
    assert!(elapsed <= Duration::from_millis(42), "{elapsed:?}");
}
