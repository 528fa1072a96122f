//! Checksums by length, and the TCP header both ways: `cargo bench -p fullsend-wire`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fullsend_wire::checksum::sum;
use fullsend_wire::tcp::{SackBlock, TcpFlags, TcpRepr, Timestamps};
use fullsend_wire::{SeqNum, WireWindow};

fn checksum(c: &mut Criterion) {
    let data = vec![0xa5; 65_536 + 64];
    let mut group = c.benchmark_group("checksum");
    for len in [20, 52, 128, 512, 1448, 4096, 65_160] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::from_parameter(len), &len, |b, &len| {
            b.iter(|| sum(black_box(&data[2..2 + len])).fold());
        });
    }
    group.finish();
}

fn tcp(c: &mut Criterion) {
    let mut repr = TcpRepr {
        src_port: 80,
        dst_port: 50_000,
        seq: SeqNum::new(1),
        ack: SeqNum::new(2),
        flags: TcpFlags::ACK,
        window: WireWindow(500),
        ..TcpRepr::default()
    };
    repr.options.timestamps = Some(Timestamps { val: 7, ecr: 8 });
    let mut group = c.benchmark_group("tcp");
    let mut both_ways = |name: &str, repr: TcpRepr| {
        let mut bytes = [0; 60];
        let len = repr.emit(&mut bytes);
        group.bench_function(BenchmarkId::new("parse", name), |b| {
            b.iter(|| TcpRepr::parse(black_box(&bytes[..len])));
        });
        group.bench_function(BenchmarkId::new("emit", name), |b| {
            b.iter(|| black_box(repr).emit(black_box(&mut bytes)));
        });
    };
    both_ways("timestamps", repr);
    let (left, right) = (SeqNum::new(9), SeqNum::new(19));
    repr.options.sack.push(SackBlock { left, right });
    both_ways("timestamps and SACK", repr);
}

criterion_group!(benches, checksum, tcp);
criterion_main!(benches);
