use fullsend_units::{Instant, Mss, Nanos, SeqNum, Window, WireWindow};
use proptest::prelude::*;

use super::{RecvWindow, Squeeze};

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
    let mut window = RecvWindow::new(RMEM);
    assert_eq!(window.for_syn(), WireWindow(65_535));
    window.establish(at(0), seq(0), scaled);
    window
}

#[test]
fn offers_64_kib_first_and_a_scale_for_the_largest_buffer() {
    let mut window = established(true);
    assert_eq!(window.scale().shift(), 7);
    assert_eq!(window.current(seq(0)), Window(65_535));
    assert_eq!(
        window.advertise(seq(0), 0, mss(), Squeeze::No),
        WireWindow(512)
    );
    assert_eq!(window.current(seq(0)), Window(65_536));
}

#[test]
fn without_scaling_the_window_is_what_the_field_can_say() {
    let mut window = established(false);
    window.lock(4_000_000);
    assert_eq!(
        window.advertise(seq(0), 0, mss(), Squeeze::No),
        WireWindow(65_535)
    );
}

#[test]
fn closes_as_the_reader_lags_and_opens_by_worthy_steps() {
    let mut window = established(true);
    window.advertise(seq(0), 0, mss(), Squeeze::No);
    // All of it arrives, nothing is read.
    assert_eq!(
        window.advertise(seq(65_536), 65_536, mss(), Squeeze::No),
        WireWindow(0)
    );
    // 1,000 bytes read are not worth telling; 2,000 are.
    assert!(!window.update_due(seq(65_536), 64_536, mss(), Squeeze::No));
    assert_eq!(
        window.advertise(seq(65_536), 64_536, mss(), Squeeze::No),
        WireWindow(0)
    );
    assert!(window.update_due(seq(65_536), 63_536, mss(), Squeeze::No));
    assert_eq!(
        window.advertise(seq(65_536), 63_536, mss(), Squeeze::No),
        WireWindow(2_000 / 128)
    );
}

#[test]
fn an_update_is_due_only_when_the_window_has_doubled() {
    let mut window = established(true);
    window.advertise(seq(0), 0, mss(), Squeeze::No);
    window.advertise(seq(50_000), 50_000, mss(), Squeeze::No);
    let open = window.current(seq(50_000)).0;
    assert!(!window.update_due(
        seq(50_000),
        65_536 - 2 * open as usize + 1,
        mss(),
        Squeeze::No
    ));
    assert!(window.update_due(seq(50_000), 65_536 - 2 * open as usize, mss(), Squeeze::No));
    // More than half open: the next ACK will tell.
    window.advertise(seq(50_000), 0, mss(), Squeeze::No);
    assert!(!window.update_due(seq(60_000), 0, mss(), Squeeze::No));
}

/// RFC 9293 3.10.7.4, the table of the first step.
#[test]
fn acceptability() {
    let mut window = established(true);
    window.lock(2_000);
    window.right_edge = seq(1000);
    let ok = |seq_off: i64, len| {
        window.is_acceptable(
            seq(0),
            SeqNum::new(seq(0).raw().wrapping_add(seq_off as u32)),
            len,
        )
    };
    assert!(ok(0, 0) && ok(999, 0));
    assert!(ok(1000, 0) && !ok(1001, 0) && !ok(-1, 0));
    assert!(ok(0, 1) && ok(999, 10) && ok(-10, 11) && ok(-10, 5000));
    assert!(!ok(-10, 10) && !ok(1000, 1));
    let shut = |s, len| window.is_acceptable(seq(1000), s, len);
    assert!(shut(seq(1000), 0));
    assert!(!shut(seq(1000), 1) && !shut(seq(1001), 0));
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
        window.on_read(at(now), (sent as usize, 0), mss(), RMEM, true);
        window.advertise(seq(next), 0, mss(), Squeeze::No);
        cwnd *= 2;
    }
    assert!(window.rcvbuf() > 1 << 20 && window.rcvbuf() <= RMEM[2]);
    // An idle or slow reader takes nothing back, a locked buffer stays.
    let mut locked = established(true);
    locked.lock(100_000);
    locked.on_rtt(Nanos::from_millis(1));
    locked.on_read(at(10), (90_000, 0), mss(), RMEM, true);
    assert_eq!(locked.rcvbuf(), 100_000);
}

/// A sender in slow start whose third flight has lost its first segment.
#[test]
fn a_hole_does_not_stop_growth() {
    let mut window = established(true);
    window.on_rtt(Nanos::from_millis(100));
    window.on_data(at(100), seq(28_960), mss());
    window.on_read(at(100), (28_960, 0), mss(), RMEM, true);
    window.advertise(seq(28_960), 0, mss(), Squeeze::No);
    let before = window.current(seq(28_960)).0;
    let end = seq(28_960) + before;
    window.on_out_of_order((seq(28_960), end), RMEM[2]);
    window.advertise(seq(28_960), 0, mss(), Squeeze::No);
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
    window.on_read(at(1), (36, 0), mss(), RMEM, true);
    for ms in 2..100 {
        window.on_read(at(ms), (4096, 0), mss(), RMEM, true);
    }
    assert_eq!(window.rcvbuf(), RMEM[1]);
    // A bulk sender's second round trip does.
    window.on_read(at(100), (28_960, 0), mss(), RMEM, true);
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
    assert_eq!(window.rtt, Nanos::MAX);
    window.on_data(at(30), seq(65_535), mss());
    assert_eq!(window.rtt, Nanos::from_millis(30));
    window.advertise(seq(65_535), 0, mss(), Squeeze::No);
    window.on_data(at(80), seq(140_000), mss());
    assert_eq!(window.rtt, Nanos::from_millis(30));
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
        window.on_read(at(round), (1, 1), mss(), RMEM, true);
        let before = window.rcvbuf();
        window.on_read(at(round), (1, 0), mss(), RMEM, round != 9);
        let after = if round == 9 { before } else { before * 2 };
        assert_eq!(window.rcvbuf(), after.min(RMEM[2]));
        window.on_read(at(round), (1, 0), mss(), RMEM, true);
        assert_eq!(window.rcvbuf(), after.min(RMEM[2]));
        window.advertise(seq(next), 0, mss(), Squeeze::No);
    }
    assert_eq!(window.rcvbuf(), RMEM[2]);
}

#[test]
fn no_time_passing_changes_nothing() {
    let mut window = established(true);
    window.on_data(at(0), seq(65_535), mss());
    for _ in 0..100 {
        window.on_read(at(0), (1 << 20, 1), mss(), RMEM, true);
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
        let (mut nxt, mut held) = (0u32, 0usize);
        for (i, (op, n)) in ops.into_iter().enumerate() {
            let now = at(i as u64);
            match op {
                0 => {
                    let n = n.min(window.current(seq(nxt)).0);
                    nxt += n;
                    held += n as usize;
                    window.on_data(now, seq(nxt), mss);
                }
                1 => {
                    let n = held.min(n as usize);
                    held -= n;
                    window.on_read(now, (n, held), mss, RMEM, true);
                }
                2 => window.lock(n),
                _ => {
                    let before = window.right_edge();
                    let due = window.update_due(seq(nxt), held, mss, Squeeze::No);
                    let old = window.current(seq(nxt)).0;
                    let field = window.advertise(seq(nxt), held, mss, Squeeze::No);
                    let told = field.scaled(window.scale_in_force);
                    prop_assert!(window.right_edge().after_eq(before));
                    prop_assert!(told.0 >= old);
                    prop_assert_eq!(window.current(seq(nxt)), told);
                    let room = (window.rcvbuf() / 2).saturating_sub(held as u32);
                    prop_assert!(told.0 <= room || told.0 - old < 128);
                    prop_assert!(!due || told.0 > old || told.0 >> window.scale_in_force.shift() == old >> window.scale_in_force.shift());
                }
            }
        }
    }
}
