//! The limits of sending, one by one, on a connection whose state each test sets.

use fullsend_units::Nanos;

use super::super::properties::{Kind, World};
use super::{Blocked, Handout, Measures};
use crate::connection::Connection;
use crate::{Cx, SendLimit};

impl Connection {
    /// Returns whether the short cut sends all queued data. Checks that in this case the other
    /// limits would neither hold nor cut it.
    pub(in crate::send) fn check_short_cut(&mut self, cx: &Cx<'_>) -> bool {
        if !self.snd.has_unsent() || self.pacing_holds(cx) {
            return false;
        }
        let (room, window) = (self.cwnd_room(), self.snd.usable_window());
        let whole = self.snd.queue.len() as u32;
        let headroom = window.min(self.cwnd_room_bytes());
        if room == 0 || whole == 0 || !self.goes_whole(cx, headroom) {
            return false;
        }
        let len = self
            .measure(cx, room)
            .and_then(|measures| self.size(cx, &measures, window));
        assert_eq!(len, Ok(whole));
        assert!(!self.small_queue_holds(cx, whole, Handout::First));
        true
    }
}

const MSS: u32 = 1460;

/// Returns a connection with a cwnd of ten segments and a large peer's window, and nothing queued.
fn idle() -> World {
    World::new(Kind::default())
}

impl World {
    fn admit(&mut self) -> Result<(u32, SendLimit), Blocked> {
        let grant = self.with(|conn, cx| conn.admit(cx));
        grant.map(|grant| (grant.len, grant.limit))
    }
}

/// The report names the rule that limited the length of a super-segment ([`SendLimit`]).
#[test]
fn the_rule_that_cut_a_unit_is_named() {
    let mut world = idle();
    let at = |unsent, corked, (quota, max_segs)| Measures {
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
        assert_eq!(world.conn.what_cut(len, &at), limit, "{len}");
    }
    world.conn.settings.cork = true;
    let limit = world.conn.what_cut(2920, &at(3000, false, (5, 45)));
    assert_eq!(limit, SendLimit::Cork);
}

/// A super-segment deferred by TSO-defer waits for the smaller of cwnd and the peer's window.
#[test]
fn a_wait_is_reported_by_the_window_that_causes_it() {
    let mut world = idle();
    for (window, limit) in [
        (10 * MSS - 1, SendLimit::Rwnd),
        (10 * MSS, SendLimit::Cwnd),
        (10 * MSS + 1, SendLimit::Cwnd),
    ] {
        world.conn.snd.wnd = window;
        assert_eq!(world.conn.limit_of(Blocked::Defer), limit, "{window}");
    }
}

/// RFC 7661: cwnd is fully used when it holds data back, and when TSO-defer holds data of at least
/// that length.
#[test]
fn only_a_wait_for_cwnd_uses_it_to_the_full() {
    for (why, queued, window, limited) in [
        (Blocked::Cwnd, 100, 1 << 20, true),
        (Blocked::Defer, 10 * MSS, 1 << 20, true),
        (Blocked::Defer, 10 * MSS - 1, 1 << 20, false),
        (Blocked::Defer, 10 * MSS, 10 * MSS - 1, false),
        (Blocked::Rwnd, 10 * MSS, 1 << 20, false),
    ] {
        let mut world = idle();
        world.queue(queued as usize, 65_160);
        world.conn.snd.wnd = window;
        assert!(!world.conn.recovery.is_cwnd_limited());
        world.with(|conn, cx| conn.on_blocked(cx, why));
        let is_limited = world.conn.recovery.is_cwnd_limited();
        assert_eq!(is_limited, limited, "{why:?}, {queued} bytes, {window}");
    }
}

/// RFC 5681 4.1: cwnd restarts after more than one retransmission timeout without sending.
#[test]
fn cwnd_restarts_after_more_than_one_timeout() {
    let mut world = idle();
    world.conn.cwnd.cwnd = 40;
    let rto = world.conn.rtt.base_rto().nanos();
    let sent = world.conn.snd.last_sent;
    world.now = sent + rto;
    world.with(|conn, cx| conn.restart_after_idle(cx));
    let seen = (world.conn.cwnd.cwnd, world.conn.snd.last_sent);
    assert_eq!(seen, (40, sent));
    world.now += Nanos::from_nanos(1);
    world.with(|conn, cx| conn.restart_after_idle(cx));
    let seen = (world.conn.cwnd.cwnd, world.conn.snd.last_sent);
    assert_eq!(seen, (20, world.now));
}

/// RFC 5681 4.1: cwnd restarts when data can be sent: not while the peer's window is closed, and
/// not while data is in flight.
#[test]
fn cwnd_restarts_only_where_text_finds_nothing_in_flight() {
    let wait = Nanos::from_secs(30);
    let mut world = idle();
    world.conn.cwnd.cwnd = 40;
    world.queue(100, 65_160);
    world.now += wait;
    world.conn.snd.wnd = 0;
    assert_eq!(world.admit(), Err(Blocked::Rwnd));
    assert_eq!(world.conn.cwnd.cwnd, 40, "the peer's window is closed");
    world.conn.snd.wnd = 1;
    assert_eq!(world.admit(), Err(Blocked::Rwnd));
    assert_eq!(world.conn.cwnd.cwnd, 10);

    let mut world = idle();
    world.conn.cwnd.cwnd = 40;
    world.queue(MSS as usize, 65_160);
    let sent = world.with(Connection::transmit);
    assert_eq!(sent.map(|s| s.payload.len()), Some(MSS as usize));
    world.now += wait;
    world.queue(MSS as usize, 65_160);
    assert!(world.admit().is_ok());
    assert_eq!(world.conn.cwnd.cwnd, 40, "something is in flight");
}

/// RFC 9293 3.8.6.2.1: the peer's window must hold a whole segment, or all of a shorter rest.
#[test]
fn the_peers_window_admits_a_whole_segment_or_all() {
    for (queued, window, sent) in [
        (2000, MSS, Ok((MSS, SendLimit::Nagle))),
        (2000, MSS - 1, Err(Blocked::Rwnd)),
        (100, 100, Ok((100, SendLimit::Application))),
        (100, 99, Err(Blocked::Rwnd)),
    ] {
        let mut world = idle();
        world.queue(queued, 65_160);
        world.conn.snd.wnd = window;
        assert_eq!(world.admit(), sent, "{queued} bytes, {window}");
    }
}

/// Spec 2: while the last super-segment waits for a completion, the full segments before it are
/// sent.
#[test]
fn full_segments_in_front_of_an_autocorked_unit_go() {
    for (queued, goal, unsent) in [
        (2920 + 100, 2920, Some(2920)),
        // Super-segments cut for an earlier segment size.
        (3000 + 100, 3000, Some(2920)),
        (1000 + 100, 1000, None),
        (100, 2920, None),
    ] {
        let mut world = idle();
        world.queue(queued, goal);
        let snd = &mut world.conn.snd;
        (snd.blocked, snd.throttled, snd.wmem_inflight) = (Blocked::Autocork, true, 1);
        let at = world.with(|conn, cx| conn.measure(cx, 10));
        let at = at.map(|at| (at.unsent, at.corked));
        assert_eq!(
            at,
            unsent.map(|n| (n, true)).ok_or(Blocked::Autocork),
            "{queued}"
        );
    }
}

/// Spec 7: autocorking never holds while the host has nothing, for instance after it dropped all.
#[test]
fn nothing_is_autocorked_while_the_host_has_nothing() {
    for (in_host, corked) in [(1, true), (0, false)] {
        let mut world = idle();
        let snd = &mut world.conn.snd;
        (snd.blocked, snd.throttled, snd.wmem_inflight) = (Blocked::Autocork, true, in_host);
        assert_eq!(world.conn.is_autocorked(), corked);
    }
}

/// illumos before the fix of bug 5295: the rest of a burst limits a super-segment, and an exhausted
/// burst holds it.
#[test]
fn the_old_bound_of_bursts_bounds_and_holds_units() {
    let mut world = idle();
    world.legacy.max_burst = true;
    world.queue(20_000, 65_160);
    let now = world.now;
    let segs = |world: &mut World| {
        let at = world.with(|conn, cx| conn.measure(cx, 10));
        at.map(|at| at.max_segs)
    };
    assert_eq!(segs(&mut world), Ok(44));
    world.conn.flow(now).latch_burst();
    assert_eq!(segs(&mut world), Ok(5));
    world.with(|conn, cx| conn.report_sent(cx, (7300, 5), 0, SendLimit::Size));
    assert_eq!(segs(&mut world), Err(Blocked::Burst));
}

/// A timer forces one segment at most, and its report names the limit of its length.
#[test]
fn a_forced_segment_is_as_long_as_the_window_and_the_record_admit() {
    for (queued, window, sent) in [
        (100, 1000, Ok((100, SendLimit::Application))),
        (100, 99, Ok((99, SendLimit::Rwnd))),
        (2000, 5000, Ok((MSS, SendLimit::Rwnd))),
        (100, 0, Err(Blocked::Rwnd)),
        (0, 1, Ok((0, SendLimit::Application))),
        (0, 0, Err(Blocked::Rwnd)),
    ] {
        let mut world = idle();
        world.queue(queued, 65_160);
        world.conn.snd.wnd = window;
        let grant = world.conn.force_one();
        let grant = grant.map(|grant| (grant.len, grant.limit));
        assert_eq!(grant, sent, "{queued} bytes, {window}");
    }
}

/// The headroom in the report is the smaller of the peer's window and cwnd.
#[test]
fn headroom_is_what_both_windows_admit() {
    for (window, headroom) in [(5000, 5000), (20_000, 10 * MSS)] {
        let mut world = idle();
        world.queue(100, 65_160);
        world.conn.snd.wnd = window;
        let grant = world.with(|conn, cx| conn.admit(cx));
        let Ok(grant) = grant else {
            panic!("nothing may go");
        };
        assert_eq!(grant.headroom, headroom);
    }
}
