//! Probes of the path's MTU (RFC 4821), and what they leave alone.

use crate::harness::{Bench, Setup};

/// A probe is larger than a segment, not smaller: Minshall's rule does not see it, and the partial
/// end of what follows leaves with it.
#[test]
fn a_probe_does_not_count_as_a_small_segment() {
    let mut setup = Setup::without_probes();
    (setup.sysctl.tcp_mtu_probing, setup.sysctl.tcp_base_mss) = (2, 1000);
    let mut bench = Bench::established(&setup);
    bench.play(
        "write 10000
         > P. 1:5001(5000) ack 1
         > P. 5001:10001(5000) ack 1
         < . 1:1(0) ack 10001",
    );
    let before = bench.mib.out_segs;
    // Between 1040 and 1500 bytes of MTU: 1270.
    bench.play(
        "write 6000
         > . 10001:11231(1230) ack 1
         > P. 11231:16001(4770) ack 1",
    );
    // The probe is one packet, the rest five.
    assert_eq!(bench.mib.out_segs - before, 6);
}
