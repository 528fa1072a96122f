//! Bulk transfers over good and bad links: every byte arrives, in order.

mod common;

use std::fmt::Write as _;

use common::{MODES, Scenario, netem, run};
use fullsend_offload::Link;
use fullsend_sim::NicConfig;
use fullsend_wire::{Nanos, Rate, Rng, Seed};

fn with(nic: (fullsend_sim::NicMode, bool), spec: &str) -> Scenario {
    Scenario {
        nic: NicConfig {
            mode: nic.0,
            rx_coalesce: Nanos::from_micros(20),
            ..NicConfig::default()
        },
        v6: nic.1,
        netem: netem(spec),
        ..Scenario::default()
    }
}

#[test]
fn a_clean_link_needs_no_retransmissions() {
    for nic in MODES {
        let scenario = Scenario {
            bytes: [8 << 20, 4 << 20],
            ..with(nic, "delay 5ms rate 1gbit limit 100000")
        };
        let outcome = run(&scenario);
        assert_eq!(outcome.retransmitted, [0, 0], "{nic:?}");
        // 8 MiB take 67 ms at the link's rate; slow start takes the rest.
        assert!(outcome.took < Nanos::from_millis(400), "{:?}", outcome.took);
    }
}

#[test]
fn a_bad_link_loses_no_byte() {
    for nic in MODES {
        for spec in [
            "delay 10ms 3ms rate 200mbit loss 2% duplicate 1%",
            "delay 10ms rate 200mbit loss 2% reorder 5% duplicate 1%",
            "delay 5ms rate 200mbit loss gemodel 0.5% 20%",
            "delay 10ms 1ms rate 200mbit loss 2% corrupt 1%",
        ] {
            run(&with(nic, spec));
        }
    }
}

#[test]
fn ethernet_hosts_resolve_each_other() {
    for nic in MODES {
        let mut scenario = with(nic, "delay 10ms rate 200mbit loss 2% duplicate 1%");
        scenario.nic.link = Link::Ethernet;
        run(&scenario);
    }
}

#[test]
fn a_rate_limited_nic_completes_on_send() {
    for nic in MODES {
        let mut scenario = with(nic, "delay 5ms loss 1%");
        scenario.nic.rate = Rate(25_000_000);
        run(&scenario);
    }
}

#[test]
fn equal_seeds_give_identical_runs() {
    for nic in MODES {
        let spec = "delay 10ms 3ms rate 50mbit loss 2% duplicate 1% corrupt 1%";
        let scenario = with(nic, spec);
        let (first, again) = (run(&scenario), run(&scenario));
        assert_eq!(first, again);
        let other = run(&Scenario {
            seed: 2,
            ..scenario
        });
        assert_ne!(first.trace_hash, other.trace_hash);
    }
}

/// Runs 1000 seeds; `FULLSEND_SEEDS=first..last` runs others.
#[test]
fn a_thousand_seeds() {
    let seeds = std::env::var("FULLSEND_SEEDS").unwrap_or_else(|_| "0..1000".to_owned());
    let bounds = seeds.split_once("..").map(|(a, b)| (a.parse(), b.parse()));
    let Some((Ok(first), Ok(last))) = bounds else {
        panic!("FULLSEND_SEEDS={seeds} is not a range like 0..1000");
    };
    for seed in first..last {
        run(&draw(seed));
    }
}

/// Returns the scenario of a seed: sizes, link and faults vary.
fn draw(seed: u64) -> Scenario {
    let mut rng = Rng::new(Seed::from_u64(seed ^ 0xface));
    let nic = MODES[rng.below(4) as usize];
    let delay_us = 10 << rng.below(12);
    let (rate, limit) = (1 << rng.below(11), 20 << rng.below(7));
    let mut spec = format!("rate {rate}mbit limit {limit} delay {delay_us}us ");
    if rng.chance(0.5) {
        let _ = write!(spec, "{}us ", delay_us / 4);
    }
    for (fault, percent) in [
        ("loss", 2),
        ("duplicate", 2),
        ("corrupt", 2),
        ("reorder", 5),
    ] {
        if rng.chance(0.6) {
            let _ = write!(spec, "{fault} {percent}% ");
        }
    }
    let mut scenario = with(nic, &spec);
    scenario.seed = seed;
    scenario.bytes = [rng.below(200_000), rng.below(50_000)];
    if rng.chance(0.2) {
        scenario.nic.link = Link::Ethernet;
    }
    if rng.chance(0.3) {
        scenario.nic.rx_coalesce = Nanos::ZERO;
    }
    if rng.chance(0.3) {
        scenario.nic.mtu = 1280 + rng.below(8000) as u32;
    }
    if rng.chance(0.3) {
        scenario.congestion = "reno";
    }
    for name in ["tcp_sack", "tcp_timestamps", "tcp_window_scaling"] {
        if rng.chance(0.1) {
            scenario.disabled_sysctls.push(name);
        }
    }
    if rng.chance(0.3) {
        scenario.pause = Nanos::from_micros(1 << rng.below(18));
    }
    if rng.chance(0.3) {
        let qdiscs = [
            "pfifo limit 20",
            "fq",
            "fq limit 30 flow_limit 10 ce_threshold 1ms",
            "tbf rate 20mbit burst 10kb latency 20ms",
        ];
        let qdisc = qdiscs[rng.below(4) as usize];
        scenario.nic.qdisc = qdisc.parse().unwrap();
    }
    if rng.chance(0.3) {
        scenario.rcvbuf = Some(5000 << rng.below(6));
    }
    if rng.chance(0.4) {
        scenario.congestion = "bbr";
    }
    scenario
}
