//! A test over a path that loses nothing, with the kernel as peer: no packet is dropped, and none is
//! retransmitted as lost. Needs root.

mod common;

use std::fs;
use std::thread;
use std::time::Duration;

use common::in_namespace;
use fullsend::{Stack, TcpListener};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const FLOWS: usize = 200;
const TRANSACTIONS: usize = 50;
/// Bytes of a request and of a response: three segments.
const MESSAGE: usize = 4096;

/// Packets sent again on one side.
#[derive(Debug)]
struct Retransmissions {
    /// All of them.
    all: u64,
    /// Tail loss probes, due two round trips after a request (RFC 8985 7.2). The first requests wait
    /// for each other much longer than the handshakes, which were the first samples.
    probes: u64,
}

impl Retransmissions {
    fn ours(stack: &Stack) -> Self {
        let counters = stack.counters();
        let counter = |name| counters.iter().find(|(n, _)| *n == name).unwrap().1;
        Self {
            all: counter("TcpRetransSegs"),
            probes: counter("TcpExtTCPLossProbes"),
        }
    }

    /// Returns those of the kernel in the namespace of this thread.
    fn of_kernel() -> Self {
        Self {
            all: kernel_counter("snmp", "Tcp:", "RetransSegs"),
            probes: kernel_counter("netstat", "TcpExt:", "TCPLossProbes"),
        }
    }

    fn of_lost_data(&self) -> u64 {
        self.all.saturating_sub(self.probes)
    }
}

/// Returns a counter of a file in /proc/net, which has a line of names and one of values.
fn kernel_counter(file: &str, group: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    both.find(|(n, _)| *n == name).unwrap().1.parse().unwrap()
}

/// Returns the packets that the kernel dropped on the way from and to an interface's driver.
fn device_drops(name: &str) -> [u64; 2] {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
    let fields: Vec<&str> = line.unwrap().split_whitespace().collect();
    // After the name: bytes, packets, errors and drops, and four more; then the same for sending.
    [4, 12].map(|field| fields[field].parse().unwrap())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut message = vec![0; MESSAGE];
    while stream.read_exact(&mut message).await.is_ok() {
        stream.write_all(&message).await.unwrap();
    }
}

async fn request(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut message = vec![1; MESSAGE];
    for _ in 0..TRANSACTIONS {
        stream.write_all(&message).await.unwrap();
        stream.read_exact(&mut message).await.unwrap();
    }
}

/// Opens all connections to `to`, and then makes the requests on all of them at once.
async fn run_clients(to: &str) {
    let mut streams = Vec::new();
    for _ in 0..FLOWS {
        streams.push(tokio::net::TcpStream::connect(to).await.unwrap());
    }
    let mut clients: JoinSet<()> = streams.into_iter().map(request).collect();
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

/// Without offloads each message is three packets, and the kernel's queue to the TUN holds hundreds.
#[test]
fn two_hundred_flows_over_a_plain_tun_lose_nothing() {
    in_namespace(|| {
        let stack = runtime().block_on(async {
            let stack = Stack::builder()
                .tun("fs0")
                .offload("none".parse().unwrap())
                .address("10.9.0.2/24")
                .kernel_address("10.9.0.1/24")
                .build()
                .unwrap();
            let listener = TcpListener::bind(&stack, "10.9.0.2:9").unwrap();
            let clients = thread::spawn(|| runtime().block_on(run_clients("10.9.0.2:9")));
            let mut servers = JoinSet::new();
            for _ in 0..FLOWS {
                servers.spawn(answer(listener.accept().await.unwrap().0));
            }
            let all = async { while servers.join_next().await.is_some() {} };
            let limited = tokio::time::timeout(Duration::from_secs(60), all).await;
            limited.expect("the test hangs");
            clients.join().unwrap();
            stack
        });
        for side in [Retransmissions::ours(&stack), Retransmissions::of_kernel()] {
            assert_eq!(side.of_lost_data(), 0, "{side:?}");
        }
        assert_eq!(device_drops("fs0:"), [0; 2]);
    });
}
