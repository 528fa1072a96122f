//! Measures the cost of GRO in ns per packet, by the number of interleaved flows:
//!
//! ```sh
//! cargo run --release -p fullsend-offload --example gro_flows [shape]
//! ```
//!
//! Every row measures the same 44,000 frames in another order, in which they also lie in memory.
//! "Cold" reads the frames uncached: they are more than fit in a cache. "Warm" first touches the
//! headers of a poll's frames, like a device that writes them to the cache. All other memory of a
//! poll (packets, records of held packets) is as cold as the length of the poll makes it. The rows
//! are measured alternately, many times, and the lower quartile of all their polls is printed: it
//! is stable on a busy machine too.
#![expect(clippy::disallowed_methods, reason = "it is there to measure time")]

use std::hint::black_box;
use std::time::Instant as Clock;

use fullsend_offload::{Checksum, Gro, GroConfig, Link, Packet, Slice, Tunnels};
use fullsend_wire::Instant;

#[path = "../benches/frames/mod.rs"]
mod frames;
use frames::HeaderShape;

const MSS: usize = 1448;
const FLOWS: usize = 1000;
const SEGMENTS: usize = 44;
const ROUNDS: usize = 30;

/// The number of interleaved flows, and of packets per device poll.
const ROWS: [(usize, usize); 6] = [
    (1, 352),
    (8, 352),
    (1, 4000),
    (1000, 4000),
    (1000, 256),
    (1000, 64),
];

/// Returns the frames of all flows, in memory in the order in which they are received.
fn frames(shape: HeaderShape, interleaved: usize) -> Vec<Slice> {
    let frame = |flow: usize, index| Slice::copied_from(&shape.frame(flow as u16, index, MSS));
    let groups = (0..FLOWS).step_by(interleaved);
    groups
        .flat_map(|first| {
            (0..SEGMENTS).flat_map(move |index| {
                (first..first + interleaved).map(move |flow| frame(flow, index))
            })
        })
        .collect()
}

/// Measures the mean ns per packet of each poll.
fn time(gro: &mut Gro, packets: Vec<Packet>, poll: usize, warm: bool, spent: &mut Vec<f64>) {
    let mut packets = packets.into_iter();
    let (mut batch, mut out) = (Vec::with_capacity(poll), Vec::with_capacity(poll));
    while packets.len() > 0 {
        batch.extend(packets.by_ref().take(poll));
        let count = batch.len();
        if warm {
            let frames = batch.iter().flat_map(|packet| packet.payload.slices());
            frames.for_each(|frame| _ = black_box((frame[0], frame[64])));
        }
        let start = Clock::now();
        gro.receive_batch(Instant::ZERO, &mut batch);
        gro.flush(&mut out);
        spent.push(start.elapsed().as_nanos() as f64 / count as f64);
        black_box(out.len());
        out.clear();
    }
}

fn lower_quartile(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}

fn main() {
    let only = std::env::args().nth(1);
    println!(
        "headers | frames | flows in turn | packets of a poll | ns a packet | beside one flow"
    );
    for (name, shape) in HeaderShape::ALL {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let packet = |frame: &Slice| {
            let mut packet = Packet::from_frame(frame.clone());
            packet.offload.checksum = Checksum::Valid;
            packet
        };
        let frames = ROWS.map(|(interleaved, _)| frames(shape, interleaved));
        let mut gro = Gro::new(GroConfig {
            tunnels: Tunnels::STANDARD,
            ..GroConfig::new(Link::Ip)
        });
        let mut spent: [[Vec<f64>; ROWS.len()]; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (row, (frames, (_, poll))) in frames.iter().zip(ROWS).enumerate() {
                for (warm, spent) in spent.iter_mut().enumerate() {
                    let packets = frames.iter().map(packet).collect();
                    time(&mut gro, packets, poll, warm == 1, &mut spent[row]);
                }
            }
        }
        for (state, mut spent) in ["cold", "warm"].into_iter().zip(spent) {
            let ns = spent.each_mut().map(|polls| lower_quartile(polls));
            for ((interleaved, poll), cost) in ROWS.iter().zip(ns) {
                let ratio = cost / ns[0];
                println!("{name} | {state} | {interleaved} | {poll} | {cost:.1} | {ratio:.2}");
            }
        }
    }
}
