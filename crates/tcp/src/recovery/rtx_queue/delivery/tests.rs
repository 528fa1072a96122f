use fullsend_wire::{Instant, Mss, Nanos};

use super::super::RtxQueue;
use super::super::tests::{MSS, at, block, entry, seq};
use crate::congestion::FlightSample;

/// Returns a queue of super-segments, given as a number of segments and the ms at which they are
/// sent.
fn queue(entries: &[(u32, u64)]) -> RtxQueue {
    let mut queue = RtxQueue::new(Mss::clamped(MSS as u16));
    queue.start_delivery_sampling(at(0));
    let mut from = 0;
    for &(segs, ms) in entries {
        queue.push(entry(from, segs * MSS, ms));
        from += segs * MSS;
    }
    queue
}

/// Delivers an ACK up to `to` with this SACK block, and returns its sample.
fn ack(queue: &mut RtxQueue, now: Instant, to: u32, sacked: Option<(u32, u32)>) -> FlightSample {
    let mut segs = queue.ack(now, seq(to)).delivered_segs;
    if let Some((left, right)) = sacked {
        segs += queue
            .sack(now, seq(to), &[block(left, right)])
            .delivered_segs;
    }
    queue.check();
    let delivery = queue.delivery_mut().expect("sampled");
    delivery.on_delivered(now, segs);
    delivery
        .take_sample(Nanos::from_millis(10))
        .expect("delivered")
}

#[test]
fn a_sample_spans_from_the_ack_before_its_transmission_to_its_own() {
    // Ten segments are sent each millisecond. The ACKs begin after 20 ms, at five segments each
    // millisecond.
    let mut q = queue(&[(10, 100), (10, 101), (10, 102)]);
    let first = ack(&mut q, at(120), 10 * MSS, None);
    assert_eq!((first.delivered_segs, first.prior_delivered_segs), (10, 0));
    assert_eq!(first.interval, Some(Nanos::from_millis(20)));
    let second = ack(&mut q, at(122), 20 * MSS, None);
    assert_eq!((second.delivered_segs, second.in_flight_segs), (20, 20));
    assert_eq!(second.interval, Some(Nanos::from_millis(22)));
    // It was sent after 20 segments had been delivered: the interval begins at that ACK.
    q.push(entry(30 * MSS, 10 * MSS, 123));
    let third = ack(&mut q, at(145), 40 * MSS, None);
    assert_eq!((third.delivered_segs, third.prior_delivered_segs), (20, 20));
    assert_eq!(third.interval, Some(Nanos::from_millis(23)));
    let (segs, interval, app_limited) = q.delivery().expect("sampled").reported_rate();
    assert_eq!((segs, interval.as_millis(), app_limited), (20, 23, false));
}

#[test]
fn compressed_acks_do_not_raise_the_rate_above_the_send_rate() {
    let mut q = queue(&[(1, 100), (1, 140)]);
    ack(&mut q, at(150), MSS, None);
    // It was sent 40 ms after the first one. The interval is that of sending, although that of the
    // ACKs is 10 ms longer.
    q.push(entry(2 * MSS, MSS, 190));
    let sample = ack(&mut q, at(200), 3 * MSS, None);
    assert_eq!(sample.interval, Some(Nanos::from_millis(90)));
}

#[test]
fn a_sample_shorter_than_min_rtt_is_discarded() {
    let mut q = queue(&[(1, 100)]);
    let sample = ack(&mut q, at(105), MSS, None);
    assert_eq!((sample.delivered_segs, sample.interval), (1, None));
}

#[test]
fn losses_are_counted_from_the_send_time() {
    let mut q = queue(&[(20, 100)]);
    ack(&mut q, at(120), 0, Some((5 * MSS, 10 * MSS)));
    assert_eq!(q.mark_lost_by_sack(3), 5);
    let lost = q.take_lost();
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].segs, lost[0].lost_segs), (5, 5));
    // The lost segments are the first of the super-segment's 20, so five were in flight with them.
    assert_eq!(lost[0].in_flight_segs, 5);
    q.recycle_lost(lost);
    let sample = ack(&mut q, at(121), 0, Some((5 * MSS, 20 * MSS)));
    assert_eq!((sample.lost_segs, sample.delivered_segs), (5, 15));
    // Once they are retransmitted the loss lies before the sample.
    q.next_retransmit(at(130), 45, 0, |_| false);
    let sample = ack(&mut q, at(150), 20 * MSS, None);
    assert_eq!((sample.lost_segs, sample.prior_delivered_segs), (0, 15));
}

#[test]
fn an_application_gap_marks_samples_until_it_has_passed() {
    let mut q = queue(&[(2, 100)]);
    q.mark_app_limited();
    q.push(entry(2 * MSS, 2 * MSS, 110));
    assert!(!ack(&mut q, at(120), 2 * MSS, None).app_limited);
    assert!(q.is_app_limited());
    assert!(ack(&mut q, at(130), 4 * MSS, None).app_limited);
    assert!(!q.is_app_limited());
    // The reported rate was that of the whole path, and this one is lower.
    let (segs, _, app_limited) = q.delivery().expect("sampled").reported_rate();
    assert_eq!((segs, app_limited), (4, true));
    q.push(entry(4 * MSS, MSS, 140));
    assert!(!ack(&mut q, at(160), 5 * MSS, None).app_limited);
}

#[test]
fn segments_sent_before_sampling_began_give_no_rate() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.push(entry(0, 5 * MSS, 100));
    q.start_delivery_sampling(at(115));
    let sample = ack(&mut q, at(120), 5 * MSS, None);
    assert_eq!((sample.interval, sample.app_limited), (None, true));
}

/// Of the segments that one ACK delivers, the one sent last gives the sample; of those sent at the
/// same time, the last one in the stream.
#[test]
fn the_segment_sent_last_gives_the_sample() {
    for ((ms_a, end_a), (ms_b, end_b), second) in [
        ((10, 100), (11, 50), true),
        ((11, 50), (10, 100), false),
        ((10, 100), (10, 200), true),
        ((10, 200), (10, 100), false),
        ((10, 100), (10, 100), false),
    ] {
        let mut q = queue(&[]);
        let delivery = q.delivery_mut().expect("sampled");
        let (a, b) = (delivery.snapshot(1), delivery.snapshot(2));
        delivery.on_data_delivered(a, at(ms_a), seq(end_a));
        delivery.on_data_delivered(b, at(ms_b), seq(end_b));
        let sample = delivery.take_sample(Nanos::ZERO).expect("arrived");
        let case = (ms_a, end_a, ms_b, end_b);
        assert_eq!(sample.in_flight_segs == 2, second, "{case:?}");
    }
}

/// Where no time passes a retransmission has the same time as its original, and a short segment
/// after it gives the sample.
#[test]
fn a_short_segment_ends_after_its_own_bytes() {
    let mut q = RtxQueue::new(Mss::clamped(MSS as u16));
    q.start_delivery_sampling(at(5));
    q.push(entry(0, MSS, 5));
    q.push(entry(MSS, 1, 5));
    q.push(entry(MSS + 1, MSS, 5));
    let again = q.retransmit_head(at(5), 1).expect("a head");
    assert_eq!(again.segs, 1);
    // Two segments were in flight with the second super-segment, four with the retransmission.
    let sample = ack(&mut q, at(5), MSS + 1, None);
    assert_eq!(sample.in_flight_segs, 2);
}

#[test]
fn an_ack_that_delivers_nothing_changes_no_time() {
    let mut q = queue(&[(10, 100), (10, 101)]);
    ack(&mut q, at(120), 10 * MSS, None);
    let delivery = q.delivery_mut().expect("sampled");
    delivery.on_delivered(at(125), 0);
    assert_eq!(delivery.delivered(), 10);
    q.push(entry(20 * MSS, MSS, 130));
    // The interval begins at the ACK at 120 ms, not at the one at 125 ms.
    let sample = ack(&mut q, at(180), 21 * MSS, None);
    assert_eq!(sample.interval, Some(Nanos::from_millis(60)));
    assert_eq!(q.delivery().expect("sampled").delivered(), 21);
}

#[test]
fn a_loss_across_super_segments_is_counted_in_each() {
    let mut q = queue(&[(2, 100), (3, 101), (5, 102)]);
    ack(&mut q, at(120), 0, Some((6 * MSS, 10 * MSS)));
    assert_eq!(q.mark_lost_by_sack(3), 6);
    let lost: alloc::vec::Vec<_> = q.take_lost().iter().map(|l| (l.seq, l.segs)).collect();
    assert_eq!(lost, [(seq(0), 2), (seq(2 * MSS), 3), (seq(5 * MSS), 1)]);
}

#[test]
fn discarded_segments_leave_no_samples() {
    let mut q = queue(&[(2, 100), (3, 101)]);
    q.mark_all_lost();
    q.sack(at(120), seq(0), &[block(4 * MSS, 5 * MSS)]);
    q.clear();
    q.check();
    assert!(q.take_lost().is_empty());
    let delivery = q.delivery_mut().expect("sampled");
    assert!(delivery.take_sample(Nanos::ZERO).is_none());
    q.stop_delivery_sampling();
    assert!(q.delivery().is_none());
}
