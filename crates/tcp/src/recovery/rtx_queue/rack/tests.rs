use fullsend_units::Nanos;

use super::super::Sighting;
use super::super::tests::{at, block, queue, seq, sighting};

/// RFC 8985 6.2 step 2: the cumulative part of an ACK sets `RACK.rtt`, even if the ACK SACKs later
/// data.
#[test]
fn the_cumulative_part_of_an_ack_sets_the_round_trip_of_rack() {
    let mut q = queue(&[100; 6]);
    // This block keeps the scoreboard in place.
    q.sack(at(6), seq(0), &[block(500, 600)]);
    q.sight(sighting(20));
    // The delivered segments were sent at 1 ms and at 3 ms, the one between them at 2 ms.
    q.ack(at(20), seq(200));
    q.sack(at(20), seq(200), &[block(300, 400), block(500, 600)]);
    let found = q.mark_overdue(at(20), Nanos::ZERO, Nanos::ZERO);
    assert_eq!((found.lost_segs, found.at.is_some()), (0, true));
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
fn an_answer_after_the_least_round_trip_is_for_the_retransmission() {
    for (ms, counts) in [(24, false), (25, true)] {
        let mut q = queue(&[100; 10]);
        q.sack(at(9), seq(0), &[block(500, 1000)]);
        assert_eq!(q.mark_lost_by_sack(3), 5);
        q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
        q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
        q.sight(Sighting {
            min_rtt: Nanos::from_millis(16),
            ..sighting(ms)
        });
        q.sack(at(ms), seq(0), &[block(100, 200)]);
        let found = q.mark_overdue(at(ms), Nanos::ZERO, Nanos::ZERO);
        assert_eq!(found.resent_segs > 0, counts, "{ms}");
    }
}

#[test]
fn a_queue_of_which_nothing_is_known_has_no_marks() {
    let mut q = queue(&[1000, 1000]);
    assert!(!q.is_marked() && !q.head_was_resent());
    assert_eq!(q.segs_to_highest_sacked(seq(0)), 0);
    q.sack(at(9), seq(0), &[block(500, 800)]);
    assert!(q.is_marked() && !q.head_was_resent());
    let to_highest = [0, 100, 750, 800].map(|n| q.segs_to_highest_sacked(seq(n)));
    assert_eq!(to_highest, [8, 7, 1, 0]);
    q.mark_dropped(seq(0), seq(100));
    q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
    assert!(q.head_was_resent());
}
