//! F-RTO (RFC 5682), where it draws no conclusion.

use crate::harness::{Bench, Setup};

/// Ten segments time out, the first is sent again and acknowledged, and two new ones go (2b).
fn asked() -> Bench {
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

/// (3b): what was sent but once arrives, so the timeout was spurious.
#[test]
fn an_original_that_arrives_undoes_the_timeout() {
    let mut bench = asked();
    bench.play_in(". 1:1(0) ack 1461 <sack 11681:13141>");
    assert_eq!(bench.mib.spurious_rtos, 1);
}

/// (3a): a duplicate ACK for the new text proves the loss. An original that arrives behind it
/// changes nothing: recovery goes on.
#[test]
fn after_a_duplicate_for_new_text_nothing_is_undone() {
    let mut bench = asked();
    bench.play_in(". 1:1(0) ack 1461 <sack 14601:16061>");
    bench.next_out();
    bench.play_in(". 1:1(0) ack 1461 <sack 11681:13141,sack 14601:16061>");
    assert_eq!((bench.mib.spurious_rtos, bench.mib.loss_undo), (0, 0));
    // TCP_CA_Recovery or TCP_CA_Loss.
    assert!(bench.info().tcpi_ca_state >= 3);
}
