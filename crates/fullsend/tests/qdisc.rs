//! Queueing disciplines in front of a TUN, with the kernel as peer, in a network namespace. Needs
//! root.

mod common;

use std::io::Read;
use std::net::{SocketAddr, TcpListener as KernelListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{counter, in_namespace};
use fullsend::{SocketOption, Stack, TcpStream};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Builder;

const KERNEL: &str = "10.9.0.1:80";

/// Runs `test` in a network namespace with a stack behind `qdisc`.
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

/// Starts a kernel socket that reads to the end, and returns the number of bytes.
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

/// Writes `total` bytes, `size` at a time, and waits until all are acknowledged. Returns the number
/// of bytes that the kernel received.
async fn send(stack: &Stack, (size, total): (usize, usize), option: Option<SocketOption>) -> u64 {
    let listener = KernelListener::bind(KERNEL).unwrap();
    let kernel = sink(listener);
    let to: SocketAddr = KERNEL.parse().unwrap();
    let mut stream = TcpStream::connect(stack, to).await.unwrap();
    if let Some(option) = option {
        stream.set_option(option).unwrap();
    }
    let message = vec![b'x'; size];
    for _ in 0..total / size {
        stream.write_all(&message).await.unwrap();
    }
    stream.shutdown().await.unwrap();
    stream.flushed().await.unwrap();
    kernel.join().unwrap()
}

// The rates themselves are tested in virtual time, in `sim/tests/qdisc.rs`.

#[test]
fn a_token_bucket_over_a_tun_shapes() {
    over_tun("tbf rate 20mbit burst 64kb limit 1mb", |stack| async move {
        let received = send(&stack, (128, 4 << 20), None).await;
        let stats = stack.qdisc_stats();
        println!("{stats}");
        assert_eq!(received, 4 << 20);
        // Packets have waited for tokens.
        assert!(stats.overlimits > 0, "{stats}");
        // Small writes are coalesced: there are far fewer packets than writes.
        assert!(stats.sent_packets < 5000, "{stats}");
        assert_eq!(stats.dropped, 0, "{stats}");
        assert_eq!(stats.backlog_packets, 0, "{stats}");
    });
}

#[test]
fn a_small_write_is_autocorked_while_a_token_bucket_has_the_data_before_it() {
    // 10,000 bytes wait 0.8 s for their tokens.
    over_tun("tbf rate 100kbit burst 4kb limit 1mb", |stack| async move {
        let kernel = sink(KernelListener::bind(KERNEL).unwrap());
        let to: SocketAddr = KERNEL.parse().unwrap();
        let mut stream = TcpStream::connect(&stack, to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut written = 0;
        // A pause of this thread can outlast the wait for tokens: another round then.
        while counter(&stack, "TcpExtTCPAutoCorking") == 0 {
            stream.flushed().await.unwrap();
            stream.write_all(&[b'x'; 10_000]).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(&[b'x'; 100]).await.unwrap();
            written += 10_100;
        }
        stream.shutdown().await.unwrap();
        stream.flushed().await.unwrap();
        assert_eq!(kernel.join().unwrap(), written);
    });
}

#[test]
fn fq_over_a_tun_delays_packets_until_their_departure_time() {
    over_tun("fq", |stack| async move {
        // A super-segment of two segments each 230 us.
        let rate = SocketOption::SoMaxPacingRate(12_500_000);
        let received = send(&stack, (64 << 10, 24 << 20), Some(rate)).await;
        let stats = stack.qdisc_stats();
        println!("{stats}");
        assert_eq!(received, 24 << 20);
        let fq = stats.fq.unwrap();
        assert!(fq.throttled > 0, "{stats}");
    });
}
