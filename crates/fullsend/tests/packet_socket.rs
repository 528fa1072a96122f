//! Tests of a stack on one end of a veth pair, with the Linux kernel at the other, in network
//! namespaces of their own. Needs root.

mod common;

use std::io::ErrorKind;
use std::net::TcpStream as Kernel;
use std::thread;
use std::time::Duration;

use common::kernel::{OURS, exchange_with_stack, ip, run, veth, wait_for_addresses};
use common::{counter, in_namespace};
use fullsend::{Stack, TcpListener};

const BYTES: usize = 24 << 20;

fn build() -> std::io::Result<Stack> {
    Stack::builder()
        .packet_socket("ve1")
        .address("10.9.0.2/24")
        .address("fd09::2/64")
        .build()
}

#[test]
fn the_kernel_and_the_stack_exchange_super_segments_over_a_veth() {
    in_namespace(|| {
        veth();
        run(async {
            let stack = build().unwrap();
            wait_for_addresses(&stack).await;
            for ours in OURS {
                exchange_with_stack(&stack, ours, BYTES).await;
            }
            // Packets of 1448 bytes would be twenty times as many.
            for name in ["IpOutRequests", "IpInReceives"] {
                assert!(counter(&stack, name) < 20_000, "{name}");
            }
            assert_eq!(counter(&stack, "TcpInErrs"), 0);
        });
    });
}

#[test]
fn the_stack_stops_when_its_interface_is_removed() {
    in_namespace(|| {
        veth();
        run(async {
            let stack = build().unwrap();
            ip("link delete ve1");
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
            for (builder, expected) in [
                (Stack::builder().packet_socket("ve1").mtu(9000), "9000"),
                (Stack::builder().packet_socket("ve1").shards(2), "one shard"),
                (Stack::builder().packet_socket("lo"), "\"lo\""),
            ] {
                let error = builder.build().map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains(expected), "{error}");
            }
        });
    });
}

#[test]
fn the_kernel_reaches_a_stack_that_was_started_again() {
    in_namespace(|| {
        veth();
        run(async {
            for _ in 0..2 {
                let stack = build().unwrap();
                let listener = TcpListener::bind(&stack, "10.9.0.2:80").unwrap();
                let client = thread::spawn(|| {
                    let to = "10.9.0.2:80".parse().unwrap();
                    // The kernel requests an address in its neighbour table anew after 15 to 45 s.
                    Kernel::connect_timeout(&to, Duration::from_secs(10)).map(drop)
                });
                tokio::time::timeout(Duration::from_secs(30), listener.accept())
                    .await
                    .unwrap()
                    .unwrap();
                client.join().unwrap().unwrap();
            }
        });
    });
}
