//! Spoofed data: far from the window, over data already accepted, and with invalid acknowledgements
//! and timestamps.

use fullsend_wire::tcp::{SackBlock, TcpFlags};

use crate::siege::{Siege, spoof};

const BOUND: isize = 2 << 20;
/// `tcp_wmem[2]`. Forged SACK blocks look like a path that reorders, on which cwnd opens sooner
/// than without an attack: the flows send more, and their buffers hold it.
const SEND_BUFFER: isize = 4 << 20;
const PUSH: TcpFlags = TcpFlags::PSH.union(TcpFlags::ACK);
const LIES: [u8; 1400] = [0xee; 1400];

#[test]
fn text_far_from_the_window() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let seq = seen.end + 200_000 + attacker.rng.below(4_294_000_000 - 400_000) as u32;
        let text = &LIES[..=attacker.rng.below(1399) as usize];
        (1 - seen.host, spoof(&seen, PUSH, seq, seen.repr.ack, text))
    });
    let skipped: u64 = (0..2)
        .map(|host| siege.net.counter(host, "TcpExtTCPACKSkippedSeq"))
        .sum();
    let packets = crate::siege::packets() as u64;
    assert!(skipped > packets / 2, "{skipped} of {packets}");
}

#[test]
fn text_over_what_was_accepted() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        // All of it was acknowledged to the sender before.
        let len = 1 + attacker.rng.below(1400) as usize;
        let other = attacker
            .directions
            .iter()
            .find(|d| d.from == seen.to && d.to == seen.from);
        let known = other.map_or(seen.repr.seq, |other| other.repr.ack);
        let seq = known - len as u32 - attacker.rng.below(30_000) as u32;
        (
            1 - seen.host,
            spoof(&seen, PUSH, seq, seen.repr.ack, &LIES[..len]),
        )
    });
}

#[test]
fn text_with_any_acknowledgement_and_any_place() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let seen = attacker.direction();
        let (seq, ack) = (attacker.seq(), attacker.seq());
        (1 - seen.host, spoof(&seen, PUSH, seq, ack, &LIES))
    });
}

#[test]
fn text_with_old_timestamps() {
    let mut siege = Siege::new();
    siege.withstand(BOUND, |attacker| {
        let mut seen = attacker.direction();
        if let Some(ts) = &mut seen.repr.options.timestamps {
            ts.val = ts.val.wrapping_sub(1 + attacker.rng.below(1 << 30) as u32);
        }
        let seq = seen.end + attacker.rng.below(1000) as u32;
        (1 - seen.host, spoof(&seen, PUSH, seq, seen.repr.ack, &LIES))
    });
    let rejected: u64 = (0..2)
        .map(|host| siege.net.counter(host, "TcpExtPAWSEstab"))
        .sum();
    assert!(rejected >= crate::siege::packets() as u64);
}

#[test]
fn sack_blocks_at_any_place() {
    let mut siege = Siege::new();
    siege.withstand(SEND_BUFFER, |attacker| {
        let mut seen = attacker.direction();
        for _ in 0..3 {
            let left = attacker.seq();
            let right = left + attacker.rng.below(100_000) as u32;
            seen.repr.options.sack.push(SackBlock { left, right });
        }
        let packet = spoof(&seen, TcpFlags::ACK, seen.end, seen.repr.ack, b"");
        (1 - seen.host, packet)
    });
}
