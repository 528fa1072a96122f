//! Small writes that are appended to queued data without a call of the whole send path.

use super::super::properties::{SenderConfig, TestSender};
use super::{AppendOutcome, BlockedBy, WriteCx};
use crate::connection::State;

const MSS: usize = 1460;

/// Returns a connection with 100 bytes queued in a chunk of 512 bytes, held back by `blocked_by`.
fn waiting(blocked_by: BlockedBy) -> TestSender {
    let mut sender = TestSender::new(SenderConfig::default());
    sender.queue(100, 65_160);
    sender.with(|conn, cx| conn.parts_mut().snd.sync_size_goal(&cx.device));
    sender.conn.parts_mut().snd.blocked_by = blocked_by;
    sender
}

impl TestSender {
    fn try_append(&mut self, len: usize) -> AppendOutcome {
        let data = alloc::vec![7; len];
        self.conn.try_append(&self.sysctl, &data)
    }
}

/// The reason for which data is held back decides whether more data changes anything.
#[test]
fn write_is_appended_to_blocked_data() {
    for (blocked_by, done) in [
        (BlockedBy::Nothing, AppendOutcome::NotAppended),
        (BlockedBy::Defer, AppendOutcome::NotAppended),
        (BlockedBy::Nagle, AppendOutcome::Queued),
        (BlockedBy::Cwnd, AppendOutcome::Queued),
        (BlockedBy::Rwnd, AppendOutcome::Queued),
        (BlockedBy::Pacing, AppendOutcome::Queued),
        (BlockedBy::Tsq, AppendOutcome::Queued),
        (BlockedBy::Burst, AppendOutcome::Queued),
        // No completion is awaited.
        (BlockedBy::Autocork, AppendOutcome::NotAppended),
    ] {
        let mut sender = waiting(blocked_by);
        let before = sender.conn.parts().snd.pushed_seq;
        assert_eq!(sender.try_append(50), done, "{blocked_by:?}");
        let snd = &sender.conn.parts().snd;
        let held = done == AppendOutcome::Queued;
        let len = if held { 150 } else { 100 };
        assert_eq!(snd.queue.len(), len, "{blocked_by:?}");
        let pushed = if held { snd.write_seq() } else { before };
        assert_eq!(snd.pushed_seq, pushed, "PSH where the writer pauses");
        assert!(!sender.conn.needs_transmit());
    }
}

/// Nagle's algorithm holds back less than a segment only.
#[test]
fn a_write_that_fills_a_segment_does_not_wait_for_nagle() {
    for (len, done) in [
        (MSS - 1001, AppendOutcome::Queued),
        (MSS - 1000, AppendOutcome::NotAppended),
    ] {
        let mut sender = waiting(BlockedBy::Nagle);
        sender.conn.parts_mut().snd.queue.clear();
        sender.queue(1000, 65_160);
        assert_eq!(sender.try_append(len), done, "{len}");
    }
}

#[test]
fn write_that_needs_more_than_tail_room_is_not_appended() {
    // The states in which the application may write.
    for state in [State::Established, State::CloseWait] {
        let mut sender = waiting(BlockedBy::Cwnd);
        *sender.conn.parts_mut().state = state;
        assert_eq!(sender.try_append(50), AppendOutcome::Queued);
        sender.conn.parts_mut().snd.msg_more = true;
        assert_eq!(
            sender.try_append(50),
            AppendOutcome::NotAppended,
            "MSG_MORE ends"
        );
    }
    let mut sender = waiting(BlockedBy::Cwnd);
    *sender.conn.parts_mut().state = State::FinWait1;
    assert_eq!(
        sender.try_append(50),
        AppendOutcome::NotAppended,
        "the write reports an error"
    );

    let mut sender = TestSender::new(SenderConfig::with_congestion("bbr"));
    sender.queue(100, 65_160);
    sender.conn.parts_mut().snd.blocked_by = BlockedBy::Cwnd;
    assert_eq!(
        sender.try_append(50),
        AppendOutcome::NotAppended,
        "a pause limits the rate"
    );
    // The open chunk and the super-segment limit the length.
    let mut sender = waiting(BlockedBy::Cwnd);
    assert_eq!(sender.try_append(413), AppendOutcome::NotAppended);
    sender.conn.parts_mut().snd.size_goal = 149;
    assert_eq!(sender.try_append(50), AppendOutcome::NotAppended);
    assert_eq!(sender.try_append(49), AppendOutcome::Queued);
}

/// Spec 2: autocorking holds data while the device has at least the memory of its super-segment: a
/// chunk of 512 bytes for 100 bytes, and 256 for the super-segment.
#[test]
fn autocorked_super_segment_is_sent_when_it_exceeds_the_host_queue() {
    for (in_host_queue, done) in [(768, AppendOutcome::Queued), (767, AppendOutcome::Sendable)] {
        let mut sender = waiting(BlockedBy::Cwnd);
        sender.transmit().expect("a segment");
        sender.queue(100, 65_160);
        let snd = sender.conn.parts_mut().snd;
        (snd.blocked_by, snd.throttled) = (BlockedBy::Autocork, true);
        snd.wmem_inflight = in_host_queue;
        sender.conn.parts_mut().snd.pending.clear_request();
        assert_eq!(sender.try_append(50), done, "{in_host_queue}");
        let held = done == AppendOutcome::Queued;
        assert_eq!(sender.conn.needs_transmit(), !held);
        let blocked_by = if held {
            BlockedBy::Autocork
        } else {
            BlockedBy::Nothing
        };
        assert_eq!(sender.conn.parts().snd.blocked_by, blocked_by);
    }
}

/// Data held by Nagle's algorithm causes an attempt to send only if a full segment, or the end of
/// `MSG_MORE`, may release it.
#[test]
fn write_blocked_by_nagle_requests_no_transmit() {
    for (queued, more_before, more, asks) in [
        (100, false, false, false),
        (100, false, true, false),
        (100, true, true, false),
        (100, true, false, true),
        (MSS - 1, false, false, false),
        (MSS, false, false, true),
    ] {
        let mut sender = TestSender::new(SenderConfig::default());
        sender.queue(queued, 65_160);
        sender.conn.parts_mut().snd.pending.clear_request();
        (
            sender.conn.parts_mut().snd.blocked_by,
            sender.conn.parts_mut().snd.msg_more,
        ) = (BlockedBy::Nagle, more_before);
        sender.with(|conn, cx| conn.after_write(cx, more));
        assert_eq!(
            sender.conn.needs_transmit(),
            asks,
            "{queued}, {more_before}, {more}"
        );
    }
}

/// A record's end releases the record once more data follows, and not at the end of the queue.
#[test]
fn data_after_a_record_end_sends_the_record() {
    let mut sender = TestSender::new(SenderConfig::default());
    sender.queue(100, 65_160);
    sender.conn.end_record();
    sender.conn.parts_mut().snd.blocked_by = BlockedBy::Nagle;
    sender.conn.parts_mut().snd.pending.clear_request();
    sender.with(|conn, cx| conn.after_write(cx, false));
    assert!(!sender.conn.needs_transmit());
    sender.queue(1, 65_160);
    sender.with(|conn, cx| conn.after_write(cx, false));
    assert!(sender.conn.needs_transmit());
}

/// Spec 2: `TCPAutoCorking` counts each beginning of a wait; full super-segments before the held
/// one may be sent.
#[test]
fn autocorking_sends_full_super_segments_first() {
    let mut sender = TestSender::new(SenderConfig::default());
    sender.queue(MSS, 65_160);
    sender.transmit().expect("a segment");
    sender.conn.parts_mut().snd.wmem_inflight = 100_000;
    sender.conn.parts_mut().snd.pending.clear_request();
    sender.conn.parts_mut().snd.size_goal = 2 * MSS as u32;
    sender.queue(100, 2 * MSS);
    for _ in 0..2 {
        sender.with(|conn, cx| {
            let write = WriteCx {
                now: cx.now,
                in_flight: !conn.parts().recovery.rtx.is_empty(),
            };
            conn.parts_mut().snd.push(cx.sysctl, cx.mib, write);
        });
        assert_eq!(sender.conn.parts().snd.blocked_by, BlockedBy::Autocork);
        assert!(!sender.conn.needs_transmit());
        assert_eq!(sender.mib.auto_corking, 1);
    }
    sender.queue(2 * MSS, 2 * MSS);
    for _ in 0..2 {
        sender.with(|conn, cx| {
            let write = WriteCx {
                now: cx.now,
                in_flight: !conn.parts().recovery.rtx.is_empty(),
            };
            conn.parts_mut().snd.push(cx.sysctl, cx.mib, write);
        });
        assert!(sender.conn.needs_transmit());
    }
}
