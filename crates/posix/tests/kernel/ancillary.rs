//! Scenarios of ancillary data of UDP sockets, and of shared addresses.

use libc::{
    AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_IPV6, MSG_ERRQUEUE, SO_ERROR, SO_REUSEADDR,
    SO_REUSEPORT, SOCK_DGRAM, SOCK_NONBLOCK, SOL_SOCKET,
};

use crate::Scenario;
use crate::backend::{Backend, Log, Ret};

pub(crate) const SCENARIOS: &[(&str, Scenario)] = &[
    ("switches", switches),
    ("four", four),
    ("six", six),
    ("mapped", mapped),
    ("errors", errors),
    ("errors_of_a_peer", errors_of_a_peer),
    ("errors_of_six", errors_of_six),
    ("mtu_discover", mtu_discover),
    ("refused_here", refused_here),
    ("shared", shared),
    ("shared_port", shared_port),
];

const V4: [i32; 3] = [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS];
const V6: [i32; 3] = [
    libc::IPV6_RECVPKTINFO,
    libc::IPV6_RECVHOPLIMIT,
    libc::IPV6_RECVTCLASS,
];

fn udp(b: &mut dyn Backend, domain: i32) -> Ret {
    b.socket(domain, SOCK_DGRAM | SOCK_NONBLOCK, 0)
}

fn bound(b: &mut dyn Backend, domain: i32, ip: &str) -> (Ret, u16) {
    let fd = udp(b, domain);
    assert_eq!(b.bind(fd, ip, 0), 0);
    let port = b.port(fd);
    (fd, port as u16)
}

fn switches(b: &mut dyn Backend, log: &mut Log) {
    let (four, six) = (udp(b, AF_INET), udp(b, AF_INET6));
    let v4 = V4.into_iter().chain([libc::IP_RECVERR]);
    let v4 = v4.map(|name| (IPPROTO_IP, name));
    let v6 = V6.into_iter().chain([libc::IPV6_RECVERR]);
    let v6 = v6.map(|name| (IPPROTO_IPV6, name));
    for (level, name) in v4.chain(v6) {
        for fd in [four, six] {
            for value in [1, 0, 7] {
                let set = b.set_int(fd, level, name, value);
                let got = b.get_int(fd, level, name);
                log.note(&format!("{level} {name} = {value}"), (set, got));
            }
        }
    }
}

fn four(b: &mut dyn Backend, log: &mut Log) {
    let (fd, port) = bound(b, AF_INET, "0.0.0.0");
    let (client, _) = bound(b, AF_INET, "127.0.0.1");
    b.set_int(client, IPPROTO_IP, libc::IP_TTL, 33);
    b.set_int(client, IPPROTO_IP, libc::IP_TOS, 0x48);
    for name in V4 {
        b.set_int(fd, IPPROTO_IP, name, 1);
        b.send_to(client, b"told", 0, "127.0.0.3", port);
        b.wait_until_idle();
        log.note(&format!("{name}"), b.recv_control(fd, 2, 128, 0));
    }
    b.send_to(client, b"told", 0, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("peeked", b.recv_control(fd, 9, 128, libc::MSG_PEEK));
    log.note("cut", b.recv_control(fd, 9, 36, 0));
}

fn six(b: &mut dyn Backend, log: &mut Log) {
    let (fd, port) = bound(b, AF_INET6, "::");
    let (client, _) = bound(b, AF_INET6, "::1");
    b.set_int(client, IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 33);
    b.set_int(client, IPPROTO_IPV6, libc::IPV6_TCLASS, 0x48);
    for name in V6 {
        b.set_int(fd, IPPROTO_IPV6, name, 1);
        b.send_to(client, b"told", 0, "::1", port);
        b.wait_until_idle();
        log.note(&format!("{name}"), b.recv_control(fd, 9, 128, 0));
    }
}

fn mapped(b: &mut dyn Backend, log: &mut Log) {
    let (fd, port) = bound(b, AF_INET6, "::");
    let client = udp(b, AF_INET);
    for (level, name) in [
        (IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        (IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
        (IPPROTO_IP, libc::IP_RECVTTL),
        (IPPROTO_IP, libc::IP_PKTINFO),
    ] {
        b.set_int(fd, level, name, 1);
        b.send_to(client, b"told", 0, "127.0.0.1", port);
        b.wait_until_idle();
        log.note(&format!("{level} {name}"), b.recv_control(fd, 9, 128, 0));
    }
}

/// Logs the content of the error queue.
fn queue(b: &mut dyn Backend, log: &mut Log, fd: Ret) {
    log.note("poll", b.poll(fd));
    log.note("bytes", b.recv(fd, 0, libc::MSG_PEEK).0);
    log.note("queued", b.recv_control(fd, 100, 128, MSG_ERRQUEUE));
    log.note("poll", b.poll(fd));
}

/// Returns a port without a socket.
fn closed_port(b: &mut dyn Backend, domain: i32, ip: &str) -> u16 {
    let (fd, port) = bound(b, domain, ip);
    b.close(fd);
    port
}

fn errors(b: &mut dyn Backend, log: &mut Log) {
    let port = closed_port(b, AF_INET, "127.0.0.1");
    let fd = udp(b, AF_INET);
    b.send_to(fd, b"lost", 0, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("not wanted", b.poll(fd));
    b.set_int(fd, IPPROTO_IP, libc::IP_RECVERR, 1);
    b.send_to(fd, b"lost", 0, "127.0.0.1", port);
    b.wait_until_idle();
    log.note("poll", b.poll(fd));
    log.note("queued", b.recv_control(fd, 2, 128, MSG_ERRQUEUE));
    log.note("poll", b.poll(fd));
    log.note("error", b.get_int(fd, SOL_SOCKET, SO_ERROR));
    for data in [&b"first"[..], b"second"] {
        log.note("send", b.send_to(fd, data, 0, "127.0.0.1", port));
        b.wait_until_idle();
        log.note("error", b.get_int(fd, SOL_SOCKET, SO_ERROR));
    }
    queue(b, log, fd);
    queue(b, log, fd);
    queue(b, log, fd);
}

fn errors_of_a_peer(b: &mut dyn Backend, log: &mut Log) {
    let port = closed_port(b, AF_INET, "127.0.0.1");
    let fd = udp(b, AF_INET);
    b.set_int(fd, IPPROTO_IP, libc::IP_RECVERR, 1);
    b.connect(fd, "127.0.0.1", port);
    b.send(fd, b"lost", 0);
    b.wait_until_idle();
    log.note("reported at once", b.send(fd, b"more", 0));
    log.note("once", b.get_int(fd, SOL_SOCKET, SO_ERROR));
    queue(b, log, fd);
    log.note("no more", b.recv_control(fd, 9, 128, MSG_ERRQUEUE));
}

fn errors_of_six(b: &mut dyn Backend, log: &mut Log) {
    let port = closed_port(b, AF_INET6, "::1");
    let fd = udp(b, AF_INET6);
    b.set_int(fd, IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
    b.send_to(fd, b"lost", 0, "::1", port);
    b.wait_until_idle();
    queue(b, log, fd);
}

/// The loopback carries packets of 65,536 bytes: 40 less than the longest datagram over IPv6.
const LONGEST_WHOLE: usize = 65_536 - 48;

fn mtu_discover(b: &mut dyn Backend, log: &mut Log) {
    let (_, port) = bound(b, AF_INET6, "::");
    let block = vec![1; 65_527];
    for (level, name) in [
        (IPPROTO_IP, libc::IP_MTU_DISCOVER),
        (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    ] {
        for how in 0..4 {
            let fd = udp(b, AF_INET6);
            log.note("set", b.set_int(fd, level, name, how));
            let both = [
                b.get_int(fd, IPPROTO_IP, libc::IP_MTU_DISCOVER),
                b.get_int(fd, IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            ];
            log.note("get", both);
            for len in [LONGEST_WHOLE, LONGEST_WHOLE + 1, 65_527] {
                let sent = b.send_to(fd, &block[..len], 0, "::1", port);
                log.note(&format!("{level} {how} {len}"), sent);
            }
            let mapped = b.send_to(fd, &block[..65_507], 0, "::ffff:127.0.0.1", port);
            log.note("mapped", mapped);
            log.note("no error is pending", b.get_int(fd, SOL_SOCKET, SO_ERROR));
            log.note("nor kept", b.poll(fd));
        }
    }
    for (domain, ip) in [
        (AF_INET, "127.0.0.1"),
        (AF_INET6, "::1"),
        (AF_INET6, "::ffff:127.0.0.1"),
    ] {
        let fd = udp(b, domain);
        for connected in [false, true] {
            if connected {
                b.connect(fd, ip, port);
            }
            let four = b.get_int(fd, IPPROTO_IP, libc::IP_MTU);
            let six = b.get_int(fd, IPPROTO_IPV6, libc::IPV6_MTU);
            log.note(&format!("mtu, connected {connected}"), (four, six));
        }
    }
}

/// Errors of datagrams that the host itself rejects are only in the error queue.
fn refused_here(b: &mut dyn Backend, log: &mut Log) {
    let (_, port) = bound(b, AF_INET6, "::");
    let block = vec![1; 65_540];
    for connected in [false, true] {
        for (domain, ip, len) in [
            (AF_INET6, "::1", LONGEST_WHOLE + 1),
            (AF_INET6, "::1", 65_536),
            (AF_INET, "127.0.0.1", 65_508),
            (AF_INET, "127.0.0.1", 65_535),
            (AF_INET, "127.0.0.1", 65_536),
        ] {
            let fd = udp(b, domain);
            b.set_int(fd, IPPROTO_IP, libc::IP_RECVERR, 1);
            if domain == AF_INET6 {
                b.set_int(fd, IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
                b.set_int(fd, IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, 2);
            }
            let sent = if connected {
                b.connect(fd, ip, port);
                b.send(fd, &block[..len], 0)
            } else {
                b.send_to(fd, &block[..len], 0, ip, port)
            };
            log.note(&format!("{ip} {len} connected {connected}"), sent);
            log.note("no error is pending", b.get_int(fd, SOL_SOCKET, SO_ERROR));
            queue(b, log, fd);
            queue(b, log, fd);
        }
    }
}

fn shared(b: &mut dyn Backend, log: &mut Log) {
    let one = udp(b, AF_INET);
    b.set_int(one, SOL_SOCKET, SO_REUSEADDR, 1);
    log.note("one", b.bind(one, "127.0.0.1", 0));
    let port = b.port(one) as u16;
    let other = udp(b, AF_INET);
    log.note("without", b.bind(other, "127.0.0.1", port));
    b.set_int(other, SOL_SOCKET, SO_REUSEADDR, 1);
    log.note("with", b.bind(other, "127.0.0.1", port));
    let any = udp(b, AF_INET);
    b.set_int(any, SOL_SOCKET, SO_REUSEADDR, 1);
    log.note("any", b.bind(any, "0.0.0.0", port));
    let client = udp(b, AF_INET);
    b.send_to(client, b"whose", 0, "127.0.0.1", port);
    b.send_to(client, b"any", 0, "127.0.0.9", port);
    b.wait_until_idle();
    let whose = [one, other, any].map(|fd| b.recv(fd, 9, 0));
    log.note("the last, and any", whose);
    b.set_int(one, SOL_SOCKET, SO_REUSEADDR, 0);
    let late = udp(b, AF_INET);
    b.set_int(late, SOL_SOCKET, SO_REUSEADDR, 1);
    log.note("no longer", b.bind(late, "127.0.0.1", port));
}

fn shared_port(b: &mut dyn Backend, log: &mut Log) {
    let mut group = Vec::new();
    let mut port = 0;
    for _ in 0..3 {
        let fd = udp(b, AF_INET);
        b.set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
        log.note("bind", b.bind(fd, "127.0.0.1", port));
        port = b.port(fd) as u16;
        group.push(fd);
    }
    let alone = udp(b, AF_INET);
    b.set_int(alone, SOL_SOCKET, SO_REUSEADDR, 1);
    log.note("of another kind", b.bind(alone, "127.0.0.1", port));
    for _ in 0..20 {
        let client = udp(b, AF_INET);
        b.send_to(client, b"one", 0, "127.0.0.1", port);
        b.send_to(client, b"two", 0, "127.0.0.1", port);
        b.wait_until_idle();
        let got: Vec<usize> = group
            .iter()
            .map(|&fd| (0..2).filter(|_| b.recv(fd, 9, 0).0 > 0).count())
            .collect();
        log.note("both to one", got.contains(&2));
        b.close(client);
    }
}
