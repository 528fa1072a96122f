//! Tests of a stack on one end of a veth pair through an `AF_XDP` socket, with the Linux kernel at the
//! other, in network namespaces of their own. Needs root.

mod common;

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream as KernelTcp, UdpSocket as KernelUdp};
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::kernel::{OURS, exchange_with_stack, ip, run, veth, wait_for_addresses};
use common::{counter, in_namespace};
use fullsend::{PingSocket, Stack, TcpListener, TcpStream, UdpSocket};

const THEIRS: [&str; 2] = ["10.9.0.1", "fd09::1"];
const BYTES: usize = 8 << 20;

fn build() -> std::io::Result<Stack> {
    Stack::builder()
        .xdp("ve1")
        .address("10.9.0.2/24")
        .address("fd09::2/64")
        .build()
}

/// Drops the stack, and waits until its driver has ended.
async fn stop(stack: Stack) {
    stack.shutdown().await.unwrap();
    drop(stack);
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Returns whether an XDP program is attached to `ve1`.
fn has_program() -> bool {
    let show = Command::new("ip").args(["link", "show", "ve1"]).output();
    String::from_utf8_lossy(&show.unwrap().stdout).contains("xdp")
}

#[test]
fn the_kernel_and_the_stack_exchange_data_over_a_veth() {
    in_namespace(|| {
        veth();
        run(async {
            let stack = build().unwrap();
            wait_for_addresses(&stack).await;
            for ours in OURS {
                exchange_with_stack(&stack, ours, BYTES).await;
            }
            assert_eq!(counter(&stack, "TcpInErrs"), 0);
        });
    });
}

#[test]
fn computed_checksums_are_verified_and_accepted() {
    in_namespace(|| {
        veth();
        let off = Command::new("ethtool")
            .args(["-K", "ve0", "tx", "off"])
            .output();
        if !off.is_ok_and(|off| off.status.success()) {
            println!("skipped: needs ethtool");
            return;
        }
        run(async {
            let stack = build().unwrap();
            wait_for_addresses(&stack).await;
            exchange_with_stack(&stack, OURS[0], BYTES).await;
            assert_eq!(counter(&stack, "TcpInErrs"), 0);
        });
    });
}

#[test]
fn small_datagrams_and_pings_cross_in_both_directions() {
    in_namespace(|| {
        veth();
        run(async {
            let stack = build().unwrap();
            wait_for_addresses(&stack).await;
            for (ours, theirs) in OURS.into_iter().zip(THEIRS) {
                let ours: IpAddr = ours.parse().unwrap();
                let socket = UdpSocket::bind(&stack, (ours, 9)).unwrap();
                // In groups that fit into both receive buffers.
                let kernel = KernelUdp::bind((theirs, 0)).unwrap();
                kernel
                    .set_read_timeout(Some(Duration::from_secs(20)))
                    .unwrap();
                let echoes = thread::spawn(move || {
                    kernel.connect((ours, 9)).unwrap();
                    for group in 0..400u32 {
                        for i in 0..50 {
                            kernel.send(&(group * 50 + i).to_be_bytes()).unwrap();
                        }
                        for i in 0..50 {
                            let mut buf = [0; 8];
                            assert_eq!(kernel.recv(&mut buf).unwrap(), 4, "datagram {i}");
                            assert_eq!(buf[..4], (group * 50 + i).to_be_bytes());
                        }
                    }
                });
                let mut buf = [0; 64];
                for _ in 0..400 * 50 {
                    // The kernel's end gives up after 20 s, too.
                    let received =
                        tokio::time::timeout(Duration::from_secs(30), socket.recv_from(&mut buf));
                    let (len, from) = received.await.expect("no datagram was lost").unwrap();
                    socket.send_to(&buf[..len], from).await.unwrap();
                }
                echoes.join().unwrap();
                let ping = PingSocket::open(&stack).unwrap();
                ping.send_to(theirs.parse().unwrap(), 1, b"ping")
                    .await
                    .unwrap();
                let reply = tokio::time::timeout(Duration::from_secs(20), ping.recv());
                assert!(reply.await.unwrap().unwrap().error.is_none());
                let mut pings = Command::new("ping");
                pings.args(["-c", "3", "-i", "0.2", &ours.to_string()]);
                let pings = tokio::task::spawn_blocking(move || pings.output());
                assert!(pings.await.unwrap().unwrap().status.success(), "{ours}");
            }
        });
    });
}

#[test]
fn a_stack_can_be_started_again_and_leaves_no_program() {
    in_namespace(|| {
        veth();
        run(async {
            for _ in 0..3 {
                let stack = build().unwrap();
                assert!(has_program());
                let listener = TcpListener::bind(&stack, "10.9.0.2:80").unwrap();
                let client = thread::spawn(|| {
                    let to = "10.9.0.2:80".parse().unwrap();
                    KernelTcp::connect_timeout(&to, Duration::from_secs(10)).map(drop)
                });
                tokio::time::timeout(Duration::from_secs(30), listener.accept())
                    .await
                    .unwrap()
                    .unwrap();
                client.join().unwrap().unwrap();
                drop(listener);
                stop(stack).await;
                assert!(!has_program());
            }
        });
    });
}

#[test]
fn the_stack_stops_when_it_uses_an_interface_that_was_removed() {
    in_namespace(|| {
        veth();
        run(async {
            let stack = build().unwrap();
            ip("link delete ve1");
            let connect = TcpStream::connect(&stack, "10.9.0.1:80");
            let connect = tokio::time::timeout(Duration::from_secs(60), connect);
            let error = connect.await.unwrap().map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
            assert_eq!(stack.closed().await.kind(), ErrorKind::NetworkDown);
        });
    });
}

#[test]
fn errors_of_settings_name_the_value() {
    in_namespace(|| {
        run(async {
            assert_eq!(build().map(drop).unwrap_err().kind(), ErrorKind::NotFound);
            veth();
            let input = ErrorKind::InvalidInput;
            let fails = |builder: fullsend::Builder, kind, expected: &str| {
                let error = builder.build().map(drop).unwrap_err();
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.to_string().contains(expected), "{error}");
            };
            let xdp = |name| Stack::builder().xdp(name);
            fails(xdp("ve1").mtu(9000), input, "9000");
            fails(xdp("ve1").shards(2), input, "one shard");
            fails(xdp("lo"), input, "\"lo\"");
            let stack = build().unwrap();
            fails(xdp("ve1"), ErrorKind::ResourceBusy, "another AF_XDP socket");
            stop(stack).await;
            ip("link set ve0 mtu 9000");
            ip("link set ve1 mtu 9000");
            fails(xdp("ve1"), input, "mtu 3400");
            // Fits into a page, but the driver needs more of it.
            ip("link set ve1 mtu 3700");
            fails(xdp("ve1"), input, "mtu 3400");
            ip("link add vq0 numrxqueues 2 numtxqueues 2 type veth peer name vq1");
            fails(xdp("vq0"), input, "`ethtool -L vq0 rx 1`");
        });
    });
}
