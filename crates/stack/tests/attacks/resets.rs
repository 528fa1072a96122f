//! Spoofed RSTs, SYNs and acknowledgements of an attacker who knows the 4-tuples but does not
//! observe the sequence numbers (RFC 5961).

use fullsend_units::Nanos;
use fullsend_wire::tcp::TcpFlags;

use crate::siege::{Siege, spoof};

/// Memory by which the flows' own buffers vary, bytes. No state is kept of these packets.
const BOUND: isize = 1 << 20;

/// Returns the maximum number of answers of all flows: `tcp_invalid_ratelimit` is half a second.
fn most_answers(span: Nanos) -> u64 {
    // Four flows, two ends.
    4 * 2 * (2 * span.as_millis() / 1000 + 1)
}

fn challenges(siege: &Siege) -> u64 {
    let name = "TcpExtTCPChallengeACK";
    (0..2).map(|host| siege.net.counter(host, name)).sum()
}

#[test]
fn guessed_resets() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let seq = attacker.seq();
        let flags = TcpFlags::RST;
        (1 - seen.host, spoof(&seen, flags, seq, seen.repr.ack, b""))
    });
    assert!(challenges(&siege) <= most_answers(Siege::span()));
}

#[test]
fn resets_inside_the_window_but_not_at_its_start() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        // Data in flight may arrive first and move the start of the window, so this is never the
        // start of a segment.
        let seq = seen.end + 30_001 + attacker.rng.below(20_000) as u32 * 2;
        let flags = TcpFlags::RST;
        (1 - seen.host, spoof(&seen, flags, seq, seen.repr.ack, b""))
    });
    let answers = challenges(&siege);
    assert!(
        answers > 0 && answers <= most_answers(Siege::span()),
        "{answers}"
    );
}

#[test]
fn syns_in_established_connections() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let seq = attacker.seq();
        let flags = TcpFlags::SYN;
        (1 - seen.host, spoof(&seen, flags, seq, seen.repr.ack, b""))
    });
    let answers = challenges(&siege);
    assert!(
        answers > 0 && answers <= most_answers(Siege::span()),
        "{answers}"
    );
}

#[test]
fn acknowledgements_of_what_was_not_sent() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let ack = seen.repr.ack + 1_000_000 + attacker.rng.next_u32() / 4;
        let packet = spoof(&seen, TcpFlags::ACK, seen.end, ack, b"");
        (1 - seen.host, packet)
    });
    assert!(challenges(&siege) <= most_answers(Siege::span()));
}

#[test]
fn the_host_limits_challenges_where_it_is_told_to() {
    let mut siege = Siege::new();
    for host in &mut siege.net.hosts {
        host.sysctl_mut().tcp_challenge_ack_limit = 2;
        host.sysctl_mut().tcp_invalid_ratelimit = 0;
    }
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let seq = attacker.seq();
        (
            1 - seen.host,
            spoof(&seen, TcpFlags::SYN, seq, seen.repr.ack, b""),
        )
    });
    let seconds = Siege::span().as_millis() / 1000 + 1;
    let answers = challenges(&siege);
    assert!(answers <= 2 * 3 * seconds, "{answers}");
}
