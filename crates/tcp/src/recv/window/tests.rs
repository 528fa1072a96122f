use fullsend_wire::{Instant, Mss, Nanos, SeqNum, Window, WindowScale, WireWindow};
use proptest::prelude::*;

use super::{Density, MemoryPressure, RecvWindow, SegmentPosition, Tuning, WindowInputs, micros};

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
    assert_eq!(window.syn_window((mss(), 0)), WireWindow(65_160));
    window.establish(at(0), seq(0), scaled, (mss(), 0));
    window
}

/// Returns the inputs when all data before `n` was received, and acknowledged up to `acked`.
fn inputs(n: u32, acked: u32) -> WindowInputs {
    WindowInputs {
        rcv_nxt: seq(n),
        acked: seq(acked),
        mss: 1448,
        memory_pressure: MemoryPressure::None,
        room: u32::MAX,
        may_shrink: false,
    }
}

/// Stores data that arrives in one piece.
fn store(window: &mut RecvWindow, len: u32) {
    window.set_density(len);
    window.on_stored(len, mss(), true);
}

#[test]
fn the_first_window_is_whole_segments_and_scaled_for_the_largest_buffer() {
    let mut window = established(true);
    assert_eq!(window.scale().shift(), 7);
    assert_eq!(window.current(seq(0)), Window(65_160));
    // The buffer less one segment, rounded up.
    assert_eq!(window.advertise(inputs(0, 0)), WireWindow(510));
    assert_eq!(window.current(seq(0)), Window(65_280));
    // Timestamps take twelve bytes of each segment.
    assert_eq!(
        window.syn_window((Mss::clamped(1460), 12)),
        WireWindow(65_160)
    );
}

#[test]
fn a_small_buffer_needs_no_window_scale() {
    let mut window = RecvWindow::new(RMEM, RMEM[2]);
    window.set_rcvbuf(30_000);
    window.choose_scale(RMEM[2]);
    assert_eq!(window.scale().shift(), 0);
    assert_eq!(window.syn_window((mss(), 0)), WireWindow(14_480));
    window.set_rcvbuf(1_000_000);
    window.choose_scale(RMEM[2]);
    assert_eq!(window.scale().shift(), 3);
    window.set_clamp(60_000);
    window.choose_scale(RMEM[2]);
    assert_eq!(window.scale().shift(), 0);
}

#[test]
fn without_scaling_the_window_is_limited_to_16_bits() {
    let mut window = RecvWindow::new(RMEM, RMEM[2]);
    window.set_rcvbuf(4_000_000);
    window.establish(at(0), seq(0), false, (mss(), 0));
    store(&mut window, 60_000);
    window.uncharge(60_000, 0);
    assert_eq!(window.advertise(inputs(60_000, 0)), WireWindow(65_535));
}

#[test]
fn the_window_closes_with_a_slow_reader_and_opens_in_large_steps() {
    let mut window = established(true);
    window.set_rcvbuf(66_048);
    window.advertise(inputs(0, 0));
    // The whole window arrives, and nothing is read.
    store(&mut window, 65_160);
    assert!(!window.is_lagging(seq(65_160)) && window.is_lagging(seq(65_280)));
    assert!(!window.is_over_rcvbuf());
    assert_eq!(window.advertise(inputs(65_160, 0)), WireWindow(1));
    window.on_stored(128, mss(), true);
    assert_eq!(window.advertise(inputs(65_288, 65_160)), WireWindow(0));
    // The window opens after a sixteenth of the buffer was read, and not after less.
    window.uncharge(2000, 63_288);
    assert!(!window.is_update_due(inputs(65_288, 65_288)));
    assert_eq!(window.advertise(inputs(65_288, 65_288)), WireWindow(0));
    window.uncharge(3000, 60_288);
    assert!(window.is_update_due(inputs(65_288, 65_288)));
    assert!(window.advertise(inputs(65_288, 65_288)).0 > 32);
}

#[test]
fn an_update_is_due_only_when_the_window_has_doubled() {
    let mut window = established(true);
    window.advertise(inputs(0, 0));
    store(&mut window, 50_000);
    window.uncharge(0, 50_000);
    window.set_rcvbuf(80_000);
    window.advertise(inputs(50_000, 0));
    let open = window.current(seq(50_000)).0;
    assert!(open < 40_000);
    assert!(!window.is_update_due(inputs(50_000, 50_000)));
    window.uncharge(50_000, 0);
    assert!(window.is_update_due(inputs(50_000, 50_000)));
    // More than half of the window is open: the next ACK suffices.
    window.advertise(inputs(50_000, 50_000));
    assert!(!window.is_update_due(inputs(60_000, 50_000)));
}

/// With `tcp_shrink_window` the advertised window may shrink.
#[test]
fn the_window_shrinks_where_tcp_shrink_window_allows_it() {
    let shrinking = |n, acked| WindowInputs {
        may_shrink: true,
        ..inputs(n, acked)
    };
    let mut window = established(true);
    window.advertise(shrinking(0, 0));
    let advertised = window.current(seq(0)).0;
    window.set_rcvbuf(40_000);
    store(&mut window, 10_000);
    window.advertise(shrinking(10_000, 0));
    let left = window.current(seq(10_000)).0;
    assert!(left + 10_000 < advertised && left > 0);
    // Data sent within the window of the SYN-ACK is still accepted.
    let furthest = || Some(seq(65_160));
    let position = |len| window.position(seq(10_000), (seq(10_000), len, false), false, furthest);
    assert_eq!(position(55_160), SegmentPosition::Within);
    assert_eq!(position(55_161), SegmentPosition::Beyond);
    window.withdraw(seq(10_000));
    assert!(window.is_closed_at(seq(10_000), seq(10_000)));
}

/// The table of acceptable segments of RFC 9293 3.10.7.4, first step.
#[test]
fn acceptability() {
    let mut window = established(true);
    window.right_edge = seq(1000);
    let position = |seq_off: i64, len, starved| {
        let start = SeqNum::new(seq(0).raw().wrapping_add(seq_off as u32));
        window.position(seq(0), (start, len, false), starved, || None)
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
        assert_eq!(
            position(start, len, false),
            SegmentPosition::Within,
            "{start} {len}"
        );
    }
    assert_eq!(position(-1, 0, true), SegmentPosition::Before);
    assert_eq!(position(-10, 10, true), SegmentPosition::Before);
    // Segments that reach beyond the window: accepted whole if the application has nothing to read,
    // unless all of the segment lies beyond.
    for (start, len) in [(0, 1001), (999, 2), (1000, 1), (-10, 5000)] {
        assert_eq!(
            position(start, len, false),
            SegmentPosition::Beyond,
            "{start} {len}"
        );
        assert_eq!(
            position(start, len, true),
            SegmentPosition::Within,
            "{start} {len}"
        );
    }
    assert_eq!(position(1001, 0, true), SegmentPosition::Beyond);
    assert_eq!(position(1001, 5, true), SegmentPosition::Beyond);
    // A FIN may lie one byte beyond.
    let fin = window.position(seq(1000), (seq(1000), 1, true), false, || None);
    assert_eq!(fin, SegmentPosition::Within);
    assert!(window.is_closed_at(seq(1000), seq(1000)) && window.is_closed_at(seq(0), seq(1000)));
    assert!(!window.is_closed_at(seq(0), seq(999)));
}

/// The window does not hold back a sender that doubles each round trip.
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
        window.uncharge(sent as usize, 0);
        window.on_read(at(now), (sent as usize, 0), mss(), RMEM[2], true);
        window.advertise(inputs(next, next - sent));
        cwnd *= 2;
    }
    assert!(window.rcvbuf() > 1 << 20 && window.rcvbuf() <= RMEM[2]);
    // A locked buffer does not grow.
    let mut locked = established(true);
    locked.set_rcvbuf(100_000);
    locked.on_rtt(Nanos::from_millis(1));
    locked.on_read(at(10), (90_000, 0), mss(), RMEM[2], true);
    assert_eq!(locked.rcvbuf(), 100_000);
}

/// The sender is in slow start, and the first segment of its third flight is lost.
#[test]
fn a_hole_does_not_stop_growth() {
    let mut window = established(true);
    window.on_rtt(Nanos::from_millis(100));
    window.on_data(at(100), seq(28_960), mss());
    window.on_read(at(100), (28_960, 0), mss(), RMEM[2], true);
    window.advertise(inputs(28_960, 28_960));
    let before = window.current(seq(28_960)).0;
    let end = seq(28_960) + before;
    window.on_out_of_order((seq(28_960), end), RMEM[2]);
    window.advertise(inputs(28_960, 28_960));
    let after = window.current(seq(28_960)).0;
    assert!(
        after >= before + 2 * 28_960 - 1448,
        "{after} after {before}"
    );
    // The buffer grows up to `tcp_rmem`, and not at all where `SO_RCVBUF` is set.
    window.on_out_of_order((seq(0), seq(1 << 30)), RMEM[2]);
    assert_eq!(window.rcvbuf(), RMEM[2]);
    let mut locked = established(true);
    locked.set_rcvbuf(100_000);
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
    // A bulk sender's second round trip grows it: twice the bytes read and 16 segments, doubled
    // because they were twice those of the round trip before, and all of it doubled as memory.
    window.on_read(at(100), (28_960, 0), mss(), RMEM[2], true);
    assert_eq!(window.rcvbuf(), (2 * 28_960 + 16 * 1448) * 2 * 2);
    assert_eq!(window.rcv_ssthresh(), (2 * 28_960 + 16 * 1448) * 2);
}

/// With a small buffer half of its window counts as the sender's first round trip, so that reading
/// that amount is no growth.
#[test]
fn a_small_buffer_grows_when_more_than_half_of_it_is_read_in_a_round_trip() {
    for (read, grows) in [(12_500, false), (12_501, true)] {
        let mut window = RecvWindow::new([4096, 50_000, RMEM[2]], RMEM[2]);
        window.establish(at(0), seq(0), true, (mss(), 0));
        window.on_rtt(Nanos::from_millis(1));
        window.on_read(at(5), (read, 1), mss(), RMEM[2], true);
        assert_eq!(window.rcvbuf() > 50_000, grows, "{read}");
    }
}

/// The window opens when the buffer grows; where the buffer cannot grow it stays as it was.
#[test]
fn a_buffer_that_cannot_grow_leaves_the_window() {
    let full = || {
        let mut window = established(true);
        window.rcvbuf = RMEM[2];
        window.ssthresh = 100_000;
        window.on_rtt(Nanos::from_millis(1));
        window
    };
    let mut window = full();
    window.on_read(at(5), (8 << 20, 1), mss(), RMEM[2], true);
    assert_eq!((window.rcvbuf(), window.rcv_ssthresh()), (RMEM[2], 100_000));
    let mut window = full();
    window.on_out_of_order((seq(0), seq(1 << 24)), RMEM[2]);
    assert_eq!((window.rcvbuf(), window.rcv_ssthresh()), (RMEM[2], 100_000));
}

/// Returns a window whose buffer of `rcvbuf` bytes of memory has `held` in use; half of the memory
/// is payload.
fn half_used(rcvbuf: u32, held: u32, scale: u8) -> RecvWindow {
    let mut window = established(true);
    (window.rcvbuf, window.rmem_alloc, window.ssthresh) = (rcvbuf, held, u32::MAX);
    window.density = Density::FIRST;
    window.set_scale(WindowScale::clamped(scale));
    window
}

/// RFC 9293 3.8.6.2.2, as in Linux: the window is rounded up to a multiple of the scale while half
/// of it is free, and down below that. Windows smaller than a sixteenth of the buffer or than a
/// segment are not offered.
#[test]
fn the_window_selected_is_never_silly() {
    for (rcvbuf, free, may_shrink, mss, selected) in [
        (200_000, 100_000, false, 1448, 100_096),
        (200_000, 50_000, false, 1448, 50_048),
        (200_000, 40_000, false, 1448, 39_936),
        // With `tcp_shrink_window`: exactly half is not less than half.
        (4000, 1200, true, 1448, 1152),
        (4096, 1024, true, 1448, 1024),
        // A sixteenth of the buffer, and less.
        (409_600, 12_800, false, 1448, 12_800),
        (409_600, 12_672, false, 1448, 0),
        // One segment, and less.
        (32_000, 1408, false, 1408, 1408),
        (32_000, 1280, false, 1408, 0),
    ] {
        let window = half_used(rcvbuf, rcvbuf - 2 * free, 7);
        let window_inputs = WindowInputs {
            mss,
            may_shrink,
            ..inputs(0, 0)
        };
        assert_eq!(window.select(window_inputs), selected, "{rcvbuf} {free}");
    }
    // Without a scale the window is a number of whole segments.
    let mut window = half_used(60_000, 0, 0);
    window.right_edge = seq(0);
    assert_eq!(window.select(inputs(0, 0)), 20 * 1448);
}

/// The share of the host's memory limits the window, but to no less than a segment, which the peer could
/// not send at once.
#[test]
fn memory_limits_the_window_to_a_segment_at_least() {
    for (room, offered) in [
        (u32::MAX, 65_280),
        (10_000, 10_112),
        (1000, 1536),
        (0, 1536),
    ] {
        let mut window = RecvWindow::new(RMEM, RMEM[2]);
        window.scale_in_force = window.scale();
        window.ssthresh = 65_160;
        window.right_edge = seq(0);
        let limited = WindowInputs {
            room,
            ..inputs(0, 0)
        };
        window.advertise(limited);
        assert_eq!(window.current(seq(0)), Window(offered), "{room}");
    }
}

/// Under memory pressure four segments are offered: to all connections, or to those whose
/// applications have left more than half of the window unread.
#[test]
fn under_memory_pressure_the_window_is_four_segments() {
    let window = half_used(200_000, 0, 7);
    let four = 4 * 1448;
    for (memory_pressure, free, offered) in [
        (MemoryPressure::None, 100_000, 100_000),
        (MemoryPressure::SlowReaders, 100_000, 100_000),
        (MemoryPressure::SlowReaders, 50_001, 50_001),
        (MemoryPressure::SlowReaders, 50_000, four),
        (MemoryPressure::SlowReaders, 40_000, four),
        (MemoryPressure::All, 100_000, four),
        (MemoryPressure::All, 3000, 3000),
    ] {
        let window_inputs = WindowInputs {
            memory_pressure,
            ..inputs(0, 0)
        };
        assert_eq!(
            window.limit_by_pressure(free, window_inputs),
            offered,
            "{memory_pressure:?} {free}"
        );
    }
}

/// The values that `TCP_INFO` shows for a new window.
#[test]
fn a_new_window_uses_ten_segments_and_reserves_one() {
    let window = established(true);
    assert_eq!(window.rcv_ssthresh(), 65_536 - 1448);
    assert_eq!(window.rcv_space(mss()), 14_480);
    assert_eq!(window.largest_offered(), 65_536);
    assert_eq!((micros(at(5)), micros(at(5000))), (5000, 5_000_000));
}

/// A buffer of little more than two segments offers two.
#[test]
fn a_first_window_of_two_segments_is_advertised_whole() {
    let segment = Mss::clamped(1000);
    for (bytes, offered) in [(900, 900), (1500, 1000), (2500, 2000), (4500, 3500)] {
        let mut window = RecvWindow::new(RMEM, RMEM[2]);
        window.set_rcvbuf(2 * bytes);
        window.establish(at(0), seq(0), true, (segment, 0));
        assert_eq!(window.rcv_ssthresh(), offered, "{bytes}");
    }
}

#[test]
fn a_clamp_limits_the_window_until_it_is_removed() {
    let mut window = RecvWindow::new(RMEM, RMEM[2]);
    // Removing a clamp that was not set changes nothing.
    window.set_clamp(0);
    assert_eq!(
        (window.largest_offered(), window.tuning),
        (65_536, Tuning::Auto)
    );
    window.set_clamp(30_000);
    window.establish(at(0), seq(0), true, (mss(), 0));
    // Whole segments, without room for one more.
    assert_eq!(window.rcv_ssthresh(), 30_000 / 1448 * 1448);
    assert_eq!(window.largest_offered(), 30_000);
    assert_eq!(window.rcv_space(mss()), 14_480);
    window.set_clamp(0);
    assert_eq!(
        (window.largest_offered(), window.tuning),
        (65_536, Tuning::Locked)
    );
}

/// RFC 7323 2.2: the window of a SYN is never scaled.
#[test]
fn the_window_of_a_syn_is_at_most_64_kib() {
    for (window, exceeds) in [
        (65_535, false),
        (65_536, true),
        (100_000, true),
        (1000, false),
    ] {
        assert_eq!(
            half_used(2 * window, 0, 7).exceeds_syn_field(),
            exceeds,
            "{window}"
        );
    }
}

/// RFC 7323 2.3 and `tcp_shrink_window`: without a scale the window never shrinks.
#[test]
fn an_unscaled_window_does_not_shrink() {
    let shrinking = |n, acked| WindowInputs {
        may_shrink: true,
        ..inputs(n, acked)
    };
    let mut window = established(false);
    window.advertise(shrinking(0, 0));
    window.set_rcvbuf(40_000);
    store(&mut window, 10_000);
    let before = window.right_edge;
    window.advertise(shrinking(10_000, 0));
    assert_eq!(window.right_edge, before);
}

#[test]
fn half_of_the_window_is_not_more_than_half() {
    // The largest window is 65,536.
    for (offered, open) in [
        (32_768, false),
        (32_769, true),
        (60_000, true),
        (100, false),
    ] {
        let mut window = established(true);
        window.right_edge = seq(offered);
        assert_eq!(window.is_half_open(seq(0)), open, "{offered}");
    }
    // The same bound holds for memory: an application lags if more than half of the buffer is
    // unread.
    for (held, lags) in [(65_536, false), (65_537, true)] {
        let mut window = established(true);
        (window.rmem_alloc, window.right_edge) = (held, seq(0));
        assert_eq!(window.is_lagging(seq(0)), lags, "{held}");
    }
}

/// Arriving data opens the window if memory is not scarce. Segments of a few bytes do not show that
/// the sender has much to send.
#[test]
fn the_window_opens_with_what_arrives() {
    for (len, may_grow, opens) in [(128, true, 2 * 1448), (127, true, 0), (128, false, 0)] {
        let mut window = established(true);
        window.ssthresh = 20_000;
        window.on_stored(len, mss(), may_grow);
        assert_eq!(window.rcv_ssthresh(), 20_000 + opens, "{len} {may_grow}");
    }
}

#[test]
fn long_runs_raise_the_scaling_ratio() {
    let mut window = established(true);
    assert!(window.is_denser(16_384) && !window.is_denser(16_383));
    window.set_density(65_160);
    assert!(!window.is_denser(20_000) && !window.is_denser(100));
}

/// The sender has used up the window when less than a segment of it is left.
#[test]
fn a_sender_with_a_segment_left_has_not_used_up_the_window() {
    for (left, grows) in [(1448, false), (1447, true)] {
        let mut window = established(true);
        window.right_edge = seq(left);
        window.on_data(at(1), seq(0), mss());
        window.on_read(at(1), (1, 0), mss(), RMEM[2], true);
        assert_eq!(window.rcvbuf() > RMEM[1], grows, "{left}");
    }
}

/// The buffer of a listener's connection grows once the connection is accepted.
#[test]
fn an_unread_buffer_does_not_grow() {
    let grows = |awaiting_accept: &[bool]| {
        let mut window = established(true);
        for &awaiting_accept in awaiting_accept {
            window.set_awaiting_accept(awaiting_accept);
        }
        window.on_rtt(Nanos::from_millis(1));
        window.on_read(at(5), (60_000, 1), mss(), RMEM[2], true);
        window.rcvbuf() > RMEM[1]
    };
    assert!(grows(&[]) && grows(&[false]) && grows(&[true, false]));
    assert!(!grows(&[true]) && !grows(&[true, true]));
}

#[test]
fn rcv_rtt_is_measured_per_window_of_data() {
    let mut window = established(true);
    window.on_data(at(5), seq(1000), mss());
    assert_eq!(window.rtt(), None);
    window.on_data(at(30), seq(65_535), mss());
    assert_eq!(window.rtt(), Some(Nanos::from_millis(30)));
    window.advertise(inputs(65_535, 65_535));
    window.on_data(at(80), seq(140_000), mss());
    assert_eq!(window.rtt(), Some(Nanos::from_millis(30)));
}

/// The receiver's round trip ends when the whole open window, here 40,000 bytes, has arrived.
#[test]
fn rcv_rtt_needs_a_whole_window() {
    let mut window = established(true);
    window.right_edge = seq(105_535);
    window.on_data(at(30), seq(65_535), mss());
    window.on_data(at(31), seq(66_000), mss());
    assert_eq!(window.rtt(), Some(Nanos::from_millis(30)));
    window.on_data(at(40), seq(105_535), mss());
    assert_eq!(window.rtt(), Some(Nanos::from_millis(10)));
}

/// With both ends in one thread each flight is as large as the window, so no round trip brings more
/// than the one before, and the window grows all the same.
#[test]
fn the_window_opens_when_sender_and_reader_wait_for_each_other() {
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
        window.advertise(inputs(next, next));
    }
    assert_eq!(window.rcvbuf(), RMEM[2]);
}

#[test]
fn an_interval_of_zero_changes_nothing() {
    let mut window = established(true);
    window.on_data(at(0), seq(65_535), mss());
    for _ in 0..100 {
        window.on_read(at(0), (1 << 20, 1), mss(), RMEM[2], true);
    }
    assert_eq!(window.rcvbuf(), RMEM[1]);
}

proptest! {
    /// After any sequence of events the right edge has never moved left, and beyond that no more is
    /// offered than the buffer holds.
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
                    window.uncharge(n, held);
                    window.on_read(now, (n, held), mss, RMEM[2], true);
                }
                2 => window.set_rcvbuf(n),
                _ => {
                    let before = window.right_edge;
                    let inputs = WindowInputs { mss: mss.bytes(), ..inputs(nxt, acked) };
                    let due = window.is_update_due(inputs);
                    let old = window.current(seq(nxt)).0;
                    let field = window.advertise(inputs);
                    acked = nxt;
                    let advertised = field.scaled(window.scale_in_force);
                    prop_assert!(window.right_edge.after_eq(before));
                    prop_assert!(advertised.0 >= old);
                    prop_assert_eq!(window.current(seq(nxt)), advertised);
                    prop_assert!(advertised.0 < window.free_window() + 128 || advertised.0 - old < 128);
                    prop_assert!(!due || advertised.0 > old);
                }
            }
        }
    }
}
