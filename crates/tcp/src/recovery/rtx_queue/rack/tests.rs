use fullsend_wire::Nanos;

use super::super::AckContext;
use super::super::tests::{ack_context, at, block, queue, seq};

/// RFC 8985 6.2 step 2: the cumulative part of an ACK sets `RACK.rtt`, even if the ACK SACKs later
/// data.
#[test]
fn the_cumulative_ack_sets_the_rack_rtt() {
    let mut q = queue(&[100; 6]);
    // This block keeps the scoreboard in place.
    q.sack(at(6), seq(0), &[block(500, 600)]);
    q.begin_ack(ack_context(20));
    // The delivered segments were sent at 1 ms and at 3 ms, the one between them at 2 ms.
    q.ack(at(20), seq(200));
    q.sack(at(20), seq(200), &[block(300, 400), block(500, 600)]);
    let found = q.mark_overdue(at(20), Nanos::ZERO, Nanos::ZERO);
    assert_eq!((found.lost_segs, found.next_loss_at.is_some()), (0, true));
    assert_eq!(
        q.mark_overdue(at(21), Nanos::ZERO, Nanos::ZERO).lost_segs,
        1
    );
    // Without a cumulative part the SACKed segment, sent at 3 ms, sets it.
    let mut q = queue(&[100; 5]);
    q.sack(at(20), seq(0), &[block(300, 400)]);
    let found = q.mark_overdue(at(20), Nanos::ZERO, Nanos::ZERO);
    assert_eq!(found.lost_segs, 3);
}

/// RFC 8985 6.2 step 2: an ACK sooner than the least round trip after a retransmission is for the
/// original. Clocks are not exact, so a sixteenth less is accepted.
#[test]
fn an_ack_after_min_rtt_is_for_the_retransmission() {
    for (ms, counts) in [(24, false), (25, true)] {
        let mut q = queue(&[100; 10]);
        q.sack(at(9), seq(0), &[block(500, 1000)]);
        assert_eq!(q.mark_lost_by_sack(3), 5);
        q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
        q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
        q.begin_ack(AckContext {
            min_rtt: Nanos::from_millis(16),
            ..ack_context(ms)
        });
        q.sack(at(ms), seq(0), &[block(100, 200)]);
        let found = q.mark_overdue(at(ms), Nanos::ZERO, Nanos::ZERO);
        assert_eq!(found.lost_retrans_segs > 0, counts, "{ms}");
    }
}

#[test]
fn a_queue_without_sack_or_loss_has_no_marks() {
    let mut q = queue(&[1000, 1000]);
    assert!(!q.has_scoreboard() && !q.head_was_retransmitted());
    assert_eq!(q.segs_to_highest_sacked(seq(0)), 0);
    q.sack(at(9), seq(0), &[block(500, 800)]);
    assert!(q.has_scoreboard() && !q.head_was_retransmitted());
    let to_highest = [0, 100, 750, 800].map(|n| q.segs_to_highest_sacked(seq(n)));
    assert_eq!(to_highest, [8, 7, 1, 0]);
    q.mark_dropped(seq(0), seq(100));
    q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
    assert!(q.head_was_retransmitted());
}
