//! What a peer that falls silent looks like, with the other end of the link cut off.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use fullsend_device::{Caps, Device, Tapped};
use fullsend_offload::Packet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Pair, Stack, TcpListener, TcpStream};

/// Takes everything and gives nothing.
struct Cut(Caps);

impl Device for Cut {
    fn caps(&self) -> Caps {
        self.0
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn receive(&mut self, _: &mut Vec<Packet>, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn cut(stack: &Stack) {
    let mut shard = stack.engine.shard.lock();
    let caps = shard.device.caps();
    shard.device = Tapped::off(Box::new(Cut(caps)));
}

/// Two ends of a connection, and the stack of the first.
async fn connected() -> (Stack, TcpStream, TcpStream) {
    let (a, b) = Stack::pair(&Pair::default()).unwrap();
    let listener = TcpListener::bind(&b, "10.0.0.2:9").unwrap();
    let client = TcpStream::connect(&a, "10.0.0.2:9").await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (a, client, server)
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanishes_ends_in_a_timeout() {
    let (a, mut client, _server) = connected().await;
    client.write_all(b"is anybody there?").await.unwrap();
    cut(&a);
    client.write_all(b"hello?").await.unwrap();
    let begin = tokio::time::Instant::now();
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // tcp_retries2 = 15: a quarter of an hour, more or less.
    let minutes = begin.elapsed().as_secs() / 60;
    assert!((10..30).contains(&minutes), "{minutes}");
    let error = client.write_all(b"x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn the_user_timeout_is_kept() {
    let (a, mut client, _server) = connected().await;
    client.set_user_timeout(Duration::from_secs(20)).unwrap();
    cut(&a);
    client.write_all(b"hello?").await.unwrap();
    let begin = tokio::time::Instant::now();
    let error = client.flushed().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let seconds = begin.elapsed().as_secs();
    assert!((15..60).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn keepalive_finds_a_dead_peer() {
    let (a, mut client, _server) = connected().await;
    client.set_keepalive(true).unwrap();
    client.set_keepidle(Duration::from_secs(30)).unwrap();
    client.set_keepintvl(Duration::from_secs(5)).unwrap();
    client.set_keepcnt(3).unwrap();
    cut(&a);
    let begin = tokio::time::Instant::now();
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let seconds = begin.elapsed().as_secs();
    assert!((40..60).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_stack_that_nobody_holds_ends_when_its_connections_have() {
    let (a, client, mut server) = connected().await;
    let engine = std::sync::Arc::downgrade(&a.engine);
    let mut client = client;
    client.write_all(b"last words").await.unwrap();
    drop((a, client));
    let mut got = String::new();
    server.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "last words");
    drop(server);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(engine.upgrade().is_none(), "the driver still runs");
}
