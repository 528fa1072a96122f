//! The size of sends after a loss: one bulk flow over a path of 1 ms, and one loss.

use std::cell::RefCell;
use std::rc::Rc;

use fullsend_sim::{Netem, NicConfig, RandomLoss, TracePoint};
use fullsend_tcp::legacy::Legacy;
use fullsend_wire::{Instant, Nanos, Rate};

use crate::bulk::{Bulk, run_sampled};
use crate::experiment::{AFTER, BEFORE, Experiment, Progress, RunContext};
use crate::figure::{Check, Figure};
use crate::measure::{Measurements, NamedHistogram, Series};
use crate::net::{CLIENT, Cable, FlowEnd, Net, SERVER};
use crate::plot::{Plot, PlotStyle};

#[cfg(test)]
mod tests;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "max-burst",
    purpose: "a loss does not shorten later sends: a limit set by a retransmission ends with the \
              recovery",
    source: "illumos bug 5295 \"remove maxburst logic from TCP's send algorithm\": iperf over 10 Gbit/s, dlstat and DTrace",
    cases: &["before", "after", "cured live"],
    weights: &[3, 8, 6],
    run,
    figures,
    plots,
    trace: Some(trace),
};

/// The case in which the old rule is switched off while the flow runs.
const SWITCHED_LIVE: usize = 2;

const MSS: f64 = 1448.0;
/// Ethernet, IP and TCP with timestamps, as dlstat counts them.
const HEADERS: f64 = 66.0;
const MESSAGE: usize = 64 << 10;
const SAMPLE: Nanos = Nanos::from_millis(1);
/// Time before the loss, time until the flow is steady again, and time that is measured.
const WARM_UP: Nanos = Nanos::from_millis(100);
const SETTLE: Nanos = Nanos::from_millis(60);
const MEASURED: Nanos = Nanos::from_millis(240);
/// Delay of each direction.
const DELAY: Nanos = Nanos::from_micros(500);
const FLOW: FlowEnd = FlowEnd {
    side: CLIENT,
    flow: 0,
};

/// Returns a path with a round trip of 1 ms.
fn wire() -> Netem {
    Netem {
        delay: DELAY,
        ..Netem::default()
    }
}

fn network(run: &RunContext<'_>) -> Net {
    let mut net = Net::new(
        &Cable {
            nic: NicConfig {
                rate: Rate(1_250_000_000),
                overhead: 38,
                ..NicConfig::default()
            },
            netem: [wire(); 2],
        },
        run.seed,
    );
    // 1.5 times what the path holds. The rate with the old rule depends on it: five segments are
    // sent for each ACK in flight after recovery, and the window bounds the number of ACKs. 1, 2, 3
    // and 6 MB give 58, 43, 22 and 7 MB/s; the size of packets does not depend on it.
    net.sysctl(SERVER, "tcp_rmem", "4096 131072 2000000");
    net.host(CLIENT).set_legacy(Legacy {
        max_burst: run.case != AFTER,
        ..Legacy::default()
    });
    net
}

/// Counters of the packets at the client's card, since they were last reset.
#[derive(Default)]
struct PacketCounters {
    packets: u64,
    payload_bytes: u64,
    largest: u32,
    acks: u64,
    lost: u64,
    /// Bytes that left the card, with their headers.
    sent: f64,
    /// Time and bytes of each super-segment.
    sizes: Vec<(Instant, u32)>,
}

fn count_packets(net: &mut Net) -> Rc<RefCell<PacketCounters>> {
    let counters = Rc::new(RefCell::new(PacketCounters::default()));
    let shared = counters.clone();
    net.observe_tcp(move |packet| {
        let mut counters = shared.borrow_mut();
        match packet.point {
            TracePoint::Queued if packet.side == CLIENT && packet.payload_len > 0 => {
                counters.packets += 1;
                counters.payload_bytes += u64::from(packet.payload_len);
                counters.largest = counters.largest.max(packet.payload_len);
                counters.sizes.push((packet.at, packet.payload_len));
            }
            TracePoint::Sent if packet.side == CLIENT && packet.payload_len > 0 => {
                counters.sent += f64::from(packet.payload_len) + HEADERS;
            }
            TracePoint::Arrived if packet.side == CLIENT => counters.acks += 1,
            TracePoint::Lost(_) => counters.lost += 1,
            _ => {}
        }
    });
    counters
}

/// Makes the path lose the next packet of the client.
fn drop_next_packet(net: &mut Net, app: &mut Bulk, counters: &RefCell<PacketCounters>) {
    let loss = RandomLoss::Even(1.0);
    net.set_netem(CLIENT, Netem { loss, ..wire() });
    let end = net.now() + Nanos::from_secs(1);
    while counters.borrow().lost == 0 {
        assert!(
            net.now() < end,
            "the flow has sent no segment that can be dropped"
        );
        net.run(net.now() + Nanos::from_micros(1), app);
    }
    net.set_netem(CLIENT, wire());
}

/// Samples while the flow runs.
struct Curves {
    rate: Series,
    headroom: Series,
    cwnd: Series,
}

impl Curves {
    fn sample(&mut self, net: &mut Net, counters: &mut PacketCounters, now: Instant) {
        let sent = std::mem::take(&mut counters.sent);
        self.rate.push(now, sent / SAMPLE.as_secs_f64() / 1e6);
        let info = net.info(FLOW);
        let cwnd = f64::from(info.tcpi_snd_cwnd) * MSS;
        let in_flight = f64::from(info.tcpi_unacked) * MSS;
        let room = cwnd.min(f64::from(info.tcpi_snd_wnd)) - in_flight;
        self.headroom.push(now, room.max(0.0) / 1024.0);
        self.cwnd.push(now, cwnd / 1024.0);
    }
}

fn run(run: &RunContext<'_>) -> Measurements {
    let mut net = network(run);
    net.open(1);
    let counters = count_packets(&mut net);
    let mut app = Bulk::start(&mut net, MESSAGE, Nanos::ZERO);
    let mut curves = Curves {
        rate: Series::new("rate"),
        headroom: Series::new("head-room"),
        cwnd: Series::new("cwnd"),
    };
    let silent = Progress::default();
    let mut phase = |net: &mut Net, app: &mut Bulk, span, progress: &Progress| {
        run_sampled(net, app, (span, SAMPLE), progress, |net, _, now| {
            curves.sample(net, &mut counters.borrow_mut(), now);
        });
    };
    phase(&mut net, &mut app, WARM_UP, &silent);
    let lost_at = net.now();
    drop_next_packet(&mut net, &mut app, &counters);
    phase(&mut net, &mut app, SETTLE, &silent);
    if run.case == SWITCHED_LIVE {
        net.host(CLIENT).set_legacy(Legacy::default());
        phase(&mut net, &mut app, SETTLE, &silent);
    }
    let each = sends_around(&counters.borrow(), lost_at);
    let earlier = net.report(FLOW);
    *counters.borrow_mut() = PacketCounters::default();
    let (start, span) = (net.now(), run.scaled(MEASURED, MEASURED / 6));
    phase(&mut net, &mut app, span, run.progress);
    let later = net.report(FLOW);
    let mut out = measures(&counters.borrow(), span);
    out.set("headroom_kib", curves.headroom.mean_since(start));
    let retransmitted = net.counter(CLIENT, "TcpRetransSegs");
    out.set("retransmitted_segments", retransmitted as f64);
    out.histograms = vec![
        NamedHistogram::between("send size", &earlier.send_size, &later.send_size),
        NamedHistogram::between("head-room", &earlier.headroom, &later.headroom),
    ];
    out.series = vec![curves.rate, curves.headroom, curves.cwnd, each];
    out
}

/// Returns the measurements of the packets at the card in a span.
fn measures(counters: &PacketCounters, span: Nanos) -> Measurements {
    let (packets, payload_bytes) = (counters.packets as f64, counters.payload_bytes as f64);
    let bytes = payload_bytes + packets * HEADERS;
    let seconds = span.as_secs_f64();
    let mut out = Measurements::default();
    out.set("bytes_per_packet", bytes / packets);
    out.set("largest_packet", f64::from(counters.largest) + HEADERS);
    out.set("segments_per_packet", payload_bytes / packets / MSS);
    out.set("rate_mb_per_second", bytes / 1e6 / seconds);
    out.set("packets_per_second", packets / seconds);
    out.set("acks_per_packet", counters.acks as f64 / packets);
    out
}

/// Returns the sends from shortly before `at` until some round trips later.
fn sends_around(counters: &PacketCounters, at: Instant) -> Series {
    let (first, last) = (
        at.as_nanos().saturating_sub(5_000_000),
        at.as_nanos() + 25_000_000,
    );
    let mut each = Series::new("each send");
    for (at, bytes) in &counters.sizes {
        if (first..last).contains(&at.as_nanos()) {
            each.push(*at, f64::from(*bytes));
        }
    }
    each
}

fn figures(cases: &[Measurements]) -> Vec<Figure> {
    let pair = |what, unit, name: &str, digits| {
        Figure::new(what, unit, digits).ours(cases[BEFORE].get(name), cases[AFTER].get(name))
    };
    let stuck = 5.0 * MSS + HEADERS;
    let full = 45.0 * MSS + HEADERS;
    vec![
        pair(
            "bytes per packet after a loss (dlstat)",
            "bytes",
            "bytes_per_packet",
            0,
        )
        .reference(7301.0, 46_387.0)
        .check(Check::FromTo(stuck, 0.9 * full)),
        pair("segments per packet", "", "segments_per_packet", 2)
            .reference(5.0, 32.0)
            .check(Check::NotJudged),
        pair("largest packet", "bytes", "largest_packet", 0).check(Check::Exactly([stuck, full])),
        pair(
            "rate (dlstat); before: for tcp_rmem[2] of 2 MB",
            "MB/s",
            "rate_mb_per_second",
            2,
        )
        .reference(55.71, 1130.0)
        .check(Check::RisesBy(10.0)),
        pair("packets", "1/s", "packets_per_second", 0)
            .reference(7630.0, 24_360.0)
            .check(Check::NotJudged),
        pair("ACKs per packet", "", "acks_per_packet", 2)
            .reference(0.94, 1.0)
            .check(Check::NotJudged),
        pair("head-room, mean", "KiB", "headroom_kib", 0).check(Check::NotJudged),
        Figure::new("rate, old rule switched off live", "MB/s", 2)
            .ours(
                cases[BEFORE].get("rate_mb_per_second"),
                cases[SWITCHED_LIVE].get("rate_mb_per_second"),
            )
            .check(Check::RisesBy(10.0)),
    ]
}

fn plots(cases: &[Measurements]) -> Vec<Plot> {
    let drawn = |kind, title, name, y| Plot::over_time(title, y, kind, cases, name, &EXPERIMENT);
    let over = |title, name, y| drawn(PlotStyle::Line, title, name, y);
    let bars = |title, name| Plot::histograms(title, "bytes", cases, name, &EXPERIMENT);
    vec![
        over("Rate on the link", "rate", "MB/s"),
        drawn(
            PlotStyle::Dots,
            "Each send around the loss",
            "each send",
            "bytes",
        ),
        over("Head-room", "head-room", "KiB"),
        over("cwnd", "cwnd", "KiB"),
        bars("Send size after the loss", "send size"),
        bars("Head-room of each send after the loss", "head-room"),
    ]
}

/// Runs slow start, a loss, and a few milliseconds after it.
fn trace(run: &RunContext<'_>, attach: &mut dyn FnMut(&mut Net)) {
    let mut net = network(run);
    attach(&mut net);
    net.open(1);
    let counters = count_packets(&mut net);
    let mut app = Bulk::start(&mut net, MESSAGE, Nanos::ZERO);
    net.run(Instant::ZERO + Nanos::from_millis(12), &mut app);
    drop_next_packet(&mut net, &mut app, &counters);
    net.run(Instant::ZERO + Nanos::from_millis(30), &mut app);
}
