//! DCTCP (RFC 8257): the negotiation of ECN, the ECN field of sent packets, the receiver's feedback
//! and the sender's response to it.

use fullsend_tcp::congestion::CcInfo;
use fullsend_wire::tcp::TcpFlags;
use fullsend_wire::{EcnField, Nanos};

use crate::harness::{Bench, ECN_SETUP, Setup};

fn setup(tcp_ecn: u32) -> Setup {
    let mut setup = Setup::default();
    setup.sysctl.tcp_ecn = tcp_ecn;
    setup.sysctl.tcp_congestion_control = "dctcp";
    setup
}

/// Returns a connection opened by a peer with DCTCP.
fn accepted() -> Bench {
    let mut bench = Bench::accepting_syn(&setup(2), ECN_SETUP, EcnField::Ect0);
    bench.play(
        "> SE. 0:0(0) ack 1 ect0
         < . 1:1(0) ack 1 ect0
         set nodelay 1",
    );
    bench
}

/// Returns an accepted connection that delays its ACKs.
fn with_delayed_acks() -> Bench {
    let mut bench = accepted();
    bench.play(
        "set quickack 0
         < . 1:1461(1460) ack 1 ect0
         +40ms
         > . 1:1(0) ack 1461 ect0",
    );
    bench
}

/// Returns an accepted connection with ten segments in flight.
fn sending() -> Bench {
    let mut bench = accepted();
    bench.send_ten();
    bench
}

fn alpha(bench: &Bench) -> u32 {
    match bench.conn.cc_info() {
        CcInfo::Dctcp { alpha, .. } => alpha,
        other => panic!("{other:?}"),
    }
}

/// DCTCP requests ECN whatever `tcp_ecn` is; its SYN is ECN-capable, as is all that follows.
#[test]
fn every_packet_is_ecn_capable() {
    for tcp_ecn in [0, 1, 2] {
        let mut bench = Bench::connecting(&setup(tcp_ecn));
        bench.play(
            "> SEW 0:0(0) ect0
             < SE. 0:0(0) ack 1 ect0
             > . 1:1(0) ack 1 ect0
             write 100
             > P. 1:101(100) ack 1 ect0
             < P. 1:101(100) ack 101 ect0
             > . 101:101(0) ack 101 ect0
             read 100
             shutdown
             > F. 101:101(0) ack 101 ect0",
        );
        assert_eq!(bench.conn.congestion(), "dctcp");
    }
    let mut bench = accepted();
    bench.play(
        "write 1000
         > P. 1:1001(1000) ack 1 ect0",
    );
    let again = bench.run_timers_until_output();
    assert!(
        again.starts_with("P. 1:1001(1000) ack 1 ect0 |"),
        "a repetition: {again}"
    );
}

/// With `tcp_ecn` 3 DCTCP requests Accurate ECN, whose SYN is not ECN-capable.
#[test]
fn accurate_ecn_reports_its_marks_too() {
    let mut bench = Bench::connecting(&setup(3));
    bench.play(
        "> SEWA 0:0(0)
         < SW. 0:0(0) ack 1
         > W. 1:1(0) ack 1 ect0
         set nodelay 1
         write 14600
         > PEA. 1:7301(7300) ack 1 ect0
         > PEA. 7301:14601(7300) ack 1 ect0
         < EA. 1:1(0) ack 2921",
    );
    assert_eq!((alpha(&bench), bench.info().tcpi_ecn_mode), (960, 2));
    // One of the other eight segments was marked: 960 - 60 + 64 / 8.
    bench.play("< WA. 1:1(0) ack 14601");
    assert_eq!((alpha(&bench), bench.info().tcpi_delivered_ce), (908, 1));
    // 12 - 12 * 908 / 2048.
    assert_eq!(bench.info().tcpi_snd_ssthresh, 7);
}

/// As in Linux a connection without ECN uses Reno, under the name `dctcp-reno`.
#[test]
fn without_ecn_dctcp_falls_back_to_reno() {
    let mut bench = Bench::connecting(&setup(2));
    bench.play(
        "> SEW 0:0(0) ect0
         < S. 0:0(0) ack 1
         > . 1:1(0) ack 1
         write 100
         > P. 1:101(100) ack 1",
    );
    assert_eq!(bench.conn.congestion(), "dctcp-reno");
    assert_eq!(bench.conn.cc_info(), CcInfo::DctcpFallback);
    let mut bench = Bench::accepting_syn(&setup(2), TcpFlags::SYN, EcnField::NotEct);
    bench.play(
        "> S. 0:0(0) ack 1
         < . 1:1(0) ack 1",
    );
    assert_eq!(bench.conn.congestion(), "dctcp-reno");
}

/// A retransmitted SYN does not request ECN and is not ECN-capable.
#[test]
fn a_retransmitted_syn_does_not_request_ecn() {
    Bench::connecting(&setup(2)).play(
        "> SEW 0:0(0) ect0
         +1s
         > S 0:0(0)
         < SE. 0:0(0) ack 1
         > . 1:1(0) ack 1 ect0",
    );
}

/// `TCP_CONGESTION`: DCTCP chosen before the SYN is sent requests ECN; chosen on a connection
/// without ECN it falls back to Reno.
#[test]
fn dctcp_can_be_selected_until_the_syn_is_sent() {
    let plain = Setup::default();
    let mut early = Bench::connecting(&plain);
    early.congestion("dctcp");
    early.play(
        "> SEW 0:0(0) ect0
         < SE. 0:0(0) ack 1
         > . 1:1(0) ack 1 ect0",
    );
    assert_eq!(early.conn.congestion(), "dctcp");
    let mut changed = Bench::connecting(&setup(2));
    changed.congestion("cubic");
    changed.play("> S 0:0(0)");
    let mut late = Bench::connecting(&plain);
    late.play(
        "> S 0:0(0)
         < S. 0:0(0) ack 1
         > . 1:1(0) ack 1",
    );
    late.congestion("dctcp");
    assert_eq!(late.conn.congestion(), "dctcp-reno");
    late.congestion("reno");
    assert_eq!(late.conn.congestion(), "reno");
}

/// 3.2: a packet whose CE differs from the previous one's is acknowledged at once, after the data
/// before it, which is acknowledged with the earlier ECE. CWR does not end the ECE.
#[test]
fn each_change_of_ce_is_acknowledged_at_once() {
    with_delayed_acks().play(
        "< . 1461:2921(1460) ack 1 ect0
         < . 2921:4381(1460) ack 1 ce
         > . 1:1(0) ack 2921 ect0
         > E. 1:1(0) ack 4381 ect0
         < . 4381:5841(1460) ack 1 ce
         < . 5841:7301(1460) ack 1 ce
         > E. 1:1(0) ack 7301 ect0
         < W. 7301:8761(1460) ack 1 ce
         > E. 1:1(0) ack 8761 ect0
         < . 8761:10221(1460) ack 1 ce
         < . 10221:11681(1460) ack 1 ect0
         > E. 1:1(0) ack 10221 ect0
         > . 1:1(0) ack 11681 ect0",
    );
}

/// 3.2: while CE does not change ACKs are delayed, whether packets are marked or not.
#[test]
fn acks_are_delayed_while_ce_does_not_change() {
    let mut bench = with_delayed_acks();
    bench.play(
        "< . 1461:2921(1460) ack 1 ce
         > E. 1:1(0) ack 2921 ect0
         < . 2921:4381(1460) ack 1 ce
         +40ms
         > E. 1:1(0) ack 4381 ect0",
    );
    let CcInfo::Dctcp { ce_state, .. } = bench.conn.cc_info() else {
        panic!("it is DCTCP");
    };
    assert!(ce_state);
}

/// Changes of CE within one batch are acknowledged one by one, in order; data that we send carries
/// the first ACK. The right edge of the window stays, except for rounding.
#[test]
fn changes_in_one_batch_are_acknowledged_separately() {
    with_delayed_acks().play(
        "write 100
         << . 1461:2921(1460) ack 1 ect0
         << . 2921:4381(1460) ack 1 ce
         << . 4381:5841(1460) ack 1 ect0
         > P. 1:101(100) ack 2921 ect0 win 614
         > E. 101:101(0) ack 4381 ect0 win 603
         > . 101:101(0) ack 5841 ect0 win 592",
    );
}

/// For data out of order each change is reported once, by its duplicate ACK.
#[test]
fn an_out_of_order_ce_change_is_echoed_by_its_duplicate_ack() {
    with_delayed_acks().play(
        "< . 2921:4381(1460) ack 1 ce
         > E. 1:1(0) ack 1461 ect0
         < . 4381:5841(1460) ack 1 ect0
         > . 1:1(0) ack 1461 ect0
         < . 1461:2921(1460) ack 1 ect0
         > . 1:1(0) ack 5841 ect0",
    );
}

/// 3.3: alpha starts at 1, so that the first mark halves cwnd; each window then moves it by a
/// sixteenth towards the marked fraction.
#[test]
fn cwnd_is_reduced_by_half_of_alpha() {
    let mut bench = sending();
    bench.play("< E. 1:1(0) ack 2921");
    assert_eq!((alpha(&bench), bench.info().tcpi_snd_ssthresh), (1024, 5));
    assert_eq!(bench.info().tcpi_ca_state, 2);
    // cwnd is reduced once per window: later marks within it change nothing.
    bench.play(
        "< E. 1:1(0) ack 5841
         < . 1:1(0) ack 14601",
    );
    // 1024 - 64 + 64 * 2 / 8.
    assert_eq!((alpha(&bench), bench.info().tcpi_snd_ssthresh), (976, 5));
    assert_eq!(bench.mib.retrans_segs, 0);
}

/// Each reduction is reported by CWR, because a peer may repeat ECE until it receives that (RFC
/// 3168).
#[test]
fn a_reduction_sets_cwr() {
    let mut bench = sending();
    bench.play(
        "< E. 1:1(0) ack 14601
         write 1460
         > PW. 14601:16061(1460) ack 1 ect0
         < . 1:1(0) ack 16061
         cwnd = 5",
    );
    assert_eq!(bench.info().tcpi_ca_state, 0);
}

/// 3.5: a loss after a mark in the same window brings ssthresh to half of the cwnd before the mark,
/// and not to half of the reduced one.
#[test]
fn a_loss_after_a_mark_halves_cwnd() {
    let mut bench = accepted();
    // Twenty windows without a mark.
    let mut una = 1;
    for _ in 0..20 {
        bench.play(&format!(
            "write 1460
             > P. {una}:{}(1460) ack 1 ect0
             < . 1:1(0) ack {}",
            una + 1460,
            una + 1460
        ));
        una += 1460;
    }
    assert_eq!(alpha(&bench), 287);
    let cwnd = bench.info().tcpi_snd_cwnd;
    assert_eq!(cwnd, 10);
    let [seg, next, half, end] = [1, 2, 5, 10].map(|n| una + 1460 * n);
    bench.play(&format!(
        "write 14600
         > P. {una}:{half}(7300) ack 1 ect0
         > P. {half}:{end}(7300) ack 1 ect0
         < E. 1:1(0) ack {seg}",
    ));
    // 287 - 17 + 64; 10 - 10 * 334 / 2048.
    assert_eq!((alpha(&bench), bench.info().tcpi_snd_ssthresh), (334, 9));
    bench.play(&format!(
        "< . 1:1(0) ack {seg} <sack {next}:{half}>
         > . {seg}:{next}(1460) ack 1 ect0",
    ));
    assert_eq!(bench.info().tcpi_ca_state, 3);
    assert_eq!(bench.info().tcpi_snd_ssthresh, 5);
}

/// RFC 8257 3.5: a timeout after a mark in the same window brings ssthresh to half of the cwnd
/// before the mark.
#[test]
fn a_timeout_after_a_mark_halves_ssthresh() {
    let mut setup = setup(2);
    setup.sysctl.tcp_early_retrans = 0;
    let mut bench = Bench::accepting_syn(&setup, ECN_SETUP, EcnField::Ect0);
    bench.play("> SE. 0:0(0) ack 1 ect0\n< . 1:1(0) ack 1 ect0\nset nodelay 1");
    // Windows without a mark lower alpha.
    for _ in 0..16 {
        bench.advance(Nanos::from_millis(20));
        assert!(bench.try_write(14_600));
        while bench.next_out().is_some() {}
        let sent = bench.sent();
        bench.acknowledge(sent);
    }
    let cwnd = bench.info().tcpi_snd_cwnd;
    assert!(bench.try_write(14_600));
    while bench.next_out().is_some() {}
    let una = bench.info().tcpi_bytes_acked as u32 + 1;
    bench.deliver(&format!("E. 1:1(0) ack {}", una + 1460));
    while bench.next_out().is_some() {}
    assert!(bench.info().tcpi_snd_ssthresh > cwnd / 2 + 1);
    assert!(
        bench
            .run_timers_until_output()
            .contains(&format!("{}:", una + 1460))
    );
    assert_eq!(bench.info().tcpi_snd_ssthresh, cwnd / 2);
}
