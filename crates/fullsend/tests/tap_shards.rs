//! A stack of several shards on Ethernet, with the kernel as its neighbour: a TAP with several queues,
//! in a network namespace for each test. Needs root.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream as Kernel;
use std::thread;

use common::kernel::{ip, wait_for_addresses};
use common::{counter, in_namespace, pattern};
use fullsend::{Stack, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

const OURS: [&str; 2] = ["10.8.0.2", "fd08::2"];
const KERNELS: [&str; 2] = ["10.8.0.1", "fd08::1"];
const LEN: usize = 100_000;

fn socket_address(ip: &str, port: u16) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

/// Runs `test` with a stack of `shards` shards that has an address of each family, once these can be
/// used.
fn with_stack(shards: usize, test: fn(&Runtime, &Stack)) {
    in_namespace(move || {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let context = runtime.enter();
        let mut builder = Stack::builder().tap("fst0").shards(shards);
        for (ours, kernels) in OURS.into_iter().zip(KERNELS) {
            let bits = if ours.contains(':') { 64 } else { 24 };
            builder = builder
                .address(&format!("{ours}/{bits}"))
                .kernel_address(&format!("{kernels}/{bits}"));
        }
        let stack = builder.build().unwrap();
        runtime.block_on(wait_for_addresses(&stack));
        common::wait_for_local_route(KERNELS[1]);
        drop(context);
        test(&runtime, &stack);
    });
}

/// Sends data from the kernel through the stack's echo server and back.
fn exchange(stream: &mut Kernel, seed: u64) {
    let data = pattern(LEN, seed);
    let mut writer = stream.try_clone().unwrap();
    let sent = data.clone();
    let write = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut got = vec![0; data.len()];
    stream.read_exact(&mut got).unwrap();
    write.join().unwrap();
    assert_eq!(got, data);
}

fn serve_echo(runtime: &Runtime, stack: &Stack) {
    let listener = {
        let _context = runtime.enter();
        TcpListener::bind(stack, "[::]:7").unwrap()
    };
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    });
}

#[test]
fn the_kernels_connections_reach_all_shards() {
    with_stack(4, |runtime, stack| {
        serve_echo(runtime, stack);
        for ours in OURS {
            let connect = || Kernel::connect(socket_address(ours, 7)).unwrap();
            let mut streams: Vec<_> = (0..16).map(|_| connect()).collect();
            for (seed, stream) in (1..).zip(&mut streams) {
                exchange(stream, seed);
            }
        }
        // 32 flows do not all belong to one shard.
        assert!(counter(stack, "SoftnetReceivedRps") > 0);
        assert_eq!(counter(stack, "NeighUnresolvedDiscards"), 0);
    });
}

#[test]
fn connections_of_all_shards_reach_the_kernel() {
    with_stack(3, |runtime, stack| {
        for kernels in KERNELS {
            let listener = std::net::TcpListener::bind(socket_address(kernels, 0)).unwrap();
            let to = listener.local_addr().unwrap();
            let server = thread::spawn(move || {
                for _ in 0..9 {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut data = Vec::new();
                    stream.read_to_end(&mut data).unwrap();
                    stream.write_all(&data).unwrap();
                }
            });
            // The stack opens them on its shards in turn.
            for seed in 1..=9 {
                runtime.block_on(async {
                    let mut stream = TcpStream::connect(stack, to).await.unwrap();
                    let data = pattern(LEN, seed);
                    stream.write_all(&data).await.unwrap();
                    stream.shutdown().await.unwrap();
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).await.unwrap();
                    assert_eq!(got, data);
                });
            }
            server.join().unwrap();
        }
    });
}

#[test]
fn a_missing_neighbour_is_unreachable_from_all_shards() {
    with_stack(4, |runtime, stack| {
        runtime.block_on(async {
            let mut attempts = Vec::new();
            for to in ["10.8.0.77:80", "[fd08::77]:80"] {
                for _ in 0..4 {
                    let stack = stack.clone();
                    attempts.push(tokio::spawn(async move {
                        TcpStream::connect(&stack, to).await.map(drop)
                    }));
                }
            }
            for attempt in attempts {
                let error = attempt.await.unwrap().unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable);
            }
        });
    });
}

#[test]
fn a_new_hardware_address_of_the_kernel_is_used_by_all_shards() {
    with_stack(4, |runtime, stack| {
        serve_echo(runtime, stack);
        for ours in OURS {
            let connect = || Kernel::connect(socket_address(ours, 7)).unwrap();
            let mut streams: Vec<_> = (0..8).map(|_| connect()).collect();
            for round in 0..2 {
                for (seed, stream) in (1..).zip(&mut streams) {
                    exchange(stream, seed);
                }
                if round == 0 {
                    let last = if ours.contains(':') { 6 } else { 4 };
                    ip(&format!("link set fst0 address 02:00:00:00:00:{last:02}"));
                    // The next packet causes a solicitation from the new address.
                    ip(&format!("neigh flush to {ours}"));
                }
            }
        }
    });
}
