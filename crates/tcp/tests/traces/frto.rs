//! F-RTO (RFC 5682).

use crate::harness::{Bench, Setup};

/// `tcpi_ca_state`: `TCP_CA_Open`, `TCP_CA_Loss`.
const OPEN: u8 = 0;
const LOSS: u8 = 4;

/// Returns a connection over a path of 20 ms, without tail loss probes.
fn open(sack: bool, tcp_frto: u32) -> Bench {
    let mut setup = Setup {
        sack,
        ..Setup::without_probes()
    };
    setup.sysctl.tcp_min_tso_segs = 100;
    setup.sysctl.tcp_frto = tcp_frto;
    open_with(&setup)
}

fn open_with(setup: &Setup) -> Bench {
    let mut bench = Bench::accepting(setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1",
    );
    bench
}

/// Returns a connection with ten segments in flight.
fn sending(sack: bool, tcp_frto: u32) -> Bench {
    let mut bench = open(sack, tcp_frto);
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1",
    );
    bench
}

/// Returns a connection after a timeout of ten segments: the first was retransmitted and
/// acknowledged, and two new ones were sent (2b).
fn timed_out() -> Bench {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::established(&setup);
    bench.play(
        "set nodelay 1
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         +200ms
         > . 1:1461(1460) ack 1
         write 7300
         < . 1:1(0) ack 1461
         > . 14601:16061(1460) ack 1
         > . 16061:17521(1460) ack 1",
    );
    bench
}

/// (3b): a segment that was sent only once arrives, so the timeout was spurious.
#[test]
fn an_ack_of_an_original_undoes_the_timeout() {
    let mut bench = timed_out();
    bench.deliver(". 1:1(0) ack 1461 <sack 11681:13141>");
    assert_eq!(bench.mib.spurious_rtos, 1);
}

/// (3a): a duplicate ACK for the new data proves the loss. An original that arrives after it
/// changes nothing: recovery goes on.
#[test]
fn a_dsack_of_new_data_undoes_nothing() {
    let mut bench = timed_out();
    bench.deliver(". 1:1(0) ack 1461 <sack 14601:16061>");
    bench.next_out();
    bench.deliver(". 1:1(0) ack 1461 <sack 11681:13141,sack 14601:16061>");
    assert_eq!((bench.mib.spurious_rtos, bench.mib.loss_undo), (0, 0));
    // TCP_CA_Recovery or TCP_CA_Loss.
    assert!(bench.info().tcpi_ca_state >= 3);
}

/// (3a): the duplicate ACK after the new data has a SACK block, or repeats the acknowledgement. A
/// window update alone is no duplicate ACK (RFC 5681 2).
#[test]
fn only_a_duplicate_ack_proves_the_loss() {
    for (ack, spurious) in [
        (". 1:1(0) ack 1461 win 60000 <sack 14601:16061>", 0),
        (". 1:1(0) ack 1461", 0),
        (". 1:1(0) ack 1461 win 60000", 1),
    ] {
        let mut bench = timed_out();
        bench.deliver(ack);
        while bench.next_out().is_some() {}
        bench.deliver(". 1:1(0) ack 1461 <sack 11681:13141>");
        assert_eq!(bench.mib.spurious_rtos, spurious, "{ack}");
    }
}

/// Without SACK (2): an ACK of the retransmission leaves open whether the originals arrived; (3b):
/// an ACK of more data shows that they did.
#[test]
fn without_sack_the_second_ack_decides() {
    let mut bench = sending(false, 2);
    bench.play(
        "+220ms
         > . 1:1461(1460) ack 1
         write 5840
         < . 1:1(0) ack 4381
         > P. 14601:17521(2920) ack 1
         > P. 17521:20441(2920) ack 1",
    );
    assert_eq!(
        (bench.mib.spurious_rtos, bench.info().tcpi_ca_state),
        (0, LOSS)
    );
    bench.play("< . 1:1(0) ack 5841");
    assert_eq!(
        (bench.mib.spurious_rtos, bench.info().tcpi_ca_state),
        (1, OPEN)
    );
}

/// Without SACK (3a): the duplicate ACK after the new data counts as a segment received.
#[test]
fn without_sack_a_duplicate_after_a_timeout_counts() {
    let mut bench = sending(false, 2);
    bench.play(
        "+220ms
         > . 1:1461(1460) ack 1
         write 2920
         < . 1:1(0) ack 1461
         > . 14601:16061(1460) ack 1
         > P. 16061:17521(1460) ack 1
         < . 1:1(0) ack 1461
         > . 1461:2921(1460) ack 1",
    );
    assert_eq!(bench.info().tcpi_sacked, 1);
}

/// Without SACK a duplicate ACK counts until new data is acknowledged, also where (2b) sends
/// nothing because there is no data or the window is full.
#[test]
fn an_ack_after_a_timeout_discards_duplicate_acks() {
    for (window, more) in [(65_535, 1460), (2920, 2920)] {
        let mut setup = Setup {
            sack: false,
            wscale: None,
            peer_window: window,
            ..Setup::without_probes()
        };
        setup.sysctl.tcp_min_tso_segs = 100;
        let mut bench = open_with(&setup);
        bench.play("write 1460\n> P. 1:1461(1460) ack 1\n+210ms");
        assert!(bench.try_write(more));
        while bench.next_out().is_some() {}
        bench.play(
            "+10ms
             > P. 1:1461(1460) ack 1
             < . 1:1(0) ack 1",
        );
        assert_eq!(bench.info().tcpi_sacked, 1);
        let left = if more == 2920 { 1460 } else { window };
        bench.play(&format!("< . 1:1(0) ack 1461 win {left}"));
        assert_eq!(bench.info().tcpi_sacked, 0, "{window}");
    }
}

/// When all data that was in flight at the timeout is acknowledged, the recovery ends.
#[test]
fn a_timeout_of_all_data_in_flight_ends_with_its_ack() {
    let mut bench = open(true, 2);
    bench.play(
        "write 1460
         > P. 1:1461(1460) ack 1
         +220ms
         > P. 1:1461(1460) ack 1
         write 5840
         < . 1:1(0) ack 1461
         > . 1461:2921(1460) ack 1
         > . 2921:4381(1460) ack 1",
    );
    assert_eq!(bench.info().tcpi_ca_state, OPEN);
}

/// (2b) needs new data that may be sent. `TCP_CORK` holds it back, so the next segments are
/// retransmitted.
#[test]
fn frto_retransmits_where_no_new_data_may_be_sent() {
    sending(true, 2).play(
        "+220ms
         > . 1:1461(1460) ack 1
         set cork 1
         write 100
         < . 1:1(0) ack 1461
         > P. 1461:4381(2920) ack 1",
    );
}

/// RFC 5682 2.1 (1) and Linux: F-RTO is not used for a timeout in fast recovery, is used for one
/// that repeats, and never with `tcp_frto` 0.
#[test]
fn frto_runs_only_for_some_timeouts() {
    let mut bench = sending(true, 2);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         +220ms
         > . 1:1461(1460) ack 1
         write 5840
         < . 1:1(0) ack 7301
         > P. 7301:10221(2920) ack 1",
    );
    let mut bench = sending(true, 2);
    bench.play(
        "+220ms
         > . 1:1461(1460) ack 1
         +440ms
         > . 1:1461(1460) ack 1
         write 5840
         < . 1:1(0) ack 1461
         > . 14601:16061(1460) ack 1
         > . 16061:17521(1460) ack 1",
    );
    let mut bench = sending(true, 0);
    bench.play(
        "+220ms
         > . 1:1461(1460) ack 1
         write 5840
         < . 1:1(0) ack 1461
         > P. 1461:4381(2920) ack 1",
    );
}
