//! Spoofed RSTs, SYNs and acknowledgements of an attacker who knows the 4-tuples but does not
//! observe the sequence numbers (RFC 5961).

use fullsend_wire::Nanos;
use fullsend_wire::tcp::TcpFlags;

use crate::attack_bench::{AttackBench, spoof};

/// Memory by which the flows' own buffers vary, bytes. No state is kept of these packets.
const BOUND: isize = 1 << 20;

/// Returns the maximum number of answers of all flows: `tcp_invalid_ratelimit` is half a second.
fn max_answers(span: Nanos) -> u64 {
    // Four flows, two ends.
    4 * 2 * (2 * span.as_millis() / 1000 + 1)
}

fn challenges(attack_bench: &AttackBench) -> u64 {
    let name = "TcpExtTCPChallengeACK";
    (0..2)
        .map(|host| attack_bench.net.counter(host, name))
        .sum()
}

#[test]
fn guessed_resets() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let seq = attacker.seq();
        let flags = TcpFlags::RST;
        (
            1 - direction.host,
            spoof(&direction, flags, seq, direction.repr.ack, b""),
        )
    });
    assert!(challenges(&attack_bench) <= max_answers(AttackBench::span()));
}

#[test]
fn resets_inside_the_window_but_not_at_its_start() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        // Data in flight may arrive first and move the start of the window, so this is never the
        // start of a segment.
        let seq = direction.end + 30_001 + attacker.rng.below(20_000) as u32 * 2;
        let flags = TcpFlags::RST;
        (
            1 - direction.host,
            spoof(&direction, flags, seq, direction.repr.ack, b""),
        )
    });
    let answers = challenges(&attack_bench);
    assert!(
        answers > 0 && answers <= max_answers(AttackBench::span()),
        "{answers}"
    );
}

#[test]
fn syns_in_established_connections() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let seq = attacker.seq();
        let flags = TcpFlags::SYN;
        (
            1 - direction.host,
            spoof(&direction, flags, seq, direction.repr.ack, b""),
        )
    });
    let answers = challenges(&attack_bench);
    assert!(
        answers > 0 && answers <= max_answers(AttackBench::span()),
        "{answers}"
    );
}

#[test]
fn acks_of_unsent_data() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let ack = direction.repr.ack + 1_000_000 + attacker.rng.next_u32() / 4;
        let packet = spoof(&direction, TcpFlags::ACK, direction.end, ack, b"");
        (1 - direction.host, packet)
    });
    assert!(challenges(&attack_bench) <= max_answers(AttackBench::span()));
}

#[test]
fn the_host_limits_challenge_acks_when_configured() {
    let mut attack_bench = AttackBench::new();
    for host in &mut attack_bench.net.hosts {
        host.sysctl_mut().tcp_challenge_ack_limit = 2;
        host.sysctl_mut().tcp_invalid_ratelimit = 0;
    }
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let seq = attacker.seq();
        (
            1 - direction.host,
            spoof(&direction, TcpFlags::SYN, seq, direction.repr.ack, b""),
        )
    });
    let seconds = AttackBench::span().as_millis() / 1000 + 1;
    let answers = challenges(&attack_bench);
    assert!(answers <= 2 * 3 * seconds, "{answers}");
}
