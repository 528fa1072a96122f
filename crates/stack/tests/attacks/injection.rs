//! Spoofed data: far from the window, over data already accepted, and with invalid acknowledgements
//! and timestamps.

use fullsend_wire::tcp::{SackBlock, TcpFlags};

use crate::attack_bench::{AttackBench, spoof};

const BOUND: isize = 2 << 20;
/// `tcp_wmem[2]`. Forged SACK blocks look like a path that reorders, on which cwnd opens sooner
/// than without an attack: the flows send more, and their buffers hold it.
const SEND_BUFFER: isize = 4 << 20;
const PUSH: TcpFlags = TcpFlags::PSH.union(TcpFlags::ACK);
const INJECTED: [u8; 1400] = [0xee; 1400];

#[test]
fn data_far_from_the_window() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let seq = direction.end + 200_000 + attacker.rng.below(4_294_000_000 - 400_000) as u32;
        let payload = &INJECTED[..=attacker.rng.below(1399) as usize];
        (
            1 - direction.host,
            spoof(&direction, PUSH, seq, direction.repr.ack, payload),
        )
    });
    let skipped: u64 = (0..2)
        .map(|host| attack_bench.net.counter(host, "TcpExtTCPACKSkippedSeq"))
        .sum();
    let packets = crate::attack_bench::packets() as u64;
    assert!(skipped > packets / 2, "{skipped} of {packets}");
}

#[test]
fn data_overlapping_accepted_data() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        // All of it was acknowledged to the sender before.
        let len = 1 + attacker.rng.below(1400) as usize;
        let other = attacker
            .directions
            .iter()
            .find(|d| d.from == direction.to && d.to == direction.from);
        let known = other.map_or(direction.repr.seq, |other| other.repr.ack);
        let seq = known - len as u32 - attacker.rng.below(30_000) as u32;
        (
            1 - direction.host,
            spoof(&direction, PUSH, seq, direction.repr.ack, &INJECTED[..len]),
        )
    });
}

#[test]
fn data_with_random_seq_and_ack() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let direction = attacker.direction();
        let (seq, ack) = (attacker.seq(), attacker.seq());
        (
            1 - direction.host,
            spoof(&direction, PUSH, seq, ack, &INJECTED),
        )
    });
}

#[test]
fn data_with_old_timestamps() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(BOUND, |attacker| {
        let mut direction = attacker.direction();
        if let Some(ts) = &mut direction.repr.options.timestamps {
            ts.val = ts.val.wrapping_sub(1 + attacker.rng.below(1 << 30) as u32);
        }
        let seq = direction.end + attacker.rng.below(1000) as u32;
        (
            1 - direction.host,
            spoof(&direction, PUSH, seq, direction.repr.ack, &INJECTED),
        )
    });
    let rejected: u64 = (0..2)
        .map(|host| attack_bench.net.counter(host, "TcpExtPAWSEstab"))
        .sum();
    assert!(rejected >= crate::attack_bench::packets() as u64);
}

#[test]
fn sack_blocks_at_random_sequence_numbers() {
    let mut attack_bench = AttackBench::new();
    attack_bench.run_attack(SEND_BUFFER, |attacker| {
        let mut direction = attacker.direction();
        for _ in 0..3 {
            let left = attacker.seq();
            let right = left + attacker.rng.below(100_000) as u32;
            direction.repr.options.sack.push(SackBlock { left, right });
        }
        let packet = spoof(
            &direction,
            TcpFlags::ACK,
            direction.end,
            direction.repr.ack,
            b"",
        );
        (1 - direction.host, packet)
    });
}
