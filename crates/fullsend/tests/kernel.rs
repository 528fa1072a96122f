//! Tests with the Linux kernel as peer over TUN, in network namespaces of their own. Needs root.

mod common;

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener as KernelListener, TcpStream as Kernel};
use std::thread;
use std::time::Duration;

use common::kernel::exchange;
use common::{in_namespace, pattern};
use fullsend::{OffloadSet, Stack, TcpListener, TcpStream, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

const OURS: [&str; 2] = ["10.9.0.2/24", "fd09::2/64"];
/// Bytes that a kernel socket receives before it is accepted.
const SENT: usize = 50_000;
const KERNELS: [&str; 2] = ["10.9.0.1/24", "fd09::1/64"];

/// Runs `test` with a stack over a TUN, once with each set of offloads.
fn with_stack(test: fn(Runtime, Stack)) {
    for offload in ["all", "none", "all,-tso6", "csum", "vnet_hdr"] {
        in_namespace(move || {
            println!("offload {offload}");
            let runtime = Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let stack = {
                let _context = runtime.enter();
                let mut builder = Stack::builder()
                    .tun("fs0")
                    .shards(common::shards())
                    .offload(offload.parse().unwrap());
                for i in 0..2 {
                    builder = builder.address(OURS[i]).kernel_address(KERNELS[i]);
                }
                builder.build().unwrap()
            };
            test(runtime, stack);
        });
    }
}

fn addr(cidr: &str, port: u16) -> SocketAddr {
    let (ip, _) = cidr.split_once('/').unwrap();
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port)
}

/// Connects a kernel socket with timeouts, so that no call hangs.
fn kernel_connect(to: SocketAddr) -> Kernel {
    let stream = Kernel::connect_timeout(&to, Duration::from_secs(20)).unwrap();
    with_limits(stream)
}

fn with_limits(stream: Kernel) -> Kernel {
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    stream.set_write_timeout(limit).unwrap();
    stream
}

/// Sends `data` and a FIN on a stream of the stack, and returns all that it receives.
async fn exchange_ours(mut stream: TcpStream, data: Vec<u8>) -> Vec<u8> {
    let (mut read, mut write) = stream.split();
    let send = async {
        write.write_all(&data).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (read, ()) = tokio::join!(read.read_to_end(&mut got), send);
    read.unwrap();
    stream.flushed().await.unwrap();
    got
}

#[test]
fn the_kernel_connects_to_us_and_both_send_at_once() {
    with_stack(|runtime, stack| {
        for cidr in OURS {
            let to = addr(cidr, 80);
            let listener = TcpListener::bind(&stack, to).unwrap();
            let (there, back) = (pattern(24 << 20, 1), pattern(24 << 20, 2));
            let send = back.clone();
            let ours = runtime.spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                exchange_ours(stream, send).await
            });
            let got = exchange(kernel_connect(to), &there);
            assert!(got == back, "{cidr}: us to kernel");
            let got = runtime.block_on(ours).unwrap();
            assert!(got == there, "{cidr}: kernel to us");
        }
    });
}

#[test]
fn we_connect_to_the_kernel_and_both_send_at_once() {
    with_stack(|runtime, stack| {
        for cidr in KERNELS {
            let listener = KernelListener::bind(addr(cidr, 80)).unwrap();
            let (there, back) = (pattern(24 << 20, 1), pattern(24 << 20, 2));
            let send = back.clone();
            let kernel = thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                exchange(with_limits(stream), &send)
            });
            let got = runtime.block_on(async {
                let stream = TcpStream::connect(&stack, addr(cidr, 80)).await.unwrap();
                exchange_ours(stream, there.clone()).await
            });
            assert!(got == back, "{cidr}: kernel to us");
            assert!(kernel.join().unwrap() == there, "{cidr}: us to kernel");
        }
    });
}

#[test]
fn two_hundred_connections_at_once() {
    with_stack(|runtime, stack| {
        let listener = TcpListener::bind(&stack, "[::]:7").unwrap();
        runtime.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await.unwrap();
                    write.shutdown().await.unwrap();
                });
            }
        });
        let clients: Vec<_> = (0..200)
            .map(|i: usize| {
                thread::spawn(move || {
                    let data = pattern(1 + i * 1500, i as u64);
                    let got = exchange(kernel_connect(addr(OURS[i % 2], 7)), &data);
                    assert!(got == data);
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
    });
}

#[test]
fn refusals_and_resets_both_ways() {
    in_namespace(|| {
        let runtime = Runtime::new().unwrap();
        let stack = {
            let _context = runtime.enter();
            Stack::builder()
                .tun("fs0")
                .shards(common::shards())
                .address(OURS[0])
                .kernel_address(KERNELS[0])
                .build()
                .unwrap()
        };
        let error = Kernel::connect(addr(OURS[0], 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let closed = addr(KERNELS[0], 1);
        let error = runtime
            .block_on(TcpStream::connect(&stack, closed))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);

        let listener = TcpListener::bind(&stack, addr(OURS[0], 80)).unwrap();
        let mut kernel = kernel_connect(addr(OURS[0], 80));
        let (ours, _) = runtime.block_on(listener.accept()).unwrap();
        ours.abort();
        let error = kernel.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        let kernel = kernel_connect(addr(OURS[0], 80));
        let (mut ours, _) = runtime.block_on(listener.accept()).unwrap();
        // Closing with unread data resets the connection.
        runtime.block_on(async {
            ours.write_all(b"unread").await.unwrap();
            ours.flushed().await.unwrap();
        });
        drop(kernel);
        let error = runtime.block_on(ours.read(&mut [0; 1])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn datagrams_both_ways() {
    with_stack(|runtime, stack| {
        for i in 0..2 {
            let kernel = std::net::UdpSocket::bind(addr(KERNELS[i], 0)).unwrap();
            kernel
                .set_read_timeout(Some(Duration::from_millis(500)))
                .unwrap();
            let ours = UdpSocket::bind(&stack, addr(OURS[i], 53)).unwrap();
            for len in [0, 1, 1400, 5000] {
                let data = pattern(len, 5);
                kernel.send_to(&data, addr(OURS[i], 53)).unwrap();
                let mut buf = vec![0; 10_000];
                let (n, from) = runtime.block_on(ours.recv_from(&mut buf)).unwrap();
                assert!(buf[..n] == data);
                assert_eq!(from, kernel.local_addr().unwrap());
                // The kernel needs some time before it uses a new IPv6 address.
                let answered = (0..20).find_map(|_| {
                    runtime.block_on(ours.send_to(&data, from)).unwrap();
                    kernel.recv_from(&mut buf).ok()
                });
                let (n, _) = answered.unwrap();
                assert!(buf[..n] == data);
            }
        }
    });
}

#[test]
fn data_sent_before_stack_shutdown_reaches_the_kernel() {
    in_namespace(|| {
        let listener = {
            // The kernel's side must be up first.
            let runtime = Runtime::new().unwrap();
            let stack = {
                let _context = runtime.enter();
                Stack::builder()
                    .tun("fs0")
                    .shards(common::shards())
                    .address(OURS[0])
                    .kernel_address(KERNELS[0])
                    .build()
                    .unwrap()
            };
            let listener = KernelListener::bind(addr(KERNELS[0], 80)).unwrap();
            let data = pattern(SENT, 3);
            runtime.block_on(async {
                let mut stream = TcpStream::connect(&stack, addr(KERNELS[0], 80))
                    .await
                    .unwrap();
                stream.write_all(&data).await.unwrap();
                stream.shutdown().await.unwrap();
                drop(stream);
                stack.shutdown().await.unwrap();
            });
            listener
        };
        let (mut kernel, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        kernel.read_to_end(&mut got).unwrap();
        assert!(got == pattern(SENT, 3));
    });
}

#[test]
fn opening_an_unavailable_device_reports_the_reason() {
    in_namespace(|| {
        let runtime = Runtime::new().unwrap();
        let _context = runtime.enter();
        let build = |name: &str| Stack::builder().tun(name).address(OURS[0]).build();
        let error = build("no/such").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("no/such"), "{error}");
        let _first = build("fs0").unwrap();
        let error = build("fs0").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("fs0"), "{error}");
    });
}

#[test]
fn the_builder_names_the_invalid_setting() {
    let runtime = Runtime::new().unwrap();
    let build = |builder: fullsend::Builder| builder.build().err().unwrap().to_string();
    let text = build(Stack::builder().tun("fs0").address("10.0.0.1"));
    assert!(
        text.contains("\"10.0.0.1\"") && text.contains("prefix"),
        "{text}"
    );
    let text = build(Stack::builder().tun("fs0").sysctl("tcp_warp", "1"));
    assert!(text.contains("tcp_warp"), "{text}");
    let text = build(
        Stack::builder()
            .address("10.0.0.1/24")
            .offload(OffloadSet::NONE),
    );
    assert!(text.contains("tokio"), "{text}");
    let _context = runtime.enter();
    let text = build(Stack::builder().address("10.0.0.1/24"));
    assert!(text.contains(".tun("), "{text}");
}
