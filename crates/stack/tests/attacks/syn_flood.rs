//! SYNs from addresses that nobody has (RFC 4987).

use fullsend_units::Nanos;
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use crate::common::{V4, V6, bytes, forge};
use crate::heap;
use crate::siege::{Attacker, Siege, packets};

/// The listener's backlog is 64: 65 half-open connections of 112 bytes and their slots, and the
/// SYN-ACKs that wait for one turn of the device.
const BOUND: isize = 2 << 20;

fn syn(rng: &mut fullsend_units::Rng) -> TcpRepr {
    TcpRepr {
        flags: TcpFlags::SYN,
        seq: fullsend_units::SeqNum::new(rng.next_u32()),
        window: fullsend_units::WireWindow(65_535),
        options: TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                val: rng.next_u32(),
                ecr: 0,
            }),
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    }
}

fn flood(siege: &mut Siege, port: u16) {
    siege.withstand(BOUND, |attacker| {
        let v4 = attacker.rng.chance(0.5);
        let from = attacker.stranger(v4);
        let ip = if v4 { V4[1] } else { V6[1] };
        let to = std::net::SocketAddr::new(ip.parse().unwrap(), port);
        (1, forge::tcp(from, to, syn(attacker.rng), b""))
    });
}

#[test]
fn syns_to_a_listener() {
    let mut siege = Siege::new();
    flood(&mut siege, 80);
    let sent = siege.net.counter(1, "TcpExtSyncookiesSent");
    assert!(sent > packets() as u64 / 2, "{sent}");
    assert!(siege.net.hosts[1].tcp_connections() <= 4 + 65);
    // An honest peer gets in although the queue is full.
    let to = format!("{}:80", V4[1]);
    let listener = siege.listener;
    let (client, server) = siege.net.connect_to(listener, &to);
    siege
        .net
        .transfer((0, client), (1, server), &bytes(100_000));
    assert!(siege.net.counter(1, "TcpExtSyncookiesRecv") >= 1);
}

/// The bucket of a source, and what it gains in a second, of unanswered cookies.
const UNANSWERED: u64 = 128;

/// SYNs that carry the address of a host which did not send them: it resets what answers them.
#[test]
fn syns_in_the_name_of_a_peer_are_answered_at_a_bounded_rate() {
    let mut siege = Siege::new();
    let flood = |attacker: &mut Attacker<'_>| {
        // Below the ephemeral ports, where the flows are.
        let port = 1024 + attacker.rng.below(30_000) as u16;
        let [from, to] = [(V4[0], port), (V4[1], 80)]
            .map(|(ip, port)| std::net::SocketAddr::new(ip.parse().unwrap(), port));
        (1, forge::tcp(from, to, syn(attacker.rng), b""))
    };
    let start = siege.net.now;
    siege.withstand(BOUND, flood);
    let seconds = siege.net.now.since(start).as_nanos() / 1_000_000_000 + 1;
    let sent = siege.net.counter(1, "TcpExtSyncookiesSent");
    // A source moves to another bucket each second, and few SYNs pass for repetitions.
    let most = UNANSWERED * 2 * seconds + packets() as u64 / 25;
    assert!(sent <= most, "{sent}");
    let limited = siege.net.counter(1, "TcpExtFullsendSyncookiesLimited");
    assert!(limited > packets() as u64 / 2, "{limited}");

    // Another address gets in at once meanwhile, the flood's own with a repetition of its SYN.
    for (ip, span_ms) in [(V6[1], 100), (V4[1], 3000)] {
        let to = std::net::SocketAddr::new(ip.parse().unwrap(), 80);
        let now = siege.net.now;
        let client = siege.net.hosts[0].tcp_connect(now, None, to).unwrap();
        siege.run(Nanos::from_millis(span_ms), packets(), flood);
        let accepted = siege.net.hosts[1].tcp_accept(siege.listener).unwrap();
        assert!(accepted.is_some(), "{ip}");
        let state = siege.net.hosts[0].tcp_state(client);
        assert_eq!(state, Ok(fullsend_tcp::State::Established), "{ip}");
    }
}

#[test]
fn syns_to_a_listener_without_cookies() {
    let mut siege = Siege::new();
    siege.net.hosts[1].sysctl_mut().tcp_syncookies = 0;
    flood(&mut siege, 80);
    assert!(siege.net.counter(1, "TcpExtTCPReqQFullDrop") > packets() as u64 / 2);
    assert!(siege.net.hosts[1].tcp_connections() <= 4 + 65);
    // What is half open goes in time.
    siege.net.run_for(Nanos::from_secs(70));
    assert_eq!(siege.net.hosts[1].tcp_connections(), 4);
}

#[test]
fn syns_to_a_closed_port() {
    let mut siege = Siege::new();
    flood(&mut siege, 81);
    assert_eq!(siege.net.hosts[1].tcp_connections(), 4);
}

#[test]
fn guessed_cookies() {
    let mut siege = Siege::new();
    siege.net.hosts[1].sysctl_mut().tcp_syncookies = 2;
    // A cookie has to be out for one to be believed.
    let to = format!("{}:80", V4[1]);
    let listener = siege.listener;
    siege.net.connect_to(listener, &to);
    siege.withstand(BOUND, |attacker| {
        let from = attacker.stranger(true);
        let to = std::net::SocketAddr::new(V4[1].parse().unwrap(), 80);
        let repr = TcpRepr {
            flags: TcpFlags::ACK,
            ack: attacker.seq(),
            ..syn(attacker.rng)
        };
        let options = TcpOptions::default();
        (1, forge::tcp(from, to, TcpRepr { options, ..repr }, b""))
    });
    // 29 bits are to be guessed: one in 268 million passes for each of two slots.
    assert!(siege.net.counter(1, "TcpExtSyncookiesRecv") <= 2);
    assert!(siege.net.counter(1, "TcpExtSyncookiesFailed") >= packets() as u64 - 2);
}

/// Entry, slots in three tables, and what growing by halves leaves unused.
const HALF_OPEN: isize = 256;

#[test]
fn half_open_connections_are_small() {
    const MANY: u16 = 4000;
    let mut siege = Siege::new();
    for (key, value) in [("tcp_syncookies", "0"), ("tcp_max_syn_backlog", "100000")] {
        let now = siege.net.now;
        siege.net.hosts[1].set_sysctl(now, key, value).unwrap();
    }
    let to = format!("{}:90", V4[1]);
    siege.net.listen_with(1, &to, 4096);
    let before = heap::held();
    for n in 0..MANY {
        let from = std::net::SocketAddr::from(([11, 0, 0, 1], 1024 + n));
        let repr = syn(&mut siege.rng);
        siege.deliver(forge::tcp(from, to.parse().unwrap(), repr, b""));
    }
    assert_eq!(siege.net.hosts[1].tcp_connections(), 4 + usize::from(MANY));
    let each = (heap::held() - before) / isize::from(MANY as i16);
    println!("{each} bytes each");
    assert!(each <= HALF_OPEN, "{each} bytes each");
}
