//! Loss on paths that also reorder: the cost of reordering for a flow, in addition to the loss.

use fullsend_offload::Slice;
use fullsend_sim::{Netem, NicConfig, NicMode};
use fullsend_wire::Nanos;

use crate::experiment::{Experiment, RunContext};
use crate::figure::{Check, Figure};
use crate::measure::Measurements;
use crate::net::{App, CLIENT, Cable, FlowEnd, Net, Ready, SERVER};
use crate::plot::Plot;

#[cfg(test)]
mod tests;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "reordering",
    purpose: "one flow over 500 Mbit/s with loss, with and without reordering or jitter",
    source: "RFC 8985 (RACK) 6.2, RFC 9002 6.1.2; our own bounds; bench/loss.py measures Linux on \
             the same paths",
    cases: &NAMES,
    weights: &[10; CASES.len()],
    run,
    figures,
    plots: |_| Vec::<Plot>::new(),
    trace: None,
};

/// One path and one congestion control.
struct Case {
    name: &'static str,
    congestion: &'static str,
    /// The path to the receiver in netem's syntax, without its loss.
    path: &'static str,
    /// The path without reordering, which is also the return path.
    plain: &'static str,
    loss_percent: f64,
    /// The lowest accepted goodput, in percent of that with loss alone.
    goodput_percent: f64,
    /// The most retransmitted segments, in multiples of the loss.
    retransmits: f64,
}

const SKIP: &str = "rate 500mbit delay 3ms reorder 5%";
const SHORT: &str = "rate 500mbit delay 3ms 1ms";
const LONG: &str = "rate 500mbit delay 10ms 1ms";

const CASES: [Case; 6] = [
    Case {
        name: "bbr, 5 % skip the delay",
        congestion: "bbr",
        path: SKIP,
        plain: "rate 500mbit delay 3ms",
        loss_percent: 0.8,
        goodput_percent: 95.0,
        retransmits: 1.3,
    },
    Case {
        name: "cubic, 5 % skip the delay",
        congestion: "cubic",
        path: SKIP,
        plain: "rate 500mbit delay 3ms",
        loss_percent: 0.8,
        goodput_percent: 75.0,
        retransmits: 2.0,
    },
    Case {
        name: "bbr, 3 ms +- 1 ms",
        congestion: "bbr",
        path: SHORT,
        plain: "rate 500mbit delay 3ms",
        loss_percent: 0.3,
        goodput_percent: 95.0,
        retransmits: 1.3,
    },
    Case {
        name: "cubic, 3 ms +- 1 ms",
        congestion: "cubic",
        path: SHORT,
        plain: "rate 500mbit delay 3ms",
        loss_percent: 0.3,
        goodput_percent: 75.0,
        retransmits: 1.5,
    },
    Case {
        name: "bbr, 10 ms +- 1 ms",
        congestion: "bbr",
        path: LONG,
        plain: "rate 500mbit delay 10ms",
        loss_percent: 0.5,
        goodput_percent: 95.0,
        retransmits: 1.3,
    },
    Case {
        name: "cubic, 10 ms +- 1 ms",
        congestion: "cubic",
        path: LONG,
        plain: "rate 500mbit delay 10ms",
        loss_percent: 0.5,
        goodput_percent: 70.0,
        retransmits: 1.5,
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

/// Bytes of one write, which lends memory.
const MESSAGE: usize = 64 << 10;

/// One flow that writes without end, and its reader.
struct BulkFlow {
    message: Slice,
    read: u64,
}

impl App for BulkFlow {
    fn on_ready(&mut self, net: &mut Net, end: FlowEnd, ready: Ready) {
        if ready == Ready::Read {
            self.read += net.read(end);
        } else {
            while net.lend(end, self.message.clone()) {}
        }
    }
}

/// Returns Megabits per second, and the percentage of retransmitted segments.
fn flow(run: &RunContext<'_>, case: &Case, path: &str, [from, to]: [f64; 2]) -> [f64; 2] {
    let netem = |spec: &str| -> Netem { spec.parse().expect("the path is valid for netem") };
    let lossy_path = format!("{path} loss {}%", case.loss_percent);
    let nic = NicConfig {
        mode: NicMode::Mtu,
        ring: 1 << 20,
        ..NicConfig::default()
    };
    let netem = [netem(&lossy_path), netem(case.plain)];
    let mut net = Net::new(&Cable { nic, netem }, run.seed);
    for side in [CLIENT, SERVER] {
        net.sysctl(side, "tcp_congestion_control", case.congestion);
        net.sysctl(side, "tcp_wmem", "4096 262144 64000000");
        net.sysctl(side, "tcp_rmem", "4096 262144 64000000");
    }
    net.open(1);
    let mut app = BulkFlow {
        message: Slice::copied_from(&vec![b'r'; MESSAGE]),
        read: 0,
    };
    net.notify_when(
        FlowEnd {
            side: SERVER,
            flow: 0,
        },
        Ready::Read,
    );
    net.set_timer(
        net.now(),
        FlowEnd {
            side: CLIENT,
            flow: 0,
        },
    );
    // CUBIC's rate depends on a few losses per second, so that it takes longer to measure.
    let seconds = if case.congestion == "bbr" {
        run.scaled(8, 2)
    } else {
        run.scaled(40, 10)
    };
    let start = net.now();
    for second in 1..=seconds {
        net.run(start + Nanos::from_secs(second), &mut app);
        run.progress
            .set(from + (to - from) * second as f64 / seconds as f64);
    }
    let info = net.info(FlowEnd {
        side: CLIENT,
        flow: 0,
    });
    let segments = app.read as f64 / f64::from(info.tcpi_snd_mss);
    [
        app.read as f64 * 8.0 / 1e6 / seconds as f64,
        f64::from(info.tcpi_total_retrans) / segments * 100.0,
    ]
}

fn run(run: &RunContext<'_>) -> Measurements {
    let case = &CASES[run.case];
    let [alone, _] = flow(run, case, case.plain, [0.0, 0.5]);
    let [goodput, retransmits] = flow(run, case, case.path, [0.5, 1.0]);
    let mut out = Measurements::default();
    out.set("loss_alone_mbps", alone);
    out.set("goodput_mbps", goodput);
    out.set("sent_again_percent", retransmits);
    out
}

fn figures(cases: &[Measurements]) -> Vec<Figure> {
    let mut out = Vec::new();
    for (case, measures) in CASES.iter().zip(cases) {
        let figure = |what: &str, unit, digits, value, check| {
            let name = format!("{}: {what}", case.name);
            Figure::new(name, unit, digits)
                .ours_after(value)
                .check(check)
        };
        let goodput_percent =
            measures.get("goodput_mbps") / measures.get("loss_alone_mbps") * 100.0;
        let retransmits = measures.get("sent_again_percent") / case.loss_percent;
        out.push(figure(
            "goodput, of that with loss only",
            "%",
            0,
            goodput_percent,
            Check::AtLeast(case.goodput_percent),
        ));
        out.push(figure(
            "retransmitted, of the loss",
            "x",
            1,
            retransmits,
            Check::AtMost(case.retransmits),
        ));
    }
    out
}
