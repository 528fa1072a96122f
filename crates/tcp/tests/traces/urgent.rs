//! Urgent data (RFC 9293 3.8.5, RFC 6093).

use crate::harness::{Bench, Setup};

/// The urgent byte stays in the stream, and a read ends before it.
#[test]
fn the_urgent_byte_is_read_in_band() {
    Bench::warmed_up(&Setup::default()).play(
        "< PU. 1601:1606(5) ack 1 urg 3
         +40ms
         > . 1:1(0) ack 1606
         urgent = true
         at_mark = false
         # 1601 and 1602 stand before it.
         read 100 = 2
         at_mark = true
         read 100 = 3
         at_mark = false
         urgent = false",
    );
}

/// A pointer to data that has not arrived reports no urgent data yet; one to data already received
/// is ignored.
#[test]
fn the_pointer_is_not_trusted() {
    Bench::warmed_up(&Setup::default()).play(
        "< PU. 1601:1602(1) ack 1 urg 65535
         urgent = false
         read 100 = 1
         < U. 1602:1602(0) ack 1 urg 0
         < U. 1602:1602(0) ack 1 urg 1
         urgent = false
         < P. 1602:1605(3) ack 1
         read 100 = 3
         +40ms
         > . 1:1(0) ack 1605
         # Behind what was received.
         < U. 1605:1605(0) ack 1 urg 0
         at_mark = false",
    );
}

#[test]
fn the_mark_moves_forward_only() {
    Bench::warmed_up(&Setup::default()).play(
        "< U. 1601:1601(0) ack 1 urg 10
         < PU. 1601:1611(10) ack 1 urg 5
         read 100 = 9
         at_mark = true
         read 100 = 1
         +40ms
         > . 1:1(0) ack 1611",
    );
}

/// Data that we mark urgent is sent at once, in spite of Nagle's algorithm, and every segment
/// points to its end until it is acknowledged. None is a super-segment, whose segments would share
/// one pointer.
#[test]
fn urgent_data_sets_the_pointer_to_its_end() {
    Bench::established(&Setup::default()).play(
        "write 100
         > P. 1:101(100) ack 1
         write 50 oob
         > PU. 101:151(50) ack 1 urg 50
         < . 1:1(0) ack 151
         write 3000 oob
         > U. 151:1611(1460) ack 1 urg 3000
         > U. 1611:3071(1460) ack 1 urg 1540
         > PU. 3071:3151(80) ack 1 urg 80
         < . 1:1(0) ack 3151
         write 100
         > P. 3151:3251(100) ack 1",
    );
}
