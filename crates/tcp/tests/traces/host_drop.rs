//! Segments that a queue of the host drops: `Connection::handle_tx_dropped`.

use fullsend_wire::EcnField;

use crate::harness::{Bench, ECN_SETUP, Setup};

/// `tcpi_ca_state`.
const OPEN: u8 = 0;
const DISORDER: u8 = 1;
const CWR: u8 = 2;

/// Returns a connection over a path of 20 ms, whose device completes nothing by itself.
fn open(setup: &Setup) -> Bench {
    let mut bench = Bench::accepting(setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         busy",
    );
    bench
}

fn setup() -> Setup {
    let mut setup = Setup::without_probes();
    setup.sysctl.tcp_min_tso_segs = 100;
    setup
}

/// Returns a connection whose device has completed the first five of ten segments and dropped the
/// others.
fn with_drop() -> Bench {
    let mut bench = open(&setup());
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         complete",
    );
    bench.drop_first(7301, 14_601);
    bench
}

/// A drop by the host reduces cwnd once, as an echoed mark does (RFC 3168 6.1.2). It begins no
/// recovery, because the loss is already known and accounted for.
#[test]
fn a_local_drop_is_one_reduction_and_no_recovery() {
    let mut bench = with_drop();
    assert!(bench.conn.needs_transmit());
    bench.play("> P. 7301:14601(7300) ack 1");
    let info = bench.info();
    assert_eq!((info.tcpi_ca_state, info.tcpi_snd_ssthresh), (CWR, 7));
    assert_eq!(bench.mib.host_drops, 1);
    bench.play(
        "write 1460
         +20ms
         < . 1:1(0) ack 7301
         > P. 14601:16061(1460) ack 1
         +20ms
         < . 1:1(0) ack 16061
         cwnd = 7",
    );
    assert_eq!(bench.info().tcpi_ca_state, OPEN);
    assert_eq!((bench.mib.sack_recovery, bench.mib.host_drops), (0, 1));
}

/// Data that is acknowledged by now was not dropped.
#[test]
fn a_local_drop_of_sacked_data_is_ignored() {
    let mut bench = open(&setup());
    bench.play(
        "write 7300
         > P. 1:7301(7300) ack 1
         < . 1:1(0) ack 7301
         drop 1 7301
         cwnd = 10",
    );
    assert_eq!(
        (bench.mib.host_drops, bench.info().tcpi_ca_state),
        (0, OPEN)
    );
}

/// A second drop does not cancel the retransmissions of the first.
#[test]
fn a_second_local_drop_undoes_nothing() {
    let mut bench = open(&setup());
    bench.play(
        "write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1",
    );
    bench.drop_first(1, 7301);
    bench.drop_first(7301, 14_601);
    bench.play("> P. 1:14601(14600) ack 1");
    assert_eq!(bench.mib.host_drops, 2);
}

/// The reduction ends when the data that was in flight at its beginning is acknowledged. Data
/// dropped since then and not yet retransmitted is still missing.
#[test]
fn the_end_of_cwr_keeps_lost_segments_marked() {
    let mut setup = setup();
    setup.sysctl.tcp_ecn = 2;
    let mut bench = Bench::accepting_syn(&setup, ECN_SETUP, EcnField::NotEct);
    bench.play(
        "> SE. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         busy
         write 14600
         > P. 1:7301(7300) ack 1 ect0
         > P. 7301:14601(7300) ack 1 ect0
         complete
         complete
         +20ms
         < E. 1:1(0) ack 1461
         write 1460
         > PW. 14601:16061(1460) ack 1 ect0
         < . 1:1(0) ack 13141
         set max_pacing_rate 10000
         write 1460
         complete
         > P. 16061:17521(1460) ack 1 ect0
         drop 16061 17521",
    );
    let info = bench.info();
    assert_eq!((info.tcpi_ca_state, info.tcpi_lost), (CWR, 1));
    bench.play("< . 1:1(0) ack 16061");
    let info = bench.info();
    assert_eq!((info.tcpi_lost, info.tcpi_retrans), (1, 0));
    assert_eq!(info.tcpi_ca_state, DISORDER);
}

/// A timeout that proves spurious (RFC 3522 3.2) while another retransmission is in flight does not
/// return the connection to the open state before that one is acknowledged.
#[test]
fn a_retransmission_in_flight_survives_an_undo() {
    let mut setup = setup();
    setup.timestamps = true;
    setup.peer_mss = 1472;
    setup.device.mtu = 1512;
    let mut bench = open(&setup);
    bench.play(
        "write 1460
         > P. 1:1461(1460) ack 1
         complete
         +215ms
         write 2920
         > P. 1461:4381(2920) ack 1
         +5ms
         > P. 1:1461(1460) ack 1
         drop 2921 4381
         > P. 2921:4381(1460) ack 1
         < . 1:1(0) ack 1461 <echo 20>",
    );
    assert_eq!(bench.mib.loss_undo, 1);
    let info = bench.info();
    assert_eq!((info.tcpi_lost, info.tcpi_retrans), (0, 1));
    assert_eq!(info.tcpi_ca_state, DISORDER);
}
