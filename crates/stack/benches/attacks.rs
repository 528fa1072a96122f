//! The processor time that attacks cost: `cargo bench -p fullsend-stack --bench attacks`.
//!
//! Four flows run as fast as one core allows, in alternating periods without and with 100,000
//! attack packets per second of processor time. The report has the share of the throughput that is
//! kept (median of the rounds) and the cost of one packet. The first line is the reference for the
//! others: packets for another host, which are dropped as soon as they are parsed. An argument
//! selects the attacks whose name contains it.
#![allow(clippy::print_stdout, reason = "a benchmark's report")]

#[path = "../tests/attacks/attack_bench.rs"]
mod attack_bench;
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/attacks/heap.rs"]
mod heap;

use std::hint::black_box;
use std::net::SocketAddr;

use attack_bench::{AttackBench, Attacker, spoof};
use common::{V4, forge};
use fullsend_offload::Packet;
use fullsend_wire::Nanos;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr};

/// Attack packets per second of processor time.
const RATE: f64 = 100_000.0;
const ROUNDS: usize = 9;
/// Number of packets built before the measurement.
const MADE: usize = 4096;
const SPAN: Nanos = Nanos::from_millis(400);

type Attack = fn(&mut Attacker<'_>) -> Packet;

const ATTACKS: [(&str, Attack); 8] = [
    ("segments to another host (baseline)", for_others),
    ("RSTs with guessed numbers", |a| control(a, TcpFlags::RST)),
    ("SYNs in established connections", |a| {
        control(a, TcpFlags::SYN)
    }),
    ("data far outside the window", |a| {
        let (direction, seq, ack) = (a.direction(), a.seq(), a.seq());
        spoof(&direction, TcpFlags::ACK, seq, ack, &[0xee; 1400])
    }),
    ("SYNs to a listener (cookies)", |a| syn(a, 80)),
    ("SYNs to a closed port", |a| syn(a, 81)),
    ("guessed cookies", |a| {
        let repr = TcpRepr {
            flags: TcpFlags::ACK,
            seq: a.seq(),
            ack: a.seq(),
            ..TcpRepr::default()
        };
        forge::tcp(a.random_source(true), to_port(80), repr, b"")
    }),
    ("datagrams to a closed port", |a| {
        let datagram = [0, 9, 0, 9, 0, 8, 0, 0];
        let from = a.random_source(true).ip();
        forge::ip(from, to_port(9).ip(), protocol::UDP, &datagram)
    }),
];

fn to_port(port: u16) -> SocketAddr {
    SocketAddr::new(V4[1].parse().unwrap(), port)
}

fn for_others(a: &mut Attacker<'_>) -> Packet {
    let repr = TcpRepr {
        flags: TcpFlags::ACK,
        ..TcpRepr::default()
    };
    forge::tcp(
        a.random_source(true),
        "10.0.0.99:1".parse().unwrap(),
        repr,
        b"",
    )
}

fn control(a: &mut Attacker<'_>, flags: TcpFlags) -> Packet {
    let (direction, seq) = (a.direction(), a.seq());
    spoof(&direction, flags, seq, direction.repr.ack, b"")
}

fn syn(a: &mut Attacker<'_>, port: u16) -> Packet {
    let repr = TcpRepr {
        flags: TcpFlags::SYN,
        seq: a.seq(),
        options: TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            ..TcpOptions::default()
        },
        ..TcpRepr::default()
    };
    forge::tcp(a.random_source(true), to_port(port), repr, b"")
}

/// Returns the processor time of this thread in seconds, without that of other threads.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs the flows for one period. Returns the bytes transferred and the processor time in seconds.
fn run_once(attack_bench: &mut AttackBench, packets: usize, made: &[Packet]) -> (f64, f64) {
    let began = cpu_s();
    let bytes = attack_bench.run(SPAN, packets, |a| (1, made[a.number % MADE].clone()));
    (bytes as f64, cpu_s() - began)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(name: &str, attack: Attack) {
    let mut attack_bench = AttackBench::new();
    // A longer path makes the applications' share of the time larger.
    attack_bench.net.delay = Nanos::from_micros(100);
    let made: Vec<Packet> = attack_bench.forge(MADE, attack);
    let (mut kept, mut cost) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (bytes, baseline_s) = run_once(&mut attack_bench, 0, &made);
        let packets = (RATE * baseline_s) as usize;
        let (attacked_bytes, attacked_s) = run_once(&mut attack_bench, packets, &made);
        // The number of packets is that which arrives while the period lasts.
        kept.push((attacked_bytes / attacked_s) / (bytes / baseline_s));
        cost.push((attacked_s - baseline_s * attacked_bytes / bytes) / packets as f64 * 1e9);
    }
    black_box(&attack_bench);
    let (kept, cost) = (100.0 * median(kept), median(cost));
    println!("{name:42} {kept:6.1} % kept {cost:7.0} ns a packet");
}

fn main() {
    // Cargo adds the argument `--bench`.
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    for (name, attack) in ATTACKS {
        if wanted.as_ref().is_none_or(|wanted| name.contains(wanted)) {
            measure(name, attack);
        }
    }
}
