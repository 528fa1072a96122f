use fullsend_wire::Mss;

use super::super::RtxQueue;
use super::super::tests::{at, counts, queue, seq};

/// Returns a queue of ten segments of 100 bytes. The host dropped the first `dropped`, of which
/// `again` were retransmitted one by one.
fn with_retransmission(dropped: u32, again: u32) -> RtxQueue {
    let mut q = queue(&[1000]);
    q.mark_dropped(seq(0), seq(dropped * 100));
    for _ in 0..again {
        q.next_retransmit(at(10), 1, 0, |_| false).expect("lost");
    }
    q
}

#[test]
fn a_retransmission_is_in_flight_as_a_whole_or_not_at_all() {
    // The retransmission covers half of a segment of 80 bytes; the other half has no marks.
    let mut q = with_retransmission(1, 1);
    q.set_mss(Mss::clamped(80));
    assert_eq!(counts(&q), (13, 0, 2, 2));
    // The other half waits to be retransmitted.
    let mut q = with_retransmission(2, 1);
    q.set_mss(Mss::clamped(80));
    assert_eq!(counts(&q), (13, 0, 3, 0));
}

#[test]
fn two_retransmissions_within_one_segment_become_one() {
    let mut q = with_retransmission(2, 2);
    q.set_mss(Mss::clamped(300));
    assert_eq!(counts(&q), (4, 0, 1, 1));
}
