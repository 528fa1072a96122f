use fullsend_wire::Mss;

use super::super::tests::{MSS, at, block, bytes_of, counts, data, entry, queue, seq};
use super::super::{RtxQueue, SuperSegment};

/// Returns a queue of super-segments of three segments with these numbers, all of them lost.
fn lost(numbers: &[u16]) -> RtxQueue {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    for (i, &number) in numbers.iter().enumerate() {
        q.push(SuperSegment {
            number,
            ..entry(300 * i as u32, 300, 0)
        });
    }
    q.mark_all_lost();
    q
}

#[test]
fn with_a_limit_of_zero_nothing_is_marked_as_retransmitted() {
    let mut q = lost(&[1]);
    assert!(q.next_retransmit(at(5), 0, 0, |_| false).is_none());
    assert_eq!((counts(&q), q.has_lost()), ((3, 0, 3, 0), true));
}

/// The caller has checked whether the host still has the first one.
#[test]
fn segments_in_the_host_queue_are_not_merged_into_a_retransmission() {
    for (in_host, segs) in [(7, 6), (8, 3), (9, 6)] {
        let mut q = lost(&[7, 8]);
        let again = q.next_retransmit(at(5), 9, 1, |n| n == in_host);
        assert_eq!(again.expect("lost").segs, segs, "{in_host}");
    }
}

#[test]
fn a_retransmission_is_charged_its_share_of_the_memory() {
    let mut q = queue(&[1000]);
    assert_eq!((q.truesize(), q.head_pinned_bytes() >= 1000), (1256, true));
    q.mark_all_lost();
    let again = q.next_retransmit(at(5), 3, 0, |_| false).expect("lost");
    assert_eq!(again.truesize, 1256 * 300 / 1000);
}

/// A SYN with data (RFC 7413) is retransmitted with the first segment of data, and no more.
#[test]
fn a_syn_is_retransmitted_with_its_first_segment() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(SuperSegment {
        syn: true,
        payload: data(1, 300),
        ..entry(0, 300, 0)
    });
    assert_eq!([0, 1, 2].map(|n| q.ceil(seq(n))), [0, 1, 101].map(seq));
    q.mark_all_lost();
    let first = q.next_retransmit(at(5), 2, 0, |_| false).expect("lost");
    assert_eq!((first.seq, first.syn, first.segs), (seq(0), true, 2));
    assert_eq!(bytes_of(&first.payload), bytes_of(&data(1, 200)));
    let rest = q.next_retransmit(at(5), 2, 0, |_| false).expect("lost");
    assert_eq!((rest.seq, rest.syn, rest.segs), (seq(201), false, 1));
}

#[test]
fn the_last_retransmission_of_the_tail_sets_its_number() {
    let mut q = queue(&[1000]);
    q.push(SuperSegment {
        number: 5,
        ..entry(1000, 250, 0)
    });
    assert_eq!(q.tail_number(), Some(5));
    q.sack(at(3), seq(0), &[block(100, 200)]);
    assert_eq!(q.tail_number(), Some(5));
    q.probe_tail(at(4), 9);
    assert_eq!(q.tail_number(), Some(9));
}

/// RFC 8985 6.2: of two retransmissions of the same time the one that is further on in the stream
/// is the later one. Where the order of sending differs, a nanosecond is added.
#[test]
fn retransmission_times_keep_the_send_order() {
    for (first, second, later) in [(0, 500, 0), (500, 0, 1), (0, 0, 1)] {
        let mut q = queue(&[500, 500]);
        let mut resend = |start: u32| {
            q.mark_dropped(seq(start), seq(start + 500));
            q.next_retransmit(at(10), 9, 0, |_| false).expect("lost");
            q.board.as_ref().expect("marked").last_retrans.0
        };
        let (a, b) = (resend(first), resend(second));
        assert_eq!(b.since(a).as_nanos(), later, "{first}, {second}");
        assert!(b >= a);
    }
}
