//! Reports of stream sockets: queue lengths, timestamps, completions.

use fullsend_posix::abi::{SIOCATMARK, SIOCINQ, SIOCOUTQ, SIOCOUTQNSD};
use libc::{AF_INET, AF_INET6, IPPROTO_TCP, SHUT_WR, SOL_SOCKET};

use super::ZEROCOPY;
use crate::Scenario;
use crate::backend::{Backend, Control, Log, Ret};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("queues", queues),
    ("timestamping", timestamping),
    ("control", control),
    ("zerocopy", zerocopy),
];

fn queues(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let all = |b: &mut dyn Backend, log: &mut Log, what: &str, fd: Ret| {
        let got = [SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, 0x1234].map(|r| b.ioctl(fd, r));
        log.note(what, got);
    };
    all(b, log, "idle", client);
    b.send(client, b"0123456789", 0);
    b.wait_until_idle();
    all(b, log, "acknowledged", client);
    all(b, log, "received", server);
    b.recv(server, 4, 0);
    all(b, log, "half read", server);
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
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
    // Timestamps of sending and acknowledgement, with the number of the last byte as key.
    b.set_int(client, SOL_SOCKET, name, 0);
    b.set_int(client, SOL_SOCKET, name, 0x2 | 0x10 | 0x80 | 0x200 | 0x800);
    log.note("empty", b.recv(client, 10, libc::MSG_ERRQUEUE));
    b.send(client, b"watched", 0);
    b.wait_until_idle();
    log.note("poll", b.poll(client));
    for _ in 0..3 {
        log.note("queue", b.recv(client, 0, libc::MSG_ERRQUEUE));
    }
    log.note("poll", b.poll(client));
    // Timestamps with the packet, for which there is no room.
    b.set_int(client, SOL_SOCKET, name, 0x2 | 0x10 | 0x80 | 0x200);
    b.send(client, b"watched", 0);
    b.wait_for_delayed_acks();
    for _ in 0..3 {
        log.note("queue", b.recv(client, 0, libc::MSG_ERRQUEUE));
    }
}

fn control(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.set_int(server, IPPROTO_TCP, libc::TCP_INQ, 1);
    b.set_int(client, SOL_SOCKET, ZEROCOPY, 1);
    b.send(client, b"0123456789", libc::MSG_ZEROCOPY);
    b.wait_until_idle();
    for room in [64, 24, 23, 20, 18, 16, 15, 0] {
        log.note("left", b.recv_control(server, 1, room, 0));
    }
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    for _ in 0..3 {
        log.note("with the end", b.recv_control(server, 1, 64, 0));
    }
    log.note(
        "complete",
        b.recv_control(client, 0, 128, libc::MSG_ERRQUEUE),
    );
    // The times differ; the layout does not.
    let shapes = |(ret, flags, control): (Ret, i32, Control)| {
        let shape = |(level, kind, data): (i32, i32, Vec<u8>)| (level, kind, data.len());
        (
            ret,
            flags,
            control.into_iter().map(shape).collect::<Vec<_>>(),
        )
    };
    let (client, server) = b.pair();
    // The kernel starts to record times some time after they are requested.
    b.set_int(client, SOL_SOCKET, 29, 1);
    b.wait_for_delayed_acks();
    for name in [29, 35, 63, 64] {
        b.set_int(server, SOL_SOCKET, name, 1);
        b.send(client, b"timed", 0);
        b.wait_until_idle();
        log.note(
            &format!("{name}"),
            shapes(b.recv_control(server, 100, 128, 0)),
        );
        b.set_int(server, SOL_SOCKET, name, 0);
    }
    for name in [37, 65] {
        b.set_int(server, SOL_SOCKET, name, 0x8 | 0x10);
        b.send(client, b"timed", 0);
        b.wait_until_idle();
        log.note(
            &format!("{name}"),
            shapes(b.recv_control(server, 100, 128, 0)),
        );
        b.set_int(client, SOL_SOCKET, name, 0x2 | 0x10 | 0x800);
        b.send(client, b"timed", 0);
        b.wait_until_idle();
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
    b.wait_until_idle();
    let server = b.accept(listener);
    b.set_int(six, SOL_SOCKET, ZEROCOPY, 1);
    b.send(six, b"six", libc::MSG_ZEROCOPY);
    b.wait_until_idle();
    b.recv(server, 10, 0);
    b.wait_until_idle();
    log.note("six", b.recv_control(six, 0, 128, libc::MSG_ERRQUEUE));
}

fn zerocopy(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    log.note("off", b.send(client, b"not told", libc::MSG_ZEROCOPY));
    b.wait_until_idle();
    b.recv(server, 100, 0);
    b.wait_until_idle();
    log.note("nothing", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    b.set_int(client, SOL_SOCKET, ZEROCOPY, 1);
    for _ in 0..3 {
        log.note("on", b.send(client, b"told", libc::MSG_ZEROCOPY));
        b.wait_until_idle();
        b.recv(server, 100, 0);
        b.wait_until_idle();
    }
    log.note("poll", b.poll(client));
    log.note("all in one", b.recv(client, 0, libc::MSG_ERRQUEUE));
    log.note("no more", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    log.note("poll", b.poll(client));
}
