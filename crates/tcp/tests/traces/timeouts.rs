//! Retransmission timeouts and the recovery after them: RFC 5681 3.1, RFC 6298, RFC 8985 6.3.

use crate::harness::{Bench, Setup};

/// `tcpi_ca_state`.
const RECOVERY: u8 = 3;
const LOSS: u8 = 4;

/// Returns a setup without tail loss probes and with whole bursts.
fn setup() -> Setup {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_min_tso_segs = 100;
    setup
}

/// Returns a connection over a path of 20 ms, without Nagle's algorithm.
fn open(setup: &Setup) -> Bench {
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
fn sending(setup: &Setup) -> Bench {
    let mut bench = open(setup);
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1",
    );
    bench
}

fn ssthresh(bench: &mut Bench) -> u32 {
    bench.info().tcpi_snd_ssthresh
}

/// RFC 5681 3.1: a further timeout of the same segment does not reduce ssthresh again; a timeout
/// after an ACK of new data does.
#[test]
fn ssthresh_is_reduced_once_for_each_window_that_times_out() {
    let mut setup = setup();
    setup.sysctl.tcp_frto = 0;
    let mut bench = sending(&setup);
    bench.play("+220ms\n> . 1:1461(1460) ack 1");
    assert_eq!(ssthresh(&mut bench), 7);
    bench.play("+440ms\n> . 1:1461(1460) ack 1");
    assert_eq!(ssthresh(&mut bench), 7);
    let mut bench = sending(&setup);
    bench.play(
        "+220ms
         > . 1:1461(1460) ack 1
         +20ms
         < . 1:1(0) ack 1461
         > P. 1461:4381(2920) ack 1
         +440ms
         > . 1461:2921(1460) ack 1",
    );
    assert_eq!(ssthresh(&mut bench), 2);
}

/// RFC 8985 6.3: a segment sent less than a round trip ago may still arrive.
#[test]
fn recently_sent_segments_are_not_marked_lost_by_a_timeout() {
    let mut bench = open(&setup());
    bench.play(
        "write 1460
         > P. 1:1461(1460) ack 1
         +210ms
         write 1460
         > P. 1461:2921(1460) ack 1
         +10ms
         > P. 1:1461(1460) ack 1
         cwnd = 2",
    );
    assert_eq!(bench.info().tcpi_lost, 1);
}

/// Returns a connection over a path known to reorder, with ten segments in flight, so that six
/// duplicate ACKs instead of three show a loss.
fn reordered() -> Bench {
    let mut setup = setup();
    setup.sysctl.tcp_recovery = 0;
    let mut bench = sending(&setup);
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 7301:8761>
         < . 1:1(0) ack 1 <sack 1461:2921,sack 7301:8761>
         < . 1:1(0) ack 14601
         write 14600
         > P. 14601:27741(13140) ack 1
         > P. 27741:29201(1460) ack 1",
    );
    assert_eq!(bench.info().tcpi_reordering, 6);
    bench
}

/// RFC 5681 3.1 and Linux: a timeout after three duplicate ACKs shows that they were not
/// reordering.
#[test]
fn a_timeout_after_duplicate_acks_resets_the_reordering_threshold() {
    let mut bench = reordered();
    bench.play(
        "+20ms
         < . 1:1(0) ack 14601 <sack 16061:20441>
         +200ms
         > . 14601:16061(1460) ack 1",
    );
    let info = bench.info();
    assert_eq!((info.tcpi_reordering, info.tcpi_ca_state), (3, LOSS));
    // One reduction of a window of 22 segments.
    assert_eq!(info.tcpi_snd_ssthresh, 15);
    // Without duplicate ACKs a timeout does not change the threshold.
    let mut bench = reordered();
    bench.play("+220ms\n> . 14601:16061(1460) ack 1");
    assert_eq!(bench.info().tcpi_reordering, 6);
}

/// The loss of a retransmission after a timeout is detected by the delivery of later segments (RFC
/// 8985 6.2).
#[test]
fn a_lost_retransmission_after_a_timeout_starts_recovery() {
    let mut bench = sending(&setup());
    bench.play(
        "+220ms
         > . 1:1461(1460) ack 1
         +20ms
         < . 1:1(0) ack 1461
         > P. 1461:4381(2920) ack 1
         +20ms
         < . 1:1(0) ack 1461 <sack 2921:4381>
         > . 1461:2921(1460) ack 1",
    );
    assert_eq!(bench.info().tcpi_ca_state, RECOVERY);
    assert_eq!((bench.mib.lost_retransmit, bench.mib.sack_recovery), (1, 1));
}

/// A path with a smaller MTU (RFC 1191) is not congested.
#[test]
fn segments_above_the_path_mtu_are_retransmitted_without_a_reduction() {
    let mut bench = sending(&setup());
    bench.play(
        "too_big 1 1000
         > P. 1:7301(7300) ack 1
         > P. 7301:9221(1920) ack 1
         cwnd = 10",
    );
    let info = bench.info();
    assert_eq!(info.tcpi_ca_state, LOSS);
    assert!(info.tcpi_snd_ssthresh > 1_000_000);
    // In recovery it changes neither cwnd nor the state.
    let mut bench = sending(&setup());
    bench.play(
        "+20ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         too_big 1 1000
         > P. 1:1921(1920) ack 1
         > P. 7301:12101(4800) ack 1
         cwnd = 7",
    );
    assert_eq!(bench.info().tcpi_ca_state, RECOVERY);
}

/// A second timeout of a Fast Open server's SYN-ACK sets cwnd to one segment. The handshake's last
/// ACK undoes that if it shows that the first SYN-ACK was merely late (RFC 3522 3.2).
#[test]
fn a_late_syn_ack_of_a_fast_open_server_causes_no_reduction() {
    let mut setup = setup();
    setup.timestamps = true;
    let mut bench = Bench::accepting_fast_open(&setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +1s
         > S. 0:0(0) ack 1
         +2s
         > S. 0:0(0) ack 1
         +100ms
         < . 1:1(0) ack 1 <echo 0>
         cwnd = 10",
    );
    assert_eq!(bench.mib.loss_undo, 1);
    // A SYN-ACK that did not time out leaves nothing to undo.
    let mut bench = Bench::accepting_fast_open(&setup);
    bench.play("> S. 0:0(0) ack 1\n< . 1:1(0) ack 1");
    assert_eq!(bench.mib.loss_undo, 0);
}

/// RFC 8985 7.2: the probe is sent no later than the timeout would fire, but a timeout that is
/// overdue does not make the probe due.
#[test]
fn a_late_rto_is_not_replaced_by_a_probe() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = open(&setup);
    bench.play(
        "write 1460
         > P. 1:1461(1460) ack 1
         late 220ms
         write 1460
         > P. 1461:2921(1460) ack 1",
    );
    let now = bench.now();
    let at = bench.conn.poll_deadline().expect("a timer");
    // Two round trips and the margin for coarse clocks.
    assert_eq!(at.since(now).as_millis(), 42);
}
