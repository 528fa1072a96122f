//! DCTCP over a bottleneck that marks from a low threshold on (RFC 8257).

mod flows;

use flows::{Flow, Lab, Path, secs};
use fullsend_tcp::congestion::CcInfo;

/// 100 Mbit/s and 2 ms; packets queued longer than 1 ms, half a round trip, are marked.
const STEP: Path<'static> = Path {
    netem: "delay 1ms rate 100mbit limit 1000 ce_threshold 1ms",
    back: "delay 1ms",
};
/// Payload bytes that the link carries per second.
const BYTES: f64 = 12_500_000.0 * 1448.0 / 1500.0;
const PATH_US: u32 = 2_000;

fn lab(path: Path<'_>) -> Lab {
    let mut lab = Lab::new(8, path);
    lab.sysctl("tcp_congestion_control", "dctcp");
    lab
}

/// Returns the mean of the smoothed round trip over five seconds in microseconds, and each flow's
/// share of the link.
fn watch(lab: &mut Lab, flows: &mut [Flow]) -> (f64, Vec<f64>) {
    let before: Vec<u64> = flows.iter().map(Flow::received).collect();
    let mut sum = 0.0;
    for _ in 0..50 {
        lab.run_for(&mut flows.iter_mut().collect::<Vec<_>>(), secs(1) / 10);
        sum += f64::from(lab.info(&flows[0]).tcpi_rtt);
    }
    let received = flows.iter().map(Flow::received);
    let shares = received
        .zip(before)
        .map(|(now, before)| (now - before) as f64 / 5.0 / BYTES);
    (sum / 50.0, shares.collect())
}

#[test]
fn the_queue_stays_near_the_threshold_and_the_link_is_full() {
    let mut lab = lab(STEP);
    let mut flows = [lab.flow("dctcp")];
    lab.run_for(&mut [&mut flows[0]], secs(1));
    let (rtt, shares) = watch(&mut lab, &mut flows);
    let info = lab.info(&flows[0]);
    println!(
        "{rtt:.0} us, {:.3} of the link, {:?}",
        shares[0],
        lab.cc(&flows[0])
    );
    assert!(shares[0] > 0.95, "{}", shares[0]);
    assert!(
        (500.0..1_500.0).contains(&(rtt - f64::from(PATH_US))),
        "{rtt}"
    );
    assert_eq!(info.tcpi_total_retrans, 0);
    // Some of the data is marked, not all of it.
    let CcInfo::Dctcp { alpha, .. } = lab.cc(&flows[0]) else {
        panic!("ECN was agreed on");
    };
    assert!((1..512).contains(&alpha), "{alpha}");
}

#[test]
fn several_flows_share_and_the_queue_stays_short() {
    let mut lab = lab(STEP);
    let mut flows: Vec<Flow> = (0..4).map(|_| lab.flow("dctcp")).collect();
    lab.run_for(&mut flows.iter_mut().collect::<Vec<_>>(), secs(2));
    let (rtt, shares) = watch(&mut lab, &mut flows);
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
fn it_gets_more_from_a_low_threshold_than_reno() {
    let share = |congestion| {
        let path = Path {
            netem: "delay 10ms rate 100mbit limit 1000 ce_threshold 3ms",
            back: "delay 10ms",
        };
        let mut lab = Lab::new(8, path);
        lab.sysctl("tcp_congestion_control", congestion);
        lab.sysctl("tcp_ecn", "1");
        let mut flows = [lab.flow(congestion)];
        lab.run_for(&mut [&mut flows[0]], secs(2));
        watch(&mut lab, &mut flows).1[0]
    };
    let (dctcp, reno) = (share("dctcp"), share("reno"));
    println!("dctcp {dctcp:.3}, reno {reno:.3}");
    assert!(dctcp > 0.95 && dctcp > reno + 0.1, "{dctcp} {reno}");
}

/// A receiver that repeats ECE until it receives CWR (RFC 3168) reports more marks than there were:
/// the link is less full, but nothing stalls.
#[test]
fn a_receiver_without_it_does_not_stall_it() {
    let mut lab = Lab::new(8, STEP);
    lab.sysctl_of(0, "tcp_congestion_control", "dctcp");
    // Its SYN is ECN-capable, which only accurate ECN and DCTCP understand.
    lab.sysctl_of(1, "tcp_congestion_control", "dctcp");
    let mut flows = [lab.flow("dctcp")];
    lab.switch_server(&flows[0], "cubic");
    lab.run_for(&mut [&mut flows[0]], secs(1));
    let (rtt, shares) = watch(&mut lab, &mut flows);
    let info = lab.info(&flows[0]);
    println!("{rtt:.0} us, {:.3} of the link", shares[0]);
    assert!(shares[0] > 0.7, "{}", shares[0]);
    assert!(rtt - f64::from(PATH_US) < 2_000.0, "{rtt}");
    assert_eq!(info.tcpi_total_retrans, 0);
}

/// With a peer that does not negotiate ECN, DCTCP behaves like Reno, which fills the queue.
#[test]
fn without_ecn_it_does_as_reno_does() {
    let mut lab = lab(STEP);
    lab.sysctl_of(1, "tcp_congestion_control", "cubic");
    lab.sysctl_of(1, "tcp_ecn", "0");
    let mut flows = [lab.flow("dctcp")];
    let (rtt, shares) = watch(&mut lab, &mut flows);
    println!("{rtt:.0} us, {:.3} of the link", shares[0]);
    assert_eq!(lab.cc(&flows[0]), CcInfo::DctcpFallback);
    assert!(shares[0] > 0.9, "{}", shares[0]);
    assert_eq!(lab.counter(1, "IpExtInCEPkts"), 0);
    assert!(rtt > 10_000.0, "{rtt}");
}

/// A loss halves the window, and the flow recovers from it.
#[test]
fn it_recovers_from_losses_among_the_marks() {
    let path = Path {
        netem: "delay 1ms rate 100mbit limit 1000 loss 0.01% ce_threshold 1ms",
        ..STEP
    };
    let mut lab = lab(path);
    let mut flows = [lab.flow("dctcp")];
    let (_, shares) = watch(&mut lab, &mut flows);
    let info = lab.info(&flows[0]);
    println!(
        "{:.3} of the link, {} repeated",
        shares[0], info.tcpi_total_retrans
    );
    assert!(info.tcpi_total_retrans > 0);
    assert!(shares[0] > 0.9, "{}", shares[0]);
}
