//! DCTCP over a bottleneck that marks from a low threshold on (RFC 8257).

mod flows;

use flows::{Flow, Path, Testbed, secs};
use fullsend_tcp::congestion::CcInfo;

/// 100 Mbit/s and 2 ms; packets queued longer than 1 ms, half a round trip, are marked.
const STEP: Path<'static> = Path {
    netem: "delay 1ms rate 100mbit limit 1000 ce_threshold 1ms",
    reverse: "delay 1ms",
};
/// Payload bytes that the link carries per second.
const BYTES: f64 = 12_500_000.0 * 1448.0 / 1500.0;
const PATH_US: u32 = 2_000;

fn testbed(path: Path<'_>) -> Testbed {
    let mut testbed = Testbed::new(8, path);
    testbed.sysctl("tcp_congestion_control", "dctcp");
    testbed
}

/// Returns the mean of the smoothed round trip over five seconds in microseconds, and each flow's
/// share of the link.
fn measure(testbed: &mut Testbed, flows: &mut [Flow]) -> (f64, Vec<f64>) {
    let before: Vec<u64> = flows.iter().map(Flow::received).collect();
    let mut sum = 0.0;
    for _ in 0..50 {
        testbed.run_for(&mut flows.iter_mut().collect::<Vec<_>>(), secs(1) / 10);
        sum += f64::from(testbed.info(&flows[0]).tcpi_rtt);
    }
    let received = flows.iter().map(Flow::received);
    let shares = received
        .zip(before)
        .map(|(now, before)| (now - before) as f64 / 5.0 / BYTES);
    (sum / 50.0, shares.collect())
}

#[test]
fn the_queue_stays_near_the_threshold_and_the_link_is_full() {
    let mut testbed = testbed(STEP);
    let mut flows = [testbed.flow("dctcp")];
    testbed.run_for(&mut [&mut flows[0]], secs(1));
    let (rtt, shares) = measure(&mut testbed, &mut flows);
    let info = testbed.info(&flows[0]);
    println!(
        "{rtt:.0} us, {:.3} of the link, {:?}",
        shares[0],
        testbed.cc(&flows[0])
    );
    assert!(shares[0] > 0.95, "{}", shares[0]);
    assert!(
        (500.0..1_500.0).contains(&(rtt - f64::from(PATH_US))),
        "{rtt}"
    );
    assert_eq!(info.tcpi_total_retrans, 0);
    // Some of the data is marked, not all of it.
    let CcInfo::Dctcp { alpha, .. } = testbed.cc(&flows[0]) else {
        panic!("ECN was agreed on");
    };
    assert!((1..512).contains(&alpha), "{alpha}");
}

#[test]
fn several_flows_share_and_the_queue_stays_short() {
    let mut testbed = testbed(STEP);
    let mut flows: Vec<Flow> = (0..4).map(|_| testbed.flow("dctcp")).collect();
    testbed.run_for(&mut flows.iter_mut().collect::<Vec<_>>(), secs(2));
    let (rtt, shares) = measure(&mut testbed, &mut flows);
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let jain = sum * sum / (shares.len() as f64 * squares);
    println!("{rtt:.0} us, {shares:.3?}, Jain's index {jain:.3}");
    assert!(sum > 0.95, "{sum}");
    assert!(jain > 0.95, "{jain}");
    assert!(rtt - f64::from(PATH_US) < 2_000.0, "{rtt}");
}

/// With such a threshold, halving on each mark leaves the link idle, which DCTCP avoids.
#[test]
fn dctcp_outperforms_reno_at_a_low_threshold() {
    let share = |congestion| {
        let path = Path {
            netem: "delay 10ms rate 100mbit limit 1000 ce_threshold 3ms",
            reverse: "delay 10ms",
        };
        let mut testbed = Testbed::new(8, path);
        testbed.sysctl("tcp_congestion_control", congestion);
        testbed.sysctl("tcp_ecn", "1");
        let mut flows = [testbed.flow(congestion)];
        testbed.run_for(&mut [&mut flows[0]], secs(2));
        measure(&mut testbed, &mut flows).1[0]
    };
    let (dctcp, reno) = (share("dctcp"), share("reno"));
    println!("dctcp {dctcp:.3}, reno {reno:.3}");
    assert!(dctcp > 0.95 && dctcp > reno + 0.1, "{dctcp} {reno}");
}

/// A receiver that repeats ECE until it receives CWR (RFC 3168) reports more marks than there were:
/// the link is less full, but nothing stalls.
#[test]
fn a_receiver_without_dctcp_does_not_stall_the_sender() {
    let mut testbed = Testbed::new(8, STEP);
    testbed.sysctl_of(0, "tcp_congestion_control", "dctcp");
    // Its SYN is ECN-capable, which only accurate ECN and DCTCP understand.
    testbed.sysctl_of(1, "tcp_congestion_control", "dctcp");
    let mut flows = [testbed.flow("dctcp")];
    testbed.set_receiver_congestion(&flows[0], "cubic");
    testbed.run_for(&mut [&mut flows[0]], secs(1));
    let (rtt, shares) = measure(&mut testbed, &mut flows);
    let info = testbed.info(&flows[0]);
    println!("{rtt:.0} us, {:.3} of the link", shares[0]);
    assert!(shares[0] > 0.7, "{}", shares[0]);
    assert!(rtt - f64::from(PATH_US) < 2_000.0, "{rtt}");
    assert_eq!(info.tcpi_total_retrans, 0);
}

/// With a peer that does not negotiate ECN, DCTCP behaves like Reno, which fills the queue.
#[test]
fn without_ecn_dctcp_behaves_like_reno() {
    let mut testbed = testbed(STEP);
    testbed.sysctl_of(1, "tcp_congestion_control", "cubic");
    testbed.sysctl_of(1, "tcp_ecn", "0");
    let mut flows = [testbed.flow("dctcp")];
    let (rtt, shares) = measure(&mut testbed, &mut flows);
    println!("{rtt:.0} us, {:.3} of the link", shares[0]);
    assert_eq!(testbed.cc(&flows[0]), CcInfo::DctcpFallback);
    assert!(shares[0] > 0.9, "{}", shares[0]);
    assert_eq!(testbed.counter(1, "IpExtInCEPkts"), 0);
    assert!(rtt > 10_000.0, "{rtt}");
}

/// A loss halves the window, and the flow recovers from it.
#[test]
fn dctcp_recovers_from_losses_among_marks() {
    let path = Path {
        netem: "delay 1ms rate 100mbit limit 1000 loss 0.01% ce_threshold 1ms",
        ..STEP
    };
    let mut testbed = testbed(path);
    let mut flows = [testbed.flow("dctcp")];
    let (_, shares) = measure(&mut testbed, &mut flows);
    let info = testbed.info(&flows[0]);
    println!(
        "{:.3} of the link, {} repeated",
        shares[0], info.tcpi_total_retrans
    );
    assert!(info.tcpi_total_retrans > 0);
    assert!(shares[0] > 0.9, "{}", shares[0]);
}
