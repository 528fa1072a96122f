//! Undoing reductions that prove unnecessary: RFC 3522, RFC 4015, RFC 3708.

use fullsend_wire::{EcnField, Nanos};

use crate::harness::{Bench, ECN_SETUP, Setup};

/// Returns a connection over a path of 10 ms with ten segments in flight, 10 ms after the
/// beginning.
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
fn an_old_timestamp_echo_shows_that_the_original_arrived() {
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
    // Nothing behind it was SACKed, so its delay does not show reordering.
    assert_eq!((bench.mib.ts_reorder, bench.info().tcpi_reord_seen), (0, 0));
    assert!(bench.info().tcpi_snd_ssthresh > 1_000_000);
}

#[test]
fn a_timestamp_echo_of_the_retransmission_confirms_the_loss() {
    let mut bench = open(true);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         +20ms
         < . 1:1(0) ack 7301 <echo 30>
         # RFC 8985 6.2 step 5: it was sent before the retransmission that arrived.
         > P. 7301:13141(5840) ack 1
         < . 1:1(0) ack 14601 <echo 30>",
    );
    assert_eq!(bench.mib.full_undo, 0);
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
}

#[test]
fn a_delay_longer_than_the_timeout_is_undone() {
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
fn dsacks_of_every_retransmission_undo_the_reduction() {
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

/// RFC 2883 4.1: the ACK of the retransmission was lost, so that the ACK that first acknowledges the data
/// also reports the duplicate.
#[test]
fn a_duplicate_that_the_ack_acknowledges_first_undoes_the_reduction() {
    let mut bench = open(false);
    bench.play(
        "+10ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 14601 <sack 1:1461>
         cwnd = 16",
    );
    assert_eq!((bench.mib.dsack_recv, bench.mib.full_undo), (1, 1));
}

/// Data that was never retransmitted did not arrive twice because of us.
#[test]
fn a_duplicate_of_data_sent_once_undoes_nothing() {
    let mut bench = open(false);
    bench.play(
        "+10ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 14601 <sack 7301:8761>
         cwnd = 7",
    );
    let undone = bench.mib.full_undo + bench.mib.dsack_undo;
    assert_eq!((bench.mib.dsack_recv, undone), (1, 0));
}

/// RFC 2883 4: a duplicate above the cumulative ACK counts, too.
#[test]
fn duplicates_above_the_cumulative_ack_count() {
    for (above, undone) in [(true, 1), (false, 0)] {
        let mut bench = open(false);
        bench.play(
            "+10ms
             < . 1:1(0) ack 1 <sack 2921:14601>
             > P. 1:2921(2920) ack 1
             < . 1:1(0) ack 1 <sack 1461:14601>",
        );
        if above {
            bench.play("< . 1:1(0) ack 1 <sack 1461:2921,sack 1461:14601>");
        }
        bench.play(
            "< . 1:1(0) ack 14601
             < . 1:1(0) ack 14601 <sack 1:1461>",
        );
        assert_eq!(bench.mib.dsack_undo, undone, "{above}");
    }
}

#[test]
fn a_dsack_of_an_earlier_duplicate_undoes_nothing() {
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

/// Returns a connection over a path of 10 ms that has shown reordering, with two segments in
/// flight, the first of which was retransmitted, and the age of the retransmission's TSval in ms.
fn recovered_on_a_reordering_path() -> (Bench, u32) {
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
    assert!(bench.run_next_timer(), "it is late, not lost");
    let (again, second) = val(&mut bench);
    assert_eq!(again, seq);
    let elapsed = bench.now().since(sent).as_millis() as u32;
    (bench, elapsed - (second - first))
}

/// With an older TSval the peer accepts the originals that a retransmission overtakes (RFC 7323
/// 5.3).
#[test]
fn after_reordering_a_retransmissions_timestamp_is_half_a_round_trip_old() {
    let (mut bench, age) = recovered_on_a_reordering_path();
    assert_eq!(age, 5);
    // Its echo confirms the loss, and gives no round-trip sample.
    let before = bench.info().tcpi_rtt;
    bench.play(
        "+10ms
         < . 1:1(0) ack 17521 <echo 30>",
    );
    let undone = bench.mib.full_undo + bench.mib.partial_undo;
    assert_eq!((undone, bench.info().tcpi_rtt), (0, before));
}

#[test]
fn an_echo_of_the_original_still_undoes_with_a_backdated_timestamp() {
    let (mut bench, _) = recovered_on_a_reordering_path();
    bench.play("< . 1:1(0) ack 17521 <echo 20>");
    assert_eq!(bench.mib.full_undo + bench.mib.partial_undo, 1);
}

/// RFC 3522 3.2, applied to the ACK that ends a recovery.
#[test]
fn an_old_echo_at_the_end_of_a_recovery_undoes_it() {
    let mut bench = open(true);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         +5ms
         < . 1:1(0) ack 14601 <echo 10>",
    );
    assert_eq!((bench.mib.full_undo, bench.mib.loss_undo), (1, 0));
    assert_eq!(bench.info().tcpi_ca_state, 0);
}

/// A TSecr of 0 is no echo, so it does not show that an original arrived.
#[test]
fn an_echo_of_0_undoes_nothing() {
    let mut bench = open(true);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         +5ms
         < . 1:1(0) ack 7301 <no-echo>
         +5ms
         < . 1:1(0) ack 14601 <no-echo>
         cwnd = 7",
    );
    assert_eq!((bench.mib.partial_undo, bench.mib.full_undo), (0, 0));
}

/// RFC 3168 6.1.2: a mark requires the reduction, even if an echo shows that the loss was spurious.
#[test]
fn a_reduction_caused_by_ecn_is_not_undone() {
    let mut setup = Setup {
        timestamps: true,
        peer_mss: 1472,
        ..Setup::default()
    };
    setup.device.mtu = 1512;
    setup.sysctl.tcp_ecn = 2;
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting_syn(&setup, ECN_SETUP, EcnField::NotEct);
    bench.play(
        "> SE. 0:0(0) ack 1
         +10ms
         < . 1:1(0) ack 1
         set nodelay 1",
    );
    bench.send_ten();
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         < E. 1:1(0) ack 1 <sack 1461:8761>
         +5ms
         < . 1:1(0) ack 14601 <echo 10>
         cwnd = 7",
    );
    assert_eq!(bench.mib.full_undo, 0);
}

/// Undoing the second of two reductions, of a window that had grown beyond the first one's
/// ssthresh, restores cwnd, which is larger than ssthresh.
#[test]
fn an_undone_recovery_leaves_cwnd_above_ssthresh() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_congestion_control = "reno";
    let mut bench = open_with(true, setup);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 14601 <echo 30>
         cwnd = 6
         write 7300
         > P. 14601:18981(4380) ack 1
         > P. 18981:21901(2920) ack 1
         +10ms
         < . 1:1(0) ack 21901 <echo 30>
         write 8760
         > P. 21901:26281(4380) ack 1
         > P. 26281:30661(4380) ack 1
         +10ms
         < . 1:1(0) ack 21901 <sack 23361:30661>
         > . 21901:23361(1460) ack 1
         cwnd = 3
         +5ms
         < . 1:1(0) ack 30661 <echo 40>
         cwnd = 6",
    );
    assert_eq!(
        (bench.mib.full_undo, bench.info().tcpi_snd_ssthresh),
        (1, 5)
    );
}

/// While other retransmissions are in flight it is unknown whether they were needed: a late
/// original shows reordering, and nothing is undone.
#[test]
fn a_late_original_with_retransmissions_in_flight_shows_reordering_only() {
    let mut bench = open(true);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:2921,sack 7301:11681>
         > . 1:1461(1460) ack 1
         > P. 2921:7301(4380) ack 1
         +5ms
         < . 1:1(0) ack 2921 <echo 10,sack 7301:11681>",
    );
    assert_eq!((bench.mib.ts_reorder, bench.mib.partial_undo), (1, 0));
    // From the first segment to the end of the SACKed data.
    assert_eq!(bench.info().tcpi_reordering, 8);
}

/// The ACK that undoes a recovery shows that other segments are lost, which begins another
/// recovery.
#[test]
fn an_undo_does_not_hide_other_losses() {
    let mut bench = open(true);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         write 1460
         > P. 14601:16061(1460) ack 1
         +5ms
         < . 1:1(0) ack 7301 <echo 10,sack 14601:16061>
         > P. 7301:10221(2920) ack 1",
    );
    assert_eq!((bench.mib.partial_undo, bench.mib.sack_recovery), (1, 2));
}

/// An old echo shows that a timeout was spurious. With SACK the recovery ends; without SACK RFC
/// 6582 3.2 keeps it, because duplicate ACKs for data that was sent twice will follow.
#[test]
fn with_sack_an_old_echo_ends_the_loss_state() {
    for (sack, ack, phase) in [(true, 14_601, 0), (true, 2921, 0), (false, 2921, 4)] {
        let setup = Setup {
            sack,
            ..Setup::without_probes()
        };
        let mut bench = open_with(true, setup);
        bench.play("+210ms\n> . 1:1461(1460) ack 1\n+5ms");
        bench.play(&format!("< . 1:1(0) ack {ack} <echo 10>"));
        assert_eq!(bench.mib.loss_undo, 1, "{sack} {ack}");
        assert_eq!(bench.info().tcpi_ca_state, phase, "{sack} {ack}");
    }
}

/// Without SACK the recovery after a timeout lasts until new data is acknowledged (RFC 6582 3.2),
/// and until then an old echo undoes it.
#[test]
fn without_sack_a_late_echo_still_undoes_a_timeout() {
    let mut setup = Setup {
        sack: false,
        ..Setup::without_probes()
    };
    setup.sysctl.tcp_frto = 0;
    let mut bench = open_with(true, setup);
    bench.play(
        "+210ms
         > . 1:1461(1460) ack 1
         +5ms
         < . 1:1(0) ack 14601 <echo 220>",
    );
    assert_eq!((bench.mib.loss_undo, bench.info().tcpi_ca_state), (0, 4));
    bench.play(
        "write 1460
         > P. 14601:16061(1460) ack 1
         < . 1:1(0) ack 14601 <echo 10>",
    );
    assert_eq!((bench.mib.loss_undo, bench.mib.full_undo), (1, 0));
}

/// Sends five segments, and delivers `segments` 10 ms later. Returns the age in ms of the TSval of
/// the retransmission that these cause.
fn age_of_a_retransmission(bench: &mut Bench, segments: &[&str]) -> u32 {
    assert!(bench.try_write(7300));
    let val = |bench: &mut Bench| {
        let segment = bench.next_out().expect("a segment");
        segment.repr.options.timestamps.expect("timestamps").val
    };
    let first = val(bench);
    while bench.next_out().is_some() {}
    bench.advance(Nanos::from_millis(10));
    for segment in segments {
        bench.deliver(segment);
    }
    10 - val(bench).wrapping_sub(first)
}

/// RFC 7323 3.1: without reordering, or without SACK, the TSval is the time of the clock.
#[test]
fn without_reordering_or_sack_a_retransmission_has_the_current_timestamp() {
    let mut bench = open_with(true, Setup::without_probes());
    bench.play("+10ms\n< . 1:1(0) ack 14601 <echo 10>");
    let hole = ". 1:1(0) ack 14601 <sack 16061:21901>";
    assert_eq!(age_of_a_retransmission(&mut bench, &[hole]), 0);
    assert_eq!(bench.info().tcpi_reord_seen, 0);
    let setup = Setup {
        sack: false,
        ..Setup::without_probes()
    };
    let mut bench = open_with(true, setup);
    // A duplicate ACK without a cause.
    bench.play(
        "+10ms
         < . 1:1(0) ack 14601 <echo 10>
         write 1460
         > P. 14601:16061(1460) ack 1
         < . 1:1(0) ack 14601
         +10ms
         < . 1:1(0) ack 16061 <echo 20>",
    );
    assert_eq!(bench.info().tcpi_reord_seen, 1);
    let duplicate = ". 1:1(0) ack 16061";
    assert_eq!(age_of_a_retransmission(&mut bench, &[duplicate; 3]), 0);
}
