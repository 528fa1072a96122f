//! Accurate ECN (RFC 9768). Flags: A is AE, W is CWR, E is ECE; together they count marked packets,
//! starting at 5.

use fullsend_wire::EcnField;
use fullsend_wire::tcp::TcpFlags;

use crate::harness::{Bench, Setup};

const ACCECN_SYN: TcpFlags = TcpFlags::SYN
    .union(TcpFlags::AE)
    .union(TcpFlags::ECE)
    .union(TcpFlags::CWR);

fn setup(tcp_ecn: u32) -> Setup {
    let mut setup = Setup::default();
    setup.sysctl.tcp_ecn = tcp_ecn;
    setup
}

/// Returns a connection on which our request for Accurate ECN was granted.
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

/// Returns a connection that granted the peer's request for Accurate ECN.
fn accepted() -> Bench {
    let mut bench = Bench::accepting_syn(&setup(5), ACCECN_SYN, EcnField::NotEct);
    bench.play(
        "> SW. 0:0(0) ack 1
         < W. 1:1(0) ack 1
         set nodelay 1",
    );
    bench
}

/// 3.1.1 and table 2: a SYN with all three flags requests Accurate ECN. The SYN-ACK reports the ECN
/// field of the SYN, and the handshake's last ACK that of the SYN-ACK.
#[test]
fn the_handshake_reports_the_ecn_field_of_each_segment() {
    connected();
    accepted();
    for (field, reported) in [
        (EcnField::NotEct, "W."),
        (EcnField::Ect1, "EW."),
        (EcnField::Ect0, "A."),
        (EcnField::Ce, "WA."),
    ] {
        let mut bench = Bench::accepting_syn(&setup(3), ACCECN_SYN, field);
        bench.play(&format!("> S{reported} 0:0(0) ack 1"));
    }
    for (field, reported) in [("ect1", "EW."), ("ect0", "A."), ("ce", "WA.")] {
        Bench::connecting(&setup(3)).play(&format!(
            "> SEWA 0:0(0)
             < SW. 0:0(0) ack 1 {field}
             > {reported} 1:1(0) ack 1 ect0"
        ));
    }
}

/// 3.1.2: with a peer that supports only RFC 3168, RFC 3168 is used; with a peer that does not
/// support ECN, or that reflects the flags of the SYN, ECN is off.
#[test]
fn classic_ecn_peers_are_accepted() {
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

/// Table 2: a SYN-ACK with the currently unused flags AE and ECE agrees to Accurate ECN.
#[test]
fn a_reserved_syn_ack_encoding_negotiates_accurate_ecn() {
    Bench::connecting(&setup(3)).play(
        "> SEWA 0:0(0)
         < SEA. 0:0(0) ack 1
         > W. 1:1(0) ack 1 ect0
         write 100
         > PEA. 1:101(100) ack 1 ect0",
    );
}

/// A host with Accurate ECN off sees the flags of RFC 3168 in the SYN.
#[test]
fn a_classic_ecn_host_answers_with_classic_ecn() {
    Bench::accepting_syn(&setup(2), ACCECN_SYN, EcnField::NotEct).play("> SE. 0:0(0) ack 1");
    Bench::accepting_syn(&setup(0), ACCECN_SYN, EcnField::NotEct).play("> S. 0:0(0) ack 1");
}

/// 3.1.4: the first retransmission of a SYN still requests Accurate ECN, later ones do not.
#[test]
fn a_lost_syn_requests_accurate_ecn_once_more() {
    Bench::connecting(&setup(3)).play(
        "> SEWA 0:0(0)
         +1s
         > SEWA 0:0(0)
         +1s
         > S 0:0(0)",
    );
}

/// 3.2.2: every marked packet is counted, and every segment that we send carries the count, which
/// starts at 5.
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

/// 3.2.2.5.1: marks on pure ACKs are counted, too, and reported with the next segment.
#[test]
fn marks_on_acks_count() {
    let mut bench = accepted();
    bench.play(
        "< .EA 1:1(0) ack 1 ce
         < .EA 1:1(0) ack 1 ce
         write 100
         > PEWA. 1:101(100) ack 1 ect0",
    );
}

/// 3.2.2.5.2: the increase of the peer's count is the number of marked packets. cwnd is reduced
/// once per window, without CWR.
#[test]
fn a_growing_ce_count_reduces_cwnd_once_a_window() {
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
    // Another mark within the same window.
    bench.play("< . 1:1(0) ack 7301");
    let info = bench.info();
    assert_eq!((info.tcpi_delivered_ce, info.tcpi_snd_ssthresh), (3, 8));
}

/// The count of an ACK that a newer one has overtaken is ignored.
#[test]
fn an_old_ack_reports_no_marks() {
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

/// 3.2.2.3: our SYN was Not-ECT, so a SYN-ACK that reports another field shows that the path
/// changes it. From then on no packet of ours is ECN-capable, and the peer's count is ignored; our
/// own is still reported.
#[test]
fn a_changed_ecn_field_disables_sending_ect() {
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

/// 3.2.2.1: zero flags on the handshake's last ACK show that the path clears them.
#[test]
fn zeroed_ace_flags_disable_sending_ect() {
    let mut bench = Bench::accepting_syn(&setup(3), ACCECN_SYN, EcnField::NotEct);
    bench.play(
        "> SW. 0:0(0) ack 1
         < . 1:1(0) ack 1
         write 100
         > PEA. 1:101(100) ack 1",
    );
}

/// All segments of a super-segment carry the same count, also where CWR is part of it.
#[test]
fn super_segments_stay_whole_with_a_constant_ace_count() {
    let mut bench = accepted();
    bench.play(
        "< PEA. 1:1461(1460) ack 1 ce
         > WA. 1:1(0) ack 1461 ect0
         write 2920
         > PWA. 1:2921(2920) ack 1461 ect0",
    );
}
