//! Scenarios of stream sockets.

use libc::{
    AF_INET, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SHUT_RD, SHUT_RDWR, SHUT_WR, SO_ERROR,
    SO_LINGER, SOCK_STREAM, SOL_SOCKET,
};

use crate::Scenario;
use crate::backend::{Backend, Log, Ret};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("socket", socket),
    ("unconnected", unconnected),
    ("bind", bind),
    ("listen", listen),
    ("connect", connect),
    ("refused", refused),
    ("refused_so_error", refused_so_error),
    ("accept", accept),
    ("data", data),
    ("peek_and_trunc", peek_and_trunc),
    ("half_close", half_close),
    ("half_close_by_both", half_close_by_both),
    ("shutdown_read", shutdown_read),
    ("shutdown_both", shutdown_both),
    ("shutdown_elsewhere", shutdown_elsewhere),
    ("peer_closes_with_unread_data", peer_closes_with_unread_data),
    ("reset_by_linger", reset_by_linger),
    ("reset_after_fin", reset_after_fin),
    ("reset_with_data_to_read", reset_with_data_to_read),
    ("disconnect", disconnect),
    ("full_buffer", full_buffer),
    ("names", names),
];

fn all(b: &mut dyn Backend, log: &mut Log, what: &str, fd: Ret) {
    log.note(&format!("{what} poll"), b.poll(fd));
    log.note(&format!("{what} peer"), b.peer_port(fd).min(0));
}

fn socket(b: &mut dyn Backend, log: &mut Log) {
    for (domain, kind, protocol) in [
        (AF_INET, SOCK_STREAM, 0),
        (AF_INET, SOCK_STREAM, 6),
        (AF_INET, SOCK_STREAM, 17),
        (AF_INET, 77, 0),
        (AF_INET, 1 << 4, 0),
        (99, SOCK_STREAM, 0),
        (libc::AF_INET6, SOCK_STREAM, 0),
        (libc::AF_INET6, SOCK_STREAM, 17),
        (AF_INET, SOCK_STREAM | 0x100, 0),
        (AF_INET, SOCK_STREAM, -1),
        (AF_INET, SOCK_STREAM, 300),
    ] {
        let ret = b.socket(domain, kind, protocol).min(0);
        log.note(&format!("socket {domain} {kind} {protocol}"), ret);
    }
}

fn unconnected(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    all(b, log, "fresh", fd);
    log.note("accept", b.accept(fd));
    log.note("send", b.send(fd, b"x", 0));
    log.note("send nothing", b.send(fd, b"", 0));
    log.note("recv", b.recv(fd, 10, 0));
    log.note("recv peek", b.recv(fd, 10, MSG_PEEK));
    log.note("recv oob", b.recv(fd, 10, libc::MSG_OOB).0);
    log.note("recv errqueue", b.recv(fd, 10, libc::MSG_ERRQUEUE).0);
    for how in [SHUT_RD, SHUT_WR, SHUT_RDWR, 3, -1] {
        log.note("shutdown", b.shutdown(fd, how));
        log.note("poll", b.poll(fd));
    }
    log.note("name", b.name(fd, false));
    log.note("error", b.get(fd, SOL_SOCKET, SO_ERROR, 4));
}

fn bind(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    log.note("foreign", b.bind(fd, "192.0.2.1", 0));
    log.note("wrong family", b.bind(fd, "::1", 0));
    log.note("local", b.bind(fd, "127.0.0.1", 0));
    let port = b.port(fd);
    log.note("has a port", port > 0);
    log.note("again", b.bind(fd, "127.0.0.1", 0));
    log.note("poll", b.poll(fd));
    let other = b.tcp();
    log.note("same", b.bind(other, "127.0.0.1", port as u16));
    log.note("wild", b.bind(other, "0.0.0.0", port as u16));
    log.note("other address", b.bind(other, "127.0.0.2", port as u16));
    log.note("name", b.name(other, false));
    log.note("close", b.close(fd));
    let third = b.tcp();
    log.note("free again", b.bind(third, "127.0.0.1", port as u16));
}

fn listen(b: &mut dyn Backend, log: &mut Log) {
    let (fd, port) = b.listener(AF_INET, "127.0.0.1");
    all(b, log, "listening", fd);
    log.note("again", b.listen(fd, -1));
    log.note("accept none", b.accept(fd));
    log.note("recv", b.recv(fd, 1, 0));
    log.note("send", b.send(fd, b"x", 0));
    log.note("connect", b.connect(fd, "127.0.0.1", port));
    log.note("bind", b.bind(fd, "127.0.0.1", 0));
    let other = b.tcp();
    log.note("same port", b.bind(other, "127.0.0.1", port));
    log.note("shutdown w", b.shutdown(fd, SHUT_WR));
    log.note("poll", b.poll(fd));
    log.note("shutdown r", b.shutdown(fd, SHUT_RD));
    log.note("poll", b.poll(fd));
    log.note("accept", b.accept(fd));
    log.note("listen once more", b.listen(fd, 1));
    log.note("port kept", b.port(fd) == Ret::from(port));
    let unbound = b.tcp();
    log.note("unbound", b.listen(unbound, 1));
    log.note("has a port", b.port(unbound) > 0);
    log.note("any", b.name(unbound, false));
    let (client, _server) = b.pair();
    log.note("connected", b.listen(client, 1));
}

fn connect(b: &mut dyn Backend, log: &mut Log) {
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    let fd = b.tcp();
    log.note("wrong family", b.connect(fd, "::1", port));
    log.note("connect", b.connect(fd, "127.0.0.1", port));
    b.wait_until_idle();
    all(b, log, "established", fd);
    log.note("listener", b.poll(listener));
    log.note("connect again", b.connect(fd, "127.0.0.1", port));
    log.note("connect once more", b.connect(fd, "127.0.0.1", port));
    log.note("bind", b.bind(fd, "127.0.0.1", 0));
    let server = b.accept(listener);
    all(b, log, "accepted", server);
    log.note("connect it", b.connect(server, "127.0.0.1", port));
    log.note("accept on it", b.accept(server));
    let any = b.tcp();
    log.note("to any", b.connect(any, "0.0.0.0", port));
    b.wait_until_idle();
    log.note("to any", b.connect(any, "0.0.0.0", port));
    log.note("is local", b.name(any, true));
    let group = b.tcp();
    log.note("to a group", b.connect(group, "224.0.0.1", port));
    all(b, log, "after it", group);
    let lost = b.tcp();
    log.note("to all", b.connect(lost, "255.255.255.255", port));
}

/// Returns a port without a listener.
fn closed_port(b: &mut dyn Backend) -> u16 {
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    b.close(listener);
    port
}

fn refused(b: &mut dyn Backend, log: &mut Log) {
    let port = closed_port(b);
    let fd = b.tcp();
    let first = b.connect(fd, "127.0.0.1", port);
    b.wait_until_idle();
    all(b, log, "refused", fd);
    // The kernel may have received the RST before the call returns.
    let error = match first {
        -111 => first,
        _ => b.connect(fd, "127.0.0.1", port),
    };
    log.note("connect", error);
    all(b, log, "reported", fd);
    log.note("recv", b.recv(fd, 1, 0));
    log.note("send", b.send(fd, b"x", 0));
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    let _ = b.connect(fd, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("elsewhere", b.connect(fd, "127.0.0.1", port));
    log.note("accept", b.accept(listener) >= 0);
}

fn refused_so_error(b: &mut dyn Backend, log: &mut Log) {
    let port = closed_port(b);
    let fd = b.tcp();
    log.note("connect", b.connect(fd, "127.0.0.1", port));
    b.wait_until_idle();
    log.note("poll", b.poll(fd));
    log.note("error", b.get_int(fd, SOL_SOCKET, SO_ERROR));
    log.note("error again", b.get_int(fd, SOL_SOCKET, SO_ERROR));
    all(b, log, "read", fd);
    log.note("recv", b.recv(fd, 1, 0));
    log.note("send", b.send(fd, b"x", 0));
    log.note("connect", b.connect(fd, "127.0.0.1", port));
    all(b, log, "then", fd);
    let fd = b.tcp();
    let _ = b.connect(fd, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("recv tells", b.recv(fd, 1, 0));
    log.note("once", b.recv(fd, 1, 0));
    let fd = b.tcp();
    let _ = b.connect(fd, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("send tells", b.send(fd, b"x", 0));
    log.note("once", b.send(fd, b"x", 0));
}

fn accept(b: &mut dyn Backend, log: &mut Log) {
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    let clients: Vec<Ret> = (0..3).map(|_| b.tcp()).collect();
    for &client in &clients {
        let _ = b.connect(client, "127.0.0.1", port);
        b.wait_until_idle();
    }
    log.note("sent before accept", b.send(clients[0], b"early", 0));
    log.note("closed before accept", b.close(clients[1]));
    b.wait_until_idle();
    log.note("poll", b.poll(listener));
    let first = b.accept(listener);
    log.note("early", b.recv(first, 10, 0));
    let second = b.accept(listener);
    all(b, log, "its peer is gone", second);
    log.note("its end", b.recv(second, 10, 0));
    log.note("third", b.accept(listener) >= 0);
    log.note("poll", b.poll(listener));
    log.note("no more", b.accept(listener));
    let late = b.tcp();
    let _ = b.connect(late, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("close with one waiting", b.close(listener));
    b.wait_until_idle();
    all(b, log, "its client", late);
    log.note("recv", b.recv(late, 10, 0));
    log.note("recv", b.recv(late, 10, 0));
}

fn data(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    log.note("empty", b.recv(server, 10, 0));
    log.note(
        "empty, waitall",
        b.recv(server, 10, MSG_WAITALL | MSG_DONTWAIT),
    );
    log.note("send", b.send(client, b"hello world", 0));
    b.wait_until_idle();
    log.note("poll", b.poll(server));
    log.note("none of it", b.recv(server, 0, 0));
    log.note("some", b.recv(server, 5, 0));
    log.note("rest, waitall", b.recv(server, 100, MSG_WAITALL));
    log.note("send nothing", b.send(client, b"", 0));
    b.wait_until_idle();
    log.note("poll", b.poll(server));
    log.note("to an address", b.send_to(client, b"x", 0, "192.0.2.1", 9));
    b.wait_until_idle();
    log.note("dontwait", b.recv(server, 1, MSG_DONTWAIT).0);
    log.note("oob none", b.recv(server, 1, libc::MSG_OOB).0);
    b.wait_until_idle();
    log.note("read", b.read(server, 10));
    log.note("write", b.write(server, b"answer"));
    b.wait_until_idle();
    log.note("read", b.read(client, 10));
}

fn peek_and_trunc(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.send(client, b"0123456789", 0);
    b.wait_until_idle();
    log.note("peek", b.recv(server, 4, MSG_PEEK));
    log.note("peek all", b.recv(server, 40, MSG_PEEK));
    log.note("peek waitall", b.recv(server, 40, MSG_PEEK | MSG_WAITALL));
    log.note("trunc", b.recv(server, 3, MSG_TRUNC).0);
    log.note("peek trunc", b.recv(server, 3, MSG_TRUNC | MSG_PEEK).0);
    log.note("next", b.recv(server, 2, 0));
    log.note("trunc all", b.recv(server, 100, MSG_TRUNC).0);
    log.note("then", b.recv(server, 100, MSG_TRUNC).0);
    log.note("peek", b.recv(server, 100, MSG_PEEK));
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    log.note("peek end", b.recv(server, 100, MSG_PEEK));
    log.note("trunc end", b.recv(server, 100, MSG_TRUNC).0);
}

fn half_close(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.send(client, b"request", 0);
    log.note("shutdown", b.shutdown(client, SHUT_WR));
    log.note("again", b.shutdown(client, SHUT_WR));
    log.note("send", b.send(client, b"x", 0));
    b.wait_until_idle();
    all(b, log, "client", client);
    all(b, log, "server", server);
    log.note("request", b.recv(server, 100, 0));
    log.note("end", b.recv(server, 100, 0));
    log.note("answer", b.send(server, b"answer", 0));
    b.wait_until_idle();
    log.note("poll", b.poll(client));
    log.note("answer", b.recv(client, 100, 0));
    log.note("not yet", b.recv(client, 100, 0));
    log.note("close", b.close(server));
    b.wait_until_idle();
    all(b, log, "closed", client);
    log.note("end", b.recv(client, 100, 0));
    log.note("send", b.send(client, b"x", 0));
    log.note("shutdown", b.shutdown(client, SHUT_RDWR));
    log.note("error", b.get_int(client, SOL_SOCKET, SO_ERROR));
}

fn half_close_by_both(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.shutdown(server, SHUT_WR);
    b.wait_until_idle();
    all(b, log, "after theirs", client);
    log.note("end", b.recv(client, 1, 0));
    log.note("still sends", b.send(client, b"x", 0));
    b.shutdown(client, SHUT_WR);
    b.wait_until_idle();
    all(b, log, "client", client);
    all(b, log, "server", server);
    log.note("server reads", b.recv(server, 10, 0));
    log.note("server end", b.recv(server, 10, 0));
    log.note("shutdown", b.shutdown(client, SHUT_WR));
    log.note("shutdown", b.shutdown(server, SHUT_RD));
    log.note("connect", b.connect(client, "127.0.0.1", 9));
}

fn shutdown_read(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.send(client, b"before", 0);
    b.wait_until_idle();
    log.note("shutdown", b.shutdown(server, SHUT_RD));
    log.note("poll", b.poll(server));
    log.note("what came", b.recv(server, 100, 0));
    log.note("end", b.recv(server, 100, 0));
    log.note("more", b.send(client, b"after", 0));
    b.wait_until_idle();
    log.note("poll", b.poll(server));
    log.note("comes all the same", b.recv(server, 100, 0));
    log.note("end", b.recv(server, 100, 0));
    log.note("can send", b.send(server, b"x", 0));
    b.wait_until_idle();
    all(b, log, "client", client);
}

fn shutdown_both(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    log.note("shutdown", b.shutdown(client, SHUT_RDWR));
    all(b, log, "client", client);
    b.wait_until_idle();
    all(b, log, "client", client);
    all(b, log, "server", server);
    log.note("recv", b.recv(client, 1, 0));
    log.note("send", b.send(client, b"x", 0));
    log.note("close", b.close(server));
    b.wait_until_idle();
    all(b, log, "both", client);
    log.note("shutdown", b.shutdown(client, SHUT_RDWR));
    log.note("recv", b.recv(client, 1, 0));
}

fn shutdown_elsewhere(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    b.bind(fd, "127.0.0.1", 0);
    log.note("bound", b.shutdown(fd, SHUT_RDWR));
    log.note("poll", b.poll(fd));
    log.note("recv", b.recv(fd, 1, 0));
    log.note("send", b.send(fd, b"x", 0));
    let (_listener, port) = b.listener(AF_INET, "127.0.0.1");
    let _ = b.connect(fd, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("connect all the same", b.connect(fd, "127.0.0.1", port));
    log.note("poll", b.poll(fd));
    log.note("send", b.send(fd, b"x", 0));
    log.note("recv", b.recv(fd, 1, 0));
}

fn peer_closes_with_unread_data(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.send(client, b"never read", 0);
    b.wait_until_idle();
    log.note("close", b.close(server));
    b.wait_until_idle();
    all(b, log, "reset", client);
    log.note("send", b.send(client, b"x", 0));
    log.note("send", b.send(client, b"x", 0));
    log.note("poll", b.poll(client));
    log.note("recv", b.recv(client, 1, 0));
    log.note("shutdown", b.shutdown(client, SHUT_WR));
}

fn linger(on: i32, seconds: i32) -> Vec<u8> {
    [on.to_ne_bytes(), seconds.to_ne_bytes()].concat()
}

fn reset_by_linger(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    log.note(
        "linger",
        b.set(server, SOL_SOCKET, SO_LINGER, &linger(1, 0)),
    );
    log.note("is", b.get(server, SOL_SOCKET, SO_LINGER, 8));
    b.close(server);
    b.wait_until_idle();
    all(b, log, "reset", client);
    log.note("recv", b.recv(client, 1, 0));
    log.note("recv", b.recv(client, 1, 0));
    log.note("error", b.get_int(client, SOL_SOCKET, SO_ERROR));
    log.note("send", b.send(client, b"x", 0));
    log.note("poll", b.poll(client));
    log.note("connect", b.connect(client, "127.0.0.1", 9));
}

fn reset_after_fin(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.close(server);
    b.wait_until_idle();
    log.note("poll", b.poll(client));
    log.note("first goes", b.send(client, b"x", 0));
    b.wait_until_idle();
    all(b, log, "reset", client);
    log.note("send", b.send(client, b"x", 0));
    log.note("recv", b.recv(client, 1, 0));
    log.note("error", b.get_int(client, SOL_SOCKET, SO_ERROR));
    log.note("poll", b.poll(client));
}

fn reset_with_data_to_read(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    b.send(server, b"last words", 0);
    b.wait_until_idle();
    b.set(server, SOL_SOCKET, SO_LINGER, &linger(1, 0));
    b.close(server);
    b.wait_until_idle();
    log.note("poll", b.poll(client));
    log.note("words", b.recv(client, 4, 0));
    log.note("peek", b.recv(client, 4, MSG_PEEK));
    log.note("error", b.recv(client, 100, 0));
    log.note("error", b.recv(client, 100, 0));
    log.note("error", b.recv(client, 100, 0));
}

fn disconnect(b: &mut dyn Backend, log: &mut Log) {
    let fresh = b.tcp();
    log.note("fresh", b.disconnect(fresh));
    let (client, server) = b.pair();
    log.note("connected", b.disconnect(client));
    b.wait_until_idle();
    all(b, log, "client", client);
    all(b, log, "server", server);
    log.note("server", b.recv(server, 1, 0));
    log.note("client", b.recv(client, 1, 0));
    let (listener, port) = b.listener(AF_INET, "127.0.0.1");
    let _ = b.connect(client, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("connects again", b.connect(client, "127.0.0.1", port));
    log.note("accept", b.accept(listener) >= 0);
    log.note("listener", b.disconnect(listener));
    log.note("poll", b.poll(listener));
}

fn full_buffer(b: &mut dyn Backend, log: &mut Log) {
    let (client, server) = b.pair();
    let block = vec![7; 65_536];
    let mut sent = 0;
    loop {
        match b.send(client, &block, 0) {
            n if n >= 0 => sent += n as usize,
            error => {
                log.note("full", error);
                break;
            }
        }
        b.wait_until_idle();
        assert!(sent < 64 << 20);
    }
    log.note("poll", b.poll(client));
    let mut read = 0;
    while read < sent {
        match b.recv(server, 1 << 20, 0).0 {
            n if n > 0 => read += n as usize,
            _ => b.wait_until_idle(),
        }
    }
    b.wait_until_idle();
    log.note("all read", read == sent);
    log.note("poll", b.poll(client));
}

fn names(b: &mut dyn Backend, log: &mut Log) {
    let fd = b.tcp();
    log.note("fresh", (b.name(fd, false), b.name(fd, true)));
    log.note("port", b.port(fd));
    b.bind(fd, "0.0.0.0", 0);
    log.note("bound", b.name(fd, false));
    let port = b.port(fd);
    let (listener, to) = b.listener(AF_INET, "127.0.0.1");
    let _ = b.connect(fd, "127.0.0.1", to);
    b.wait_until_idle();
    log.note("connected", b.connect(fd, "127.0.0.1", to));
    log.note("names", (b.name(fd, false), b.name(fd, true)));
    log.note("keeps its port", b.port(fd) == port);
    log.note("peer's", b.peer_port(fd) == Ret::from(to));
    let server = b.accept(listener);
    log.note("server", (b.name(server, false), b.name(server, true)));
    log.note(
        "ports",
        (b.port(server) == Ret::from(to), b.peer_port(server) == port),
    );
    log.note(
        "listener",
        (b.name(listener, false), b.name(listener, true)),
    );
}
