//! `TCP_NOTSENT_LOWAT`: the unsent data that a sender keeps in memory, and how often it is woken.
//! 100 BBR flows over 100 ms.

use fullsend_sim::{Netem, NicConfig};
use fullsend_tcp::legacy::Legacy;
use fullsend_wire::{Instant, Nanos, Rate};

use crate::bulk::{Bulk, run_sampled};
use crate::experiment::{AFTER, BEFORE, Experiment, RunContext};
use crate::figure::{Check, Figure};
use crate::measure::{Measurements, Series};
use crate::net::{CLIENT, Cable, FlowEnd, Net, SERVER};
use crate::plot::{Plot, PlotStyle};

#[cfg(test)]
mod tests;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "notsent-lowat",
    purpose: "TCP_NOTSENT_LOWAT bounds the unsent data of a sender, without a wake-up at every ACK",
    source: "Linux commit a74f0fa0 \"tcp: reduce POLLOUT events caused by TCP_NOTSENT_LOWAT\" (E. Dumazet, Dec 2018): super_netperf 100, BBR, 100 ms, tcp_wmem up to 64,000,000",
    cases: &["before", "after", "old wake-ups"],
    weights: &[40, 40, 45],
    run,
    figures,
    plots,
    trace: Some(trace),
};

/// The case with the limit, but with the wake-ups of before.
const OLD_WAKEUPS: usize = 2;

/// Value of `net.ipv4.tcp_notsent_lowat` in the cases with the limit, in bytes.
const LOWAT: u32 = 2_097_152;
const MIB: f64 = 1_048_576.0;
const PAGE: f64 = 4096.0;
/// Bytes of one write, which is netperf's default.
const MESSAGE: usize = 16 << 10;
/// The card's rate per flow in bytes per second: 20 Gbit/s for a hundred.
const RATE_PER_FLOW: u64 = 25_000_000;
/// Delay of each direction.
const DELAY: Nanos = Nanos::from_millis(50);
/// Time from the start of one writer to the next, as processes do not start at once.
const GAP: Nanos = Nanos::from_millis(10);
const SAMPLE: Nanos = Nanos::from_millis(20);

fn network(run: &RunContext<'_>, flows: usize) -> Net {
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
                qdisc: "fq".parse().expect("`fq` has no required parameter"),
                rx_coalesce: Nanos::from_micros(20),
                ..NicConfig::default()
            },
            netem: [delay; 2],
        },
        run.seed,
    );
    for side in [CLIENT, SERVER] {
        net.sysctl(side, "tcp_congestion_control", "bbr");
        net.sysctl(side, "tcp_wmem", "4096 262144 64000000");
        // 16 GiB before memory pressure starts.
        net.sysctl(side, "tcp_mem", "4194304 5592405 8388608");
        net.sysctl(side, "tcp_rmem", "4096 262144 64000000");
    }
    if !run.is_before() {
        net.sysctl(CLIENT, "tcp_notsent_lowat", &LOWAT.to_string());
    }
    net.host(CLIENT).set_legacy(Legacy {
        pollout_on_every_ack: run.case == OLD_WAKEUPS,
        ..Legacy::default()
    });
    net
}

/// Samples while the flows run.
struct Curves {
    memory: Series,
    cwnd: Series,
    pacing: Series,
    woken: Series,
    wakeups: u64,
}

impl Curves {
    fn sample(&mut self, net: &mut Net, wakeups: u64, now: Instant) {
        let woken = (wakeups - self.wakeups) as f64 / SAMPLE.as_secs_f64();
        self.woken.push(now, woken);
        self.wakeups = wakeups;
        let flows = net.flows();
        let bytes = net.host(CLIENT).sockstat().mem as f64 * PAGE;
        self.memory.push(now, bytes / flows as f64 / MIB);
        let info = net.info(FlowEnd {
            side: CLIENT,
            flow: flows / 2,
        });
        let cwnd = f64::from(info.tcpi_snd_cwnd) * f64::from(info.tcpi_snd_mss);
        self.cwnd.push(now, cwnd / MIB);
        self.pacing
            .push(now, info.tcpi_pacing_rate as f64 * 8.0 / 1e6);
    }
}

/// Bytes read, writers woken, and ACKs received so far.
#[derive(Clone, Copy, Default)]
struct Counts {
    read: u64,
    wakeups: u64,
    acks: u64,
}

impl Counts {
    fn of(net: &mut Net, app: &Bulk) -> Self {
        Self {
            read: app.read,
            wakeups: app.wakeups,
            // The client receives only ACKs.
            acks: net.counter(CLIENT, "TcpInSegs"),
        }
    }
}

fn run(run: &RunContext<'_>) -> Measurements {
    let flows = run.scaled(100, 4);
    let span = run.scaled(Nanos::from_secs(12), Nanos::from_secs(8));
    let mut net = network(run, flows);
    net.open(flows);
    // Slow start, and the growth of buffers, are in the first half.
    let half = net.now() + span / 2;
    let mut app = Bulk::start(&mut net, MESSAGE, GAP);
    let mut curves = Curves {
        memory: Series::new("memory"),
        cwnd: Series::new("cwnd"),
        pacing: Series::new("pacing rate"),
        woken: Series::new("writers woken"),
        wakeups: 0,
    };
    let mut at_half = Counts::default();
    let sampled = (span, SAMPLE);
    run_sampled(
        &mut net,
        &mut app,
        sampled,
        run.progress,
        |net, app, now| {
            curves.sample(net, app.wakeups, now);
            if now <= half {
                at_half = Counts::of(net, app);
            }
        },
    );
    let end = Counts::of(&mut net, &app);
    let seconds = net.now().since(half).as_secs_f64();
    let memory = curves.memory.mean_since(half);
    let read = (end.read - at_half.read) as f64;
    let wakeups = (end.wakeups - at_half.wakeups) as f64;
    let mut out = Measurements::default();
    out.set("memory_per_flow_mib", memory);
    out.set("pages", memory * MIB / PAGE * flows as f64);
    out.set("throughput_mbps", read * 8.0 / 1e6 / seconds);
    out.set("wakeups_per_second", wakeups / seconds);
    out.set(
        "acks_per_second",
        (end.acks - at_half.acks) as f64 / seconds,
    );
    out.set("bytes_per_wakeup", read / wakeups);
    out.series = vec![curves.memory, curves.cwnd, curves.pacing, curves.woken];
    out
}

fn figures(cases: &[Measurements]) -> Vec<Figure> {
    let pair = |what, unit, name: &str, [before, after]: [usize; 2], digits| {
        Figure::new(what, unit, digits).ours(cases[before].get(name), cases[after].get(name))
    };
    let limit = [BEFORE, AFTER];
    let rule = [OLD_WAKEUPS, AFTER];
    let half = f64::from(LOWAT / 2);
    vec![
        pair("memory per flow", "MiB", "memory_per_flow_mib", limit, 1)
            .reference(53.3, 3.4)
            .check(Check::FallsBy(10.0)),
        pair("memory of all flows (sockstat)", "pages", "pages", limit, 0)
            .reference(1_364_904.0, 86_411.0)
            .check(Check::NotJudged),
        pair("throughput", "Mb/s", "throughput_mbps", limit, 0).check(Check::Unchanged(0.02)),
        pair(
            "writers woken (reference: switches)",
            "1/s",
            "wakeups_per_second",
            limit,
            0,
        )
        .reference(6250.0, 13_350.0)
        .check(Check::NotJudged),
        pair(
            "writers woken, old and new rule",
            "1/s",
            "wakeups_per_second",
            rule,
            0,
        )
        .check(Check::FallsBy(5.0)),
        pair("ACKs, old and new rule", "1/s", "acks_per_second", rule, 0).check(Check::NotJudged),
        Figure::new("wake-ups per half of the limit sent", "", 2)
            .ours_after(half / cases[AFTER].get("bytes_per_wakeup"))
            .reference_after(1.0)
            .check(Check::Within(0.1)),
    ]
}

fn plots(cases: &[Measurements]) -> Vec<Plot> {
    let over =
        |title, name, y| Plot::over_time(title, y, PlotStyle::Line, cases, name, &EXPERIMENT);
    vec![
        over("Memory per flow", "memory", "MiB"),
        over("Writers woken", "writers woken", "1/s"),
        over("cwnd of one flow", "cwnd", "MiB"),
        over("Pacing rate of one flow", "pacing rate", "Mbit/s"),
    ]
}

/// Runs one flow from its start up to some wake-ups at the limit.
fn trace(run: &RunContext<'_>, attach: &mut dyn FnMut(&mut Net)) {
    let mut net = network(run, 1);
    attach(&mut net);
    net.open(1);
    let mut app = Bulk::start(&mut net, MESSAGE, GAP);
    net.run(Instant::ZERO + Nanos::from_millis(450), &mut app);
}
