//! Accurate ECN (RFC 9768). Flags: A is AE, W is CWR, E is ECE; together they count marks from 5.

use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpFlags;

use crate::harness::{Bench, Setup};

const ASK: TcpFlags = TcpFlags::SYN
    .union(TcpFlags::AE)
    .union(TcpFlags::ECE)
    .union(TcpFlags::CWR);

fn setup(tcp_ecn: u32) -> Setup {
    let mut setup = Setup::default();
    setup.sysctl.tcp_ecn = tcp_ecn;
    setup
}

/// We asked, and the peer agreed.
fn connected() -> Bench {
    let mut bench = Bench::connecting(&setup(3));
    bench.play(
        "> SEWA 0:0(0)
         < SW. 0:0(0) ack 1
         > W. 1:1(0) ack 1 ect0
         set nodelay 1",
    );
    bench
}

/// The peer asked.
fn accepted() -> Bench {
    let mut bench = Bench::accepting_syn(&setup(5), ASK, EcnField::NotEct);
    bench.play(
        "> SW. 0:0(0) ack 1
         < W. 1:1(0) ack 1
         set nodelay 1",
    );
    bench
}

/// 3.1.1 and table 2: all three flags ask; the answer tells with which field the SYN came, and the
/// handshake's last ACK with which field the answer came.
#[test]
fn the_handshake_tells_each_segments_field() {
    connected();
    accepted();
    for (field, told) in [
        (EcnField::NotEct, "W."),
        (EcnField::Ect1, "EW."),
        (EcnField::Ect0, "A."),
        (EcnField::Ce, "WA."),
    ] {
        let mut bench = Bench::accepting_syn(&setup(3), ASK, field);
        bench.play(&format!("> S{told} 0:0(0) ack 1"));
    }
    for (field, told) in [("ect1", "EW."), ("ect0", "A."), ("ce", "WA.")] {
        Bench::connecting(&setup(3)).play(&format!(
            "> SEWA 0:0(0)
             < SW. 0:0(0) ack 1 {field}
             > {told} 1:1(0) ack 1 ect0"
        ));
    }
}

/// 3.1.2: a peer that knows RFC 3168 alone gets it; one that knows nothing, or reflects what it
/// does not know, gets none.
#[test]
fn older_peers_are_understood() {
    for (answer, ecn) in [("SE.", " ect0"), ("S.", ""), ("SEWA.", "")] {
        Bench::connecting(&setup(3)).play(&format!(
            "> SEWA 0:0(0)
             < {answer} 0:0(0) ack 1
             > . 1:1(0) ack 1
             write 100
             > P. 1:101(100) ack 1{ecn}"
        ));
    }
}

/// Table 2: an answer that reflects nothing, and means nothing yet, is one of accurate ECN.
#[test]
fn an_answer_that_means_nothing_yet_agrees() {
    Bench::connecting(&setup(3)).play(
        "> SEWA 0:0(0)
         < SEA. 0:0(0) ack 1
         > W. 1:1(0) ack 1 ect0
         write 100
         > PEA. 1:101(100) ack 1 ect0",
    );
}

/// Whoever does not know it sees RFC 3168's flags.
#[test]
fn an_older_host_answers_as_it_knows() {
    Bench::accepting_syn(&setup(2), ASK, EcnField::NotEct).play("> SE. 0:0(0) ack 1");
    Bench::accepting_syn(&setup(0), ASK, EcnField::NotEct).play("> S. 0:0(0) ack 1");
}

/// 3.1.4: asked for once more, and then no longer.
#[test]
fn a_syn_in_vain_asks_once_more() {
    Bench::connecting(&setup(3)).play(
        "> SEWA 0:0(0)
         +1s
         > SEWA 0:0(0)
         +1s
         > S 0:0(0)",
    );
}

/// 3.2.2: every marked packet counts, and every segment of ours tells the count, from 5 on.
#[test]
fn marks_are_counted() {
    accepted().play(
        "< PEA. 1:1461(1460) ack 1 ect0
         > EA. 1:1(0) ack 1461 ect0
         < P. 1461:2921(1460) ack 1 ce
         > WA. 1:1(0) ack 2921 ect0
         < P. 2921:4381(1460) ack 1 ce
         > EWA. 1:1(0) ack 4381 ect0
         write 100
         > PEWA. 1:101(100) ack 4381 ect0
         < PEA. 4381:7301(2920) ack 101 gro 1460 ce
         > E. 101:101(0) ack 7301 ect0",
    );
}

/// 3.2.2.5.1: marks on acknowledgements count too, and are told before the count goes round.
#[test]
fn marks_on_acknowledgements_count() {
    let mut bench = accepted();
    bench.play(
        "< .EA 1:1(0) ack 1 ce
         < .EA 1:1(0) ack 1 ce
         write 100
         > PEWA. 1:101(100) ack 1 ect0",
    );
}

/// 3.2.2.5.2: the difference is what was marked; one reduction a window, and no CWR.
#[test]
fn a_count_that_grows_reduces_once_a_window() {
    let mut bench = connected();
    bench.play(
        "write 14600
         > PEA. 1:7301(7300) ack 1 ect0
         > PEA. 7301:14601(7300) ack 1 ect0
         < .EA 1:1(0) ack 2921",
    );
    assert_eq!(bench.info().tcpi_delivered_ce, 0);
    bench.play(
        "< .EWA 1:1(0) ack 5841
         write 1460
         > PEA. 14601:16061(1460) ack 1 ect0",
    );
    let info = bench.info();
    assert_eq!((info.tcpi_delivered_ce, info.tcpi_ca_state), (2, 2));
    assert_eq!(info.tcpi_snd_ssthresh, 8);
    // Another, within the same window.
    bench.play("< . 1:1(0) ack 7301");
    let info = bench.info();
    assert_eq!((info.tcpi_delivered_ce, info.tcpi_snd_ssthresh), (3, 8));
}

/// An ACK that was overtaken tells an old count.
#[test]
fn an_old_acknowledgement_tells_nothing() {
    let mut bench = connected();
    bench.play(
        "write 14600
         > PEA. 1:7301(7300) ack 1 ect0
         > PEA. 7301:14601(7300) ack 1 ect0
         < .WA 1:1(0) ack 5841
         < .EA 1:1(0) ack 2921",
    );
    assert_eq!(bench.info().tcpi_delivered_ce, 1);
}

/// 3.2.2.3: our SYN was not ECN-capable, so whoever sees it as such sees a path that changes the
/// field. Then nothing of ours is, and what the peer tells is not heard; but it is told.
#[test]
fn a_field_that_was_changed_mutes() {
    let mut bench = Bench::connecting(&setup(3));
    bench.play(
        "> SEWA 0:0(0)
         < SA. 0:0(0) ack 1
         > W. 1:1(0) ack 1
         write 100
         > PEA. 1:101(100) ack 1
         < .EWA 1:1(0) ack 101
         < PEWA. 1:101(100) ack 101 ce
         > WA. 101:101(0) ack 101",
    );
    assert_eq!(bench.info().tcpi_delivered_ce, 0);
}

/// 3.2.2.1: zeroed flags on the handshake's last ACK mean that something clears them.
#[test]
fn flags_that_were_zeroed_mute() {
    let mut bench = Bench::accepting_syn(&setup(3), ASK, EcnField::NotEct);
    bench.play(
        "> SW. 0:0(0) ack 1
         < . 1:1(0) ack 1
         write 100
         > PEA. 1:101(100) ack 1",
    );
}

/// Every segment of a unit tells the same count, also where CWR is part of it.
#[test]
fn units_stay_whole_while_cwr_is_in_the_count() {
    let mut bench = accepted();
    bench.play(
        "< PEA. 1:1461(1460) ack 1 ce
         > WA. 1:1(0) ack 1461 ect0
         write 2920
         > PWA. 1:2921(2920) ack 1461 ect0",
    );
}
