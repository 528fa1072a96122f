//! Software that several tests run.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses only some items"
)]

use std::time::Duration;

use fullsend::{TcpListener, TcpStream, UdpSocket};
use fullsend_simnet::{Host, SoftwareResult};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Echoes the data of each connection to port 7.
pub async fn echo_server(host: Host) -> SoftwareResult {
    let listener = TcpListener::bind(host.stack(), "0.0.0.0:7")?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await?;
            to.shutdown().await
        });
    }
}

/// Sends `len` bytes of a pattern to the echo server and checks each that comes back.
pub async fn echo_client(host: Host, len: usize) -> SoftwareResult {
    let mut stream = TcpStream::connect(host.stack(), host.resolve("server:7")?).await?;
    let mut rng = host.seed() | 1;
    let sent: Vec<u8> = std::iter::repeat_with(|| {
        rng = rng.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (rng >> 56) as u8
    })
    .take(len)
    .collect();
    let (mut from, mut to) = stream.split();
    let write = async {
        to.write_all(&sent).await?;
        to.shutdown().await
    };
    let mut received = Vec::new();
    let (written, read) = tokio::join!(write, from.read_to_end(&mut received));
    written?;
    read?;
    assert!(received == sent, "{}: other bytes came back", host.name());
    Ok(())
}

/// Reads and drops the data of each connection to port 9.
pub async fn discard_server(host: Host) -> SoftwareResult {
    let listener = TcpListener::bind(host.stack(), "0.0.0.0:9")?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut buf = vec![0; 1 << 16];
            while stream.read(&mut buf).await? > 0 {}
            std::io::Result::Ok(())
        });
    }
}

/// Sends `len` bytes to port 9 of the server, and returns the time until all are acknowledged.
pub async fn upload(host: &Host, len: usize) -> std::io::Result<Duration> {
    let start = tokio::time::Instant::now();
    let mut stream = TcpStream::connect(host.stack(), host.resolve("server:9")?).await?;
    let block = vec![0x55; 1 << 16];
    let mut left = len;
    while left > 0 {
        let now = left.min(block.len());
        stream.write_all(&block[..now]).await?;
        left -= now;
    }
    stream.flushed().await?;
    Ok(start.elapsed())
}

/// Counts the datagrams to port 9 of `host` until none comes for a second, and returns the number.
pub async fn count_datagrams(host: &Host) -> std::io::Result<u64> {
    let socket = UdpSocket::bind(host.stack(), "0.0.0.0:9")?;
    let (mut buf, mut count) = ([0; 2048], 0);
    let pause = Duration::from_secs(1);
    while let Ok(received) = tokio::time::timeout(pause, socket.recv_from(&mut buf)).await {
        received?;
        count += 1;
    }
    Ok(count)
}
