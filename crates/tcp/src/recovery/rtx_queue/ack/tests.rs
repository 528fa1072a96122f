use fullsend_wire::Nanos;

use super::super::tests::{ack_context, at, block, counts, queue, seq};
use super::super::{AckContext, RtxQueue};

/// Without SACK a duplicate ACK counts a segment behind the hole as delivered; the hole itself is
/// never counted.
#[test]
fn duplicate_acks_count_as_sacked_segments_after_the_hole() {
    let mut q = queue(&[300]);
    // RFC 5681 3.2: each stands for a segment that has left the network, which one of the three has
    // not.
    assert_eq!(
        [q.on_dupack(), q.on_dupack(), q.on_dupack()],
        [true, true, false]
    );
    assert_eq!(counts(&q), (3, 2, 0, 0));
    q.forget_dupacks();
    assert_eq!(counts(&q), (3, 0, 0, 0));
    assert!(!q.has_scoreboard());
}

#[test]
fn a_queue_in_use_keeps_its_memory() {
    let mut q = queue(&[100; 50]);
    let before = q.entries.capacity();
    q.ack(at(60), seq(2000));
    assert_eq!(q.entries.capacity(), before);
}

/// Returns a queue whose range from `first` to `end` was retransmitted at 10 ms. The super-segments
/// were first sent one millisecond after the other.
fn retransmitted(lens: &[u32], first: u32, end: u32) -> RtxQueue {
    let mut q = queue(lens);
    let total: u32 = lens.iter().sum();
    // This block keeps the scoreboard in place.
    q.sack(at(5), seq(0), &[block(total - 100, total)]);
    q.mark_dropped(seq(first), seq(end));
    q.next_retransmit(at(10), 1, 0, |_| false).expect("dropped");
    q
}

/// Returns the ms at which the first remaining segment is overdue after an ACK at 20 ms.
fn overdue_at(q: &mut RtxQueue) -> u64 {
    let due = |ms: &u64| q.mark_overdue(at(*ms), Nanos::ZERO, Nanos::ZERO).lost_segs > 0;
    (20..60).find(due).expect("overtaken")
}

/// RFC 8985 6.2 step 2: of the segments that an ACK delivers, the last one in the stream sets
/// `RACK.rtt`, whether it was retransmitted or not.
#[test]
fn the_last_acked_segment_sets_the_rack_rtt() {
    // The last segment was sent at 1 ms, and follows the retransmission: 19 ms. The next was sent
    // at 2 ms. The last segment has only one byte, so that it ends with its first byte.
    let mut q = retransmitted(&[100, 1, 100, 100], 0, 100);
    q.begin_ack(ack_context(20));
    q.ack(at(20), seq(101));
    assert_eq!(overdue_at(&mut q), 21);
    // The retransmission, sent at 10 ms, follows a segment sent at 0 ms: 10 ms. The next was sent
    // at 2 ms.
    let mut q = retransmitted(&[100, 100, 100, 100], 100, 200);
    q.begin_ack(ack_context(20));
    q.ack(at(20), seq(200));
    assert_eq!(overdue_at(&mut q), 20);
}

/// RFC 8985 6.2 step 2: the echo of a TSval from before the retransmission is for the original, and
/// gives no round trip of the retransmission.
#[test]
fn a_timestamp_echo_distinguishes_original_and_retransmission() {
    for (echoed, due) in [(9, None), (10, Some(20)), (11, Some(20))] {
        let mut q = retransmitted(&[100, 100, 100], 0, 100);
        // Only the range under test has arrived.
        q.board.as_mut().expect("marked").rack = super::super::rack::Rack::new(0);
        q.begin_ack(AckContext {
            echoed: Some(at(echoed)),
            ..ack_context(20)
        });
        q.ack(at(20), seq(100));
        let lost = q.mark_overdue(at(20), Nanos::ZERO, Nanos::ZERO).lost_segs;
        assert_eq!(lost > 0, due.is_some(), "{echoed}");
    }
}

/// A scoreboard without marks is kept until RACK has inspected the ACK, and longer while an
/// overtaken segment is in flight (RFC 8985 6.2 step 5).
#[test]
fn a_scoreboard_without_marks_stays_for_rack_only() {
    for pending in [true, false] {
        let mut q = queue(&[100; 4]);
        q.sack(at(5), seq(0), &[block(100, 200)]);
        q.mark_dropped(seq(0), seq(100));
        q.next_retransmit(at(10), 1, 0, |_| false).expect("dropped");
        q.begin_ack(ack_context(20));
        q.ack(at(20), seq(200));
        assert!(q.has_scoreboard(), "the retransmission arrived just now");
        if pending {
            // The rest was sent before the retransmission, and is not overdue yet.
            let found = q.mark_overdue(at(20), Nanos::from_millis(100), Nanos::ZERO);
            assert_eq!((found.lost_segs, found.next_loss_at), (0, Some(at(113))));
        }
        q.end_ack();
        assert_eq!(q.has_scoreboard(), pending);
        q.begin_ack(ack_context(30));
        q.ack(at(30), seq(400));
        assert!(q.is_empty() && !q.has_scoreboard());
    }
}
