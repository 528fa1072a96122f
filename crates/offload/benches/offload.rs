//! Benchmark of GRO and GSO in ns per packet, with and without accesses to the payload.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fullsend_offload::{
    Checksum, Gro, GroConfig, GsoKind, HeaderBuf, Layers, Link, Offload, Packet, Pool, Slice,
    Tunnels, segment,
};
use fullsend_wire::Instant;

mod frames;
use frames::HeaderShape;

const MSS: usize = 1448;
const SEGMENTS: usize = 44;

/// Returns a super-segment as the TCP of a host builds it.
fn super_segment(v6: bool, port: u16) -> Packet {
    let network = if v6 { 40 } else { 20 };
    let mut header = vec![0u8; network + 32];
    let len = network + 32 + MSS * SEGMENTS;
    if v6 {
        header[0] = 0x60;
        header[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        (header[6], header[7]) = (6, 64);
        (header[23], header[39]) = (1, 2);
    } else {
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        (header[8], header[9]) = (64, 6);
        (header[15], header[19]) = (1, 2);
        let sum = fullsend_wire::checksum::sum(&header[..20]).checksum();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    header[network..network + 2].copy_from_slice(&port.to_be_bytes());
    header[network + 12] = 0x80;
    header[network + 13] = 0x10;
    header[network + 20..network + 24].copy_from_slice(&[1, 1, 8, 10]);
    let mut buf = Pool::new(0).alloc(MSS * SEGMENTS);
    buf.advance(MSS * SEGMENTS);
    Packet {
        header: HeaderBuf::from_slice(&header),
        payload: buf.freeze().into(),
        layers: Layers {
            transport: network as u16,
            ethertype: if v6 { 0x86dd } else { 0x0800 },
            protocol: 6,
            ..Layers::default()
        },
        offload: Offload {
            gso_size: MSS as u16,
            gso_segs: SEGMENTS as u16,
            kind: if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 },
            checksum: Checksum::Partial,
            ..Offload::default()
        },
        ..Packet::default()
    }
}

fn segmented(packet: Packet) -> Vec<Packet> {
    let mut out = Vec::new();
    segment(packet, &mut out);
    out
}

/// Returns the packets as a device receives them, each in one memory block.
fn frames(packets: &[Packet], checksum: Checksum) -> Vec<Packet> {
    packets
        .iter()
        .map(|packet| {
            let mut frame = Packet::from_frame(Slice::copied_from(&packet.to_bytes()));
            frame.offload.checksum = checksum;
            frame
        })
        .collect()
}

fn gro(c: &mut Criterion) {
    let mut group = c.benchmark_group("gro");
    for v6 in [false, true] {
        let name = if v6 { "v6" } else { "v4" };
        let segmented = segmented(super_segment(v6, 1));
        group.throughput(Throughput::Elements(SEGMENTS as u64));
        let inputs = [
            (
                "from a device, checksum known",
                frames(&segmented, Checksum::Valid),
            ),
            (
                "from a device, verified",
                frames(&segmented, Checksum::Unverified),
            ),
            ("from this process, checksum known", {
                let mut segmented = segmented.clone();
                for packet in &mut segmented {
                    packet.offload.checksum = Checksum::Valid;
                }
                segmented
            }),
            ("from this process, verified", segmented),
        ];
        for (what, input) in inputs {
            run(&mut group, &format!("{name} {what}"), &input);
        }
    }
    // Interleaved flows: one packet of each flow after the other.
    for (name, shape) in HeaderShape::ALL {
        for flows in [1, 8, 1000] {
            let mixed: Vec<_> = (0..SEGMENTS)
                .flat_map(|i| (0..flows).map(move |flow| shape.frame(flow, i, MSS)))
                .map(|frame| {
                    let mut packet = Packet::from_frame(Slice::copied_from(&frame));
                    packet.offload.checksum = Checksum::Valid;
                    packet
                })
                .collect();
            group.throughput(Throughput::Elements(mixed.len() as u64));
            run(&mut group, &format!("{name}, {flows} flows"), &mixed);
        }
    }
    group.finish();
}

fn run(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    name: &str,
    input: &[Packet],
) {
    let mut engine = Gro::new(GroConfig {
        link: Link::Ip,
        enabled: true,
        max_size: 65_536,
        tunnels: Tunnels::STANDARD,
    });
    let mut out = Vec::with_capacity(input.len());
    group.bench_function(name, |b| {
        b.iter_batched_ref(
            || input.to_vec(),
            |packets| {
                out.clear();
                engine.receive_batch(Instant::ZERO, packets);
                engine.flush(&mut out);
                black_box(out.len())
            },
            BatchSize::LargeInput,
        );
    });
}

fn gso(c: &mut Criterion) {
    let mut group = c.benchmark_group("gso");
    group.throughput(Throughput::Elements(SEGMENTS as u64));
    for v6 in [false, true] {
        let whole = super_segment(v6, 1);
        let mut out = Vec::new();
        group.bench_function(if v6 { "v6" } else { "v4" }, |b| {
            b.iter(|| {
                out.clear();
                segment(whole.clone(), &mut out);
                black_box(out.len())
            });
        });
    }
    group.bench_function("the checksum of it alone", |b| {
        let whole = super_segment(false, 1);
        let bytes = &whole.payload.slices()[0];
        b.iter(|| {
            bytes
                .chunks(MSS)
                .map(|part| u32::from(fullsend_wire::checksum::sum(part).fold()))
                .sum::<u32>()
        });
    });
    group.finish();
}

criterion_group!(benches, gro, gso);
criterion_main!(benches);
