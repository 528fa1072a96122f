//! Invalid and forged segments: RFC 9293 3.10.7.4, RFC 5961, RFC 7323 5.

use crate::harness::{Bench, Setup};

fn open() -> Bench {
    Bench::established(&Setup::default())
}

fn with_timestamps() -> Bench {
    Bench::established(&Setup {
        timestamps: true,
        ..Setup::default()
    })
}

#[test]
fn data_next_to_the_window_is_answered_each_time() {
    open().play(
        "< P. 66001:66101(100) ack 1
         > . 1:1(0) ack 1
         < P. 66001:66101(100) ack 1
         > . 1:1(0) ack 1",
    );
}

#[test]
fn data_far_from_the_window_is_answered_twice_a_second() {
    let mut bench = open();
    bench.play(
        "< P. 900001:900101(100) ack 1
         > . 1:1(0) ack 1
         < P. 2900001:2900101(100) ack 1
         < P. 1900001:1900101(100) ack 1
         +500ms
         < P. 900001:900101(100) ack 1
         > . 1:1(0) ack 1",
    );
    assert_eq!(bench.mib.ack_skipped_seq, 2);
}

#[test]
fn empty_out_of_window_segments_are_answered_twice_a_second() {
    let mut bench = open();
    bench.play(
        "< . 900001:900001(0) ack 1
         > . 1:1(0) ack 1
         < . 900001:900001(0) ack 1
         +499ms
         < . 900001:900001(0) ack 1
         +1ms
         < . 900001:900001(0) ack 1
         > . 1:1(0) ack 1",
    );
    assert_eq!(bench.mib.ack_skipped_seq, 2);
}

#[test]
fn only_the_exact_reset_resets() {
    let mut bench = open();
    bench.play(
        "< R 900001:900001(0)
         < R 2:2(0)
         > . 1:1(0) ack 1
         < R 3:3(0)
         state = Established
         < R 0:0(0)
         state = Established
         < R 1:1(0)
         state = Closed
         error = Some(ConnectionReset)",
    );
    assert_eq!(bench.mib.challenge_ack, 1);
    assert_eq!(bench.mib.ack_skipped_challenge, 1);
}

#[test]
fn a_reset_after_out_of_order_data_is_accepted() {
    open().play(
        "< P. 101:201(100) ack 1
         > . 1:1(0) ack 1 <sack 101:201>
         < R 200:200(0)
         > . 1:1(0) ack 1 <sack 101:201>
         state = Established
         < R 201:201(0)
         state = Closed",
    );
}

#[test]
fn a_reset_at_the_sequence_number_of_the_fin_is_accepted() {
    open().play(
        "< F. 1:1(0) ack 1
         > . 1:1(0) ack 2
         < R 1:1(0)
         state = Closed",
    );
}

#[test]
fn challenge_acks_are_limited_per_host() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_challenge_ack_limit = 0;
    let mut bench = Bench::established(&setup);
    bench.play("< R 2:2(0)");
    assert_eq!(
        (bench.mib.challenge_ack, bench.mib.ack_skipped_challenge),
        (0, 1)
    );
}

#[test]
fn a_syn_is_challenged() {
    let mut bench = open();
    bench.play(
        "< S 1:1(0)
         > . 1:1(0) ack 1
         < S. 5:5(0) ack 1
         +1s
         < S 900001:900001(0)
         > . 1:1(0) ack 1
         state = Established",
    );
    assert_eq!((bench.mib.syn_challenge, bench.mib.challenge_ack), (3, 2));
}

#[test]
fn acks_of_unsent_data_and_of_the_far_past_are_challenged() {
    open().play(
        "< P. 1:101(100) ack 2
         > . 1:1(0) ack 1
         +1s
         < P. 1:101(100) ack 4283000000
         > . 1:1(0) ack 1",
    );
}

#[test]
fn an_ack_of_unsent_data_is_challenged() {
    let mut bench = open();
    bench.play(
        "write 100
         > P. 1:101(100) ack 1
         < . 1:1(0) ack 101
         < P. 1:101(100) ack 4294967295
         > . 101:101(0) ack 1
         read 1 = WouldBlock",
    );
    assert_eq!(bench.mib.challenge_ack, 1);
}

/// RFC 5961 5.2: the segment is dropped after the challenge ACK, so its data is not reported as a
/// duplicate either.
#[test]
fn repeated_data_with_an_invalid_ack_is_challenged_without_dsack() {
    for ack in ["2", "4283000000"] {
        let mut bench = open();
        bench.play(&format!(
            "< P. 1:101(100) ack 1
             > . 1:1(0) ack 101
             < P. 1:101(100) ack {ack}
             > . 1:1(0) ack 101 <>
             < P. 1:101(100) ack {ack}"
        ));
        assert_eq!((bench.mib.challenge_ack, bench.mib.dsack_old_sent), (1, 0));
    }
}

#[test]
fn an_old_ack_is_ignored_and_its_data_is_accepted() {
    let mut bench = open();
    bench.play(
        "write 100
         > P. 1:101(100) ack 1
         < . 1:1(0) ack 101
         < P. 1:101(100) ack 1
         > . 101:101(0) ack 101
         read 100",
    );
}

#[test]
fn segments_without_the_ack_flag_are_ignored() {
    open().play(
        "< P 1:101(100)
         < F 1:1(0)
         read 1 = WouldBlock
         state = Established",
    );
}

#[test]
fn old_timestamps_are_rejected() {
    let mut bench = with_timestamps();
    bench.play(
        "+1s
         < P. 1:101(100) ack 1
         > . 1:1(0) ack 101
         read 100
         # Old text of an earlier lap.
         < P. 101:201(100) ack 1 <ts 500>
         > . 1:1(0) ack 101
         read 1 = WouldBlock
         # A pure ACK overtaken on the way: silence. One that could change the window is answered.
         < . 1:1(0) ack 1 <ts 500>
         < . 101:101(0) ack 1 <ts 500>
         > . 1:1(0) ack 101
         < P. 101:201(100) ack 1
         > . 1:1(0) ack 201
         read 100",
    );
    assert_eq!(bench.mib.paws_estab, 3);
}

#[test]
fn timestamps_older_than_24_days_prove_nothing() {
    with_timestamps().play(
        "+2160000s
         < P. 1:101(100) ack 1 <ts 0>
         > . 1:1(0) ack 101",
    );
}

#[test]
fn a_reset_needs_no_timestamp() {
    with_timestamps().play(
        "+1s
         < R. 1:1(0) ack 1 <ts 0>
         state = Closed",
    );
}

#[test]
fn time_wait_connection_ignores_everything() {
    open().play(
        "close
         > F. 1:1(0) ack 1
         < F. 1:1(0) ack 2
         > . 2:2(0) ack 2
         < P. 1:101(100) ack 2
         < R. 2:2(0) ack 2
         < S 9:9(0)
         state = Closed",
    );
}
