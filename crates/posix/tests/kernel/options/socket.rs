//! Options of any socket.

use libc::{AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_TCP, SHUT_WR, SOL_SOCKET};

use super::{ZEROCOPY, try_int};
use crate::Scenario;
use crate::backend::{Backend, Log, Ret};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("flags", flags),
    ("identity", identity),
    ("lengths", lengths),
    ("buffers", buffers),
    ("linger", linger),
    ("timeouts", timeouts),
    ("lowat", lowat),
    ("rates", rates),
    ("levels", levels),
    ("inheritance", inheritance),
];

fn flags(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    for name in [
        libc::SO_REUSEADDR,
        libc::SO_REUSEPORT,
        libc::SO_KEEPALIVE,
        libc::SO_BROADCAST,
        ZEROCOPY,
        libc::SO_TIMESTAMP,
        libc::SO_TIMESTAMPNS,
    ] {
        try_int(b, log, fd, SOL_SOCKET, name, &[1, 0, 2, -1]);
    }
    for name in [libc::TCP_NODELAY, libc::TCP_CORK, libc::TCP_INQ] {
        try_int(b, log, fd, IPPROTO_TCP, name, &[1, 0, 2, -1]);
    }
}

fn identity(b: &mut dyn Backend, log: &mut Log) {
    let (listener, _) = b.listener(AF_INET, "127.0.0.1");
    let six = b.socket(AF_INET6, libc::SOCK_STREAM, 0);
    let udp = b.socket(AF_INET, libc::SOCK_DGRAM, 0);
    for fd in [listener, six, udp] {
        for name in [
            libc::SO_TYPE,
            libc::SO_DOMAIN,
            libc::SO_PROTOCOL,
            libc::SO_ACCEPTCONN,
            libc::SO_ERROR,
            libc::SO_SNDLOWAT,
        ] {
            log.note(&format!("get {name}"), b.get_int(fd, SOL_SOCKET, name));
            log.note(&format!("set {name}"), b.set_int(fd, SOL_SOCKET, name, 1));
        }
    }
    // SO_INCOMING_NAPI_ID
    log.note("napi", b.get_int(listener, SOL_SOCKET, 56));
    let tcp = b.tcp();
    log.note(
        "acceptconn",
        b.get_int(tcp, SOL_SOCKET, libc::SO_ACCEPTCONN),
    );
}

fn lengths(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    for (level, name) in [
        (SOL_SOCKET, libc::SO_REUSEADDR),
        (SOL_SOCKET, libc::SO_LINGER),
        (SOL_SOCKET, libc::SO_RCVTIMEO),
        (SOL_SOCKET, libc::SO_SNDBUF),
        (IPPROTO_TCP, libc::TCP_NODELAY),
        (IPPROTO_TCP, libc::TCP_MAXSEG),
        (IPPROTO_IP, libc::IP_TOS),
        (IPPROTO_IP, libc::IP_TTL),
        (IPPROTO_IP, libc::IP_MTU_DISCOVER),
        (IPPROTO_IP, libc::IP_FREEBIND),
    ] {
        for len in [0, 1, 2, 3, 4, 5, 8, 16, 20] {
            let mut value = vec![0; len];
            if len > 0 {
                value[0] = 1;
            }
            log.note(
                &format!("set {level} {name} {len}"),
                b.set(fd, level, name, &value),
            );
        }
        for len in [0, 1, 2, 4, 8, 16, 20] {
            log.note(
                &format!("get {level} {name} {len}"),
                b.get(fd, level, name, len),
            );
        }
    }
}

fn buffers(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    for value in [10_000, 4_609, 100_000, 2_304, 1, 0, 2_000] {
        log.note("sndbuf", b.set_int(fd, SOL_SOCKET, libc::SO_SNDBUF, value));
        log.note("is", b.get_int(fd, SOL_SOCKET, libc::SO_SNDBUF));
    }
    // The minimum receive buffer of a connection is 4608 bytes, a full segment of any kind; the
    // kernel's is half of that.
    for value in [10_000, 4_609, 100_000, 2_304] {
        log.note("rcvbuf", b.set_int(fd, SOL_SOCKET, libc::SO_RCVBUF, value));
        log.note("is", b.get_int(fd, SOL_SOCKET, libc::SO_RCVBUF));
    }
    let udp = b.socket(AF_INET, libc::SOCK_DGRAM, 0);
    for value in [10_000, 4_609, 100_000, 2_304, 1, 0] {
        log.note("sndbuf", b.set_int(udp, SOL_SOCKET, libc::SO_SNDBUF, value));
        log.note("is", b.get_int(udp, SOL_SOCKET, libc::SO_SNDBUF));
        log.note("rcvbuf", b.set_int(udp, SOL_SOCKET, libc::SO_RCVBUF, value));
        log.note("is", b.get_int(udp, SOL_SOCKET, libc::SO_RCVBUF));
    }
    let (client, _server) = b.pair();
    log.note(
        "connected",
        b.set_int(client, SOL_SOCKET, libc::SO_SNDBUF, 30_000),
    );
    log.note("is", b.get_int(client, SOL_SOCKET, libc::SO_SNDBUF));
    let (ret, meminfo) = b.get(client, SOL_SOCKET, 55, 100);
    log.note("meminfo", (ret, meminfo.len()));
    let words: Vec<u32> = meminfo
        .chunks(4)
        .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    log.note("send buffer", words[3]);
    log.note("nothing held", (words[0], words[2], words[5], words[8]));
    log.note("cut", b.get(client, SOL_SOCKET, 55, 8).1.len());
    charge(b, log, client);
}

/// Checks what `SO_SNDBUF` is charged: the length of the data, and the overhead of each segment.
fn charge(b: &mut dyn Backend, log: &mut Log, client: Ret) {
    b.set_int(client, IPPROTO_TCP, libc::TCP_CORK, 1);
    let mut before = 0;
    for len in [1, 100, 2000] {
        b.send(client, &vec![0; len], 0);
        let (_, meminfo) = b.get(client, SOL_SOCKET, 55, 100);
        let queued = u32::from_ne_bytes(meminfo[20..24].try_into().unwrap());
        // Kernels differ in the overhead of a segment.
        let cost = if before == 0 { 500..1500 } else { 0..1 };
        let charged = cost.contains(&(queued - before - len as u32));
        log.note("charged", charged);
        before = queued;
    }
}

fn linger(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    log.note("default", b.get(fd, SOL_SOCKET, libc::SO_LINGER, 8));
    for (on, seconds) in [(1, 0), (1, 5), (2, 7)] {
        let value = [i32::to_ne_bytes(on), i32::to_ne_bytes(seconds)].concat();
        log.note("set", b.set(fd, SOL_SOCKET, libc::SO_LINGER, &value));
        log.note("is", b.get(fd, SOL_SOCKET, libc::SO_LINGER, 8));
    }
}

fn timeouts(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        for (seconds, micros) in [
            (0, 0),
            (3, 0),
            (2, 500_000),
            (-1, 0),
            (0, 1_000_000),
            (1, -1),
        ] {
            let value = [i64::to_ne_bytes(seconds), i64::to_ne_bytes(micros)].concat();
            log.note("set", b.set(fd, SOL_SOCKET, name, &value));
            log.note("is", b.get(fd, SOL_SOCKET, name, 16));
        }
    }
}

fn lowat(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    try_int(b, log, server, SOL_SOCKET, libc::SO_RCVLOWAT, &[0, 5]);
    b.send(client, b"abc", 0);
    b.wait_until_idle();
    log.note("too little", b.poll(server));
    log.note("can be read", b.recv(server, 1, 0));
    b.send(client, b"defgh", 0);
    b.wait_until_idle();
    log.note("enough", b.poll(server));
    b.recv(server, 5, 0);
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    log.note("end", b.poll(server));
}

fn rates(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    let name = 47;
    log.note("default 4", b.get(fd, SOL_SOCKET, name, 4));
    log.note("default 8", b.get(fd, SOL_SOCKET, name, 8));
    for rate in [100_000_u64, 1 << 40] {
        log.note("set", b.set(fd, SOL_SOCKET, name, &rate.to_ne_bytes()));
        log.note("4", b.get(fd, SOL_SOCKET, name, 4));
        log.note("8", b.get(fd, SOL_SOCKET, name, 8));
    }
    log.note("none", b.set_int(fd, SOL_SOCKET, name, -1));
    log.note("8", b.get(fd, SOL_SOCKET, name, 8));
}

fn levels(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    for level in [99, 5, -1, 17] {
        log.note("set", b.set_int(fd, level, 1, 1));
        log.note("get", b.get_int(fd, level, 1));
    }
    for name in [999, -1] {
        log.note("set", b.set_int(fd, SOL_SOCKET, name, 1));
        log.note("get", b.get_int(fd, SOL_SOCKET, name));
    }
    let udp = b.socket(AF_INET, libc::SOCK_DGRAM, 0);
    log.note("tcp on udp", b.get_int(udp, IPPROTO_TCP, libc::TCP_NODELAY));
}

fn inheritance(b: &mut dyn Backend, log: &mut Log) {
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    let options = [
        (SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (SOL_SOCKET, libc::SO_SNDBUF, 50_000),
        (SOL_SOCKET, libc::SO_RCVBUF, 60_000),
        (SOL_SOCKET, libc::SO_REUSEADDR, 1),
        (IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE, 55),
        (IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 9_000),
        (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 7_777),
        (IPPROTO_IP, libc::IP_TTL, 33),
    ];
    for (level, name, value) in options {
        assert_eq!(b.set_int(listener, level, name, value), 0);
    }
    b.set(listener, IPPROTO_TCP, libc::TCP_CONGESTION, b"reno");
    let client = b.tcp();
    let _ = b.connect(client, "127.0.0.1", port);
    b.wait_until_idle();
    let server = b.accept(listener);
    for (level, name, _) in options {
        let got = b.get_int(server, level, name);
        log.note(&format!("inherited {level} {name}"), got);
    }
    log.note(
        "congestion",
        b.get(server, IPPROTO_TCP, libc::TCP_CONGESTION, 16),
    );
}
