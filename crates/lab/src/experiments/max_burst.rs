//! The size of sends after a loss: one bulk flow over a path of 1 ms, and one loss.

use std::cell::RefCell;
use std::rc::Rc;

use fullsend_sim::{Netem, NicConfig, Point, RandomLoss};
use fullsend_tcp::legacy::Legacy;
use fullsend_units::{Instant, Nanos, Rate};

use crate::bulk::{Bulk, run_sampled};
use crate::experiment::{AFTER, BEFORE, Experiment, Progress, Run};
use crate::figure::{Check, Figure};
use crate::measure::{Histogram, Measures, Series};
use crate::net::{CLIENT, Cable, End, Net, SERVER};
use crate::plot::{Kind, Plot};

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
const CURED: usize = 2;

const MSS: f64 = 1448.0;
/// Ethernet, IP and TCP with timestamps, as dlstat counts them.
const HEADERS: f64 = 66.0;
const MESSAGE: usize = 64 << 10;
const SAMPLE: Nanos = Nanos::from_millis(1);
/// Time before the loss, time until the flow is steady again, and time that is measured.
const WARM: Nanos = Nanos::from_millis(100);
const SETTLE: Nanos = Nanos::from_millis(60);
const MEASURED: Nanos = Nanos::from_millis(240);
/// Delay of each direction.
const DELAY: Nanos = Nanos::from_micros(500);
const FLOW: End = End {
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

fn network(run: &Run<'_>) -> Net {
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
struct Tally {
    units: u64,
    text: u64,
    largest: u32,
    acks: u64,
    lost: u64,
    /// Bytes that left the card, with their headers.
    sent: f64,
    /// Time and bytes of each super-segment.
    sizes: Vec<(Instant, u32)>,
}

fn observe(net: &mut Net) -> Rc<RefCell<Tally>> {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let see = tally.clone();
    net.observe(move |seen| {
        let mut tally = see.borrow_mut();
        match seen.point {
            Point::Queued if seen.side == CLIENT && seen.text > 0 => {
                tally.units += 1;
                tally.text += u64::from(seen.text);
                tally.largest = tally.largest.max(seen.text);
                tally.sizes.push((seen.at, seen.text));
            }
            Point::Sent if seen.side == CLIENT && seen.text > 0 => {
                tally.sent += f64::from(seen.text) + HEADERS;
            }
            Point::Arrived if seen.side == CLIENT => tally.acks += 1,
            Point::Lost(_) => tally.lost += 1,
            _ => {}
        }
    });
    tally
}

/// Makes the path lose the next packet of the client.
fn lose_one(net: &mut Net, app: &mut Bulk, tally: &RefCell<Tally>) {
    let loss = RandomLoss::Even(1.0);
    net.set_netem(CLIENT, Netem { loss, ..wire() });
    let end = net.now() + Nanos::from_secs(1);
    while tally.borrow().lost == 0 {
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
    fn sample(&mut self, net: &mut Net, tally: &mut Tally, now: Instant) {
        let sent = std::mem::take(&mut tally.sent);
        self.rate.push(now, sent / SAMPLE.as_secs_f64() / 1e6);
        let info = net.info(FLOW);
        let cwnd = f64::from(info.tcpi_snd_cwnd) * MSS;
        let in_flight = f64::from(info.tcpi_unacked) * MSS;
        let room = cwnd.min(f64::from(info.tcpi_snd_wnd)) - in_flight;
        self.headroom.push(now, room.max(0.0) / 1024.0);
        self.cwnd.push(now, cwnd / 1024.0);
    }
}

fn run(run: &Run<'_>) -> Measures {
    let mut net = network(run);
    net.open(1);
    let tally = observe(&mut net);
    let mut app = Bulk::start(&mut net, MESSAGE, Nanos::ZERO);
    let mut curves = Curves {
        rate: Series::new("rate"),
        headroom: Series::new("head-room"),
        cwnd: Series::new("cwnd"),
    };
    let silent = Progress::default();
    let mut phase = |net: &mut Net, app: &mut Bulk, span, progress: &Progress| {
        run_sampled(net, app, (span, SAMPLE), progress, |net, _, now| {
            curves.sample(net, &mut tally.borrow_mut(), now);
        });
    };
    phase(&mut net, &mut app, WARM, &silent);
    let lost_at = net.now();
    lose_one(&mut net, &mut app, &tally);
    phase(&mut net, &mut app, SETTLE, &silent);
    if run.case == CURED {
        net.host(CLIENT).set_legacy(Legacy::default());
        phase(&mut net, &mut app, SETTLE, &silent);
    }
    let each = around(&tally.borrow(), lost_at);
    let earlier = net.report(FLOW);
    *tally.borrow_mut() = Tally::default();
    let (start, span) = (net.now(), run.scaled(MEASURED, MEASURED / 6));
    phase(&mut net, &mut app, span, run.progress);
    let later = net.report(FLOW);
    let mut out = measures(&tally.borrow(), span);
    out.set("headroom_kib", curves.headroom.mean_since(start));
    let retransmitted = net.counter(CLIENT, "TcpRetransSegs");
    out.set("retransmitted_segments", retransmitted as f64);
    out.histograms = vec![
        Histogram::between("send size", &earlier.send_size, &later.send_size),
        Histogram::between("head-room", &earlier.headroom, &later.headroom),
    ];
    out.series = vec![curves.rate, curves.headroom, curves.cwnd, each];
    out
}

/// Returns the measurements of the packets at the card in a span.
fn measures(tally: &Tally, span: Nanos) -> Measures {
    let (units, text) = (tally.units as f64, tally.text as f64);
    let bytes = text + units * HEADERS;
    let seconds = span.as_secs_f64();
    let mut out = Measures::default();
    out.set("bytes_per_packet", bytes / units);
    out.set("largest_packet", f64::from(tally.largest) + HEADERS);
    out.set("segments_per_packet", text / units / MSS);
    out.set("rate_mb_per_second", bytes / 1e6 / seconds);
    out.set("packets_per_second", units / seconds);
    out.set("acks_per_packet", tally.acks as f64 / units);
    out
}

/// Returns the sends from shortly before `at` until some round trips later.
fn around(tally: &Tally, at: Instant) -> Series {
    let (first, last) = (
        at.as_nanos().saturating_sub(5_000_000),
        at.as_nanos() + 25_000_000,
    );
    let mut each = Series::new("each send");
    for (at, bytes) in &tally.sizes {
        if (first..last).contains(&at.as_nanos()) {
            each.push(*at, f64::from(*bytes));
        }
    }
    each
}

fn figures(cases: &[Measures]) -> Vec<Figure> {
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
                cases[CURED].get("rate_mb_per_second"),
            )
            .check(Check::RisesBy(10.0)),
    ]
}

fn plots(cases: &[Measures]) -> Vec<Plot> {
    let drawn = |kind, title, name, y| Plot::over_time(title, y, kind, cases, name, &EXPERIMENT);
    let over = |title, name, y| drawn(Kind::Line, title, name, y);
    let bars = |title, name| Plot::histograms(title, "bytes", cases, name, &EXPERIMENT);
    vec![
        over("Rate on the link", "rate", "MB/s"),
        drawn(
            Kind::Dots,
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
fn trace(run: &Run<'_>, attach: &mut dyn FnMut(&mut Net)) {
    let mut net = network(run);
    attach(&mut net);
    net.open(1);
    let tally = observe(&mut net);
    let mut app = Bulk::start(&mut net, MESSAGE, Nanos::ZERO);
    net.run(Instant::ZERO + Nanos::from_millis(12), &mut app);
    lose_one(&mut net, &mut app, &tally);
    net.run(Instant::ZERO + Nanos::from_millis(30), &mut app);
}
