//! The number of packets per write, with and without splitting the tail off its super-segment: 200
//! flows of 4 KiB requests and responses on a 10 Gbit/s card.

use std::cell::RefCell;
use std::rc::Rc;

use fullsend_sim::{Netem, NicConfig, TracePoint};
use fullsend_tcp::SocketOption;
use fullsend_tcp::legacy::Legacy;
use fullsend_wire::{Instant, Nanos, Rate};

use crate::experiment::{AFTER, BEFORE, Experiment, RunContext};
use crate::figure::{Check, Figure};
use crate::measure::{Measurements, NamedHistogram};
use crate::net::{App, CLIENT, Cable, FlowEnd, Net, Ready, SERVER};
use crate::plot::Plot;

#[cfg(test)]
mod tests;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tso-split",
    purpose: "a 4 KiB write is sent as one packet: Nagle applies to its tail, which no split \
              separates",
    source: "Linux patch \"tcp: remove a bogus TSO split\" (E. Dumazet, Dec 2013): super_netperf 200 -t TCP_RR -- -r 4K,4K",
    cases: &["before", "after", "ACK rides"],
    weights: &[4, 4, 3],
    run,
    figures,
    plots,
    trace: Some(trace),
};

/// The case in which the reader answers before its host sends an ACK.
const PIGGYBACKED: usize = 2;

const MESSAGE: u64 = 4096;
/// Time from the wake-up of a reader until it runs. Like a kernel, its host has acknowledged the
/// message by then.
const WAKEUP: Nanos = Nanos::from_micros(10);

fn cable() -> Cable {
    Cable {
        nic: NicConfig {
            rate: Rate(1_250_000_000),
            overhead: 38,
            ring: 1024,
            rx_coalesce: Nanos::from_micros(20),
            ..NicConfig::default()
        },
        netem: [Netem {
            delay: Nanos::from_micros(5),
            ..Netem::default()
        }; 2],
    }
}

/// Clients that send requests, and servers that answer.
struct RrApp {
    /// The reader answers as soon as its message has arrived, or later.
    at_once: bool,
    /// Bytes of the current message not yet received, by side and flow.
    missing: [Vec<u64>; 2],
    /// Transactions not yet started, by flow.
    left: Vec<u32>,
    message: Vec<u8>,
    done: u64,
    all: u64,
    wakeups: u64,
    /// Times at which a quarter and three quarters of the transactions were done.
    quarters: [Instant; 2],
}

impl RrApp {
    /// Makes every client start `each` transactions.
    fn new(net: &mut Net, at_once: bool, each: u32) -> Self {
        let flows = net.flows();
        let mut this = Self {
            at_once,
            missing: [vec![MESSAGE; flows], vec![MESSAGE; flows]],
            left: vec![each; flows],
            message: vec![b'n'; MESSAGE as usize],
            done: 0,
            all: flows as u64 * u64::from(each),
            wakeups: 0,
            quarters: [Instant::ZERO; 2],
        };
        for flow in 0..flows {
            let (client, server) = (
                FlowEnd { side: CLIENT, flow },
                FlowEnd { side: SERVER, flow },
            );
            net.notify_when(client, Ready::Read);
            net.notify_when(server, Ready::Read);
            this.send_message(net, client);
        }
        this
    }

    fn send_message(&mut self, net: &mut Net, end: FlowEnd) {
        if end.side == CLIENT {
            if self.left[end.flow] == 0 {
                return;
            }
            self.left[end.flow] -= 1;
        }
        let written = net.write(end, &self.message);
        assert_eq!(written as u64, MESSAGE, "one message fits the send buffer");
    }

    /// Makes the host send a pure ACK for a message when it starts to arrive.
    fn acknowledge(&self, net: &mut Net, end: FlowEnd) {
        if self.missing[end.side][end.flow] == MESSAGE {
            net.set_option(end, SocketOption::TcpQuickack(true));
            net.set_option(end, SocketOption::TcpQuickack(false));
        }
    }

    fn on_transaction_end(&mut self, now: Instant) {
        self.done += 1;
        if self.done == self.all / 4 {
            self.quarters[0] = now;
        }
        if self.done == self.all / 4 * 3 {
            self.quarters[1] = now;
        }
    }
}

impl App for RrApp {
    fn on_ready(&mut self, net: &mut Net, end: FlowEnd, ready: Ready) {
        if ready == Ready::Read {
            self.wakeups += 1;
            if !self.at_once {
                self.acknowledge(net, end);
                net.set_timer(net.now() + WAKEUP, end);
                return;
            }
        }
        let missing = &mut self.missing[end.side][end.flow];
        *missing -= net.read(end);
        if *missing > 0 {
            return;
        }
        *missing = MESSAGE;
        if end.side == CLIENT {
            self.on_transaction_end(net.now());
        }
        self.send_message(net, end);
    }

    fn done(&self) -> bool {
        self.done == self.all
    }
}

fn network(run: &RunContext<'_>) -> Net {
    let mut net = Net::new(&cable(), run.seed);
    for side in [CLIENT, SERVER] {
        net.host(side).set_legacy(Legacy {
            split_tail: run.is_before(),
            ..Legacy::default()
        });
    }
    net
}

/// IP counters, summed over both hosts.
struct IpCounters {
    packets: u64,
    octets: u64,
}

impl IpCounters {
    fn of(net: &mut Net) -> Self {
        let mut sum = |name| net.counter(CLIENT, name) + net.counter(SERVER, name);
        Self {
            packets: sum("IpOutRequests"),
            octets: sum("IpExtOutOctets"),
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            octets: self.octets - earlier.octets,
        }
    }
}

fn run(run: &RunContext<'_>) -> Measurements {
    let mut net = network(run);
    net.open(200);
    let sizes = Rc::new(RefCell::new(NamedHistogram::new("send size")));
    let histogram = sizes.clone();
    net.observe_tcp(move |packet| {
        if packet.point == TracePoint::Queued && packet.payload_len > 0 {
            histogram.borrow_mut().add(u64::from(packet.payload_len));
        }
    });
    let start = IpCounters::of(&mut net);
    let each = run.scaled(400, 20);
    let mut app = RrApp::new(&mut net, run.case == PIGGYBACKED, each);
    while !app.done() {
        net.run(net.now() + Nanos::from_millis(1), &mut app);
        run.progress.set(app.done as f64 / app.all as f64);
    }
    let sent = IpCounters::of(&mut net).since(&start);
    // Per host, and over both: their traffic is symmetric.
    let (transactions, messages) = (app.done as f64, 2.0 * app.done as f64);
    let mut out = Measurements::default();
    out.set("transactions", transactions);
    out.set("packets_per_transaction", sent.packets as f64 / messages);
    out.set("bytes_per_packet", sent.octets as f64 / sent.packets as f64);
    out.set("wakeups_per_message", app.wakeups as f64 / messages);
    let [first, last] = app.quarters;
    let half = app.all / 4 * 2;
    let span = last.since(first).as_secs_f64();
    out.set("transactions_per_second", half as f64 / span);
    out.histograms.push(sizes.borrow().clone());
    out
}

fn figures(cases: &[Measurements]) -> Vec<Figure> {
    let both = |name: &str| (cases[BEFORE].get(name), cases[AFTER].get(name));
    let pair = |what, name, unit, digits| {
        let (before, after) = both(name);
        Figure::new(what, unit, digits).ours(before, after)
    };
    let piggybacked =
        |what, name, unit| Figure::new(what, unit, 3).ours_after(cases[PIGGYBACKED].get(name));
    vec![
        pair(
            "packets per transaction and host",
            "packets_per_transaction",
            "packets",
            3,
        )
        .reference(3.001, 2.001)
        .check(Check::Exactly([3.0, 2.0])),
        pair("bytes per packet", "bytes_per_packet", "bytes", 1)
            .reference(1417.0, 2099.0)
            .check(Check::Exactly([(4096.0 + 3.0 * 52.0) / 3.0, 2100.0])),
        pair("transactions", "transactions_per_second", "1/s", 0)
            .reference(280_774.0, 280_877.0)
            .check(Check::Within(0.01)),
        pair(
            "reader's wake-ups per message",
            "wakeups_per_message",
            "",
            3,
        )
        .reference(1.505, 1.003)
        .check(Check::ExactlyOne(1.0)),
        piggybacked(
            "packets, ACK on the response",
            "packets_per_transaction",
            "packets",
        )
        .check(Check::ExactlyOne(1.0)),
        piggybacked(
            "bytes per packet, ACK on the response",
            "bytes_per_packet",
            "bytes",
        )
        .check(Check::ExactlyOne(4148.0)),
    ]
}

fn plots(cases: &[Measurements]) -> Vec<Plot> {
    let title = "Payload per packet, without pure ACKs";
    vec![Plot::histograms(
        title,
        "bytes",
        cases,
        "send size",
        &EXPERIMENT,
    )]
}

/// Runs three transactions of one flow.
fn trace(run: &RunContext<'_>, attach: &mut dyn FnMut(&mut Net)) {
    let mut net = network(run);
    attach(&mut net);
    net.open(1);
    let mut app = RrApp::new(&mut net, run.case == PIGGYBACKED, 3);
    net.run(Instant::FAR_FUTURE, &mut app);
}
