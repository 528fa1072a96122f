//! The results of a test, as text and as JSON. The names and units in the JSON never change.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::{Test, TestArgs};
use crate::send_report::{Buckets, SendReport};
use crate::size;
use crate::usage::{ContextSwitches, Counters, CpuTime, Usage, bytes_per_packet};

/// Returns a histogram of latencies in ns, up to a minute, with three significant digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_max(60_000_000_000, 3).expect("constant bounds");
    histogram.auto(true);
    histogram
}

/// The measurements of a test.
pub(crate) struct TestResult {
    /// Seconds from the first byte sent to the last byte received.
    pub(crate) seconds: f64,
    /// Payload bytes received.
    pub(crate) bytes: u64,
    /// Number of requests answered, and their latencies in ns.
    pub(crate) transactions: Option<(u64, Histogram<u64>)>,
    /// CPU time and context switches of this process.
    pub(crate) usage: Usage,
    /// Counters of the client's stack.
    pub(crate) client: Counters,
    /// Counters of the server's stack.
    pub(crate) server: Counters,
    /// Whether the server was the sender.
    pub(crate) reverse: bool,
    /// The merged send report of the flows, from the sender of data; `None` if its stack, like the
    /// kernel's, does not provide one.
    pub(crate) flow: Option<SendReport>,
}

/// Percentiles of the latency in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct LatencyUs {
    p50: f64,
    p99: f64,
    p999: f64,
}

/// The effect of one send limit: the sends whose size it bounded, and the time it blocked flows.
#[derive(Clone, Copy, Debug, Serialize)]
struct LimitShare {
    sends: u32,
    sends_share: f64,
    time_s: f64,
    time_share: f64,
}

fn send_limits(send_report: &SendReport) -> BTreeMap<String, LimitShare> {
    let share = |part: f64, whole: f64| {
        let ratio = if whole > 0.0 { part / whole } else { 0.0 };
        (ratio * 1e4).round() / 1e4
    };
    let effect = send_report.limits.values();
    let sends: f64 = effect.clone().map(|effect| f64::from(effect.sends)).sum();
    let time_ns: f64 = effect.map(|effect| effect.time_ns as f64).sum();
    let limits = send_report.limits.iter().map(|(name, effect)| {
        let part = LimitShare {
            sends: effect.sends,
            sends_share: share(effect.sends.into(), sends),
            time_s: effect.time_ns as f64 / 1e9,
            time_share: share(effect.time_ns as f64, time_ns),
        };
        (name.clone(), part)
    });
    limits.collect()
}

fn pairs(buckets: &Buckets) -> Vec<(u32, u32)> {
    buckets
        .iter()
        .map(|(least, count)| (*least, *count))
        .collect()
}

#[derive(Serialize)]
struct CounterDeltas {
    client: Counters,
    server: Counters,
}

/// The report, which serialises to the object that `--json` prints.
#[derive(Serialize)]
pub(crate) struct Report {
    test: &'static str,
    flows: usize,
    seconds: f64,
    bytes: u64,
    throughput_bps: f64,
    transactions_per_s: Option<f64>,
    latency_us: Option<LatencyUs>,
    cpu: CpuTime,
    context_switches: ContextSwitches,
    bytes_per_packet: Option<f64>,
    counters: CounterDeltas,
    /// The end that sends data, to which the following fields belong.
    send_limits_of: &'static str,
    send_limits: Option<BTreeMap<String, LimitShare>>,
    send_size_bytes: Option<Vec<(u32, u32)>>,
    head_room_bytes: Option<Vec<(u32, u32)>>,
}

impl Report {
    /// Returns the report of a test.
    pub(crate) fn new(args: &TestArgs, outcome: TestResult) -> Self {
        let us = |h: &Histogram<u64>, q: f64| h.value_at_quantile(q) as f64 / 1e3;
        let sender = if outcome.reverse {
            &outcome.server
        } else {
            &outcome.client
        };
        let transactions = outcome.transactions.as_ref();
        let flow = outcome.flow.as_ref();
        Self {
            send_limits_of: if outcome.reverse { "server" } else { "client" },
            send_limits: flow.map(send_limits),
            send_size_bytes: flow.map(|f| pairs(&f.send_size)),
            head_room_bytes: flow.map(|f| pairs(&f.headroom)),
            test: args.test.name(),
            flows: args.flows,
            seconds: outcome.seconds,
            bytes: outcome.bytes,
            throughput_bps: (outcome.bytes as f64 * 8.0 / outcome.seconds).round(),
            transactions_per_s: transactions
                .map(|(n, _)| (*n as f64 / outcome.seconds * 10.0).round() / 10.0),
            latency_us: transactions.map(|(_, h)| LatencyUs {
                p50: us(h, 0.5),
                p99: us(h, 0.99),
                p999: us(h, 0.999),
            }),
            cpu: outcome.usage.cpu,
            context_switches: outcome.usage.switches,
            bytes_per_packet: bytes_per_packet(sender),
            counters: CounterDeltas {
                client: outcome.client,
                server: outcome.server,
            },
        }
    }

    /// Returns the report as one JSON object.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings serialise")
    }

    /// Returns the report as readable text.
    pub(crate) fn text(&self, args: &TestArgs, description: &str) -> String {
        let mut out = self.headline(args, description);
        let cpu = format!("{:.2}+{:.2}", self.cpu.user_s, self.cpu.sys_s);
        let per_packet = self
            .bytes_per_packet
            .map_or_else(|| "-".to_owned(), |b| format!("{b:.0}"));
        let switches = format!(
            "{}+{}",
            self.context_switches.voluntary, self.context_switches.involuntary
        );
        match (self.transactions_per_s, self.latency_us) {
            (Some(rate), Some(latency)) => {
                let _ = write!(
                    out,
                    "Elapsed  Trans.      Latency us                     Bytes/   CPU s         Context\n\
                     secs     per sec     p50       p99       p99.9       packet   user+sys      switches\n\
                     {:<8.2} {:<11.0} {:<9.1} {:<9.1} {:<11.1} {:<8} {:<13} {}\n",
                    self.seconds,
                    rate,
                    latency.p50,
                    latency.p99,
                    latency.p999,
                    per_packet,
                    cpu,
                    switches,
                );
            }
            _ => {
                let _ = write!(
                    out,
                    "Elapsed  Bytes           Throughput   Bytes/   CPU s         Context\n\
                     secs     received        10^6bits/s   packet   user+sys      switches\n\
                     {:<8.2} {:<15} {:<12.2} {:<8} {:<13} {}\n",
                    self.seconds,
                    self.bytes,
                    self.throughput_bps / 1e6,
                    per_packet,
                    cpu,
                    switches,
                );
            }
        }
        out + &self.limits_line()
    }

    /// Returns a line with the limits that blocked the flows, the longest time first.
    fn limits_line(&self) -> String {
        let Some(limits) = &self.send_limits else {
            return String::new();
        };
        let mut by_time: Vec<_> = limits
            .iter()
            .filter(|(_, l)| l.time_share >= 0.005)
            .collect();
        by_time.sort_by(|a, b| b.1.time_share.total_cmp(&a.1.time_share));
        let parts: Vec<String> = by_time
            .iter()
            .map(|(name, l)| format!("{name} {:.0}%", l.time_share * 100.0))
            .collect();
        if parts.is_empty() {
            return String::new();
        }
        let subject = match self.send_limits_of {
            "server" => "The server was limited by",
            _ => "Limited by",
        };
        format!("{subject}: {}\n", parts.join(", "))
    }

    fn headline(&self, args: &TestArgs, description: &str) -> String {
        let shape = match args.test {
            Test::Stream { message, .. } => format!("{}-byte messages", size::show(message)),
            Test::Rr { request, response } | Test::Crr { request, response } => {
                format!(
                    "{},{}-byte transactions",
                    size::show(request),
                    size::show(response)
                )
            }
        };
        let reverse = if args.test.is_reverse() {
            ", server to client"
        } else {
            ""
        };
        let s = if self.flows == 1 { "" } else { "s" };
        format!(
            "TCP {} test: {} flow{s}, {shape}{reverse}; {description}\n",
            self.test.to_uppercase(),
            self.flows,
        )
    }
}
