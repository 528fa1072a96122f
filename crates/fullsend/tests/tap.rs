//! Tests against the Linux kernel over TAP, in a network namespace for each test: ARP, Neighbor
//! Discovery with duplicate address detection, ICMP, fragments. Needs root.

mod common;

use std::io::ErrorKind;
use std::net::UdpSocket as Kernel;
use std::process::Command;
use std::time::Duration;

use common::{counter, in_namespace, shards};
use fullsend::{AddressState, Stack, UdpSocket};
use fullsend_device::{Device, Tun};
use fullsend_offload::Pool;
use tokio::runtime::Builder;

const OURS: [&str; 2] = ["10.8.0.2", "fd08::2"];
const KERNELS: [&str; 2] = ["10.8.0.1", "fd08::1"];

fn run(program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

/// Runs `test` with a stack on a TAP that has an address of each family.
fn with_stack(test: fn(&Stack)) {
    in_namespace(move || {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _context = runtime.enter();
        let mut builder = Stack::builder().tap("fst0").shards(shards());
        for (ours, kernels) in OURS.into_iter().zip(KERNELS) {
            let bits = if ours.contains(':') { 64 } else { 24 };
            builder = builder
                .address(&format!("{ours}/{bits}"))
                .kernel_address(&format!("{kernels}/{bits}"));
        }
        let stack = builder.build().unwrap();
        test(&stack);
    });
}

#[test]
fn pings_small_and_large_are_answered() {
    if Command::new("ping").arg("-V").output().is_err() {
        println!("skipped: needs ping (iputils-ping)");
        return;
    }
    with_stack(|stack| {
        for to in OURS {
            // Both sides first run duplicate address detection for their IPv6 addresses.
            assert!(run("ping", &["-c", "1", "-i", "0.1", "-w", "9", to]).0);
            for size in ["56", "1472", "5000", "60000"] {
                let args = ["-c", "5", "-i", "0.02", "-W", "5", "-s", size, to];
                let (_, text) = run("ping", &args);
                assert!(text.contains(" 0% packet loss"), "{text}");
            }
        }
        for name in [
            "IcmpInEchos",
            "Icmp6InEchos",
            "IpReasmOKs",
            "Ip6ReasmOKs",
            "IpFragOKs",
        ] {
            assert!(counter(stack, name) >= 10, "{name}");
        }
        for name in [
            "IcmpInErrors",
            "Icmp6InErrors",
            "IpReasmFails",
            "Ip6ReasmFails",
        ] {
            assert_eq!(counter(stack, name), 0, "{name}");
        }
        // The neighbor entry is learned, not configured.
        for to in OURS {
            let (_, text) = run("ip", &["neigh", "show", to]);
            assert!(text.contains("lladdr"), "{text}");
        }
    });
}

#[test]
fn a_port_without_a_socket_is_refused() {
    with_stack(|_| {
        for (ours, kernels) in OURS.into_iter().zip(KERNELS) {
            let socket = Kernel::bind((kernels, 0)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(100)))
                .unwrap();
            socket.connect((ours, 9)).unwrap();
            // Addresses are not answered for until duplicate address detection has ended.
            let refused = (0..50).any(|_| {
                let sent = socket.send(b"anybody?").map(drop);
                let answer = sent.and_then(|()| socket.recv(&mut [0; 9]).map(drop));
                answer.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
            });
            assert!(refused, "{ours}");
        }
    });
}

#[test]
fn datagrams_larger_than_the_mtu_cross_both_ways() {
    with_stack(|stack| {
        let any = UdpSocket::bind(stack, "[::]:7").unwrap();
        tokio::spawn(async move {
            let mut buf = vec![0; 65_536];
            while let Ok((len, from)) = any.recv_from(&mut buf).await {
                let _ = any.send_to(&buf[..len], from).await;
            }
        });
        for (ours, kernels) in OURS.into_iter().zip(KERNELS) {
            let socket = Kernel::bind((kernels, 0)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            // The largest datagram of each family.
            let most = if ours.contains(':') { 65_527 } else { 65_507 };
            for len in [1, 1400, 1500, 9000, 65_000, most] {
                let data: Vec<u8> = (0..len).map(|i: u32| (i % 251) as u8).collect();
                let mut echo = vec![0; 65_536];
                let crossed = (0..25).any(|_| {
                    socket.send_to(&data, (ours, 7)).unwrap();
                    socket.recv(&mut echo).is_ok_and(|n| echo[..n] == data)
                });
                assert!(crossed, "{len} bytes to {ours}");
            }
        }
    });
}

/// Waits until the output of `ip -6 address` contains `text`, and returns it.
fn kernel_addresses_with(text: &str) -> String {
    loop {
        let (_, shown) = run("ip", &["-6", "address", "show", "dev", "fst0"]);
        if shown.contains(text) {
            return shown;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the end of duplicate address detection and returns the state of the stack's only IPv6
/// address.
fn detected(stack: &Stack) -> AddressState {
    loop {
        let addresses = stack.addresses();
        let [own] = &addresses[..] else {
            panic!("{addresses:?}");
        };
        if own.state != AddressState::Tentative {
            return own.state;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// RFC 4862 5.4 in both directions. First the kernel has the address, and the stack, without
/// another address, receives only its answer to all nodes. Then the kernel probes an address of the
/// stack.
#[test]
fn duplicates_are_detected_by_the_stack_and_by_the_kernel() {
    in_namespace(|| {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _context = runtime.enter();
        for (ours, state) in [
            ("fd08::1/64", AddressState::Duplicate),
            ("fd08::2/64", AddressState::Preferred),
        ] {
            let pools: Vec<_> = (0..shards()).map(|_| Pool::new(1 << 20)).collect();
            let taps = Tun::tap("fst0").open_queues(&pools).unwrap();
            let taps = taps.into_iter().map(|tap| Box::new(tap) as Box<dyn Device>);
            let set_up: [&[&str]; 2] = [
                &["link", "set", "fst0", "up"],
                &["address", "add", "fd08::1/64", "dev", "fst0", "nodad"],
            ];
            for args in set_up {
                assert!(run("ip", args).0, "{args:?}");
            }
            // The kernel answers once it has a link-local address: the link is ready then.
            kernel_addresses_with("fe80");
            common::wait_for_local_route("fd08::1");
            let stack = Stack::builder().device_queues(taps.collect()).address(ours);
            let stack = stack.shards(shards()).build().unwrap();
            assert_eq!(detected(&stack), state, "{ours}");
            let addr = ours.replace("/64", "");
            let bound = UdpSocket::bind(&stack, &*format!("[{addr}]:9"));
            if state == AddressState::Duplicate {
                assert_eq!(counter(&stack, "Ip6DadDuplicates"), 1);
                let error = bound.err().unwrap();
                assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
                assert!(error.to_string().contains("another host"), "{error}");
            } else {
                bound.unwrap();
                assert!(run("ip", &["address", "add", ours, "dev", "fst0"]).0);
                let shown = kernel_addresses_with("dadfailed");
                assert!(shown.contains("fd08::2/64"), "{shown}");
            }
            drop(stack);
            while run("ip", &["link", "show", "fst0"]).0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}
