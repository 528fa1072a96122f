//! Deletes the TUN while calls wait: each call fails, and the stack reports that it has stopped.
//! Needs root.

mod common;

use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use common::in_namespace;
use fullsend::{Stack, TcpListener, TcpStream, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

fn delete(device: &str) {
    let delete = Command::new("ip").args(["link", "delete", device]).status();
    assert!(delete.unwrap().success());
}

/// Runs `test` with a stack over a TUN that the test may delete.
fn with_stack<F: Future<Output = ()>>(test: impl FnOnce(Stack) -> F + Send + 'static) {
    in_namespace(|| {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let stack = Stack::builder()
                .tun("fsl0")
                .shards(common::shards())
                .address("10.68.0.2/24")
                .kernel_address("10.68.0.1/24")
                .build()
                .unwrap();
            let limit = Duration::from_secs(60);
            let done = tokio::time::timeout(limit, test(stack)).await;
            done.expect("a call that waited was not ended");
        });
    });
}

#[test]
fn every_waiting_call_fails_when_the_device_is_deleted() {
    with_stack(|stack| async move {
        let listener = TcpListener::bind(&stack, "10.68.0.2:80").unwrap();
        let idle = TcpListener::bind(&stack, "10.68.0.2:81").unwrap();
        let udp = UdpSocket::bind(&stack, "10.68.0.2:9").unwrap();
        let kernel = tokio::net::TcpStream::connect("10.68.0.2:80");
        let (kernel, accepted) = tokio::join!(kernel, listener.accept());
        let (_kernel, (mut stream, _)) = (kernel.unwrap(), accepted.unwrap());
        assert!(stack.close_reason().is_none());

        let connecting = tokio::spawn({
            let stack = stack.clone();
            // No host on the link has this address.
            async move { TcpStream::connect(&stack, "10.68.0.77:1").await.map(drop) }
        });
        let accepting = tokio::spawn(async move { idle.accept().await.map(drop) });
        let receiving = tokio::spawn(async move { udp.recv_from(&mut [0; 9]).await.map(drop) });
        let reading = tokio::spawn(async move {
            let read = stream.read(&mut [0; 9]).await;
            assert_eq!(
                stream.write(b"x").await.unwrap_err().kind(),
                ErrorKind::NetworkDown
            );
            read.map(drop)
        });
        let closed = tokio::spawn({
            let stack = stack.clone();
            async move { Err(stack.closed().await) }
        });
        delete("fsl0");
        for (what, call) in [
            ("connect", connecting),
            ("accept", accepting),
            ("recv_from", receiving),
            ("read", reading),
            ("closed", closed),
        ] {
            let error = call.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkDown, "{what}: {error}");
        }
        let why = stack.close_reason().unwrap();
        assert!(why.to_string().starts_with("the device failed: "), "{why}");
        let again = TcpListener::bind(&stack, "10.68.0.2:82").unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NetworkDown);
        assert_eq!(stack.closed().await.kind(), ErrorKind::NetworkDown);
    });
}

#[test]
fn axum_returns_when_the_device_is_deleted() {
    with_stack(|stack| async move {
        let listener = TcpListener::bind(&stack, "10.68.0.2:80").unwrap();
        let app = axum::Router::new().route("/", axum::routing::get(|| async { "served" }));
        let server = axum::serve(listener, app).with_graceful_shutdown(async move {
            stack.closed().await;
        });
        let server = tokio::spawn(server.into_future());
        // A client that keeps its connection open.
        let mut client = tokio::net::TcpStream::connect("10.68.0.2:80")
            .await
            .unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut head = [0; 15];
        client.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        delete("fsl0");
        server.await.unwrap().unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn calls_on_a_stack_that_is_shut_down_report_it() {
    let (stack, _peer) = common::pair();
    let closed = tokio::spawn({
        let stack = stack.clone();
        async move { stack.closed().await }
    });
    // Dropping a future that waits has no effect on the others.
    let early = tokio::time::timeout(Duration::from_secs(1), stack.closed()).await;
    assert!(early.is_err());
    stack.shutdown().await.unwrap();
    assert_eq!(closed.await.unwrap().kind(), ErrorKind::ConnectionAborted);
}
