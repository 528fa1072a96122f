//! BBR on paths of every kind: long pipes with short queues, random loss, competing flows.

mod flows;

use flows::{Flow, Path, Testbed, ms, secs};
use fullsend_wire::Nanos;

/// 100 Mbit/s and 40 ms: the path holds 345 segments.
const WAN: Path<'static> = Path {
    netem: "delay 20ms rate 100mbit limit 2000",
    reverse: "delay 20ms",
};
const WAN_BYTES: f64 = 12_500_000.0;

#[test]
fn one_flow_fills_the_pipe_and_leaves_the_queue_short() {
    let median_rtt = |congestion| {
        let mut testbed = Testbed::new(1, WAN);
        let mut flow = testbed.flow(congestion);
        testbed.run_for(&mut [&mut flow], secs(2));
        let mut rtts = Vec::new();
        let start = flow.received();
        for _ in 0..100 {
            testbed.run_for(&mut [&mut flow], ms(100));
            rtts.push(testbed.info(&flow).tcpi_rtt);
        }
        rtts.sort_unstable();
        let share = (flow.received() - start) as f64 / 10.0 / WAN_BYTES;
        println!(
            "{congestion}: {share:.3} of the link, srtt {:?} us",
            rtts[50]
        );
        assert!(share > 0.9, "{congestion}: {share}");
        rtts[50]
    };
    let (bbr, cubic) = (median_rtt("bbr"), median_rtt("cubic"));
    assert!(bbr < 60_000, "{bbr}");
    assert!(2 * bbr < cubic, "{bbr} against {cubic}");
}

/// The host's fq keeps the departure times, instead of the connection's timer.
#[test]
fn fq_pacing_performs_like_internal_pacing() {
    let mut testbed = Testbed::with_qdisc(11, WAN, "fq");
    let mut flow = testbed.flow("bbr");
    testbed.run_for(&mut [&mut flow], secs(2));
    let before = flow.received();
    testbed.run_for(&mut [&mut flow], secs(5));
    let share = (flow.received() - before) as f64 / 5.0 / WAN_BYTES;
    let info = testbed.info(&flow);
    println!(
        "behind fq: {share:.3} of the link, srtt {} us",
        info.tcpi_rtt
    );
    assert!(share > 0.9, "{share}");
    assert!(
        info.tcpi_rtt < 60_000 && info.tcpi_total_retrans == 0,
        "{info:?}"
    );
}

/// Loss below the rate that probing tolerates is not a sign of congestion.
#[test]
fn random_loss_does_not_slow_bbr() {
    for (delay, bbr_least, cubic_most) in [("5ms", 0.88, 0.25), ("20ms", 0.88, 0.1)] {
        let share = |congestion| {
            let path = Path {
                netem: &format!("delay {delay} rate 100mbit limit 2000 loss 1%"),
                reverse: &format!("delay {delay}"),
            };
            let mut testbed = Testbed::new(2, path);
            let mut flow = testbed.flow(congestion);
            testbed.run_for(&mut [&mut flow], secs(15));
            let share = flow.received() as f64 / 15.0 / WAN_BYTES;
            println!("{delay}, {congestion}: {share:.3} of the link");
            share
        };
        assert!(share("bbr") > bbr_least);
        assert!(share("cubic") < cubic_most);
    }
}

/// With one loss in a hundred, on a path that takes a dozen round trips to fill, neither the
/// receiver's window nor the losses of Startup limit the flow, with either pacing.
#[test]
fn random_loss_does_not_slow_a_long_fat_path() {
    let path = Path {
        netem: "delay 25ms rate 400mbit limit 500 loss 1%",
        reverse: "delay 25ms",
    };
    for (qdisc, seed) in [("noqueue", 1), ("noqueue", 2), ("fq", 1), ("fq", 2)] {
        let mut testbed = Testbed::with_qdisc(seed, path, qdisc);
        for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            testbed.sysctl(name, "4096 131072 67108864");
        }
        let mut flow = testbed.flow("bbr");
        testbed.run_for(&mut [&mut flow], ms(700));
        let before = flow.received();
        testbed.run_for(&mut [&mut flow], ms(1500));
        let share = (flow.received() - before) as f64 / 1.5 / 50_000_000.0;
        let waited = testbed.info(&flow).tcpi_rwnd_limited;
        println!("{qdisc}, {seed}: {share:.3} of the link, {waited} us for the window");
        assert!(share > 0.8, "{qdisc}, {seed}: {share}");
        assert!(waited < 150_000, "{waited}");
    }
}

/// Runs two flows, the second after `gap`; returns their shares of the link in each of the spans.
fn two_flows<const N: usize>(netem: &str, gap: Nanos, spans: [Nanos; N]) -> [[f64; 2]; N] {
    let mut testbed = Testbed::new(4, Path { netem, ..WAN });
    let mut first = testbed.flow("bbr");
    testbed.run_for(&mut [&mut first], gap);
    let mut second = testbed.flow("bbr");
    spans.map(|span| {
        let before = [first.received(), second.received()];
        testbed.run_for(&mut [&mut first, &mut second], span);
        let received = [first.received(), second.received()];
        let link = span.as_secs_f64() * WAN_BYTES;
        let shares = [0, 1].map(|i| (received[i] - before[i]) as f64 / link);
        println!("{netem}: {:.3} and {:.3} of the link", shares[0], shares[1]);
        shares
    })
}

#[test]
fn two_flows_share_equally() {
    let [_, [a, b]] = two_flows(WAN.netem, ms(0), [secs(5), secs(15)]);
    assert!(a.min(b) / a.max(b) > 0.75, "{a} {b}");
    assert!(a + b > 0.9, "{a} {b}");
}

/// A new flow has about half after some twenty probes, which come at random times; the deeper the
/// buffer, the more probes.
#[test]
fn a_late_flow_gains_its_share() {
    let shallow = "delay 20ms rate 100mbit limit 350";
    let [_, [old, new]] = two_flows(shallow, secs(5), [secs(45), secs(15)]);
    assert!(old.min(new) / old.max(new) > 0.8, "{old} {new}");
    let [[_, early], _, [_, late]] = two_flows(WAN.netem, secs(5), [secs(10), secs(30), secs(10)]);
    assert!(late > 0.33 && late > 1.2 * early, "{early} {late}");
}

#[test]
fn bbr_and_cubic_coexist() {
    let path = Path {
        netem: "delay 20ms rate 100mbit limit 350",
        ..WAN
    };
    let mut testbed = Testbed::new(5, path);
    let (mut bbr, mut cubic) = (testbed.flow("bbr"), testbed.flow("cubic"));
    testbed.run_for(&mut [&mut bbr, &mut cubic], secs(40));
    let share = |flow: &Flow| flow.received() as f64 / 40.0 / WAN_BYTES;
    let (bbr, cubic) = (share(&bbr), share(&cubic));
    println!("bbr {bbr:.3}, cubic {cubic:.3} of the link");
    assert!(bbr > 0.15 && cubic > 0.15, "{bbr} {cubic}");
    assert!(bbr + cubic > 0.9);
}

/// With a queue of a fifth to a half of what the path holds, and flows of eight to fifty segments,
/// BBR reacts to loss early enough for CUBIC to compete. The bounds are four fifths of the least
/// that CUBIC gets with any seed, and a little more than the most that BBR gets.
#[test]
fn a_shallow_buffer_is_shared_with_cubic() {
    for (netem, reverse, bytes, cubic_least, bbr_most) in [
        (
            "delay 20ms rate 100mbit limit 70",
            "delay 20ms",
            WAN_BYTES,
            0.2,
            0.74,
        ),
        (
            "delay 20ms rate 30mbit limit 20",
            "delay 20ms",
            3_750_000.0,
            0.26,
            0.68,
        ),
        (
            "delay 10ms rate 10mbit limit 6",
            "delay 10ms",
            1_250_000.0,
            0.17,
            0.79,
        ),
        (
            "delay 10ms rate 10mbit limit 10",
            "delay 10ms",
            1_250_000.0,
            0.13,
            0.84,
        ),
    ] {
        for seed in 1..=5 {
            let mut testbed = Testbed::new(seed, Path { netem, reverse });
            let (mut bbr, mut cubic) = (testbed.flow("bbr"), testbed.flow("cubic"));
            testbed.run_for(&mut [&mut bbr, &mut cubic], secs(30));
            let [bbr, cubic] = [bbr, cubic].map(|flow| flow.received() as f64 / 30.0 / bytes);
            println!("{netem}, {seed}: bbr {bbr:.3}, cubic {cubic:.3} of the link");
            assert!(cubic > cubic_least, "{netem}, {seed}: cubic {cubic}");
            assert!(
                (0.45..bbr_most).contains(&bbr),
                "{netem}, {seed}: bbr {bbr}"
            );
            assert!(bbr + cubic > 0.9, "{netem}, {seed}: {bbr} {cubic}");
        }
    }
}

/// An application limit of 2 Mbit/s on a path of 100 Mbit/s neither raises the estimate above the
/// path's rate, nor becomes the estimate.
#[test]
fn an_app_limited_flow_does_not_distort_the_estimate() {
    let mut testbed = Testbed::new(5, WAN);
    let mut flow = testbed.flow("bbr");
    testbed.run_for(&mut [&mut flow], secs(3));
    let full = testbed.bw(&flow);
    assert!((0.9..1.05).contains(&(full / WAN_BYTES)), "{full}");
    flow.stop();
    testbed.run_for(&mut [&mut flow], secs(1));
    for _ in 0..400 {
        flow.add_bytes(5000);
        testbed.run_for(&mut [&mut flow], ms(20));
        let now = testbed.bw(&flow);
        assert!((0.85..1.1).contains(&(now / full)), "{now} after {full}");
    }
    assert!(testbed.info(&flow).tcpi_delivery_rate_app_limited || testbed.bw(&flow) > 0.0);
}

#[test]
fn an_app_limited_start_is_not_a_slow_path() {
    let mut testbed = Testbed::new(6, WAN);
    let mut flow = testbed.flow("bbr");
    flow.stop();
    for _ in 0..200 {
        flow.add_bytes(5000);
        testbed.run_for(&mut [&mut flow], ms(20));
        assert!(testbed.bw(&flow) < 1.1 * WAN_BYTES);
    }
    let info = testbed.info(&flow);
    assert!(info.tcpi_delivery_rate_app_limited);
    // Still in Startup: the first bulk data measures the path's rate.
    assert!(testbed.cc(&flow).to_string().contains("pacing_gain:2.77,"));
    flow.set_unlimited();
    let before = flow.received();
    testbed.run_for(&mut [&mut flow], secs(2));
    assert!((flow.received() - before) as f64 / 2.0 > 0.8 * WAN_BYTES);
}

#[test]
fn bbr_probes_rtt_every_five_seconds() {
    let mut testbed = Testbed::new(7, WAN);
    let mut flow = testbed.flow("bbr");
    let mut pauses = Vec::new();
    let mut pausing = false;
    for step in 0..3000 {
        testbed.run_for(&mut [&mut flow], ms(10));
        let now = testbed.cc(&flow).to_string().ends_with("cwnd_gain:0.5)");
        if now && !pausing {
            pauses.push(step * 10);
        }
        pausing = now;
    }
    println!("pauses at {pauses:?} ms");
    assert!((3..=6).contains(&pauses.len()), "{pauses:?}");
    for gap in pauses.windows(2).map(|pair| pair[1] - pair[0]) {
        assert!((5000..=10_500).contains(&gap), "{pauses:?}");
    }
    // The minimum round trip is that of the path without a queue.
    let min_rtt = testbed.info(&flow).tcpi_min_rtt;
    assert!((40_000..42_000).contains(&min_rtt), "{min_rtt}");
}

#[test]
fn max_pacing_rate_bounds_bbr() {
    let mut testbed = Testbed::new(8, WAN);
    let mut flow = testbed.flow("bbr");
    testbed.set_max_pacing_rate(&flow, 2_000_000);
    testbed.run_for(&mut [&mut flow], secs(5));
    let rate = flow.received() as f64 / 5.0;
    assert!((1_800_000.0..2_010_000.0).contains(&rate), "{rate}");
    assert!(testbed.info(&flow).tcpi_pacing_rate <= 2_000_000);
}

#[test]
fn a_hundred_flows_fill_a_long_fat_pipe() {
    let path = Path {
        netem: "delay 50ms rate 1gbit limit 20000",
        reverse: "delay 50ms",
    };
    let mut testbed = Testbed::new(9, path);
    testbed.sysctl("net.ipv4.tcp_wmem", "4096 16384 64000000");
    let mut flows: Vec<Flow> = (0..100).map(|_| testbed.flow("bbr")).collect();
    let mut all: Vec<&mut Flow> = flows.iter_mut().collect();
    testbed.run_for(&mut all, secs(3));
    let before: u64 = all.iter().map(|flow| flow.received()).sum();
    testbed.run_for(&mut all, secs(4));
    let after: u64 = all.iter().map(|flow| flow.received()).sum();
    let share = (after - before) as f64 / 4.0 / 125_000_000.0;
    println!("{share:.3} of the link");
    assert!(share > 0.9, "{share}");
}

#[test]
fn bbr_can_be_selected_during_a_flow() {
    let mut testbed = Testbed::new(12, WAN);
    let mut flow = testbed.flow("cubic");
    testbed.run_for(&mut [&mut flow], secs(3));
    for (congestion, rtt_most) in [("bbr", 60_000), ("cubic", 260_000), ("bbr", 60_000)] {
        testbed.set_sender_congestion(&flow, congestion);
        testbed.run_for(&mut [&mut flow], secs(6));
        let before = flow.received();
        testbed.run_for(&mut [&mut flow], secs(4));
        let share = (flow.received() - before) as f64 / 4.0 / WAN_BYTES;
        let rtt = testbed.info(&flow).tcpi_rtt;
        println!("{congestion}: {share:.3} of the link, srtt {rtt} us");
        assert!(
            share > 0.85 && rtt < rtt_most,
            "{congestion}: {share} {rtt}"
        );
    }
}

/// The path loses half its rate, and gets it back.
#[test]
fn bbr_follows_bandwidth_changes() {
    let mut testbed = Testbed::new(10, WAN);
    let mut flow = testbed.flow("bbr");
    testbed.run_for(&mut [&mut flow], secs(5));
    for (netem, bytes, settle) in [
        ("delay 20ms rate 50mbit limit 2000", 6_250_000.0, 10),
        ("delay 20ms rate 100mbit limit 2000", 12_500_000.0, 10),
    ] {
        testbed.set_netem(netem);
        testbed.run_for(&mut [&mut flow], secs(settle));
        let before = flow.received();
        testbed.run_for(&mut [&mut flow], secs(5));
        let share = (flow.received() - before) as f64 / 5.0 / bytes;
        println!("{netem}: {share:.3}, {}", testbed.cc(&flow));
        assert!(share > 0.85, "{netem}: {share}");
    }
}
