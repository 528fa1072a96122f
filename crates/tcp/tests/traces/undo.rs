//! Reductions that prove unnecessary: RFC 3522, RFC 4015, RFC 3708.

use crate::harness::{Bench, Setup};

/// Ten segments out, ten milliseconds after the beginning, on a path of as much.
fn open(timestamps: bool) -> Bench {
    open_with(timestamps, Setup::default())
}

fn open_with(timestamps: bool, setup: Setup) -> Bench {
    let mut setup = Setup {
        timestamps,
        peer_mss: if timestamps { 1472 } else { 1460 },
        device: fullsend_tcp::DeviceCaps {
            mtu: 1512,
            ..Setup::default().device
        },
        ..setup
    };
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting(&setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +10ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1",
    );
    bench
}

#[test]
fn an_old_echo_shows_that_the_original_was_only_late() {
    let mut bench = open(true);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         cwnd = 7
         +5ms
         # It is the segment sent at 10 ms that fills the hole.
         < . 1:1(0) ack 7301 <echo 10>
         cwnd = 11",
    );
    assert_eq!((bench.mib.partial_undo, bench.mib.loss_undo), (1, 0));
    assert!(bench.info().tcpi_snd_ssthresh > 1_000_000);
}

#[test]
fn an_echo_of_the_retransmission_confirms_the_loss() {
    let mut bench = open(true);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         +20ms
         < . 1:1(0) ack 7301 <echo 30>
         < . 1:1(0) ack 14601 <echo 30>",
    );
    assert_eq!(bench.mib.full_undo, 0);
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
}

#[test]
fn a_delay_longer_than_the_timeout_is_forgiven() {
    let mut bench = open_with(true, Setup::without_probes());
    bench.play(
        "+210ms
         > . 1:1461(1460) ack 1
         cwnd = 1
         +5ms
         < . 1:1(0) ack 7301 <echo 10>
         # Nothing that is still under way is sent again.
         < . 1:1(0) ack 14601 <echo 10>",
    );
    assert_eq!((bench.mib.loss_undo, bench.mib.retrans_segs), (1, 1));
    assert!(bench.info().tcpi_snd_cwnd >= 10);
}

#[test]
fn duplicates_reported_for_every_retransmission_undo_it() {
    let mut bench = open(false);
    bench.play(
        "+10ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 14601
         cwnd = 7
         # Both copies arrived.
         < . 1:1(0) ack 14601 <sack 1:1461>
         cwnd = 10",
    );
    assert_eq!(bench.mib.dsack_undo, 1);
}

#[test]
fn a_duplicate_from_before_proves_nothing() {
    let mut bench = open(false);
    bench.play(
        "+10ms
         < . 1:1(0) ack 7301
         < . 1:1(0) ack 7301 <sack 8761:14601>
         > . 7301:8761(1460) ack 1
         < . 1:1(0) ack 7301 <sack 1:1461,sack 8761:14601>
         < . 1:1(0) ack 14601",
    );
    assert_eq!(bench.mib.dsack_undo, 0);
}

/// A path of 10 ms that has delivered out of order, two segments out, and the first of them sent
/// again. Returns the age of the retransmission's TSval in milliseconds as well.
fn repaired_on_a_path_that_reorders() -> (Bench, u32) {
    let mut bench = open_with(true, Setup::without_probes());
    bench.play(
        "+10ms
         < . 1:1(0) ack 1 <sack 7301:8761>
         < . 1:1(0) ack 1 <sack 1461:2921,sack 7301:8761>
         < . 1:1(0) ack 14601 <echo 10>",
    );
    assert!(bench.info().tcpi_reord_seen > 0);
    assert!(bench.try_write(2920));
    let val = |bench: &mut Bench| {
        let segment = bench.next_out().expect("a segment");
        let ts = segment.repr.options.timestamps;
        (segment.repr.seq, ts.expect("timestamps").val)
    };
    let (seq, first) = val(&mut bench);
    let sent = bench.now();
    bench.play(
        "+10ms
         < . 1:1(0) ack 14601 <sack 16061:17521>",
    );
    assert!(bench.next_timeout(), "it is late, not lost");
    let (again, second) = val(&mut bench);
    assert_eq!(again, seq);
    let elapsed = bench.now().since(sent).as_millis() as u32;
    (bench, elapsed - (second - first))
}

/// The peer accepts the originals that a retransmission overtakes (RFC 7323 5.3).
#[test]
fn where_packets_overtake_a_retransmission_is_stamped_half_a_round_trip_back() {
    let (mut bench, age) = repaired_on_a_path_that_reorders();
    assert_eq!(age, 5);
    // Its echo confirms the loss, and is no round trip.
    let before = bench.info().tcpi_rtt;
    bench.play(
        "+10ms
         < . 1:1(0) ack 17521 <echo 30>",
    );
    let undone = bench.mib.full_undo + bench.mib.partial_undo;
    assert_eq!((undone, bench.info().tcpi_rtt), (0, before));
}

#[test]
fn the_echo_of_the_original_shows_it_late_in_spite_of_that() {
    let (mut bench, _) = repaired_on_a_path_that_reorders();
    bench.play("< . 1:1(0) ack 17521 <echo 20>");
    assert_eq!(bench.mib.full_undo + bench.mib.partial_undo, 1);
}
