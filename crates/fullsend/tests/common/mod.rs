//! Helpers of the tests.
#![allow(dead_code, reason = "each test file uses only some items")]

pub(crate) mod capture;
pub(crate) mod kernel;

use std::future::Future;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fullsend::{NicMode, Pair, Stack, TcpListener, TcpStream};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Runs `test` on one thread with tokio's clock paused: a timer fires as soon as no task can run,
/// so that no test waits, and a lost wake-up ends after `LIMIT`.
pub(crate) fn paused<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(limited(Duration::from_secs(3600), test))
}

/// Runs `test` on four threads in real time.
pub(crate) fn threads<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap()
        .block_on(limited(Duration::from_secs(120), test))
}

async fn limited<F: Future>(limit: Duration, test: F) -> F::Output {
    tokio::time::timeout(limit, test)
        .await
        .expect("the test hangs")
}

/// Runs `test` in a thread with a network namespace of its own, which the threads it starts share.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if !geteuid().is_root() {
        println!("skipped: needs root, for a network namespace and a TUN or TAP device");
        return;
    }
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        test();
    });
    thread.join().unwrap();
}

/// Waits until the kernel has the local route of an IPv6 address, which it adds some time after the
/// address. Until then it drops packets to the address.
pub(crate) fn wait_for_local_route(address: &str) {
    for _ in 0..2000 {
        let args = ["-6", "route", "show", "table", "local"];
        let routes = Command::new("ip").args(args).output().unwrap();
        if String::from_utf8_lossy(&routes.stdout).contains(&format!("local {address} ")) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{address} has no local route");
}

/// Returns the number of shards of the stacks under test: 4 in `four_shards.rs`, which repeats the
/// tests of other files.
pub(crate) fn shards() -> usize {
    if env!("CARGO_CRATE_NAME") == "four_shards" {
        4
    } else {
        1
    }
}

/// Returns a counter of a stack.
pub(crate) fn counter(stack: &Stack, name: &str) -> u64 {
    let counters = stack.counters();
    let found = counters.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

pub(crate) fn pair() -> (Stack, Stack) {
    pair_with(NicMode::Tso, 1500)
}

pub(crate) fn pair_with(nic: NicMode, mtu: u32) -> (Stack, Stack) {
    Stack::pair(&Pair {
        nic,
        mtu,
        shards: shards(),
        seed: Some(7),
        ..Pair::default()
    })
    .unwrap()
}

/// Returns a connection: the client's end on `a`, the server's end on `b`.
pub(crate) async fn connected(a: &Stack, b: &Stack) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(b, "10.0.0.2:0").unwrap();
    let client = TcpStream::connect(a, listener.local_addr().unwrap());
    let (client, server) = tokio::join!(client, listener.accept());
    (client.unwrap(), server.unwrap().0)
}

/// Returns bytes without repetition, so that any misplaced data shows.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Sends `data` and a FIN in one direction, and returns what is received at the other end.
pub(crate) async fn carry(
    mut from: impl AsyncWrite + Unpin,
    mut to: impl AsyncRead + Unpin,
    data: &[u8],
) -> Vec<u8> {
    let write = async {
        from.write_all(data).await.unwrap();
        from.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let ((), read) = tokio::join!(write, to.read_to_end(&mut got));
    read.unwrap();
    got
}
