//! The TIME-WAIT state (RFC 9293 3.10.7.4, RFC 6191, RFC 1337).

use fullsend_tcp::TimeWaitAction;
use fullsend_wire::{Nanos, SeqNum};

use crate::harness::{Bench, Setup};

fn waiting(timestamps: bool) -> Bench {
    let setup = Setup {
        timestamps,
        ..Setup::default()
    };
    let mut bench = Bench::established(&setup);
    bench.play(
        "close
         > F. 1:1(0) ack 1
         < F. 1:1(0) ack 2
         > . 2:2(0) ack 2",
    );
    bench.extract_time_wait();
    bench
}

fn verdict(bench: &mut Bench, segment: &str) -> &'static str {
    match bench.deliver_to_time_wait(segment) {
        TimeWaitAction::Drop => "drop",
        TimeWaitAction::Reply(reply) => {
            assert_eq!(
                Bench::show(&reply).split(" | ").next(),
                Some(". 2:2(0) ack 2")
            );
            "reply"
        }
        TimeWaitAction::Reuse => "reuse",
        TimeWaitAction::Remove => "forget",
    }
}

#[test]
fn a_retransmitted_fin_is_acknowledged_and_restarts_the_timer() {
    let mut bench = waiting(true);
    bench.advance(Nanos::from_secs(50));
    assert_eq!(verdict(&mut bench, "F. 1:1(0) ack 2"), "reply");
    let expires = bench.time_wait().expires;
    bench.advance(Nanos::from_secs(60));
    assert_eq!(bench.now(), expires);
}

#[test]
fn challenge_acks_are_rate_limited() {
    let mut bench = waiting(false);
    assert_eq!(verdict(&mut bench, "P. 500:600(100) ack 2"), "reply");
    assert_eq!(verdict(&mut bench, "P. 500:600(100) ack 2"), "drop");
    bench.advance(Nanos::from_millis(500));
    assert_eq!(verdict(&mut bench, "P. 500:600(100) ack 2"), "reply");
}

#[test]
fn an_acceptable_ack_is_not_answered() {
    assert_eq!(verdict(&mut waiting(true), ". 2:2(0) ack 2"), "drop");
}

#[test]
fn a_later_syn_may_reuse_the_ports() {
    let mut bench = waiting(false);
    assert_eq!(verdict(&mut bench, "S 3:3(0)"), "reuse");
    // A later timestamp permits reuse whatever the sequence number.
    let mut bench = waiting(true);
    bench.advance(Nanos::from_millis(5));
    assert_eq!(verdict(&mut bench, "S 1:1(0)"), "reuse");
    assert_eq!(verdict(&mut bench, "S. 3:3(0) ack 2"), "reply");
    let isn = bench.time_wait().reuse_isn();
    assert!(isn.since(SeqNum::new(0)) > 0 && Bench::relative(isn) > 65_535);
}

/// RFC 9293 3.10.7.4, RFC 5961 4.2: a SYN that is not provably later draws a challenge ACK. A peer
/// that opens the connection anew replies with a RST, which frees the ports.
#[test]
fn an_earlier_syn_is_challenged_and_the_peers_reset_frees_the_ports() {
    let mut bench = waiting(false);
    bench.advance(Nanos::from_secs(1));
    let expires = bench.time_wait().expires;
    assert_eq!(verdict(&mut bench, "S 1:1(0)"), "reply");
    assert_eq!(bench.time_wait().expires, expires);
    assert_eq!(verdict(&mut bench, "R 2:2(0)"), "forget");
}

#[test]
fn an_old_duplicate_syn_is_answered_like_any_old_segment() {
    let mut bench = waiting(true);
    bench.advance(Nanos::from_millis(500));
    bench.deliver_to_time_wait(". 2:2(0) ack 2");
    assert_eq!(verdict(&mut bench, "S 3:3(0) <ts 100>"), "reply");
    assert_eq!(bench.mib.paws_estab, 1);
}

#[test]
fn only_an_acceptable_reset_ends_time_wait_unless_rfc_1337_is_on() {
    let mut bench = waiting(false);
    assert_eq!(verdict(&mut bench, "R 3:3(0)"), "drop");
    assert_eq!(verdict(&mut bench, "R 2:2(0)"), "forget");
    bench.setup_mut().sysctl.tcp_rfc1337 = true;
    assert_eq!(verdict(&mut bench, "R 2:2(0)"), "drop");
}
