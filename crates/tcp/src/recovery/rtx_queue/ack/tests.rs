use alloc::vec::Vec;

use fullsend_wire::{Mss, Nanos};
use proptest::prelude::*;

use super::super::tests::{MSS, ack_context, at, block, counts, entry, queue, seq};
use super::super::{AckContext, RtxQueue, SuperSegment};
use super::UnmarkedAck;

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

/// Returns a queue of super-segments of these lengths, sent at the times of `entries`, with a SYN
/// before the first and a FIN after the last; and the sequence numbers that they take.
fn flagged_queue(entries: &[(u32, u64)], syn: bool, fin: bool) -> (RtxQueue, u32) {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    let mut nxt = 0;
    if syn {
        q.push(SuperSegment {
            syn: true,
            ..entry(0, 0, 0)
        });
        nxt = 1;
    }
    for (i, &(len, sent_ms)) in entries.iter().enumerate() {
        let fin = fin && i + 1 == entries.len();
        q.push(SuperSegment {
            fin,
            ..entry(nxt, len, sent_ms)
        });
        nxt += len + u32::from(fin);
    }
    (q, nxt)
}

#[test]
fn an_unmarked_ack_reports_both_round_trips_and_counts_no_flags() {
    let (mut q, end) = flagged_queue(&[(1000, 1), (450, 2), (100, 4)], true, true);
    let ack = q.ack_unmarked(at(10), seq(1));
    assert_eq!((ack.segs, ack.bytes, ack.fin), (1, 0, false));
    assert_eq!(ack.first_sent, Some(at(0)));
    // The first super-segment, and one segment of the second.
    let ack = q.ack_unmarked(at(10), seq(1101));
    assert_eq!((ack.segs, ack.bytes, ack.fin), (11, 1100, false));
    assert_eq!(ack.first_sent, Some(at(1)));
    let ms = Nanos::from_millis;
    assert_eq!(ack.rtts, Some((ms(9), ms(8))));
    // Half a segment delivers none.
    let ack = q.ack_unmarked(at(10), seq(1151));
    assert_eq!((ack.segs, ack.bytes, ack.rtts), (0, 50, None));
    let ack = q.ack_unmarked(at(12), seq(end));
    assert_eq!((ack.segs, ack.bytes, ack.fin), (5, 400, true));
    assert_eq!(ack.rtts, Some((ms(10), ms(8))));
    assert!(q.is_empty() && q.truesize() == 0);
    assert_eq!(q.ack_unmarked(at(13), seq(end)), UnmarkedAck::default());
}

/// The peer may acknowledge the SYN of a Fast Open request without its data (RFC 7413 4.1.2).
#[test]
fn a_syn_is_acknowledged_without_its_data() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(SuperSegment {
        syn: true,
        ..entry(0, 250, 0)
    });
    let ack = q.ack_unmarked(at(1), seq(1));
    assert_eq!((ack.segs, ack.bytes, ack.rtts), (0, 0, None));
    assert_eq!((q.entries[0].seq, q.entries[0].syn), (seq(1), false));
    let ack = q.ack_unmarked(at(2), seq(101));
    assert_eq!((ack.segs, ack.bytes), (1, 100));
    assert_eq!((q.entries[0].seq, q.end()), (seq(101), seq(251)));
    q.check();
}

proptest! {
    /// The fast path has the effects of the general one on a queue without marks.
    #[test]
    fn an_unmarked_ack_equals_a_general_one(
        lens in prop::collection::vec((1..1000u32, 0..5u64), 1..8),
        (syn, fin) in any::<(bool, bool)>(),
        acks in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
    ) {
        let mut now = 0;
        let entries: Vec<_> = lens
            .into_iter()
            .map(|(len, after)| {
                now += after;
                (len, now)
            })
            .collect();
        let (mut fast, end) = flagged_queue(&entries, syn, fin);
        let (mut general, _) = flagged_queue(&entries, syn, fin);
        let mut acks: Vec<_> = acks.iter().map(|ack| ack.index(end as usize + 1) as u32).collect();
        acks.sort_unstable();
        for ack in acks {
            now += 1;
            let out = general.ack(at(now), seq(ack));
            let expected = UnmarkedAck {
                segs: out.acked_segs,
                bytes: out.acked_bytes,
                first_sent: out.first_sent,
                rtts: out.rtt.zip(out.rtt_newest),
                fin: out.fin,
            };
            prop_assert_eq!(fast.ack_unmarked(at(now), seq(ack)), expected);
            prop_assert_eq!(counts(&fast), counts(&general));
            prop_assert_eq!(fast.truesize(), general.truesize());
            prop_assert_eq!(fast.head_sent_at(), general.head_sent_at());
            prop_assert_eq!((fast.una, fast.end()), (general.una, general.end()));
        }
    }
}
