//! The networks between a client and a server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::thread;
use std::time::Duration;

use fullsend::{Pair, Stack};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use crate::{kernel, stack};

/// Time limit of a program that must end: only a fault takes that long.
const LIMIT: Duration = Duration::from_secs(120);
/// The addresses of the kernel at a TUN device.
const TUN_KERNEL: [&str; 2] = ["10.9.0.1", "fd09::1"];
/// The addresses of the stack at a TUN device.
const TUN_STACK: [&str; 2] = ["10.9.0.2", "fd09::2"];

fn addrs(text: [&str; 2]) -> [IpAddr; 2] {
    text.map(|ip| ip.parse().expect("an address"))
}

/// Runs `test` with a client and a server on the kernel's loopback interface.
///
/// # Panics
/// If the test panics or does not end.
pub fn over_loopback(test: impl AsyncFnOnce(kernel::Net, kernel::Net)) {
    let ips = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    block_on(async {
        test(kernel::Net::new(ips), kernel::Net::new(ips)).await;
    });
}

/// Runs `test` with a client and a server on stacks of their own, joined by an in-process link.
///
/// # Panics
/// If the test panics or does not end.
pub fn over_link(test: impl AsyncFnOnce(stack::Net, stack::Net)) {
    block_on(async {
        let (a, b) = Stack::pair(&Pair::default()).unwrap();
        let client = stack::Net::new(a, addrs(["10.0.0.1", "fd00::1"]));
        let server = stack::Net::new(b, addrs(["10.0.0.2", "fd00::2"]));
        test(client, server).await;
    });
}

/// Runs `test` with a client on the kernel and a server on a stack, joined by a TUN device. Needs
/// root.
///
/// # Panics
/// If the test panics or does not end.
pub fn over_tun_to_stack(test: impl AsyncFnOnce(kernel::Net, stack::Net) + Send + 'static) {
    over_tun(async |kernel, stack| test(kernel, stack).await);
}

/// Runs `test` with a client on a stack and a server on the kernel, joined by a TUN device. Needs
/// root.
///
/// # Panics
/// If the test panics or does not end.
pub fn over_tun_to_kernel(test: impl AsyncFnOnce(stack::Net, kernel::Net) + Send + 'static) {
    over_tun(async |kernel, stack| test(stack, kernel).await);
}

fn over_tun(test: impl AsyncFnOnce(kernel::Net, stack::Net) + Send + 'static) {
    if !geteuid().is_root() {
        println!("skipped: needs root, for a network namespace and a TUN device");
        return;
    }
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip(&["link", "set", "lo", "up"]);
        block_on(async {
            let stack = Stack::builder()
                .tun("fs0")
                .address(&format!("{}/24", TUN_STACK[0]))
                .address(&format!("{}/64", TUN_STACK[1]))
                .kernel_address(&format!("{}/24", TUN_KERNEL[0]))
                .kernel_address(&format!("{}/64", TUN_KERNEL[1]))
                .build()
                .unwrap();
            // The kernel makes an IPv6 address local some time after it was added, and drops datagrams
            // to it until then.
            while !ip(&["-6", "route", "get", TUN_KERNEL[1]]).starts_with("local") {}
            let stack = stack::Net::new(stack, addrs(TUN_STACK));
            test(kernel::Net::new(addrs(TUN_KERNEL)), stack).await;
        });
    });
    thread.join().unwrap();
}

/// Runs `ip`, and returns its output.
fn ip(args: &[&str]) -> String {
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let ended = tokio::time::timeout(LIMIT, test).await;
        ended.expect("the program hangs");
    });
}
