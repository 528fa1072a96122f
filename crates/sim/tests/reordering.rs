//! Loss on paths that reorder as well: by jitter, and by packets that skip the way. Neither may be
//! taken for loss, nor may it make the receiver drop what arrives.

mod flows;

use flows::{Lab, Path, secs};

/// What one flow got in two seconds of 500 Mbit/s: its share of the link, and the percentage of
/// segments that it sent again.
fn bulk(congestion: &str, [netem, back]: [&str; 2], seed: u64) -> [f64; 2] {
    const SECONDS: u64 = 2;
    let link = |words: &str| format!("{words} rate 500mbit limit 1000");
    let path = Path {
        netem: &link(netem),
        back: &link(back),
    };
    let mut lab = Lab::new(seed, path);
    for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
        lab.sysctl(name, "4096 131072 67108864");
    }
    let mut flow = lab.flow(congestion);
    lab.run_for(&mut [&mut flow], secs(SECONDS));
    let info = lab.info(&flow);
    let segments = flow.received() as f64 / f64::from(info.tcpi_snd_mss);
    let again = f64::from(info.tcpi_total_retrans) / segments * 100.0;
    let share = flow.received() as f64 / SECONDS as f64 / 62_500_000.0;
    println!("{netem} / {back}, {congestion}: {share:.3} of the link, {again:.2} % sent again");
    [share, again]
}

const SKIPS: [&str; 2] = ["delay 3ms loss 0.8% reorder 5%", "delay 3ms"];
const SHORT: [&str; 2] = ["delay 3ms 1ms loss 0.3%", "delay 3ms"];
const LONG: [&str; 2] = ["delay 10ms 1ms loss 0.5%", "delay 10ms"];
const BOTH_WAYS: [&str; 2] = ["delay 10ms 1ms loss 0.5%"; 2];

/// Loss of less than 1 % leaves BBR most of the link, whatever else the path does.
#[test]
fn bbr_keeps_its_rate() {
    for (path, seed, least, most) in [
        (SKIPS, 1, 0.66, 3.0),
        (SKIPS, 2, 0.66, 3.0),
        (SHORT, 1, 0.8, 2.0),
        (LONG, 1, 0.8, 2.0),
        (BOTH_WAYS, 1, 0.8, 2.0),
    ] {
        let [share, again] = bulk("bbr", path, seed);
        assert!(share > least, "{path:?}: {share}");
        assert!(again < most, "{path:?}: {again} % sent again");
    }
}

/// CUBIC's rate is what the losses leave it; what it sends again is what was lost.
#[test]
fn cubic_sends_again_what_was_lost() {
    for (path, most) in [(SKIPS, 1.6), (SHORT, 0.7), (LONG, 1.1)] {
        let seeds = 1..=4;
        let all = seeds.map(|seed| bulk("cubic", path, seed)[1]);
        let again = all.sum::<f64>() / 4.0;
        assert!(again < most, "{path:?}: {again} % sent again");
    }
}

/// One packet in twenty skips a way of 3 ms: the least round trip stays 6 ms.
#[test]
fn packets_that_skip_the_way_do_not_shorten_it() {
    for seed in 1..=3 {
        let [share, again] = bulk("bbr", ["delay 3ms reorder 5%", "delay 3ms"], seed);
        assert!(share > 0.9 && again < 0.1, "{share} {again}");
    }
}
