//! Tests of a stack on one end of a veth pair, with the Linux kernel at the other, in network
//! namespaces of their own. Needs root.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream as Kernel};
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::{counter, in_namespace, pattern};
use fullsend::{AddressState, Stack, TcpListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const OURS: [&str; 2] = ["10.9.0.2", "fd09::2"];
const BYTES: usize = 24 << 20;

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}

/// Makes a veth pair: the kernel has addresses at `ve0`, and none at `ve1`.
fn veth() {
    ip("link add ve0 type veth peer name ve1");
    ip("address add 10.9.0.1/24 dev ve0");
    ip("address add fd09::1/64 dev ve0 nodad");
    for end in ["ve0", "ve1"] {
        ip(&format!("link set {end} up"));
    }
}

fn build() -> std::io::Result<Stack> {
    Stack::builder()
        .packet_socket("ve1")
        .address("10.9.0.2/24")
        .address("fd09::2/64")
        .build()
}

fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(test);
}

/// Sends `data` and a FIN on a kernel socket, and returns all that it receives.
fn exchange(mut stream: Kernel, data: &[u8]) -> Vec<u8> {
    let mut read = stream.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        read.read_to_end(&mut got).unwrap();
        got
    });
    stream.write_all(data).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    reader.join().unwrap()
}

#[test]
fn the_kernel_and_the_stack_exchange_super_segments_over_a_veth() {
    in_namespace(|| {
        veth();
        run(async {
            let stack = build().unwrap();
            let is_preferred = |stack: &Stack| {
                let all = stack.addresses();
                all.iter().all(|own| own.state == AddressState::Preferred)
            };
            while !is_preferred(&stack) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            for ours in OURS {
                let listener =
                    TcpListener::bind(&stack, (ours.parse::<IpAddr>().unwrap(), 80)).unwrap();
                let (there, back) = (pattern(BYTES, 1), pattern(BYTES, 2));
                let (sent, expected) = (there.clone(), back.clone());
                let kernel = thread::spawn(move || {
                    let stream = Kernel::connect((ours, 80)).unwrap();
                    assert!(exchange(stream, &sent) == expected, "{ours}: us to kernel");
                });
                let (mut stream, _) = listener.accept().await.unwrap();
                let (mut read, mut write) = stream.split();
                let send = async {
                    write.write_all(&back).await.unwrap();
                    write.shutdown().await.unwrap();
                };
                let mut got = Vec::new();
                let (received, ()) = tokio::join!(read.read_to_end(&mut got), send);
                received.unwrap();
                assert!(got == there, "{ours}: kernel to us");
                stream.flushed().await.unwrap();
                kernel.join().unwrap();
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
