//! The number of times that GRO parses a packet's headers. Runs of one flow over IPv6: plain, with
//! extension headers, and in another IPv6 packet.
//!
//! "Before", completing an aggregate walks its headers again, from the first network header to the
//! transport, to find the handler that completes it. "After", it uses what was recorded on receive.

use std::hint::black_box;

use fullsend_offload::{Checksum, Gro, GroConfig, Link, Packet, Slice, Tunnels};
use fullsend_wire::{Instant, Nanos};

use crate::experiment::{AFTER, BEFORE, Experiment, RunContext};
use crate::figure::{Check, Figure};
use crate::measure::Measurements;

mod legacy;
#[cfg(test)]
mod tests;

use legacy::LegacyComplete;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "gro-parse",
    purpose: "GRO completes an aggregate with the results of the first parse, and walks no header \
              twice",
    source: "Linux series \"gro: optimise redundant parsing of packets\" (R. Gobert, 2023; 7b355b76e2b3 is its first patch): TCP_STREAM over each, mean of 5",
    cases: &["before", "after"],
    weights: &[1, 1],
    run,
    figures,
    plots: |_| Vec::new(),
    trace: None,
};

/// The headers in front of the TCP header, and the names of the case's measurements and rows.
struct Encapsulation {
    /// Next header of the first IPv6 header, and the bytes after it up to the TCP header.
    inner_headers: (u8, fn() -> Vec<u8>),
    received: MetricNames,
    completed: MetricNames,
    time: MetricNames,
    /// Name of the measurement of the second walk, per packet.
    second_walk: &'static str,
    /// The row of the gain of a single parse, and the reference's gain in percent.
    gain: (&'static str, f64),
    /// Walks to complete an aggregate: the reference's after its change, and these before.
    walks: [f64; 2],
}

/// The names of a measurement, and of its row.
struct MetricNames {
    value: &'static str,
    row: &'static str,
}

const TCP: u8 = 6;
const IPV6: u8 = 41;
const DESTINATION: u8 = 60;

const PLAIN: Encapsulation = Encapsulation {
    inner_headers: (TCP, Vec::new),
    received: MetricNames {
        value: "ipv6_walks_on_receive",
        row: "IPv6: walks on receive, per aggregate of 44",
    },
    completed: MetricNames {
        value: "ipv6_walks_to_complete",
        row: "IPv6: walks to complete it",
    },
    time: MetricNames {
        value: "ipv6_ns_per_packet",
        row: "IPv6: a packet's time, measured here",
    },
    second_walk: "ipv6_second_walk_ns_per_packet",
    gain: ("IPv6: gained by one parse, measured here", 0.02),
    walks: [0.0, 1.0],
};

const EXTENDED: Encapsulation = Encapsulation {
    inner_headers: (DESTINATION, || vec![TCP, 0, 1, 4, 0, 0, 0, 0]),
    received: MetricNames {
        value: "extension_walks_on_receive",
        row: "extension headers: walks on receive, per aggregate of 44",
    },
    completed: MetricNames {
        value: "extension_walks_to_complete",
        row: "extension headers: walks to complete it",
    },
    time: MetricNames {
        value: "extension_ns_per_packet",
        row: "extension headers: a packet's time, measured here",
    },
    second_walk: "extension_second_walk_ns_per_packet",
    gain: (
        "extension headers: gained by one parse, measured here",
        0.74,
    ),
    walks: [0.0, 1.0],
};

const TUNNEL: Encapsulation = Encapsulation {
    inner_headers: (IPV6, || ipv6(TCP, 32 + MSS)),
    received: MetricNames {
        value: "tunnel_walks_on_receive",
        row: "IPv6 in IPv6: walks on receive, per aggregate of 44",
    },
    completed: MetricNames {
        value: "tunnel_walks_to_complete",
        row: "IPv6 in IPv6: walks to complete it",
    },
    time: MetricNames {
        value: "tunnel_ns_per_packet",
        row: "IPv6 in IPv6: a packet's time, measured here",
    },
    second_walk: "tunnel_second_walk_ns_per_packet",
    gain: ("IPv6 in IPv6: gained by one parse, measured here", 0.03),
    walks: [1.0, 2.0],
};

const ENCAPSULATIONS: [Encapsulation; 3] = [PLAIN, EXTENDED, TUNNEL];

const MSS: usize = 1448;
/// Second walks timed together: a single one takes less time than reading the clock.
const REPEATED: usize = 64;
/// Packets of one device poll: one less than fill 64 KiB, so that the flush completes them.
const POLL: usize = 44;

fn ipv6(next_header: u8, len: usize) -> Vec<u8> {
    let mut out = vec![0x60, 0, 0, 0];
    out.extend((len as u16).to_be_bytes());
    out.extend([next_header, 64]);
    out.extend([[0xfd; 15].as_slice(), &[1]].concat());
    out.extend([[0xfd; 15].as_slice(), &[2]].concat());
    out
}

impl Encapsulation {
    /// Returns segment `index` of the flow, without a TCP checksum: the card has verified it.
    fn frame(&self, index: usize) -> Slice {
        let (next_header, inner_headers) = self.inner_headers;
        let inner_headers = inner_headers();
        let mut out = ipv6(next_header, inner_headers.len() + 32 + MSS);
        out.extend(inner_headers);
        out.extend([0x1f, 0x40, 0, 80]);
        out.extend(((index * MSS) as u32).to_be_bytes());
        out.extend([0, 0, 0, 7, 0x80, 0x10, 1, 0, 0, 0, 0, 0]);
        out.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        out.resize(out.len() + MSS, 0x5a);
        Slice::copied_from(&out)
    }
}

/// Header walks that GRO counted, and those of the second parse.
#[derive(Default)]
struct Walks {
    on_receive: u64,
    to_complete: u64,
}

fn run(run: &RunContext<'_>) -> Measurements {
    let mut out = Measurements::default();
    for (i, encapsulation) in ENCAPSULATIONS.iter().enumerate() {
        measure(run, encapsulation, &mut out);
        run.progress
            .set((i + 1) as f64 / ENCAPSULATIONS.len() as f64);
    }
    out
}

/// Measures polls of one flow.
fn measure(run: &RunContext<'_>, encapsulation: &Encapsulation, out: &mut Measurements) {
    let frames: Vec<Slice> = (0..POLL).map(|index| encapsulation.frame(index)).collect();
    let mut gro = Gro::new(GroConfig {
        link: Link::Ip,
        enabled: true,
        max_size: 65_536,
        tunnels: Tunnels::STANDARD,
    });
    let mut legacy = LegacyComplete::default();
    let (mut packets, mut joined) = (Vec::new(), Vec::new());
    let (mut best, mut second_walk) = (f64::INFINITY, f64::INFINITY);
    let (mut walks, mut walked) = (Walks::default(), 0);
    let polls = run.scaled(40_000, 40);
    for _ in 0..polls {
        packets.extend(frames.iter().map(|frame| {
            let mut packet = Packet::from_frame(frame.clone());
            packet.offload.checksum = Checksum::Valid;
            packet
        }));
        let start = run.clock.map(|clock| clock());
        gro.receive_batch(Instant::ZERO, &mut packets);
        let received = gro.stats().parsed;
        walks.on_receive += received - walked;
        gro.flush(&mut joined);
        walked = gro.stats().parsed;
        walks.to_complete += walked - received;
        if run.is_before() {
            for packet in &joined {
                black_box(legacy.complete(&packet.header));
            }
        }
        if let (Some(clock), Some(start)) = (run.clock, start) {
            let end = clock();
            // The minimum, as the run least disturbed by the rest of the machine.
            best = best.min(per_packet(start, end, 1));
            if run.is_before() {
                repeat_walk(&joined);
                second_walk = second_walk.min(per_packet(end, clock(), REPEATED));
            }
        }
        joined.clear();
    }
    walks.to_complete += legacy.walks;
    // A poll is one aggregate: several of them would need more walks, which would be counted.
    let per_aggregate = |walks: u64| walks as f64 / f64::from(polls);
    out.set(
        encapsulation.received.value,
        per_aggregate(walks.on_receive),
    );
    out.set(
        encapsulation.completed.value,
        per_aggregate(walks.to_complete),
    );
    if run.clock.is_some() {
        out.set(encapsulation.time.value, best);
        if run.is_before() {
            out.set(encapsulation.second_walk, second_walk);
        }
    }
}

/// Returns the nanoseconds per packet of a poll that was repeated `times` times.
fn per_packet(start: Nanos, end: Nanos, times: usize) -> f64 {
    (end.as_nanos() - start.as_nanos()) as f64 / (POLL * times) as f64
}

/// Runs the second walk of every aggregate by itself.
fn repeat_walk(aggregates: &[Packet]) {
    let mut legacy = LegacyComplete::default();
    for _ in 0..REPEATED {
        for packet in aggregates {
            black_box(legacy.complete(black_box(&packet.header)));
        }
    }
    black_box(legacy.walks);
}

/// Returns a measured time, if there was a clock.
fn time(case: &Measurements, name: &str) -> Option<f64> {
    case.values.get(name).copied()
}

/// Returns a row in percent that is not judged.
fn info_row(what: &'static str, reference: f64, ours: Option<f64>) -> Figure {
    let figure = Figure::new(what, "%", 2).reference_after(reference);
    match ours {
        Some(ours) => figure.ours_after(ours),
        None => figure,
    }
}

fn figures(cases: &[Measurements]) -> Vec<Figure> {
    let mut out = Vec::new();
    for encapsulation in &ENCAPSULATIONS {
        walks(cases, encapsulation, &mut out);
        let [before, after] =
            [BEFORE, AFTER].map(|case| time(&cases[case], encapsulation.time.value));
        if let Some((before, after)) = before.zip(after) {
            out.push(Figure::new(encapsulation.time.row, "ns", 1).ours(before, after));
        }
        // Not from the difference of the two times, which is smaller than their variation.
        let saved = time(&cases[BEFORE], encapsulation.second_walk).zip(after);
        let gain = saved.map(|(walk, packet)| walk / packet * 100.0);
        out.push(info_row(encapsulation.gain.0, encapsulation.gain.1, gain));
    }
    let after = |encapsulation: &Encapsulation| time(&cases[AFTER], encapsulation.time.value);
    let cost = after(&EXTENDED).zip(after(&PLAIN));
    out.push(info_row(
        "extension headers: cost beside plain IPv6, measured here",
        9.7,
        cost.map(|(extended, plain)| (extended / plain - 1.0) * 100.0),
    ));
    out
}

/// Adds the rows that are the same on every machine.
fn walks(cases: &[Measurements], encapsulation: &Encapsulation, out: &mut Vec<Figure>) {
    let pair = |names: &MetricNames| {
        let [before, after] = [BEFORE, AFTER].map(|case| cases[case].get(names.value));
        Figure::new(names.row, "walks", 3).ours(before, after)
    };
    let [theirs, before] = encapsulation.walks;
    // With prediction, only the first packet needs a walk.
    out.push(
        pair(&encapsulation.received)
            .reference(POLL as f64, POLL as f64)
            .check(Check::Exactly([1.0; 2])),
    );
    out.push(
        pair(&encapsulation.completed)
            .reference(before, theirs)
            .check(Check::Exactly([before, 0.0])),
    );
}
