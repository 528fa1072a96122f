//! The limits of TCP Small Queues and of autocorking, exact to the byte (spec 2).

use fullsend_wire::Rate;

use super::super::pacing::Pacing;
use super::super::properties::{SenderConfig, TestSender};
use super::Transmission;

const MSS: u32 = 1460;

/// Returns a connection with `super_segments` super-segments of one segment in flight, and this limit in
/// bytes.
fn in_flight(super_segments: usize, limit_output_bytes: u32) -> TestSender {
    let mut sender = TestSender::new(SenderConfig::default());
    for _ in 0..super_segments {
        sender.queue(MSS as usize, 65_160);
        sender.transmit().expect("a segment");
    }
    assert_eq!(sender.conn.parts().recovery.rtx.len(), super_segments);
    sender.sysctl.tcp_limit_output_bytes = limit_output_bytes;
    sender
}

/// Returns the least number of bytes in the host's queues that holds back `len` bytes more.
fn least(sender: &mut TestSender, len: u32, transmission: Transmission) -> Option<u32> {
    (0..100_000).find(|&n| {
        sender.conn.parts_mut().snd.wmem_inflight = n;
        sender.with(|conn, cx| {
            let flight = conn.parts().recovery.rtx.len();
            let (snd, path) = conn.sender_and_path();
            snd.small_queue_holds(cx, path, (len, flight), transmission)
        })
    })
}

/// The limit is the memory of two super-segments, or the bytes of 2^-10 s at the pacing rate if
/// these are more. Only where nothing is paced it is at most `tcp_limit_output_bytes`.
#[test]
fn limit_is_two_super_segments_or_a_millisecond_of_the_rate() {
    let paced = |sender: &mut TestSender, rate| {
        sender.conn.parts_mut().snd.pacing = Some(alloc::boxed::Box::new(Pacing::new(Rate(rate))));
    };
    let mut sender = in_flight(2, 4_000_000);
    paced(&mut sender, 1024 * 3511);
    assert_eq!(least(&mut sender, 1500, Transmission::First), Some(3512));
    paced(&mut sender, 1024 * 3513);
    assert_eq!(least(&mut sender, 1500, Transmission::First), Some(3513));
    sender.sysctl.tcp_limit_output_bytes = 3000;
    assert_eq!(least(&mut sender, 1500, Transmission::First), Some(3513));
    // No round trip was measured, so the rate is unlimited.
    sender.conn.parts_mut().snd.pacing = None;
    assert_eq!(least(&mut sender, 1500, Transmission::First), Some(3000));
    // At a high rate more than two super-segments are allowed.
    sender.sysctl.tcp_limit_output_bytes = 50_000;
    assert_eq!(least(&mut sender, 1500, Transmission::First), Some(50_000));
}

#[test]
fn retransmissions_have_twice_the_host_queue_limit() {
    let mut sender = in_flight(2, 3000);
    assert_eq!(
        least(&mut sender, 1500, Transmission::Retransmission),
        Some(6000)
    );
}

/// With at most one super-segment in flight an ACK could arrive before the completion and find
/// nothing to send. With nothing in the host's queues there is no completion to wait for.
#[test]
fn no_limit_with_one_super_segment_or_an_empty_host_queue() {
    for (super_segments, held_at) in [(0, None), (1, None), (2, Some(1)), (3, Some(1))] {
        let mut sender = in_flight(super_segments, 0);
        assert_eq!(
            least(&mut sender, 1500, Transmission::First),
            held_at,
            "{super_segments}"
        );
    }
}

/// `TCPSmallQueueThrottled` counts each time that a connection begins to wait.
#[test]
fn throttling_is_counted_once() {
    let mut sender = in_flight(2, 0);
    for _ in 0..2 {
        sender.with(|conn, cx| conn.parts_mut().snd.throttle(cx.mib));
        assert!(sender.conn.parts().snd.throttled);
        assert_eq!(sender.mib.small_queue_throttled, 1);
    }
    // A completion ends the wait, but not that of a pure ACK, which is not charged.
    sender.conn.parts_mut().snd.msg_more = true;
    sender.with(|conn, cx| conn.handle_tx_complete(cx, 0));
    assert!(sender.conn.parts().snd.throttled && sender.conn.parts().snd.msg_more);
    let charge = sender.conn.parts().snd.wmem_inflight / 2;
    sender.with(|conn, cx| conn.handle_tx_complete(cx, charge));
    assert!(!sender.conn.parts().snd.throttled && !sender.conn.parts().snd.msg_more);
    assert_eq!(sender.conn.parts().snd.wmem_inflight, charge);
}

/// Autocorking holds a super-segment while the host has at least its memory and 256 bytes. A
/// super-segment that is not the first in the queue is counted by its length.
#[test]
fn autocorks_while_the_host_queue_holds_as_many_bytes() {
    let should_autocork = |sender: &mut TestSender, in_host_queue| {
        sender.conn.parts_mut().snd.wmem_inflight = in_host_queue;
        let in_flight = !sender.conn.parts().recovery.rtx.is_empty();
        sender
            .conn
            .parts()
            .snd
            .should_autocork(&sender.sysctl, in_flight)
    };
    let mut sender = in_flight(1, 1 << 20);
    sender.conn.parts_mut().snd.size_goal = 2920;
    assert!(!should_autocork(&mut sender, 100_000), "nothing is queued");
    sender.queue(100, 2920);
    let super_segment = sender.conn.parts().snd.queue.truesize() as u32 + 256;
    assert!(should_autocork(&mut sender, super_segment));
    assert!(!should_autocork(&mut sender, super_segment - 1));
    sender.sysctl.tcp_autocorking = false;
    assert!(!should_autocork(&mut sender, super_segment));
    sender.sysctl.tcp_autocorking = true;
    sender.queue(2920, 2920);
    assert_eq!(sender.conn.parts().snd.queue.tail_len(), 100);
    assert!(should_autocork(&mut sender, 356));
    assert!(!should_autocork(&mut sender, 355));
    sender.conn.parts_mut().snd.size_goal = 101;
    assert!(should_autocork(&mut sender, 356));
    sender.conn.parts_mut().snd.size_goal = 100;
    assert!(!should_autocork(&mut sender, 356), "the unit is full");
    sender.conn.parts_mut().snd.size_goal = 2920;
    sender.conn.parts_mut().snd.queue.end_super_segment();
    assert!(!should_autocork(&mut sender, 100_000), "a record ends");
    let mut sender = in_flight(0, 1 << 20);
    sender.queue(100, 2920);
    assert!(!should_autocork(&mut sender, 100_000), "no ACK is to come");
}
