//! UDP with the Linux kernel as peer over TAP, in network namespaces of their own: connected sockets,
//! ICMP errors, and multicast with IGMP and MLD. Needs root.

mod common;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as Kernel};
use std::process::Command;
use std::time::Duration;

use common::{counter, in_namespace};
use fullsend::{AddressState, Stack, UdpSocket};
use tokio::runtime::{Builder, Runtime};

const OURS: [&str; 2] = ["10.7.0.2", "fd07::2"];
const KERNELS: [&str; 2] = ["10.7.0.1", "fd07::1"];
const GROUPS: [&str; 2] = ["239.7.7.7", "ff05::7777"];
const LIMIT: Duration = Duration::from_secs(20);

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Calls `check` until it returns a value, for about 20 s.
fn wait_for<R>(what: &str, mut check: impl FnMut() -> Option<R>) -> R {
    for _ in 0..2000 {
        if let Some(value) = check() {
            return value;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}");
}

/// Runs `test` with a stack on a TAP; with `kernel`, the kernel's side has addresses, too.
fn with_stack(kernel: bool, test: fn(&Runtime, &Stack)) {
    in_namespace(move || {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let context = runtime.enter();
        let mut builder = Stack::builder().tap("fst0");
        for (ours, kernels) in OURS.into_iter().zip(KERNELS) {
            let bits = if ours.contains(':') { 64 } else { 24 };
            builder = builder.address(&format!("{ours}/{bits}"));
            if kernel {
                builder = builder.kernel_address(&format!("{kernels}/{bits}"));
            }
        }
        let stack = builder.build().unwrap();
        if kernel {
            // Both sides first run duplicate address detection.
            wait_for("addresses", || {
                let mut own = stack.addresses().into_iter();
                own.all(|own| own.state == AddressState::Preferred)
                    .then_some(())
            });
            wait_for("the kernel's addresses", || {
                let shown = run("ip", &["address", "show", "dev", "fst0", "tentative"]);
                (!shown.contains("fd07::1")).then_some(())
            });
            common::wait_for_local_route("fd07::1");
        }
        drop(context);
        test(&runtime, &stack);
    });
}

fn kernel_socket(ip: &str, port: u16) -> Kernel {
    let socket = Kernel::bind((ip, port)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

#[test]
fn a_connected_socket_ignores_other_sockets_of_the_kernel() {
    with_stack(true, |runtime, stack| {
        for (ours, kernels) in OURS.into_iter().zip(KERNELS) {
            let [peer, other] = [kernel_socket(kernels, 0), kernel_socket(kernels, 0)];
            let socket = UdpSocket::bind(stack, (ours.parse::<IpAddr>().unwrap(), 0)).unwrap();
            let local = socket.local_addr().unwrap();
            runtime.block_on(async {
                socket.connect(peer.local_addr().unwrap()).await.unwrap();
                other.send_to(b"other", local).unwrap();
                peer.send_to(b"peer", local).unwrap();
                let mut buf = [0; 8];
                assert_eq!(socket.recv(&mut buf).await.unwrap(), 4);
                assert_eq!(&buf[..4], b"peer");
                // The stack refused the other datagram, as no socket is bound to its flow.
                other.connect(local).unwrap();
                socket.send(b"answer").await.unwrap();
                assert_eq!(peer.recv(&mut buf).unwrap(), 6);
                other.send(b"other").unwrap();
                let refused = other.recv(&mut buf).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            });
        }
    });
}

#[test]
fn a_port_that_the_kernel_refuses_fails_the_next_call() {
    with_stack(true, |runtime, stack| {
        for (ours, kernels) in OURS.into_iter().zip(KERNELS) {
            let closed = kernel_socket(kernels, 0).local_addr().unwrap();
            let socket = UdpSocket::bind(stack, (ours.parse::<IpAddr>().unwrap(), 0)).unwrap();
            runtime.block_on(async {
                socket.connect(closed).await.unwrap();
                socket.send(b"x").await.unwrap();
                let refused = socket.recv(&mut [0; 4]).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
                socket.send(b"x").await.unwrap();
                socket.readable().await.unwrap();
                let refused = socket.send(b"x").await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            });
        }
    });
}

fn join(socket: &UdpSocket, group: &str) {
    match group.parse().unwrap() {
        IpAddr::V4(group) => socket.join_multicast_v4(group, Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(group) => socket.join_multicast_v6(&group, 0),
    }
    .unwrap();
}

#[test]
fn multicast_crosses_both_ways() {
    with_stack(true, |runtime, stack| {
        for family in ["-4", "-6"] {
            let groups = if family == "-4" {
                "224.0.0.0/4"
            } else {
                "ff05::/16"
            };
            let mut args = vec![family, "route", "add", groups, "dev", "fst0"];
            if family == "-6" {
                args.splice(2..3, ["replace", "multicast"]);
                args.extend(["table", "local"]);
            }
            run("ip", &args);
        }
        let index = nix::net::if_::if_nametoindex("fst0").unwrap();
        for (group, any) in GROUPS.into_iter().zip(["0.0.0.0", "::"]) {
            let kernel = kernel_socket(any, 5000);
            match group.parse().unwrap() {
                IpAddr::V4(group) => kernel.join_multicast_v4(&group, &KERNELS[0].parse().unwrap()),
                IpAddr::V6(group) => kernel.join_multicast_v6(&group, index),
            }
            .unwrap();
            let any: IpAddr = any.parse().unwrap();
            let ours = UdpSocket::bind(stack, (any, 5000)).unwrap();
            join(&ours, group);
            let to = SocketAddr::new(group.parse().unwrap(), 5000);
            runtime.block_on(async {
                ours.set_multicast_loop_v4(false).unwrap();
                ours.set_multicast_loop_v6(false).unwrap();
                ours.send_to(b"ours", to).await.unwrap();
                let mut buf = [0; 16];
                let (len, from) = kernel.recv_from(&mut buf).unwrap();
                assert_eq!(&buf[..len], b"ours");
                assert!(OURS.contains(&from.ip().to_string().as_str()), "{from}");
                kernel.send_to(b"kernels", to).unwrap();
                let (len, _, destination) = ours.recv_from_to(&mut buf).await.unwrap();
                assert_eq!((&buf[..len], destination), (&b"kernels"[..], to));
            });
        }
    });
}

/// Enslaves the TAP to a bridge that listens to IGMP and MLD, of these versions, and queries every
/// second. By default it would repeat a query after 31 s, and its first MLD query is lost while its
/// own address is tentative.
fn add_bridge(igmp: &str, mld: &str) {
    run(
        "ip",
        &[
            "link",
            "add",
            "br0",
            "type",
            "bridge",
            "mcast_snooping",
            "1",
        ],
    );
    let versions = ["mcast_igmp_version", igmp, "mcast_mld_version", mld];
    let set = ["link", "set", "br0", "type", "bridge"];
    run("ip", &[&set[..], &versions].concat());
    run("ip", &["link", "set", "fst0", "master", "br0"]);
    run("ip", &["address", "add", "10.7.0.1/24", "dev", "br0"]);
    run("ip", &["link", "set", "br0", "up"]);
    // In units of 10 ms.
    let intervals = [
        "mcast_query_interval",
        "100",
        "mcast_startup_query_interval",
        "100",
        "mcast_query_response_interval",
        "20",
    ];
    run("ip", &[&set[..], &intervals].concat());
    run("ip", &[&set[..], &["mcast_querier", "1"]].concat());
}

fn shows_membership(group: &str) -> bool {
    let shown = run("bridge", &["mdb", "show"]);
    let of_group = |line: &&str| line.contains("fst0") && line.contains(group);
    shown.lines().any(|line| of_group(&line))
}

fn bridge_sees_groups(runtime: &Runtime, stack: &Stack, versions: [&str; 2]) {
    let _context = runtime.enter();
    add_bridge(versions[0], versions[1]);
    let socket = UdpSocket::bind(stack, (Ipv6Addr::UNSPECIFIED, 5000)).unwrap();
    for group in GROUPS {
        assert!(!shows_membership(group));
        join(&socket, group);
        wait_for(group, || shows_membership(group).then_some(()));
    }
    // The bridge repeats its queries, and the stack answers them. A new bridge has forgotten the
    // groups, so that it learns them from the answers only.
    run("ip", &["link", "delete", "br0"]);
    add_bridge(versions[0], versions[1]);
    for group in GROUPS {
        wait_for(group, || shows_membership(group).then_some(()));
    }
    assert!(counter(stack, "FullsendMcastQueriesReceived") > 0);
    // The bridge queries whether other hosts have the group, and then removes it.
    let set = ["link", "set", "br0", "type", "bridge"];
    let fast = [
        "mcast_last_member_interval",
        "10",
        "mcast_last_member_count",
        "1",
    ];
    run("ip", &[&set[..], &fast].concat());
    drop(socket);
    for group in GROUPS {
        wait_for(group, || (!shows_membership(group)).then_some(()));
    }
}

#[test]
fn a_bridge_sees_the_groups_of_the_current_versions() {
    with_stack(false, |runtime, stack| {
        bridge_sees_groups(runtime, stack, ["3", "2"]);
    });
}

#[test]
fn a_bridge_sees_the_groups_of_older_versions() {
    with_stack(false, |runtime, stack| {
        bridge_sees_groups(runtime, stack, ["2", "1"]);
    });
}
