//! Peers that try to make their own connections as costly as possible: the resources they use are
//! bounded, and other connections are not affected.

use std::net::SocketAddr;

use fullsend_tcp::{State, TcpError};
use fullsend_wire::tcp::{SackBlock, TcpFlags, TcpOptions, TcpRepr};
use fullsend_wire::{Nanos, SeqNum, WireWindow};

use crate::attack_bench::{AttackBench, ROGUE, packets};
use crate::common::{IFACE, V4, forge};
use crate::heap;

/// A victim's socket holds twice its `rcvbuf` of 128 KiB, and 64 KiB besides; packets in flight use
/// some memory, too.
const ONE_SOCKET: isize = 2 * 131_072 + (64 << 10);
const BOUND: isize = ONE_SOCKET + (512 << 10);

fn usual() -> TcpOptions {
    TcpOptions {
        mss: Some(1460),
        sack_permitted: true,
        ..TcpOptions::default()
    }
}

#[test]
fn single_bytes_with_holes_between_them() {
    let mut attack_bench = AttackBench::new();
    let rogue = attack_bench.rogue(1000, 65_535, usual());
    attack_bench.run_attack(BOUND, |attacker| {
        let at = 1 + 2 * attacker.rng.below(32_000) as u32;
        let packet = rogue.segment(rogue.seq + at, TcpOptions::default(), b"x");
        (1, packet)
    });
    let now = attack_bench.net.now;
    let info = attack_bench.net.hosts[1]
        .tcp(rogue.victim)
        .info(now)
        .unwrap();
    assert_eq!(info.tcpi_bytes_received, 0);
    let thrown =
        ["TcpExtTCPOFODrop", "TcpExtOfoPruned"].map(|name| attack_bench.net.counter(1, name));
    assert!(thrown.iter().sum::<u64>() > 0);
}

#[test]
fn single_bytes_that_are_not_read() {
    let mut attack_bench = AttackBench::new();
    let rogue = attack_bench.rogue(1000, 65_535, usual());
    attack_bench.run_attack(BOUND, |attacker| {
        let at = attacker.number as u32 % 65_000;
        let packet = rogue.segment(rogue.seq + at, TcpOptions::default(), b"x");
        (1, packet)
    });
    let now = attack_bench.net.now;
    let info = attack_bench.net.hosts[1]
        .tcp(rogue.victim)
        .info(now)
        .unwrap();
    assert!(info.tcpi_bytes_received <= 65_536);
}

/// The same hole over and over, and contradictory data on both of its sides.
#[test]
fn overlapping_pieces() {
    let mut attack_bench = AttackBench::new();
    let rogue = attack_bench.rogue(1000, 65_535, usual());
    attack_bench.run_attack(BOUND, |attacker| {
        let at = 1 + attacker.rng.below(60_000) as u32;
        let payload = vec![attacker.rng.next_u32() as u8; attacker.rng.below(1400) as usize];
        let packet = rogue.segment(rogue.seq + at, TcpOptions::default(), &payload);
        (1, packet)
    });
    let state = attack_bench.net.hosts[1].tcp(rogue.victim).state();
    assert_eq!(state, Ok(State::Established));
}

/// SACK blocks (RFC 2018) for every other byte in flight.
#[test]
fn sack_blocks_for_single_bytes() {
    let mut attack_bench = AttackBench::new();
    let rogue = attack_bench.rogue(1000, 65_535, usual());
    attack_bench.endless.push(rogue.victim);
    // The send buffer, and a scoreboard that must not grow with the blocks.
    attack_bench.run_attack(BOUND + (4 << 20), |attacker| {
        let mut options = TcpOptions::default();
        for _ in 0..4 {
            let left = rogue.ack + 1 + 2 * attacker.rng.below(30_000) as u32;
            let right = left + 1;
            options.sack.push(SackBlock { left, right });
        }
        (1, rogue.segment(rogue.seq, options, b""))
    });
}

#[test]
fn sack_blocks_for_single_segments_and_back() {
    let mut attack_bench = AttackBench::new();
    let rogue = attack_bench.rogue(1000, 65_535, usual());
    attack_bench.endless.push(rogue.victim);
    attack_bench.run_attack(BOUND + (4 << 20), |attacker| {
        let mut options = TcpOptions::default();
        for n in 0..4 {
            let segment = (attacker.number as u32 * 7 + n * 2) % 40;
            let left = rogue.ack + 1448 * segment;
            options.sack.push(SackBlock {
                left,
                right: left + 1448,
            });
        }
        (1, rogue.segment(rogue.seq, options, b""))
    });
}

/// The smallest MSS, the largest window, and every other segment SACKed: as many ranges as
/// possible.
#[test]
fn sack_blocks_for_tiny_segments() {
    let mut attack_bench = AttackBench::new();
    let options = TcpOptions {
        mss: Some(48),
        window_scale: Some(4),
        ..usual()
    };
    let mut rogue = attack_bench.rogue(1000, 65_535, options);
    attack_bench.endless.push(rogue.victim);
    let end = attack_bench.watch(rogue.from);
    let mut most = 0;
    attack_bench.run_attack(BOUND + (8 << 20), |attacker| {
        let sent = end().distance(rogue.ack).max(0) as u32;
        most = sent.max(most);
        if attacker.number < packets() / 4 {
            // Honest behaviour for the first 50 round trips opens a large window.
            if attacker.number.is_multiple_of(packets() / 200) {
                rogue.ack += sent;
            }
            return (1, rogue.segment(rogue.seq, TcpOptions::default(), b""));
        }
        // Occasional acknowledgements, so that more is sent.
        if attacker.number.is_multiple_of(16) && sent > 48 {
            rogue.ack += 48;
        }
        let mut options = TcpOptions::default();
        for _ in 0..4 {
            let pieces = u64::from(sent / 96).max(1);
            let left = rogue.ack + 48 * (1 + 2 * attacker.rng.below(pieces) as u32);
            options.sack.push(SackBlock {
                left,
                right: left + 48,
            });
        }
        (1, rogue.segment(rogue.seq, options, b""))
    });
    println!("{most} bytes in flight, in segments of 48");
    assert!(most > 100 * 48, "{most} bytes in flight");
}

/// Thousands of duplicate ACKs do not make the victim send more.
#[test]
fn duplicate_acknowledgements() {
    let mut attack_bench = AttackBench::new();
    let options = TcpOptions {
        sack_permitted: false,
        ..usual()
    };
    let rogue = attack_bench.rogue(1000, 65_535, options);
    attack_bench.endless.push(rogue.victim);
    attack_bench.run_attack(BOUND + (4 << 20), |_| {
        (1, rogue.segment(rogue.seq, TcpOptions::default(), b""))
    });
    let now = attack_bench.net.now;
    let info = attack_bench.net.hosts[1]
        .tcp(rogue.victim)
        .info(now)
        .unwrap();
    assert!(info.tcpi_snd_cwnd <= 64, "{info:?}");
}

/// An MSS of 1 would make a packet of every byte.
#[test]
fn a_tiny_mss() {
    let mut attack_bench = AttackBench::new();
    let options = TcpOptions {
        mss: Some(1),
        ..usual()
    };
    let rogue = attack_bench.rogue(1000, 65_535, options);
    let now = attack_bench.net.now;
    let info = attack_bench.net.hosts[1]
        .tcp(rogue.victim)
        .info(now)
        .unwrap();
    assert!(info.tcpi_snd_mss >= 48 - 12, "{}", info.tcpi_snd_mss);
}

/// Closed windows hold a writer's memory as long as the application keeps the connection, but no
/// longer than a few minutes after it has closed it.
#[test]
fn closed_windows() {
    const CONNECTIONS: u16 = 40;
    let mut attack_bench = AttackBench::new();
    let before = heap::allocated();
    let mut rogues = Vec::new();
    for n in 0..CONNECTIONS {
        let rogue = attack_bench.rogue(1000 + n, 0, usual());
        let now = attack_bench.net.now;
        let payload = vec![7; 100_000];
        attack_bench.net.hosts[1]
            .tcp(rogue.victim)
            .write(now, &payload, false)
            .unwrap();
        rogues.push(rogue);
    }
    let each = (heap::allocated() - before) / isize::from(CONNECTIONS as i16);
    assert!(each < 2 * 87_380 + 8192, "{each} bytes each");
    for rogue in &rogues {
        let now = attack_bench.net.now;
        attack_bench.net.hosts[1].tcp(rogue.victim).close(now);
    }
    assert_eq!(
        attack_bench.net.hosts[1].sockstat().orphan,
        usize::from(CONNECTIONS)
    );
    // Every probe is answered: the window is still closed.
    let mut minutes = 0;
    while attack_bench.net.hosts[1].sockstat().orphan > 0 {
        minutes += 1;
        assert!(minutes <= 15, "orphans stay");
        for second in 0..60 {
            attack_bench.net.run_for(Nanos::from_secs(1));
            for rogue in rogues.iter().filter(|_| second % 10 == 0) {
                let repr = TcpRepr {
                    flags: TcpFlags::ACK,
                    seq: rogue.seq,
                    ack: rogue.ack,
                    window: WireWindow(0),
                    ..TcpRepr::default()
                };
                let packet = forge::tcp(rogue.from, rogue.to, repr, b"");
                let now = attack_bench.net.now;
                attack_bench.net.hosts[1].receive(now, IFACE, &mut vec![packet]);
            }
        }
    }
    assert_eq!(attack_bench.net.hosts[1].sockstat().orphan, 0);
}

/// More orphans than `tcp_max_orphans` are reset.
#[test]
fn too_many_orphans() {
    let mut attack_bench = AttackBench::new();
    attack_bench.net.hosts[1].sysctl_mut().tcp_max_orphans = 10;
    for n in 0..40 {
        let rogue = attack_bench.rogue(1000 + n, 0, usual());
        let now = attack_bench.net.now;
        let written = attack_bench.net.hosts[1]
            .tcp(rogue.victim)
            .write(now, &[7; 1000], false);
        assert_ne!(written, Err(TcpError::WouldBlock.into()));
        attack_bench.net.hosts[1].tcp(rogue.victim).close(now);
    }
    attack_bench.net.run_for(Nanos::from_millis(10));
    assert!(attack_bench.net.hosts[1].sockstat().orphan <= 10);
    assert_eq!(attack_bench.net.counter(1, "TcpExtTCPAbortOnMemory"), 30);
}

/// Completed handshakes that are never used: the accept queue bounds them.
#[test]
fn connections_that_are_not_accepted() {
    let mut attack_bench = AttackBench::new();
    let before = heap::allocated();
    for port in 1000..1000 + (packets() as u16).min(20_000) {
        let from = SocketAddr::new(ROGUE, port);
        let to = SocketAddr::new(V4[1].parse().unwrap(), 80);
        let syn = TcpRepr {
            flags: TcpFlags::SYN,
            seq: SeqNum::new(1000),
            window: WireWindow(65_535),
            options: usual(),
            ..TcpRepr::default()
        };
        attack_bench.deliver(forge::tcp(from, to, syn, b""));
        if let Some((answer, _)) = attack_bench.last_answer_to(from) {
            let ack = TcpRepr {
                flags: TcpFlags::ACK,
                seq: syn.seq + 1,
                ack: answer.seq + 1,
                options: TcpOptions::default(),
                ..syn
            };
            attack_bench.deliver(forge::tcp(from, to, ack, b""));
        }
        attack_bench.clear_rogue_answers();
    }
    assert!(attack_bench.net.hosts[1].tcp_socket_count() <= 4 + 65 + 65);
    let grown = heap::allocated() - before;
    assert!(grown < 1 << 20, "{grown}");
}
