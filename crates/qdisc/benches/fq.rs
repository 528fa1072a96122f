//! The cost of a packet in `fq`, by the number of flows: backlogged, and paced.
//!
//! `FQ_FLOWS=10000 FQ_PACKETS=1000000 valgrind --tool=callgrind …` counts instructions of one
//! case, without criterion: the difference of two numbers of packets is the cost of a packet.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group};
use fullsend_offload::{Packet, TxToken};
use fullsend_qdisc::{Fq, FqConfig};
use fullsend_wire::{Instant, Nanos};

const FLOWS: [u64; 3] = [100, 10_000, 100_000];

/// A queue with one packet per flow; a packet that leaves is queued again with its next departure.
struct Bench {
    fq: Fq<Packet>,
    now: Instant,
    /// Time between a flow's packets; zero: backlogged.
    gap: Nanos,
}

impl Bench {
    fn new(flows: u64, paced: bool) -> Self {
        let config = FqConfig {
            limit: u32::MAX,
            horizon: Nanos::MAX,
            ..FqConfig::default()
        };
        let mut bench = Self {
            fq: Fq::new(config),
            now: Instant::from_nanos(1),
            // One packet per microsecond over all flows.
            gap: Nanos::from_micros(if paced { flows } else { 0 }),
        };
        for flow in 1..=flows {
            let mut packet = Packet::default();
            packet.header.prepend(52);
            packet.offload.gso_segs = 20;
            packet.tx = TxToken {
                socket: flow << 32 | flow,
                truesize: 30_000,
                departure_ns: if paced { flow * 1000 } else { 0 },
            };
            let queued = bench.fq.enqueue(bench.now, packet);
            assert!(queued.is_ok());
        }
        bench
    }

    fn dequeue_and_requeue(&mut self) {
        let Some(mut packet) = self.fq.dequeue(self.now) else {
            if let Some(at) = self.fq.next_departure() {
                self.now = at;
            }
            return;
        };
        packet.tx.departure_ns = (self.now + self.gap).as_nanos();
        let _ = black_box(self.fq.enqueue(self.now, packet));
    }
}

fn fq(c: &mut Criterion) {
    for (name, paced) in [("fq backlogged", false), ("fq paced", true)] {
        let mut group = c.benchmark_group(name);
        group.warm_up_time(Duration::from_millis(500));
        group.measurement_time(Duration::from_secs(2));
        for flows in FLOWS {
            let mut bench = Bench::new(flows, paced);
            let id = BenchmarkId::from_parameter(flows);
            group.bench_function(id, |b| b.iter(|| bench.dequeue_and_requeue()));
        }
        group.finish();
    }
}

criterion_group!(benches, fq);

fn main() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    if let Some(flows) = number("FQ_FLOWS") {
        let mut bench = Bench::new(flows, std::env::var_os("FQ_PACED").is_some());
        for _ in 0..number("FQ_PACKETS").unwrap_or(1_000_000) {
            bench.dequeue_and_requeue();
        }
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
