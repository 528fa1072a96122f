//! Loss on paths that also reorder: by jitter, and by packets that skip the delay. Neither may be
//! treated as loss, nor may it make the receiver drop what arrives.

mod flows;

use flows::{Path, Testbed, secs};

/// Runs one flow for some seconds at 500 Mbit/s; returns its share of the link, and the percentages
/// of segments that it retransmitted, and that its receiver dropped for old timestamps (RFC 7323
/// 5.3).
fn bulk(congestion: &str, [netem, reverse]: [&str; 2], seed: u64) -> [f64; 3] {
    // CUBIC has few losses, which take longer to count.
    let seconds = if congestion == "cubic" { 8 } else { 2 };
    let link = |spec: &str| format!("{spec} rate 500mbit limit 1000");
    let path = Path {
        netem: &link(netem),
        reverse: &link(reverse),
    };
    let mut testbed = Testbed::new(seed, path);
    for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
        testbed.sysctl(name, "4096 131072 67108864");
    }
    let mut flow = testbed.flow(congestion);
    testbed.run_for(&mut [&mut flow], secs(seconds));
    let info = testbed.info(&flow);
    let segments = flow.received() as f64 / f64::from(info.tcpi_snd_mss);
    let again = f64::from(info.tcpi_total_retrans) / segments * 100.0;
    let share = flow.received() as f64 / seconds as f64 / 62_500_000.0;
    let old = testbed.counter(1, "TcpExtPAWSEstab") as f64 / segments * 100.0;
    println!(
        "{netem} / {reverse}, {congestion}: {share:.3} of the link, {again:.2} % sent again, \
         {old:.2} % too old"
    );
    [share, again, old]
}

const SKIPS: [&str; 2] = ["delay 3ms loss 0.8% reorder 5%", "delay 3ms"];
const SHORT: [&str; 2] = ["delay 3ms 1ms loss 0.3%", "delay 3ms"];
const LONG: [&str; 2] = ["delay 10ms 1ms loss 0.5%", "delay 10ms"];
const BOTH_DIRECTIONS: [&str; 2] = ["delay 10ms 1ms loss 0.5%"; 2];

/// With loss below 1 %, BBR keeps most of the link, whatever the path's reordering.
#[test]
fn bbr_keeps_its_rate() {
    for (path, seed, least, most) in [
        (SKIPS, 1, 0.88, 1.0),
        (SKIPS, 2, 0.88, 1.0),
        (SHORT, 1, 0.85, 0.45),
        (LONG, 1, 0.82, 0.7),
        (BOTH_DIRECTIONS, 1, 0.82, 0.7),
    ] {
        let [share, again, old] = bulk("bbr", path, seed);
        assert!(share > least, "{path:?}: {share}");
        assert!(again < most, "{path:?}: {again} % sent again");
        assert!(old < 0.1, "{path:?}: {old} % too old");
    }
}

/// CUBIC retransmits what was lost, and little else; its rate follows from the losses.
#[test]
fn cubic_retransmits_only_losses() {
    for (path, most) in [(SKIPS, 1.1), (SHORT, 0.4), (LONG, 0.65)] {
        let seeds = 1..=4;
        let all = seeds.map(|seed| bulk("cubic", path, seed)[1]);
        let again = all.sum::<f64>() / 4.0;
        assert!(again < most, "{path:?}: {again} % sent again");
    }
}

/// With one packet in twenty that skips 3 ms of delay, the minimum round trip stays 6 ms.
#[test]
fn reordered_packets_do_not_lower_min_rtt() {
    for seed in 1..=3 {
        let [share, again, _] = bulk("bbr", ["delay 3ms reorder 5%", "delay 3ms"], seed);
        assert!(share > 0.9 && again < 0.1, "{share} {again}");
    }
}
