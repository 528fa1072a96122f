//! `MSG_EOR`: no data is appended to the segment that ends a record.

use crate::harness::{Bench, Setup};

#[test]
fn records_do_not_share_segments() {
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         set cork 1
         write 400 eor
         # The cork holds what could grow.
         write 600
         > P. 1:401(400) ack 1
         write 500 eor
         write 100
         > P. 401:1501(1100) ack 1
         set cork 0
         > P. 1501:1601(100) ack 1",
    );
}

/// Nagle's algorithm does not hold a record that other data follows, because its segment cannot
/// grow.
#[test]
fn nagle_delays_only_the_last_record() {
    Bench::established(&Setup::default()).play(
        "write 100
         > P. 1:101(100) ack 1
         write 100 eor
         write 100 eor
         > P. 101:201(100) ack 1
         < . 1:1(0) ack 201
         > P. 201:301(100) ack 1",
    );
}

#[test]
fn a_record_may_have_many_segments() {
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         < . 1:1(0) ack 1 win 0
         write 4000 eor
         write 5000
         < . 1:1(0) ack 1 win 512
         > P. 1:4001(4000) ack 1
         > P. 4001:9001(5000) ack 1",
    );
}

/// A record is not held for a busy device (autocorking) either.
#[test]
fn a_record_is_not_autocorked() {
    Bench::established(&Setup::default()).play(
        "set nodelay 1
         busy
         write 3000
         > P. 1:3001(3000) ack 1
         write 100 eor
         > P. 3001:3101(100) ack 1
         write 100
         complete
         > P. 3101:3201(100) ack 1",
    );
}
