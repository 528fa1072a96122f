//! Detection and retransmission of lost segments: RFC 6675, RFC 6582, RFC 5681.

use fullsend_tcp::congestion::CcInfo;

use crate::harness::{Bench, Setup};

/// Returns a connection over a path of 20 ms with ten segments in flight.
fn open() -> Bench {
    open_with(&Setup::default())
}

fn open_with(setup: &Setup) -> Bench {
    let mut setup = setup.clone();
    // Whole bursts, however long the round trip.
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting(&setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1",
    );
    bench
}

#[test]
fn three_segments_sacked_above_a_hole_retransmit_it() {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:2921>
         < . 1:1(0) ack 1 <sack 1461:4381>
         < . 1:1(0) ack 1 <sack 1461:5841>
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 1 <sack 1461:14601>
         < . 1:1(0) ack 14601
         cwnd = 7",
    );
    assert_eq!((bench.mib.sack_recovery, bench.mib.retrans_segs), (1, 1));
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
}

#[test]
fn new_data_is_sent_during_recovery() {
    open().play(
        "+20ms
         write 5000
         < . 1:1(0) ack 1 <sack 1461:5841>
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 1 <sack 1461:8761>
         > P. 14601:17521(2920) ack 1
         < . 1:1(0) ack 1 <sack 1461:13141>
         > P. 17521:19601(2080) ack 1",
    );
}

#[test]
fn holes_are_retransmitted_as_super_segments() {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 4381:14601>
         > P. 1:4381(4380) ack 1",
    );
    assert_eq!(bench.mib.fast_retrans, 3);
}

/// Returns a connection without SACK with ten segments in flight, the first of which was
/// retransmitted after three duplicate ACKs.
fn retransmitted_without_sack() -> Bench {
    let setup = Setup {
        sack: false,
        ..Setup::default()
    };
    let mut bench = Bench::established(&setup);
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 1
         < . 1:1(0) ack 1
         < . 1:1(0) ack 1
         > . 1:1461(1460) ack 1",
    );
    bench
}

#[test]
fn without_sack_three_duplicates_retransmit_the_head_and_partial_acks_the_next() {
    let mut bench = retransmitted_without_sack();
    bench.play(
        "< . 1:1(0) ack 5841
         > . 5841:7301(1460) ack 1
         < . 1:1(0) ack 14601
         cwnd = 7",
    );
    assert_eq!(bench.mib.reno_recovery, 1);
}

#[test]
fn a_window_update_is_no_duplicate_ack() {
    let setup = Setup {
        sack: false,
        ..Setup::default()
    };
    let mut bench = Bench::established(&setup);
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         < . 1:1(0) ack 1 win 40001
         < . 1:1(0) ack 1 win 65001
         < . 1:1(0) ack 1 win 65535
         < P. 1:2(1) ack 1
         > . 14601:14601(0) ack 2",
    );
    assert_eq!(bench.mib.reno_recovery, 0);
}

#[test]
fn a_timeout_retransmits_everything_in_slow_start() {
    open_with(&Setup::without_probes()).play(
        "+220ms
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 1461
         > P. 1461:4381(2920) ack 1
         < . 1:1(0) ack 14601
         +100s",
    );
}

#[test]
fn sacked_data_is_not_retransmitted_after_a_timeout() {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_recovery = 0;
    open_with(&setup).play(
        "< . 1:1(0) ack 1 <sack 1461:2921>
         +220ms
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 2921
         > P. 2921:5841(2920) ack 1",
    );
}

#[test]
fn reordering_by_two_segments_causes_no_retransmission() {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:2921>
         < . 1:1(0) ack 1 <sack 1461:4381>
         < . 1:1(0) ack 4381
         < . 1:1(0) ack 14601",
    );
    assert_eq!((bench.mib.retrans_segs, bench.mib.sack_recovery), (0, 0));
}

/// On a path that has shown reordering losses are detected by time instead of the number of SACKed
/// segments.
#[test]
fn detected_reordering_raises_the_threshold() {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 7301:8761>
         < . 1:1(0) ack 1 <sack 1461:2921,sack 7301:8761>
         < . 1:1(0) ack 14601
         write 14600
         > P. 14601:27741(13140) ack 1
         > P. 27741:29201(1460) ack 1
         +20ms
         < . 1:1(0) ack 14601 <sack 16061:23361>
         # A quarter of the least round trip, and what clocks are coarse.
         +7ms
         > . 14601:16061(1460) ack 1",
    );
    assert_eq!((bench.mib.retrans_segs, bench.mib.sack_reorder), (1, 2));
    let info = bench.info();
    assert_eq!((info.tcpi_reord_seen, info.tcpi_reordering), (2, 6));
}

#[test]
fn reneging_retransmits_everything() {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:14601>
         > . 1:1461(1460) ack 1
         # The hole is closed, and what was SACKed is gone.
         < . 1:1(0) ack 1461
         # Half a round trip of patience, ten milliseconds at least.
         +10ms
         > . 1461:2921(1460) ack 1
         < . 1:1(0) ack 2921
         > P. 2921:5841(2920) ack 1
         < . 1:1(0) ack 5841
         > P. 5841:11681(5840) ack 1
         < . 1:1(0) ack 11681
         > P. 11681:14601(2920) ack 1
         < . 1:1(0) ack 14601
         +100s",
    );
    assert_eq!(bench.mib.sack_reneging, 1);
}

#[test]
fn a_lost_retransmission_is_found_by_the_timer() {
    open().play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:14601>
         > . 1:1461(1460) ack 1
         +220ms
         > . 1:1461(1460) ack 1
         +440ms
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 14601
         +100s",
    );
}

/// On a path whose round trip exceeds the minimum timeout a retransmission has a round trip's time
/// to arrive.
#[test]
fn rto_waits_for_the_retransmission_to_arrive() {
    let mut bench = Bench::accepting(&Setup::default());
    bench.play(
        "> S. 0:0(0) ack 1
         +900ms
         < . 1:1(0) ack 1
         write 14600
         > P. 1:2921(2920) ack 1
         > P. 2921:5841(2920) ack 1
         > P. 5841:8761(2920) ack 1
         > P. 8761:11681(2920) ack 1
         > P. 11681:14601(2920) ack 1
         +900ms
         < . 1:1(0) ack 1 <sack 1461:14601>
         > . 1:1461(1460) ack 1
         +900ms
         < . 1:1(0) ack 14601
         +100s",
    );
    assert_eq!(bench.mib.timeouts, 0);
}

/// A window is reduced once, although recovery ends in a timeout.
#[test]
fn a_timeout_during_recovery_reduces_no_further() {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         +220ms
         > . 1:1461(1460) ack 1",
    );
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
}

/// RFC 6582 3.2: duplicate ACKs for data that was sent twice do not begin another recovery.
#[test]
fn without_sack_duplicate_acks_after_recovery_retransmit_nothing() {
    let mut bench = retransmitted_without_sack();
    bench.play(
        "< . 1:1(0) ack 14601
         write 5840
         > P. 14601:18981(4380) ack 1
         > P. 18981:20441(1460) ack 1
         < . 1:1(0) ack 14601
         < . 1:1(0) ack 14601
         < . 1:1(0) ack 14601
         < . 1:1(0) ack 20441",
    );
    assert_eq!((bench.mib.reno_recovery, bench.mib.retrans_segs), (1, 1));
}

/// Returns a connection that has probed the last of ten segments, two of which are unacknowledged.
fn with_tail_probe() -> Bench {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 11681",
    );
    let probe = bench.run_timers_until_output();
    assert!(probe.starts_with("P. 13141:14601(1460)"), "{probe}");
    bench
}

/// RFC 8985 7.4.2: a probe that filled a hole shows that a segment was lost, so cwnd is reduced.
#[test]
fn a_probe_that_recovered_a_loss_reduces_cwnd() {
    let mut bench = with_tail_probe();
    let before = bench.info().tcpi_snd_cwnd;
    bench.play(
        "write 1460
         > P. 14601:16061(1460) ack 1
         +20ms
         < . 1:1(0) ack 16061",
    );
    assert_eq!(
        (bench.mib.loss_probes, bench.mib.loss_probe_recovery),
        (1, 1)
    );
    let info = bench.info();
    assert_eq!(info.tcpi_snd_ssthresh, before * 7 / 10);
    assert_eq!((info.tcpi_snd_cwnd, info.tcpi_ca_state), (12, 0));
}

/// RFC 8985 7.4.2: an ACK up to the probe's end may be for the original or for the probe. A
/// duplicate of it shows that both arrived; an ACK of later data that only one did.
#[test]
fn a_duplicate_ack_after_a_probe_shows_that_both_segments_arrived() {
    for (duplicates, recoveries) in [("< . 1:1(0) ack 14601", 0), ("", 1)] {
        let mut bench = with_tail_probe();
        bench.play(&format!(
            "< . 1:1(0) ack 14601
             write 1460
             > P. 14601:16061(1460) ack 1
             {duplicates}
             +20ms
             < . 1:1(0) ack 16061"
        ));
        assert_eq!(bench.mib.loss_probe_recovery, recoveries);
    }
}

/// RFC 8985 7.2: the probe's timer restarts with each transmission.
#[test]
fn new_data_postpones_the_probe() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting(&setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 2920
         > P. 1:2921(2920) ack 1
         write 2920
         > P. 2921:5841(2920) ack 1
         +30ms
         write 2920
         > P. 5841:8761(2920) ack 1
         +42ms
         > P. 7301:8761(1460) ack 1",
    );
}

/// RFC 9937: at the end of recovery cwnd is ssthresh, however little was in flight before.
#[test]
fn recovery_ends_with_cwnd_at_ssthresh() {
    open().play(
        "+20ms
         < . 1:1(0) ack 1 <sack 8761:14601>
         > P. 1:5841(5840) ack 1
         cwnd = 4
         +20ms
         < . 1:1(0) ack 14601
         cwnd = 7",
    );
}

/// RFC 9937: cwnd allows one segment more for an ACK that advances `snd_una` and shows no further
/// loss, and nothing for an ACK that delivers no data.
#[test]
fn slow_start_in_recovery_needs_progress_without_loss() {
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1461 <sack 8761:14601>
         > . 1461:8761(7300) ack 1
         cwnd = 5",
    );
    let mut bench = open();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 8761:14601>
         > P. 1:5841(5840) ack 1
         cwnd = 4
         +20ms
         < . 1:1(0) ack 2921 <sack 8761:14601>
         > . 5841:8761(2920) ack 1
         cwnd = 5
         < . 1:1(0) ack 2921
         cwnd = 5",
    );
}

/// `tcp_recovery` 0 selects RFC 6675.
#[test]
fn without_rack_three_sacked_segments_start_recovery() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_recovery = 0;
    let mut bench = open_with(&setup);
    bench.play(
        "< . 1:1(0) ack 1 <sack 1461:5841>
         > . 1:1461(1460) ack 1
         cwnd = 7",
    );
    assert_eq!(bench.mib.sack_recovery, 1);
}

fn open_without_sack() -> Bench {
    open_with(&Setup {
        sack: false,
        ..Setup::default()
    })
}

/// RFC 5681 3.2: duplicate ACKs are counted from the last ACK of new data.
#[test]
fn without_sack_duplicate_acks_count_from_the_last_new_ack() {
    let mut bench = open_without_sack();
    bench.play(
        "< . 1:1(0) ack 1
         < . 1:1(0) ack 1
         < . 1:1(0) ack 1461
         < . 1:1(0) ack 1461
         < . 1:1(0) ack 1461
         < . 1:1(0) ack 1461
         > . 1461:2921(1460) ack 1",
    );
    assert_eq!(bench.mib.reno_recovery, 1);
    // The SYN, two duplicates, one segment, three duplicates.
    assert_eq!(bench.info().tcpi_delivered, 7);
}

/// RFC 5681 2: a segment with a FIN is no duplicate ACK.
#[test]
fn without_sack_a_fin_is_no_duplicate_ack() {
    let mut bench = open_without_sack();
    bench.play(
        "< . 1:1(0) ack 1
         < . 1:1(0) ack 1
         < F. 1:1(0) ack 1
         > . 14601:14601(0) ack 2
         < F. 1:1(0) ack 1
         > . 14601:14601(0) ack 2
         < F. 1:1(0) ack 1",
    );
    assert_eq!(bench.mib.reno_recovery, 0);
    assert_eq!(bench.info().tcpi_delivered, 3);
}

/// RFC 6582 3.2: the duplicate ACKs counted during a recovery are discarded at its end.
#[test]
fn without_sack_the_end_of_recovery_clears_the_duplicate_count() {
    let mut bench = open_without_sack();
    let duplicate = "< . 1:1(0) ack 1";
    bench.play(&format!(
        "{duplicate}
         {duplicate}
         {duplicate}
         > . 1:1461(1460) ack 1
         write 5840
         {duplicate}
         > . 14601:16061(1460) ack 1
         {duplicate}
         > . 16061:17521(1460) ack 1
         {duplicate}
         > . 17521:18981(1460) ack 1
         {duplicate}
         > P. 18981:20441(1460) ack 1
         {duplicate}
         {duplicate}
         {duplicate}
         {duplicate}"
    ));
    assert_eq!(bench.info().tcpi_sacked, 11);
    bench.play("< . 1:1(0) ack 14601");
    assert_eq!(bench.info().tcpi_sacked, 0);
}

/// More duplicate ACKs than segments behind the hole show that the path reorders or duplicates.
#[test]
fn without_sack_excess_duplicate_acks_show_reordering() {
    let mut setup = Setup {
        sack: false,
        ..Setup::default()
    };
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::established(&setup);
    bench.play(
        "write 1460
         > P. 1:1461(1460) ack 1
         < . 1:1(0) ack 1",
    );
    assert_eq!(
        (bench.mib.reno_reorder, bench.info().tcpi_reord_seen),
        (1, 1)
    );
}

/// A congestion control with a model of the path receives each loss: without SACK a single one ends
/// BBR's Startup (draft-ietf-ccwg-bbr 5.3.1.3).
#[test]
fn losses_are_reported_to_congestion_control() {
    let mut setup = Setup {
        sack: false,
        ..Setup::default()
    };
    setup.sysctl.tcp_congestion_control = "bbr";
    let mut bench = open_with(&setup);
    let gain = |bench: &Bench| match bench.conn.cc_info() {
        CcInfo::Bbr { pacing_gain, .. } => pacing_gain,
        other => panic!("{other:?}"),
    };
    bench.play(
        "+20ms
         < . 1:1(0) ack 1461
         < . 1:1(0) ack 1461
         < . 1:1(0) ack 1461",
    );
    assert!(gain(&bench) > 2.0);
    bench.deliver(". 1:1(0) ack 1461");
    assert!(gain(&bench) < 1.0);
}

/// RFC 8985 7.4.2: a DSACK for the probe shows that nothing was lost.
#[test]
fn a_probe_received_as_a_duplicate_reduces_nothing() {
    let mut bench = with_tail_probe();
    bench.play(
        "< . 1:1(0) ack 14601 <sack 13141:14601>
         write 1460
         > P. 14601:16061(1460) ack 1
         +20ms
         < . 1:1(0) ack 16061",
    );
    assert_eq!(
        (bench.mib.loss_probes, bench.mib.loss_probe_recovery),
        (1, 0)
    );
    assert!(bench.info().tcpi_snd_ssthresh > 1_000_000);
}
