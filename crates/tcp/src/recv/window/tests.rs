use fullsend_units::{Instant, Mss, Nanos, SeqNum, Window, WireWindow};
use proptest::prelude::*;

use super::{Ask, Place, RecvWindow, Squeeze};

const RMEM: [u32; 3] = [4096, 131_072, 6_291_456];

fn mss() -> Mss {
    Mss::clamped(1448)
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// Close to the wrap, so that every test crosses it.
fn seq(n: u32) -> SeqNum {
    SeqNum::new(u32::MAX - 5_000) + n
}

fn established(scaled: bool) -> RecvWindow {
    let mut window = RecvWindow::new(RMEM, RMEM[2]);
    assert_eq!(window.for_syn((mss(), 0)), WireWindow(65_160));
    window.establish(at(0), seq(0), scaled, (mss(), 0));
    window
}

/// All before `n` was received, and acknowledged up to `acked`.
fn ask(n: u32, acked: u32) -> Ask {
    Ask {
        rcv_nxt: seq(n),
        acked: seq(acked),
        mss: 1448,
        squeeze: Squeeze::No,
        may_shrink: false,
    }
}

/// Text arrives in one piece.
fn store(window: &mut RecvWindow, len: u32) {
    window.on_packing(len);
    window.on_stored(len, mss(), true);
}

#[test]
fn offers_whole_segments_first_and_a_scale_for_the_largest_buffer() {
    let mut window = established(true);
    assert_eq!(window.scale().shift(), 7);
    assert_eq!(window.current(seq(0)), Window(65_160));
    // A segment less than the buffer, rounded up.
    assert_eq!(window.advertise(ask(0, 0)), WireWindow(510));
    assert_eq!(window.current(seq(0)), Window(65_280));
    // Timestamps take twelve bytes of each segment.
    assert_eq!(window.for_syn((Mss::clamped(1460), 12)), WireWindow(65_160));
}

#[test]
fn a_small_buffer_offers_no_scale() {
    let mut window = RecvWindow::new(RMEM, RMEM[2]);
    window.lock(30_000);
    window.choose_scale(RMEM[2]);
    assert_eq!(window.scale().shift(), 0);
    assert_eq!(window.for_syn((mss(), 0)), WireWindow(14_480));
    window.lock(1_000_000);
    window.choose_scale(RMEM[2]);
    assert_eq!(window.scale().shift(), 3);
    window.set_clamp(60_000);
    window.choose_scale(RMEM[2]);
    assert_eq!(window.scale().shift(), 0);
}

#[test]
fn without_scaling_the_window_is_what_the_field_can_say() {
    let mut window = RecvWindow::new(RMEM, RMEM[2]);
    window.lock(4_000_000);
    window.establish(at(0), seq(0), false, (mss(), 0));
    store(&mut window, 60_000);
    window.on_taken(60_000, 0);
    assert_eq!(window.advertise(ask(60_000, 0)), WireWindow(65_535));
}

#[test]
fn closes_as_the_reader_lags_and_opens_by_worthy_steps() {
    let mut window = established(true);
    window.lock(66_048);
    window.advertise(ask(0, 0));
    // All of it arrives, nothing is read.
    store(&mut window, 65_160);
    assert!(!window.is_lagging(seq(65_160)) && window.is_lagging(seq(65_280)));
    assert!(!window.is_overdrawn());
    assert_eq!(window.advertise(ask(65_160, 0)), WireWindow(1));
    window.on_stored(128, mss(), true);
    assert_eq!(window.advertise(ask(65_288, 65_160)), WireWindow(0));
    // A little that is read is not worth telling; a sixteenth is.
    window.on_taken(2000, 63_288);
    assert!(!window.update_due(ask(65_288, 65_288)));
    assert_eq!(window.advertise(ask(65_288, 65_288)), WireWindow(0));
    window.on_taken(3000, 60_288);
    assert!(window.update_due(ask(65_288, 65_288)));
    assert!(window.advertise(ask(65_288, 65_288)).0 > 32);
}

#[test]
fn an_update_is_due_only_when_the_window_has_doubled() {
    let mut window = established(true);
    window.advertise(ask(0, 0));
    store(&mut window, 50_000);
    window.on_taken(0, 50_000);
    window.lock(80_000);
    window.advertise(ask(50_000, 0));
    let open = window.current(seq(50_000)).0;
    assert!(open < 40_000);
    assert!(!window.update_due(ask(50_000, 50_000)));
    window.on_taken(50_000, 0);
    assert!(window.update_due(ask(50_000, 50_000)));
    // More than half open: the next ACK will tell.
    window.advertise(ask(50_000, 50_000));
    assert!(!window.update_due(ask(60_000, 50_000)));
}

/// `tcp_shrink_window`.
#[test]
fn a_window_may_be_taken_back_where_that_is_allowed() {
    let shrinking = |n, acked| Ask {
        may_shrink: true,
        ..ask(n, acked)
    };
    let mut window = established(true);
    window.advertise(shrinking(0, 0));
    let told = window.current(seq(0)).0;
    window.lock(40_000);
    store(&mut window, 10_000);
    window.advertise(shrinking(10_000, 0));
    let left = window.current(seq(10_000)).0;
    assert!(left + 10_000 < told && left > 0);
    // What was sent when the SYN-ACK had said so may still come.
    let furthest = || Some(seq(65_160));
    let place = |len| window.place(seq(10_000), (seq(10_000), len, false), false, furthest);
    assert_eq!(place(55_160), Place::Within);
    assert_eq!(place(55_161), Place::Beyond);
    window.withdraw(seq(10_000));
    assert!(window.is_shut(seq(10_000), seq(10_000)));
}

/// RFC 9293 3.10.7.4, the table of the first step.
#[test]
fn acceptability() {
    let mut window = established(true);
    window.right_edge = seq(1000);
    let place = |seq_off: i64, len, starved| {
        let start = SeqNum::new(seq(0).raw().wrapping_add(seq_off as u32));
        window.place(seq(0), (start, len, false), starved, || None)
    };
    for (start, len) in [
        (0, 0),
        (999, 0),
        (1000, 0),
        (0, 1),
        (999, 1),
        (-10, 11),
        (-10, 1010),
    ] {
        assert_eq!(place(start, len, false), Place::Within, "{start} {len}");
    }
    assert_eq!(place(-1, 0, true), Place::Left);
    assert_eq!(place(-10, 10, true), Place::Left);
    // Beyond: taken whole by a reader who has nothing, unless all of it lies there.
    for (start, len) in [(0, 1001), (999, 2), (1000, 1), (-10, 5000)] {
        assert_eq!(place(start, len, false), Place::Beyond, "{start} {len}");
        assert_eq!(place(start, len, true), Place::Within, "{start} {len}");
    }
    assert_eq!(place(1001, 0, true), Place::Beyond);
    assert_eq!(place(1001, 5, true), Place::Beyond);
    // A FIN may lie one beyond.
    let fin = window.place(seq(1000), (seq(1000), 1, true), false, || None);
    assert_eq!(fin, Place::Within);
    assert!(window.is_shut(seq(1000), seq(1000)) && window.is_shut(seq(0), seq(1000)));
    assert!(!window.is_shut(seq(0), seq(999)));
}

/// A sender that doubles each round trip finds the window open.
#[test]
fn the_buffer_grows_ahead_of_slow_start() {
    let mut window = established(true);
    let mut now = 0;
    let mut next = 0;
    let mut cwnd = 14_480u32;
    for _ in 0..7 {
        let sent = cwnd.min(window.current(seq(next)).0);
        assert_eq!(sent, cwnd, "held back at {cwnd}");
        now += 100;
        next += sent;
        window.on_data(at(now), seq(next), mss());
        window.on_rtt(Nanos::from_millis(100));
        store(&mut window, sent);
        window.on_taken(sent as usize, 0);
        window.on_read(at(now), (sent as usize, 0), mss(), RMEM[2], true);
        window.advertise(ask(next, next - sent));
        cwnd *= 2;
    }
    assert!(window.rcvbuf() > 1 << 20 && window.rcvbuf() <= RMEM[2]);
    // An idle or slow reader takes nothing back, a locked buffer stays.
    let mut locked = established(true);
    locked.lock(100_000);
    locked.on_rtt(Nanos::from_millis(1));
    locked.on_read(at(10), (90_000, 0), mss(), RMEM[2], true);
    assert_eq!(locked.rcvbuf(), 100_000);
}

/// A sender in slow start whose third flight has lost its first segment.
#[test]
fn a_hole_does_not_stop_growth() {
    let mut window = established(true);
    window.on_rtt(Nanos::from_millis(100));
    window.on_data(at(100), seq(28_960), mss());
    window.on_read(at(100), (28_960, 0), mss(), RMEM[2], true);
    window.advertise(ask(28_960, 28_960));
    let before = window.current(seq(28_960)).0;
    let end = seq(28_960) + before;
    window.on_out_of_order((seq(28_960), end), RMEM[2]);
    window.advertise(ask(28_960, 28_960));
    let after = window.current(seq(28_960)).0;
    assert!(
        after >= before + 2 * 28_960 - 1448,
        "{after} after {before}"
    );
    // No more than the host allows, and nothing where the user decides.
    window.on_out_of_order((seq(0), seq(1 << 30)), RMEM[2]);
    assert_eq!(window.rcvbuf(), RMEM[2]);
    let mut locked = established(true);
    locked.lock(100_000);
    locked.on_out_of_order((seq(0), seq(1 << 20)), RMEM[2]);
    assert_eq!(locked.rcvbuf(), 100_000);
}

#[test]
fn small_transactions_grow_no_buffer_however_small_the_first() {
    let mut window = established(true);
    window.on_rtt(Nanos::from_micros(20));
    window.on_read(at(1), (36, 0), mss(), RMEM[2], true);
    for ms in 2..100 {
        window.on_read(at(ms), (4096, 0), mss(), RMEM[2], true);
    }
    assert_eq!(window.rcvbuf(), RMEM[1]);
    // A bulk sender's second round trip does.
    window.on_read(at(100), (28_960, 0), mss(), RMEM[2], true);
    assert!(
        (131_073..400_000).contains(&window.rcvbuf()),
        "{}",
        window.rcvbuf()
    );
}

#[test]
fn the_path_is_timed_by_windows_of_text() {
    let mut window = established(true);
    window.on_data(at(5), seq(1000), mss());
    assert_eq!(window.rtt(), None);
    window.on_data(at(30), seq(65_535), mss());
    assert_eq!(window.rtt(), Some(Nanos::from_millis(30)));
    window.advertise(ask(65_535, 65_535));
    window.on_data(at(80), seq(140_000), mss());
    assert_eq!(window.rtt(), Some(Nanos::from_millis(30)));
}

/// Both ends in one thread: each window takes as long as it is large, so that no round brings more
/// than the one before.
#[test]
fn a_sender_that_waits_for_a_reader_that_waits_gets_more_room() {
    let mut window = established(true);
    let mut next = 0;
    for round in 1..10 {
        next += window.current(seq(next)).0;
        window.on_data(at(round), seq(next), mss());
        window.on_read(at(round), (1, 1), mss(), RMEM[2], true);
        let before = window.rcvbuf();
        window.on_read(at(round), (1, 0), mss(), RMEM[2], round != 9);
        let after = if round == 9 { before } else { before * 2 };
        assert_eq!(window.rcvbuf(), after.min(RMEM[2]));
        window.on_read(at(round), (1, 0), mss(), RMEM[2], true);
        assert_eq!(window.rcvbuf(), after.min(RMEM[2]));
        window.advertise(ask(next, next));
    }
    assert_eq!(window.rcvbuf(), RMEM[2]);
}

#[test]
fn no_time_passing_changes_nothing() {
    let mut window = established(true);
    window.on_data(at(0), seq(65_535), mss());
    for _ in 0..100 {
        window.on_read(at(0), (1 << 20, 1), mss(), RMEM[2], true);
    }
    assert_eq!(window.rcvbuf(), RMEM[1]);
}

proptest! {
    /// Whatever happens, the right edge never moves left, and no more is offered than there is
    /// room for beyond that.
    #[test]
    fn the_right_edge_never_moves_left(
        ops in prop::collection::vec((0..4u8, 0..100_000u32), 1..100),
        scaled: bool,
        mss in 48..9000u16,
    ) {
        let mss = Mss::clamped(mss);
        let mut window = established(scaled);
        let (mut nxt, mut held, mut acked) = (0u32, 0usize, 0u32);
        for (i, (op, n)) in ops.into_iter().enumerate() {
            let now = at(i as u64);
            match op {
                0 => {
                    let n = n.min(window.current(seq(nxt)).0);
                    nxt += n;
                    held += n as usize;
                    window.on_data(now, seq(nxt), mss);
                    window.on_stored(n, mss, true);
                }
                1 => {
                    let n = held.min(n as usize);
                    held -= n;
                    window.on_taken(n, held);
                    window.on_read(now, (n, held), mss, RMEM[2], true);
                }
                2 => window.lock(n),
                _ => {
                    let before = window.right_edge;
                    let ask = Ask { mss: mss.bytes(), ..ask(nxt, acked) };
                    let due = window.update_due(ask);
                    let old = window.current(seq(nxt)).0;
                    let field = window.advertise(ask);
                    acked = nxt;
                    let told = field.scaled(window.scale_in_force);
                    prop_assert!(window.right_edge.after_eq(before));
                    prop_assert!(told.0 >= old);
                    prop_assert_eq!(window.current(seq(nxt)), told);
                    prop_assert!(told.0 < window.free() + 128 || told.0 - old < 128);
                    prop_assert!(!due || told.0 > old);
                }
            }
        }
    }
}
