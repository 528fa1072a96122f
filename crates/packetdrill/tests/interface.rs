//! Tests of the library, loaded and called as packetdrill does.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the calls of a C interface"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use common::{ACK, Drill, FIN, PSH, RST, SYN, address, errno, syn6, tcp};

const FLAGS: &str = "local=192.168.0.1,prefix=16,remote=192.0.2.1,seed=7";

/// Makes a passive handshake. Returns the accepted socket, our next sequence number, and the
/// peer's.
fn accepted(drill: &Drill, listener: i32) -> (i32, u32, u32) {
    drill.inject(&tcp((9, 8080), SYN, 100, 0, &[]));
    let syn_ack = drill.receive();
    assert_eq!((syn_ack.flags, syn_ack.ack), (SYN | ACK, 101));
    drill.inject(&tcp((9, 8080), ACK, 101, syn_ack.seq + 1, &[]));
    let fd = drill.accept(listener);
    assert!(fd >= 0);
    (fd, syn_ack.seq + 1, 101)
}

#[test]
fn a_passive_open_with_data_both_ways_and_close() {
    let drill = Drill::new(FLAGS);
    let listener = drill.listener(8080);
    let (fd, seq, peer) = accepted(&drill, listener);
    drill.set_nonblocking(fd);
    assert_eq!(drill.read(fd, 10), Err(libc::EAGAIN));
    drill.inject(&tcp((9, 8080), PSH | ACK, peer, seq, b"hello"));
    assert_eq!(drill.read(fd, 10).unwrap(), b"hello");
    assert_eq!(drill.write(fd, &[7; 5000]), 5000);
    // cwnd allows ten segments: one super-segment or several, which carry the ACK.
    let mut got = Vec::new();
    while got.len() < 5000 {
        let sent = drill.receive();
        assert_eq!((sent.ack, sent.seq), (peer + 5, seq + got.len() as u32));
        got.extend(sent.payload);
    }
    assert_eq!(got, [7; 5000]);
    drill.inject(&tcp((9, 8080), ACK, peer + 5, seq + 5000, &[]));
    // packetdrill closes what a script left open with libc's close, and resets the peer.
    assert_eq!(drill.close(fd), 0);
    let fin = drill.receive();
    assert_eq!((fin.flags & FIN, fin.seq), (FIN, seq + 5000));
    assert_eq!(unsafe { libc::close(listener) }, 0);
    drill.inject(&tcp((9, 8080), RST, peer + 5, 0, &[]));
    assert_eq!(drill.close(fd), -1);
    assert_eq!(errno(), libc::EBADF);
}

#[test]
fn mapped_addresses_use_ipv4_and_others_ipv6() {
    let drill = Drill::new(&format!("{FLAGS},local=fd3d::1,prefix=48"));
    let listener = drill.listener6("::ffff:192.168.0.1", 8080);
    let (fd, seq, peer) = accepted(&drill, listener);
    drill.inject(&tcp((9, 8080), PSH | ACK, peer, seq, b"mapped"));
    assert_eq!(drill.read(fd, 10).unwrap(), b"mapped");

    drill.listener6("fd3d::1", 8081);
    drill.usleep(100_000);
    drill.inject(&syn6("2001:db8::1", "fd3d::1", (9, 8081), 5));
    let answer = loop {
        let (_, packet) = drill.receive_raw().unwrap();
        if packet[0] >> 4 == 6 {
            break packet;
        }
    };
    assert_eq!(fullsend_packetdrill::verify(&answer), Ok(()));
    assert_eq!(
        (answer[53], &answer[48..52]),
        (SYN | ACK, &[0, 0, 0, 6][..])
    );
}

#[test]
fn a_nonblocking_active_open() {
    let drill = Drill::new(FLAGS);
    let fd = drill.socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let to = address([192, 0, 2, 1], 8080);
    let connect = || unsafe { (drill.ifc.connect)(drill.ifc.ud, fd, (&raw const to).cast(), 16) };
    assert_eq!(connect(), -1);
    assert_eq!(errno(), libc::EINPROGRESS);
    let syn = drill.receive();
    assert_eq!((syn.flags & (SYN | ACK), syn.ports.1), (SYN, 8080));
    drill.usleep(50_000);
    drill.inject(&tcp((8080, syn.ports.0), SYN | ACK, 500, syn.seq + 1, &[]));
    let ack = drill.receive();
    assert_eq!((ack.flags, ack.ack), (ACK, 501));
    assert!((50_000..51_000).contains(&(ack.at_us - syn.at_us)));
    assert_eq!(connect(), 0);
    assert_eq!(connect(), -1);
    assert_eq!(errno(), libc::EISCONN);
}

#[test]
fn packets_carry_their_departure_time() {
    let drill = Drill::new(&format!("{FLAGS},tcp_syn_linear_timeouts=0"));
    let start = drill.now_us();
    let fd = drill.socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let to = address([192, 0, 2, 1], 8080);
    unsafe { (drill.ifc.connect)(drill.ifc.ud, fd, (&raw const to).cast(), 16) };
    // The SYN is retransmitted after 1 and 3 seconds (RFC 6298 2.1, 5.5) while packetdrill sleeps.
    drill.usleep(3_500_000);
    let times = [0; 3].map(|_| drill.receive().at_us - start);
    for (time, due) in times.into_iter().zip([0, 1_000_000, 3_000_000]) {
        assert!((due..due + 1000).contains(&time), "{times:?}");
    }
    // No packet is queued now: time passes until there is one.
    let next = drill.receive().at_us - start;
    assert!((7_000_000..7_001_000).contains(&next), "{next}");
    assert!(drill.now_us() - start >= next);
}

#[test]
fn time_advances_only_when_packetdrill_advances_it() {
    let drill = Drill::new(FLAGS);
    let first = drill.now_us();
    thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(drill.now_us(), first + 1);
    drill.usleep(1000);
    assert_eq!(drill.now_us(), first + 1002);
}

/// Returns the state of a thread, from the file that packetdrill reads.
fn state(tid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

#[test]
fn a_blocking_call_sleeps_in_the_kernel_and_packets_are_processed() {
    let drill = Drill::new(FLAGS);
    let listener = drill.listener(8080);
    let start = drill.now_us();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let drill = &drill;
        let waiting = scope.spawn(move || {
            sender
                .send(unsafe { libc::syscall(libc::SYS_gettid) as i32 })
                .unwrap();
            let fd = drill.accept(listener);
            (fd, drill.read(fd, 100))
        });
        let tid = receiver.recv().unwrap();
        let until_asleep = || {
            while state(tid) != 'S' {
                thread::yield_now();
            }
        };
        until_asleep();
        drill.usleep(200_000);
        drill.inject(&tcp((9, 8080), SYN, 100, 0, &[]));
        let syn_ack = drill.receive();
        drill.inject(&tcp((9, 8080), ACK, 101, syn_ack.seq + 1, &[]));
        until_asleep();
        drill.usleep(100_000);
        drill.inject(&tcp((9, 8080), PSH | ACK, 101, syn_ack.seq + 1, b"hello"));
        let (fd, read) = waiting.join().unwrap();
        assert!(fd >= 0);
        assert_eq!(read.unwrap(), b"hello");
        assert!((300_000..301_000).contains(&(drill.now_us() - start)));
    });
}

#[test]
fn time_does_not_advance_until_the_result_of_a_blocking_call_is_stored() {
    let drill = Drill::new(FLAGS);
    let listener = drill.listener(8080);
    let stored = AtomicBool::new(false);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let (drill, stored) = (&drill, &stored);
        scope.spawn(move || {
            sender
                .send(unsafe { libc::syscall(libc::SYS_gettid) as i32 })
                .unwrap();
            assert!(drill.accept(listener) >= 0);
            // As packetdrill does: it reads the clock, then needs real time, but no virtual time,
            // to record the descriptor, and waits for its next call.
            drill.now_us();
            (0..20_000_000u32).for_each(|n| {
                std::hint::black_box(n);
            });
            stored.store(true, Ordering::Release);
            let _ = ended.recv();
        });
        let tid = receiver.recv().unwrap();
        while state(tid) != 'S' {
            thread::yield_now();
        }
        drill.inject(&tcp((9, 8080), SYN, 100, 0, &[]));
        let syn_ack = drill.receive();
        drill.inject(&tcp((9, 8080), ACK, 101, syn_ack.seq + 1, &[]));
        drill.usleep(5000);
        assert!(stored.load(Ordering::Acquire));
        drop(end);
    });
}

#[test]
fn poll_times_out_in_virtual_time() {
    let drill = Drill::new(FLAGS);
    let listener = drill.listener(8080);
    let mut files = [libc::pollfd {
        fd: listener,
        events: libc::POLLIN,
        revents: 0,
    }];
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let drill = &drill;
        let waiting = scope.spawn(move || {
            sender
                .send(unsafe { libc::syscall(libc::SYS_gettid) as i32 })
                .unwrap();
            unsafe { (drill.ifc.poll)(drill.ifc.ud, files.as_mut_ptr(), 1, 60_000) }
        });
        let tid = receiver.recv().unwrap();
        while state(tid) != 'S' {
            thread::yield_now();
        }
        drill.usleep(61_000_000);
        assert_eq!(waiting.join().unwrap(), 0);
    });
}

#[test]
fn a_super_segment_is_one_packet() {
    let drill = Drill::new(&format!("{FLAGS},tcp_min_tso_segs=10,tso=on"));
    let listener = drill.listener(8080);
    let (fd, seq, _) = accepted(&drill, listener);
    assert_eq!(drill.write(fd, &[1; 10_000]), 10_000);
    // Two super-segments of half a congestion window each, so that one is scheduled after the
    // other.
    for seq in [seq, seq + 5000] {
        let sent = drill.receive();
        assert_eq!((sent.seq, sent.payload.len()), (seq, 5000));
    }
}

#[test]
fn the_settings_file_is_read_again_when_it_changes() {
    let file = std::env::temp_dir().join(format!("fullsend-settings-{}", std::process::id()));
    std::fs::write(
        &file,
        "net.ipv4.tcp_timestamps = 0\nnet.ipv4.tcp_no_such = 1\n",
    )
    .unwrap();
    let drill = Drill::new(&format!("{FLAGS},settings={}", file.display()));
    let to = address([192, 0, 2, 1], 8080);
    let syn_len = || {
        let fd = drill.socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
        unsafe { (drill.ifc.connect)(drill.ifc.ud, fd, (&raw const to).cast(), 16) };
        let (_, packet) = drill.receive_raw().unwrap();
        assert_eq!(drill.close(fd), 0);
        packet.len()
    };
    let without = syn_len();
    std::fs::write(&file, "tcp_timestamps=1\n# another size\n").unwrap();
    assert_eq!(syn_len(), without + 8);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn calls_fail_as_on_linux() {
    let drill = Drill::new(FLAGS);
    let fd = drill.socket(libc::SOCK_STREAM);
    assert_eq!(drill.read(fd, 10), Err(libc::ENOTCONN));
    assert_eq!(drill.read(12_345, 10), Err(libc::EBADF));
    let null = std::ptr::null();
    assert_eq!(unsafe { (drill.ifc.bind)(drill.ifc.ud, fd, null, 16) }, -1);
    assert_eq!(errno(), libc::EFAULT);
    assert_eq!(drill.socket(99), -1);
    let mut fds = [0; 2];
    assert_eq!(
        unsafe { (drill.ifc.pipe)(drill.ifc.ud, fds.as_mut_ptr()) },
        0
    );
    assert_eq!(drill.write(fds[1], b"through the pipe"), 16);
    assert_eq!(drill.read(fds[0], 7).unwrap(), b"through");
}

#[test]
fn reading_a_packet_that_cannot_come_fails() {
    let drill = Drill::new(FLAGS);
    let _listener = drill.listener(8080);
    assert!(drill.receive_raw().is_none());
}
