//! SYNs from spoofed addresses (RFC 4987).

use fullsend_wire::Nanos;
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr};

use crate::attack_bench::{AttackBench, Attacker, ROGUE, packets};
use crate::common::forge::syn;
use crate::common::{IFACE, V4, V6, bytes, forge};
use crate::heap;

/// The listener's backlog is 64: 65 half-open connections of 112 bytes and their slots, and the
/// SYN-ACKs that wait for one poll of the device.
const BOUND: isize = 2 << 20;

fn flood(attack_bench: &mut AttackBench, port: u16) {
    attack_bench.run_attack(BOUND + MEMORY, |attacker| {
        let v4 = attacker.rng.chance(0.5);
        let from = attacker.random_source(v4);
        let ip = if v4 { V4[1] } else { V6[1] };
        let to = std::net::SocketAddr::new(ip.parse().unwrap(), port);
        (1, forge::tcp(from, to, syn(attacker.rng), b""))
    });
}

#[test]
fn syns_to_a_listener() {
    let mut attack_bench = AttackBench::new();
    flood(&mut attack_bench, 80);
    let sent = attack_bench.net.counter(1, "TcpExtSyncookiesSent");
    assert!(sent > TOTAL.min(packets() as u64 / 2), "{sent}");
    assert!(attack_bench.net.hosts[1].tcp_socket_count() <= 4 + 65);
    // An honest peer gets in although the queue is full.
    let to = format!("{}:80", V4[1]);
    let listener = attack_bench.listener;
    let (client, server) = attack_bench.net.connect_to(listener, &to);
    attack_bench
        .net
        .transfer((0, client), (1, server), &bytes(100_000));
    assert!(attack_bench.net.counter(1, "TcpExtSyncookiesRecv") >= 1);
}

/// SYN-ACKs to one source that lead to no connection: the burst, and the rate per second.
const PER_SOURCE: u64 = 4096;
/// The burst of SYN-ACKs to all sources.
const TOTAL: u64 = 16_384;
/// The record of dropped SYNs and the buckets of sources, bytes.
const MEMORY: isize = (2 << 20) + (64 << 10);

/// SYNs with the spoofed address of a host, which resets the SYN-ACKs.
#[test]
fn syns_spoofed_from_a_peer_are_answered_at_a_bounded_rate() {
    let mut attack_bench = AttackBench::new();
    let flood = |attacker: &mut Attacker<'_>| {
        // Below the ephemeral ports, which the flows use.
        let port = 1024 + attacker.rng.below(30_000) as u16;
        let [from, to] = [(V4[0], port), (V4[1], 80)]
            .map(|(ip, port)| std::net::SocketAddr::new(ip.parse().unwrap(), port));
        (1, forge::tcp(from, to, syn(attacker.rng), b""))
    };
    let start = attack_bench.net.now;
    attack_bench.run_attack(BOUND + MEMORY, flood);
    let seconds = attack_bench.net.now.since(start).as_nanos() / 1_000_000_000 + 1;
    let counters = ["TcpExtSyncookiesSent", "TcpExtEmbryonicRsts"];
    let sent: u64 = counters
        .map(|name| attack_bench.net.counter(1, name))
        .iter()
        .sum();
    // A full bucket, the connections that were half-open when it was empty, and the few SYNs that
    // are mistaken for retransmissions.
    let most = PER_SOURCE * (1 + seconds) + 65 + packets() as u64 / 200;
    assert!(sent <= most, "{sent}");
    let limited = attack_bench.net.counter(1, "TcpExtFullsendSynsLimited");
    assert!(limited > packets() as u64 / 2, "{limited}");

    // Meanwhile a SYN from another address is answered immediately, and one from the flood's own
    // address after a retransmission.
    for (ip, span_ms) in [(V6[1], 100), (V4[1], 3000)] {
        let to = std::net::SocketAddr::new(ip.parse().unwrap(), 80);
        let now = attack_bench.net.now;
        let client = attack_bench.net.hosts[0]
            .tcp_connect(now, None, to)
            .unwrap();
        attack_bench.run(Nanos::from_millis(span_ms), packets(), flood);
        let accepted = attack_bench.net.hosts[1]
            .listener(attack_bench.listener)
            .accept()
            .unwrap();
        assert!(accepted.is_some(), "{ip}");
        let state = attack_bench.net.hosts[0].tcp(client).state();
        assert_eq!(state, Ok(fullsend_tcp::State::Established), "{ip}");
    }
}

/// A peer resets each connection before the listener's queue is full, so no cookie is sent.
#[test]
fn half_open_connections_that_are_reset_have_a_limit() {
    let mut attack_bench = AttackBench::new();
    let to = format!("{}:90", V4[1]);
    attack_bench.net.listen_with(1, &to, 64);
    let to: std::net::SocketAddr = to.parse().unwrap();
    for n in 0..20_000 {
        let from = std::net::SocketAddr::new(ROGUE, 1024 + n);
        let repr = syn(&mut attack_bench.rng);
        let reset = TcpRepr {
            flags: TcpFlags::RST,
            seq: repr.seq + 1,
            options: TcpOptions::default(),
            ..repr
        };
        let mut packets = [repr, reset]
            .map(|repr| forge::tcp(from, to, repr, b""))
            .into();
        attack_bench.net.hosts[1].receive(attack_bench.net.now, IFACE, &mut packets);
        attack_bench.net.run_for(Nanos::from_micros(50));
    }
    // Within one second.
    let resets = attack_bench.net.counter(1, "TcpExtEmbryonicRsts");
    assert!((PER_SOURCE..=2 * PER_SOURCE).contains(&resets), "{resets}");
    let limited = attack_bench.net.counter(1, "TcpExtFullsendSynsLimited");
    assert!(limited > 20_000 - 2 * PER_SOURCE - 100, "{limited}");
}

/// Sends SYNs of the rogue until its address has no tokens.
fn drain(attack_bench: &mut AttackBench, port: u16) {
    let to = std::net::SocketAddr::new(V4[1].parse().unwrap(), port);
    let limited =
        |attack_bench: &mut AttackBench| attack_bench.net.counter(1, "TcpExtFullsendSynsLimited");
    let before = limited(attack_bench);
    let mut from = 0;
    while limited(attack_bench) == before {
        from += 1;
        let repr = syn(&mut attack_bench.rng);
        let packet = forge::tcp(std::net::SocketAddr::new(ROGUE, from), to, repr, b"");
        attack_bench.net.hosts[1].receive(attack_bench.net.now, IFACE, &mut vec![packet]);
    }
    attack_bench.net.run_for(Nanos::from_micros(10));
}

/// Returns how many SYNs of the rogue are answered in a row.
fn tokens(attack_bench: &mut AttackBench) -> u64 {
    let before = attack_bench.net.counter(1, "TcpExtSyncookiesSent");
    drain(attack_bench, 80);
    attack_bench.net.counter(1, "TcpExtSyncookiesSent") - before
}

/// A cookie is valid for two minutes, and its answer may be sent any number of times.
#[test]
fn a_cookie_refunds_its_token_only_with_a_connection() {
    let mut attack_bench = AttackBench::new();
    for (key, value) in [("tcp_syncookies", "2"), ("tcp_timestamps", "0")] {
        let now = attack_bench.net.now;
        attack_bench.net.hosts[1]
            .set_sysctl(now, key, value)
            .unwrap();
    }
    let from = std::net::SocketAddr::new(ROGUE, 60_000);
    let to = std::net::SocketAddr::new(V4[1].parse().unwrap(), 80);
    let first = TcpRepr {
        options: TcpOptions::default(),
        ..syn(&mut attack_bench.rng)
    };
    attack_bench.deliver(forge::tcp(from, to, first, b""));
    let (answer, _) = attack_bench.last_answer_to(from).expect("a cookie");
    drain(&mut attack_bench, 80);
    assert!(tokens(&mut attack_bench) <= 1);
    // The host has not sent the timestamp that this echoes, as it has timestamps disabled.
    let ack = TcpRepr {
        flags: TcpFlags::ACK,
        seq: first.seq + 1,
        ack: answer.seq + 1,
        options: syn(&mut attack_bench.rng).options,
        ..first
    };
    for _ in 0..1000 {
        attack_bench.deliver(forge::tcp(from, to, ack, b""));
    }
    let recv = attack_bench.net.counter(1, "TcpExtSyncookiesRecv");
    assert_eq!(recv, 1000);
    // 10 ms have passed.
    let later = PER_SOURCE / 50;
    assert!(tokens(&mut attack_bench) < later);

    let options = TcpOptions::default();
    for _ in 0..1000 {
        attack_bench.deliver(forge::tcp(from, to, TcpRepr { options, ..ack }, b""));
    }
    assert_eq!(
        attack_bench.net.counter(1, "TcpExtSyncookiesRecv"),
        recv + 1
    );
    assert!(tokens(&mut attack_bench) < later);
}

#[test]
fn a_listener_that_sent_no_cookies_accepts_none() {
    let mut attack_bench = AttackBench::new();
    attack_bench.net.hosts[1].sysctl_mut().tcp_syncookies = 2;
    let other = format!("{}:90", V4[1]);
    attack_bench.net.listen_with(1, &other, 64);
    drain(&mut attack_bench, 80);
    let from = std::net::SocketAddr::new(ROGUE, 60_000);
    let repr = syn(&mut attack_bench.rng);
    attack_bench.deliver(forge::tcp(from, other.parse().unwrap(), repr, b""));
    let guess = TcpRepr {
        flags: TcpFlags::ACK,
        seq: repr.seq + 1,
        options: TcpOptions::default(),
        ..repr
    };
    attack_bench.deliver(forge::tcp(from, other.parse().unwrap(), guess, b""));
    assert_eq!(attack_bench.net.counter(1, "TcpExtSyncookiesFailed"), 0);
}

#[test]
fn syns_to_a_listener_without_cookies() {
    let mut attack_bench = AttackBench::new();
    attack_bench.net.hosts[1].sysctl_mut().tcp_syncookies = 0;
    flood(&mut attack_bench, 80);
    assert!(attack_bench.net.counter(1, "TcpExtTCPReqQFullDrop") > packets() as u64 / 2);
    assert!(attack_bench.net.hosts[1].tcp_socket_count() <= 4 + 65);
    // Half-open connections time out.
    attack_bench.net.run_for(Nanos::from_secs(70));
    assert_eq!(attack_bench.net.hosts[1].tcp_socket_count(), 4);
}

#[test]
fn syns_to_a_closed_port() {
    let mut attack_bench = AttackBench::new();
    flood(&mut attack_bench, 81);
    assert_eq!(attack_bench.net.hosts[1].tcp_socket_count(), 4);
}

#[test]
fn guessed_cookies() {
    let mut attack_bench = AttackBench::new();
    attack_bench.net.hosts[1].sysctl_mut().tcp_syncookies = 2;
    // Cookies are accepted only if one was sent recently.
    let to = format!("{}:80", V4[1]);
    let listener = attack_bench.listener;
    attack_bench.net.connect_to(listener, &to);
    attack_bench.run_attack(BOUND, |attacker| {
        let from = attacker.random_source(true);
        let to = std::net::SocketAddr::new(V4[1].parse().unwrap(), 80);
        let repr = TcpRepr {
            flags: TcpFlags::ACK,
            ack: attacker.seq(),
            ..syn(attacker.rng)
        };
        let options = TcpOptions::default();
        (1, forge::tcp(from, to, TcpRepr { options, ..repr }, b""))
    });
    // A guess must match 29 bits: for each of two slots, one in 268 million does.
    assert!(attack_bench.net.counter(1, "TcpExtSyncookiesRecv") <= 2);
    assert!(attack_bench.net.counter(1, "TcpExtSyncookiesFailed") >= packets() as u64 - 2);
}

/// Memory of an entry, its slots in three tables, and the unused part of their capacity, bytes.
const HALF_OPEN: isize = 256;

#[test]
fn half_open_connections_are_small() {
    const MANY: u16 = 4000;
    let mut attack_bench = AttackBench::new();
    for (key, value) in [("tcp_syncookies", "0"), ("tcp_max_syn_backlog", "100000")] {
        let now = attack_bench.net.now;
        attack_bench.net.hosts[1]
            .set_sysctl(now, key, value)
            .unwrap();
    }
    let to = format!("{}:90", V4[1]);
    attack_bench.net.listen_with(1, &to, 4096);
    let before = heap::allocated();
    for n in 0..MANY {
        let from = std::net::SocketAddr::from(([11, 0, 0, 1], 1024 + n));
        let repr = syn(&mut attack_bench.rng);
        attack_bench.deliver(forge::tcp(from, to.parse().unwrap(), repr, b""));
    }
    assert_eq!(
        attack_bench.net.hosts[1].tcp_socket_count(),
        4 + usize::from(MANY)
    );
    let each = (heap::allocated() - before) / isize::from(MANY as i16);
    println!("{each} bytes each");
    assert!(each <= HALF_OPEN, "{each} bytes each");
}
