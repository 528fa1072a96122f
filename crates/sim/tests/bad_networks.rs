//! Transfers over networks with every fault: heavy loss, even and in bursts, reordering up to
//! 100 ms, duplicates, bit errors, lost ACKs, links that go down, paths whose MTU changes with and
//! without notification, queues of seconds. Each transfer delivers every byte, ends, and frees all
//! memory.

mod common;

use std::fmt::Write as _;
use std::ops::Range;

use common::{MODES, Scenario, netem, run};
use fullsend_sim::{Netem, RandomLoss};
use fullsend_wire::{Nanos, Rng, Seed};

/// Runs 300 seeds in every build; 10,000 run with `cargo test --release -p fullsend-sim --test
/// bad_networks -- --ignored`. `FULLSEND_SEEDS=first..last` runs others.
#[test]
fn some_seeds() {
    run_seeds(0, 300);
}

#[test]
#[ignore = "takes minutes"]
fn ten_thousand_seeds() {
    run_seeds(0, 10_000);
}

fn run_seeds(first: u64, last: u64) {
    let Ok(seeds) = std::env::var("FULLSEND_SEEDS") else {
        return run_range(first..last);
    };
    let bounds = seeds.split_once("..").map(|(a, b)| (a.parse(), b.parse()));
    let Some((Ok(first), Ok(last))) = bounds else {
        panic!("FULLSEND_SEEDS={seeds} is not a range like 0..1000");
    };
    run_range(first..last);
}

fn run_range(seeds: Range<u64>) {
    for seed in seeds {
        run(&draw(seed));
    }
}

/// Returns a random element of `of`.
fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// Returns the scenario of a seed.
fn draw(seed: u64) -> Scenario {
    let mut rng = Rng::new(Seed::from_u64(seed ^ 0x0bad_0bad));
    let (mode, v6) = pick(&mut rng, &MODES);
    let mut scenario = Scenario {
        seed,
        v6,
        bytes: [rng.below(120_000), rng.below(30_000)],
        syn_retries: Some(12),
        ..Scenario::default()
    };
    scenario.nic.mode = mode;
    scenario.congestion = pick(&mut rng, &["cubic", "cubic", "reno", "bbr", "dctcp"]);
    scenario.netem = netem(&random_spec(&mut rng));
    if rng.chance(0.5) {
        // The return path has its own faults: lost ACKs.
        scenario.reverse = Some(netem(&random_spec(&mut rng)));
    }
    draw_changes(&mut rng, &mut scenario);
    draw_sockets(&mut rng, &mut scenario);
    scenario
}

/// Returns a random link description in netem's syntax.
fn random_spec(rng: &mut Rng) -> String {
    let delay_us = 100 << rng.below(11);
    let rate_kbit = 500 << rng.below(8);
    // The queue holds a few packets, or seconds of data.
    let limit = pick(rng, &[10, 50, 200, 1000, 5000]);
    let mut spec = format!("rate {rate_kbit}kbit limit {limit} delay {delay_us}us ");
    if rng.chance(0.4) {
        let jitter_us = pick(rng, &[delay_us / 8, delay_us / 2, delay_us]).min(100_000);
        let _ = write!(spec, "{jitter_us}us ");
    }
    if rng.chance(0.3) {
        let percent = pick(rng, &[1, 5, 20]);
        let _ = write!(spec, "reorder {percent}% gap {} ", 1 + rng.below(5));
    }
    match rng.below(3) {
        0 => {
            let _ = write!(spec, "loss {}% ", 1 + rng.below(20));
        }
        1 => {
            let (bad, good) = (1 + rng.below(5), pick(rng, &[50, 65, 80]));
            let _ = write!(spec, "loss gemodel {bad}% {good}% ");
        }
        _ => {}
    }
    for (fault, most) in [("duplicate", 5), ("corrupt", 3)] {
        if rng.chance(0.3) {
            let _ = write!(spec, "{fault} {}% ", 1 + rng.below(most));
        }
    }
    spec
}

/// Draws changes of the network during the transfer.
fn draw_changes(rng: &mut Rng, scenario: &mut Scenario) {
    let base = scenario.netem;
    match rng.below(10) {
        0..3 => {
            // The link goes down, for a moment or for long, and comes back.
            let down = Netem {
                loss: RandomLoss::Even(1.0),
                ..base
            };
            let from = Nanos::from_millis(rng.below(3000));
            let to = from + Nanos::from_millis(1 << rng.below(14));
            scenario.changes.extend([(from, down), (to, base)]);
        }
        3..6 => draw_mtu(rng, scenario),
        6 => {
            // The delay grows.
            let far = Netem {
                delay: base.delay * 4,
                ..base
            };
            let at = Nanos::from_millis(rng.below(2000));
            scenario.changes.push((at, far));
        }
        _ => {}
    }
}

/// Draws a path with another MTU; that of IPv6 is at least 1280.
fn draw_mtu(rng: &mut Rng, scenario: &mut Scenario) {
    let base = scenario.netem;
    let least = if scenario.v6 { 1280 } else { 600 };
    let reports_mtu = rng.chance(0.5);
    // Without notifications, the sender must probe.
    scenario.probing = !reports_mtu || rng.chance(0.2);
    let narrow = Netem {
        mtu: least + rng.below(1500 - u64::from(least)) as u32,
        reports_mtu,
        ..base
    };
    let at = Nanos::from_millis(rng.below(500));
    scenario.changes.push((at, narrow));
    if rng.chance(0.5) {
        scenario.changes.push((at + Nanos::from_secs(2), base));
    }
}

/// Draws the sysctls of the sockets.
fn draw_sockets(rng: &mut Rng, scenario: &mut Scenario) {
    for name in [
        "tcp_sack",
        "tcp_timestamps",
        "tcp_window_scaling",
        "tcp_dsack",
    ] {
        if rng.chance(0.1) {
            scenario.disabled_sysctls.push(name);
        }
    }
    if rng.chance(0.2) {
        scenario.pause = Nanos::from_micros(256 << rng.below(10));
    }
    if rng.chance(0.2) {
        scenario.rcvbuf = Some(5000 << rng.below(6));
    }
    if rng.chance(0.2) {
        scenario.nic.qdisc = pick(rng, &["fq", "pfifo limit 20"]).parse().unwrap();
    }
}
