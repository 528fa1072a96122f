//! Scenarios of options and ioctls.

use fullsend_posix::abi::{SIOCATMARK, SIOCINQ, SIOCOUTQ, SIOCOUTQNSD};
use libc::{AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SHUT_WR, SOL_SOCKET};

use crate::Scenario;
use crate::backend::{Backend, Control, Log, Ret};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("flags", flags),
    ("identity", identity),
    ("lengths", lengths),
    ("buffers", buffers),
    ("linger", linger),
    ("timeouts", timeouts),
    ("lowat", lowat),
    ("rates", rates),
    ("tcp_ranges", tcp_ranges),
    ("tcp_defaults", tcp_defaults),
    ("maxseg", maxseg),
    ("congestion", congestion),
    ("fastopen", fastopen),
    ("info", info),
    ("ip", ip),
    ("datagram_ip", datagram_ip),
    ("ipv6", ipv6),
    ("levels", levels),
    ("inheritance", inheritance),
    ("reuse", reuse),
    ("reuse_port", reuse_port),
    ("v6only", v6only),
    ("mapped", mapped),
    ("queues", queues),
    ("timestamping", timestamping),
    ("control", control),
    ("zerocopy", zerocopy),
];

const ZEROCOPY: i32 = 60;

fn try_int(b: &mut dyn Backend, log: &mut Log, fd: Ret, level: i32, name: i32, values: &[i32]) {
    log.note(
        &format!("{level} {name} default"),
        b.get_int(fd, level, name),
    );
    for &value in values {
        let set = b.set_int(fd, level, name, value);
        let got = b.get_int(fd, level, name);
        log.note(&format!("{level} {name} = {value}"), (set, got));
    }
}

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
    // The connection's least receive buffer is 4608 bytes, one full segment of any kind; the
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
    b.settle();
    log.note("too little", b.poll(server));
    log.note("can be read", b.recv(server, 1, 0));
    b.send(client, b"defgh", 0);
    b.settle();
    log.note("enough", b.poll(server));
    b.recv(server, 5, 0);
    b.shutdown(client, SHUT_WR);
    b.settle();
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

fn tcp_ranges(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    let extremes = [1, 0, -1, 127, 128, 255, 32_767, 32_768, i32::MAX, i32::MIN];
    for name in [
        libc::TCP_KEEPIDLE,
        libc::TCP_KEEPINTVL,
        libc::TCP_KEEPCNT,
        libc::TCP_SYNCNT,
    ] {
        for value in extremes {
            let set = b.set_int(fd, IPPROTO_TCP, name, value);
            let got = b.get_int(fd, IPPROTO_TCP, name);
            log.note(&format!("{name} = {value}"), (set, got));
        }
    }
    try_int(
        b,
        log,
        fd,
        IPPROTO_TCP,
        libc::TCP_LINGER2,
        &[5, 0, 120, 121, -7],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_TCP,
        libc::TCP_USER_TIMEOUT,
        &[1, 0, -1, 30_000, i32::MAX],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        &[1, 100_000, 0],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_TCP,
        libc::TCP_DEFER_ACCEPT,
        &[1, 2, 10, 100, 0, -1],
    );
    for bad in [99, 1000, -1] {
        log.note("unknown", b.set_int(fd, IPPROTO_TCP, bad, 1));
        log.note("unknown", b.get_int(fd, IPPROTO_TCP, bad));
    }
}

fn tcp_defaults(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    for name in [
        libc::TCP_NODELAY,
        libc::TCP_MAXSEG,
        libc::TCP_CORK,
        libc::TCP_KEEPIDLE,
        libc::TCP_KEEPINTVL,
        libc::TCP_KEEPCNT,
        libc::TCP_SYNCNT,
        libc::TCP_LINGER2,
        libc::TCP_DEFER_ACCEPT,
        libc::TCP_QUICKACK,
        libc::TCP_USER_TIMEOUT,
        libc::TCP_FASTOPEN,
        libc::TCP_FASTOPEN_CONNECT,
        libc::TCP_FASTOPEN_NO_COOKIE,
        libc::TCP_INQ,
        43,
    ] {
        log.note(&format!("{name}"), b.get_int(fd, IPPROTO_TCP, name));
    }
    log.note(
        "timestamp",
        b.set_int(fd, IPPROTO_TCP, libc::TCP_TIMESTAMP, 1),
    );
}

fn maxseg(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    try_int(
        b,
        log,
        fd,
        IPPROTO_TCP,
        libc::TCP_MAXSEG,
        &[87, 88, 1000, 32_768, 0, 1200],
    );
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    log.note(
        "listener",
        b.set_int(listener, IPPROTO_TCP, libc::TCP_MAXSEG, 900),
    );
    let _ = b.connect(fd, "127.0.0.1", port);
    b.settle();
    let server = b.accept(listener);
    // Less twelve bytes of timestamps.
    log.note("client", b.get_int(fd, IPPROTO_TCP, libc::TCP_MAXSEG));
    log.note("server", b.get_int(server, IPPROTO_TCP, libc::TCP_MAXSEG));
}

fn congestion(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    let name = libc::TCP_CONGESTION;
    log.note("unknown", b.set(fd, IPPROTO_TCP, name, b"nonesuch"));
    log.note("empty", b.set(fd, IPPROTO_TCP, name, b""));
    log.note("reno", b.set(fd, IPPROTO_TCP, name, b"reno"));
    for len in [0, 1, 4, 16, 20] {
        log.note("is", b.get(fd, IPPROTO_TCP, name, len));
    }
    log.note("with nul", b.set(fd, IPPROTO_TCP, name, b"cubic\0junk"));
    log.note("is", b.get(fd, IPPROTO_TCP, name, 16));
    log.note("cc info", b.get(fd, IPPROTO_TCP, libc::TCP_CC_INFO, 64));
}

fn fastopen(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    try_int(b, log, fd, IPPROTO_TCP, libc::TCP_FASTOPEN, &[5, 0, -1]);
    try_int(
        b,
        log,
        fd,
        IPPROTO_TCP,
        libc::TCP_FASTOPEN_NO_COOKIE,
        &[1, 0, 2],
    );
    for len in [0, 8, 16, 24, 32, 33] {
        let key: Vec<u8> = (0..len).collect();
        let name = libc::TCP_FASTOPEN_KEY;
        log.note("key", b.set(fd, IPPROTO_TCP, name, &key));
        if matches!(len, 16 | 32) {
            log.note("is", b.get(fd, IPPROTO_TCP, name, 64));
        }
    }
    let (client, _server) = b.pair();
    log.note(
        "connected",
        b.set_int(client, IPPROTO_TCP, libc::TCP_FASTOPEN, 5),
    );
    log.note(
        "connected",
        b.set_int(client, IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE, 1),
    );
}

fn info(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    let state = |b: &mut dyn Backend, fd| b.get(fd, IPPROTO_TCP, libc::TCP_INFO, 300).1[0];
    log.note("closed", state(b, fd));
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    log.note("listening", state(b, listener));
    let _ = b.connect(fd, "127.0.0.1", port);
    b.settle();
    log.note("established", state(b, fd));
    let (_, bytes) = b.get(listener, IPPROTO_TCP, libc::TCP_INFO, 300);
    // tcpi_unacked and tcpi_sacked.
    log.note("waiting, backlog", (&bytes[24..28], &bytes[28..32]));
    let server = b.accept(listener);
    b.send(fd, b"some bytes", 0);
    b.settle();
    let (_, bytes) = b.get(fd, IPPROTO_TCP, libc::TCP_INFO, 300);
    // tcpi_bytes_acked counts the SYN on the kernel; tcpi_data_segs_out, tcpi_bytes_sent.
    log.note("segments", (&bytes[156..160], &bytes[200..208]));
    let (_, bytes) = b.get(server, IPPROTO_TCP, libc::TCP_INFO, 300);
    log.note("received", (&bytes[128..136], &bytes[152..156]));
    for len in [0, 1, 8, 104, 192] {
        let (ret, bytes) = b.get(fd, IPPROTO_TCP, libc::TCP_INFO, len);
        log.note("cut", (ret, bytes.len()));
    }
    b.shutdown(fd, SHUT_WR);
    b.settle_acks();
    log.note("fin-wait-2, close-wait", (state(b, fd), state(b, server)));
    b.shutdown(server, SHUT_WR);
    b.settle();
    log.note("closed", (state(b, fd), state(b, server)));
}

fn ip(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    try_int(
        b,
        log,
        fd,
        IPPROTO_IP,
        libc::IP_TOS,
        &[0x10, 0xff, 0x03, 0x100, -1, 0],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_IP,
        libc::IP_TTL,
        &[1, 0, 255, 256, -1, -2],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        &[0, 1, 2, 3, 6, -1],
    );
    for name in [libc::IP_FREEBIND, libc::IP_BIND_ADDRESS_NO_PORT] {
        try_int(b, log, fd, IPPROTO_IP, name, &[1, 0, 7]);
    }
    log.note("mtu", b.get_int(fd, IPPROTO_IP, libc::IP_MTU));
    log.note("unknown", b.get_int(fd, IPPROTO_IP, 999));
    log.note("unknown", b.set_int(fd, IPPROTO_IP, 999, 1));
    log.note("freebind", b.set_int(fd, IPPROTO_IP, libc::IP_FREEBIND, 1));
    log.note("foreign", b.bind(fd, "192.0.2.1", 0));
    let late = b.tcp();
    b.set_int(late, IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    log.note("no port", b.bind(late, "127.0.0.1", 0));
    log.note("port", b.port(late));
    let (_listener, port) = b.listener(AF_INET, "127.0.0.1");
    let _ = b.connect(late, "127.0.0.1", port);
    log.note("port", b.port(late) > 0);
}

fn datagram_ip(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.socket(AF_INET, libc::SOCK_DGRAM, 0);
    try_int(b, log, fd, IPPROTO_IP, libc::IP_TOS, &[0x10, 0xff, 0x100]);
    try_int(b, log, fd, IPPROTO_IP, libc::IP_TTL, &[1, 0, 255, 256, -1]);
    try_int(b, log, fd, IPPROTO_IP, libc::IP_MTU_DISCOVER, &[0, 2, 3, 6]);
    let fd = b.socket(AF_INET6, libc::SOCK_DGRAM, 0);
    try_int(
        b,
        log,
        fd,
        IPPROTO_IPV6,
        libc::IPV6_TCLASS,
        &[0x10, 0xff, 0x100, -1],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_IPV6,
        libc::IPV6_UNICAST_HOPS,
        &[1, 255, 256, -1],
    );
}

fn ipv6(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.socket(AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
    try_int(
        b,
        log,
        fd,
        IPPROTO_IPV6,
        libc::IPV6_TCLASS,
        &[0x10, 0xff, 0x03, 0x100, -1, -2],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_IPV6,
        libc::IPV6_UNICAST_HOPS,
        &[1, 255, 256, -1, -2],
    );
    try_int(
        b,
        log,
        fd,
        IPPROTO_IPV6,
        libc::IPV6_MTU_DISCOVER,
        &[0, 1, 2, 3, 6, -1],
    );
    for name in [libc::IPV6_V6ONLY, libc::IPV6_FREEBIND] {
        try_int(b, log, fd, IPPROTO_IPV6, name, &[1, 0, 7]);
    }
    log.note("mtu", b.get_int(fd, IPPROTO_IPV6, libc::IPV6_MTU));
    log.note("ipv4's", b.get_int(fd, IPPROTO_IP, libc::IP_TTL));
    let four = b.tcp();
    log.note("on ipv4", b.get_int(four, IPPROTO_IPV6, libc::IPV6_V6ONLY));
    log.note(
        "on ipv4",
        b.set_int(four, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
    );
    b.bind(fd, "::1", 0);
    log.note("bound", b.set_int(fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, 0));
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
    b.settle();
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

fn reuse(b: &mut dyn Backend, log: &mut Log) {
    let first = b.tcp();
    let second = b.tcp();
    b.set_int(first, SOL_SOCKET, libc::SO_REUSEADDR, 1);
    log.note("first", b.bind(first, "127.0.0.1", 0));
    let port = b.port(first) as u16;
    log.note("without", b.bind(second, "127.0.0.1", port));
    b.set_int(second, SOL_SOCKET, libc::SO_REUSEADDR, 1);
    log.note("with", b.bind(second, "127.0.0.1", port));
    log.note("listen", b.listen(first, 1));
    log.note("listen too", b.listen(second, 1));
    let third = b.tcp();
    b.set_int(third, SOL_SOCKET, libc::SO_REUSEADDR, 1);
    log.note("while one listens", b.bind(third, "127.0.0.1", port));
    b.close(first);
    log.note("listen now", b.listen(second, 1));
    let fourth = b.tcp();
    b.set_int(fourth, SOL_SOCKET, libc::SO_REUSEADDR, 1);
    log.note("wild", b.bind(fourth, "0.0.0.0", port));
}

fn reuse_port(b: &mut dyn Backend, log: &mut Log) {
    let first = b.tcp();
    let second = b.tcp();
    b.set_int(first, SOL_SOCKET, libc::SO_REUSEPORT, 1);
    b.bind(first, "127.0.0.1", 0);
    let port = b.port(first) as u16;
    log.note("without", b.bind(second, "127.0.0.1", port));
    b.set_int(second, SOL_SOCKET, libc::SO_REUSEPORT, 1);
    log.note("with", b.bind(second, "127.0.0.1", port));
    log.note("listen", b.listen(first, 1));
    log.note("listen too", b.listen(second, 1));
    let client = b.tcp();
    let _ = b.connect(client, "127.0.0.1", port);
    b.settle();
    let one = b.accept(first) >= 0;
    let other = b.accept(second) >= 0;
    log.note("one of them", one != other);
}

fn v6only(b: &mut dyn Backend, log: &mut Log) {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let six = b.socket(AF_INET6, kind, 0);
    log.note("both", b.bind(six, "::", 0));
    let port = b.port(six) as u16;
    let four = b.tcp();
    log.note("taken", b.bind(four, "0.0.0.0", port));
    b.close(six);
    let six = b.socket(AF_INET6, kind, 0);
    b.set_int(six, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
    log.note("one", b.bind(six, "::", port));
    log.note("other", b.bind(four, "0.0.0.0", port));
    log.note("listen", b.listen(six, 1));
    let client = b.tcp();
    let _ = b.connect(client, "127.0.0.1", port);
    b.settle();
    log.note("ipv4 is refused", b.poll(client));
    log.note("mapped", b.bind(six, "::ffff:127.0.0.1", 0));
    let only = b.socket(AF_INET6, kind, 0);
    b.set_int(only, IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
    log.note("bind mapped", b.bind(only, "::ffff:127.0.0.1", 0));
    log.note("connect mapped", b.connect(only, "::ffff:127.0.0.1", port));
}

fn mapped(b: &mut dyn Backend, log: &mut Log) {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let (listener, port) = b.listener(AF_INET6, "::");
    let four = b.tcp();
    let _ = b.connect(four, "127.0.0.1", port);
    b.settle();
    let server = b.accept(listener);
    log.note("names", (b.name(server, false), b.name(server, true)));
    let six = b.socket(AF_INET6, kind, 0);
    log.note("plain", b.connect(six, "127.0.0.1", port));
    let _ = b.connect(six, "::ffff:127.0.0.1", port);
    b.settle();
    log.note("connected", b.connect(six, "::ffff:127.0.0.1", port));
    log.note("names", (b.name(six, false), b.name(six, true)));
    let server = b.accept(listener);
    b.send(six, b"mapped", 0);
    b.settle();
    log.note("data", b.recv(server, 10, 0));
    let six = b.socket(AF_INET6, kind, 0);
    let _ = b.connect(six, "::1", port);
    b.settle();
    log.note("connected", b.connect(six, "::1", port));
    log.note("names", (b.name(six, false), b.name(six, true)));
    let bound = b.socket(AF_INET6, kind, 0);
    log.note("bind", b.bind(bound, "::ffff:127.0.0.1", 0));
    log.note("name", b.name(bound, false));
}

fn queues(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let all = |b: &mut dyn Backend, log: &mut Log, what: &str, fd: Ret| {
        let got = [SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, 0x1234].map(|r| b.ioctl(fd, r));
        log.note(what, got);
    };
    all(b, log, "idle", client);
    b.send(client, b"0123456789", 0);
    b.settle();
    all(b, log, "acknowledged", client);
    all(b, log, "received", server);
    b.recv(server, 4, 0);
    all(b, log, "half read", server);
    b.shutdown(client, SHUT_WR);
    b.settle();
    all(b, log, "with fin", server);
    let fresh = b.tcp();
    all(b, log, "fresh", fresh);
    let (listener, _) = b.listener(AF_INET, "127.0.0.1");
    let got = [SIOCINQ, SIOCOUTQ, SIOCOUTQNSD].map(|r| b.ioctl(listener, r));
    log.note("listener", got);
    let (reader, writer) = b.pipe();
    b.write(writer, b"abc");
    log.note("pipe", (b.ioctl(reader, SIOCINQ), b.ioctl(writer, SIOCINQ)));
    let set = b.epoll_create();
    log.note("epoll", b.ioctl(set, SIOCINQ));
}

fn timestamping(b: &mut dyn Backend, log: &mut Log) {
    let (client, _server) = b.pair();
    let name = libc::SO_TIMESTAMPING;
    for value in [
        0,
        2 | 16,
        1 << 30,
        1 << 16,
        128 | 2 | 16,
        128 | 1 << 16,
        0x100 | 0x200 | 0x10,
    ] {
        log.note(
            &format!("set {value:#x}"),
            b.set_int(client, SOL_SOCKET, name, value),
        );
        log.note("is", b.get(client, SOL_SOCKET, name, 8));
    }
    log.note("new", b.get(client, SOL_SOCKET, 65, 8));
    log.note("cut", b.get(client, SOL_SOCKET, name, 4));
    let fresh = b.tcp();
    log.note(
        "keys without connection",
        b.set_int(fresh, SOL_SOCKET, name, 128 | 2),
    );
    // Sent, acknowledged, keyed by the last byte.
    b.set_int(client, SOL_SOCKET, name, 0);
    b.set_int(client, SOL_SOCKET, name, 0x2 | 0x10 | 0x80 | 0x200 | 0x800);
    log.note("empty", b.recv(client, 10, libc::MSG_ERRQUEUE));
    b.send(client, b"watched", 0);
    b.settle();
    log.note("poll", b.poll(client));
    for _ in 0..3 {
        log.note("queue", b.recv(client, 0, libc::MSG_ERRQUEUE));
    }
    log.note("poll", b.poll(client));
    // With the packet, for which there is no room.
    b.set_int(client, SOL_SOCKET, name, 0x2 | 0x10 | 0x80 | 0x200);
    b.send(client, b"watched", 0);
    b.settle_acks();
    for _ in 0..3 {
        log.note("queue", b.recv(client, 0, libc::MSG_ERRQUEUE));
    }
}

fn control(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.set_int(server, IPPROTO_TCP, libc::TCP_INQ, 1);
    b.set_int(client, SOL_SOCKET, ZEROCOPY, 1);
    b.send(client, b"0123456789", libc::MSG_ZEROCOPY);
    b.settle();
    for room in [64, 24, 23, 20, 18, 16, 15, 0] {
        log.note("left", b.recv_control(server, 1, room, 0));
    }
    b.shutdown(client, SHUT_WR);
    b.settle();
    for _ in 0..3 {
        log.note("with the end", b.recv_control(server, 1, 64, 0));
    }
    log.note(
        "complete",
        b.recv_control(client, 0, 128, libc::MSG_ERRQUEUE),
    );
    // Times differ; how they are told does not.
    let shapes = |(ret, flags, control): (Ret, i32, Control)| {
        let shape = |(level, kind, data): (i32, i32, Vec<u8>)| (level, kind, data.len());
        (
            ret,
            flags,
            control.into_iter().map(shape).collect::<Vec<_>>(),
        )
    };
    let (client, server) = b.pair();
    // The kernel begins to keep times a little after somebody wants them.
    b.set_int(client, SOL_SOCKET, 29, 1);
    b.settle_acks();
    for name in [29, 35, 63, 64] {
        b.set_int(server, SOL_SOCKET, name, 1);
        b.send(client, b"timed", 0);
        b.settle();
        log.note(
            &format!("{name}"),
            shapes(b.recv_control(server, 100, 128, 0)),
        );
        b.set_int(server, SOL_SOCKET, name, 0);
    }
    for name in [37, 65] {
        b.set_int(server, SOL_SOCKET, name, 0x8 | 0x10);
        b.send(client, b"timed", 0);
        b.settle();
        log.note(
            &format!("{name}"),
            shapes(b.recv_control(server, 100, 128, 0)),
        );
        b.set_int(client, SOL_SOCKET, name, 0x2 | 0x10 | 0x800);
        b.send(client, b"timed", 0);
        b.settle();
        log.note(
            "sent",
            shapes(b.recv_control(client, 0, 256, libc::MSG_ERRQUEUE)),
        );
        b.recv(server, 100, 0);
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    let (listener, port) = b.listener(AF_INET6, "::1");
    let six = b.socket(AF_INET6, kind, 0);
    let _ = b.connect(six, "::1", port);
    b.settle();
    let server = b.accept(listener);
    b.set_int(six, SOL_SOCKET, ZEROCOPY, 1);
    b.send(six, b"six", libc::MSG_ZEROCOPY);
    b.settle();
    b.recv(server, 10, 0);
    b.settle();
    log.note("six", b.recv_control(six, 0, 128, libc::MSG_ERRQUEUE));
}

fn zerocopy(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    log.note("off", b.send(client, b"not told", libc::MSG_ZEROCOPY));
    b.settle();
    b.recv(server, 100, 0);
    b.settle();
    log.note("nothing", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    b.set_int(client, SOL_SOCKET, ZEROCOPY, 1);
    for _ in 0..3 {
        log.note("on", b.send(client, b"told", libc::MSG_ZEROCOPY));
        b.settle();
        b.recv(server, 100, 0);
        b.settle();
    }
    log.note("poll", b.poll(client));
    log.note("all in one", b.recv(client, 0, libc::MSG_ERRQUEUE));
    log.note("no more", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    log.note("poll", b.poll(client));
}
