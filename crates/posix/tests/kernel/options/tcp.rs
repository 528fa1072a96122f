//! Options of TCP.

use libc::{AF_INET, IPPROTO_TCP, SHUT_WR};

use super::try_int;
use crate::Scenario;
use crate::backend::{Backend, Log};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("tcp_ranges", tcp_ranges),
    ("tcp_defaults", tcp_defaults),
    ("maxseg", maxseg),
    ("congestion", congestion),
    ("fastopen", fastopen),
    ("info", info),
];

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
    b.wait_until_idle();
    let server = b.accept(listener);
    // Twelve bytes less, for timestamps.
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
    // Ordinary users may set Reno on every system, and others only where tcp_allowed_congestion_control
    // lists them.
    let fd = b.tcp();
    log.note("with nul", b.set(fd, IPPROTO_TCP, name, b"reno\0junk"));
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
    b.wait_until_idle();
    log.note("established", state(b, fd));
    let (_, bytes) = b.get(listener, IPPROTO_TCP, libc::TCP_INFO, 300);
    // tcpi_unacked and tcpi_sacked.
    log.note("waiting, backlog", (&bytes[24..28], &bytes[28..32]));
    let server = b.accept(listener);
    b.send(fd, b"some bytes", 0);
    b.wait_until_idle();
    let (_, bytes) = b.get(fd, IPPROTO_TCP, libc::TCP_INFO, 300);
    // tcpi_data_segs_out and tcpi_bytes_sent; tcpi_bytes_acked counts the SYN on the kernel.
    log.note("segments", (&bytes[156..160], &bytes[200..208]));
    let (_, bytes) = b.get(server, IPPROTO_TCP, libc::TCP_INFO, 300);
    log.note("received", (&bytes[128..136], &bytes[152..156]));
    for len in [0, 1, 8, 104, 192] {
        let (ret, bytes) = b.get(fd, IPPROTO_TCP, libc::TCP_INFO, len);
        log.note("cut", (ret, bytes.len()));
    }
    b.shutdown(fd, SHUT_WR);
    b.wait_for_delayed_acks();
    log.note("fin-wait-2, close-wait", (state(b, fd), state(b, server)));
    b.shutdown(server, SHUT_WR);
    b.wait_until_idle();
    log.note("closed", (state(b, fd), state(b, server)));
}
