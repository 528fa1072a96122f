//! Queues in front of a TUN, against the kernel, in a network namespace. Needs root.

mod common;

use std::io::Read;
use std::net::{SocketAddr, TcpListener as KernelListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::in_namespace;
use fullsend::{SocketOption, Stack, TcpStream};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Builder;

const KERNEL: &str = "10.9.0.1:80";

/// Runs `test` with a stack behind `qdisc` in a network of its own.
fn over_tun<F: Future<Output = ()> + 'static>(qdisc: &'static str, test: fn(Stack) -> F) {
    in_namespace(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stack = Stack::builder()
                .tun("fs0")
                .address("10.9.0.2/24")
                .kernel_address("10.9.0.1/24")
                .qdisc(qdisc)
                .build()
                .unwrap();
            test(stack).await;
        });
    });
}

/// A sink of the kernel's, and what it got.
fn sink(listener: KernelListener) -> JoinHandle<u64> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        let mut buf = vec![0; 1 << 16];
        let mut bytes = 0;
        loop {
            match stream.read(&mut buf).unwrap() {
                0 => return bytes,
                n => bytes += n as u64,
            }
        }
    })
}

/// Writes `size` bytes at a time, `total` in all; what the sink got, and how long it took until
/// all was acknowledged.
async fn send(
    stack: &Stack,
    (size, total): (usize, usize),
    option: Option<SocketOption>,
) -> (u64, Duration) {
    let listener = KernelListener::bind(KERNEL).unwrap();
    let kernel = sink(listener);
    let to: SocketAddr = KERNEL.parse().unwrap();
    let mut stream = TcpStream::connect(stack, to).await.unwrap();
    if let Some(option) = option {
        stream.set_option(option).unwrap();
    }
    let message = vec![b'x'; size];
    let start = tokio::time::Instant::now();
    for _ in 0..total / size {
        stream.write_all(&message).await.unwrap();
    }
    stream.shutdown().await.unwrap();
    stream.flushed().await.unwrap();
    let span = start.elapsed();
    (kernel.join().unwrap(), span)
}

fn counter(stack: &Stack, name: &str) -> u64 {
    let all = stack.counters();
    all.iter().find(|(n, _)| *n == name).unwrap().1
}

/// Megabits in a second, of text.
#[allow(clippy::cast_precision_loss)]
fn mbit((bytes, span): (u64, Duration)) -> f64 {
    bytes as f64 * 8e-6 / span.as_secs_f64()
}

#[test]
fn a_token_bucket_over_a_tun_shapes_and_completes_late_enough_to_autocork() {
    over_tun("tbf rate 100mbit burst 64kb", |stack| async move {
        let seen = send(&stack, (128, 24 << 20), None).await;
        let (rate, corked) = (mbit(seen), counter(&stack, "TcpExtTCPAutoCorking"));
        let stats = stack.qdisc_stats();
        println!("{rate:.1} Mbit/s of text, TCPAutoCorking {corked}\n{stats}");
        assert_eq!(seen.0, 24 << 20);
        // 1448 of 1500 bytes are text; of 24 MiB, 64 KiB leave at once. A busy machine is late,
        // never early.
        assert!((60.0..97.5).contains(&rate), "{rate} Mbit/s");
        assert!(corked > 0);
        // Small writes merged: far fewer packets than writes.
        assert!(stats.sent_packets < 30_000, "{stats}");
        assert_eq!(stats.dropped, 0, "{stats}");
        assert_eq!(stats.backlog_packets, 0, "{stats}");
    });
}

#[test]
fn fq_over_a_tun_keeps_departures_below_a_millisecond() {
    over_tun("fq", |stack| async move {
        // A unit of two segments each 230 us.
        let rate = SocketOption::SoMaxPacingRate(12_500_000);
        let seen = send(&stack, (64 << 10, 24 << 20), Some(rate)).await;
        let stats = stack.qdisc_stats();
        println!("{:.1} Mbit/s of text\n{stats}", mbit(seen));
        assert_eq!(seen.0, 24 << 20);
        let rate = mbit(seen);
        assert!((60.0..97.5).contains(&rate), "{rate} Mbit/s");
        let fq = stats.fq.unwrap();
        assert!(fq.throttled > 100, "{stats}");
    });
}
