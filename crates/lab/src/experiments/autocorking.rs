//! Autocorking: small writes are coalesced while the card is busy with the flow. Four streams of
//! 128-byte writes on a 10 Gbit/s card, and an interactive writer.

use std::cell::RefCell;
use std::rc::Rc;

use fullsend_sim::{Netem, NicConfig, TracePoint};
use fullsend_tcp::SocketOption;
use fullsend_wire::{Instant, Nanos, Rate, Rng, Seed};

use crate::bulk::run_sampled;
use crate::cost::{Cpu, SERVER_OF_2013};
use crate::experiment::{AFTER, BEFORE, Experiment, RunContext};
use crate::figure::{Check, Figure};
use crate::measure::{Measurements, NamedHistogram, Series};
use crate::net::{App, CLIENT, Cable, FlowEnd, FlowPacket, Net, Ready, SERVER};
use crate::plot::{Plot, PlotStyle};

#[cfg(test)]
mod tests;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "autocorking",
    purpose: "small writes are coalesced while the card still sends for the flow, and never wait \
              for a timer",
    source: "Linux commit f54b3111 \"tcp: auto corking\" (E. Dumazet, Dec 2013): super_netperf 4 -t TCP_STREAM -- -m 128",
    cases: &["before", "after", "lines, before", "lines, after"],
    weights: &[20, 20, 1, 1],
    run,
    figures,
    plots,
    trace: Some(trace),
};

/// The cases of the interactive writer.
const LINES: [usize; 2] = [2, 3];

const MESSAGE: &[u8; 128] = &[b'n'; 128];
const FLOWS: usize = 4;
const SAMPLE: Nanos = Nanos::from_millis(1);

/// Writers whose rate is limited by their CPU.
struct Writers {
    cpus: Rc<RefCell<Vec<Cpu>>>,
    writes: u64,
    blocked: u64,
    read: u64,
}

impl Writers {
    fn start(net: &mut Net, cpus: Rc<RefCell<Vec<Cpu>>>) -> Self {
        for flow in 0..net.flows() {
            net.notify_when(FlowEnd { side: SERVER, flow }, Ready::Read);
            net.set_timer(net.now(), FlowEnd { side: CLIENT, flow });
        }
        Self {
            cpus,
            writes: 0,
            blocked: 0,
            read: 0,
        }
    }

    /// Writes once; the next write follows when the CPU is free.
    fn write(&mut self, net: &mut Net, end: FlowEnd) {
        let now = net.now();
        let mut cpus = self.cpus.borrow_mut();
        let cpu = &mut cpus[end.flow];
        if cpu.free_at() > now {
            net.set_timer(cpu.free_at(), end);
            return;
        }
        let written = net.write(end, MESSAGE);
        cpu.work(now, SERVER_OF_2013.of_write(written as u64));
        self.writes += 1;
        if written == MESSAGE.len() {
            net.set_timer(cpu.free_at(), end);
        } else {
            self.blocked += 1;
        }
    }
}

impl App for Writers {
    fn on_ready(&mut self, net: &mut Net, end: FlowEnd, ready: Ready) {
        match ready {
            Ready::Read => self.read += net.read(end),
            Ready::Write => {
                let cpu = &mut self.cpus.borrow_mut()[end.flow];
                cpu.work(net.now(), SERVER_OF_2013.switch);
                net.set_timer(cpu.free_at(), end);
            }
            Ready::Timer => self.write(net, end),
        }
    }
}

fn network(run: &RunContext<'_>, delay: Nanos) -> Net {
    let netem = Netem {
        delay,
        ..Netem::default()
    };
    let mut net = Net::new(
        &Cable {
            nic: NicConfig {
                rate: Rate(1_250_000_000),
                overhead: 38,
                ring: 512,
                rx_coalesce: Nanos::from_micros(25),
                tx_coalesce: Nanos::from_micros(50),
                ..NicConfig::default()
            },
            netem: [netem; 2],
        },
        run.seed,
    );
    let on = run.case == AFTER || run.case == LINES[1];
    net.sysctl(CLIENT, "tcp_autocorking", if on { "1" } else { "0" });
    net
}

/// The super-segments that the client sent.
#[derive(Default)]
struct SendCounts {
    count: u64,
    payload_bytes: u64,
    sizes: Vec<u32>,
}

/// Samples while the writers write.
struct Curves {
    throughput: Series,
    size: Series,
    sizes: NamedHistogram,
    read: u64,
}

impl Curves {
    fn sample(&mut self, sends: &mut SendCounts, read: u64, now: Instant) {
        let bits = (read - self.read) as f64 * 8.0;
        self.read = read;
        self.throughput.push(now, bits / 1e6 / SAMPLE.as_secs_f64());
        let (sum, n) = sends.sizes.drain(..).fold((0, 0), |(sum, n), bytes| {
            self.sizes.add(u64::from(bytes));
            (sum + u64::from(bytes), n + 1)
        });
        self.size.push(now, sum as f64 / f64::from(n.max(1)));
    }
}

fn run(run: &RunContext<'_>) -> Measurements {
    if LINES.contains(&run.case) {
        return run_lines(run);
    }
    let mut net = network(run, Nanos::from_micros(10));
    net.open(FLOWS);
    let cpus = Rc::new(RefCell::new(vec![Cpu::default(); FLOWS]));
    let sends = Rc::new(RefCell::new(SendCounts::default()));
    net.observe_tcp(observer(&cpus, &sends));
    let mut app = Writers::start(&mut net, cpus.clone());
    let mut curves = Curves {
        throughput: Series::new("throughput"),
        size: Series::new("send size"),
        sizes: NamedHistogram::new("send size"),
        read: 0,
    };
    let span = run.scaled(Nanos::from_millis(200), Nanos::from_millis(20));
    // The windows grow in the first half, which is not measured.
    let half = net.now() + span / 2;
    let sampled = (span, SAMPLE);
    run_sampled(&mut net, &mut app, sampled, run.progress, |_, app, now| {
        curves.sample(&mut sends.borrow_mut(), app.read, now);
    });
    let busy = cpus
        .borrow()
        .iter()
        .map(|cpu| cpu.busy().as_secs_f64())
        .sum();
    let mut out = measures(&sends.borrow(), busy, span);
    out.set("throughput_mbps", curves.throughput.mean_since(half));
    let autocorked = net.counter(CLIENT, "TcpExtTCPAutoCorking");
    out.set("autocorked", autocorked as f64);
    out.set("writers_blocked", app.blocked as f64);
    out.set("writes", app.writes as f64);
    out.histograms.push(curves.sizes);
    out.series = vec![curves.throughput, curves.size];
    out
}

/// Returns the measurements of `sends`, and of `busy` seconds of CPU time, over a span.
fn measures(sends: &SendCounts, busy: f64, span: Nanos) -> Measurements {
    let seconds = span.as_secs_f64();
    let (count, payload_bytes) = (sends.count as f64, sends.payload_bytes as f64);
    let mut out = Measurements::default();
    out.set("units_per_second", count / seconds);
    out.set("bytes_per_unit", payload_bytes / count);
    out.set("cpus", busy / seconds);
    out.set("cpu_ns_per_byte", busy * 1e9 / payload_bytes);
    out
}

fn observer(
    cpus: &Rc<RefCell<Vec<Cpu>>>,
    sends: &Rc<RefCell<SendCounts>>,
) -> impl FnMut(&FlowPacket) + 'static {
    let (cpus, sends) = (cpus.clone(), sends.clone());
    move |packet| {
        let cost = SERVER_OF_2013.of_packet(packet);
        cpus.borrow_mut()[packet.flow].work(packet.at, cost);
        if packet.side == CLIENT && packet.point == TracePoint::Queued && packet.payload_len > 0 {
            let mut sends = sends.borrow_mut();
            sends.count += 1;
            sends.payload_bytes += u64::from(packet.payload_len);
            sends.sizes.push(packet.payload_len);
        }
    }
}

/// A person, or a program, that occasionally writes a line.
struct Typist {
    rng: Rng,
    left: u32,
}

impl App for Typist {
    fn on_ready(&mut self, net: &mut Net, end: FlowEnd, ready: Ready) {
        if ready == Ready::Read {
            net.read(end);
            return;
        }
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let len = 1 + self.rng.below(100) as usize;
        net.write(end, &MESSAGE[..len]);
        // From the interval of key repetition to a pause for thought.
        let pause = Nanos::from_micros(500 << self.rng.below(9));
        net.set_timer(net.now() + pause, end);
    }
}

/// Runs the interactive writer, one line at a time, over a 40 ms path with TCP_NODELAY like ssh.
fn run_lines(run: &RunContext<'_>) -> Measurements {
    let mut net = network(run, Nanos::from_millis(20));
    net.open(1);
    let (client, server) = (
        FlowEnd {
            side: CLIENT,
            flow: 0,
        },
        FlowEnd {
            side: SERVER,
            flow: 0,
        },
    );
    net.set_option(client, SocketOption::TcpNodelay(true));
    let departures = Rc::new(RefCell::new(Series::new("departures")));
    let recorded = departures.clone();
    net.observe_tcp(move |packet| {
        if packet.side == CLIENT && packet.point == TracePoint::Queued && packet.payload_len > 0 {
            recorded
                .borrow_mut()
                .push(packet.at, f64::from(packet.payload_len));
        }
    });
    let mut app = Typist {
        rng: Rng::new(Seed::from_u64(run.seed)),
        left: run.scaled(2000, 200),
    };
    net.notify_when(server, Ready::Read);
    net.set_timer(net.now(), client);
    while app.left > 0 {
        let next = net.now() + Nanos::from_millis(100);
        net.run(next, &mut app);
    }
    let mut out = Measurements::default();
    out.set("lines", f64::from(run.scaled(2000, 200)));
    out.set(
        "autocorked",
        net.counter(CLIENT, "TcpExtTCPAutoCorking") as f64,
    );
    out.series = vec![departures.borrow().clone()];
    out
}

/// Returns the longest delay of a line by autocorking in microseconds; infinite if the lines sent
/// differ.
fn added_delay_us(cases: &[Measurements]) -> f64 {
    let [off, on] = LINES.map(|case| cases[case].series("departures"));
    let (Some(off), Some(on)) = (off, on) else {
        return f64::INFINITY;
    };
    if off.points.len() != on.points.len() {
        return f64::INFINITY;
    }
    let pairs = off.points.iter().zip(&on.points);
    pairs
        .map(|((off, _), (on, _))| (on - off) * 1e6)
        .fold(0.0, f64::max)
}

fn figures(cases: &[Measurements]) -> Vec<Figure> {
    let pair = |what, unit, name: &str, digits| {
        Figure::new(what, unit, digits).ours(cases[BEFORE].get(name), cases[AFTER].get(name))
    };
    vec![
        // Before is calibrated by the cost model, after is what the model predicts.
        pair(
            "4 streams of 128-byte writes (before: calibrated)",
            "Mb/s",
            "throughput_mbps",
            2,
        )
        .reference(6624.89, 9410.39)
        .check(Check::Within(0.01)),
        pair("packets before segmentation", "1/s", "units_per_second", 0)
            .check(Check::FallsBy(2.0)),
        pair("payload per packet", "bytes", "bytes_per_unit", 0).check(Check::NotJudged),
        pair("processors busy", "", "cpus", 3)
            .reference(3.301, 2.901)
            .check(Check::NotJudged),
        pair(
            "processor time per byte (2.8 GHz)",
            "ns",
            "cpu_ns_per_byte",
            2,
        )
        .reference(13.4 / 2.8, 8.3 / 2.8)
        .check(Check::NotJudged),
        pair("TCPAutoCorking", "", "autocorked", 0).check(Check::ZeroThenMore),
        pair(
            "writers blocked (reference: switches)",
            "",
            "writers_blocked",
            0,
        )
        .reference(171.0, 2294.0)
        .check(Check::NotJudged),
        Figure::new("delay added to lines over 40 ms", "us", 3)
            .ours_after(added_delay_us(cases))
            .check(Check::ExactlyOne(0.0)),
    ]
}

fn plots(cases: &[Measurements]) -> Vec<Plot> {
    let over =
        |title, name, y| Plot::over_time(title, y, PlotStyle::Line, cases, name, &EXPERIMENT);
    vec![
        over("Throughput of 4 streams", "throughput", "Mbit/s"),
        over("Mean send size", "send size", "bytes"),
        Plot::histograms("Send size", "bytes", cases, "send size", &EXPERIMENT),
    ]
}

/// Runs the first half millisecond of one stream.
fn trace(run: &RunContext<'_>, attach: &mut dyn FnMut(&mut Net)) {
    let mut net = network(run, Nanos::from_micros(10));
    attach(&mut net);
    net.open(1);
    let cpus = Rc::new(RefCell::new(vec![Cpu::default()]));
    net.observe_tcp(observer(&cpus, &Rc::default()));
    let mut app = Writers::start(&mut net, cpus);
    net.run(Instant::ZERO + Nanos::from_micros(600), &mut app);
}
