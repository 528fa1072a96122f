//! Runs one connection with arbitrary segments of the peer and arbitrary calls of the application:
//! no panic, the data sent is the data written, the data read is the data received, and something
//! is pending as long as something is unfinished.
#![no_main]

use arbitrary::Arbitrary;
use fullsend_offload::{Chain, Pool, Slice};
use fullsend_tcp::congestion::AVAILABLE;
use fullsend_tcp::{
    Connection, Cx, DeviceCaps, HostLimits, IcmpError, Linger, SegmentIn, SegmentOut, SocketOption,
    State, Sysctl, TcpError, TcpMemory, TcpMib,
};
use fullsend_wire::tcp::{
    AccEcn, AccEcnOrder, SackBlock, SackBlocks, TcpFlags, TcpOptions, TcpRepr, Timestamps,
};
use fullsend_wire::{EcnField, Instant, Mss, Nanos, Rng, Seed, SeqNum, WireWindow};
use libfuzzer_sys::fuzz_target;

const ISS: SeqNum = SeqNum::new(u32::MAX - 20_000);
const IRS: SeqNum = SeqNum::new(u32::MAX - 30_000);

/// A segment of the peer. Sequence numbers are relative to the expected ones, so that most of them
/// are plausible.
#[derive(Arbitrary, Debug)]
struct Segment {
    flags: u8,
    /// IP's ECN field in the lower two bits, AE in the third.
    ecn: u8,
    /// Offset from the peer's next sequence number.
    seq: i16,
    /// Offset from the end of the data that was sent.
    ack: i16,
    /// Arbitrary sequence and acknowledgement numbers instead.
    wild: Option<(u32, u32)>,
    len: u16,
    window: u16,
    gso_size: u16,
    ts: Option<(i8, i8)>,
    mss: Option<u16>,
    wscale: Option<u8>,
    sack_ok: bool,
    sack: Vec<(i16, u16)>,
    /// Whether ECT(1) is first, and the counters.
    acc_ecn: Option<(bool, Vec<u32>)>,
}

#[derive(Arbitrary, Debug)]
enum Op {
    Segment(Segment),
    /// A correct segment: acknowledges a share of the data in flight, and has this many payload
    /// bytes.
    Ack(u8, u16),
    Write(u16, bool),
    Lend(u16),
    Read(u16),
    ReadChain(u16),
    Peek(u8),
    Wait(u16),
    Timeout,
    Complete,
    Shutdown(bool),
    Close,
    Abort,
    Icmp(i16, Option<u16>),
    Option(u8, u32),
    PathMtu(u16),
}

#[derive(Arbitrary, Debug)]
struct Input {
    passive: bool,
    options: u8,
    congestion: u8,
    /// `tcp_ecn`, and the peer's ACE field in the handshake.
    ecn: (u8, u8),
    ops: Vec<Op>,
}

/// Returns the ACE field of the peer's SYN or SYN-ACK.
fn ace(input: &Input) -> TcpFlags {
    TcpFlags(u16::from(input.ecn.1 & 7) << 6)
}

fn byte(n: u32) -> u8 {
    (n.wrapping_mul(0x9e37_79b9) >> 24) as u8
}

struct Bench {
    connection: Connection,
    sysctl: Sysctl,
    pool: Pool,
    mib: TcpMib,
    mem: TcpMemory,
    limits: HostLimits,
    rng: Rng,
    now: Instant,
    mtu: u32,
    /// Bytes that the application has written and read, and the end of the peer's in-order data.
    written: u32,
    read: u32,
    peer_nxt: SeqNum,
    /// The end of the data that was sent.
    snd_end: SeqNum,
    in_device: u64,
    ts_recent: u32,
}

impl Bench {
    fn call<R>(&mut self, f: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R) -> R {
        let mut cx = Cx {
            now: self.now,
            sysctl: &self.sysctl,
            pool: &self.pool,
            mib: &mut self.mib,
            mem: &mut self.mem,
            limits: &mut self.limits,
            rng: &mut self.rng,
            device: DeviceCaps {
                mtu: self.mtu,
                gso_max_size: 65_536,
                gso_max_segs: 65_535,
                fq: false,
            },
            ts_offset: 77,
            legacy: fullsend_tcp::legacy::Legacy::default(),
        };
        f(&mut self.connection, &mut cx)
    }

    fn drain(&mut self) {
        let mut count = 0;
        while let Some(segment) = self.call(Connection::poll_transmit) {
            self.check_out(&segment);
            count += 1;
            assert!(count < 100_000, "never stops sending");
        }
        assert!(!self.connection.needs_transmit());
    }

    fn check_out(&mut self, segment: &SegmentOut) {
        let repr = &segment.repr;
        let len = segment.payload.len() as u32;
        self.in_device += u64::from(segment.truesize);
        if let Some(ts) = repr.options.timestamps {
            self.ts_recent = ts.val;
        }
        if repr.flags.contains(TcpFlags::RST) {
            assert_eq!(len, 0);
            return;
        }
        assert!(segment.gso_segs >= 1);
        if segment.gso_segs > 1 {
            let size = u32::from(segment.gso_size);
            assert_eq!(len.div_ceil(size), u32::from(segment.gso_segs));
        }
        let start = (repr.seq - 1).since(ISS);
        let mut payload = vec![0; len as usize];
        segment.payload.copy_to(&mut payload);
        for (i, got) in payload.iter().enumerate() {
            assert_eq!(*got, byte(start + i as u32), "data at {start} + {i}");
        }
        if len > 0 {
            assert!(start + len <= self.written, "sent before it was written");
        }
        let extra = u32::from(repr.flags.intersects(TcpFlags::FIN))
            + u32::from(repr.flags.intersects(TcpFlags::SYN));
        self.snd_end = self.snd_end.latest(repr.seq + len + extra);
    }

    fn peer_data(&self, seq: SeqNum, len: u32) -> Chain {
        let start = seq.since(IRS + 1);
        let bytes: Vec<u8> = (0..len)
            .map(|i| byte(start.wrapping_add(i) ^ 0x55))
            .collect();
        Slice::copied_from(&bytes).into()
    }

    fn segment(&mut self, s: &Segment) {
        // The content of the peer's data depends on its offset from the peer's SYN, whose sequence
        // number must therefore be `IRS`.
        let opens = self.connection.state() == State::SynSent && s.flags & 2 != 0;
        let seq = match s.wild {
            _ if opens => IRS,
            Some((seq, _)) => SeqNum::new(seq),
            None => self.peer_nxt + s.seq as u32,
        };
        let ack = match s.wild {
            Some((_, ack)) => SeqNum::new(ack),
            None => self.snd_end + s.ack as u32,
        };
        let len = u32::from(s.len % 20_000);
        let mut sack = SackBlocks::default();
        for (left, len) in &s.sack {
            let left = self.snd_end + *left as u32;
            sack.push(SackBlock {
                left,
                right: left + u32::from(*len),
            });
        }
        let repr = TcpRepr {
            src_port: 2,
            dst_port: 1,
            seq,
            ack,
            flags: TcpFlags(u16::from(s.flags) | u16::from(s.ecn & 4) << 6),
            window: WireWindow(s.window),
            urgent: 0,
            options: TcpOptions {
                mss: s.mss,
                window_scale: s.wscale,
                sack_permitted: s.sack_ok,
                timestamps: s.ts.map(|(val, ecr)| Timestamps {
                    val: (self.now.as_millis() as u32).wrapping_add(val as u32),
                    ecr: self.ts_recent.wrapping_add(ecr as u32),
                }),
                sack,
                acc_ecn: s.acc_ecn.as_ref().map(|(ect1, counters)| {
                    let order = if *ect1 {
                        AccEcnOrder::Ect1First
                    } else {
                        AccEcnOrder::Ect0First
                    };
                    AccEcn::new(order, counters)
                }),
                ..TcpOptions::default()
            },
        };
        self.deliver(repr, len, s.gso_size, EcnField::of(s.ecn));
    }

    fn deliver(&mut self, repr: TcpRepr, len: u32, gso_size: u16, ecn: EcnField) {
        let payload = self.peer_data(repr.seq, len);
        let segs = match gso_size {
            0 => 1,
            size => len.div_ceil(size.into()).max(1),
        };
        let mut segment = SegmentIn {
            repr,
            payload,
            gso_size: if segs > 1 { gso_size } else { 0 },
            gso_segs: segs as u16,
            ecn,
        };
        self.call(|c, cx| c.handle_segment(cx, &mut segment));
        let _ = self.connection.take_time_wait();
    }

    /// Delivers a segment that acknowledges a share of the data in flight and has `len` bytes of
    /// data in order.
    fn ack(&mut self, share: u8, len: u16) {
        let flags = TcpFlags::ACK;
        let len = u32::from(len % 3000);
        let info = self.call(|c, cx| c.info(cx));
        let behind = info.tcpi_unacked * u32::from(share) / 255 * info.tcpi_snd_mss;
        let repr = TcpRepr {
            src_port: 2,
            dst_port: 1,
            seq: self.peer_nxt,
            ack: self.snd_end - behind,
            flags,
            window: WireWindow(20_000),
            urgent: 0,
            options: TcpOptions::default(),
        };
        self.deliver(repr, len, 0, EcnField::Ect0);
        self.peer_nxt += len;
    }

    fn check_read(&mut self, bytes: &[u8]) {
        for (i, got) in bytes.iter().enumerate() {
            assert_eq!(
                *got,
                byte((self.read + i as u32) ^ 0x55),
                "read at {}",
                self.read
            );
        }
    }

    fn write(&mut self, len: u16, more: bool) {
        let data: Vec<u8> = (0..u32::from(len))
            .map(|i| byte(self.written + i))
            .collect();
        if let Ok(n) = self.call(|c, cx| c.write(cx, &data, more)) {
            self.written += n as u32;
        }
    }

    fn lend(&mut self, len: u16) {
        let data: Vec<u8> = (0..u32::from(len))
            .map(|i| byte(self.written + i))
            .collect();
        let slice = Slice::copied_from(&data);
        match self.call(|c, cx| c.write_slice(cx, slice, false)) {
            Ok(()) => self.written += u32::from(len),
            Err((_, rest)) => self.written += u32::from(len) - rest.len() as u32,
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Segment(ref s) => self.segment(s),
            Op::Ack(share, len) => self.ack(share, len),
            Op::Write(len, more) => self.write(len, more),
            Op::Lend(len) => self.lend(len),
            Op::Read(len) => {
                let mut out = vec![0; len.into()];
                match self.call(|c, cx| c.read(cx, &mut out)) {
                    Ok(n) => {
                        self.check_read(&out[..n]);
                        self.read += n as u32;
                    }
                    Err(error) => assert_ne!(error, TcpError::InvalidValue),
                }
            }
            Op::ReadChain(len) => {
                if let Ok(chain) = self.call(|c, cx| c.read_chain(cx, len.into())) {
                    let mut out = vec![0; chain.len()];
                    chain.copy_to(&mut out);
                    self.check_read(&out);
                    self.read += out.len() as u32;
                }
            }
            Op::Peek(len) => {
                let mut out = vec![0; len.into()];
                if let Ok(n) = self.connection.peek(&mut out) {
                    self.check_read(&out[..n]);
                }
            }
            Op::Wait(ms) => self.now += Nanos::from_millis(ms.into()),
            Op::Timeout => {
                if let Some(at) = self.connection.poll_deadline() {
                    self.now = self.now.max(at);
                    self.call(|c, cx| c.handle_timeout(cx));
                }
            }
            Op::Complete => {
                let truesize = self.in_device.min(u64::from(u32::MAX)) as u32;
                self.in_device = 0;
                self.call(|c, cx| c.handle_tx_complete(cx, truesize));
            }
            Op::Shutdown(true) => self.call(|c, cx| c.shutdown_write(cx)),
            Op::Shutdown(false) => self.call(|c, cx| c.shutdown_read(cx)),
            Op::Close => self.call(|c, cx| c.close(cx)),
            Op::Abort => self.call(|c, cx| c.abort(cx)),
            Op::Icmp(at, mtu) => {
                let seq = self.snd_end + at as u32;
                let error = match mtu {
                    Some(mtu) => IcmpError::TooBig { mtu: mtu.into() },
                    None => IcmpError::Unreachable(TcpError::HostUnreachable),
                };
                self.call(|c, cx| c.handle_icmp(cx, seq, error));
            }
            Op::Option(which, value) => {
                let option = option(which, value);
                let _ = self.call(|c, cx| c.set_option(cx, option));
            }
            Op::PathMtu(mtu) => self.mtu = u32::from(mtu).max(576),
        }
    }

    fn check(&mut self) {
        let connection = &self.connection;
        let unfinished = connection.state() != State::Closed && !connection.is_flushed();
        if unfinished {
            let pending = connection.poll_deadline().is_some() || connection.needs_transmit();
            assert!(
                pending,
                "unfinished, and nothing is pending: {:?}",
                connection.state()
            );
        }
        self.call(|c, cx| {
            let info = c.info(cx);
            assert!(info.tcpi_snd_cwnd >= 1);
            let _ = c.poll_writable(cx);
        });
        let _ = (
            self.connection.poll_readable(),
            self.connection.take_wakes(),
        );
    }
}

fn option(which: u8, value: u32) -> SocketOption {
    let on = value % 2 == 1;
    let span = Nanos::from_millis(u64::from(value % 100_000));
    match which % 15 {
        0 => SocketOption::TcpNodelay(on),
        1 => SocketOption::TcpCork(on),
        2 => SocketOption::TcpQuickack(on),
        3 => SocketOption::TcpMaxseg(value as u16),
        4 => SocketOption::TcpUserTimeout(span),
        5 => SocketOption::TcpSyncnt(value as u8),
        6 => SocketOption::TcpKeepidle(span),
        7 => SocketOption::TcpKeepintvl(span),
        8 => SocketOption::TcpKeepcnt(value as u8),
        9 => SocketOption::TcpNotsentLowat(value),
        10 => SocketOption::SoKeepalive(on),
        11 => SocketOption::SoLinger(if on {
            Linger::For(span)
        } else {
            Linger::Background
        }),
        12 => SocketOption::SoSndbuf(value),
        13 => SocketOption::SoRcvbuf(value),
        _ => SocketOption::SoMaxPacingRate(value.into()),
    }
}

fn start(input: &Input) -> Bench {
    let sysctl = Sysctl {
        tcp_sack: input.options & 1 == 0,
        tcp_timestamps: input.options & 2 == 0,
        tcp_window_scaling: input.options & 4 == 0,
        tcp_ecn: u32::from(input.ecn.0 % 6),
        tcp_congestion_control: AVAILABLE[usize::from(input.congestion) % AVAILABLE.len()],
        ..Sysctl::default()
    };
    let pool = Pool::new(1 << 20);
    let mut mib = TcpMib::default();
    let mut mem = TcpMemory::default();
    let mut limits = HostLimits::default();
    let mut rng = Rng::new(Seed::from_u64(1));
    let now = Instant::from_nanos(1_000_000_000);
    let mut cx = Cx {
        now,
        sysctl: &sysctl,
        pool: &pool,
        mib: &mut mib,
        mem: &mut mem,
        limits: &mut limits,
        rng: &mut rng,
        device: DeviceCaps {
            mtu: 1500,
            gso_max_size: 65_536,
            gso_max_segs: 65_535,
            fq: false,
        },
        ts_offset: 77,
        legacy: fullsend_tcp::legacy::Legacy::default(),
    };
    let mss = Mss::clamped(1460);
    let connection = if input.passive {
        let syn = TcpRepr {
            src_port: 2,
            dst_port: 1,
            seq: IRS,
            flags: TcpFlags::SYN.union(ace(input)),
            window: WireWindow(30_000),
            options: TcpOptions {
                mss: Some(1460),
                window_scale: (input.options & 8 == 0).then_some(3),
                sack_permitted: input.options & 16 == 0,
                timestamps: (input.options & 32 == 0).then_some(Timestamps { val: 1, ecr: 0 }),
                ..TcpOptions::default()
            },
            ..TcpRepr::default()
        };
        Connection::accept(&mut cx, &syn, EcnField::of(input.ecn.0 >> 6), ISS, mss, 20)
    } else {
        Connection::connect(&mut cx, 1, 2, ISS, mss, 20)
    };
    Bench {
        connection,
        sysctl,
        pool,
        mib,
        mem,
        limits,
        rng,
        now,
        mtu: 1500,
        written: 0,
        read: 0,
        peer_nxt: IRS + 1,
        snd_end: ISS,
        in_device: 0,
        ts_recent: 0,
    }
}

fuzz_target!(|input: Input| {
    let mut bench = start(&input);
    bench.drain();
    if !input.passive && input.options & 64 == 0 {
        // A correct SYN-ACK of the peer.
        let repr = TcpRepr {
            src_port: 2,
            dst_port: 1,
            seq: IRS,
            ack: ISS + 1,
            flags: TcpFlags::SYN.union(TcpFlags::ACK).union(ace(&input)),
            window: WireWindow(30_000),
            options: TcpOptions {
                mss: Some(1460),
                window_scale: (input.options & 8 == 0).then_some(3),
                sack_permitted: input.options & 16 == 0,
                ..TcpOptions::default()
            },
            ..TcpRepr::default()
        };
        bench.deliver(repr, 0, 0, EcnField::NotEct);
        bench.drain();
    }
    for op in input.ops.iter().take(300) {
        bench.run(op);
        bench.drain();
        bench.check();
    }
});
