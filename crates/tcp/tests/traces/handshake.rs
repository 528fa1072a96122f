//! Connection establishment: RFC 9293 3.5, RFC 7323, RFC 6691.

use fullsend_wire::Mss;

use crate::harness::{Bench, Setup};

fn plain() -> Setup {
    Setup::default()
}

fn with_timestamps() -> Setup {
    Setup {
        timestamps: true,
        ..plain()
    }
}

#[test]
fn active_open() {
    let mut bench = Bench::connecting(&with_timestamps());
    bench.play(
        "> S 0:0(0) win 64240 <mss 1460,sackOK,ts,wscale 7>
         writable = false
         write 1 = WouldBlock
         < S. 0:0(0) ack 1 win 65535
         > . 1:1(0) ack 1 <ts>
         state = Established
         wakes = write",
    );
    assert_eq!(bench.info().tcpi_snd_mss, 1448);
    assert_eq!(bench.mib.active_opens, 1);
}

#[test]
fn passive_open_answers_with_the_options_of_the_peer() {
    Bench::accepting(&with_timestamps()).play(
        "> S. 0:0(0) ack 1 <mss 1460,sackOK,ts,wscale 7>
         < . 1:1(0) ack 1
         state = Established",
    );
    let bare = Setup {
        wscale: None,
        sack: false,
        ..plain()
    };
    Bench::accepting(&bare).play("> S. 0:0(0) ack 1 <mss 1460>");
}

#[test]
fn the_final_ack_may_carry_data() {
    Bench::accepting(&plain()).play(
        "> S. 0:0(0) ack 1
         < P. 1:101(100) ack 1
         > . 1:1(0) ack 101
         read 100",
    );
}

#[test]
fn simultaneous_open() {
    let mut bench = Bench::connecting(&plain());
    bench.play(
        "> S 0:0(0)
         < S 0:0(0) win 65535
         > S. 0:0(0) ack 1
         state = SynReceived
         < S. 0:0(0) ack 1 win 5000
         state = Established",
    );
    // The window of any SYN, with or without ACK, is not scaled.
    assert_eq!(bench.info().tcpi_snd_wnd, 5000);
}

/// RFC 7323 5.3 R1: the SYN-ACK of a simultaneous open with an old timestamp is answered and ignored.
#[test]
fn simultaneous_open_with_an_old_timestamp() {
    let mut bench = Bench::connecting(&Setup {
        timestamps: true,
        ..plain()
    });
    bench.play(
        "> S 0:0(0)
         +10ms
         < S 0:0(0) win 65535 <ts 10>
         > S. 0:0(0) ack 1
         < S. 0:0(0) ack 1 win 5000 <ts 5>
         > . 1:1(0) ack 1
         state = SynReceived
         < S. 0:0(0) ack 1 win 5000 <ts 10>
         state = Established",
    );
}

#[test]
fn an_unanswered_syn_is_retransmitted_and_then_times_out() {
    let mut bench = Bench::connecting(&plain());
    bench.play(
        "> S 0:0(0)
         readable = false
         # tcp_syn_linear_timeouts
         +1s
         > S 0:0(0)
         +1s
         > S 0:0(0)
         +1s
         > S 0:0(0)
         +1s
         > S 0:0(0)
         # tcp_syn_retries
         +1s
         > S 0:0(0)
         +2s
         > S 0:0(0)
         +4s
         > S 0:0(0)
         +8s
         > S 0:0(0)
         +16s
         > S 0:0(0)
         +32s
         > S 0:0(0)
         +64s
         state = Closed
         wakes = read
         write 1 = TimedOut",
    );
    assert_eq!((bench.mib.syn_retrans, bench.mib.attempt_fails), (10, 1));
}

#[test]
fn an_unanswered_syn_ack_is_retransmitted_five_times() {
    Bench::accepting(&plain()).play(
        "> S. 0:0(0) ack 1
         +1s
         > S. 0:0(0) ack 1
         +2s
         > S. 0:0(0) ack 1
         +4s
         > S. 0:0(0) ack 1
         +8s
         > S. 0:0(0) ack 1
         +16s
         > S. 0:0(0) ack 1
         +32s
         state = Closed",
    );
}

#[test]
fn a_retransmitted_syn_gets_the_syn_ack_again() {
    Bench::accepting(&plain()).play(
        "> S. 0:0(0) ack 1
         < S 0:0(0)
         > S. 0:0(0) ack 1
         < . 1:1(0) ack 1
         state = Established",
    );
}

#[test]
fn refused_by_rst_only_if_it_acknowledges_our_syn() {
    Bench::connecting(&plain()).play(
        "> S 0:0(0)
         < R. 0:0(0) ack 2
         < R 0:0(0)
         state = SynSent
         < R. 0:0(0) ack 1
         state = Closed
         read 1 = ConnectionRefused
         read 1 = 0",
    );
}

#[test]
fn a_wrong_ack_in_syn_sent_is_reset() {
    Bench::connecting(&plain()).play(
        "> S 0:0(0)
         < . 5:5(0) ack 77
         > R 77:77(0)
         state = SynSent
         < S. 0:0(0) ack 1
         > . 1:1(0) ack 1",
    );
}

#[test]
fn wrong_acks_in_syn_sent_do_not_delay_the_syn() {
    let mut bench = Bench::connecting(&plain());
    bench.play(
        "> S 0:0(0)
         < . 5:5(0) ack 77
         > R 77:77(0)
         +1ms
         < . 5:5(0) ack 78
         > R 78:78(0)
         +1ms
         > S 0:0(0)
         +1s
         > S 0:0(0)
         < S. 0:0(0) ack 1 win 65535
         > . 1:1(0) ack 1",
    );
    // One SYN was lost, not two (RFC 5681 3.1).
    assert_eq!(bench.mib.syn_retrans, 2);
    assert_eq!(bench.info().tcpi_snd_cwnd, 10);
}

#[test]
fn a_wrong_ack_in_syn_received_is_reset() {
    Bench::accepting(&plain()).play(
        "> S. 0:0(0) ack 1
         < . 1:1(0) ack 9
         > R 9:9(0)
         < . 1:1(0) ack 0
         > R 0:0(0)
         state = SynReceived
         < R 1:1(0)
         state = Closed
         error = Some(ConnectionRefused)",
    );
}

#[test]
fn unreachable_is_hard_while_connecting_and_soft_afterwards() {
    let mut connecting = Bench::connecting(&plain());
    connecting.play(
        "> S 0:0(0)
         unreachable 77
         state = SynSent
         unreachable 0
         state = Closed
         write 1 = HostUnreachable",
    );
    assert_eq!(connecting.mib.attempt_fails, 1);
    Bench::established(&plain()).play(
        "write 1
         > P. 1:2(1) ack 1
         unreachable 1
         state = Established
         error = Some(HostUnreachable)",
    );
}

#[test]
fn segment_size_follows_peer_options_and_path() {
    let mss_of = |setup: &Setup| Bench::established(setup).info().tcpi_snd_mss;
    assert_eq!(mss_of(&plain()), 1460);
    assert_eq!(mss_of(&with_timestamps()), 1448);
    let small = Setup {
        peer_mss: 1000,
        ..with_timestamps()
    };
    assert_eq!(mss_of(&small), 988);
    let v6 = Setup {
        ipv6: true,
        peer_mss: 9000,
        ..with_timestamps()
    };
    assert_eq!(mss_of(&v6), 1428);
    let tiny = Setup {
        peer_mss: 1,
        ..plain()
    };
    assert_eq!(mss_of(&tiny), Mss::MIN.bytes());
    let no_window = Setup {
        peer_window: 1000,
        wscale: None,
        ..plain()
    };
    assert_eq!(mss_of(&no_window), 500, "half of the largest window");
}

#[test]
fn a_syn_without_mss_option_means_the_default() {
    let mut bench = Bench::connecting(&plain());
    bench.play(
        "> S 0:0(0)
         < S. 0:0(0) ack 1 win 8000 <none>
         > . 1:1(0) ack 1 <>",
    );
    assert_eq!(bench.info().tcpi_snd_mss, 536);
    assert_eq!(bench.info().tcpi_options, 0);
}

#[test]
fn closing_before_the_handshake_completes() {
    Bench::connecting(&plain()).play(
        "> S 0:0(0)
         close
         state = Closed",
    );
    Bench::connecting(&plain()).play(
        "> S 0:0(0)
         shutdown
         < S. 0:0(0) ack 1
         > F. 1:1(0) ack 1
         state = FinWait1",
    );
}
