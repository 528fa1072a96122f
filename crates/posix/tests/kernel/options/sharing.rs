//! Options for sharing a port, and IPv4 on IPv6 sockets.

use libc::{AF_INET6, IPPROTO_IPV6, SOL_SOCKET};

use crate::Scenario;
use crate::backend::{Backend, Log};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("reuse", reuse),
    ("reuse_port", reuse_port),
    ("v6only", v6only),
    ("mapped", mapped),
];

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
    b.wait_until_idle();
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
    b.wait_until_idle();
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
    b.wait_until_idle();
    let server = b.accept(listener);
    log.note("names", (b.name(server, false), b.name(server, true)));
    let six = b.socket(AF_INET6, kind, 0);
    log.note("plain", b.connect(six, "127.0.0.1", port));
    let _ = b.connect(six, "::ffff:127.0.0.1", port);
    b.wait_until_idle();
    log.note("connected", b.connect(six, "::ffff:127.0.0.1", port));
    log.note("names", (b.name(six, false), b.name(six, true)));
    let server = b.accept(listener);
    b.send(six, b"mapped", 0);
    b.wait_until_idle();
    log.note("data", b.recv(server, 10, 0));
    let six = b.socket(AF_INET6, kind, 0);
    let _ = b.connect(six, "::1", port);
    b.wait_until_idle();
    log.note("connected", b.connect(six, "::1", port));
    log.note("names", (b.name(six, false), b.name(six, true)));
    let bound = b.socket(AF_INET6, kind, 0);
    log.note("bind", b.bind(bound, "::ffff:127.0.0.1", 0));
    log.note("name", b.name(bound, false));
}
