//! Options of IPv4 and IPv6.

use libc::{AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_IPV6};

use super::try_int;
use crate::Scenario;
use crate::backend::{Backend, Log};

pub(crate) const SCENARIOS: &[(&str, Scenario)] =
    &[("ip", ip), ("datagram_ip", datagram_ip), ("ipv6", ipv6)];

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
    for name in [
        libc::IP_FREEBIND,
        libc::IP_BIND_ADDRESS_NO_PORT,
        libc::IP_RECVERR,
    ] {
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
    for name in [libc::IP_MULTICAST_TTL, libc::IP_MULTICAST_LOOP] {
        try_int(b, log, fd, IPPROTO_IP, name, &[1, 0, 255, 256, -1, -2]);
    }
    let fd = b.socket(AF_INET6, libc::SOCK_DGRAM, 0);
    for name in [libc::IPV6_MULTICAST_HOPS, libc::IPV6_MULTICAST_LOOP] {
        try_int(b, log, fd, IPPROTO_IPV6, name, &[1, 0, 255, 256, -1, -2]);
    }
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
    for name in [libc::IPV6_V6ONLY, libc::IPV6_FREEBIND, libc::IPV6_RECVERR] {
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
