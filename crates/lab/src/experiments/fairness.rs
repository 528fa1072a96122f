//! Fairness: how two flows share a bottleneck, and how soon. Flows of one kind or of two kinds,
//! over short and long paths, with queues that are short, long, or marked.

use fullsend_wire::{Instant, Nanos, Rate};

use self::net::{Bottleneck, BottleneckConfig};
use crate::experiment::{Experiment, RunContext};
use crate::figure::{Check, Figure};
use crate::measure::{Measurements, Series};
use crate::plot::{Data, Plot, PlotStyle};

mod net;
#[cfg(test)]
mod tests;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "fairness",
    purpose: "two flows share a bottleneck of 50 Mbit/s; the second starts ten seconds after the \
              first",
    source: "RFC 9438 (CUBIC) 3.3, 5.1 and 5.6, draft-ietf-ccwg-bbr, RFC 3168 (ECN), RFC 8257 \
             (DCTCP); judged by Jain's index (1: equal shares, 0.5: one flow has everything)",
    cases: &NAMES,
    weights: &[30; CASES.len()],
    run,
    figures,
    plots,
    trace: None,
};

/// One combination of congestion controls and path.
struct Case {
    name: &'static str,
    congestion: [&'static str; 2],
    /// Round-trip times without queueing, in milliseconds.
    rtt_ms: [u64; 2],
    /// The buffer, in bandwidth-delay products of 40 ms.
    buffer: f64,
    /// Time in the queue from which packets are marked, in milliseconds.
    ce_threshold_ms: Option<u64>,
    /// Lowest accepted value of Jain's index of the rates over the last 30 seconds.
    fair: f64,
    /// Another criterion of the case.
    extra: Option<ExtraCriterion>,
}

/// A criterion beside fairness.
#[derive(Clone, Copy)]
enum ExtraCriterion {
    /// The lowest accepted sum of both rates, in percent of the link.
    Utilization(f64),
    /// The highest accepted queueing delay of the first flow, in milliseconds.
    Delay(f64),
    /// The highest accepted ratio of the larger rate to the smaller.
    Ratio(f64),
}

/// Returns a case of two flows of one kind over 40 ms.
const fn same_cc_flows(name: &'static str, kind: &'static str, buffer: f64) -> Case {
    Case {
        name,
        congestion: [kind; 2],
        rtt_ms: [40; 2],
        buffer,
        ce_threshold_ms: None,
        fair: FAIR,
        extra: None,
    }
}

const CASES: [Case; 17] = [
    same_cc_flows("reno", "reno", 1.0),
    same_cc_flows("cubic", "cubic", 1.0),
    same_cc_flows("bbr", "bbr", 1.0),
    Case {
        extra: Some(ExtraCriterion::Utilization(90.0)),
        ..same_cc_flows("cubic, shallow buffer", "cubic", 0.2)
    },
    Case {
        extra: Some(ExtraCriterion::Utilization(90.0)),
        ..same_cc_flows("bbr, shallow buffer", "bbr", 0.2)
    },
    Case {
        // Minutes pass between reductions, and each brings the two rates only a little closer.
        fair: 0.8,
        ..same_cc_flows("cubic, deep buffer", "cubic", 10.0)
    },
    Case {
        // BBR's window is a multiple of the bandwidth-delay product, which does not grow with the
        // buffer.
        extra: Some(ExtraCriterion::Delay(60.0)),
        ..same_cc_flows("bbr, deep buffer", "bbr", 10.0)
    },
    Case {
        // RFC 9438 3.3: the ratio of the rates is at most that of the round trips, with Reno its
        // square.
        rtt_ms: [10, 100],
        fair: 0.8,
        extra: Some(ExtraCriterion::Ratio(10.0)),
        ..same_cc_flows("cubic, 10 and 100 ms", "cubic", 1.0)
    },
    Case {
        rtt_ms: [10, 100],
        fair: 0.6,
        extra: Some(ExtraCriterion::Ratio(6.0)),
        ..same_cc_flows("bbr, 10 and 100 ms", "bbr", 1.0)
    },
    Case {
        // RFC 9438 4.3, 5.1: on paths where Reno performs well, CUBIC is as fast as Reno.
        congestion: ["reno", "cubic"],
        rtt_ms: [10; 2],
        ..same_cc_flows("reno, then cubic", "", 0.5)
    },
    Case {
        congestion: ["cubic", "bbr"],
        fair: 0.8,
        ..same_cc_flows("cubic, then bbr", "", 1.0)
    },
    Case {
        // BBR tolerates some loss; other flows must still get a share of a queue of 8 ms.
        congestion: ["bbr", "cubic"],
        fair: 0.7,
        ..same_cc_flows("bbr, then cubic, shallow", "", 0.2)
    },
    Case {
        congestion: ["cubic", "bbr"],
        fair: 0.7,
        ..same_cc_flows("cubic, then bbr, shallow", "", 0.2)
    },
    Case {
        congestion: ["bbr", "cubic"],
        fair: 0.8,
        ..same_cc_flows("bbr, then cubic, deep", "", 10.0)
    },
    Case {
        ce_threshold_ms: Some(10),
        extra: Some(ExtraCriterion::Delay(10.0)),
        ..same_cc_flows("cubic, marked", "cubic", 4.0)
    },
    Case {
        ce_threshold_ms: Some(10),
        fair: 0.8,
        extra: Some(ExtraCriterion::Delay(10.0)),
        ..same_cc_flows("bbr, marked", "bbr", 4.0)
    },
    Case {
        // RFC 8257: the queue stays at the threshold, and the link is full.
        ce_threshold_ms: Some(10),
        extra: Some(ExtraCriterion::Utilization(95.0)),
        ..same_cc_flows("dctcp, marked", "dctcp", 4.0)
    },
];

const NAMES: [&str; CASES.len()] = {
    let mut names = [""; CASES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = CASES[i].name;
        i += 1;
    }
    names
};

/// The round-trip time of the bandwidth-delay products that buffers are given in.
const RTT: Nanos = Nanos::from_millis(40);
const PACKET: u64 = 1500;
const SAMPLE: Nanos = Nanos::from_millis(250);
/// Lowest accepted value of Jain's index for two equal flows.
const FAIR: f64 = 0.9;
const DELAY: &str = "queue delay";
/// Samples that an index is computed from: two seconds.
const WINDOW: usize = 8;

/// Returns Jain's index of two rates.
fn jain([a, b]: [f64; 2]) -> f64 {
    let (sum, squares) = (a + b, a * a + b * b);
    if squares > 0.0 {
        sum * sum / (2.0 * squares)
    } else {
        1.0
    }
}

/// Samples while the flows run.
struct Curves {
    rates: [Series; 2],
    delay: Series,
    received: [u64; 2],
    at: Instant,
}

impl Curves {
    fn sample(&mut self, net: &mut Bottleneck, base: Nanos) {
        let (now, received) = (net.now(), net.received());
        for (flow, rate) in self.rates.iter_mut().enumerate() {
            let bytes = (received[flow] - self.received[flow]) as f64;
            rate.push(now, bytes * 8.0 / 1e6 / now.since(self.at).as_secs_f64());
        }
        self.at = now;
        self.received = received;
        if let Some((srtt, _)) = net.info(0) {
            let waited = srtt.saturating_sub(base);
            self.delay.push(now, waited.as_secs_f64() * 1e3);
        }
    }

    /// Returns the seconds from `start` until the rates over two seconds were fair.
    fn convergence_time(&self, start: Instant) -> Option<f64> {
        let start = start.as_nanos() as f64 / 1e9;
        let [a, b] = &self.rates;
        let rates: Vec<(f64, [f64; 2])> = a
            .points
            .iter()
            .zip(&b.points)
            .map(|(a, b)| (a.0, [a.1, b.1]))
            .collect();
        let sum = |window: &[(f64, [f64; 2])], flow: usize| -> f64 {
            window.iter().map(|(_, rates)| rates[flow]).sum()
        };
        let mut late = rates.windows(WINDOW).filter(|w| w[0].0 > start);
        let fair = late.find(|w| jain([sum(w, 0), sum(w, 1)]) >= FAIR);
        fair.map(|w| w[0].0 - start)
    }
}

fn run(run: &RunContext<'_>) -> Measurements {
    let case = &CASES[run.case];
    let rate = run.scaled(Rate(6_250_000), Rate(1_250_000));
    let [alone, together] = run.scaled([10, 60], [2, 6]).map(Nanos::from_secs);
    let bdp = rate.0 as f64 * RTT.as_secs_f64() / PACKET as f64;
    let link = BottleneckConfig {
        rate,
        limit: ((bdp * case.buffer) as u32).max(4),
        ce_threshold: case.ce_threshold_ms.map_or(Nanos::MAX, Nanos::from_millis),
    };
    let rtts = case.rtt_ms.map(Nanos::from_millis);
    let mut net = Bottleneck::new(run.seed, link, rtts);
    let mut curves = Curves {
        rates: ["first", "second"].map(Series::new),
        delay: Series::new(DELAY),
        received: [0; 2],
        at: net.now(),
    };
    let phase = |net: &mut Bottleneck, curves: &mut Curves, span: Nanos, from: f64| {
        let samples = span.as_nanos() / SAMPLE.as_nanos();
        for sample in 0..samples {
            net.run(SAMPLE);
            curves.sample(net, rtts[0]);
            let part = sample as f64 / samples as f64;
            run.progress.set(from + part * 0.5);
        }
    };
    net.start(0, case.congestion[0]);
    phase(&mut net, &mut curves, alone, 0.0);
    net.start(1, case.congestion[1]);
    let start = net.now();
    phase(&mut net, &mut curves, together, 0.5);
    collect_measurements(&mut net, curves, start, start + together / 2)
}

fn collect_measurements(
    net: &mut Bottleneck,
    curves: Curves,
    start: Instant,
    half: Instant,
) -> Measurements {
    let mut out = Measurements::default();
    let rates = [0, 1].map(|flow| curves.rates[flow].mean_since(half));
    out.set("first_mbps", rates[0]);
    out.set("second_mbps", rates[1]);
    out.set("jain", jain(rates));
    out.set("queue_delay_ms", curves.delay.mean_since(half));
    let never = net.now().since(start).as_secs_f64();
    out.set(
        "converged_s",
        curves.convergence_time(start).unwrap_or(never),
    );
    out.set("link_mbps", net.rate_mbps());
    let retransmitted = [0, 1].map(|flow| net.info(flow).map_or(0, |(_, segs)| segs));
    out.set(
        "retransmitted",
        f64::from(retransmitted.iter().sum::<u32>()),
    );
    let Curves { rates, delay, .. } = curves;
    out.series = rates.into_iter().chain([delay]).collect();
    out
}

fn figures(cases: &[Measurements]) -> Vec<Figure> {
    let mut out = Vec::new();
    for (case, measures) in CASES.iter().zip(cases) {
        let figure = |what: &str, unit, value, digits, check| {
            let name = format!("{}: {what}", case.name);
            let figure = Figure::new(name, unit, digits).ours_after(value);
            figure.check(check)
        };
        let index = measures.get("jain");
        out.push(figure(
            "Jain's index",
            "",
            index,
            2,
            Check::AtLeast(case.fair),
        ));
        let rates = ["first_mbps", "second_mbps"].map(|name| measures.get(name));
        out.extend(case.extra.map(|extra| match extra {
            ExtraCriterion::Utilization(least) => {
                let used = (rates[0] + rates[1]) / measures.get("link_mbps") * 100.0;
                figure("link utilization", "%", used, 0, Check::AtLeast(least))
            }
            ExtraCriterion::Delay(most) => {
                let delay = measures.get("queue_delay_ms");
                figure("queue delay", "ms", delay, 1, Check::AtMost(most))
            }
            ExtraCriterion::Ratio(most) => {
                let ratio = rates[0].max(rates[1]) / rates[0].min(rates[1]);
                figure("ratio of the rates", "x", ratio, 1, Check::AtMost(most))
            }
        }));
    }
    out
}

fn plots(cases: &[Measurements]) -> Vec<Plot> {
    let named = || CASES.iter().zip(cases);
    let rates = named().map(|(case, measures)| {
        let curves = ["first", "second"].map(|name| (name, measures.series(name).cloned()));
        let curves = curves.into_iter().filter_map(|(name, s)| Some((name, s?)));
        Plot {
            title: case.name,
            y: "Mbit/s",
            data: Data::OverTime(PlotStyle::Line, curves.collect()),
        }
    });
    let delays = |title, chosen: &[&str]| {
        let curves = named().filter(|(case, _)| chosen.contains(&case.name));
        let curve = |(case, m): (&Case, &Measurements)| Some((case.name, m.series(DELAY)?.clone()));
        Plot {
            title,
            y: "ms",
            data: Data::OverTime(PlotStyle::Line, curves.filter_map(curve).collect()),
        }
    };
    let mut out: Vec<Plot> = rates.collect();
    out.push(delays("Queue delay, 1 BDP", &["reno", "cubic", "bbr"]));
    let deep = ["cubic, deep buffer", "bbr, deep buffer"];
    out.push(delays("Queue delay, 10 BDP", &deep));
    let marked = ["cubic, marked", "bbr, marked", "dctcp, marked"];
    out.push(delays("Queue delay, 4 BDP and marks at 10 ms", &marked));
    out
}
