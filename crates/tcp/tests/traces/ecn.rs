//! Explicit congestion notification (RFC 3168).

use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpFlags;

use crate::harness::{Bench, ECN_SETUP, Setup};

fn setup(tcp_ecn: u32) -> Setup {
    let mut setup = Setup::default();
    setup.sysctl.tcp_ecn = tcp_ecn;
    setup
}

/// Returns a connection that granted the peer's request for ECN.
fn accepted() -> Bench {
    let mut bench = Bench::accepting_syn(&setup(2), ECN_SETUP, EcnField::NotEct);
    bench.play(
        "> SE. 0:0(0) ack 1
         < . 1:1(0) ack 1
         set nodelay 1",
    );
    bench
}

/// Returns an accepted connection with ten segments in flight.
fn sending() -> Bench {
    let mut bench = accepted();
    bench.send_ten();
    bench
}

/// 6.1.1: ECN is requested by ECE and CWR and granted by ECE alone; neither SYN is ECN-capable.
#[test]
fn the_client_requests_ecn_if_the_sysctl_says_so() {
    let mut bench = Bench::connecting(&setup(1));
    bench.play(
        "> SEW 0:0(0)
         < SE. 0:0(0) ack 1
         > . 1:1(0) ack 1
         write 100
         > P. 1:101(100) ack 1 ect0",
    );
    assert_eq!(bench.info().tcpi_options & 8, 8);
    for tcp_ecn in [0, 2] {
        Bench::connecting(&setup(tcp_ecn)).play(
            "> S 0:0(0)
             < SE. 0:0(0) ack 1
             > . 1:1(0) ack 1
             write 100
             > P. 1:101(100) ack 1",
        );
    }
}

/// 6.1.1: a SYN-ACK without ECE, or with both flags, does not grant ECN.
#[test]
fn without_ece_in_the_syn_ack_ecn_is_off() {
    for answer in ["S.", "SEW.", "SW."] {
        let mut bench = Bench::connecting(&setup(1));
        bench.play(&format!(
            "> SEW 0:0(0)
             < {answer} 0:0(0) ack 1
             > . 1:1(0) ack 1
             write 100
             > P. 1:101(100) ack 1
             < E. 1:1(0) ack 101
             cwnd = 10"
        ));
        assert_eq!(bench.info().tcpi_options & 8, 0);
    }
}

/// 6.1.1.1: firewalls may drop a SYN that requests ECN.
#[test]
fn a_retransmitted_syn_does_not_request_ecn() {
    let mut bench = Bench::connecting(&setup(1));
    bench.play(
        "> SEW 0:0(0)
         +1s
         > S 0:0(0)
         < S. 0:0(0) ack 1
         > . 1:1(0) ack 1
         write 100
         > P. 1:101(100) ack 1",
    );
    // The SYN-ACK may answer the first SYN.
    Bench::connecting(&setup(1)).play(
        "> SEW 0:0(0)
         +1s
         > S 0:0(0)
         < SE. 0:0(0) ack 1
         > . 1:1(0) ack 1
         write 100
         > P. 1:101(100) ack 1 ect0",
    );
    let mut stubborn = setup(1);
    stubborn.sysctl.tcp_ecn_fallback = false;
    Bench::connecting(&stubborn).play("> SEW 0:0(0)\n+1s\n> SEW 0:0(0)");
}

#[test]
fn the_server_grants_ecn_unless_the_sysctl_forbids() {
    accepted();
    Bench::accepting_syn(&setup(0), ECN_SETUP, EcnField::NotEct).play("> S. 0:0(0) ack 1");
    // RFC 3168 forbids an ECN-capable SYN, so one with ECT was altered on the path.
    Bench::accepting_syn(&setup(1), ECN_SETUP, EcnField::Ect0).play("> S. 0:0(0) ack 1");
    Bench::accepting_syn(&setup(1), TcpFlags::SYN, EcnField::NotEct).play("> S. 0:0(0) ack 1");
}

/// Both ends open at once, and both request ECN.
#[test]
fn simultaneous_open_negotiates_ecn() {
    Bench::connecting(&setup(1)).play(
        "> SEW 0:0(0)
         < SEW 0:0(0)
         > SE. 0:0(0) ack 1
         < SE. 0:0(0) ack 1
         write 100
         > P. 1:101(100) ack 1 ect0",
    );
}

/// 6.1.4 and 6.1.5: ACKs, retransmissions and a FIN without data are not ECN-capable.
#[test]
fn only_new_data_is_ecn_capable() {
    let mut bench = accepted();
    bench.play(
        "< P. 1:101(100) ack 1 ect0
         > . 1:1(0) ack 101
         read 100
         write 1000
         > P. 1:1001(1000) ack 101 ect0",
    );
    // The retransmission timer sends no new data.
    let again = bench.run_timers_until_output();
    assert!(again.starts_with("P. 1:1001(1000) ack 101 |"), "{again}");
    bench.play(
        "< . 101:101(0) ack 1001
         shutdown
         > F. 1001:1001(0) ack 101",
    );
}

/// 6.1.3: a mark is echoed at once, and with every segment until CWR arrives.
#[test]
fn a_mark_is_echoed_until_the_peer_sends_cwr() {
    let mut bench = accepted();
    bench.play(
        "< P. 1:1461(1460) ack 1 ect0
         > . 1:1(0) ack 1461
         < P. 1461:2921(1460) ack 1 ce
         > E. 1:1(0) ack 2921
         < P. 2921:4381(1460) ack 1 ect0
         > E. 1:1(0) ack 4381
         write 100
         > PE. 1:101(100) ack 4381 ect0
         < PW. 4381:5841(1460) ack 101 ect0
         > . 101:101(0) ack 5841
         < P. 5841:7301(1460) ack 101 ect0
         > . 101:101(0) ack 7301",
    );
    assert_eq!(bench.info().tcpi_options & 16, 16);
}

/// The segment with CWR may itself be marked, which starts a new echo (6.1.3).
#[test]
fn cwr_and_ce_on_one_segment_start_a_new_echo() {
    accepted().play(
        "< P. 1:1461(1460) ack 1 ce
         > E. 1:1(0) ack 1461
         < PW. 1461:2921(1460) ack 1 ce
         > E. 1:1(0) ack 2921
         < PW. 2921:4381(1460) ack 1 ect0
         > . 1:1(0) ack 4381",
    );
}

/// 6.1.3: a mark on data out of order is echoed, too.
#[test]
fn a_mark_on_out_of_order_data_is_echoed() {
    accepted().play(
        "< P. 1461:2921(1460) ack 1 ce
         > E. 1:1(0) ack 1
         < P. 1:1461(1460) ack 1 ect0
         > E. 1:1(0) ack 2921",
    );
}

/// CE on a pure ACK is ignored: pure ACKs are not ECN-capable (6.1.4).
#[test]
fn a_mark_without_data_is_not_echoed() {
    accepted().play(
        "< . 1:1(0) ack 1 ce
         < P. 1:1461(1460) ack 1 ect0
         > . 1:1(0) ack 1461",
    );
}

/// 6.1.2: an echo reduces cwnd as a loss does, once per window, without a retransmission. The next
/// new data carries CWR. Proportional rate reduction lowers cwnd.
#[test]
fn ece_reduces_cwnd_once_a_window() {
    let mut bench = sending();
    bench.play(
        "write 1460
         < E. 1:1(0) ack 2921
         > PW. 14601:16061(1460) ack 1 ect0
         < E. 1:1(0) ack 7301
         < E. 1:1(0) ack 14601
         cwnd = 7
         write 100
         > P. 16061:16161(100) ack 1 ect0",
    );
    assert_eq!(bench.info().tcpi_ca_state, 2);
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
    assert_eq!(bench.mib.retrans_segs, 0);
}

/// The reduction lasts until data sent after its beginning is acknowledged; then cwnd is ssthresh.
#[test]
fn the_reduction_ends_when_cwr_is_acknowledged() {
    let mut bench = sending();
    bench.play(
        "< E. 1:1(0) ack 14601
         write 1460
         > PW. 14601:16061(1460) ack 1 ect0",
    );
    assert_eq!(bench.info().tcpi_ca_state, 2);
    bench.play(
        "< . 1:1(0) ack 16061
         cwnd = 7",
    );
    assert_eq!(bench.info().tcpi_ca_state, 0);
    assert_eq!(bench.info().tcpi_delivered_ce, 10);
}

/// 6.1.2: CWR reports every reduction, whatever its cause; on new data, not on a retransmission.
#[test]
fn cwr_is_set_on_new_data_after_a_loss() {
    sending().play(
        "write 2920
         +1ms
         < . 1:1(0) ack 1 <sack 1461:7301>
         > . 1:1461(1460) ack 1
         > W. 14601:16061(1460) ack 1 ect0
         < . 1:1(0) ack 1 <sack 1461:14601>
         > P. 16061:17521(1460) ack 1 ect0",
    );
}

/// A window is reduced once, whether by a mark or by a loss.
#[test]
fn a_loss_during_cwr_does_not_reduce_cwnd_again() {
    let mut bench = sending();
    bench.play("< E. 1:1(0) ack 1461");
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
    bench.play(
        "< E. 1:1(0) ack 1461 <sack 2921:14601>
         > . 1461:2921(1460) ack 1",
    );
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
    assert_eq!(bench.info().tcpi_ca_state, 3);
}

/// 6.1.6: a window probe is not ECN-capable.
#[test]
fn window_probes_are_not_ecn_capable() {
    let mut bench = accepted();
    bench.play(
        "< . 1:1(0) ack 1 win 0
         write 1000",
    );
    let probe = bench.run_timers_until_output();
    assert!(!probe.contains("ect0"), "{probe}");
}
