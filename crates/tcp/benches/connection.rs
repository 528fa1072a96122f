//! Measures the cost of a connection alone: two connections exchange segments directly.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fullsend_offload::Pool;
use fullsend_tcp::{
    Connection, Cx, DeviceCaps, HostLimits, SegmentIn, SegmentOut, SocketOption, Sysctl, TcpMemory,
    TcpMib,
};
use fullsend_wire::{EcnField, Instant, Mss, Nanos, Rng, Seed, SeqNum};

struct Lab {
    now: Instant,
    sysctl: Sysctl,
    pool: Pool,
    mib: TcpMib,
    mem: TcpMemory,
    limits: HostLimits,
    rng: Rng,
    gso_max_segs: u32,
}

impl Lab {
    fn new(gso_max_segs: u32) -> Self {
        Self {
            now: Instant::ZERO + Nanos::from_secs(1),
            sysctl: Sysctl::default(),
            pool: Pool::new(64 << 20),
            mib: TcpMib::default(),
            mem: TcpMemory::default(),
            limits: HostLimits::default(),
            rng: Rng::new(Seed::from_u64(1)),
            gso_max_segs,
        }
    }

    fn cx(&mut self) -> Cx<'_> {
        Cx {
            now: self.now,
            sysctl: &self.sysctl,
            pool: &self.pool,
            mib: &mut self.mib,
            mem: &mut self.mem,
            limits: &mut self.limits,
            rng: &mut self.rng,
            device: DeviceCaps {
                mtu: 1500,
                gso_max_size: 65_536,
                gso_max_segs: self.gso_max_segs,
                fq: false,
            },
            ts_offset: 0,
            legacy: fullsend_tcp::legacy::Legacy::default(),
        }
    }

    fn pair(&mut self) -> (Connection, Connection) {
        let mss = Mss::clamped(1460);
        let mut cx = self.cx();
        let mut a = Connection::connect(&mut cx, 1, 2, SeqNum::new(5), mss, 20);
        let syn = a.poll_transmit(&mut cx).expect("a SYN");
        let mut b = Connection::accept(
            &mut cx,
            &syn.repr,
            EcnField::NotEct,
            SeqNum::new(9),
            mss,
            20,
        );
        while self.send(&mut a, &mut b) + self.send(&mut b, &mut a) > 0 {}
        (a, b)
    }

    fn send(&mut self, from: &mut Connection, to: &mut Connection) -> usize {
        self.now += Nanos::from_micros(5);
        let mut cx = self.cx();
        let mut sent = 0;
        while let Some(out) = from.poll_transmit(&mut cx) {
            sent += 1;
            from.handle_tx_complete(&mut cx, out.truesize);
            to.handle_segment(&mut cx, &mut arrive(out));
        }
        sent
    }
}

fn arrive(out: SegmentOut) -> SegmentIn {
    SegmentIn {
        repr: out.repr,
        payload: out.payload,
        gso_size: out.gso_size,
        gso_segs: out.gso_segs,
        ecn: EcnField::NotEct,
    }
}

fn stream(c: &mut Criterion, name: &str, message: usize, gso_max_segs: u32) {
    let mut lab = Lab::new(gso_max_segs);
    let (mut a, mut b) = lab.pair();
    let text = vec![7; message];
    let mut out = vec![0; 128 << 10];
    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Bytes(message as u64));
    group.bench_function(name, |bench| {
        bench.iter(|| {
            let mut done = 0;
            while done < message {
                let written = a.write(&mut lab.cx(), &text[done..], false);
                done += written.unwrap_or(0);
                if a.needs_transmit() {
                    lab.send(&mut a, &mut b);
                }
                if written.is_err() || b.needs_transmit() {
                    while b.read(&mut lab.cx(), &mut out).is_ok() {}
                    if lab.send(&mut b, &mut a) == 0 && written.is_err() {
                        lab.now += Nanos::from_millis(40);
                        b.handle_timeout(&mut lab.cx());
                    }
                }
            }
        });
    });
    group.finish();
}

fn streams(c: &mut Criterion) {
    stream(c, "128K writes, super-segments", 128 << 10, 65_535);
    stream(c, "128K writes, segments", 128 << 10, 1);
    stream(c, "128-byte writes, super-segments", 128, 65_535);
    stream(c, "128-byte writes, segments", 128, 1);
}

fn request_response(c: &mut Criterion) {
    let mut lab = Lab::new(65_535);
    let (mut a, mut b) = lab.pair();
    for end in [&mut a, &mut b] {
        let nodelay = SocketOption::TcpNodelay(true);
        end.set_option(&mut lab.cx(), nodelay)
            .expect("a valid option");
    }
    let text = vec![7; 4096];
    let mut out = vec![0; 4096];
    c.bench_function("rr 4K,4K", |bench| {
        bench.iter(|| {
            a.write(&mut lab.cx(), &text, false).expect("room");
            lab.send(&mut a, &mut b);
            assert_eq!(b.read(&mut lab.cx(), &mut out), Ok(4096));
            b.write(&mut lab.cx(), &text, false).expect("room");
            lab.send(&mut b, &mut a);
            assert_eq!(a.read(&mut lab.cx(), &mut out), Ok(4096));
        });
    });
}

criterion_group!(benches, streams, request_response);
criterion_main!(benches);
