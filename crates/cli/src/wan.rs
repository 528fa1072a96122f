//! `fullsend wan`: the simulator's link between two TUN devices, in real time.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{thread, time};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use fullsend_device::{Device, Tun};
use fullsend_offload::{Checksum, Gro, GroConfig, Link, Packet, Tunnels, segment};
use fullsend_sim::{Netem, Pipe};
use fullsend_wire::{Instant, Nanos, Seed};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::parse_mtu;
use crate::output::Stdout;

/// Most frames to receive from a device at a time.
const BATCH: usize = 64;
/// Longest sleep, so that a signal is noticed in time.
const MAX_SLEEP: Nanos = Nanos::from_millis(100);

/// The devices, and the emulated path between them.
#[derive(Args, Clone, Debug)]
pub(crate) struct WanArgs {
    /// The TUN devices at the two ends; created if they do not exist.
    #[arg(num_args = 2, value_names = ["LEFT", "RIGHT"], required = true)]
    tuns: Vec<String>,
    /// The path from LEFT to RIGHT, as in "delay 25ms rate 100mbit loss 1% limit 400": parameters
    /// of tc netem (delay, rate, limit, loss, duplicate, corrupt, reorder, ecn, ce_threshold).
    #[arg(long, value_name = "NETEM", default_value = "", value_parser = parse_netem)]
    netem: Netem,
    /// The path from RIGHT to LEFT [default: the delay of --netem].
    #[arg(long, value_name = "NETEM", value_parser = parse_netem)]
    back: Option<Netem>,
    /// Seed of all randomness.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Largest IP packet, in bytes.
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = parse_mtu)]
    mtu: u32,
}

fn parse_netem(text: &str) -> Result<Netem> {
    text.parse().map_err(|error| anyhow!("{error}"))
}

/// One direction of the path.
struct Direction {
    pipe: Pipe,
    /// Parses the kernel's packets without coalescing them.
    parser: Gro,
    /// Coalesces packets that arrive together, like a network card.
    gro: Gro,
    frames: Vec<Packet>,
    segments: Vec<Packet>,
    out: VecDeque<Packet>,
}

impl Direction {
    fn new(netem: Netem, seed: Seed) -> Self {
        let gro = |enabled| {
            Gro::new(GroConfig {
                link: Link::Ip,
                enabled,
                max_size: 65_536,
                tunnels: Tunnels::NONE,
            })
        };
        Self {
            pipe: Pipe::new(netem, seed),
            parser: gro(false),
            gro: gro(true),
            frames: Vec::new(),
            segments: Vec::new(),
            out: VecDeque::new(),
        }
    }

    /// Receives packets from the kernel and segments them. Returns `false` if there were none.
    fn receive(&mut self, now: Instant, from: &mut Tun) -> io::Result<bool> {
        let got = from.receive(&mut self.frames, BATCH)?;
        let mut parsed = Vec::new();
        self.parser.receive_batch(now, &mut self.frames);
        self.parser.flush(&mut parsed);
        for packet in parsed {
            segment(packet, &mut self.segments);
        }
        for mut packet in self.segments.drain(..) {
            // The kernel's packets are marked as correct, so that the receiver detects a bit that the
            // link flips.
            if packet.offload.checksum == Checksum::Unverified {
                packet.offload.checksum = Checksum::Valid;
            }
            self.pipe.send(now, packet);
        }
        Ok(got > 0)
    }

    /// Passes arrived packets to the kernel.
    fn deliver(&mut self, now: Instant, to: &mut Tun) -> io::Result<()> {
        self.pipe.take_arrived(now, &mut self.frames);
        if !self.frames.is_empty() {
            let mut joined = Vec::new();
            self.gro.receive_batch(now, &mut self.frames);
            self.gro.flush(&mut joined);
            for packet in joined {
                // The kernel would keep CWR only on the first segment.
                if packet.offload.repeats_cwr {
                    segment(packet, &mut self.segments);
                    self.out.extend(self.segments.drain(..));
                } else {
                    self.out.push_back(packet);
                }
            }
        }
        if self.out.is_empty() {
            return Ok(());
        }
        to.transmit(&mut self.out)
    }

    fn show(&self, from: &str, to: &str) {
        let stats = self.pipe.stats();
        outln!(
            "{from} -> {to}: {} packets, {} lost, {} dropped",
            stats.sent,
            stats.lost,
            stats.dropped
        );
    }
}

/// Whether Ctrl-C or SIGTERM was received.
static STOP: AtomicBool = AtomicBool::new(false);

/// Sets `STOP` when Ctrl-C or SIGTERM is received.
fn watch_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = [SignalKind::interrupt(), SignalKind::terminate()];
    let [mut interrupt, mut terminate] = {
        let _guard = runtime.enter();
        let [interrupt, terminate] = signals.map(signal);
        [interrupt?, terminate?]
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        STOP.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Emulates the path until Ctrl-C or SIGTERM.
pub(crate) fn run(args: &WanArgs) -> Result<()> {
    let open = |name: &str| {
        let tun = Tun::tun(name).mtu(args.mtu).open();
        tun.with_context(|| format!("cannot open TUN device {name}"))
    };
    let [left, right] = [&args.tuns[0], &args.tuns[1]];
    let mut tuns = [open(left)?, open(right)?];
    let back = args.back.unwrap_or(Netem {
        delay: args.netem.delay,
        ..Netem::default()
    });
    let seed = Seed::from_u64(args.seed);
    let mut directions = [
        Direction::new(args.netem, seed),
        Direction::new(back, Seed::from_u64(args.seed ^ 1 << 63)),
    ];
    watch_signals()?;
    outln!("{left} -- {right}; press Ctrl-C to stop");
    Stdout.flush()?;
    let stopped = forward_packets(&mut tuns, &mut directions);
    directions[0].show(left, right);
    directions[1].show(right, left);
    stopped.context("a TUN device failed, and the emulated path ends")
}

fn forward_packets(tuns: &mut [Tun; 2], directions: &mut [Direction; 2]) -> io::Result<()> {
    let start = time::Instant::now();
    let clock = || Instant::ZERO + Nanos::from_nanos(start.elapsed().as_nanos() as u64);
    while !STOP.load(Ordering::Relaxed) {
        let mut busy = false;
        for (from, direction) in directions.iter_mut().enumerate() {
            busy |= direction.receive(clock(), &mut tuns[from])?;
            direction.deliver(clock(), &mut tuns[1 - from])?;
        }
        if !busy {
            let due = directions
                .iter()
                .filter_map(|direction| direction.pipe.next_arrival())
                .min();
            let now = clock();
            let wait = due.map_or(MAX_SLEEP, |at| at.since(now).min(MAX_SLEEP));
            sleep(tuns, wait)?;
        }
    }
    Ok(())
}

/// Waits until a device is readable, or `wait` has passed.
fn sleep(tuns: &[Tun; 2], wait: Nanos) -> io::Result<()> {
    if wait == Nanos::ZERO {
        return Ok(());
    }
    let fds: Vec<BorrowedFd<'_>> = tuns.iter().filter_map(Tun::fd).collect();
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    let wait = TimeSpec::from_duration(time::Duration::from_nanos(wait.as_nanos()));
    match ppoll(&mut polled, Some(wait), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
