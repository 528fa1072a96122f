//! The two hosts and the network between them.

use std::collections::BTreeMap;

use fullsend_offload::Pool;
use fullsend_tcp::{
    Connection, Cx, DeviceCaps, HostLimits, SegmentIn, SegmentOut, SocketOption, State, Sysctl,
    TcpError, TcpMemory, TcpMib, TimeWait, TimeWaitAction,
};
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{EcnField, Instant, Mss, Nanos, Rng, Seed, SeqNum};

/// The properties of the network, in both directions, and of the connections over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) delay_us: u64,
    pub(crate) jitter_us: u64,
    /// Probability that a segment is lost.
    pub(crate) loss: f64,
    pub(crate) repeat: f64,
    /// Whether super-segments are cut into segments, as by a device without offload; else they
    /// travel whole.
    pub(crate) cut: bool,
    /// Capacity of the bottleneck's queue in bytes.
    pub(crate) queue_bytes: usize,
    /// Bytes per second; 0 for no limit.
    pub(crate) rate: u64,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    pub(crate) window_scale: bool,
    pub(crate) congestion: &'static str,
    pub(crate) nodelay: bool,
    /// Both sides' `SO_RCVBUF`.
    pub(crate) rcvbuf: Option<u32>,
    /// Both sides connect to each other at once.
    pub(crate) simultaneous: bool,
}

/// The MSS on Ethernet, without TCP options.
const MSS: Mss = Mss::clamped(1460);

/// The duration and the losses of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) took: Nanos,
    pub(crate) lost: u64,
    /// Segments retransmitted by both sides.
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
}

/// Returns the byte at position `n` of the stream that `side` sends.
fn byte(side: usize, n: usize) -> u8 {
    ((n as u64 + 7 * side as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

struct Host {
    connection: Option<Connection>,
    time_wait: Option<TimeWait>,
    path: Path,
    sysctl: Sysctl,
    pool: Pool,
    mib: TcpMib,
    mem: TcpMemory,
    limits: HostLimits,
    rng: Rng,
    side: usize,
    to_write: usize,
    written: usize,
    to_read: usize,
    read: usize,
    saw_end: bool,
    /// When the bottleneck can send the next segment.
    link_free: Instant,
}

impl Host {
    fn new(side: usize, path: &Path, seed: Seed, to_write: usize, to_read: usize) -> Self {
        let sysctl = Sysctl {
            tcp_sack: path.sack,
            tcp_timestamps: path.timestamps,
            tcp_window_scaling: path.window_scale,
            tcp_congestion_control: path.congestion,
            tcp_syn_retries: 60,
            tcp_synack_retries: 60,
            ..Sysctl::default()
        };
        Self {
            connection: None,
            time_wait: None,
            path: *path,
            sysctl,
            pool: Pool::new(1 << 22),
            mib: TcpMib::default(),
            mem: TcpMemory::default(),
            limits: HostLimits::default(),
            rng: Rng::new(seed),
            side,
            to_write,
            written: 0,
            to_read,
            read: 0,
            saw_end: false,
            link_free: Instant::ZERO,
        }
    }

    /// Calls `call` with this host's connection, TIME-WAIT state and context.
    fn enter<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Option<Connection>, &mut Option<TimeWait>, &mut Cx<'_>) -> R,
    ) -> R {
        let mut cx = Cx {
            now,
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
            ts_offset: u32::MAX - 50,
            legacy: fullsend_tcp::legacy::Legacy::default(),
        };
        call(&mut self.connection, &mut self.time_wait, &mut cx)
    }

    fn with<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        self.enter(now, |c, _, cx| c.as_mut().map(|c| call(c, cx)))
    }

    fn connect(&mut self, now: Instant) {
        let iss = SeqNum::new(self.rng.next_u32());
        let (local, remote) = (1 + self.side as u16, 2 - self.side as u16);
        self.enter(now, |connection, _, cx| {
            *connection = Some(Connection::connect(cx, local, remote, iss, MSS, 20));
        });
        self.set_options(now);
    }

    fn set_options(&mut self, now: Instant) {
        let path = self.path;
        self.with(now, |c, cx| {
            let nodelay = SocketOption::TcpNodelay(path.nodelay);
            c.set_option(cx, nodelay).expect("a valid option");
            if let Some(bytes) = path.rcvbuf {
                let rcvbuf = SocketOption::SoRcvbuf(bytes);
                c.set_option(cx, rcvbuf).expect("a valid option");
            }
        });
    }

    fn receive_segment(&mut self, now: Instant, mut segment: SegmentIn) -> Option<SegmentOut> {
        let iss = SeqNum::new(self.rng.next_u32());
        let is_new = self.connection.is_none();
        let reply = self.enter(now, |connection, time_wait, cx| {
            if let Some(tw) = time_wait {
                return match tw.handle_segment(cx, &segment) {
                    TimeWaitAction::Reply(reply) => Some(reply),
                    _ => None,
                };
            }
            match connection {
                Some(c) => {
                    c.handle_segment(cx, &mut segment);
                    *time_wait = c.take_time_wait();
                }
                None if segment.repr.flags.contains(TcpFlags::SYN) => {
                    *connection = Some(Connection::accept(
                        cx,
                        &segment.repr,
                        EcnField::NotEct,
                        iss,
                        MSS,
                        20,
                    ));
                }
                None => {}
            }
            None
        });
        if is_new {
            self.set_options(now);
        }
        reply
    }

    /// Runs the application: writes all its data, then shuts down writing; reads until the end.
    fn poll_application(&mut self, now: Instant) {
        self.write_some(now);
        self.read_some(now);
    }

    fn write_some(&mut self, now: Instant) {
        while self.written < self.to_write {
            let most = if self.rng.chance(0.5) { 200 } else { 100_000 };
            let n = (1 + self.rng.below(most) as usize).min(self.to_write - self.written);
            let data: Vec<u8> = (self.written..self.written + n)
                .map(|i| byte(self.side, i))
                .collect();
            match self.with(now, |c, cx| c.write(cx, &data, false)) {
                Some(Ok(taken)) => self.written += taken,
                Some(Err(TcpError::WouldBlock)) | None => return,
                Some(Err(error)) => panic!("side {}: write: {error}", self.side),
            }
        }
        self.with(now, |c, cx| {
            if !matches!(c.state(), State::SynSent | State::SynReceived) {
                c.shutdown_write(cx);
            }
        });
    }

    fn read_some(&mut self, now: Instant) {
        let mut out = vec![0; 70_000];
        while !self.saw_end {
            let n = 1 + self.rng.below(out.len() as u64) as usize;
            match self.with(now, |c, cx| c.read(cx, &mut out[..n])) {
                Some(Ok(0)) => self.saw_end = true,
                Some(Ok(n)) => {
                    for (i, got) in out[..n].iter().enumerate() {
                        let want = byte(1 - self.side, self.read + i);
                        assert_eq!(*got, want, "byte {} at side {}", self.read + i, self.side);
                    }
                    self.read += n;
                }
                Some(Err(TcpError::WouldBlock)) | None => return,
                Some(Err(error)) => panic!("side {}: read: {error}", self.side),
            }
        }
        assert_eq!(self.read, self.to_read);
    }

    fn is_done(&self) -> bool {
        let over = |c: &Connection| c.state() == State::Closed && !c.needs_transmit();
        self.saw_end && self.written == self.to_write && self.connection.as_ref().is_some_and(over)
    }
}

/// Cuts a super-segment into the segments that appear on the wire, unless `whole`.
fn cut(segment: SegmentOut, whole: bool) -> Vec<SegmentIn> {
    let size = usize::from(segment.gso_size);
    if whole || size == 0 {
        return vec![SegmentIn {
            repr: segment.repr,
            payload: segment.payload,
            gso_size: segment.gso_size,
            gso_segs: segment.gso_segs,
            ecn: EcnField::NotEct,
        }];
    }
    let mut rest = segment.payload;
    let mut seq = segment.repr.seq;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let payload = rest.split_to(size.min(rest.len()));
        let mut flags = segment.repr.flags;
        if !rest.is_empty() {
            flags = flags.without(TcpFlags::FIN.union(TcpFlags::PSH));
        }
        let repr = TcpRepr {
            seq,
            flags,
            ..segment.repr
        };
        seq += payload.len() as u32;
        out.push(SegmentIn {
            repr,
            payload,
            gso_size: 0,
            gso_segs: 1,
            ecn: EcnField::NotEct,
        });
    }
    assert_eq!(out.len(), usize::from(segment.gso_segs));
    out
}

/// The segments in flight, by time of arrival and order of departure.
struct Network {
    path: Path,
    rng: Rng,
    flying: BTreeMap<(Instant, u64), (usize, SegmentIn)>,
    sent: u64,
    lost: u64,
}

impl Network {
    /// Sends all pending segments of `from`, whose device completes each at once.
    fn drain(&mut self, now: Instant, from: &mut Host) {
        while let Some(Some(segment)) = from.with(now, Connection::poll_transmit) {
            let truesize = segment.truesize;
            self.send(now, from, segment);
            from.with(now, |c, cx| c.handle_tx_complete(cx, truesize));
        }
    }

    /// Delivers the segments that have arrived by `now`.
    fn deliver(&mut self, now: Instant, hosts: &mut [Host; 2]) {
        while let Some(first) = self.flying.first_entry() {
            if first.key().0 > now {
                return;
            }
            let (to, segment) = first.remove();
            if let Some(reply) = hosts[to].receive_segment(now, segment) {
                self.send(now, &mut hosts[to], reply);
            }
            self.drain(now, &mut hosts[to]);
        }
    }

    fn send(&mut self, now: Instant, from: &mut Host, segment: SegmentOut) {
        for piece in cut(segment, !self.path.cut) {
            self.send_piece(now, from, &piece);
        }
    }

    fn send_piece(&mut self, now: Instant, from: &mut Host, piece: &SegmentIn) {
        let bytes = piece.payload.len() + 52;
        let mut leaves = now;
        if let Some(per_second) = std::num::NonZeroU64::new(self.path.rate) {
            let start = from.link_free.max(now);
            let waiting = start.since(now).as_secs_f64() * per_second.get() as f64;
            if waiting + bytes as f64
                > self
                    .path
                    .queue_bytes
                    .max(70_000 * usize::from(!self.path.cut)) as f64
            {
                self.lost += 1;
                return;
            }
            leaves = start + Nanos::from_nanos(bytes as u64 * 1_000_000_000 / per_second);
            from.link_free = leaves;
        }
        if self.rng.chance(self.path.loss) {
            self.lost += 1;
            return;
        }
        let duplicates = 1 + usize::from(self.rng.chance(self.path.repeat));
        for _ in 0..duplicates {
            let jitter = self.rng.below(self.path.jitter_us + 1);
            let arrives = leaves + Nanos::from_micros(self.path.delay_us + jitter);
            self.sent += 1;
            let duplicate = SegmentIn {
                repr: piece.repr,
                payload: piece.payload.clone(),
                gso_size: piece.gso_size,
                gso_segs: piece.gso_segs,
                ecn: EcnField::NotEct,
            };
            self.flying
                .insert((arrives, self.sent), (1 - from.side, duplicate));
        }
    }
}

fn next_event(network: &Network, hosts: &[Host; 2]) -> Option<Instant> {
    let arrival = network.flying.first_key_value().map(|(at, _)| at.0);
    let timers = hosts
        .iter()
        .filter_map(|h| h.connection.as_ref()?.poll_deadline());
    arrival.into_iter().chain(timers).min()
}

/// Transfers `there` bytes in one direction and `back` bytes in the other, and closes. Panics if a
/// byte differs or the transfer does not end.
pub(crate) fn run(seed: u64, path: Path, there: usize, back: usize) -> Outcome {
    let mut rng = Rng::new(Seed::from_u64(seed));
    let mut hosts = [
        Host::new(0, &path, rng.fork(), there, back),
        Host::new(1, &path, rng.fork(), back, there),
    ];
    let mut network = Network {
        path,
        rng: Rng::new(rng.fork()),
        flying: BTreeMap::new(),
        sent: 0,
        lost: 0,
    };
    let started = Instant::from_nanos(1_000_000_000);
    hosts[0].connect(started);
    if path.simultaneous {
        hosts[1].connect(started);
    }
    let mut now = started;
    let mut idle_rounds = 0;
    loop {
        for host in &mut hosts {
            host.poll_application(now);
            network.drain(now, host);
        }
        if hosts.iter().all(Host::is_done) {
            break;
        }
        let next = next_event(&network, &hosts).expect("something is always pending");
        idle_rounds = if next > now { 0 } else { idle_rounds + 1 };
        assert!(idle_rounds < 1_000_000, "time stands still");
        now = now.max(next);
        assert!(now.since(started) < Nanos::from_secs(3600), "no end");
        network.deliver(now, &mut hosts);
        for host in &mut hosts {
            host.with(now, |c, cx| {
                if c.poll_deadline().is_some_and(|at| at <= now) {
                    c.handle_timeout(cx);
                }
            });
        }
    }
    Outcome {
        took: now.since(started),
        lost: network.lost,
        retransmitted: hosts.iter().map(|h| h.mib.retrans_segs).sum(),
        timeouts: hosts.iter().map(|h| h.mib.timeouts).sum(),
    }
}
