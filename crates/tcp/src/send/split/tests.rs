use fullsend_wire::{Mss, Nanos};

use super::{DeferInput, should_defer, split_point};
use crate::send::Nagle;

const NODELAY: Nagle = Nagle {
    off: true,
    cork: false,
    in_flight: true,
    small_out: true,
};
const HOLDING: Nagle = Nagle {
    off: false,
    ..NODELAY
};

fn split(len: u32, window: u32, segs: u32, tail: bool, nagle: Nagle) -> u32 {
    split_point(len, window, Mss::clamped(1448), segs, tail, nagle)
}

#[test]
fn whole_write_is_not_split() {
    assert_eq!(split(4096, 65_535, 45, true, NODELAY), 4096);
    assert_eq!(split(4096, 65_535, 45, true, HOLDING), 2896);
}

#[test]
fn window_and_max_segs_limit_the_split() {
    assert_eq!(split(65_160, 100_000, 10, false, HOLDING), 14_480);
    assert_eq!(split(20_000, 100_000, 10, true, NODELAY), 14_480);
    assert_eq!(split(20_000, 5000, 45, true, NODELAY), 5000);
    assert_eq!(split(20_000, 5000, 45, true, HOLDING), 4344);
}

/// Returns inputs for which TSO-defer waits: ten segments are queued and cwnd allows five, less
/// than a third of the window. Each test changes the inputs of its rule.
fn waiting() -> DeferInput {
    let mss = Mss::clamped(1448);
    DeferInput {
        len: 10 * mss.bytes(),
        tail: true,
        ends: false,
        mss,
        max_segs: 45,
        send_win: 100_000,
        cong_win: 5 * mss.bytes(),
        snd_wnd: 200_000,
        cwnd_bytes: 30 * mss.bytes(),
        win_divisor: 3,
        since_last: Nanos::from_millis(1),
        head_age: Some(Nanos::from_millis(10)),
        srtt: Nanos::from_millis(20),
    }
}

/// Spec 1.8: more than 1 ms after the last departure the ACK clock has stopped.
#[test]
fn defers_up_to_a_millisecond_after_the_last_departure() {
    assert!(should_defer(&waiting()));
    let mut at = waiting();
    at.since_last = Nanos::from_nanos(1_000_001);
    assert!(!should_defer(&at));
}

/// Spec 1.8: a head that was sent less than half a round trip ago will not be acknowledged soon.
#[test]
fn does_not_defer_when_the_ack_is_half_a_round_trip_away() {
    let with_head = |age| {
        let mut at = waiting();
        at.head_age = age;
        should_defer(&at)
    };
    assert!(with_head(Some(Nanos::from_millis(10))));
    assert!(!with_head(Some(Nanos::from_nanos(9_999_999))));
    assert!(!with_head(None), "no ACK is coming");
}

/// Spec 1.8: nothing waits when a third of the smaller of cwnd and the peer's window is available
/// (`tcp_tso_win_divisor`).
#[test]
fn does_not_defer_with_a_third_of_the_window_open() {
    let mut at = waiting();
    at.cong_win = at.cwnd_bytes / 3;
    assert!(!should_defer(&at));
    at.cong_win -= 1;
    assert!(should_defer(&at));
    at.snd_wnd = 3 * at.cong_win;
    assert!(!should_defer(&at), "the peer's window is the smaller one");
    at.win_divisor = 0;
    assert!(should_defer(&at), "switched off");
}

/// Spec 1.8: waiting is useless beyond the length that a super-segment may have, or the data that
/// is queued.
#[test]
fn does_not_defer_a_whole_super_segment() {
    let mut at = waiting();
    at.max_segs = 5;
    assert!(!should_defer(&at));
    at.max_segs = 6;
    assert!(should_defer(&at));
    at.tail = false;
    assert!(should_defer(&at));
    at.len = at.cong_win;
    assert!(!should_defer(&at));
}

/// Spec 1.8: a FIN or a record's end ends the wait only where the application is the limit, and not
/// cwnd or the peer's window.
#[test]
fn record_end_stops_deferring_only_if_application_limited() {
    for (send_win, cong_win) in [(100_000, 7240), (7240, 100_000), (7240, 7240)] {
        let with_len = |len, ends| {
            let mut at = waiting();
            (at.len, at.ends, at.send_win, at.cong_win) = (len, ends, send_win, cong_win);
            at.cwnd_bytes = 100_000;
            should_defer(&at)
        };
        assert!(with_len(7239, false));
        assert!(!with_len(7239, true), "the application is the limit");
        assert!(with_len(7240, true), "{send_win} and {cong_win} are");
        assert!(with_len(14_480, true), "{send_win} and {cong_win} are");
    }
}
