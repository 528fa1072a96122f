//! TCP Fast Open with the Linux kernel as peer, over TUN. Needs root.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener as KernelListener, TcpStream as Kernel};
use std::thread;
use std::time::Duration;

use common::in_namespace;
use fullsend::{SocketOption, Stack, TcpListener, TcpStream};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

const OURS: [&str; 2] = ["10.9.0.2/24", "fd09::2/64"];
const KERNELS: [&str; 2] = ["10.9.0.1/24", "fd09::1/64"];
const ANSWER: &[u8] = b"answer";

/// Runs `test` with a stack over a TUN, in a namespace whose kernel is a Fast Open client and
/// server.
fn with_stack(test: fn(&Runtime, &Stack)) {
    in_namespace(move || {
        // Enabled for every listener.
        if fs::write("/proc/sys/net/ipv4/tcp_fastopen", "0x403").is_err() {
            println!("skipped: the kernel's tcp_fastopen cannot be set");
            return;
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let context = runtime.enter();
        let mut builder = Stack::builder().tun("fs0").shards(common::shards());
        for (ours, kernel) in OURS.iter().zip(KERNELS) {
            builder = builder.address(ours).kernel_address(kernel);
        }
        let stack = builder.build().unwrap();
        drop(context);
        // A SYN that is sent again has no data.
        common::wait_for_local_route("fd09::1");
        stack.set_sysctl("tcp_fastopen", "0x3").unwrap();
        test(&runtime, &stack);
    });
}

fn addr(cidr: &str, port: u16) -> SocketAddr {
    let (ip, _) = cidr.split_once('/').unwrap();
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port)
}

/// Returns a counter of the namespace's kernel.
fn kernels(counter: &str) -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(name, _)| *name == counter).unwrap();
    value.parse().unwrap()
}

fn ours(stack: &Stack, counter: &str) -> u64 {
    let counters = stack.counters();
    let found = counters.into_iter().find(|(name, _)| *name == counter);
    found.unwrap().1
}

/// Connects a kernel socket whose first write may be sent on its SYN.
fn kernel_connect(to: SocketAddr) -> Kernel {
    let family = if to.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, sockopt::TcpFastOpenConnect, &true).unwrap();
    connect(
        std::os::fd::AsRawFd::as_raw_fd(&fd),
        &SockaddrStorage::from(to),
    )
    .unwrap();
    let stream = Kernel::from(fd);
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    stream
}

#[test]
fn the_kernels_syn_data_is_read_before_its_handshake_completes() {
    with_stack(|runtime, stack| {
        for (i, cidr) in OURS.iter().enumerate() {
            let to = addr(cidr, 80);
            let _context = runtime.enter();
            let listener = TcpListener::bind(stack, to).unwrap();
            listener.set_option(SocketOption::TcpFastopen(8)).unwrap();
            let server = runtime.spawn(async move {
                // The first connection requests a cookie, the others have it.
                for _ in 0..3 {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let mut got = [0; 7];
                    stream.read_exact(&mut got).await.unwrap();
                    assert_eq!(&got, b"request");
                    stream.write_all(ANSWER).await.unwrap();
                }
            });
            for n in 0..3 {
                let mut stream = kernel_connect(to);
                stream.write_all(b"request").unwrap();
                let mut got = Vec::new();
                stream.read_to_end(&mut got).unwrap();
                assert_eq!(got, ANSWER, "{cidr}");
                // A SYN that is sent again, as on a busy machine, has no data.
                if kernels("TCPSynRetrans") == 0 {
                    let want = 2 * i as u64 + n;
                    assert_eq!(kernels("TCPFastOpenActive"), want, "{cidr}");
                    assert_eq!(ours(stack, "TcpExtTCPFastOpenPassive"), want, "{cidr}");
                }
            }
            runtime.block_on(server).unwrap();
            if kernels("TCPSynRetrans") > 0 {
                return;
            }
            let cookie_requests = ours(stack, "TcpExtTCPFastOpenCookieReqd");
            assert_eq!(cookie_requests, i as u64 + 1, "{cidr}");
        }
        assert_eq!(kernels("TCPFastOpenActiveFail"), 0);
        assert_eq!(ours(stack, "TcpExtTCPFastOpenPassiveFail"), 0);
    });
}

#[test]
fn the_kernel_reads_our_syn_data_before_our_handshake_completes() {
    with_stack(|runtime, stack| {
        for (i, cidr) in KERNELS.iter().enumerate() {
            let to = addr(cidr, 81);
            let listener = KernelListener::bind(to).unwrap();
            let server = thread::spawn(move || {
                for _ in 0..3 {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut got = [0; 7];
                    stream.read_exact(&mut got).unwrap();
                    assert_eq!(&got, b"request");
                    stream.write_all(ANSWER).unwrap();
                }
            });
            for n in 0..3 {
                let taken = runtime.block_on(async {
                    let opened = TcpStream::connect_with(stack, to, b"request").await;
                    let (mut stream, taken) = opened.unwrap();
                    stream.write_all(&b"request"[taken..]).await.unwrap();
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).await.unwrap();
                    assert_eq!(got, ANSWER, "{cidr}");
                    taken
                });
                assert_eq!(taken, if n == 0 { 0 } else { 7 }, "{cidr}");
                let want = 2 * i as u64 + n;
                assert_eq!(kernels("TCPFastOpenPassive"), want, "{cidr}");
                assert_eq!(ours(stack, "TcpExtTCPFastOpenActive"), want, "{cidr}");
            }
            server.join().unwrap();
        }
        assert_eq!(ours(stack, "TcpExtTCPFastOpenActiveFail"), 0);
    });
}
