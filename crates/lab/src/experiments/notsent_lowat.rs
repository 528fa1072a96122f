//! How much does a sender keep in memory that it cannot send yet, and how often is it woken? 100
//! BBR flows over 100 ms.

use fullsend_sim::{Netem, NicConfig};
use fullsend_tcp::legacy::Legacy;
use fullsend_units::{Instant, Nanos, Rate};

use crate::bulk::{Bulk, run_sampled};
use crate::experiment::{AFTER, BEFORE, Experiment, Run};
use crate::figure::{Check, Figure};
use crate::measure::{Measures, Series};
use crate::net::{CLIENT, Cable, End, Net, SERVER};
use crate::plot::{Kind, Plot};

#[cfg(test)]
mod tests;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "notsent-lowat",
    purpose: "TCP_NOTSENT_LOWAT bounds what a sender queues, without a wake-up at every ACK",
    source: "Linux commit a74f0fa0 \"tcp: reduce POLLOUT events caused by TCP_NOTSENT_LOWAT\" (E. Dumazet, Dec 2018): super_netperf 100, BBR, 100 ms, tcp_wmem up to 64,000,000",
    cases: &["before", "after", "old wake-ups"],
    weights: &[40, 40, 45],
    run,
    figures,
    plots,
    trace,
};

/// The case with the limit, but with the wake-ups of before.
const OLD_WAKEUPS: usize = 2;

/// `net.ipv4.tcp_notsent_lowat` with the limit.
const LOWAT: u32 = 2_097_152;
/// Bytes of one write.
const MESSAGE: usize = 64 << 10;
/// What the card gives each flow, bytes per second: 20 Gbit/s for a hundred.
const RATE_PER_FLOW: u64 = 25_000_000;
/// Each way.
const DELAY: Nanos = Nanos::from_millis(50);
/// One writer starts after the other, as processes do.
const GAP: Nanos = Nanos::from_millis(10);
const SAMPLE: Nanos = Nanos::from_millis(20);

fn network(run: &Run<'_>, flows: usize) -> Net {
    let delay = Netem {
        delay: DELAY,
        ..Netem::default()
    };
    let mut net = Net::new(
        &Cable {
            nic: NicConfig {
                // The card is the bottleneck, as in the reference.
                rate: Rate(RATE_PER_FLOW * flows as u64),
                overhead: 38,
                qdisc: "fq".parse().expect("fq needs no more words"),
                rx_wait: Nanos::from_micros(20),
                ..NicConfig::default()
            },
            netem: [delay; 2],
        },
        run.seed,
    );
    for side in [CLIENT, SERVER] {
        net.sysctl(side, "tcp_congestion_control", "bbr");
        net.sysctl(side, "tcp_wmem", "4096 262144 64000000");
        // 16 GiB before anybody is asked to save.
        net.sysctl(side, "tcp_mem", "4194304 5592405 8388608");
        net.sysctl(side, "tcp_rmem", "4096 262144 64000000");
    }
    if !run.before() {
        net.sysctl(CLIENT, "tcp_notsent_lowat", &LOWAT.to_string());
    }
    net.host(CLIENT).set_legacy(Legacy {
        pollout_on_every_ack: run.case == OLD_WAKEUPS,
        ..Legacy::default()
    });
    net
}

fn run(run: &Run<'_>) -> Measures {
    let flows = run.scaled(100, 4);
    let span = run.scaled(Nanos::from_secs(12), Nanos::from_secs(8));
    let mut net = network(run, flows);
    net.open(flows);
    let start = net.now();
    // The first half is for slow start, and for buffers to grow.
    let half = start + span / 2;
    let mut app = Bulk::start(&mut net, MESSAGE, GAP);
    let mut memory = Series::new("memory");
    let [mut cwnd, mut pacing] = ["cwnd", "pacing rate"].map(Series::new);
    let one = End {
        side: CLIENT,
        flow: flows / 2,
    };
    let mut at_half = (0, 0, 0);
    run_sampled(
        &mut net,
        &mut app,
        (span, SAMPLE),
        run.progress,
        |net, app, now| {
            let pages = net.host(CLIENT).sockstat().mem;
            memory.push(now, pages as f64 * 4096.0 / flows as f64 / MIB);
            let info = net.info(one);
            cwnd.push(
                now,
                f64::from(info.tcpi_snd_cwnd) * f64::from(info.tcpi_snd_mss) / MIB,
            );
            pacing.push(now, info.tcpi_pacing_rate as f64 * 8.0 / 1e6);
            if now <= half {
                at_half = (app.read, app.wakeups, acks(net));
            }
        },
    );
    let seconds = net.now().since(half).as_secs_f64();
    let mean = memory.mean_since(half);
    let (read, wakeups) = (app.read - at_half.0, app.wakeups - at_half.1);
    let mut out = Measures::default();
    out.set("memory_per_flow_mib", mean);
    out.set("pages", mean * MIB / 4096.0 * flows as f64);
    out.set("throughput_mbps", read as f64 * 8.0 / 1e6 / seconds);
    out.set("wakeups_per_second", wakeups as f64 / seconds);
    out.set(
        "acks_per_second",
        (acks(&mut net) - at_half.2) as f64 / seconds,
    );
    out.set("bytes_per_wakeup", read as f64 / wakeups as f64);
    out.set(
        "retransmitted_segments",
        net.counter(CLIENT, "TcpRetransSegs") as f64,
    );
    out.series = vec![memory, cwnd, pacing];
    out
}

const MIB: f64 = 1_048_576.0;

/// Segments that the client got; all are acknowledgements.
fn acks(net: &mut Net) -> u64 {
    net.counter(CLIENT, "TcpInSegs")
}

fn figures(cases: &[Measures]) -> Vec<Figure> {
    let pair = |what, unit, name: &str, [before, after]: [usize; 2], digits| {
        Figure::new(what, unit, digits).ours(cases[before].get(name), cases[after].get(name))
    };
    let limit = [BEFORE, AFTER];
    let rule = [OLD_WAKEUPS, AFTER];
    let half = f64::from(LOWAT / 2);
    vec![
        pair("memory per flow", "MiB", "memory_per_flow_mib", limit, 1)
            .reference(53.3, 3.4)
            .check(Check::RatioAtLeast(10.0)),
        pair("memory in all (sockstat)", "pages", "pages", limit, 0)
            .reference(1_364_904.0, 86_411.0)
            .check(Check::Told),
        pair("throughput", "Mb/s", "throughput_mbps", limit, 0).check(Check::Unchanged(0.02)),
        pair(
            "writers woken (reference: switches)",
            "1/s",
            "wakeups_per_second",
            limit,
            0,
        )
        .reference(6250.0, 13_350.0)
        .check(Check::Told),
        pair(
            "writers woken, old and new rule",
            "1/s",
            "wakeups_per_second",
            rule,
            0,
        )
        .check(Check::RatioAtLeast(5.0)),
        pair("ACKs, old and new rule", "1/s", "acks_per_second", rule, 0).check(Check::Told),
        Figure::new("wake-ups per half limit sent", "", 2)
            .ours_after(half / cases[AFTER].get("bytes_per_wakeup"))
            .reference_after(1.0)
            .check(Check::Within(0.1)),
    ]
}

fn plots(cases: &[Measures]) -> Vec<Plot> {
    let over = |title, name, y| Plot::over_time(title, y, Kind::Line, cases, name, &EXPERIMENT);
    vec![
        over("Memory per flow", "memory", "MiB"),
        over("cwnd of one flow", "cwnd", "MiB"),
        over("Pacing rate of one flow", "pacing rate", "Mbit/s"),
    ]
}

/// The first of one flow, up to some wake-ups at the limit.
fn trace(run: &Run<'_>, attach: &mut dyn FnMut(&mut Net)) {
    let mut net = network(run, 1);
    attach(&mut net);
    net.open(1);
    let mut app = Bulk::start(&mut net, MESSAGE, GAP);
    net.run(Instant::ZERO + Nanos::from_millis(450), &mut app);
}
