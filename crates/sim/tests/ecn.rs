//! ECN over a bottleneck that marks (RFC 3168).

mod flows;

use flows::{Flow, Path, Testbed, secs};

/// 50 Mbit/s and 20 ms; packets queued longer than 5 ms are marked.
const MARKING: Path<'static> = Path {
    netem: "delay 10ms rate 50mbit limit 1000 ce_threshold 5ms",
    reverse: "delay 10ms",
};
const BYTES: f64 = 6_250_000.0;

fn run(path: Path<'_>, tcp_ecn: &str, congestion: &str) -> (Testbed, Flow, f64) {
    let mut testbed = Testbed::new(3, path);
    testbed.sysctl("tcp_ecn", tcp_ecn);
    let mut flow = testbed.flow(congestion);
    testbed.run_for(&mut [&mut flow], secs(10));
    let share = flow.received() as f64 / 10.0 / BYTES;
    println!("{congestion}, tcp_ecn={tcp_ecn}: {share:.3}");
    (testbed, flow, share)
}

#[test]
fn marks_keep_the_queue_short_and_nothing_is_lost() {
    for congestion in ["cubic", "reno", "bbr"] {
        let (mut testbed, flow, share) = run(MARKING, "1", congestion);
        let info = testbed.info(&flow);
        assert_eq!(info.tcpi_total_retrans, 0, "{congestion}");
        // 20 ms and the threshold, plus the queue of a burst.
        let srtt = info.tcpi_rtt;
        assert!(srtt < 40_000, "{congestion}: {srtt} us");
        assert!(share > 0.75, "{congestion}: {share}");
        assert!(testbed.counter(1, "IpExtInCEPkts") > 0, "{congestion}");
        assert!(
            testbed.counter(1, "IpExtInECT0Pkts") > 10_000,
            "{congestion}"
        );
        // ACKs are not ECN-capable.
        assert_eq!(testbed.counter(0, "IpExtInECT0Pkts"), 0, "{congestion}");
        assert!(info.tcpi_delivered_ce > 0, "{congestion}");
    }
}

/// Accurate ECN over the same link, with a return path that marks too.
#[test]
fn accurate_ecn_performs_like_ecn_and_counts_marks() {
    let path = Path {
        reverse: "delay 10ms loss 1% ecn",
        ..MARKING
    };
    for congestion in ["cubic", "bbr"] {
        let (mut testbed, flow, share) = run(path, "3", congestion);
        let info = testbed.info(&flow);
        assert_eq!(info.tcpi_total_retrans, 0, "{congestion}");
        assert!(info.tcpi_rtt < 40_000, "{congestion}: {} us", info.tcpi_rtt);
        assert!(share > 0.75, "{congestion}: {share}");
        // Marks of packets in flight, and of the end of the handshake, are not reported yet.
        let marked = testbed.counter(1, "IpExtInCEPkts");
        let known = u64::from(info.tcpi_delivered_ce);
        assert!(
            known > 0 && known.abs_diff(marked) <= 64,
            "{congestion}: {known} of {marked}"
        );
        assert!(testbed.counter(0, "IpExtInCEPkts") > 0, "{congestion}");
        // The option reports the bytes that arrived with each ECN field.
        let e0 = u64::from(info.tcpi_delivered_e0_bytes);
        let ce = u64::from(info.tcpi_delivered_ce_bytes);
        assert!(
            (e0 + ce).abs_diff(info.tcpi_bytes_acked) < 200_000,
            "{e0} and {ce}"
        );
        assert!(
            ce.abs_diff(known * u64::from(info.tcpi_snd_mss)) < 200_000,
            "{ce}"
        );
    }
}

/// Without ECN, packets are not marked, and fill the queue.
#[test]
fn without_ecn_nothing_is_marked() {
    let (mut testbed, flow, _) = run(MARKING, "0", "cubic");
    assert_eq!(testbed.counter(1, "IpExtInCEPkts"), 0);
    let info = testbed.info(&flow);
    assert_eq!(info.tcpi_delivered_ce, 0);
    assert!(info.tcpi_rtt > 60_000, "{} us", info.tcpi_rtt);
}

/// Random marks reduce the window like losses, without retransmissions: with one mark in a
/// thousand, to about Reno's window.
#[test]
fn random_marks_reduce_cwnd_like_losses() {
    let path = Path {
        netem: "delay 10ms rate 50mbit limit 1000 loss 0.1% ecn",
        reverse: "delay 10ms",
    };
    let (mut testbed, flow, share) = run(path, "1", "reno");
    assert_eq!(testbed.info(&flow).tcpi_total_retrans, 0);
    assert!((0.2..0.9).contains(&share), "{share}");
}
