//! Probes of the path's MTU (RFC 4821), and their effects on other rules.

use crate::harness::{Bench, Setup};

fn probing() -> Setup {
    let mut setup = Setup::without_probes();
    (setup.sysctl.tcp_mtu_probing, setup.sysctl.tcp_base_mss) = (2, 1000);
    setup
}

/// A probe is larger than a segment, not smaller: Minshall's rule ignores it, and the partial
/// segment at the end of the following data is sent with it.
#[test]
fn a_probe_does_not_count_as_a_small_segment() {
    let mut bench = Bench::established(&probing());
    bench.play(
        "write 10000
         > P. 1:5001(5000) ack 1
         > P. 5001:10001(5000) ack 1
         < . 1:1(0) ack 10001",
    );
    let before = bench.mib.out_segs;
    // Half-way between an MTU of 1040 and one of 1500 bytes: 1270.
    bench.play(
        "write 6000
         > . 10001:11231(1230) ack 1
         > P. 11231:16001(4770) ack 1",
    );
    // The probe is one packet, the other data five.
    assert_eq!(bench.mib.out_segs - before, 6);
}

/// RFC 4821 7.3: the loss of a probe does not indicate congestion. Its data is retransmitted in
/// smaller segments.
#[test]
fn the_loss_of_a_probe_reduces_nothing() {
    let mut setup = probing();
    setup.sysctl.tcp_min_tso_segs = 100;
    let mut bench = Bench::accepting(&setup);
    bench.play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         write 10000
         > P. 1:5001(5000) ack 1
         > P. 5001:10001(5000) ack 1
         +20ms
         < . 1:1(0) ack 10001
         write 6000
         > . 10001:11231(1230) ack 1
         > P. 11231:16001(4770) ack 1
         +20ms
         < . 1:1(0) ack 10001 <sack 11231:15231>
         > P. 10001:11231(1230) ack 1
         cwnd = 20",
    );
    assert_eq!((bench.mib.mtup_fail, bench.mib.sack_recovery), (1, 0));
    let info = bench.info();
    assert_eq!(info.tcpi_ca_state, 4);
    assert!(info.tcpi_snd_ssthresh > 1_000_000);
    // The loss of another segment reduces cwnd.
    let mut bench = Bench::established(&setup);
    bench.play(
        "write 10000
         > P. 1:5001(5000) ack 1
         > P. 5001:10001(5000) ack 1
         +20ms
         < . 1:1(0) ack 1 <sack 1001:5001>
         > . 1:1001(1000) ack 1",
    );
    assert_eq!((bench.mib.mtup_fail, bench.mib.sack_recovery), (0, 1));
}
