//! The wait for a larger super-segment (TSO-defer, spec 1.8), as one connection applies it.

use crate::harness::{Bench, Setup};

/// Plays 40,000 bytes that end in a FIN or a record's end, whose last segment has these flags.
fn with_end(end: &str, flags: &str) {
    // After the first ACK cwnd admits three segments more than are sent, and more than that is
    // queued.
    let (write, shutdown) = match end {
        "eor" => ("write 40000 eor = 40000", ""),
        _ => ("write 40000", "shutdown"),
    };
    Bench::established(&Setup::default()).play(&format!(
        "{write}
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         {shutdown}
         < . 1:1(0) ack 7301
         > P. 14601:24821(10220) ack 1
         cwnd = 15
         < . 1:1(0) ack 14601
         > P. 24821:39421(14600) ack 1
         > {flags} 39421:40001(580) ack 1"
    ));
}

/// A FIN or a record's end behind more data than cwnd admits does not end the wait: the next ACK
/// will admit more of it.
#[test]
fn a_fin_does_not_end_the_wait_for_cwnd() {
    with_end("fin", "FP.");
}

#[test]
fn a_records_end_does_not_end_the_wait_for_cwnd() {
    with_end("eor", "P.");
}

/// cwnd admits three segments and two are queued. Only the application could make them more, which
/// it cannot after a FIN or a record's end.
#[test]
fn a_fin_or_record_end_sends_an_application_limited_remainder() {
    let rest = |write: &str, end: &str, script: &str| {
        Bench::established(&Setup::default()).play(&format!(
            "{write}
             > P. 1:7301(7300) ack 1
             > P. 7301:14601(7300) ack 1
             {end}
             < . 1:1(0) ack 7301
             > P. 14601:24821(10220) ack 1
             {script}"
        ));
    };
    rest(
        "write 27740",
        "",
        "# It waits.
         < . 1:1(0) ack 14601
         > P. 24821:27741(2920) ack 1",
    );
    rest("write 27740", "shutdown", "> FP. 24821:27741(2920) ack 1");
    rest(
        "write 27740 eor = 27740",
        "",
        "> P. 24821:27741(2920) ack 1",
    );
}

/// In fast recovery segments do not wait: proportional rate reduction allows each of them for an
/// ACK. The head was retransmitted 12 ms ago, more than half a round trip, so that only the state
/// decides.
#[test]
fn nothing_is_deferred_in_recovery() {
    let mut setup = Setup::default();
    setup.sysctl.tcp_min_tso_segs = 100;
    Bench::accepting(&setup).play(
        "> S. 0:0(0) ack 1
         +20ms
         < . 1:1(0) ack 1
         set nodelay 1
         write 14600
         > P. 1:7301(7300) ack 1
         > P. 7301:14601(7300) ack 1
         +20ms
         write 20000
         < . 1:1(0) ack 1 <sack 1461:5841>
         > . 1:1461(1460) ack 1
         +12ms
         < . 1:1(0) ack 1 <sack 1461:8761>
         > P. 14601:17521(2920) ack 1
         +500us
         < . 1:1(0) ack 1 <sack 1461:11681>
         > P. 17521:20441(2920) ack 1",
    );
}
