//! Scenarios of epoll sets and pipes.

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT,
    EPOLLOUT, EPOLLRDHUP, SHUT_RD, SHUT_WR,
};

use crate::Scenario;
use crate::backend::{Backend, Log, Ret};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("control", control),
    ("level", level),
    ("edge", edge),
    ("edge_both_ways", edge_both_ways),
    ("edge_out", edge_out),
    ("edge_of_fin_and_reset", edge_of_fin_and_reset),
    ("edge_of_connect", edge_of_connect),
    ("edge_of_errors", edge_of_errors),
    ("edge_of_own_shutdown", edge_of_own_shutdown),
    ("edge_listener", edge_listener),
    ("oneshot", oneshot),
    ("oneshot_edge", oneshot_edge),
    ("exclusive", exclusive),
    ("rotation", rotation),
    ("closing", closing),
    ("nesting", nesting),
    ("pipes", pipes),
    ("splices", splices),
    ("not_sockets", not_sockets),
];

const IN: u32 = EPOLLIN as u32;
const OUT: u32 = EPOLLOUT as u32;
const RDHUP: u32 = EPOLLRDHUP as u32;
const ET: u32 = EPOLLET as u32;
const ONESHOT: u32 = EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = EPOLLEXCLUSIVE as u32;

fn control(b: &mut dyn Backend, log: &mut Log) {
    let (client, _server) = b.pair();
    let set = b.epoll_create();
    log.note("empty", b.epoll_wait(set, 4));
    log.note(
        "mod unknown",
        b.epoll_ctl(set, EPOLL_CTL_MOD, client, IN, 1),
    );
    log.note(
        "del unknown",
        b.epoll_ctl(set, EPOLL_CTL_DEL, client, IN, 1),
    );
    log.note("add", b.epoll_ctl(set, EPOLL_CTL_ADD, client, IN, 1));
    log.note("add again", b.epoll_ctl(set, EPOLL_CTL_ADD, client, IN, 1));
    log.note("itself", b.epoll_ctl(set, EPOLL_CTL_ADD, set, IN, 1));
    log.note(
        "to a socket",
        b.epoll_ctl(client, EPOLL_CTL_ADD, set, IN, 1),
    );
    log.note("unknown op", b.epoll_ctl(set, 9, client, IN, 1));
    log.note(
        "exclusive mod",
        b.epoll_ctl(set, EPOLL_CTL_MOD, client, IN | EXCLUSIVE, 1),
    );
    log.note("mod", b.epoll_ctl(set, EPOLL_CTL_MOD, client, OUT, 2));
    log.note("ready", b.epoll_wait(set, 4));
    log.note("no room", b.epoll_wait(set, 0));
    log.note("wait on a socket", b.epoll_wait(client, 4).0);
    log.note(
        "nothing requested",
        b.epoll_ctl(set, EPOLL_CTL_MOD, client, 0, 2),
    );
    log.note("ready", b.epoll_wait(set, 4));
    log.note("del", b.epoll_ctl(set, EPOLL_CTL_DEL, client, 0, 0));
    log.note("ready", b.epoll_wait(set, 4));
    let fresh = b.tcp();
    log.note("fresh", b.epoll_ctl(set, EPOLL_CTL_ADD, fresh, IN, 3));
    log.note("hung up", b.epoll_wait(set, 4));
}

fn level(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN | RDHUP, 5);
    log.note("none", b.epoll_wait(set, 4));
    b.send(client, b"ab", 0);
    b.wait_until_idle();
    log.note("data", b.epoll_wait(set, 4));
    log.note("still", b.epoll_wait(set, 4));
    b.recv(server, 1, 0);
    log.note("half read", b.epoll_wait(set, 4));
    b.recv(server, 1, 0);
    log.note("read", b.epoll_wait(set, 4));
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    log.note("end", b.epoll_wait(set, 4));
    log.note("stays", b.epoll_wait(set, 4));
}

fn edge(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN | ET, 5);
    log.note("none", b.epoll_wait(set, 4));
    b.send(client, b"ab", 0);
    b.wait_until_idle();
    log.note("data", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    b.recv(server, 1, 0);
    log.note("half read", b.epoll_wait(set, 4));
    b.send(client, b"cd", 0);
    b.wait_until_idle();
    log.note("more data", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    b.send(client, b"ef", 0);
    b.wait_until_idle();
    log.note("more, nothing read", b.epoll_wait(set, 4));
    b.send(client, b"gh", 0);
    b.wait_until_idle();
    b.recv(server, 100, 0);
    log.note("read before requested", b.epoll_wait(set, 4));
    b.send(client, b"ij", 0);
    b.wait_until_idle();
    log.note("and again", b.epoll_wait(set, 4));
    log.note(
        "mod tells again",
        b.epoll_ctl(set, EPOLL_CTL_MOD, server, IN | ET, 6),
    );
    log.note("reported", b.epoll_wait(set, 4));
    log.note("once", b.epoll_wait(set, 4));
}

fn edge_both_ways(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN | OUT | ET, 5);
    log.note("writable", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    b.send(client, b"ab", 0);
    b.wait_until_idle();
    log.note("data", b.epoll_wait(set, 4));
    b.send(server, b"answer", 0);
    b.wait_until_idle();
    log.note("acknowledged", b.epoll_wait(set, 4));
}

fn edge_out(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, client, OUT | ET, 5);
    log.note("writable", b.epoll_wait(set, 4));
    let block = vec![1; 65_536];
    let mut sent = 0;
    loop {
        let n = b.send(client, &block, 0);
        if n < 0 {
            break;
        }
        sent += n;
        b.wait_until_idle();
    }
    log.note("full", b.epoll_wait(set, 4));
    b.send(server, b"x", 0);
    b.wait_until_idle();
    log.note("data is not room", b.epoll_wait(set, 4));
    let mut read = 0;
    while read < sent {
        match b.recv(server, 1 << 20, 0).0 {
            n if n > 0 => read += n,
            _ => b.wait_until_idle(),
        }
    }
    b.wait_until_idle();
    log.note("room", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
}

fn edge_of_fin_and_reset(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN | OUT | RDHUP | ET, 5);
    log.note("writable", b.epoll_wait(set, 4));
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    log.note("fin", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
    b.set(client, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    b.close(client);
    b.wait_until_idle();
    log.note("after close", b.epoll_wait(set, 4));
    let (client, server) = b.pair();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, ET, 6);
    log.note("nothing requested", b.epoll_wait(set, 4));
    b.set(client, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    b.close(client);
    b.wait_until_idle();
    log.note("reset", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    let (client, server) = b.pair();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, OUT | ET, 7);
    log.note("writable", b.epoll_wait(set, 4));
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    log.note("fin to a writer", b.epoll_wait(set, 4));
}

fn edge_of_connect(b: &mut dyn Backend, log: &mut Log) {
    let (_listener, port) = b.listener(libc::AF_INET, "127.0.0.1");
    let client = b.tcp();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, client, OUT | IN | ET, 5);
    log.note("fresh", b.epoll_wait(set, 4));
    let _ = b.connect(client, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("established", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    log.note("connect", b.connect(client, "127.0.0.1", port));
    log.note("reported", b.epoll_wait(set, 4));
}

fn edge_of_errors(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, client, ET, 5);
    // Timestamps of sending and acknowledgement, without the packet.
    let flags = 0x2 | 0x10 | 0x200 | 0x800;
    let name = libc::SO_TIMESTAMPING;
    b.set_int(client, libc::SOL_SOCKET, name, flags);
    log.note("none", b.epoll_wait(set, 4));
    b.send(client, b"x", 0);
    b.wait_for_delayed_acks();
    log.note("two", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    log.note("take", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    log.note("one is left", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    b.set_int(client, libc::SOL_SOCKET, name, 0);
    b.send(client, b"x", 0);
    b.wait_for_delayed_acks();
    log.note("nothing new", b.epoll_wait(set, 4));
    log.note("take", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    log.note("none is left", b.epoll_wait(set, 4));
    log.note("none", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    b.set_int(client, libc::SOL_SOCKET, 60, 1);
    for _ in 0..2 {
        b.send(client, b"x", libc::MSG_ZEROCOPY);
        b.wait_until_idle();
        b.recv(server, 10, 0);
        b.wait_until_idle();
        log.note("complete", b.epoll_wait(set, 4));
    }
    log.note("take", b.recv(client, 0, libc::MSG_ERRQUEUE).0);
    log.note("none is left", b.epoll_wait(set, 4));
}

fn edge_of_own_shutdown(b: &mut dyn Backend, log: &mut Log) {
    let (_client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN | OUT | RDHUP | ET, 5);
    log.note("writable", b.epoll_wait(set, 4));
    b.shutdown(server, SHUT_RD);
    log.note("read shut", b.epoll_wait(set, 4));
    b.shutdown(server, SHUT_WR);
    log.note("write shut", b.epoll_wait(set, 4));
    b.wait_for_delayed_acks();
    log.note("after", b.epoll_wait(set, 4));
}

fn edge_listener(b: &mut dyn Backend, log: &mut Log) {
    let (listener, port) = b.listener(libc::AF_INET, "127.0.0.1");
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, listener, IN | ET, 5);
    log.note("none", b.epoll_wait(set, 4));
    for _ in 0..2 {
        let client = b.tcp();
        let _ = b.connect(client, "127.0.0.1", port);
        b.wait_until_idle();
        log.note("one", b.epoll_wait(set, 4));
        log.note("reported", b.epoll_wait(set, 4));
    }
    b.accept(listener);
    log.note("one is left", b.epoll_wait(set, 4));
}

fn oneshot(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN | ONESHOT, 5);
    b.send(client, b"a", 0);
    b.wait_until_idle();
    log.note("data", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    b.send(client, b"b", 0);
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    log.note("off", b.epoll_wait(set, 4));
    log.note(
        "on",
        b.epoll_ctl(set, EPOLL_CTL_MOD, server, IN | ONESHOT, 6),
    );
    log.note("data", b.epoll_wait(set, 4));
    log.note("reported", b.epoll_wait(set, 4));
    log.note("known", b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN, 6));
}

fn oneshot_edge(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN | ONESHOT | ET, 5);
    log.note("none", b.epoll_wait(set, 4));
    b.send(client, b"a", 0);
    b.wait_until_idle();
    log.note("data", b.epoll_wait(set, 4));
    b.send(client, b"b", 0);
    b.wait_until_idle();
    log.note("off", b.epoll_wait(set, 4));
    b.epoll_ctl(set, EPOLL_CTL_MOD, server, IN | ONESHOT | ET, 5);
    log.note("on", b.epoll_wait(set, 4));
    log.note("off", b.epoll_wait(set, 4));
}

fn exclusive(b: &mut dyn Backend, log: &mut Log) {
    let (listener, port) = b.listener(libc::AF_INET, "127.0.0.1");
    let set = b.epoll_create();
    let with = |events| events | EXCLUSIVE;
    let inner = b.epoll_create();
    log.note(
        "rdhup",
        b.epoll_ctl(set, EPOLL_CTL_ADD, listener, with(IN | RDHUP), 1),
    );
    log.note(
        "oneshot",
        b.epoll_ctl(set, EPOLL_CTL_ADD, listener, with(IN | ONESHOT), 1),
    );
    log.note("a set", b.epoll_ctl(set, EPOLL_CTL_ADD, inner, with(IN), 1));
    log.note(
        "add",
        b.epoll_ctl(set, EPOLL_CTL_ADD, listener, with(IN), 1),
    );
    log.note("mod", b.epoll_ctl(set, EPOLL_CTL_MOD, listener, IN, 1));
    let client = b.tcp();
    let _ = b.connect(client, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("ready", b.epoll_wait(set, 4));
    log.note("del", b.epoll_ctl(set, EPOLL_CTL_DEL, listener, 0, 0));
    log.note("none", b.epoll_wait(set, 4));
}

fn rotation(b: &mut dyn Backend, log: &mut Log) {
    let set = b.epoll_create();
    for i in 0..5 {
        let (client, server) = b.pair();
        b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN, i);
        b.send(client, b"x", 0);
        b.wait_until_idle();
    }
    for _ in 0..6 {
        log.note("two of five", b.epoll_wait(set, 2));
    }
}

fn closing(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let set = b.epoll_create();
    b.epoll_ctl(set, EPOLL_CTL_ADD, server, IN, 1);
    b.send(client, b"x", 0);
    b.wait_until_idle();
    b.close(server);
    log.note("closed ones leave", b.epoll_wait(set, 4));
    b.epoll_ctl(set, EPOLL_CTL_ADD, client, IN, 2);
    log.note("close the set", b.close(set));
    b.wait_until_idle();
    log.note("member lives", b.poll(client));
}

fn nesting(b: &mut dyn Backend, log: &mut Log) {
    let sets: Vec<Ret> = (0..7).map(|_| b.epoll_create()).collect();
    for pair in sets.windows(2) {
        let ret = b.epoll_ctl(pair[0], EPOLL_CTL_ADD, pair[1], IN, 1);
        log.note("inside", ret);
    }
    log.note("loop", b.epoll_ctl(sets[2], EPOLL_CTL_ADD, sets[0], IN, 1));
    let (client, server) = b.pair();
    log.note("member", b.epoll_ctl(sets[2], EPOLL_CTL_ADD, server, IN, 9));
    log.note("none", b.poll(sets[0]));
    b.send(client, b"x", 0);
    b.wait_until_idle();
    log.note("outermost", b.poll(sets[0]));
    log.note("outermost", b.epoll_wait(sets[0], 4));
    log.note("innermost", b.epoll_wait(sets[2], 4));
    b.recv(server, 10, 0);
    log.note("read", b.epoll_wait(sets[0], 4));
    log.note("read it", b.read(sets[0], 4));
    log.note("write it", b.write(sets[0], b"x"));
}

fn pipes(b: &mut dyn Backend, log: &mut Log) {
    let (reader, writer) = b.pipe();
    let ends = |b: &mut dyn Backend, log: &mut Log| {
        log.note("polls", (b.poll(reader), b.poll(writer)));
    };
    ends(b, log);
    log.note("empty", b.read(reader, 10));
    log.note("write", b.write(writer, b"hello"));
    ends(b, log);
    log.note("wrong ends", (b.write(reader, b"x"), b.read(writer, 1)));
    log.note("read", b.read(reader, 2));
    log.note("fill", b.write(writer, &vec![1; 60_000]));
    log.note("fill", b.write(writer, &vec![1; 60_000]) > 0);
    ends(b, log);
    log.note("full", b.write(writer, b"x"));
    log.note("close", b.close(writer));
    log.note("poll", b.poll(reader));
    while b.read(reader, 50_000) > 0 {}
    log.note("poll", b.poll(reader));
    log.note("end", b.read(reader, 10));
    let (reader, writer) = b.pipe();
    b.close(reader);
    log.note("poll", b.poll(writer));
}

fn splices(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let (reader, writer) = b.pipe();
    log.note("nothing there", b.splice(server, writer, 100));
    log.note("empty pipe", b.splice(reader, client, 100));
    b.send(client, b"through the pipe", 0);
    b.wait_until_idle();
    log.note("in", b.splice(server, writer, 7));
    log.note("in", b.splice(server, writer, 100));
    log.note("back", b.splice(reader, server, 100));
    b.wait_until_idle();
    log.note("arrived", b.recv(client, 100, 0));
    log.note("no pipe", b.splice(client, server, 10));
    log.note("wrong end", b.splice(server, reader, 10));
    log.note("own pipe", b.splice(reader, writer, 10));
    log.note("none", b.splice(server, writer, 0));
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    log.note("end", b.splice(server, writer, 10));
    b.close(writer);
    log.note("end of pipe", b.splice(reader, server, 10));
    let fresh = b.tcp();
    let (_reader, writer) = b.pipe();
    log.note("unconnected", b.splice(fresh, writer, 10));
}

fn not_sockets(b: &mut dyn Backend, log: &mut Log) {
    let (reader, _writer) = b.pipe();
    let set = b.epoll_create();
    for fd in [reader, set] {
        log.note("bind", b.bind(fd, "127.0.0.1", 0));
        log.note("listen", b.listen(fd, 1));
        log.note("accept", b.accept(fd));
        log.note("connect", b.connect(fd, "127.0.0.1", 1));
        log.note("shutdown", b.shutdown(fd, SHUT_RD));
        log.note("send", b.send(fd, b"x", 0));
        log.note("recv", b.recv(fd, 1, 0).0);
        log.note("name", b.name(fd, false));
        log.note("get", b.get(fd, libc::SOL_SOCKET, libc::SO_TYPE, 4).0);
        log.note(
            "set",
            b.set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &[1, 0, 0, 0]),
        );
    }
}
