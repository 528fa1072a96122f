//! Property tests of a sender: invariants over thousands of random sequences of writes, ACKs,
//! windows, segment sizes and completions.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fullsend_offload::{Chain, Pool};
use fullsend_wire::tcp::{SackBlock, TcpFlags, TcpOptions, TcpRepr};
use fullsend_wire::{EcnField, Instant, Mss, Nanos, Rng, Seed, SeqNum, WireWindow};
use proptest::prelude::*;

use super::BlockedBy;
use super::autosize::gso_max_payload;
use crate::legacy::Legacy;
use crate::{
    Connection, Cx, DeviceCaps, HostLimits, IcmpError, SegmentIn, SegmentOut, SocketOption, Sysctl,
    TcpMemory, TcpMib,
};

const ISS: SeqNum = SeqNum::new(u32::MAX - 100_000);
const IRS: SeqNum = SeqNum::new(7);
const SCALE: u8 = 7;

/// An event at the sender.
#[derive(Clone, Debug)]
enum Op {
    Write(usize, bool),
    /// Acknowledges this share of the data in flight, in per mille, with this window field.
    Ack(u32, u16),
    /// SACKs all data in flight but the first segment.
    Hole,
    Complete(usize),
    Advance(u64),
    Mtu(u32),
    Nodelay(bool),
    Cork(bool),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SenderConfig {
    fq: bool,
    autocorking: bool,
    limit_output_bytes: u32,
    max_pacing_rate: u64,
    congestion: &'static str,
    legacy_split: bool,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            fq: false,
            autocorking: true,
            limit_output_bytes: 1 << 20,
            max_pacing_rate: u64::MAX,
            congestion: "cubic",
            legacy_split: false,
        }
    }
}

impl SenderConfig {
    /// Returns the default kind with this congestion control.
    pub(super) fn with_congestion(congestion: &'static str) -> Self {
        Self {
            congestion,
            ..Self::default()
        }
    }
}

/// A sender, its device and its peer.
pub(super) struct TestSender {
    pub(super) conn: Connection,
    pub(super) now: Instant,
    pub(super) sysctl: Sysctl,
    pub(super) device: DeviceCaps,
    pub(super) legacy: Legacy,
    pub(super) pool: Pool,
    pub(super) mib: TcpMib,
    mem: TcpMemory,
    limits: HostLimits,
    rng: Rng,
    /// Truesizes of the segments that the device holds.
    ring: VecDeque<u32>,
    /// Ends of short segments that were sent for the first time.
    small: Vec<SeqNum>,
    /// Super-segments sent whole by the short cut, without checking each limit.
    fast_paths: u32,
    window: u16,
}

macro_rules! cx {
    ($sender:expr) => {
        &mut Cx {
            now: $sender.now,
            sysctl: &$sender.sysctl,
            pool: &$sender.pool,
            mib: &mut $sender.mib,
            mem: &mut $sender.mem,
            limits: &mut $sender.limits,
            rng: &mut $sender.rng,
            device: $sender.device,
            ts_offset: 0,
            legacy: $sender.legacy,
        }
    };
}

fn repr(flags: TcpFlags) -> TcpRepr {
    TcpRepr {
        src_port: 1,
        dst_port: 2,
        seq: IRS,
        flags,
        window: WireWindow(u16::MAX),
        ..TcpRepr::default()
    }
}

impl TestSender {
    pub(super) fn new(config: SenderConfig) -> Self {
        let sysctl = Sysctl {
            tcp_autocorking: config.autocorking,
            tcp_limit_output_bytes: config.limit_output_bytes,
            tcp_congestion_control: config.congestion,
            ..Sysctl::default()
        };
        let device = DeviceCaps {
            mtu: 1500,
            gso_max_size: 65_536,
            gso_max_segs: 65_535,
            fq: config.fq,
        };
        let mut syn = repr(TcpFlags::SYN);
        syn.options = TcpOptions {
            mss: Some(1460),
            window_scale: Some(SCALE),
            sack_permitted: true,
            ..TcpOptions::default()
        };
        let (pool, mut mib) = (Pool::new(1 << 20), TcpMib::default());
        let mut mem = TcpMemory::default();
        let mut limits = HostLimits::default();
        let mut rng = Rng::new(Seed::from_u64(1));
        let now = Instant::ZERO + Nanos::from_secs(10);
        let legacy = Legacy {
            split_tail: config.legacy_split,
            ..Legacy::default()
        };
        let mut cx = Cx {
            now,
            sysctl: &sysctl,
            pool: &pool,
            mib: &mut mib,
            mem: &mut mem,
            limits: &mut limits,
            rng: &mut rng,
            device,
            ts_offset: 0,
            legacy,
        };
        let conn = Connection::accept(&mut cx, &syn, EcnField::NotEct, ISS, Mss::clamped(1460), 20);
        let mut sender = Self {
            conn,
            now,
            sysctl,
            device,
            legacy,
            pool,
            mib,
            mem,
            limits,
            rng,
            ring: VecDeque::new(),
            small: Vec::new(),
            fast_paths: 0,
            window: u16::MAX,
        };
        sender.conn.poll_transmit(cx!(sender)).expect("a SYN-ACK");
        sender.acknowledge(ISS + 1, &[]);
        if config.max_pacing_rate != u64::MAX {
            sender.set(SocketOption::SoMaxPacingRate(config.max_pacing_rate));
        }
        sender
    }

    /// Calls into the connection without sending.
    pub(super) fn with<R>(&mut self, call: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R) -> R {
        call(&mut self.conn, cx!(self))
    }

    /// Attempts to send a segment, though no part has requested it.
    pub(super) fn transmit(&mut self) -> Option<SegmentOut> {
        self.conn.parts_mut().snd.pending_mut().retry();
        self.with(Connection::poll_transmit)
    }

    /// Queues `len` bytes without sending any, in super-segments of `goal` bytes.
    pub(super) fn queue(&mut self, len: usize, goal: usize) {
        let data = alloc::vec![7; len];
        let (queue, pool) = (&mut self.conn.parts_mut().snd.queue, &self.pool);
        assert_eq!(queue.append(pool, &data, goal, false), len);
    }

    fn set(&mut self, option: SocketOption) {
        self.conn.set_option(cx!(self), option).expect("valid");
    }

    pub(super) fn acknowledge(&mut self, ack: SeqNum, sack: &[SackBlock]) {
        let mut repr = repr(TcpFlags::ACK);
        repr.seq = IRS + 1;
        repr.ack = ack;
        repr.window = WireWindow(self.window);
        for block in sack {
            repr.options.sack.push(*block);
        }
        let mut segment = SegmentIn {
            repr,
            payload: Chain::new(),
            gso_size: 0,
            gso_segs: 1,
            ecn: EcnField::NotEct,
        };
        self.conn.handle_segment(cx!(self), &mut segment);
    }

    fn apply(&mut self, op: &Op) {
        let (una, nxt) = (self.conn.parts().snd.una, self.conn.parts().snd.nxt);
        match *op {
            Op::Write(len, more) => {
                let data = alloc::vec![7; len];
                let _ = self.conn.write(cx!(self), &data, more);
            }
            Op::Ack(per_mille, window) => {
                let bytes = u64::from(nxt.since(una)) * u64::from(per_mille) / 1000;
                self.window = window;
                self.acknowledge(una + bytes as u32, &[]);
            }
            Op::Hole => {
                let left = una + self.conn.parts().snd.mss.bytes();
                if left.before(nxt) {
                    self.acknowledge(una, &[SackBlock { left, right: nxt }]);
                }
            }
            Op::Complete(n) => {
                for _ in 0..n {
                    self.complete();
                }
            }
            Op::Advance(us) => {
                let end = self.now + Nanos::from_micros(us);
                while let Some(at) = self.conn.poll_deadline().filter(|&at| at <= end) {
                    self.now = self.now.max(at);
                    self.conn.handle_timeout(cx!(self));
                    self.drain();
                }
                self.now = end;
            }
            Op::Mtu(mtu) => {
                let error = IcmpError::TooBig { mtu };
                self.conn.handle_icmp(cx!(self), una, error);
            }
            Op::Nodelay(on) => self.set(SocketOption::TcpNodelay(on)),
            Op::Cork(on) => self.set(SocketOption::TcpCork(on)),
        }
        self.drain();
        self.check_retry_is_pending();
    }

    fn complete(&mut self) {
        if let Some(truesize) = self.ring.pop_front() {
            self.conn.handle_tx_complete(cx!(self), truesize);
        }
    }

    /// Sends all segments that may be sent.
    fn drain(&mut self) {
        loop {
            let (max_len, nxt) = (self.max_len(), self.conn.parts().snd.nxt);
            let probe = self.conn.parts().snd.pending.has_tail_probe();
            self.fast_paths += u32::from(self.conn.check_fast_path(&*cx!(self)));
            let Some(segment) = self.conn.poll_transmit(cx!(self)) else {
                return;
            };
            if segment.truesize > 0 {
                self.ring.push_back(segment.truesize);
            }
            if segment.repr.seq == nxt && !segment.payload.is_empty() {
                self.check_super_segment(&segment, max_len, probe);
            }
        }
    }

    /// Returns the largest length allowed by autosizing, quota, window and device, computed anew.
    fn max_len(&self) -> u32 {
        let (conn, mss) = (&self.conn, self.conn.parts().snd.mss.bytes());
        let gso_max = gso_max_payload(&self.device, 20);
        let halvings = conn
            .parts()
            .rtt
            .min_rtt()
            .map_or(0, |rtt| rtt.as_micros() >> 9);
        let rate = conn.parts().snd.pacing_rate(conn.path(), &self.sysctl).0;
        let share = u64::from(gso_max).checked_shr(halvings.min(64) as u32);
        let bytes = (rate >> 10).saturating_add(share.unwrap_or(0));
        let autosize = (bytes.min(gso_max.into()) as u32).max(2 * mss);
        let cwnd = conn.parts().congestion.cwnd();
        let room = cwnd.saturating_sub(conn.parts().recovery.rtx.in_flight());
        let quota = room.min((cwnd / 2).max(1)) * mss;
        let window = conn.parts().snd.usable_window();
        let max_len = autosize.min(quota).min(window).min(gso_max);
        // A tail loss probe is one segment, whatever cwnd is.
        let probe = if self.conn.parts().snd.pending.has_tail_probe() {
            mss.min(window)
        } else {
            0
        };
        max_len.max(probe)
    }

    fn check_super_segment(&mut self, segment: &SegmentOut, max_len: u32, probe: bool) {
        let (len, snd) = (segment.payload.len() as u32, &self.conn.parts().snd);
        assert!(len <= max_len, "{len} is more than {max_len}");
        if snd.blocked_by == BlockedBy::Autocork {
            assert!(snd.wmem_inflight > 0 && snd.throttled);
        }
        if len % snd.mss.bytes() != 0 && !probe {
            self.small.push(segment.repr.seq + len);
        }
        let now = self.now;
        assert!(segment.departure == Instant::ZERO || self.device.fq);
        assert!(segment.departure.since(now) < Nanos::from_secs(60));
    }

    fn unacknowledged_small_segments(&mut self) -> usize {
        let una = self.conn.parts().snd.una;
        self.small.retain(|end| end.after(una));
        self.small.len()
    }

    /// Spec 7.2: whatever holds data back, some event is pending that causes another attempt.
    fn check_retry_is_pending(&self) {
        let snd = &self.conn.parts().snd;
        assert!(!self.conn.needs_transmit());
        let completion = snd.throttled && snd.wmem_inflight > 0;
        let deadline = self.conn.poll_deadline();
        assert_eq!(snd.wmem_inflight, self.ring.iter().sum::<u32>());
        if self.conn.parts().recovery.rtx.has_lost() {
            assert!(completion || deadline.is_some());
        }
        if !snd.has_unsent() {
            return;
        }
        let send_timer = snd.flow.as_ref().map(|flow| flow.send_timer());
        let wakes = send_timer.is_some_and(|at| at > self.now && at != Instant::FAR_FUTURE);
        match snd.blocked_by {
            BlockedBy::Nothing => panic!("unsent text, and nothing holds it"),
            BlockedBy::Autocork | BlockedBy::Tsq => assert!(completion),
            BlockedBy::Pacing => assert!(wakes),
            BlockedBy::Nagle => {
                let ack = !self.conn.parts().recovery.rtx.is_empty() && deadline.is_some();
                assert!(
                    ack || (self
                        .conn
                        .parts()
                        .snd
                        .is_corked(self.conn.parts().settings.cork)
                        && wakes)
                );
            }
            BlockedBy::Cwnd | BlockedBy::Rwnd | BlockedBy::Defer | BlockedBy::Burst => {
                assert!(deadline.is_some());
            }
        }
    }

    /// Finishes the transfer: the application stops, the device completes and the peer acknowledges
    /// everything. Checks that all data is sent soon.
    fn finish(&mut self) {
        self.window = u16::MAX;
        let start = self.now;
        for _ in 0..10_000 {
            while !self.ring.is_empty() {
                self.complete();
            }
            self.drain();
            let nxt = self.conn.parts().snd.nxt;
            self.acknowledge(nxt, &[]);
            self.drain();
            if self.conn.is_flushed() && self.ring.is_empty() {
                break;
            }
            if self.ring.is_empty() && self.conn.parts().snd.una == self.conn.parts().snd.nxt {
                self.now = self.now.max(self.conn.poll_deadline().expect("a deadline"));
                self.conn.handle_timeout(cx!(self));
            }
        }
        assert!(
            self.conn.is_flushed(),
            "{:?}",
            self.conn.parts().snd.blocked_by
        );
        assert_eq!(self.conn.parts().snd.wmem_inflight, 0);
        let took = self.now.since(start);
        // Without pacing it takes at most the longest time of a cork.
        if self.conn.parts().snd.pacing.is_none() {
            assert!(took <= Nanos::from_millis(200), "{took:?}");
        }
    }
}

fn write() -> impl Strategy<Value = Op> {
    let len = prop_oneof![
        5 => 1..200usize,
        3 => 1..5_000usize,
        1 => 1..100_000usize,
        1 => (1..20usize).prop_map(|n| n * 1460),
    ];
    (len, prop::bool::weighted(0.1)).prop_map(|(len, more)| Op::Write(len, more))
}

fn network() -> impl Strategy<Value = Op> {
    let window = prop_oneof![3 => Just(u16::MAX), 1 => 0..100u16];
    prop_oneof![
        3 => (0..=1000u32, window).prop_map(|(n, w)| Op::Ack(n, w)),
        2 => Just(Op::Ack(1000, u16::MAX)),
        3 => (1..4usize).prop_map(Op::Complete),
        2 => (1..2_000u64).prop_map(Op::Advance),
        1 => (1..600_000u64).prop_map(Op::Advance),
        1 => (600..1500u32).prop_map(Op::Mtu),
        1 => Just(Op::Hole),
    ]
}

fn op_sequence(user: impl Strategy<Value = Op>) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(prop_oneof![1 => user, 1 => network()], 1..80)
}

fn any_user() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => write(),
        1 => any::<bool>().prop_map(Op::Nodelay),
        1 => any::<bool>().prop_map(Op::Cork),
    ]
}

fn config() -> impl Strategy<Value = SenderConfig> {
    let rate = prop_oneof![4 => Just(u64::MAX), 1 => 100_000..100_000_000u64];
    let limit = prop_oneof![Just(4_194_304u32), 4096..100_000u32];
    let congestion = prop_oneof![Just("cubic"), Just("reno"), Just("bbr"), Just("dctcp")];
    (any::<[bool; 3]>(), limit, rate, congestion).prop_map(
        |([fq, autocorking, legacy_split], limit_output_bytes, max_pacing_rate, congestion)| {
            SenderConfig {
                fq,
                autocorking,
                limit_output_bytes,
                max_pacing_rate,
                congestion,
                legacy_split,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32 * ProptestConfig::default().cases))]

    /// RFC 896 in Minshall's variant: after any writes and ACKs at most one small segment is in
    /// flight.
    #[test]
    fn nagle_has_one_small_segment_unacknowledged_at_most(
        config in config(),
        ops in op_sequence(write_whole()),
    ) {
        let mut sender = TestSender::new(config);
        for op in &ops {
            sender.apply(op);
            prop_assert!(sender.unacknowledged_small_segments() <= 1);
        }
        sender.finish();
    }

    /// Sizes are bounded, an event is always pending, no data waits for a completion for ever, and
    /// all charges are returned.
    #[test]
    fn sender_respects_limits_and_never_stalls(
        config in config(),
        ops in op_sequence(any_user()),
    ) {
        let mut sender = TestSender::new(config);
        for op in &ops {
            sender.apply(op);
        }
        sender.set(SocketOption::SoMaxPacingRate(u64::MAX));
        sender.finish();
    }
}

/// Returns writes without `MSG_MORE`, whose end would send a small segment.
fn write_whole() -> impl Strategy<Value = Op> {
    write().prop_map(|op| match op {
        Op::Write(len, _) => Op::Write(len, false),
        op => op,
    })
}

/// The short cut is in use: a write with nothing in flight takes it, a second one does not.
#[test]
fn fast_path_needs_nothing_in_flight() {
    let mut sender = TestSender::new(SenderConfig::default());
    sender.apply(&Op::Write(4096, false));
    assert_eq!(sender.fast_paths, 1);
    sender.apply(&Op::Write(4096, false));
    assert_eq!(sender.fast_paths, 1);
    sender.apply(&Op::Complete(9));
    sender.apply(&Op::Ack(1000, u16::MAX));
    sender.apply(&Op::Write(100, false));
    assert_eq!(sender.fast_paths, 2);
}
