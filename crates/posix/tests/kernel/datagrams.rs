//! Scenarios of UDP sockets.

use libc::{
    AF_INET, AF_INET6, MSG_PEEK, MSG_TRUNC, SHUT_RD, SHUT_RDWR, SHUT_WR, SO_ERROR, SOCK_DGRAM,
    SOCK_NONBLOCK, SOL_SOCKET,
};

use crate::Scenario;
use crate::backend::{Backend, Log, Ret};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("unconnected", unconnected),
    ("exchange", exchange),
    ("sizes", sizes),
    ("connected", connected),
    ("connected_late", connected_late),
    ("refused", refused),
    ("shutdown", shutdown),
    ("disconnect", disconnect),
    ("bind", bind),
    ("epoll", epoll),
    ("six", six),
    ("ioctl", ioctl),
];

fn udp(b: &mut dyn Backend) -> Ret {
    b.socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)
}

fn bound(b: &mut dyn Backend) -> (Ret, u16) {
    let fd = udp(b);
    assert_eq!(b.bind(fd, "127.0.0.1", 0), 0);
    let port = b.port(fd);
    (fd, port as u16)
}

fn unconnected(b: &mut dyn Backend, log: &mut Log) {
    let fd = udp(b);
    log.note("poll", b.poll(fd));
    log.note("send", b.send(fd, b"x", 0));
    log.note("recv", b.recv(fd, 1, 0));
    log.note("listen", b.listen(fd, 1));
    log.note("accept", b.accept(fd));
    log.note("peer", b.peer_port(fd));
    log.note("name", b.name(fd, false));
    log.note("shutdown", b.shutdown(fd, SHUT_RDWR));
    log.note("errqueue", b.recv(fd, 1, libc::MSG_ERRQUEUE).0);
    let other = udp(b);
    log.note("to port 0", b.send_to(other, b"x", 0, "127.0.0.1", 0));
    log.note("to ipv6", b.send_to(other, b"x", 0, "::1", 9));
    log.note("oob", b.send_to(other, b"x", libc::MSG_OOB, "127.0.0.1", 9));
    // Bound, because a kernel without a default route finds the device by the source address.
    let (source, _) = bound(b);
    let to_all = b.send_to(source, b"x", 0, "255.255.255.255", 9);
    log.note("broadcast", to_all);
}

fn exchange(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let other = udp(b);
    log.note("send", b.send_to(other, b"question", 0, "127.0.0.1", port));
    log.note("got a port", b.port(other) > 0);
    log.note("any", b.name(other, false));
    b.wait_until_idle();
    log.note("poll", b.poll(one));
    log.note("peek", b.recv(one, 100, MSG_PEEK));
    log.note("recv", b.recv(one, 100, 0));
    log.note("none", b.recv(one, 100, 0));
    log.note("poll", b.poll(one));
    log.note("to any", b.send_to(other, b"x", 0, "0.0.0.0", port));
    b.wait_until_idle();
    log.note("arrives", b.recv(one, 100, 0));
}

fn sizes(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let other = udp(b);
    log.note("empty", b.send_to(other, b"", 0, "127.0.0.1", port));
    b.wait_until_idle();
    log.note("poll", b.poll(one));
    log.note("empty", b.recv(one, 10, 0));
    for _ in 0..3 {
        b.send_to(other, b"0123456789", 0, "127.0.0.1", port);
    }
    b.wait_until_idle();
    log.note("cut", b.recv(one, 4, 0));
    log.note("cut, length", b.recv(one, 4, MSG_TRUNC));
    log.note("peek, length", b.recv(one, 4, MSG_TRUNC | MSG_PEEK));
    log.note("none of it", b.recv(one, 0, 0));
    log.note("none", b.recv(one, 10, 0));
    let block = vec![1; 65_508];
    log.note("too long", b.send_to(other, &block, 0, "127.0.0.1", port));
    log.note(
        "longest",
        b.send_to(other, &block[..65_507], 0, "127.0.0.1", port),
    );
    b.wait_until_idle();
    log.note("arrives", b.recv(one, 70_000, 0).0);
}

fn connected(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let (stranger, _) = bound(b);
    let client = udp(b);
    log.note("connect", b.connect(client, "127.0.0.1", port));
    log.note("names", (b.name(client, false), b.name(client, true)));
    log.note("peer", b.peer_port(client) == Ret::from(port));
    log.note("send", b.send(client, b"hello", 0));
    log.note("write", b.write(client, b"again"));
    b.wait_until_idle();
    log.note("recv", b.recv(one, 10, 0));
    log.note("read", b.read(one, 10));
    let own = b.port(client) as u16;
    b.send_to(stranger, b"spam", 0, "127.0.0.1", own);
    b.send_to(one, b"answer", 0, "127.0.0.1", own);
    b.wait_until_idle();
    log.note("only the peer's", b.recv(client, 10, 0));
    log.note("none", b.recv(client, 10, 0));
    log.note("elsewhere", b.send_to(client, b"x", 0, "127.0.0.1", port));
    log.note("connect anew", b.connect(client, "127.0.0.1", port));
    log.note("wrong family", b.connect(client, "::1", port));
}

/// Datagrams and errors received before `connect` are kept.
fn connected_late(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let (stranger, _) = bound(b);
    let (gone, dead) = bound(b);
    b.close(gone);
    let (client, own) = bound(b);
    b.send_to(stranger, b"early", 0, "127.0.0.1", own);
    b.wait_until_idle();
    log.note("connect", b.connect(client, "127.0.0.1", port));
    b.send_to(stranger, b"late", 0, "127.0.0.1", own);
    b.send_to(one, b"answer", 0, "127.0.0.1", own);
    b.wait_until_idle();
    for _ in 0..3 {
        log.note("recv", b.recv(client, 10, 0));
    }
    b.connect(client, "127.0.0.1", dead);
    b.send(client, b"x", 0);
    b.wait_until_idle();
    log.note("connect anew", b.connect(client, "127.0.0.1", port));
    log.note("error", b.get_int(client, SOL_SOCKET, SO_ERROR));
}

fn refused(b: &mut dyn Backend, log: &mut Log) {
    let (gone, port) = bound(b);
    b.close(gone);
    let client = udp(b);
    b.connect(client, "127.0.0.1", port);
    log.note("send", b.send(client, b"x", 0));
    b.wait_until_idle();
    log.note("poll", b.poll(client));
    log.note("recv", b.recv(client, 10, 0));
    log.note("once", b.recv(client, 10, 0));
    b.send(client, b"x", 0);
    b.wait_until_idle();
    log.note("send tells", b.send(client, b"x", 0));
    b.wait_until_idle();
    log.note("error", b.get_int(client, SOL_SOCKET, SO_ERROR));
    log.note("error", b.get_int(client, SOL_SOCKET, SO_ERROR));
    log.note("poll", b.poll(client));
    let unconnected = udp(b);
    b.send_to(unconnected, b"x", 0, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("no one is notified", b.poll(unconnected));
}

fn shutdown(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let client = udp(b);
    b.connect(client, "127.0.0.1", port);
    log.note("write", b.shutdown(client, SHUT_WR));
    log.note("send", b.send(client, b"x", 0));
    log.note("poll", b.poll(client));
    log.note("read", b.shutdown(client, SHUT_RD));
    log.note("poll", b.poll(client));
    log.note("recv", b.recv(client, 10, 0));
    log.note("bad", b.shutdown(client, 9));
    let _ = one;
}

fn disconnect(b: &mut dyn Backend, log: &mut Log) {
    let (_one, port) = bound(b);
    let client = udp(b);
    b.connect(client, "127.0.0.1", port);
    log.note("disconnect", b.disconnect(client));
    log.note("peer", b.peer_port(client));
    log.note("send", b.send(client, b"x", 0));
}

fn bind(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let other = udp(b);
    log.note("again", b.bind(one, "127.0.0.1", 0));
    log.note("taken", b.bind(other, "127.0.0.1", port));
    log.note("wild", b.bind(other, "0.0.0.0", port));
    log.note("foreign", b.bind(other, "192.0.2.1", port));
    log.note("other address", b.bind(other, "127.0.0.2", port));
    b.close(one);
    let third = udp(b);
    log.note("free again", b.bind(third, "127.0.0.1", port));
    // TCP has separate ports.
    let tcp = b.tcp();
    log.note("tcp", b.bind(tcp, "127.0.0.1", port));
}

fn epoll(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let other = udp(b);
    let set = b.epoll_create();
    let edge = libc::EPOLLIN as u32 | libc::EPOLLET as u32;
    b.epoll_ctl(set, libc::EPOLL_CTL_ADD, one, edge, 1);
    log.note("none", b.epoll_wait(set, 4));
    for _ in 0..2 {
        b.send_to(other, b"x", 0, "127.0.0.1", port);
        b.wait_until_idle();
        log.note("edge", b.epoll_wait(set, 4));
        log.note("reported", b.epoll_wait(set, 4));
    }
    b.epoll_ctl(set, libc::EPOLL_CTL_MOD, one, libc::EPOLLIN as u32, 2);
    log.note("level", b.epoll_wait(set, 4));
    b.recv(one, 1, 0);
    log.note("level", b.epoll_wait(set, 4));
    b.recv(one, 1, 0);
    log.note("level", b.epoll_wait(set, 4));
}

fn six(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    log.note("bind", b.bind(fd, "::", 0));
    let port = b.port(fd) as u16;
    let four = udp(b);
    b.send_to(four, b"mapped", 0, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("recv", b.recv(fd, 10, 0));
    let client = b.socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    log.note("connect", b.connect(client, "::ffff:127.0.0.1", port));
    log.note("names", (b.name(client, false), b.name(client, true)));
    log.note("send", b.send(client, b"x", 0));
    let client = b.socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    log.note("connect", b.connect(client, "::1", port));
    log.note("names", (b.name(client, false), b.name(client, true)));
    log.note("send", b.send(client, b"six", 0));
    b.wait_until_idle();
    log.note("recv", b.recv(fd, 10, 0).0);
}

fn ioctl(b: &mut dyn Backend, log: &mut Log) {
    let (one, port) = bound(b);
    let other = udp(b);
    let all = |b: &mut dyn Backend, log: &mut Log| {
        use fullsend_posix::abi::{SIOCINQ, SIOCOUTQ, SIOCOUTQNSD};
        log.note(
            "queues",
            [SIOCINQ, SIOCOUTQ, SIOCOUTQNSD].map(|r| b.ioctl(one, r)),
        );
    };
    all(b, log);
    b.send_to(other, b"12345", 0, "127.0.0.1", port);
    b.send_to(other, b"678", 0, "127.0.0.1", port);
    b.wait_until_idle();
    all(b, log);
    b.recv(one, 10, 0);
    all(b, log);
}
