//! What a packet costs GRO by how many flows come in turn, in ns:
//!
//! ```sh
//! cargo run --release -p fullsend-offload --example gro_flows
//! ```
//!
//! Every row is of the same frames, more than fit in a cache, in another order, and they lie in
//! memory as they came. The rows are measured in turn, many times over; the median of the ratios
//! holds on a busy machine too.
#![expect(clippy::disallowed_methods, reason = "it is there to measure time")]

use std::hint::black_box;
use std::time::Instant as Clock;

use fullsend_buf::Slice;
use fullsend_offload::{Checksum, Gro, GroConfig, Link, Packet, Tunnels};
use fullsend_units::Instant;

#[path = "../benches/frames/mod.rs"]
mod frames;
use frames::Shape;

const MSS: usize = 1448;
const FLOWS: usize = 1000;
const SEGMENTS: usize = 44;
const ROUNDS: usize = 15;

/// Flows in turn, and packets of one device poll.
const ROWS: [(usize, usize); 5] = [(1, 352), (8, 352), (1000, 4000), (1000, 256), (1000, 64)];

/// The frames of all flows, each in memory behind the one that comes before it.
fn frames(shape: Shape, in_turn: usize) -> Vec<Slice> {
    let frame = |flow: usize, index| Slice::copied_from(&shape.frame(flow as u16, index, MSS));
    let groups = (0..FLOWS).step_by(in_turn);
    groups
        .flat_map(|first| {
            (0..SEGMENTS)
                .flat_map(move |index| (first..first + in_turn).map(move |flow| frame(flow, index)))
        })
        .collect()
}

/// Nanoseconds for each packet.
fn time(gro: &mut Gro, packets: Vec<Packet>, poll: usize) -> f64 {
    let count = packets.len();
    let mut packets = packets.into_iter();
    let (mut batch, mut out) = (Vec::with_capacity(poll), Vec::with_capacity(poll));
    let mut spent = 0;
    while packets.len() > 0 {
        batch.extend(packets.by_ref().take(poll));
        let start = Clock::now();
        gro.receive_batch(Instant::ZERO, &mut batch);
        gro.flush(&mut out);
        spent += start.elapsed().as_nanos();
        black_box(out.len());
        out.clear();
    }
    spent as f64 / count as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    println!("headers | flows in turn | packets of a poll | ns a packet | beside one flow");
    for (name, shape) in Shape::ALL {
        let packet = |frame: &Slice| {
            let mut packet = Packet::from_frame(frame.clone());
            packet.offload.checksum = Checksum::Valid;
            packet
        };
        let frames = ROWS.map(|(in_turn, _)| frames(shape, in_turn));
        let mut gro = Gro::new(GroConfig {
            tunnels: Tunnels::STANDARD,
            ..GroConfig::new(Link::Ip)
        });
        let rounds: Vec<[f64; ROWS.len()]> = (0..ROUNDS)
            .map(|_| {
                std::array::from_fn(|row| {
                    let packets = frames[row].iter().map(packet).collect();
                    time(&mut gro, packets, ROWS[row].1)
                })
            })
            .collect();
        for (row, (in_turn, poll)) in ROWS.iter().enumerate() {
            let ns = median(rounds.iter().map(|round| round[row]).collect());
            let ratio = median(rounds.iter().map(|round| round[row] / round[0]).collect());
            println!("{name} | {in_turn} | {poll} | {ns:.1} | {ratio:.2}");
        }
    }
}
