//! Duplicate SACKs (RFC 2883), and which of them count (RFC 3708).

use crate::harness::{Bench, Setup};

/// Returns a connection over a path of 20 ms, without tail loss probes and with whole bursts.
fn open(setup: Setup) -> Bench {
    let mut setup = setup;
    setup.sysctl.tcp_early_retrans = 0;
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting(&setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1",
    );
    bench
}

/// Returns a connection with ten segments in flight, the first of which was retransmitted.
fn recovered() -> Bench {
    let mut bench = open(Setup::default());
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         +20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1",
    );
    bench
}

/// RFC 2883 4: a DSACK is a first block to the left of the acknowledgement or within the second
/// block.
#[test]
fn dsacks_are_counted_by_the_position_of_the_duplicate() {
    let mut bench = recovered();
    bench.play("< . 1:1(0) ack 1 <sack 2921:4381,sack 1461:7301>");
    let mib = &bench.mib;
    assert_eq!((mib.dsack_recv, mib.dsack_ofo_recv), (0, 1));
    assert_eq!((mib.dsack_recv_segs, mib.dsack_ignored_dubious), (1, 0));
    let mut bench = recovered();
    bench.play("< . 1:1(0) ack 7301\n< . 1:1(0) ack 7301 <sack 1:1461>");
    let mib = &bench.mib;
    assert_eq!((mib.dsack_recv, mib.dsack_ofo_recv), (1, 0));
    assert_eq!((mib.dsack_recv_segs, mib.dsack_ignored_dubious), (1, 0));
}

/// RFC 3708 3: more duplicates than retransmissions were made by the network or forged by the peer.
#[test]
fn more_duplicates_than_retransmissions_do_not_count() {
    let mut bench = recovered();
    bench.play("< . 1:1(0) ack 14601\n< . 1:1(0) ack 14601 <sack 1:2921>");
    assert_eq!(bench.mib.dsack_ignored_dubious, 1);
    assert_eq!((bench.mib.dsack_recv_segs, bench.mib.dsack_undo), (0, 0));
}

/// A DSACK for more data than the largest window holds is ignored.
#[test]
fn a_duplicate_larger_than_the_largest_window_does_not_count() {
    for (start, dubious) in [(1461, 1), (1462, 0)] {
        let mut bench = open(Setup {
            wscale: None,
            peer_window: 2920,
            ..Setup::default()
        });
        bench.play(
            "write 2920
             > P. 1:2921(2920) ack 1
             +220ms
             > . 1:1461(1460) ack 1
             +440ms
             > . 1:1461(1460) ack 1
             +880ms
             > . 1:1461(1460) ack 1
             < . 1:1(0) ack 2921
             write 1460
             > P. 2921:4381(1460) ack 1
             < . 1:1(0) ack 4381",
        );
        let start = start - 1;
        bench.play(&format!("< . 1:1(0) ack 4381 <sack {start}:4381>"));
        assert_eq!(bench.mib.dsack_ignored_dubious, dubious, "{start}");
    }
}

/// RFC 8985 6.2 step 4: a DSACK widens the reordering window only where reordering was seen. The
/// timer for the hole is set to a quarter of the round trip and the margin for coarse clocks.
#[test]
fn without_reordering_a_dsack_does_not_widen_the_reordering_window() {
    let mut bench = recovered();
    bench.play(
        "< . 1:1(0) ack 14601
         < . 1:1(0) ack 14601 <sack 1:1461>
         write 2920
         > P. 14601:17521(2920) ack 1
         +20ms
         < . 1:1(0) ack 14601 <sack 16061:17521>
         +7ms
         > . 14601:16061(1460) ack 1",
    );
    assert_eq!((bench.mib.dsack_recv, bench.info().tcpi_reord_seen), (1, 0));
}

/// A tail loss probe counts as a retransmission of the recovery that follows it (RFC 3708 3), which
/// is undone only when both are reported as duplicates.
#[test]
fn undo_needs_a_dsack_for_a_probe_before_recovery_too() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting(&setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         +42ms
         > P. 13141:14601(1460) ack 1
         < . 1:1(0) ack 1 <sack 1461:14601>
         > . 1:1461(1460) ack 1
         < . 1:1(0) ack 14601
         < . 1:1(0) ack 14601 <sack 1:1461>",
    );
    assert_eq!(bench.mib.dsack_undo, 0);
    bench.play("< . 1:1(0) ack 14601 <sack 13141:14601>");
    assert_eq!(bench.mib.dsack_undo, 1);
}
