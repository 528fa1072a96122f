//! The limits of sending, one by one, on a connection whose state each test sets.

use fullsend_wire::Nanos;

use super::super::properties::{SenderConfig, TestSender};
use super::{BlockedBy, SizeLimits, Transmission};
use crate::connection::Connection;
use crate::{Cx, SendLimit};

impl Connection {
    /// Returns whether the short cut sends all queued data. Checks that in this case the other
    /// limits would neither hold nor cut it.
    pub(in crate::send) fn check_fast_path(&mut self, cx: &Cx<'_>) -> bool {
        if !self.parts().snd.has_unsent() || self.pacing_holds(cx) {
            return false;
        }
        let (snd, send) = self.sender_and_cx();
        let (room, window) = (send.cwnd_room(), snd.usable_window());
        let whole = snd.queue.len() as u32;
        let headroom = window.min(snd.cwnd_room_bytes(send));
        if room == 0 || whole == 0 || !snd.is_sendable_whole(cx, send, headroom) {
            return false;
        }
        let len = snd
            .size_limits(cx, send, room)
            .and_then(|limits| snd.super_segment_len(cx, send, &limits, window));
        assert_eq!(len, Ok(whole));
        let size = (whole, send.recovery.rtx.len());
        assert!(!snd.small_queue_holds(cx, send.path, size, Transmission::First));
        true
    }
}

const MSS: u32 = 1460;

/// Returns a connection with a cwnd of ten segments and a large peer's window, and nothing queued.
fn idle() -> TestSender {
    TestSender::new(SenderConfig::default())
}

impl TestSender {
    fn size_limits(&mut self) -> Result<SizeLimits, BlockedBy> {
        self.with(|conn, cx| {
            let (snd, send) = conn.sender_and_cx();
            snd.size_limits(cx, send, 10)
        })
    }

    fn may_send(&mut self) -> Result<(u32, SendLimit), BlockedBy> {
        let decision = self.with(|conn, cx| conn.may_send(cx));
        decision.map(|decision| (decision.len, decision.limit))
    }
}

/// The report names the rule that limited the length of a super-segment ([`SendLimit`]).
#[test]
fn length_limit_is_reported() {
    let mut sender = idle();
    let at = |unsent, corked, (quota, max_segs)| SizeLimits {
        unsent,
        corked,
        max_segs,
        quota,
    };
    for (len, at, limit) in [
        (3000, at(3000, false, (5, 45)), SendLimit::Application),
        (2920, at(2920, true, (5, 45)), SendLimit::Autocork),
        (7300, at(20_000, false, (5, 5)), SendLimit::Size),
        (7300, at(20_000, false, (5, 45)), SendLimit::Cwnd),
        // Shorter than the number of segments allows.
        (5000, at(20_000, false, (5, 45)), SendLimit::Rwnd),
        (5000, at(20_000, false, (5, 5)), SendLimit::Rwnd),
        (2920, at(2920 + MSS, false, (5, 45)), SendLimit::Rwnd),
        // The rest is less than a segment.
        (2920, at(2919 + MSS, false, (5, 45)), SendLimit::Nagle),
    ] {
        let (snd, send) = sender.conn.sender_and_cx();
        assert_eq!(snd.length_limit(send, len, &at), limit, "{len}");
    }
    sender.conn.parts_mut().settings.cork = true;
    let (snd, send) = sender.conn.sender_and_cx();
    let limit = snd.length_limit(send, 2920, &at(3000, false, (5, 45)));
    assert_eq!(limit, SendLimit::Cork);
}

/// A super-segment deferred by TSO-defer waits for the smaller of cwnd and the peer's window.
#[test]
fn blocking_window_is_reported() {
    let mut sender = idle();
    for (window, limit) in [
        (10 * MSS - 1, SendLimit::Rwnd),
        (10 * MSS, SendLimit::Cwnd),
        (10 * MSS + 1, SendLimit::Cwnd),
    ] {
        sender.conn.parts_mut().snd.wnd = window;
        let (snd, send) = sender.conn.sender_and_cx();
        assert_eq!(snd.limit_of(send, BlockedBy::Defer), limit, "{window}");
    }
}

/// RFC 7661: cwnd is fully used when it holds data back, and when TSO-defer holds data of at least
/// that length.
#[test]
fn only_waiting_for_cwnd_counts_as_cwnd_limited() {
    for (reason, queued, window, limited) in [
        (BlockedBy::Cwnd, 100, 1 << 20, true),
        (BlockedBy::Defer, 10 * MSS, 1 << 20, true),
        (BlockedBy::Defer, 10 * MSS - 1, 1 << 20, false),
        (BlockedBy::Defer, 10 * MSS, 10 * MSS - 1, false),
        (BlockedBy::Rwnd, 10 * MSS, 1 << 20, false),
    ] {
        let mut sender = idle();
        sender.queue(queued as usize, 65_160);
        sender.conn.parts_mut().snd.wnd = window;
        assert!(!sender.conn.parts().congestion.is_cwnd_limited());
        sender.with(|conn, cx| conn.on_blocked(cx, reason));
        let is_limited = sender.conn.parts().congestion.is_cwnd_limited();
        assert_eq!(is_limited, limited, "{reason:?}, {queued} bytes, {window}");
    }
}

/// RFC 5681 4.1: cwnd restarts after more than one retransmission timeout without sending.
#[test]
fn cwnd_restarts_after_more_than_one_timeout() {
    let mut sender = idle();
    sender.conn.parts_mut().congestion.set_cwnd(40);
    let rto = sender.conn.parts().rtt.base_rto().nanos();
    let sent = sender.conn.parts().snd.last_sent;
    sender.now = sent + rto;
    sender.with(|conn, cx| conn.restart_after_idle(cx));
    let before = (
        sender.conn.parts().congestion.cwnd(),
        sender.conn.parts().snd.last_sent,
    );
    assert_eq!(before, (40, sent));
    sender.now += Nanos::from_nanos(1);
    sender.with(|conn, cx| conn.restart_after_idle(cx));
    let before = (
        sender.conn.parts().congestion.cwnd(),
        sender.conn.parts().snd.last_sent,
    );
    assert_eq!(before, (20, sender.now));
}

/// RFC 5681 4.1: cwnd restarts when data can be sent: not while the peer's window is closed, and
/// not while data is in flight.
#[test]
fn cwnd_restarts_only_with_nothing_in_flight() {
    let wait = Nanos::from_secs(30);
    let mut sender = idle();
    sender.conn.parts_mut().congestion.set_cwnd(40);
    sender.queue(100, 65_160);
    sender.now += wait;
    sender.conn.parts_mut().snd.wnd = 0;
    assert_eq!(sender.may_send(), Err(BlockedBy::Rwnd));
    assert_eq!(
        sender.conn.parts().congestion.cwnd(),
        40,
        "the peer's window is closed"
    );
    sender.conn.parts_mut().snd.wnd = 1;
    assert_eq!(sender.may_send(), Err(BlockedBy::Rwnd));
    assert_eq!(sender.conn.parts().congestion.cwnd(), 10);

    let mut sender = idle();
    sender.conn.parts_mut().congestion.set_cwnd(40);
    sender.queue(MSS as usize, 65_160);
    let sent = sender.transmit();
    assert_eq!(sent.map(|s| s.payload.len()), Some(MSS as usize));
    sender.now += wait;
    sender.queue(MSS as usize, 65_160);
    assert!(sender.may_send().is_ok());
    assert_eq!(
        sender.conn.parts().congestion.cwnd(),
        40,
        "something is in flight"
    );
}

/// RFC 9293 3.8.6.2.1: the peer's window must hold a whole segment, or all of a shorter rest.
#[test]
fn peers_window_must_hold_a_full_segment_or_all_data() {
    for (queued, window, sent) in [
        (2000, MSS, Ok((MSS, SendLimit::Nagle))),
        (2000, MSS - 1, Err(BlockedBy::Rwnd)),
        (100, 100, Ok((100, SendLimit::Application))),
        (100, 99, Err(BlockedBy::Rwnd)),
    ] {
        let mut sender = idle();
        sender.queue(queued, 65_160);
        sender.conn.parts_mut().snd.wnd = window;
        assert_eq!(sender.may_send(), sent, "{queued} bytes, {window}");
    }
}

/// Spec 2: while the last super-segment waits for a completion, the full segments before it are
/// sent.
#[test]
fn full_segments_before_an_autocorked_super_segment_are_sent() {
    for (queued, goal, unsent) in [
        (2920 + 100, 2920, Some(2920)),
        // Super-segments cut for an earlier segment size.
        (3000 + 100, 3000, Some(2920)),
        (1000 + 100, 1000, None),
        (100, 2920, None),
    ] {
        let mut sender = idle();
        sender.queue(queued, goal);
        let snd = sender.conn.parts_mut().snd;
        (snd.blocked_by, snd.throttled, snd.wmem_inflight) = (BlockedBy::Autocork, true, 1);
        let at = sender.size_limits();
        let at = at.map(|at| (at.unsent, at.corked));
        assert_eq!(
            at,
            unsent.map(|n| (n, true)).ok_or(BlockedBy::Autocork),
            "{queued}"
        );
    }
}

/// Spec 7: autocorking never holds while the host has nothing, for instance after it dropped all.
#[test]
fn no_autocorking_while_the_host_queue_is_empty() {
    for (in_host_queue, corked) in [(1, true), (0, false)] {
        let mut sender = idle();
        let snd = sender.conn.parts_mut().snd;
        (snd.blocked_by, snd.throttled, snd.wmem_inflight) =
            (BlockedBy::Autocork, true, in_host_queue);
        assert_eq!(sender.conn.parts().snd.is_autocorked(), corked);
    }
}

/// illumos before the fix of bug 5295: the rest of a burst limits a super-segment, and an exhausted
/// burst holds it.
#[test]
fn legacy_max_burst_limits_and_blocks_super_segments() {
    let mut sender = idle();
    sender.legacy.max_burst = true;
    sender.queue(20_000, 65_160);
    let now = sender.now;
    let segs = |sender: &mut TestSender| {
        let at = sender.size_limits();
        at.map(|at| at.max_segs)
    };
    assert_eq!(segs(&mut sender), Ok(44));
    sender.conn.parts_mut().snd.flow(now).limit_burst();
    assert_eq!(segs(&mut sender), Ok(5));
    sender.with(|conn, cx| {
        conn.parts_mut()
            .snd
            .report_sent(cx.now, (7300, 5), 0, SendLimit::Size)
    });
    assert_eq!(segs(&mut sender), Err(BlockedBy::Burst));
}

/// A timer forces one segment at most, and its report names the limit of its length.
#[test]
fn forced_segment_is_limited_by_window_and_record() {
    for (queued, window, sent) in [
        (100, 1000, Ok((100, SendLimit::Application))),
        (100, 99, Ok((99, SendLimit::Rwnd))),
        (2000, 5000, Ok((MSS, SendLimit::Rwnd))),
        (100, 0, Err(BlockedBy::Rwnd)),
        (0, 1, Ok((0, SendLimit::Application))),
        (0, 0, Err(BlockedBy::Rwnd)),
    ] {
        let mut sender = idle();
        sender.queue(queued, 65_160);
        sender.conn.parts_mut().snd.wnd = window;
        let decision = sender.conn.parts().snd.force_one(sender.conn.record_left());
        let decision = decision.map(|decision| (decision.len, decision.limit));
        assert_eq!(decision, sent, "{queued} bytes, {window}");
    }
}

/// The headroom in the report is the smaller of the peer's window and cwnd.
#[test]
fn headroom_is_the_smaller_window() {
    for (window, headroom) in [(5000, 5000), (20_000, 10 * MSS)] {
        let mut sender = idle();
        sender.queue(100, 65_160);
        sender.conn.parts_mut().snd.wnd = window;
        let decision = sender.with(|conn, cx| conn.may_send(cx));
        let Ok(decision) = decision else {
            panic!("nothing may go");
        };
        assert_eq!(decision.headroom, headroom);
    }
}
