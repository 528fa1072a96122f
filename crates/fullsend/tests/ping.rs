//! `PingSocket`, between two stacks and against the kernel.

mod common;

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{in_namespace, pair, paused, threads};
use fullsend::{IcmpSocket, Pair, PingSocket, Stack};
use nix::libc;
use tokio::time::timeout;

const PEERS: [&str; 2] = ["10.0.0.2", "fd00::2"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn requests_of_two_sockets_are_answered() {
    paused(async {
        let (a, _b) = pair();
        let [one, two] = [(); 2].map(|()| PingSocket::open(&a).unwrap());
        assert_ne!(one.ident().unwrap(), two.ident().unwrap());
        for peer in PEERS.map(ip) {
            one.send_to(peer, 1, b"one").await.unwrap();
            two.send_to(peer, 2, b"other").await.unwrap();
            for (socket, seq, len) in [(&one, 1, 3), (&two, 2, 5)] {
                let reply = socket.recv().await.unwrap();
                assert_eq!((reply.peer, reply.seq, reply.ttl), (peer, seq, 64));
                assert_eq!((reply.data.len(), reply.error), (len, None));
            }
        }
    });
}

/// Replies arrive at the first shard, which has the sockets.
#[test]
fn a_stack_of_four_shards_pings() {
    threads(async {
        let config = Pair {
            shards: 4,
            ..Pair::default()
        };
        let (a, b) = Stack::pair(&config).unwrap();
        let tasks = [(a.clone(), "10.0.0.2"), (b.clone(), "fd00::1")].map(|(stack, peer)| {
            tokio::spawn(async move {
                let socket = PingSocket::open(&stack).unwrap();
                for seq in 0..100 {
                    socket.send_to(ip(peer), seq, b"").await.unwrap();
                    assert_eq!(socket.recv().await.unwrap().seq, seq);
                }
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn calls_wait_poll_or_return_at_once() {
    paused(async {
        let (a, _b) = pair();
        let socket = PingSocket::open(&a).unwrap();
        let error = socket.try_recv().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let first = poll_fn(|cx| Poll::Ready(socket.poll_recv_ready(cx))).await;
        assert!(first.is_pending());
        // A dropped future loses no reply.
        let mut recv = Box::pin(socket.recv());
        let first = poll_fn(|cx| Poll::Ready(recv.as_mut().poll(cx))).await;
        assert!(first.is_pending());
        drop(recv);
        socket.try_send_to(ip(PEERS[0]), 1, b"").unwrap();
        let waiting = async {
            socket.readable().await.unwrap();
            socket.try_recv().unwrap()
        };
        assert_eq!(waiting.await.seq, 1);
        let mut sent = false;
        let polled = poll_fn(|cx| {
            let reply = socket.poll_recv(cx);
            if !sent {
                sent = true;
                let send = socket.poll_send_to(cx, ip(PEERS[0]), 2, b"");
                assert!(send.is_ready());
            }
            reply
        });
        assert_eq!(polled.await.unwrap().seq, 2);
        assert_eq!(socket.dropped().unwrap(), 0);
    });
}

#[test]
fn invalid_requests_and_a_stopped_stack_are_reported() {
    paused(async {
        let (a, _b) = pair();
        let socket = PingSocket::open(&a).unwrap();
        for to in ["0.0.0.0", "10.0.0.255"] {
            let error = socket.send_to(ip(to), 1, b"x").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        let too_long = socket.send_to(ip("10.0.0.2"), 1, &vec![0; 65_508]).await;
        let error = too_long.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE), "{error}");
        assert_eq!(socket.ttl().unwrap(), 64);
        let error = socket.set_ttl(256).unwrap_err();
        assert!(error.to_string().contains("256"), "{error}");
        socket.set_ttl(9).unwrap();
        assert_eq!(socket.ttl().unwrap(), 9);
    });
}

/// Whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn waiting_calls_are_woken_when_the_stack_stops() {
    paused(async {
        let (a, _b) = pair();
        let socket = PingSocket::open(&a).unwrap();
        let messages = IcmpSocket::open(&a).unwrap();
        let mut waiting: [Pin<Box<dyn Future<Output = io::Result<()>>>>; 3] = [
            Box::pin(async { socket.recv().await.map(|_| ()) }),
            Box::pin(socket.readable()),
            Box::pin(async { messages.recv().await.map(|_| ()) }),
        ];
        // Each call waits before the stack stops, and is polled again only after it was woken.
        let tasks = [(); 3].map(|()| Arc::new(Woken::default()));
        for (call, woken) in waiting.iter_mut().zip(&tasks) {
            let waker = Waker::from(woken.clone());
            let first = call.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(first.is_pending());
        }
        a.shutdown().await.unwrap();
        assert_eq!(tasks.map(|woken| woken.0.load(Ordering::SeqCst)), [true; 3]);
        for call in waiting {
            let error = call.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        }
    });
}

fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.unwrap().success(), "{line}");
}

#[test]
fn the_kernel_replies_and_its_errors_are_reported() {
    in_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let stack = Stack::builder()
                .tun("fs0")
                .address("10.9.0.2/24")
                .address("fd09::2/64")
                .kernel_address("10.9.0.1/24")
                .kernel_address("fd09::1/64")
                .route("0.0.0.0/0", None)
                .route("::/0", None)
                .build()
                .unwrap();
            run("sysctl -qw net.ipv4.ip_forward=1");
            run("sysctl -qw net.ipv6.conf.all.forwarding=1");
            run("ip route add unreachable 10.8.0.0/24");
            run("ip -6 route add unreachable fd08::/64");
            let socket = PingSocket::open(&stack).unwrap();
            let v4 = ["10.9.0.1", "10.8.0.1", "10.9.0.77"];
            let v6 = ["fd09::1", "fd08::1", "fd09::77"];
            let no_route = [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
            for (ips, no_route) in [v4, v6].into_iter().zip(no_route) {
                let [kernel, nowhere, beyond] = ips.map(ip);
                let long = vec![7; 20_000];
                // The kernel makes an IPv6 address local some time after it was added.
                let reply = loop {
                    socket.send_to(kernel, 1, &long).await.unwrap();
                    let reply = timeout(Duration::from_millis(200), socket.recv()).await;
                    if let Ok(reply) = reply {
                        break reply.unwrap();
                    }
                };
                assert_eq!(
                    (reply.peer, reply.seq, reply.data.len()),
                    (kernel, 1, 20_000)
                );
                // The kernel forwards the second request, whose TTL expires then.
                for (seq, to, ttl, kind) in [
                    (2, nowhere, 64, no_route),
                    (3, beyond, 1, ErrorKind::HostUnreachable),
                ] {
                    socket.set_ttl(ttl).unwrap();
                    socket.send_to(to, seq, b"data").await.unwrap();
                    let reply = loop {
                        // A reply to an earlier try.
                        let reply = socket.recv().await.unwrap();
                        if reply.seq != 1 {
                            break reply;
                        }
                    };
                    let error = reply.error.unwrap();
                    assert_eq!((reply.peer, reply.seq), (to, seq));
                    assert_eq!((error.kind, error.offender), (kind, kernel), "{error}");
                    socket.set_ttl(64).unwrap();
                }
            }
        });
    });
}
