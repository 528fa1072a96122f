use alloc::vec::Vec;

use fullsend_offload::Slice;
use fullsend_wire::{Mss, SeqNum};

use super::super::tests::{MSS, at, block, entry, seq};
use super::super::{RtxQueue, SuperSegment};
use super::{FIRST, RetransState, Retransmission, Scoreboard};

/// Returns a scoreboard with one retransmission, of the range from 100 to 200.
fn board(state: RetransState) -> Scoreboard {
    let mut board = Scoreboard::new(seq(0));
    let retrans = Retransmission {
        end: FIRST + 200,
        sent_at: at(5),
        number: 0,
        state,
        snapshot: None,
    };
    board.retransmissions.insert(FIRST + 100, retrans);
    board
}

#[test]
fn a_retransmission_marks_its_range_while_in_flight() {
    let range = Some((FIRST + 100, FIRST + 200));
    for (state, range, next) in [
        (RetransState::ForLost, range, FIRST + 100),
        (RetransState::Spurious, range, FIRST + 100),
        (RetransState::Probe, range, FIRST + 100),
        (RetransState::Done, None, super::Pos::MAX),
    ] {
        let board = board(state);
        let marks = [99, 100, 199, 200].map(|n| board.mark_at(FIRST + n));
        assert_eq!(marks, [None, range, range, None], "{state:?}");
        assert_eq!(board.next_mark(FIRST), next, "{state:?}");
    }
}

/// Positions are counted from `snd_una`, so a scoreboard that exists for more than half of the
/// sequence space remains correct.
#[test]
fn a_scoreboard_survives_sequence_number_wrap() {
    const LEN: u32 = 1 << 24;
    let mut q = RtxQueue::new(Mss::clamped(32_768));
    let payload = Slice::copied_from(&alloc::vec![0; LEN as usize]);
    for n in 0..300u32 {
        let start = SeqNum::new(n.wrapping_mul(LEN));
        q.push(SuperSegment {
            seq: start,
            payload: payload.clone().into(),
            ..entry(0, MSS, n.into())
        });
        // The last segment is SACKed before the next super-segment is sent.
        let end = start + LEN;
        let sacked = fullsend_wire::tcp::SackBlock {
            left: end - 32_768,
            right: end,
        };
        assert_eq!(q.sack(at(n.into()), q.una, &[sacked]).delivered_segs, 1);
        let acked = if n == 0 { 0 } else { LEN };
        assert_eq!(q.ack(at(n.into()), start).acked_bytes, acked);
        assert_eq!((q.packets_out(), q.sacked_out()), (LEN / 32_768, 1));
    }
    q.check();
}

#[test]
fn ranges_of_two_blocks_are_separate() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(entry(0, 1000, 0));
    q.sack(at(1), seq(0), &[block(100, 200), block(400, 500)]);
    let board = q.board.as_ref().expect("SACKed");
    let sacked: Vec<_> = board.sacked.iter().collect();
    let range = |a, b| (FIRST + a, FIRST + b);
    assert_eq!(sacked, [range(100, 200), range(400, 500)]);
    assert_eq!(board.next_mark(FIRST), FIRST + 100);
}
