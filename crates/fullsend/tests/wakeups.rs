//! Many tasks on several threads read and write pieces of all sizes: a lost wake-up would leave one
//! of them hanging.

mod common;

use common::{pair_with, pattern, threads};
use fullsend::{NicMode, Stack, TcpListener, TcpStream};
use fullsend_wire::{Rng, Seed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

const EACH: usize = 400_000;

/// Writes the pattern in pieces of random sizes, then sends a FIN.
async fn write(mut to: impl AsyncWriteExt + Unpin, seed: u64) {
    let data = pattern(EACH, seed);
    let mut rng = Rng::new(Seed::from_u64(seed));
    let mut at = 0;
    while at < EACH {
        let most = if rng.chance(0.5) { 100 } else { 70_000 };
        let end = EACH.min(at + 1 + rng.below(most) as usize);
        to.write_all(&data[at..end]).await.unwrap();
        at = end;
        if rng.chance(0.2) {
            tokio::task::yield_now().await;
        }
    }
    to.shutdown().await.unwrap();
}

/// Reads and checks the pattern in pieces of random sizes.
async fn read(mut from: impl AsyncReadExt + Unpin, seed: u64) {
    let mut rng = Rng::new(Seed::from_u64(seed + 1));
    let mut got = Vec::new();
    let mut buf = vec![0; 100_000];
    loop {
        let most = if rng.chance(0.5) { 1_000 } else { 100_000 };
        let n = from
            .read(&mut buf[..=rng.below(most) as usize])
            .await
            .unwrap();
        if n == 0 {
            break;
        }
        got.extend_from_slice(&buf[..n]);
        if rng.chance(0.2) {
            tokio::task::yield_now().await;
        }
    }
    assert!(got == pattern(EACH, seed));
}

/// Transfers data in both directions of a connection, each half in a task of its own.
async fn both(stream: TcpStream, sends: u64, expects: u64) {
    let (from, to) = stream.into_split();
    let writer = tokio::spawn(write(to, sends));
    let reader = tokio::spawn(read(from, expects));
    writer.await.unwrap();
    reader.await.unwrap();
}

async fn exchange_with_random_pauses(a: Stack, b: Stack) {
    let mut tasks = JoinSet::new();
    for i in 0..30_u16 {
        let port = 1000 + i;
        let (there, back) = (u64::from(i) * 4 + 1, u64::from(i) * 4 + 3);
        let listener = TcpListener::bind(&b, ([10, 0, 0, 2], port)).unwrap();
        tasks.spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            both(stream, back, there).await;
        });
        let a = a.clone();
        tasks.spawn(async move {
            let stream = TcpStream::connect(&a, ([10, 0, 0, 2], port)).await.unwrap();
            both(stream, there, back).await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[test]
fn no_wakeup_is_lost_with_super_segments() {
    threads(async {
        let (a, b) = pair_with(NicMode::Tso, 1500);
        exchange_with_random_pauses(a, b).await;
    });
}

#[test]
fn no_wakeup_is_lost_with_single_packets() {
    threads(async {
        let (a, b) = pair_with(NicMode::Mtu, 1500);
        exchange_with_random_pauses(a, b).await;
    });
}
