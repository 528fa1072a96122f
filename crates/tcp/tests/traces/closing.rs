//! FIN, RST, TIME-WAIT (RFC 9293 3.6, 3.10.7.4).

use crate::harness::{Bench, Setup};

fn open() -> Bench {
    Bench::established(&Setup::default())
}

#[test]
fn active_close_ends_in_time_wait() {
    let mut bench = open();
    bench.play(
        "close
         > F. 1:1(0) ack 1
         state = FinWait1
         < . 1:1(0) ack 2
         state = FinWait2
         < F. 1:1(0) ack 2
         > . 2:2(0) ack 2
         state = Closed
         time_wait = true
         time_wait = false
         flushed = true",
    );
    assert_eq!(bench.mib.time_waits, 1);
}

#[test]
fn fin_and_its_ack_in_one_segment() {
    open().play(
        "close
         > F. 1:1(0) ack 1
         < F. 1:1(0) ack 2
         > . 2:2(0) ack 2
         state = Closed
         time_wait = true",
    );
}

#[test]
fn both_close_at_once() {
    open().play(
        "close
         > F. 1:1(0) ack 1
         < F. 1:1(0) ack 1
         > . 2:2(0) ack 2
         state = Closing
         < . 2:2(0) ack 2
         state = Closed
         time_wait = true",
    );
}

#[test]
fn passive_close() {
    open().play(
        "readable = false
         < FP. 1:101(100) ack 1
         > . 1:1(0) ack 102
         wakes = read
         state = CloseWait
         read 200 = 100
         read 200 = 0
         write 50
         > P. 1:51(50) ack 102
         shutdown
         > F. 51:51(0) ack 102
         state = LastAck
         < . 102:102(0) ack 51
         state = LastAck
         flushed = false
         < . 102:102(0) ack 52
         state = Closed
         flushed = true
         time_wait = false
         read 1 = 0
         write 1 = BrokenPipe",
    );
}

#[test]
fn half_closed_keeps_receiving() {
    Bench::warmed_up(&Setup::default()).play(
        "write 10
         > P. 1:11(10) ack 1601
         shutdown
         > F. 11:11(0) ack 1601
         write 1 = BrokenPipe
         < . 1601:1601(0) ack 12
         state = FinWait2
         +70s
         < . 1601:3061(1460) ack 12
         < . 3061:4521(1460) ack 12
         > . 12:12(0) ack 4521
         read 2920
         < F. 4521:4521(0) ack 12
         > . 12:12(0) ack 4522
         read 1 = 0
         time_wait = true",
    );
}

#[test]
fn an_out_of_order_fin_waits_for_the_data_before_it() {
    Bench::warmed_up(&Setup::default()).play(
        "< F. 3061:3100(39) ack 1
         > . 1:1(0) ack 1601 <sack 3061:3100>
         state = Established
         < . 1601:3061(1460) ack 1
         > . 1:1(0) ack 3101
         state = CloseWait
         read 2000 = 1499
         read 1 = 0",
    );
}

#[test]
fn a_lost_fin_is_retransmitted_after_the_data_before_it() {
    Bench::established(&Setup::without_probes()).play(
        "write 100
         > P. 1:101(100) ack 1
         close
         > F. 101:101(0) ack 1
         +200ms
         > P. 1:101(100) ack 1
         < . 1:1(0) ack 101
         > F. 101:101(0) ack 1
         < . 1:1(0) ack 102
         state = FinWait2",
    );
}

#[test]
fn unread_data_makes_close_a_reset() {
    let mut bench = open();
    bench.play(
        "< P. 1:101(100) ack 1
         > . 1:1(0) ack 101
         write 50
         > P. 1:51(50) ack 101
         close
         > R. 51:51(0) ack 101
         state = Closed",
    );
    assert_eq!(bench.mib.abort_on_close, 1);
}

#[test]
fn linger_zero_resets() {
    let mut bench = open();
    bench.play(
        "set linger 0
         write 50
         > P. 1:51(50) ack 1
         close
         > R. 51:51(0) ack 1
         state = Closed
         flushed = false",
    );
    assert_eq!(bench.mib.abort_on_data, 1);
}

#[test]
fn abort_sends_rst_and_reports_the_error() {
    open().play(
        "readable = false
         abort
         > R. 1:1(0) ack 1
         wakes = read
         read 1 = ConnectionAborted
         read 1 = 0
         write 1 = BrokenPipe",
    );
}

#[test]
fn an_orphan_resets_a_peer_that_keeps_sending() {
    let mut bench = open();
    bench.play(
        "close
         > F. 1:1(0) ack 1
         < . 1:1(0) ack 2
         < P. 1:101(100) ack 2
         > R 2:2(0)
         state = Closed",
    );
    assert_eq!(bench.mib.abort_on_data, 1);
}

#[test]
fn no_ack_follows_the_reset_of_an_orphan() {
    let mut bench = open();
    bench.play(
        "close
         > F. 1:1(0) ack 1
         < . 1:1(0) ack 2
         < . 0:0(0) ack 2
         << P. 1:101(100) ack 2
         > R 2:2(0)
         state = Closed",
    );
    assert_eq!(bench.mib.abort_on_data, 1);
    bench.play("+1s");
}

#[test]
fn no_ack_follows_the_reset_of_a_peer_in_closing() {
    let mut bench = open();
    bench.play(
        "close
         > F. 1:1(0) ack 1
         < F. 1:1(0) ack 1
         << R. 2:2(0) ack 1
         state = Closed",
    );
    // Nor is the FIN sent again.
    assert_eq!(bench.conn.poll_deadline(), None);
    bench.play("+1s");
}

/// The minute begins when the application closes a connection that it had only shut down.
#[test]
fn closing_in_fin_wait_2_begins_its_timeout() {
    open().play(
        "shutdown
         > F. 1:1(0) ack 1
         < . 1:1(0) ack 2
         +300s
         state = FinWait2
         close
         +59s
         state = FinWait2
         +1s
         state = Closed",
    );
}

#[test]
fn an_orphan_leaves_fin_wait_2_after_a_minute() {
    open().play(
        "close
         > F. 1:1(0) ack 1
         < . 1:1(0) ack 2
         +59.9s
         state = FinWait2
         +100ms
         state = Closed
         time_wait = false",
    );
}

#[test]
fn a_reset_is_an_error_after_what_was_received() {
    let mut bench = open();
    bench.play(
        "writable = true
         readable = false
         < P. 1:101(100) ack 1
         > . 1:1(0) ack 101
         < R. 101:101(0) ack 1
         state = Closed
         wakes = read
         read 200 = 100
         read 1 = ConnectionReset
         read 1 = 0",
    );
    assert_eq!(bench.mib.estab_resets, 1);
}

#[test]
fn a_reset_after_both_have_closed_is_no_error() {
    open().play(
        "< F. 1:1(0) ack 1
         > . 1:1(0) ack 2
         close
         > F. 1:1(0) ack 2
         < R. 2:2(0) ack 1
         state = Closed
         error = None",
    );
}

/// RFC 1122 4.2.2.13: an application that has shut down both directions has closed, and data that
/// arrives later is answered by a RST.
#[test]
fn data_after_shutdown_of_both_directions_is_reset() {
    Bench::warmed_up(&Setup::default()).play(
        "shutdown_read
         < P. 1601:1701(100) ack 1
         +40ms
         > . 1:1(0) ack 1701
         shutdown
         > F. 1:1(0) ack 1701
         < P. 1701:1801(100) ack 2
         > R 2:2(0)
         state = Closed
         error = Some(ConnectionReset)",
    );
}

/// A connection that has ended acknowledges nothing, not even data that came just before its end.
#[test]
fn no_ack_follows_the_end() {
    open().play(
        "< P. 1:101(100) ack 1
         << R. 101:101(0) ack 1
         state = Closed
         error = Some(ConnectionReset)",
    );
    open().play(
        "< P. 1:101(100) ack 1
         & close
         > R. 1:1(0) ack 101
         state = Closed",
    );
}

/// A closed socket gives back the memory of what nobody can read any more, at once.
#[test]
fn closing_releases_received_data() {
    let mut reset = open();
    reset.play(
        "< P. 1:10001(10000) ack 1
         << R. 10001:10001(0) ack 1",
    );
    let mut out_of_order = open();
    out_of_order.play(
        "< P. 1001:11001(10000) ack 1
         > . 1:1(0) ack 1 <sack 1001:11001>",
    );
    for (mut bench, answer) in [(reset, ""), (out_of_order, "\n> F. 1:1(0) ack 1")] {
        assert_ne!(bench.mem.pages(), 0);
        bench.play(&format!("& close{answer}"));
        assert_eq!(bench.mem.pages(), 0);
    }
}
