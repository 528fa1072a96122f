//! The memory of an idle established connection, heap included: when it is new, and after it has
//! carried much data.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fullsend_offload::Pool;
use fullsend_tcp::{
    Connection, Cx, DeviceCaps, FlowReport, HostLimits, SegmentIn, SegmentOut, State, Sysctl,
    TcpMemory, TcpMib,
};
use fullsend_wire::{EcnField, Instant, Mss, Nanos, Rng, Seed, SeqNum};

thread_local! {
    /// Bytes on the heap that this thread allocated; other threads of the test harness allocate,
    /// too.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        // SAFETY: the caller upholds the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct MemoryBench {
    now: Instant,
    sysctl: Sysctl,
    pool: Pool,
    mib: TcpMib,
    mem: TcpMemory,
    limits: HostLimits,
    rng: Rng,
}

impl MemoryBench {
    fn new() -> Self {
        Self {
            now: Instant::ZERO + Nanos::from_secs(1),
            sysctl: Sysctl::default(),
            // The pool caches no chunks, so that a chunk that no connection holds is freed.
            pool: Pool::new(0),
            mib: TcpMib::default(),
            mem: TcpMemory::default(),
            limits: HostLimits::default(),
            rng: Rng::new(Seed::from_u64(1)),
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
                gso_max_segs: 65_535,
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
        self.exchange(&mut a, &mut b);
        assert_eq!(
            (a.state(), b.state()),
            (State::Established, State::Established)
        );
        (a, b)
    }

    /// Runs both connections until no segment is pending and no timer is set, delayed ACKs
    /// included.
    fn exchange(&mut self, a: &mut Connection, b: &mut Connection) {
        loop {
            let moved = self.send(a, b) + self.send(b, a);
            let due = [&mut *a, &mut *b].map(|c| c.poll_deadline());
            if moved == 0 {
                let Some(at) = due.into_iter().flatten().min() else {
                    return;
                };
                self.now = at;
                a.handle_timeout(&mut self.cx());
                b.handle_timeout(&mut self.cx());
            }
        }
    }

    fn send(&mut self, from: &mut Connection, to: &mut Connection) -> usize {
        let mut cx = self.cx();
        let mut sent = 0;
        while let Some(out) = from.poll_transmit(&mut cx) {
            sent += 1;
            from.handle_tx_complete(&mut cx, out.truesize);
            to.handle_segment(&mut cx, &mut arrive(out));
        }
        sent
    }

    fn carry(&mut self, from: &mut Connection, to: &mut Connection, mut bytes: usize, each: usize) {
        let text = vec![7; each];
        let mut out = vec![0; 100_000];
        while bytes > 0 {
            while let Ok(n) = from.write(&mut self.cx(), &text[..each.min(bytes)], false) {
                bytes -= n;
                if bytes == 0 {
                    break;
                }
            }
            while self.send(from, to) + self.send(to, from) > 0 {
                while to.read(&mut self.cx(), &mut out).is_ok() {}
            }
            self.exchange(from, to);
        }
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

#[test]
fn an_idle_connection_is_small() {
    let mut bench = MemoryBench::new();
    // The first pair causes the lab's own allocations.
    drop(bench.pair());
    let before = HELD.get();
    let (mut a, mut b) = bench.pair();
    let heap = |before| (HELD.get() - before) as usize / 2;
    let fresh = heap(before);
    bench.carry(&mut a, &mut b, 5_000_000, 50_000);
    bench.carry(&mut b, &mut a, 100_000, 4096);
    bench.carry(&mut a, &mut b, 10_000, 128);
    let used = heap(before);
    let size = size_of::<Connection>();
    // Less the flow report, which a connection that has sent no data does not have.
    let used = used - size_of::<FlowReport>() - 16;
    println!("{size} + {fresh} bytes when new, {size} + {used} after use");
    assert!(size + fresh <= 752, "{size} + {fresh}");
    assert!(size + used <= 1024, "{size} + {used}");
}
