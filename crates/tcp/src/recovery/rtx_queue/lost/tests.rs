use alloc::vec::Vec;

use super::super::RtxQueue;
use super::super::tests::{at, block, counts, queue, seq};

/// Returns the ranges that are retransmitted, each with as many segments as allowed.
fn retransmit(q: &mut RtxQueue, ms: u64) -> Vec<(u32, u32)> {
    core::iter::from_fn(|| q.next_retransmit(at(ms), 45, 0, |_| false))
        .map(|again| (again.seq.since(seq(0)), again.segs))
        .collect()
}

/// A retransmission that the host drops is marked lost like an original, and nothing beside it.
#[test]
fn a_local_drop_marks_originals_and_retransmissions_lost() {
    let mut q = queue(&[1000]);
    assert_eq!(q.mark_dropped(seq(0), seq(200)), 2);
    assert_eq!(q.mark_dropped(seq(0), seq(200)), 0, "waits already");
    assert_eq!(retransmit(&mut q, 10), [(0, 2)]);
    assert_eq!(counts(&q), (10, 0, 2, 2));
    // The next segment, then the two retransmissions as well.
    assert_eq!(q.mark_dropped(seq(200), seq(300)), 1);
    assert_eq!(counts(&q), (10, 0, 3, 2));
    assert_eq!(q.mark_dropped(seq(0), seq(300)), 2);
    assert_eq!(counts(&q), (10, 0, 3, 0));
}

#[test]
fn without_sack_the_head_is_lost_once() {
    let mut q = queue(&[1000]);
    assert_eq!(q.mark_head_lost(), 1);
    assert_eq!(retransmit(&mut q, 10), [(0, 1)]);
    assert_eq!(q.mark_head_lost(), 0, "its copy is under way");
}

/// RFC 8985 6.3: a segment or retransmission sent less than a round trip ago may still arrive. The
/// head is lost however late it was sent.
#[test]
fn a_timeout_does_not_mark_recent_segments_lost() {
    let mut q = queue(&[1000]);
    q.sack(at(1), seq(0), &[block(400, 1000)]);
    assert_eq!(q.mark_lost_by_sack(3), 4);
    for ms in [5, 9, 10] {
        q.next_retransmit(at(ms), 1, 0, |_| false).expect("lost");
    }
    q.mark_dropped(seq(0), seq(100));
    q.next_retransmit(at(12), 1, 0, |_| false).expect("dropped");
    assert!(!q.mark_timed_out(at(9)));
    // The head, retransmitted at 12 ms, the retransmission of 9 ms, and the segment that waited are
    // lost; the retransmission of 10 ms is not.
    assert_eq!(counts(&q), (10, 6, 4, 1));
    assert_eq!(retransmit(&mut q, 20), [(0, 2), (300, 1)]);
}

/// RFC 2018 8: after reneging all data is retransmitted, SACKed or not.
#[test]
fn a_timeout_after_reneging_marks_everything_lost() {
    let mut q = queue(&[500]);
    q.sack(at(1), seq(0), &[block(100, 200), block(300, 500)]);
    assert_eq!(q.mark_lost_by_sack(2), 2);
    q.ack(at(2), seq(100));
    q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
    assert_eq!(counts(&q), (4, 3, 1, 1));
    assert!(q.mark_timed_out(at(5)));
    assert_eq!(counts(&q), (4, 0, 4, 0));
}

/// After an undo the retransmissions in flight count beside their originals.
#[test]
fn a_retransmission_survives_the_undo_of_its_loss() {
    let mut q = queue(&[1000]);
    assert_eq!(q.mark_dropped(seq(0), seq(300)), 3);
    q.next_retransmit(at(10), 2, 0, |_| false).expect("lost");
    q.probe_tail(at(11), 0).expect("a tail");
    assert_eq!((counts(&q), q.in_flight()), ((10, 0, 3, 2), 9));
    q.unmark_lost();
    assert_eq!((counts(&q), q.in_flight()), ((10, 0, 0, 2), 12));
    assert!(!q.has_lost());
}
