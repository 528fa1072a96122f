//! Tests of the packets that our sender puts on a TUN, with the kernel as peer, packet by packet as
//! `tcpdump` shows them. Each test has a network namespace. Needs root.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener as KernelListener, TcpStream as Kernel};
use std::thread;
use std::time::Duration;

use common::capture::{Capture, CapturedPacket, drop_retransmissions};
use common::{counter, in_namespace, pattern};
use fullsend::{Builder, Stack, TcpListener, TcpStream};
use fullsend_wire::SeqNum;
use fullsend_wire::tcp::TcpFlags;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

/// The kernel's address and ours.
const V4: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
const V6: [&str; 2] = ["fd09::1", "fd09::2"];

/// Runs `test` in a network namespace, with a stack over a TUN that `set_up` configures.
///
/// Our side has one thread: nothing is received between two writes without an `await`.
fn over_tun<F: Future<Output = ()>>(
    set_up: impl FnOnce(Builder) -> Builder + Send + 'static,
    test: impl FnOnce(Stack) -> F + Send + 'static,
) {
    in_namespace(move || {
        // A path that seems slow gets small super-segments. This makes three segments the minimum,
        // also on a busy machine.
        for (key, value) in [
            ("tcp_congestion_control", "reno"),
            ("tcp_min_tso_segs", "3"),
        ] {
            std::fs::write(format!("/proc/sys/net/ipv4/{key}"), value).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut builder = Stack::builder()
                .tun("fs0")
                .shards(common::shards())
                .sysctl("tcp_min_tso_segs", "3");
            for ([kernel, ours], prefix) in [(V4, 24), (V6, 64)] {
                builder = builder
                    .address(&format!("{ours}/{prefix}"))
                    .kernel_address(&format!("{kernel}/{prefix}"));
            }
            let stack = set_up(builder).build().unwrap();
            tokio::time::timeout(Duration::from_secs(60), test(stack))
                .await
                .expect("the test hangs");
        });
    });
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn with_limits(stream: Kernel) -> Kernel {
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).unwrap();
    stream.set_write_timeout(limit).unwrap();
    stream
}

/// Returns our connection to the kernel, and the kernel's end.
async fn connected(stack: &Stack, kernel: &str) -> (TcpStream, Kernel) {
    let listener = KernelListener::bind((ip(kernel), 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let ours = TcpStream::connect(stack, to).await.unwrap();
    let (kernel, _) = listener.accept().unwrap();
    (ours, with_limits(kernel))
}

/// Writes all of `data` at once.
fn write(stream: &TcpStream, data: &[u8]) {
    assert_eq!(stream.try_write(data).unwrap(), data.len());
}

/// Returns all data that the kernel's end receives up to the end of the stream, read in `step`s.
fn sink(mut kernel: Kernel, step: usize) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut got, mut buf) = (Vec::new(), vec![0; step]);
        loop {
            match kernel.read(&mut buf).unwrap() {
                0 => return got,
                n => got.extend_from_slice(&buf[..n]),
            }
        }
    })
}

#[test]
fn a_4_kib_write_is_one_packet() {
    over_tun(
        |b| b,
        |stack| async move {
            for [kernel, ours] in [V4, V6] {
                let (mut stream, mut peer) = connected(&stack, kernel).await;
                stream.set_nodelay(true).unwrap();
                peer.set_nodelay(true).unwrap();
                let data = pattern(4096, 1);
                let mut got = vec![0; data.len()];
                let capture = Capture::open();

                write(&stream, &data);
                peer.read_exact(&mut got).unwrap();
                assert!(got == data);
                let captured = capture.take_data(ip(ours));
                assert_eq!(captured.len(), 1, "{captured:?}");
                assert_eq!(captured[0].len, 4096);
                assert!(captured[0].flags.contains(TcpFlags::PSH));

                let before = counter(&stack, "IpInReceives");
                peer.write_all(&data).unwrap();
                stream.read_exact(&mut got).await.unwrap();
                assert!(got == data);
                assert_eq!(capture.take_lengths(ip(kernel)), [4096]);
                // The packet to us is not segmented. The ACK of our data may be a packet of its
                // own.
                assert!(counter(&stack, "IpInReceives") - before <= 2);
            }
        },
    );
}

#[test]
fn without_offloads_a_4_kib_write_is_segmented_at_the_mss() {
    over_tun(
        |b| b.offload("none".parse().unwrap()),
        |stack| async move {
            let (stream, mut peer) = connected(&stack, V4[0]).await;
            stream.set_nodelay(true).unwrap();
            let data = pattern(4096, 1);
            let mut got = vec![0; data.len()];
            let capture = Capture::open();
            write(&stream, &data);
            peer.read_exact(&mut got).unwrap();
            assert!(got == data);
            let captured = capture.take_data(ip(V4[1]));
            let shape = |p: &CapturedPacket| (p.len, p.flags.contains(TcpFlags::PSH));
            let shapes: Vec<_> = captured.iter().map(shape).collect();
            assert_eq!(shapes, [(1448, false), (1448, false), (1200, true)]);
        },
    );
}

/// Disables timestamps, so that the MSS is 1460.
fn mss_1460(builder: Builder) -> Builder {
    builder.sysctl("tcp_timestamps", "0")
}

/// Makes `writes` without a pause. Returns the lengths of the packets that are sent, and whether an
/// ACK of the kernel arrived before the last of them.
async fn write_and_capture(stack: &Stack, writes: &[usize], nodelay: bool) -> (Vec<usize>, bool) {
    let (stream, mut peer) = connected(stack, V4[0]).await;
    stream.set_nodelay(nodelay).unwrap();
    let capture = Capture::open();
    let data = pattern(writes.iter().sum(), 2);
    let mut at = 0;
    for len in writes {
        write(&stream, &data[at..at + len]);
        at += len;
    }
    stream.flushed().await.unwrap();
    let mut got = vec![0; data.len()];
    peer.read_exact(&mut got).unwrap();
    assert!(got == data);
    let mut captured = capture.take();
    drop_retransmissions(&mut captured, ip(V4[1]));
    let last = captured.iter().rposition(|p| p.len > 0).unwrap();
    let lens = captured
        .iter()
        .map(|p| p.len)
        .filter(|&len| len > 0)
        .collect();
    let acked = captured[..last].iter().any(|p| {
        // An ACK of at least the first write.
        p.from == ip(V4[0]) && p.ack.after_eq(captured[0].end())
    });
    (lens, acked)
}

#[test]
fn nagle_delays_a_540_byte_tail_until_the_kernel_acknowledges() {
    over_tun(mss_1460, |stack| async move {
        let captured = write_and_capture(&stack, &[100, 2000], false).await;
        assert_eq!(captured, (vec![100, 1460, 540], true));
        let captured = write_and_capture(&stack, &[100, 2000], true).await;
        assert_eq!(captured.0, [100, 2000]);
        // After full segments only, a write is not held; the write after the 540 bytes at their end
        // is.
        let captured = write_and_capture(&stack, &[1460, 2000, 2000], false).await;
        assert_eq!(captured, (vec![1460, 2000, 1460, 540], true));
    });
}

/// Asserts that each short segment was sent after the acknowledgement of the one before (Minshall).
fn check_minshall(captured: &[CapturedPacket], ours: IpAddr, mss: usize) {
    let mut acked: Option<SeqNum> = None;
    let mut small: Option<SeqNum> = None;
    for p in captured {
        if p.from != ours {
            acked = Some(acked.map_or(p.ack, |a| a.latest(p.ack)));
        } else if p.len % mss != 0 && !p.flags.contains(TcpFlags::FIN) {
            let free = small.is_none_or(|s| acked.is_some_and(|a| a.after_eq(s)));
            assert!(free, "{p:?} while {small:?} is in flight");
            small = Some(p.end());
        }
    }
}

#[test]
fn at_most_one_small_segment_is_in_flight_under_nagle() {
    over_tun(
        |b| b,
        |stack| async move {
            let (mut stream, peer) = connected(&stack, V4[0]).await;
            let capture = Capture::open();
            let kernel = sink(peer, 1 << 16);
            let data = pattern(1 << 20, 3);
            let (mut at, mut step) = (0, 1);
            while at < data.len() {
                step = (step * 31 + 7) % 5000 + 1;
                let end = data.len().min(at + step);
                stream.write_all(&data[at..end]).await.unwrap();
                at = end;
                if step % 3 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            stream.shutdown().await.unwrap();
            stream.flushed().await.unwrap();
            assert!(kernel.join().unwrap() == data);
            let mut captured = capture.take();
            drop_retransmissions(&mut captured, ip(V4[1]));
            check_minshall(&captured, ip(V4[1]), 1448);
            let small = captured.iter().filter(|p| p.len % 1448 != 0).count();
            assert!(small > 1, "{small} of {} packets", captured.len());
        },
    );
}

#[test]
fn header_and_body_leave_as_one_packet() {
    over_tun(
        |b| b,
        |stack| async move {
            let (stream, mut peer) = connected(&stack, V4[0]).await;
            stream.set_nodelay(true).unwrap();
            let capture = Capture::open();
            let data = pattern(1200, 4);
            let (header, body) = data.split_at(200);
            let mut got = vec![0; data.len()];
            let mut arrives_as = |packets: &[usize]| {
                peer.read_exact(&mut got).unwrap();
                assert!(got == data);
                assert_eq!(capture.take_lengths(ip(V4[1])), packets);
            };

            stream.set_cork(true).unwrap();
            write(&stream, header);
            write(&stream, body);
            stream.set_cork(false).unwrap();
            arrives_as(&[1200]);

            assert_eq!(stream.write_more(header).await.unwrap(), 200);
            write(&stream, body);
            arrives_as(&[1200]);

            // `MSG_MORE` inside a vectored write.
            let both = [header, body].map(std::io::IoSlice::new);
            assert_eq!(stream.try_write_vectored(&both).unwrap(), 1200);
            arrives_as(&[1200]);

            write(&stream, header);
            write(&stream, body);
            arrives_as(&[200, 1000]);
        },
    );
}

#[test]
fn a_cork_sends_full_segments_at_once_and_the_rest_after_200_ms() {
    over_tun(
        |b| b,
        |stack| async move {
            let (stream, mut peer) = connected(&stack, V4[0]).await;
            let capture = Capture::open();
            let data = pattern(2 * 1448 + 150, 5);
            let start = Instant::now();
            stream.set_cork(true).unwrap();
            write(&stream, &data[..3000]);
            assert_eq!(capture.take_lengths(ip(V4[1])), [2 * 1448]);
            write(&stream, &data[3000..]);
            assert!(capture.take_lengths(ip(V4[1])).is_empty());
            // The cork is not cleared.
            stream.flushed().await.unwrap();
            // A busy machine is late, never early.
            assert!(start.elapsed() >= Duration::from_millis(200));
            assert_eq!(capture.take_lengths(ip(V4[1])), [150]);
            let mut got = vec![0; data.len()];
            peer.read_exact(&mut got).unwrap();
            assert!(got == data);
        },
    );
}

#[test]
fn autocorking_can_be_switched_off() {
    for (on, is_used) in [("1", true), ("0", false)] {
        over_tun(
            move |b| {
                b.shards(1)
                    .sysctl("tcp_autocorking", on)
                    // Slower than a busy machine writes, so that packets wait in the qdisc.
                    .qdisc("tbf rate 10mbit burst 64kb")
            },
            move |stack| async move {
                let (mut stream, peer) = connected(&stack, V4[0]).await;
                let kernel = sink(peer, 1 << 16);
                let data = pattern(1 << 20, 6);
                for message in data.chunks(128) {
                    stream.write_all(message).await.unwrap();
                }
                stream.shutdown().await.unwrap();
                stream.flushed().await.unwrap();
                assert!(kernel.join().unwrap() == data);
                let corked = counter(&stack, "TcpExtTCPAutoCorking");
                println!("tcp_autocorking={on}: TCPAutoCorking {corked}");
                assert_eq!(corked > 0, is_used);
            },
        );
    }
}

#[test]
fn a_slow_reader_wakes_the_writer_once_per_half_of_notsent_lowat() {
    const LOWAT: usize = 128 << 10;
    over_tun(
        |b| b,
        |stack| async move {
            let (mut stream, peer) = connected(&stack, V4[0]).await;
            // `TCP_NOTSENT_LOWAT` is the only limit.
            stream.set_sndbuf(8 << 20).unwrap();
            stream.set_notsent_lowat(LOWAT as u32).unwrap();
            let kernel = sink(peer, 1 << 10);
            let data = pattern(8 << 20, 7);
            let (mut at, mut wakes, mut most) = (0, 0, 0);
            while at < data.len() {
                stream.writable().await.unwrap();
                wakes += 1;
                let unsent = stream.tcp_info().unwrap().tcpi_notsent_bytes as usize;
                assert!(2 * unsent < LOWAT, "woken with {unsent}");
                while at < data.len() {
                    let end = data.len().min(at + 16_384);
                    let Ok(n) = stream.try_write(&data[at..end]) else {
                        break;
                    };
                    at += n;
                }
                most = most.max(stream.tcp_info().unwrap().tcpi_notsent_bytes as usize);
            }
            stream.shutdown().await.unwrap();
            stream.flushed().await.unwrap();
            assert!(kernel.join().unwrap() == data);
            println!("{wakes} wake-ups, {most} bytes unsent at most");
            // Each wake-up brings at least half of the threshold.
            assert!(wakes <= data.len() / (LOWAT / 2) + 1, "{wakes}");
            // At most one super-segment above the threshold.
            assert!((LOWAT..LOWAT + (64 << 10)).contains(&most), "{most}");
        },
    );
}

#[test]
fn bbr_behind_fq_stays_below_max_pacing_rate() {
    const RATE: u64 = 20_000_000;
    over_tun(
        |b| b.qdisc("fq"),
        |stack| async move {
            let (mut stream, peer) = connected(&stack, V4[0]).await;
            stream.set_congestion("bbr").unwrap();
            stream.set_max_pacing_rate(RATE).unwrap();
            let kernel = sink(peer, 1 << 16);
            let data = pattern(8 << 20, 8);
            let start = Instant::now();
            stream.write_all(&data).await.unwrap();
            let rate = stream.tcp_info().unwrap().tcpi_pacing_rate;
            stream.shutdown().await.unwrap();
            stream.flushed().await.unwrap();
            let span = start.elapsed();
            assert!(kernel.join().unwrap() == data);
            println!("{} in {span:?}, pacing rate {rate}", data.len());
            assert!(rate <= RATE, "{rate}");
            // The first ten segments are not paced. Late is possible, early is not.
            let least = (data.len() - 64 * 1448) as f64 / RATE as f64;
            assert!(span.as_secs_f64() >= least, "{span:?}");
            let stats = stack.qdisc_stats();
            assert!(stats.fq.unwrap().throttled > 0, "{stats}");
            // Nothing is lost, so no window is retransmitted, except for a probe when this machine
            // is too busy to process ACKs in time.
            let again = counter(&stack, "TcpRetransSegs");
            assert!(again < 64, "{again}");
        },
    );
}

#[test]
fn a_transaction_of_four_kib_each_way_is_two_packets() {
    over_tun(
        |b| b,
        |stack| async move {
            let at = SocketAddr::new(ip(V4[1]), 7);
            let listener = TcpListener::bind(&stack, at).unwrap();
            let capture = Capture::open();
            let data = pattern(4096, 9);
            let request = data.clone();
            let client = thread::spawn(move || {
                let mut stream = with_limits(Kernel::connect(at).unwrap());
                stream.set_nodelay(true).unwrap();
                let mut got = vec![0; request.len()];
                for _ in 0..50 {
                    stream.write_all(&request).unwrap();
                    stream.read_exact(&mut got).unwrap();
                    assert!(got == request);
                }
            });
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut got = vec![0; data.len()];
            for _ in 0..50 {
                stream.read_exact(&mut got).await.unwrap();
                assert!(got == data);
                stream.write_all(&got).await.unwrap();
            }
            client.join().unwrap();
            for side in V4 {
                // Single packets of 4096 bytes, in both directions.
                let lens = capture.take_lengths(ip(side));
                assert!(lens.iter().all(|&len| len == 4096), "{side}: {lens:?}");
            }
            let sent = counter(&stack, "IpOutRequests");
            println!("{sent} packets of ours in 50 transactions");
            assert!(sent <= 2 * 50 + 3, "{sent}");
        },
    );
}

/// When a paused program continues, ACKs wait in the device and its timers have expired. Everything
/// that waits is received first, more than one read of the device returns, so that nothing is
/// retransmitted.
#[test]
fn acks_queued_in_the_device_are_processed_before_timers() {
    const FLOWS: usize = 200;
    over_tun(
        |b| b.offload("none".parse().unwrap()),
        |stack| async move {
            let mut flows = Vec::new();
            for _ in 0..FLOWS {
                flows.push(connected(&stack, V4[0]).await);
            }
            // A starved kernel may acknowledge late in one round; without the rule every round
            // fails.
            let mut sent_again = Vec::new();
            for _ in 0..5 {
                let before = counter(&stack, "TcpRetransSegs");
                for (stream, _) in &flows {
                    write(stream, &[7]);
                }
                // The kernel acknowledges within 40 ms, whether its program runs or not. Our side
                // receives nothing before its probes and timeouts are due, after 200 ms.
                thread::sleep(Duration::from_millis(500));
                for (stream, _) in &mut flows {
                    stream.flushed().await.unwrap();
                }
                sent_again.push(counter(&stack, "TcpRetransSegs") - before);
                if sent_again.last() == Some(&0) {
                    return;
                }
            }
            panic!("retransmissions in each round: {sent_again:?}");
        },
    );
}
