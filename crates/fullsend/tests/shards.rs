//! Tests of stacks with several shards: the flows of each, and what all of them share.

mod common;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as Kernel};
use std::thread;
use std::time::Duration;

use common::{counter, in_namespace, pattern, paused};
use fullsend::{Pair, Stack, TcpListener, TcpStream, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Handle, Runtime};

const SHARDS: usize = 4;
const FLOWS: usize = 64;

fn pair() -> (Stack, Stack) {
    Stack::pair(&Pair {
        shards: SHARDS,
        seed: Some(1),
        ..Pair::default()
    })
    .unwrap()
}

/// Echoes the data of every connection that the listener accepts.
async fn echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await
        });
    }
}

async fn exchange(stream: &mut TcpStream, seed: u64) {
    let data = pattern(100_000, seed);
    let mut got = vec![0; data.len()];
    let (mut reader, mut writer) = stream.split();
    let (wrote, read) = tokio::join!(writer.write_all(&data), reader.read_exact(&mut got));
    wrote.unwrap();
    read.unwrap();
    assert!(got == data, "wrong data");
}

#[test]
fn connections_and_counters_of_all_shards_are_those_of_the_stack() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:0").unwrap();
        let to = listener.local_addr().unwrap();
        tokio::spawn(echo(listener));
        let mut clients = Vec::new();
        for seed in 0..FLOWS {
            let mut client = TcpStream::connect(&a, to).await.unwrap();
            exchange(&mut client, seed as u64).await;
            clients.push(client);
        }
        let ports: BTreeSet<_> = clients
            .iter()
            .map(|client| client.local_addr().unwrap())
            .collect();
        assert_eq!(ports.len(), FLOWS, "two connections have one 4-tuple");
        assert_eq!((a.shard_count(), b.shard_count()), (SHARDS, SHARDS));
        assert!(a.shard(SHARDS - 1).is_some() && a.shard(SHARDS).is_none());
        assert_eq!(counter(&a, "TcpActiveOpens"), FLOWS as u64);
        assert_eq!(counter(&b, "TcpPassiveOpens"), FLOWS as u64);

        assert_eq!(counter(&a, "SoftnetDropped"), 0);
        assert_eq!(a.sockstat().inuse, FLOWS);
        // A listener on each shard, too.
        assert_eq!(b.sockstat().inuse, FLOWS + SHARDS);
        drop(clients);
        a.shutdown().await.unwrap();
        let error = TcpStream::connect(&a, to).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        assert_eq!(b.close_reason().map(|error| error.kind()), None);
    });
}

#[test]
fn a_handle_of_one_shard_opens_and_accepts_there_only() {
    paused(async {
        let (a, b) = pair();
        for index in 0..SHARDS {
            let (client_shard, server_shard) = (a.shard(index).unwrap(), b.shard(index).unwrap());
            let listener = TcpListener::bind(&server_shard, "10.0.0.2:80").unwrap();
            // The same address is free on the other shards, but not for all of them.
            let error = TcpListener::bind(&b, "10.0.0.2:80").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            let next = b.shard((index + 1) % SHARDS).unwrap();
            drop(TcpListener::bind(&next, "10.0.0.2:80").unwrap());
            for _ in 0..8 {
                let client = TcpStream::connect(&client_shard, "10.0.0.2:80")
                    .await
                    .unwrap();
                let (_server, from) = listener.accept().await.unwrap();
                assert_eq!(from, client.local_addr().unwrap());
            }
            let elsewhere = a.shard((index + 1) % SHARDS).unwrap();
            let error = TcpStream::connect(&elsewhere, "10.0.0.2:80")
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn a_local_port_determines_the_shard() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "[fd00::2]:80").unwrap();
        let mut refused = 0;
        for port in 1000..1032 {
            let local = SocketAddr::new("fd00::1".parse().unwrap(), port);
            let client = TcpStream::connect_from(&a, local, "[fd00::2]:80")
                .await
                .unwrap();
            let (_server, from) = listener.accept().await.unwrap();
            assert_eq!((from, client.local_addr().unwrap()), (local, local));
            let again = TcpStream::connect_from(&a, local, "[fd00::2]:80").await;
            assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
            let any: SocketAddr = ("::".parse::<std::net::IpAddr>().unwrap(), port).into();
            let first = a.shard(0).unwrap();
            match TcpStream::connect_from(&first, any, "[fd00::2]:81").await {
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    assert!(error.to_string().contains("another shard"), "{error}");
                    refused += 1;
                }
                other => assert_eq!(other.unwrap_err().kind(), ErrorKind::ConnectionRefused),
            }
        }
        assert!((16..32).contains(&refused), "{refused}");
    });
}

#[test]
fn every_ephemeral_port_is_used() {
    paused(async {
        let (a, b) = pair();
        a.set_sysctl("ip_local_port_range", "40000 40099").unwrap();
        let listener = TcpListener::bind(&b, "10.0.0.2:80").unwrap();
        tokio::spawn(echo(listener));
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.push(TcpStream::connect(&a, "10.0.0.2:80").await.unwrap());
        }
        let ports: BTreeSet<_> = clients
            .iter()
            .map(|c| c.local_addr().unwrap().port())
            .collect();
        assert!(ports.into_iter().eq(40_000..=40_099));
        let error = TcpStream::connect(&a, "10.0.0.2:80").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    });
}

#[test]
fn a_waiting_listener_is_woken_by_every_shard() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:80").unwrap();
        for index in (0..SHARDS).chain((0..SHARDS).rev()) {
            let shard = a.shard(index).unwrap();
            // The listener waits before the connection arrives.
            let connect = async {
                tokio::task::yield_now().await;
                TcpStream::connect(&shard, "10.0.0.2:80").await.unwrap()
            };
            let (client, accepted) = tokio::join!(connect, listener.accept());
            let (server, from) = accepted.unwrap();
            assert_eq!(from, client.local_addr().unwrap());
            assert_eq!((client.shard(), server.shard()), (index, index));
        }
    });
}

#[test]
fn limits_are_shared_and_shown_as_a_whole() {
    paused(async {
        let (a, _b) = pair();
        a.set_sysctl("tcp_max_tw_buckets", "100").unwrap();
        assert_eq!(a.sysctl("net.ipv4.tcp_max_tw_buckets").unwrap(), "100");
        assert!(
            a.sysctls()
                .contains(&("net.ipv4.tcp_max_tw_buckets", "100".to_owned()))
        );
        let error = a.set_sysctl("tcp_max_tw_buckets", "many").unwrap_err();
        assert!(error.to_string().contains("many"), "{error}");
        assert_eq!(a.sysctl("tcp_max_tw_buckets").unwrap(), "100");
    });
}

/// No shard's connections wait behind those of another.
#[test]
fn a_listener_accepts_from_the_shards_in_turn() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:80").unwrap();
        let mut clients = Vec::new();
        for index in 0..SHARDS {
            for _ in 0..3 {
                let shard = a.shard(index).unwrap();
                clients.push(TcpStream::connect(&shard, "10.0.0.2:80").await.unwrap());
            }
        }
        for _ in 0..3 {
            let mut shards = BTreeSet::new();
            for _ in 0..SHARDS {
                shards.insert(listener.accept().await.unwrap().0.shard());
            }
            assert_eq!(shards.len(), SHARDS);
        }
    });
}

#[test]
fn a_token_bucket_needs_one_shard() {
    paused(async {
        let config = Pair {
            qdisc: "tbf rate 100mbit burst 64kb".to_owned(),
            shards: 2,
            ..Pair::default()
        };
        let error = Stack::pair(&config).err().unwrap();
        assert!(error.to_string().contains("token bucket"), "{error}");
    });
}

#[test]
fn shutdown_waits_for_the_data_of_every_shard() {
    paused(async {
        let (a, b) = pair();
        let listener = TcpListener::bind(&b, "10.0.0.2:80").unwrap();
        let data = pattern(20_000, 3);
        let mut servers = Vec::new();
        for _ in 0..2 * SHARDS {
            let mut client = TcpStream::connect(&a, "10.0.0.2:80").await.unwrap();
            servers.push(listener.accept().await.unwrap().0);
            client.write_all(&data).await.unwrap();
        }
        // Two wait at once: both end when the first has stopped the stack.
        let (first, second) = tokio::join!(a.shutdown(), a.shutdown());
        first.unwrap();
        second.unwrap();
        for mut server in servers {
            let mut got = vec![0; data.len()];
            server.read_exact(&mut got).await.unwrap();
            assert!(got == data, "wrong data");
        }
        assert_eq!(a.closed().await.kind(), ErrorKind::ConnectionAborted);
    });
}

#[test]
fn udp_works_beside_shards() {
    paused(async {
        let (a, b) = pair();
        let server = UdpSocket::bind(&b.shard(2).unwrap(), "10.0.0.2:53").unwrap();
        for _ in 0..20 {
            let client = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
            client.send_to(&[7; 5000], "10.0.0.2:53").await.unwrap();
            let mut buf = [0; 6000];
            let (len, from) = server.recv_from(&mut buf).await.unwrap();
            assert_eq!((len, from), (5000, client.local_addr().unwrap()));
        }
    });
}

#[test]
fn wrong_numbers_of_shards_and_queues_are_rejected() {
    paused(async {
        for shards in [0, 65, usize::MAX] {
            let error = Stack::pair(&Pair {
                shards,
                ..Pair::default()
            });
            let text = error.err().unwrap().to_string();
            assert!(
                text.contains(&shards.to_string()) && text.contains("64"),
                "{text}"
            );
        }
    });
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

fn over_tun(builder: fullsend::Builder) -> Stack {
    builder
        .tun("fs0")
        .address("10.9.0.2/24")
        .kernel_address("10.9.0.1/24")
        .build()
        .unwrap()
}

/// Sends data from a kernel socket through an echo server and back.
fn kernel_exchange(stream: &mut Kernel, seed: u64) {
    let data = pattern(200_000, seed);
    let mut writer = stream.try_clone().unwrap();
    let sent = data.clone();
    let write = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut got = vec![0; data.len()];
    stream.read_exact(&mut got).unwrap();
    write.join().unwrap();
    assert!(got == data, "wrong data");
}

/// The kernel forgets after three seconds which queue a flow uses, and then delivers its packets to
/// another one: they are handed over.
#[test]
fn flows_with_the_kernel_survive_a_change_of_queue() {
    in_namespace(|| {
        let runtime = runtime(2);
        let (stack, mut from_kernel, mut to_kernel) = runtime.block_on(async {
            let stack = over_tun(Stack::builder().shards(SHARDS));
            let listener = TcpListener::bind(&stack, "10.9.0.2:80").unwrap();
            tokio::spawn(echo(listener));
            let kernel = KernelListener::bind("10.9.0.1:80").unwrap();
            thread::spawn(move || {
                for stream in kernel.incoming().flatten() {
                    thread::spawn(move || {
                        let (mut reader, mut writer) = (&stream, &stream);
                        let _ = std::io::copy(&mut reader, &mut writer);
                    });
                }
            });
            let connect = |_| Kernel::connect("10.9.0.2:80").unwrap();
            let from_kernel: Vec<_> = (0..16).map(connect).collect();
            let mut to_kernel = Vec::new();
            for _ in 0..16 {
                to_kernel.push(TcpStream::connect(&stack, "10.9.0.1:80").await.unwrap());
            }
            (stack, from_kernel, to_kernel)
        });
        for round in 0..2 {
            if round > 0 {
                thread::sleep(Duration::from_secs(4));
            }
            for (seed, stream) in from_kernel.iter_mut().enumerate() {
                kernel_exchange(stream, seed as u64);
            }
            runtime.block_on(async {
                for (seed, stream) in to_kernel.iter_mut().enumerate() {
                    exchange(stream, seed as u64).await;
                }
            });
        }
        assert_eq!(counter(&stack, "SoftnetDropped"), 0);
        assert_eq!(counter(&stack, "TcpOutRsts"), 0);
        // The queue of a SYN from the kernel is that of the kernel's hash, and mostly a wrong one.
        assert!(counter(&stack, "SoftnetReceivedRps") > 0);
    });
}

/// A runtime for each shard, as for a server with one thread for each processor.
#[test]
fn each_shard_runs_on_its_own_runtime() {
    in_namespace(|| {
        let (handles, threads): (Vec<Handle>, Vec<_>) = (0..2)
            .map(|_| {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                let handle = runtime.handle().clone();
                let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
                let thread = thread::spawn(move || runtime.block_on(stopped));
                (handle, (stop, thread))
            })
            .unzip();
        let stack = {
            let _context = handles[0].enter();
            over_tun(Stack::builder().shards_on(handles.clone()))
        };
        for (index, handle) in handles.iter().enumerate() {
            let shard = stack.shard(index).unwrap();
            handle.spawn(echo(TcpListener::bind(&shard, "10.9.0.2:80").unwrap()));
        }
        let connect = |_| Kernel::connect("10.9.0.2:80").unwrap();
        let mut clients: Vec<_> = (0..16).map(connect).collect();
        for (seed, client) in clients.iter_mut().enumerate() {
            kernel_exchange(client, seed as u64);
        }
        assert_eq!(counter(&stack, "TcpPassiveOpens"), 16);
        let counters = counter(&stack, "TcpInSegs");
        let mut reasons = Vec::new();
        for (stop, thread) in threads {
            drop(stop);
            let _ = thread.join().unwrap();
            // The end of one runtime ends the stack.
            reasons.push(stack.close_reason().map(|error| error.kind()));
        }
        assert_eq!(reasons, [Some(ErrorKind::ConnectionAborted); 2]);
        // The counters of all shards remain, and so do the shards.
        assert!(counter(&stack, "TcpInSegs") >= counters);
        let error = TcpListener::bind(&stack.shard(1).unwrap(), "10.9.0.2:81").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    });
}
