use fullsend_units::Mss;

use super::super::tests::{MSS, at, block, bytes_of, counts, queue, seq, text, unit};
use super::super::{RtxQueue, TransmitUnit};

/// Returns a queue of super-segments of three segments with these numbers, all of them lost.
fn lost(numbers: &[u16]) -> RtxQueue {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    for (i, &number) in numbers.iter().enumerate() {
        q.push(TransmitUnit {
            number,
            ..unit(300 * i as u32, 300, 0)
        });
    }
    q.mark_all_lost();
    q
}

#[test]
fn where_nothing_may_go_nothing_is_marked_as_sent() {
    let mut q = lost(&[1]);
    assert!(q.next_retransmit(at(5), 0, 0, |_| false).is_none());
    assert_eq!((counts(&q), q.has_lost()), ((3, 0, 3, 0), true));
}

/// The caller has checked whether the host still has the first one.
#[test]
fn what_the_host_has_does_not_join_what_goes_again() {
    for (in_host, segs) in [(7, 6), (8, 3), (9, 6)] {
        let mut q = lost(&[7, 8]);
        let again = q.next_retransmit(at(5), 9, 1, |n| n == in_host);
        assert_eq!(again.expect("lost").segs, segs, "{in_host}");
    }
}

#[test]
fn the_memory_charged_is_the_share_of_what_goes_again() {
    let mut q = queue(&[1000]);
    assert_eq!((q.truesize(), q.head_pins() >= 1000), (1256, true));
    q.mark_all_lost();
    let again = q.next_retransmit(at(5), 3, 0, |_| false).expect("lost");
    assert_eq!(again.truesize, 1256 * 300 / 1000);
}

/// A SYN with data (RFC 7413) is retransmitted with the first segment of data, and no more.
#[test]
fn a_syn_goes_again_with_its_first_segment() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(TransmitUnit {
        syn: true,
        payload: text(1, 300),
        ..unit(0, 300, 0)
    });
    assert_eq!([0, 1, 2].map(|n| q.ceil(seq(n))), [0, 1, 101].map(seq));
    q.mark_all_lost();
    let first = q.next_retransmit(at(5), 2, 0, |_| false).expect("lost");
    assert_eq!((first.seq, first.syn, first.segs), (seq(0), true, 2));
    assert_eq!(bytes_of(&first.payload), bytes_of(&text(1, 200)));
    let rest = q.next_retransmit(at(5), 2, 0, |_| false).expect("lost");
    assert_eq!((rest.seq, rest.syn, rest.segs), (seq(201), false, 1));
}

#[test]
fn the_last_copy_of_the_tail_has_the_number_that_counts() {
    let mut q = queue(&[1000]);
    q.push(TransmitUnit {
        number: 5,
        ..unit(1000, 250, 0)
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
fn the_time_of_a_retransmission_keeps_the_order_of_sending() {
    for (first, second, later) in [(0, 500, 0), (500, 0, 1), (0, 0, 1)] {
        let mut q = queue(&[500, 500]);
        let mut resend = |start: u32| {
            q.mark_dropped(seq(start), seq(start + 500));
            q.next_retransmit(at(10), 9, 0, |_| false).expect("lost");
            q.board.as_ref().expect("marked").last_copy.0
        };
        let (a, b) = (resend(first), resend(second));
        assert_eq!(b.since(a).as_nanos(), later, "{first}, {second}");
        assert!(b >= a);
    }
}
