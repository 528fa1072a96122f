//! Listeners: backlog, many connections, pending connections, axum.

mod common;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{pair, paused, threads};
use fullsend::{Stack, TcpListener, TcpStream, TransparentListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

async fn echo_once(mut stream: TcpStream, message: &[u8]) {
    stream.write_all(message).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, message);
}

fn spawn_echo(listener: TcpListener) {
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                stream.shutdown().await.unwrap();
            });
        }
    });
}

async fn thousand_connections(a: Stack, b: Stack) {
    spawn_echo(TcpListener::bind(&b, "0.0.0.0:9").unwrap());
    let mut clients = JoinSet::new();
    for i in 0..1000_u32 {
        let a = a.clone();
        clients.spawn(async move {
            let stream = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
            let message = i.to_le_bytes().repeat(1 + i as usize * 10);
            echo_once(stream, &message).await;
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
}

#[test]
fn thousand_connections_on_one_thread() {
    paused(async {
        let (a, b) = pair();
        thousand_connections(a, b).await;
    });
}

#[test]
fn thousand_connections_on_four_threads() {
    threads(async {
        let (a, b) = pair();
        thousand_connections(a, b).await;
    });
}

#[test]
fn a_full_backlog_delays_connections_and_loses_none() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind_with(&b, "10.0.0.2:9", 4).unwrap();
        let mut clients = JoinSet::new();
        for _ in 0..20 {
            let a = a.clone();
            clients.spawn(async move {
                let stream = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
                echo_once(stream, b"hello").await;
            });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        spawn_echo(listener);
        while let Some(done) = clients.join_next().await {
            done.unwrap();
        }
    });
}

#[test]
fn dropping_a_listener_resets_unaccepted_connections() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
        let mut client = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
        drop(listener);
        let error = client.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let error = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn addresses_are_checked() {
    paused(async {
        let (_a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
        let kind = |addr: &str| TcpListener::bind(&b, addr).unwrap_err().kind();
        assert_eq!(kind("10.0.0.2:9"), ErrorKind::AddrInUse);
        assert_eq!(kind("10.0.0.3:9"), ErrorKind::AddrNotAvailable);
        assert_eq!(kind("host.test:9"), ErrorKind::InvalidInput);
        assert_eq!(kind("10.0.0.2"), ErrorKind::InvalidInput);
        drop(listener);
        TcpListener::bind(&b, "10.0.0.2:9").unwrap();
        let any = TcpListener::bind(&b, "0.0.0.0:0").unwrap();
        assert_ne!(any.local_addr().unwrap().port(), 0);
    });
}

#[test]
fn several_tasks_accept_on_one_listener() {
    paused(async {
        let (a, b) = pair();
        let listener = Arc::new(TcpListener::bind(&b, "10.0.0.2:9").unwrap());
        let mut acceptors = JoinSet::new();
        for _ in 0..5 {
            let listener = listener.clone();
            acceptors.spawn(async move { listener.accept().await.unwrap().1 });
        }
        // All of them wait before the first connection arrives.
        tokio::time::sleep(Duration::from_millis(1)).await;
        for _ in 0..5 {
            let _client = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
        }
        while let Some(done) = acceptors.join_next().await {
            done.unwrap();
        }
    });
}

#[test]
fn dropping_an_accept_future_loses_no_connection() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
        for _ in 0..3 {
            let wait = tokio::time::timeout(Duration::from_millis(1), listener.accept());
            assert!(wait.await.is_err());
        }
        let _client = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
        listener.accept().await.unwrap();
    });
}

#[test]
fn a_pending_connection_is_accepted_with_its_original_destination() {
    paused(async {
        let (a, b) = pair();
        let listener = TransparentListener::any(&b, 16).unwrap();
        for to in ["203.0.113.9:80", "10.0.0.2:81", "[2001:db8::9]:82"] {
            let to: SocketAddr = to.parse().unwrap();
            let client = tokio::spawn({
                let a = a.clone();
                async move { TcpStream::connect(&a, to).await }
            });
            let pending = listener.accept().await.unwrap();
            assert_eq!(pending.local_addr(), to);
            // The SYN is not answered yet, so the client must not be connected.
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(!client.is_finished());
            let mut server = pending.accept().await.unwrap();
            assert_eq!(server.local_addr().unwrap(), to);
            let mut client = client.await.unwrap().unwrap();
            client.write_all(b"hi").await.unwrap();
            let mut buf = [0; 2];
            server.read_exact(&mut buf).await.unwrap();
            assert_eq!(&buf, b"hi");
        }
    });
}

#[test]
fn a_pending_connection_that_is_rejected_or_dropped_is_refused() {
    paused(async {
        let (a, b) = pair();
        let listener = TransparentListener::any(&b, 16).unwrap();
        for reject in [true, false] {
            let connect = TcpStream::connect(&a, "203.0.113.9:80");
            let decide = async {
                let pending = listener.accept().await.unwrap();
                if reject {
                    pending.reject();
                } else {
                    drop(pending);
                }
            };
            let (client, ()) = tokio::join!(connect, decide);
            assert_eq!(client.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn accepting_a_pending_connection_fails_after_the_peer_gave_up() {
    paused(async {
        let (a, b) = pair();
        let listener = TransparentListener::any(&b, 16).unwrap();
        let connect = tokio::time::timeout(
            Duration::from_millis(100),
            TcpStream::connect(&a, "203.0.113.9:80"),
        );
        let (client, pending) = tokio::join!(connect, listener.accept());
        assert!(client.is_err());
        // The peer has given up, so the handshake fails.
        assert!(pending.unwrap().accept().await.is_err());
    });
}

#[test]
fn axum_serves_on_the_listener_unchanged() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:80").unwrap();
        let app = axum::Router::new().route("/", axum::routing::get(|| async { "served" }));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let mut client = TcpStream::connect(&a, "10.0.0.2:80").await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert!(
            got.starts_with("HTTP/1.1 200 OK") && got.ends_with("served"),
            "{got}"
        );
    });
}

/// TCP Fast Open: the first connection requests the cookie, the second sends its request on the
/// SYN.
#[test]
fn a_request_is_sent_in_the_syn() {
    paused(async {
        let (a, b) = pair();
        b.set_sysctl("tcp_fastopen", "3").unwrap();
        let listener = TcpListener::bind(&b, "0.0.0.0:9").unwrap();
        listener
            .set_option(fullsend::SocketOption::TcpFastopen(16))
            .unwrap();
        for (n, expected) in [0, 5].into_iter().enumerate() {
            let (mut client, taken) = TcpStream::connect_with(&a, "10.0.0.2:9", b"hello")
                .await
                .unwrap();
            assert_eq!(taken, expected, "connection {n}");
            client.write_all(&b"hello"[taken..]).await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            let mut buf = [0; 5];
            server.read_exact(&mut buf).await.unwrap();
            assert_eq!(&buf, b"hello");
            server.write_all(b"world").await.unwrap();
            client.read_exact(&mut buf).await.unwrap();
            assert_eq!(&buf, b"world");
        }
    });
}

#[test]
fn listeners_share_a_port() {
    paused(async {
        let (a, b) = pair();
        let at = "0.0.0.0:9";
        let group = [(); 2].map(|()| TcpListener::bind_shared(&b, at, 100).unwrap());
        assert_eq!(
            TcpListener::bind(&b, at).unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
        let mut streams = Vec::new();
        for _ in 0..20 {
            streams.push(TcpStream::connect(&a, "10.0.0.2:9").await.unwrap());
        }
        let [one, other] = &group;
        let mut counts = [0; 2];
        for _ in 0..20 {
            let i = tokio::select! {
                one = one.accept() => one.map(|_| 0),
                other = other.accept() => other.map(|_| 1),
            };
            counts[i.unwrap()] += 1;
        }
        assert!(counts.iter().all(|n| *n > 2), "{counts:?}");
    });
}

#[test]
fn a_pending_connection_is_cancelled_when_its_peer_gives_up() {
    paused(async {
        let (a, b) = pair();
        let listener = TransparentListener::any(&b, 16).unwrap();
        let client = tokio::spawn(async move { TcpStream::connect(&a, "203.0.113.5:80").await });
        let pending = listener.accept().await.unwrap();
        let early = tokio::time::timeout(Duration::from_secs(60), pending.cancelled()).await;
        assert!(early.is_err(), "the peer still retransmits");
        client.abort();
        pending.cancelled().await.unwrap();
        let error = pending.accept().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
    });
}
