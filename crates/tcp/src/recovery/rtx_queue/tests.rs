use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use fullsend_offload::{Chain, Slice};
use fullsend_wire::tcp::SackBlock;
use fullsend_wire::{Instant, Mss, Nanos, SeqNum};
use proptest::prelude::*;

use super::{AckContext, AckOutcome, RackOutcome, RtxQueue, SuperSegment};

pub(super) const MSS: u32 = 100;
/// Close to the wrap, so that every test crosses it.
const ISS: u32 = u32::MAX - 777;

pub(super) fn seq(n: u32) -> SeqNum {
    SeqNum::new(ISS) + n
}

pub(super) fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

pub(super) fn block(left: u32, right: u32) -> SackBlock {
    SackBlock {
        left: seq(left),
        right: seq(right),
    }
}

/// Returns the byte at stream position `n`.
fn byte(n: u32) -> u8 {
    (n.wrapping_mul(2_654_435_761) >> 24) as u8
}

pub(super) fn data(from: u32, len: u32) -> Chain {
    let bytes: Vec<u8> = (from..from + len).map(byte).collect();
    Slice::copied_from(&bytes).into()
}

pub(super) fn bytes_of(chain: &Chain) -> Vec<u8> {
    let mut out = vec![0; chain.len()];
    chain.copy_to(&mut out);
    out
}

pub(super) fn entry(from: u32, len: u32, sent_ms: u64) -> SuperSegment {
    SuperSegment {
        seq: seq(from),
        payload: data(from, len),
        syn: false,
        fin: false,
        push: false,
        sent_at: at(sent_ms),
        truesize: len + 256,
        number: 0,
    }
}

/// Returns a queue of super-segments of these lengths, sent one millisecond after the other.
pub(super) fn queue(lens: &[u32]) -> RtxQueue {
    let mut queue = RtxQueue::new(Mss::clamped(MSS as u16));
    let mut from = 0;
    for (i, &len) in lens.iter().enumerate() {
        queue.push(entry(from, len, i as u64));
        from += len;
    }
    queue.check();
    queue
}

/// Returns `(packets_out, sacked_out, lost_out, retrans_out)`.
pub(super) fn counts(queue: &RtxQueue) -> (u32, u32, u32, u32) {
    queue.check();
    (
        queue.packets_out(),
        queue.sacked_out(),
        queue.lost_out(),
        queue.retrans_out(),
    )
}

#[test]
fn an_ack_removes_whole_segments_and_trims_the_next() {
    let mut q = queue(&[1000, 450, 100]);
    assert_eq!(counts(&q), (16, 0, 0, 0));
    let before = q.truesize();
    let out = q.ack(at(10), seq(1000));
    assert_eq!(
        (out.acked_segs, out.delivered_segs, out.acked_bytes),
        (10, 10, 1000)
    );
    assert_eq!(out.rtt, Some(Nanos::from_millis(10)));
    assert_eq!(q.truesize(), before - 1256);
    assert_eq!(q.head_first_sent_at(), Some(at(1)));
    let out = q.ack(at(20), seq(1230));
    assert_eq!((out.acked_segs, out.acked_bytes), (2, 230));
    assert_eq!(q.truesize(), before - 1256);
    assert_eq!(counts(&q), (4, 0, 0, 0));
    let out = q.ack(at(21), seq(1550));
    assert_eq!((out.acked_segs, out.acked_bytes), (4, 320));
    assert_eq!(out.rtt, Some(Nanos::from_millis(20)));
    assert_eq!(out.rtt_newest, Some(Nanos::from_millis(19)));
    assert!(q.is_empty() && q.truesize() == 0);
}

#[test]
fn syn_and_fin_consume_sequence_space() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(SuperSegment {
        syn: true,
        ..entry(0, 0, 0)
    });
    assert!(!q.ack(at(1), seq(0)).syn);
    assert!(q.ack(at(1), seq(1)).syn);
    q.push(SuperSegment {
        fin: true,
        push: false,
        ..entry(1, 100, 2)
    });
    let out = q.ack(at(3), seq(101));
    assert_eq!((out.acked_bytes, out.acked_segs, out.fin), (100, 0, false));
    assert_eq!(q.packets_out(), 1);
    let out = q.ack(at(4), seq(102));
    assert_eq!((out.acked_bytes, out.acked_segs, out.fin), (0, 1, true));
    assert!(q.is_empty());
}

#[test]
fn sack_splits_super_segments_at_segment_boundaries_and_merges_ranges() {
    let mut q = queue(&[1000, 1000]);
    let out = q.sack(at(5), seq(0), &[block(300, 500)]);
    assert_eq!(
        (out.delivered_segs, out.rtt),
        (2, Some(Nanos::from_millis(5)))
    );
    assert_eq!(counts(&q), (20, 2, 0, 0));
    // Already SACKed.
    assert_eq!(q.sack(at(6), seq(0), &[block(300, 500)]).delivered_segs, 0);
    // Half a segment more is not counted. A block that adjoins a range is joined with it, across
    // super-segments, too.
    assert_eq!(q.sack(at(7), seq(0), &[block(300, 550)]).delivered_segs, 0);
    assert_eq!(q.sack(at(8), seq(0), &[block(300, 1200)]).delivered_segs, 7);
    assert_eq!(counts(&q), (20, 9, 0, 0));
    assert_eq!(q.board.as_ref().map(|b| b.sacked.len()), Some(1));
    let out = q.ack(at(9), seq(1300));
    assert_eq!((out.acked_segs, out.delivered_segs), (13, 4));
    assert_eq!(counts(&q), (7, 0, 0, 0));
}

#[test]
fn invalid_sack_blocks_are_ignored() {
    let mut q = queue(&[1000]);
    for bad in [
        block(500, 500),
        block(600, 500),
        block(500, 1001),
        SackBlock {
            left: seq(0) - 500,
            right: seq(500),
        },
        SackBlock {
            left: seq(0),
            right: seq(300),
        },
        SackBlock {
            left: seq(500),
            right: seq(400) + (1 << 31),
        },
    ] {
        let out = q.sack(at(1), seq(0), &[bad]);
        assert_eq!((out.delivered_segs, out.dsack), (0, None), "{bad:?}");
    }
    assert_eq!(counts(&q), (10, 0, 0, 0));
}

/// Some peers do not include the FIN in their SACK blocks.
#[test]
fn a_fin_is_sacked_with_the_data_before_it() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(entry(0, 300, 0));
    q.push(SuperSegment {
        fin: true,
        ..entry(300, 250, 0)
    });
    assert_eq!(q.sack(at(1), seq(0), &[block(300, 550)]).delivered_segs, 3);
    assert_eq!(q.sack(at(1), seq(0), &[block(300, 551)]).delivered_segs, 0);
    let out = q.ack(at(2), seq(551));
    assert!(out.fin && q.is_empty());
}

#[test]
fn dsack_is_distinguished_from_sack() {
    let mut q = queue(&[1000]);
    q.ack(at(1), seq(300));
    let old = block(100, 200);
    let out = q.sack(at(2), seq(300), &[old, block(500, 600)]);
    assert_eq!((out.dsack, out.delivered_segs), (Some(old), 1));
    let within = block(500, 600);
    let out = q.sack(at(2), seq(300), &[within, block(500, 700)]);
    assert_eq!((out.dsack, out.delivered_segs), (Some(within), 1));
}

#[test]
fn three_segments_sacked_above_make_a_hole_lost() {
    let mut q = queue(&[1000]);
    q.sack(at(1), seq(0), &[block(100, 300)]);
    assert_eq!(q.mark_lost_by_sack(3), 0);
    q.sack(at(1), seq(0), &[block(100, 400)]);
    assert_eq!(q.mark_lost_by_sack(3), 1);
    assert_eq!((counts(&q), q.in_flight()), ((10, 3, 1, 0), 6));
    // A second hole needs three segments SACKed above it.
    q.sack(at(1), seq(0), &[block(600, 800)]);
    assert_eq!(q.mark_lost_by_sack(3), 0);
    q.sack(at(1), seq(0), &[block(600, 900)]);
    assert_eq!(q.mark_lost_by_sack(3), 2);
    assert_eq!(q.mark_lost_by_sack(3), 0);
    assert_eq!(counts(&q), (10, 6, 3, 0));
}

/// A DSACK counts the retransmitted segments that it reports whole.
#[test]
fn a_dsack_counts_whole_retransmitted_segments() {
    let mut q = queue(&[500, 500]);
    q.sack(at(5), seq(0), &[block(500, 1000)]);
    assert_eq!(q.mark_lost_by_sack(3), 5);
    q.next_retransmit(at(6), 8, 0, |_| false).expect("lost");
    let count = |q: &RtxQueue, left, right| {
        let blocks = [block(left, right), block(0, 1000)];
        q.dsacked_retrans_segs(seq(0), &blocks)
    };
    assert_eq!(count(&q, 100, 101), 0);
    assert_eq!(count(&q, 100, 200), 1);
    assert_eq!(count(&q, 199, 400), 2);
    assert_eq!(count(&q, 150, 399), 1);
    // Of the second super-segment nothing was retransmitted.
    assert_eq!(count(&q, 300, 1000), 2);
    assert_eq!(count(&q, 500, 1000), 0);
}

#[test]
fn lost_ranges_are_retransmitted_as_super_segments_within_the_limit() {
    let mut q = queue(&[300, 700, 1000]);
    q.sack(at(5), seq(0), &[block(1500, 2000)]);
    assert_eq!(q.mark_lost_by_sack(3), 15);
    assert_eq!(q.in_flight(), 0);
    let first = q.next_retransmit(at(6), 8, 0, |_| false).expect("lost");
    assert_eq!((first.seq, first.segs), (seq(0), 8));
    assert_eq!(bytes_of(&first.payload), bytes_of(&data(0, 800)));
    assert_eq!((counts(&q), q.in_flight()), ((20, 5, 15, 8), 8));
    let second = q.next_retransmit(at(6), 45, 0, |_| false).expect("lost");
    assert_eq!((second.seq, second.segs), (seq(800), 7));
    assert_eq!(bytes_of(&second.payload), bytes_of(&data(800, 700)));
    assert!(q.next_retransmit(at(6), 45, 0, |_| false).is_none());
    // Karn's rule: retransmitted segments give no round-trip sample.
    let out = q.ack(at(9), seq(2000));
    assert_eq!(
        (out.rtt, out.retransmitted, out.delivered_segs),
        (None, true, 15)
    );
    assert_eq!((q.is_empty(), q.in_flight()), (true, 0));
}

/// Returns the input of one ACK at `now` ms, on a path of one millisecond.
pub(super) fn ack_context(now: u64) -> AckContext {
    AckContext {
        now: at(now),
        min_rtt: Nanos::from_millis(1),
        echoed: None,
    }
}

/// After an ACK within a segment, its rest and a short neighbour fit into one segment.
#[test]
fn the_remainder_of_a_segment_is_counted_when_retransmitted() {
    for (len, acked, segs) in [(150, 90, 1), (150, 30, 2), (250, 140, 2), (250, 160, 1)] {
        let mut q = queue(&[len]);
        q.ack(at(5), seq(acked));
        q.mark_all_lost();
        let again = q.next_retransmit(at(6), 8, 0, |_| false).expect("lost");
        assert_eq!(
            (again.seq, again.segs),
            (seq(acked), segs),
            "{len}, {acked}"
        );
        assert_eq!(
            bytes_of(&again.payload),
            bytes_of(&data(acked, len - acked))
        );
        q.check();
    }
}

#[test]
fn a_retransmission_that_was_overtaken_is_lost_again() {
    let mut q = queue(&[1000, 1000]);
    q.start_delivery_sampling(at(0));
    q.sack(at(1), seq(0), &[block(200, 1000)]);
    assert_eq!(q.mark_lost_by_sack(3), 2);
    q.next_retransmit(at(10), 45, 0, |_| false);
    q.push(entry(2000, 500, 11));
    q.push(entry(2500, 500, 12));
    q.take_lost();
    assert_eq!(counts(&q), (30, 8, 2, 2));
    // The segment that arrived was not sent later.
    q.sack(at(12), seq(0), &[block(1000, 1500)]);
    assert_eq!(
        q.mark_overdue(at(12), Nanos::ZERO, Nanos::ZERO),
        RackOutcome::default()
    );
    // A later segment arrives, and then the reordering window has passed.
    q.sack(at(13), seq(0), &[block(2000, 2500)]);
    let window = Nanos::from_millis(2);
    let found = q.mark_overdue(at(13), window, Nanos::ZERO);
    // It was sent at 11 ms and acknowledged 2 ms later.
    assert_eq!((found.lost_segs, found.lost_retrans_segs), (5, 0));
    assert_eq!(found.next_loss_at, Some(at(14)));
    let found = q.mark_overdue(at(14), window, Nanos::ZERO);
    assert_eq!(
        (found.lost_segs, found.lost_retrans_segs, found.next_loss_at),
        (2, 2, None)
    );
    assert_eq!((counts(&q), q.has_lost()), ((30, 18, 7, 0), true));
    assert_eq!(q.take_lost().len(), 2);
    let again = q
        .next_retransmit(at(15), 45, 0, |_| false)
        .expect("lost again");
    assert_eq!((again.seq, again.segs), (seq(0), 2));
    assert_eq!(q.mark_overdue(at(15), window, Nanos::ZERO).lost_segs, 0);
}

/// Two retransmissions of one super-segment have the same time. The later one covers the first half
/// and is delivered, so the other was overtaken.
#[test]
fn retransmissions_of_one_time_are_in_the_order_of_sending() {
    let mut q = queue(&[1000]);
    for start in [500, 0] {
        assert_eq!(q.mark_dropped(seq(start), seq(start + 500)), 5);
        let again = q.next_retransmit(at(10), 45, 0, |_| false);
        assert_eq!(again.expect("lost").seq, seq(start));
    }
    q.begin_ack(ack_context(20));
    q.ack(at(20), seq(500));
    let found = q.mark_overdue(at(20), Nanos::ZERO, Nanos::ZERO);
    assert_eq!((found.lost_segs, found.lost_retrans_segs), (5, 5));
}

#[test]
fn segments_sent_before_an_acked_one_are_lost_after_the_reordering_window() {
    let mut q = queue(&[1000, 1000, 1000]);
    // Sent at 0, 1 and 2 ms; the round trip is 10 ms.
    q.sack(at(11), seq(0), &[block(1500, 2000)]);
    let found = q.mark_overdue(at(11), Nanos::from_millis(3), Nanos::ZERO);
    assert_eq!((found.lost_segs, found.next_loss_at), (0, Some(at(14))));
    let found = q.mark_overdue(at(13), Nanos::from_millis(3), Nanos::ZERO);
    assert_eq!((found.lost_segs, found.next_loss_at), (10, Some(at(14))));
    let found = q.mark_overdue(at(14), Nanos::from_millis(3), Nanos::ZERO);
    assert_eq!((found.lost_segs, found.next_loss_at), (5, None));
    assert_eq!(counts(&q), (30, 5, 15, 0));
}

/// RFC 8985 6.2 step 2: each delivered segment sets `RACK.rtt`, so the last one replaces the short
/// round trip of one that overtook others.
#[test]
fn a_late_segment_sets_the_rtt_of_the_path() {
    let mut q = queue(&[1000, 1000, 1000]);
    let window = Nanos::from_millis(2);
    // The third, sent at 2 ms, overtakes the others on a path of 9 ms.
    q.sack(at(4), seq(0), &[block(2000, 3000)]);
    let path = Nanos::from_millis(9);
    let found = q.mark_overdue(at(4), window, path);
    assert_eq!((found.lost_segs, found.next_loss_at), (0, Some(at(12))));
    // The second does not overtake, and the segments that it passed have the path's full time.
    q.sack(at(10), seq(0), &[block(1500, 2000)]);
    let found = q.mark_overdue(at(10), window, Nanos::ZERO);
    assert_eq!((found.lost_segs, found.next_loss_at), (0, Some(at(12))));
    assert_eq!(q.mark_overdue(at(11), window, Nanos::ZERO).lost_segs, 10);
}

/// A segment SACKed behind a hole overtook it, unless the hole is known to be lost.
#[test]
fn reordering_is_distinguished_from_loss() {
    let mut q = queue(&[1000, 1000, 1000]);
    let overtook =
        |q: &mut RtxQueue, ms, left, right| q.sack(at(ms), seq(0), &[block(left, right)]).overtook;
    assert!(overtook(&mut q, 4, 2000, 2500));
    assert!(overtook(&mut q, 11, 1000, 2500));
    assert_eq!(q.mark_lost_by_sack(3), 10);
    assert!(!overtook(&mut q, 12, 1000, 2600));
    assert!(overtook(&mut q, 12, 2700, 2800));
}

/// Sends of one batch of ACKs have the same time: a retransmission sent after new data is newer
/// than that.
#[test]
fn a_retransmission_sent_after_new_data_is_not_overtaken_by_it() {
    let mut q = queue(&[1000]);
    q.sack(at(9), seq(0), &[block(500, 1000)]);
    q.mark_lost_by_sack(3);
    q.push(entry(1000, 500, 10));
    q.next_retransmit(at(10), 5, 0, |_| false).expect("lost");
    q.push(entry(1500, 500, 10));
    q.begin_ack(ack_context(20));
    q.sack(at(20), seq(0), &[block(500, 1500)]);
    assert_eq!(
        q.mark_overdue(at(20), Nanos::ZERO, Nanos::ZERO).lost_segs,
        0
    );
    // Data sent after the retransmission is newer than that.
    q.sack(at(20), seq(0), &[block(500, 2000)]);
    assert_eq!(
        q.mark_overdue(at(21), Nanos::ZERO, Nanos::ZERO)
            .lost_retrans_segs,
        5
    );
    q.check();
}

#[test]
fn an_ack_within_min_rtt_is_for_the_original() {
    let mut q = queue(&[1000]);
    q.sack(at(9), seq(0), &[block(500, 1000)]);
    q.mark_lost_by_sack(3);
    let again = q.next_retransmit(at(10), 2, 0, |_| false).expect("lost");
    assert_eq!(again.segs, 2);
    q.next_retransmit(at(11), 3, 0, |_| false);
    q.begin_ack(AckContext {
        min_rtt: Nanos::from_millis(5),
        ..ack_context(12)
    });
    q.sack(at(12), seq(0), &[block(200, 1000)]);
    assert_eq!(
        q.mark_overdue(at(12), Nanos::ZERO, Nanos::ZERO).lost_segs,
        0
    );
    let mut q = queue(&[1000]);
    q.sack(at(9), seq(0), &[block(500, 1000)]);
    q.mark_lost_by_sack(3);
    q.next_retransmit(at(10), 2, 0, |_| false);
    q.next_retransmit(at(11), 3, 0, |_| false);
    q.begin_ack(ack_context(21));
    q.sack(at(21), seq(0), &[block(200, 1000)]);
    assert_eq!(
        q.mark_overdue(at(21), Nanos::ZERO, Nanos::ZERO)
            .lost_retrans_segs,
        2
    );
}

#[test]
fn the_tail_probe_leaves_its_original_in_flight() {
    let mut q = queue(&[1000, 450]);
    let probe = q.probe_tail(at(5), 7).expect("a tail");
    assert_eq!(
        (probe.seq, probe.segs, probe.payload.len()),
        (seq(1400), 1, 50)
    );
    assert_eq!((counts(&q), q.in_flight()), ((15, 0, 0, 0), 15));
    // It shows which segments sent before it are lost.
    q.begin_ack(ack_context(9));
    q.sack(at(9), seq(0), &[block(1400, 1450)]);
    assert_eq!(
        q.mark_overdue(at(9), Nanos::ZERO, Nanos::ZERO).lost_segs,
        14
    );
    assert_eq!(counts(&q), (15, 1, 14, 0));
    let out = q.ack(at(20), seq(1450));
    assert!(out.retransmitted && q.is_empty());
}

#[test]
fn sacking_a_retransmission_clears_its_marks() {
    let mut q = queue(&[1000]);
    q.sack(at(1), seq(0), &[block(200, 1000)]);
    q.mark_lost_by_sack(3);
    q.next_retransmit(at(2), 45, 0, |_| false);
    assert_eq!(counts(&q), (10, 8, 2, 2));
    let out = q.sack(at(3), seq(0), &[block(100, 1000)]);
    assert_eq!(
        (out.delivered_segs, out.rtt, out.reordering_segs),
        (1, None, 0)
    );
    assert_eq!(counts(&q), (10, 9, 1, 1));
}

#[test]
fn late_arrival_of_an_original_shows_reordering() {
    let mut q = queue(&[1000]);
    q.sack(at(1), seq(0), &[block(300, 500)]);
    assert_eq!(q.sack(at(1), seq(0), &[block(100, 200)]).reordering_segs, 4);
    assert_eq!(q.ack(at(2), seq(300)).reordering_segs, 5);
}

#[test]
fn without_sack_the_head_is_retransmitted_one_segment_at_a_time() {
    let mut q = queue(&[1000]);
    (0..3).for_each(|_| _ = q.on_dupack());
    assert_eq!((counts(&q), q.in_flight()), ((10, 3, 0, 0), 7));
    assert_eq!((q.mark_head_lost(), q.mark_head_lost()), (1, 0));
    let again = q.next_retransmit(at(9), 10, 0, |_| false).expect("lost");
    assert_eq!((again.seq, again.segs), (seq(0), 1));
    assert!(!q.has_lost());
    // Partial ACK (RFC 6582): one segment filled the hole, two were already counted by duplicate
    // ACKs.
    let out = q.ack(at(10), seq(300));
    assert_eq!((out.acked_segs, out.delivered_segs), (3, 1));
    assert_eq!(counts(&q), (7, 1, 0, 0));
    assert_eq!(q.mark_head_lost(), 1);
    assert_eq!(
        q.next_retransmit(at(11), 10, 0, |_| false)
            .expect("lost")
            .seq,
        seq(300)
    );
    q.forget_dupacks();
    // However many duplicate ACKs arrive, they count no more segments than are outstanding.
    (0..1000).for_each(|_| _ = q.on_dupack());
    assert_eq!((q.sacked_out(), q.in_flight()), (6, 1));
}

#[test]
fn a_timeout_marks_all_unsacked_segments_lost() {
    let mut q = queue(&[1000]);
    q.sack(at(1), seq(0), &[block(300, 700)]);
    q.mark_lost_by_sack(3);
    q.next_retransmit(at(2), 2, 0, |_| false);
    q.mark_all_lost();
    assert_eq!((counts(&q), q.in_flight()), ((10, 4, 6, 0), 0));
    let again: Vec<_> = core::iter::from_fn(|| q.next_retransmit(at(3), 2, 0, |_| false))
        .map(|r| (r.seq, r.segs))
        .collect();
    assert_eq!(
        again,
        [(seq(0), 2), (seq(200), 1), (seq(700), 2), (seq(900), 1)]
    );
}

#[test]
fn reneging_retransmits_everything() {
    let mut q = queue(&[250, 250, 500]);
    q.sack(at(1), seq(0), &[block(250, 1000)]);
    q.ack(at(2), seq(250));
    q.mark_all_lost();
    assert_eq!(counts(&q), (8, 0, 8, 0));
    let again = q.next_retransmit(at(3), 45, 0, |_| false).expect("lost");
    // A short segment is not joined with others: the segments after it keep their bounds.
    assert_eq!((again.seq, again.payload.len()), (seq(250), 250));
    let rest = q.next_retransmit(at(3), 45, 0, |_| false).expect("lost");
    assert_eq!((rest.seq, rest.payload.len()), (seq(500), 500));
}

#[test]
fn undo_returns_all_data_to_in_flight() {
    let mut q = queue(&[1000]);
    q.mark_all_lost();
    q.unmark_lost();
    assert_eq!(
        (counts(&q), q.in_flight(), q.has_lost()),
        ((10, 0, 0, 0), 10, false)
    );
}

#[test]
fn a_smaller_mss_recounts_segments() {
    let mut q = queue(&[1000]);
    q.sack(at(1), seq(0), &[block(500, 1000)]);
    q.mark_all_lost();
    q.set_mss(Mss::clamped(50));
    assert_eq!(counts(&q), (20, 10, 10, 0));
    let again = q.next_retransmit(at(2), 3, 0, |_| false).expect("lost");
    assert_eq!((again.payload.len(), again.segs), (150, 3));
}

/// The newest delivery that RACK has recorded ended with a segment of the old size.
#[test]
fn after_an_mss_change_lost_ranges_end_at_new_segment_boundaries() {
    let mut q = queue(&[1000]);
    q.sack(at(9), seq(0), &[block(100, 500)]);
    q.set_mss(Mss::clamped(80));
    let found = q.mark_overdue(at(12), Nanos::ZERO, Nanos::ZERO);
    // The first two. A part of the one from 480 on has arrived, so it was not overtaken.
    assert_eq!((found.lost_segs, counts(&q)), (2, (13, 4, 2, 0)));
    let again = q.next_retransmit(at(12), 9, 0, |_| false).expect("lost");
    assert_eq!((again.seq, again.payload.len()), (seq(0), 160));
}

#[test]
fn after_an_mss_change_a_local_drop_is_lost_in_whole_segments() {
    let mut q = queue(&[1000]);
    q.set_mss(Mss::clamped(80));
    assert_eq!(q.mark_dropped(seq(100), seq(200)), 2);
    let again = q.next_retransmit(at(2), 9, 0, |_| false).expect("lost");
    assert_eq!((again.seq, again.payload.len()), (seq(80), 160));
    // A timeout retransmits one segment: the head, and all of it.
    q.ack(at(3), seq(100));
    q.mark_timed_out(at(3));
    let again = q.next_retransmit(at(3), 1, 0, |_| false).expect("lost");
    assert_eq!((again.seq, again.payload.len()), (seq(100), 60));
}

/// Returns the scoreboard entries visited since the last call.
fn visited(q: &RtxQueue) -> u64 {
    let board = q.board.as_ref();
    board.map_or(0, |b| b.sacked.visited.take() + b.lost.visited.take())
}

/// Returns a queue of 100,000 segments in flight, each a super-segment of its own.
fn wide() -> RtxQueue {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    for i in 0..100_000 {
        q.push(entry(i * MSS, MSS, u64::from(i) / 100));
    }
    q
}

#[test]
fn the_work_of_an_ack_does_not_grow_with_the_window() {
    let mut q = wide();
    let mut most = 0;
    // One segment in a hundred is lost, and each loss is detected and retransmitted.
    for i in 0..100_000u32 {
        if i % 100 == 50 {
            continue;
        }
        let (left, right) = (i / 50 * 50 * MSS, (i + 1) * MSS);
        let left = left + if (i / 50) % 2 == 1 { MSS } else { 0 };
        let now = 1001 + u64::from(i) / 100;
        if i < 50 {
            q.ack(at(now), seq(right));
        } else {
            q.sack(at(now), seq(50 * MSS), &[block(left, right)]);
        }
        q.mark_overdue(at(now), Nanos::from_millis(1), Nanos::ZERO);
        q.next_retransmit(at(now), 1, 0, |_| false);
        most = most.max(visited(&q));
    }
    assert!(most < 120, "{most}");
    assert!(q.retrans_out() > 900);
    // The first hole is closed.
    q.ack(at(2100), seq(150 * MSS));
    assert!(visited(&q) < 60);
    q.check();
}

#[test]
fn hostile_acks_have_bounded_cost() {
    let mut q = wide();
    let mut most = 0;
    // Every other segment is SACKed, from the end, from the beginning and from the middle.
    for i in 0..49_000u32 {
        let n = [2 * i, 98_000 - 2 * i, (i * 7919 % 49_000) * 2][i as usize % 3] + 1;
        let blocks = [
            block(n * MSS, (n + 1) * MSS),
            block((n ^ 512) * MSS, ((n ^ 512) + 1) * MSS),
        ];
        q.sack(at(1001), seq(0), &blocks);
        q.mark_overdue(at(1001), Nanos::from_millis(500), Nanos::ZERO);
        q.mark_lost_by_sack(300);
        most = most.max(visited(&q));
    }
    // A segment is found lost once, so the cost is bounded by the segments sent.
    assert!(most < 100_000, "{most}");
    let board = q.board.as_ref().expect("a board");
    assert!(board.sacked.len() <= super::sack::MAX_SACKED_RANGES);
    visited(&q);
    // Repeated blocks find nothing and cost little.
    for n in (1..90_000).step_by(1001) {
        q.sack(at(1002), seq(0), &[block(n * MSS, (n + 1) * MSS)]);
        q.mark_overdue(at(1002), Nanos::from_millis(500), Nanos::ZERO);
        let cost = visited(&q);
        assert!(cost < 200, "{cost}");
    }
    q.check();
    q.ack(at(2000), seq(100_000 * MSS));
    assert!(q.is_empty() && q.board.is_none());
}

#[test]
fn an_empty_queue_keeps_little_memory() {
    let mut q = queue(&[100]);
    assert_eq!(q.entries.capacity(), 1);
    q.ack(at(1), seq(100));
    assert_eq!(q.entries.capacity(), 1);
    let mut q = queue(&[100; 50]);
    q.ack(at(1), seq(5000));
    assert!(q.entries.capacity() <= super::MIN_CAPACITY);
    let sizes = (size_of::<super::RtxEntry>(), size_of::<RtxQueue>());
    assert!(sizes.0 <= 80 && sizes.1 <= 64, "{sizes:?}");
}

#[derive(Clone, Debug)]
enum Op {
    Push(u32),
    /// The network delivers the segment that covers this share of the outstanding data.
    Deliver(prop::sample::Index),
    Ack,
    /// A SACK block that the peer made up.
    Lie(u32, u32),
    Detect(u32),
    HeadLost,
    /// The host drops a range of its queue.
    Drop(u32, u32),
    Timeout,
    Undo,
    Probe,
    Retransmit(u32),
    Mss(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..3000u32).prop_map(Op::Push),
        6 => any::<prop::sample::Index>().prop_map(Op::Deliver),
        6 => Just(Op::Ack),
        2 => (0..9000u32, 0..3000u32).prop_map(|(l, n)| Op::Lie(l, l + n)),
        3 => (1..5u32).prop_map(Op::Detect),
        1 => Just(Op::HeadLost),
        1 => (0..9000u32, 1..1500u32).prop_map(|(l, n)| Op::Drop(l, l + n)),
        1 => Just(Op::Timeout),
        1 => Just(Op::Undo),
        1 => Just(Op::Probe),
        4 => (1..20u32).prop_map(Op::Retransmit),
        1 => (48..300u16).prop_map(Op::Mss),
    ]
}

/// Returns the peer's acknowledgement and its SACK blocks: its first missing byte, and the ranges
/// that it holds behind that.
fn peer_ack(una: u32, nxt: u32, got: &BTreeSet<u32>) -> (u32, Vec<SackBlock>) {
    let ack = (una..nxt).find(|n| !got.contains(n)).unwrap_or(nxt);
    let mut blocks = Vec::new();
    let mut n = ack;
    while let Some(&left) = got.range(n..).next() {
        let right = (left..nxt).find(|n| !got.contains(n)).unwrap_or(nxt);
        blocks.push(block(left, right));
        n = right;
    }
    blocks.reverse();
    blocks.truncate(4);
    (ack, blocks)
}

/// Passes an ACK to the queue in the connection's order (`connection/ack.rs`). Between `begin_ack` and
/// `end_ack` the scoreboard may be there although no range is marked.
fn process_ack(q: &mut RtxQueue, now: u64, una: u32, ack: u32, blocks: &[SackBlock]) -> AckOutcome {
    q.begin_ack(ack_context(now));
    let mut out = AckOutcome::default();
    if ack > una {
        out = q.ack(at(now), seq(ack));
    }
    if !blocks.is_empty() {
        q.sack(at(now), seq(ack), blocks);
    }
    q.mark_overdue(at(now), Nanos::from_millis(3), Nanos::ZERO);
    q.end_ack();
    out
}

proptest! {
    /// After any sequence of events the counts are correct, retransmissions carry the right bytes
    /// and no acknowledged ones, and a peer that answers in the end receives all data.
    #[test]
    fn survives_any_network(ops in prop::collection::vec(op(), 1..80)) {
        let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
        q.start_delivery_sampling(at(0));
        let (mut una, mut nxt, mut now) = (0u32, 0u32, 0u64);
        let mut got = BTreeSet::new();
        for op in ops {
            now += 1;
            match op {
                Op::Push(len) => if nxt - una < 20_000 {
                    q.push(entry(nxt, len, now));
                    nxt += len;
                },
                Op::Deliver(which) => if nxt > una {
                    let from = una + which.index((nxt - una) as usize) as u32;
                    got.extend(from..(from + MSS).min(nxt));
                },
                Op::Ack => {
                    let (ack, blocks) = peer_ack(una, nxt, &got);
                    let out = process_ack(&mut q, now, una, ack, &blocks);
                    prop_assert_eq!(out.acked_bytes, ack - una);
                    una = ack;
                }
                Op::Lie(left, right) => { q.sack(at(now), seq(una), &[block(una + left, una + right)]); }
                Op::Detect(dupthresh) => {
                    q.mark_lost_by_sack(dupthresh);
                    q.mark_overdue(at(now), Nanos::from_millis(3), Nanos::ZERO);
                }
                Op::HeadLost => { q.mark_head_lost(); }
                Op::Drop(left, right) => { q.mark_dropped(seq(una + left), seq(una + right)); }
                Op::Timeout => { q.mark_timed_out(at(now.saturating_sub(5))); }
                Op::Probe => { q.probe_tail(at(now), 0); }
                Op::Undo => q.unmark_lost(),
                Op::Retransmit(limit) => {
                    let waits = q.has_lost();
                    let again = q.next_retransmit(at(now), limit, 0, |_| false);
                    prop_assert_eq!(waits, again.is_some());
                    if let Some(again) = again {
                        let from = again.seq.since(seq(0));
                        prop_assert!(from >= una && again.segs <= limit && again.segs > 0);
                        prop_assert_eq!(bytes_of(&again.payload), bytes_of(&data(from, again.payload.len() as u32)));
                    }
                }
                Op::Mss(mss) => q.set_mss(Mss::clamped(mss)),
            }
            q.check();
            prop_assert_eq!(q.is_empty(), una == nxt);
        }
        // Each timeout retransmits one segment, as cwnd is one. (The first ones may retransmit
        // ranges that made-up SACK blocks covered.)
        for _ in 0..2 * 1024 {
            if una == nxt { break; }
            now += 1;
            q.mark_all_lost();
            if let Some(again) = q.next_retransmit(at(now), 1, 0, |_| false) {
                prop_assert!(!again.payload.is_empty());
                let from = again.seq.since(seq(0));
                got.extend(from..from + again.payload.len() as u32);
            }
            let (ack, blocks) = peer_ack(una, nxt, &got);
            process_ack(&mut q, now, una, ack, &blocks);
            una = ack;
            q.check();
        }
        prop_assert!(q.is_empty());
    }
}
