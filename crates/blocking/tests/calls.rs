//! Tests of calls that wait, between threads.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{addr, connected, live_pair, pair, stack, while_asleep};
use fullsend_blocking::abi::*;
use fullsend_blocking::{Clock, Errno, Handle, PollEntry, Stack};
use fullsend_offload::{Packet, Slice};
use fullsend_wire::{Instant, Nanos};

fn read(stack: &Stack, handle: Handle, len: usize, flags: i32) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; len];
    let got = stack.recvmsg(handle, &mut [&mut out], flags, &mut [])?;
    out.truncate(got.len);
    Ok(out)
}

fn send(stack: &Stack, handle: Handle, data: &[u8]) -> Result<usize, Errno> {
    stack.sendmsg(handle, &[data], 0, None, &[])
}

#[test]
fn a_blocking_read_waits_for_data() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    let got = while_asleep(
        || read(&b, server, 100, 0),
        || assert_eq!(send(&a, client, b"hello"), Ok(5)),
    );
    assert_eq!(got.unwrap(), b"hello");
    let got = while_asleep(|| read(&b, server, 100, 0), || a.close(client).unwrap());
    assert_eq!(got.unwrap(), b"");
}

#[test]
fn a_blocking_write_larger_than_the_buffers_is_accepted_whole() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let all = read(&b, server, data.len(), MSG_WAITALL).unwrap();
            assert_eq!(read(&b, server, 1, 0).unwrap(), b"");
            all
        });
        let (head, tail) = data.split_at(1000);
        let sent = a.sendmsg(client, &[head, tail], 0, None, &[]);
        assert_eq!(sent, Ok(data.len()));
        a.shutdown(client, SHUT_WR).unwrap();
        assert!(reader.join().unwrap() == data);
    });
}

/// A peek leaves the data in the receive buffer, so it must not wait for more than fits.
#[test]
fn a_peek_at_more_than_the_buffer_holds_returns_what_it_holds() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    b.setsockopt(server, SOL_SOCKET, SO_RCVBUF, &20_000i32.to_ne_bytes())
        .unwrap();
    let data: Vec<u8> = (0..400_000u32).map(|i| (i % 251) as u8).collect();
    thread::scope(|scope| {
        let writer = scope.spawn(|| send(&a, client, &data));
        let peeked = read(&b, server, data.len(), MSG_PEEK | MSG_WAITALL).unwrap();
        assert!(!peeked.is_empty() && peeked.len() < data.len());
        assert!(data.starts_with(&peeked));
        let all = read(&b, server, data.len(), MSG_WAITALL).unwrap();
        assert!(all == data);
        assert_eq!(writer.join().unwrap(), Ok(data.len()));
    });
}

/// Packets on the way from one stack to another, which wait there while the link is down.
#[derive(Default)]
struct Link {
    is_down: AtomicBool,
    waiting: Mutex<Vec<Packet>>,
}

impl Link {
    fn carry(self: &Arc<Self>, from: &Stack, to: &Arc<Stack>) {
        let (link, to) = (self.clone(), Arc::downgrade(to));
        from.on_output(move |packet| {
            let packet = Packet::from_frame(Slice::copied_from(&packet.to_bytes()));
            let mut packets = link.waiting.lock().unwrap();
            packets.push(packet);
            if link.is_down.load(Ordering::Relaxed) {
                return;
            }
            let mut packets = std::mem::take(&mut *packets);
            if let Some(to) = to.upgrade() {
                to.input(&mut packets);
            }
        });
    }

    fn up(&self, to: &Stack) {
        self.is_down.store(false, Ordering::Relaxed);
        let mut packets = std::mem::take(&mut *self.waiting.lock().unwrap());
        to.input(&mut packets);
    }
}

#[test]
fn a_stack_waits_until_the_peers_have_all_data_of_closed_sockets() {
    let clock = Clock::manual();
    let a = stack("address=10.0.0.1/24,seed=1", &clock);
    let b = stack("address=10.0.0.2/24,seed=2", &clock);
    let (link, back) = (Arc::new(Link::default()), Arc::new(Link::default()));
    link.carry(&a, &b);
    back.carry(&b, &a);
    let pairs: Vec<_> = (0..8).map(|_| connected(&a, &b)).collect();
    let (_, open) = connected(&a, &b);
    assert_eq!(a.wait_flushed(Some(Duration::ZERO)), Ok(()));
    link.is_down.store(true, Ordering::Relaxed);
    for (client, _) in &pairs {
        assert_eq!(send(&a, *client, b"farewell"), Ok(8));
        a.close(*client).unwrap();
    }
    let early = a.wait_flushed(Some(Duration::ZERO));
    assert_eq!(early, Err(Errno::ETIMEDOUT), "nothing is acknowledged");
    let flushed = while_asleep(|| a.wait_flushed(None), || link.up(&b));
    assert_eq!(flushed, Ok(()));
    drop(a);
    for (_, server) in &pairs {
        assert_eq!(read(&b, *server, 100, 0).unwrap(), b"farewell");
        assert_eq!(read(&b, *server, 100, 0).unwrap(), b"");
    }
    assert_eq!(read(&b, open, 100, 0), Err(Errno::ECONNRESET));
}

#[test]
fn the_end_of_a_stack_wakes_a_thread_that_waits_for_its_data() {
    let clock = Clock::manual();
    let (a, b) = pair(&clock);
    let (client, _server) = connected(&a, &b);
    // No peer answers any more.
    b.end(Errno::EINVAL);
    assert_eq!(send(&a, client, b"lost"), Err(Errno::ECONNRESET));
    let c = stack("address=10.0.0.3/24,gateway=10.0.0.9,seed=3", &clock);
    c.on_output(|_| {});
    let socket = c.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).unwrap();
    let connecting = c.connect(socket, addr("10.0.0.7:1"));
    assert_eq!(connecting, Err(Errno::EINPROGRESS));
    let waited = while_asleep(|| c.wait_flushed(None), || c.end(Errno::EPIPE));
    assert_eq!(waited, Err(Errno::EPIPE));
    // The timeout of a manual clock is a timer of the stack.
    let d = stack("address=10.0.0.4/24,seed=4", &clock);
    d.on_output(|_| {});
    let socket = d.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).unwrap();
    let connecting = d.connect(socket, addr("10.0.0.7:1"));
    assert_eq!(connecting, Err(Errno::EINPROGRESS));
    let second = Duration::from_secs(1);
    let waited = while_asleep(
        || d.wait_flushed(Some(second)),
        || {
            d.advance_to(clock.now() + Nanos::from(second));
            d.run_timers();
        },
    );
    assert_eq!(waited, Err(Errno::ETIMEDOUT));
}

/// Returns the numbers of the calls that the next report in the error queue completes.
fn completion(stack: &Stack, handle: Handle) -> Option<(u32, u32)> {
    let mut control = [0; 128];
    let flags = MSG_ERRQUEUE | MSG_DONTWAIT;
    stack.recvmsg(handle, &mut [], flags, &mut control).ok()?;
    let word = |at: usize| u32::from_ne_bytes(control[at..at + 4].try_into().unwrap());
    // The cmsg header is 16 bytes long; ee_info and ee_data follow 8 bytes later.
    Some((word(24), word(28)))
}

#[test]
fn a_blocking_zerocopy_send_has_one_completion_number() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    a.setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &1i32.to_ne_bytes())
        .unwrap();
    let half = vec![7; 2_000_000];
    for number in 0..2 {
        thread::scope(|scope| {
            scope.spawn(|| read(&b, server, 4_000_000, MSG_WAITALL).unwrap());
            let sent = a.sendmsg(client, &[&half, &half], MSG_ZEROCOPY, None, &[]);
            assert_eq!(sent, Ok(4_000_000));
        });
        assert_eq!(completion(&a, client), Some((number, number)));
        assert_eq!(completion(&a, client), None);
    }
}

#[test]
fn a_copied_zerocopy_send_completes_after_its_last_part() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    a.setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &1i32.to_ne_bytes())
        .unwrap();
    let half = vec![7; 8_000_000];
    let reader = || read(&b, server, 16_000_000, MSG_WAITALL).unwrap();
    let sent = while_asleep(
        || a.sendmsg(client, &[&half, &half], MSG_ZEROCOPY, None, &[]),
        || {
            // The peer does not read yet, so the call sleeps with its first part sent.
            assert_eq!(completion(&a, client), None);
            assert_eq!(reader().len(), 16_000_000);
        },
    );
    assert_eq!(sent, Ok(16_000_000));
    assert_eq!(completion(&a, client), Some((0, 0)));
    assert_eq!(completion(&a, client), None);
    // A call that times out completes, too.
    let part = a.sendmsg(
        client,
        &[&half, &half],
        MSG_ZEROCOPY | MSG_DONTWAIT,
        None,
        &[],
    );
    assert!(part.unwrap() < 16_000_000);
    assert_eq!(completion(&a, client), Some((1, 1)));
}

#[test]
fn accept_and_connect_block() {
    let (a, b) = live_pair();
    let listener = b.socket(AF_INET6, SOCK_STREAM, 0).unwrap();
    b.bind(listener, addr("[fd00::2]:80")).unwrap();
    b.listen(listener, 8).unwrap();
    let client = a.socket(AF_INET6, SOCK_STREAM, 0).unwrap();
    let accepted = while_asleep(
        || b.accept4(listener, 0),
        || a.connect(client, addr("[fd00::2]:80")).unwrap(),
    );
    assert_eq!(accepted.unwrap().1, a.getsockname(client).unwrap());
    let refused = a.socket(AF_INET6, SOCK_STREAM, 0).unwrap();
    let error = a.connect(refused, addr("[fd00::2]:81"));
    assert_eq!(error, Err(Errno::ECONNREFUSED));
}

/// Returns a socket whose SYN is deferred until the first data.
fn deferred(stack: &Stack, to: &str) -> Handle {
    let client = stack.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    for option in [TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE] {
        let on = 1_i32.to_ne_bytes();
        stack.setsockopt(client, IPPROTO_TCP, option, &on).unwrap();
    }
    assert_eq!(stack.connect(client, addr(to)), Ok(()));
    client
}

fn listening(stack: &Stack) -> Handle {
    let listener = stack.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    stack.bind(listener, addr("10.0.0.2:80")).unwrap();
    stack.listen(listener, 8).unwrap();
    listener
}

#[test]
fn a_write_sent_in_the_syn_waits_for_the_handshake() {
    let (a, b) = live_pair();
    for data in [&b"hello"[..], b""] {
        let refused = deferred(&a, "10.0.0.2:81");
        assert_eq!(send(&a, refused, data), Err(Errno::ECONNREFUSED));
        let refused = deferred(&a, "10.0.0.2:81");
        let lent = Slice::copied_from(data);
        assert_eq!(a.send_lent(refused, &lent, 0), Err(Errno::ECONNREFUSED));
    }
    let listener = listening(&b);
    for data in [&b"hello"[..], b""] {
        let client = deferred(&a, "10.0.0.2:80");
        assert_eq!(send(&a, client, data), Ok(data.len()));
        let (server, _) = b.accept4(listener, 0).unwrap();
        a.shutdown(client, SHUT_WR).unwrap();
        let got = read(&b, server, 10, MSG_WAITALL).unwrap();
        assert_eq!(got, data);
    }
}

/// As on Linux, `SPLICE_F_NONBLOCK` applies to the pipe only, and the bytes of a SYN that is
/// refused stay in the pipe.
#[test]
fn a_splice_sent_in_the_syn_waits_for_the_handshake() {
    const SPLICE_F_NONBLOCK: u32 = 2;
    let (a, b) = live_pair();
    let listener = listening(&b);
    let data: Vec<u8> = (0..20_000).map(|n| (n / 7) as u8).collect();
    for flags in [0, SPLICE_F_NONBLOCK] {
        let (reader, writer) = a.pipe(false).unwrap();
        for part in data.chunks(300) {
            assert_eq!(a.write(writer, &[part]), Ok(part.len()));
        }
        let refused = deferred(&a, "10.0.0.2:81");
        let moved = a.splice(reader, refused, data.len(), flags);
        assert_eq!(moved, Err(Errno::ECONNREFUSED));
        let client = deferred(&a, "10.0.0.2:80");
        assert_eq!(a.splice(reader, client, data.len(), flags), Ok(data.len()));
        let (server, _) = b.accept4(listener, 0).unwrap();
        let got = read(&b, server, data.len(), MSG_WAITALL).unwrap();
        assert_eq!(got, data);
        // A non-blocking socket returns the number of bytes on the SYN.
        let client = deferred(&a, "10.0.0.2:80");
        a.set_nonblocking(client, true).unwrap();
        assert_eq!(a.write(writer, &[b"hello", b"again"]), Ok(10));
        assert_eq!(a.splice(reader, client, 100, flags), Ok(10));
        let (server, _) = b.accept4(listener, 0).unwrap();
        assert_eq!(read(&b, server, 10, MSG_WAITALL).unwrap(), b"helloagain");
    }
}

#[test]
fn blocked_calls_return_on_close_shutdown_and_stack_end() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    let got = while_asleep(|| read(&b, server, 1, 0), || b.close(server).unwrap());
    assert_eq!(got, Err(Errno::EBADF));
    a.close(client).unwrap();

    let (_client, server) = connected(&a, &b);
    let got = while_asleep(
        || read(&b, server, 1, 0),
        || b.shutdown(server, SHUT_RD).unwrap(),
    );
    assert_eq!(got.unwrap(), b"");

    let listener = b.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    b.listen(listener, 1).unwrap();
    let accept = || b.accept4(listener, 0);
    let got = while_asleep(accept, || b.shutdown(listener, SHUT_RDWR).unwrap());
    assert_eq!(got, Err(Errno::EINVAL));
    b.listen(listener, 1).unwrap();
    let got = while_asleep(accept, || b.end(Errno(libc::ESHUTDOWN)));
    assert_eq!(got, Err(Errno(libc::ESHUTDOWN)));
    assert_eq!(
        b.socket(AF_INET, SOCK_STREAM, 0),
        Err(Errno(libc::ESHUTDOWN))
    );
}

#[test]
fn nonblocking_calls_do_not_wait() {
    let (a, b) = live_pair();
    let (_, server) = connected(&a, &b);
    assert_eq!(read(&b, server, 1, MSG_DONTWAIT), Err(Errno::EAGAIN));
    b.set_nonblocking(server, true).unwrap();
    assert_eq!(read(&b, server, 1, 0), Err(Errno::EAGAIN));
    let client = a.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0).unwrap();
    // No host has that address.
    let error = a.connect(client, addr("10.0.0.77:80"));
    assert_eq!(error, Err(Errno::EINPROGRESS));
}

#[test]
fn with_a_manual_clock_a_timeout_expires_when_the_clock_is_advanced() {
    let clock = Clock::manual();
    let (a, b) = pair(&clock);
    let (client, server) = connected(&a, &b);
    let mut lines = [PollEntry {
        handle: Some(server),
        events: EPOLLIN,
        revents: 0,
    }];
    let span = Nanos::from_secs(5);
    let ready = while_asleep(
        || b.poll(&mut lines, Some(span)),
        || {
            clock.advance_to(Instant::ZERO + Nanos::from_secs(4));
            b.run_timers();
            // The thread may be asleep before its timeout is registered.
            while b.deadline() != Some(Instant::ZERO + span) {
                thread::yield_now();
            }
            clock.advance_to(Instant::ZERO + span);
            b.run_timers();
        },
    );
    assert_eq!(ready, Ok(0));
    let ready = while_asleep(
        || b.poll(&mut lines, None),
        || assert_eq!(send(&a, client, b"x"), Ok(1)),
    );
    assert_eq!((ready, lines[0].revents), (Ok(1), EPOLLIN));
}

#[test]
fn the_event_fd_signals_readiness() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    let file = b.event_fd().unwrap();
    let count = || {
        let mut count = [0; 8];
        rustix::io::read(&file, &mut count).map(|_| u64::from_ne_bytes(count))
    };
    let mut lines = [PollEntry {
        handle: Some(server),
        events: EPOLLIN,
        revents: 0,
    }];
    assert_eq!(b.poll(&mut lines, Some(Nanos::ZERO)), Ok(0));
    assert!(count().is_err());
    send(&a, client, b"x").unwrap();
    assert!(count().unwrap() > 0);
    assert_eq!(b.poll(&mut lines, Some(Nanos::ZERO)), Ok(1));
}

#[test]
fn with_a_manual_ethernet_device_an_arp_request_is_sent_first() {
    let settings = "link=ethernet,address=10.0.0.1/24,mac=02:00:00:00:00:07";
    let host = stack(settings, &Clock::manual());
    let client = host
        .socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)
        .unwrap();
    let error = host.connect(client, addr("10.0.0.2:80"));
    assert_eq!(error, Err(Errno::EINPROGRESS));
    let (at, frame) = host.outbox().unwrap().take().unwrap();
    let frame = frame.to_bytes();
    // A broadcast ARP frame from the stack's Ethernet address.
    assert_eq!(
        frame[..14],
        [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 8, 6]
    );
    assert_eq!(at, Instant::ZERO);
}

#[test]
fn loopback_needs_no_driver() {
    let host: Arc<Stack> = stack("address=10.0.0.1/24", &Clock::real());
    let (client, server) = {
        let listener = host.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        host.bind(listener, addr("127.0.0.1:80")).unwrap();
        host.listen(listener, 8).unwrap();
        let client = host.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        host.connect(client, addr("127.0.0.1:80")).unwrap();
        (client, host.accept4(listener, 0).unwrap().0)
    };
    send(&host, client, &[7; 10_000]).unwrap();
    assert_eq!(
        read(&host, server, 10_000, MSG_WAITALL).unwrap(),
        [7; 10_000]
    );
}

#[test]
fn many_threads_that_wait_for_each_other_all_finish() {
    let (a, b) = live_pair();
    let listener = b.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    b.bind(listener, addr("10.0.0.2:80")).unwrap();
    b.listen(listener, 32).unwrap();
    thread::scope(|scope| {
        for n in 0..8u8 {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let (fd, _) = b.accept4(listener, 0).unwrap();
                while let Ok(all) = read(b, fd, 600, MSG_WAITALL)
                    && !all.is_empty()
                {
                    assert_eq!(send(b, fd, &all), Ok(all.len()));
                }
                b.close(fd).unwrap();
            });
            scope.spawn(move || {
                let fd = a.socket(AF_INET, SOCK_STREAM, 0).unwrap();
                a.connect(fd, addr("10.0.0.2:80")).unwrap();
                let on = 1i32.to_ne_bytes();
                a.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on).unwrap();
                for turn in 0..100u8 {
                    let words = [n ^ turn; 600];
                    assert_eq!(send(a, fd, &words[..350]), Ok(350));
                    assert_eq!(send(a, fd, &words[350..]), Ok(250));
                    assert_eq!(read(a, fd, 600, MSG_WAITALL).unwrap(), words);
                }
                a.close(fd).unwrap();
            });
        }
    });
}

#[test]
fn a_stack_that_ends_during_traffic_wakes_all_waiting_calls() {
    let (a, b) = live_pair();
    let pairs: Vec<_> = (0..4).map(|_| connected(&a, &b)).collect();
    thread::scope(|scope| {
        for (client, server) in pairs {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let block = vec![5; 100_000];
                while send(a, client, &block).is_ok() {}
            });
            scope.spawn(move || while read(b, server, 1 << 16, 0).is_ok_and(|r| !r.is_empty()) {});
        }
        // Meanwhile, calls of another kind must not block.
        for _ in 0..1000 {
            assert_eq!(a.get("tcp_sack").unwrap(), "1");
        }
        b.end(Errno(libc::ESHUTDOWN));
        a.end(Errno(libc::ESHUTDOWN));
    });
}
