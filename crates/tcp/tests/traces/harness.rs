//! Plays a script of packets and calls against one connection, in virtual time.
//!
//! One line is one event, in the order of time:
//! ```text
//! < P. 1:1001(1000) ack 1 win 500 <sack 2001:3001>   a segment arrives
//! > P. 1:4097(4096) ack 1001                         exactly this segment is sent
//! < W. 1001:2001(1000) ack 1 ce                      E is ECE, W is CWR, A is AE; IP's ECN field
//! << . 2001:3001(1000) ack 1                         arrives in one batch with the line before
//! +40ms                                              time passes; nothing may be sent before its end
//! write 4096                                         a call; `= RESULT` if it is not the whole length
//! drop 1 1001                                        the device drops the first segment that it holds
//! & write 4096                                       a call in one batch with the line before
//! ```
//! Sequence numbers count from the SYN of their sender. `win` and `<...>` are compared only where
//! the script contains them. Every segment that is sent must be in the script: before a line other
//! than `>`, `<<` and `&` nothing may be pending. Each payload byte depends on its position in the
//! stream, and is checked in both directions.

use std::collections::VecDeque;

use fullsend_offload::{Chain, Pool, Slice};
use fullsend_tcp::{
    Connection, Cx, DeviceCaps, HostLimits, IcmpError, Linger, SegmentIn, SegmentOut, SocketOption,
    State, Sysctl, TcpError, TcpMemory, TcpMib, TimeWait, TimeWaitAction, Wakes, WriteFlags,
};
use fullsend_wire::tcp::{SackBlock, TcpFlags, TcpOptions, TcpRepr, Timestamps};
use fullsend_wire::{EcnField, Instant, Mss, Nanos, Rng, Seed, SeqNum, WireWindow};

/// Initial sequence numbers of our side and of the peer, close to 2^32 so that every test wraps.
const ISS: SeqNum = SeqNum::new(u32::MAX - 1999);
const IRS: SeqNum = SeqNum::new(u32::MAX - 2999);
/// The peer's TSval when the test begins.
const PEER_CLOCK: u32 = u32::MAX - 500;
const TS_OFFSET: u32 = u32::MAX - 100;

/// The flags of a SYN that requests ECN (RFC 3168 6.1.1).
pub(crate) const ECN_SETUP: TcpFlags = TcpFlags::SYN.union(TcpFlags::ECE).union(TcpFlags::CWR);

/// The configuration of the connection, its host and its peer.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) peer_mss: u16,
    pub(crate) peer_window: u16,
    /// The peer's window scale.
    pub(crate) wscale: Option<u8>,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    pub(crate) device: DeviceCaps,
    pub(crate) sysctl: Sysctl,
    pub(crate) legacy: fullsend_tcp::legacy::Legacy,
    pub ipv6: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            peer_mss: 1460,
            peer_window: 65_535,
            wscale: Some(7),
            sack: true,
            timestamps: false,
            device: DeviceCaps {
                mtu: 1500,
                gso_max_size: 65_536,
                gso_max_segs: 65_535,
                fq: false,
            },
            sysctl: Sysctl::default(),
            legacy: fullsend_tcp::legacy::Legacy::default(),
            ipv6: false,
        }
    }
}

impl Setup {
    /// Returns the default setup without tail loss probes, so that nothing is sent between a loss
    /// and its timeout.
    pub(crate) fn without_probes() -> Self {
        let mut setup = Self::default();
        setup.sysctl.tcp_early_retrans = 0;
        setup
    }
}

/// A connection under test, with its host's state and the peer's side of the script.
pub(crate) struct Bench {
    pub(crate) conn: Connection,
    pub(crate) mib: TcpMib,
    pub(crate) mem: TcpMemory,
    pub(crate) limits: HostLimits,
    now: Instant,
    setup: Setup,
    pool: Pool,
    rng: Rng,
    written: u32,
    read: u32,
    /// Our last TSval, for the peer to echo.
    echo: u32,
    line: String,
    time_wait: Option<TimeWait>,
    /// Truesizes of the segments that a busy device has not completed; `None`: each completes at
    /// once.
    device: Option<VecDeque<u32>>,
    /// Segments sent and timers run so far.
    events: u32,
}

/// Limits of one test's events and virtual time, so that a connection that sends or sets timers
/// without end fails its test instead of hanging it.
const MAX_EVENTS: u32 = 3_000_000;
const MAX_TEST_TIME: Nanos = Nanos::from_secs(7 * 24 * 3600);

macro_rules! cx {
    ($bench:expr) => {
        &mut Cx {
            now: $bench.now,
            sysctl: &$bench.setup.sysctl,
            pool: &$bench.pool,
            mib: &mut $bench.mib,
            mem: &mut $bench.mem,
            limits: &mut $bench.limits,
            rng: &mut $bench.rng,
            device: $bench.setup.device,
            ts_offset: TS_OFFSET,
            legacy: $bench.setup.legacy,
        }
    };
}

impl Bench {
    /// Returns a connection in SYN-SENT that has not sent its SYN yet.
    pub(crate) fn connecting(setup: &Setup) -> Self {
        Self::new(setup, None)
    }

    /// Returns a connection in SYN-RECEIVED, just after the peer's SYN.
    pub(crate) fn accepting(setup: &Setup) -> Self {
        Self::accepting_syn(setup, TcpFlags::SYN, EcnField::NotEct)
    }

    /// Returns a connection in SYN-RECEIVED, after a SYN with these flags and this ECN field.
    pub(crate) fn accepting_syn(setup: &Setup, flags: TcpFlags, ecn: EcnField) -> Self {
        Self::new(setup, Some((syn(setup, flags), ecn)))
    }

    /// Returns a connection just after a SYN with a valid Fast Open cookie and without data (RFC
    /// 7413).
    pub(crate) fn accepting_fast_open(setup: &Setup) -> Self {
        let mut bench = Self::accepting(setup);
        let syn = syn(setup, TcpFlags::SYN);
        bench.conn.open_early(cx!(bench), &syn, Chain::new());
        bench
    }

    fn new(setup: &Setup, syn: Option<(TcpRepr, EcnField)>) -> Self {
        let (mut rng, mut mib) = (Rng::new(Seed::from_u64(1)), TcpMib::default());
        let mut mem = TcpMemory::default();
        let mut limits = HostLimits::default();
        let pool = Pool::new(1 << 20);
        let now = Instant::ZERO + Nanos::from_secs(100);
        let mut cx = Cx {
            now,
            sysctl: &setup.sysctl,
            pool: &pool,
            mib: &mut mib,
            mem: &mut mem,
            limits: &mut limits,
            rng: &mut rng,
            device: setup.device,
            ts_offset: TS_OFFSET,
            legacy: setup.legacy,
        };
        let ip = if setup.ipv6 { 40 } else { 20 };
        let mss = Mss::clamped((setup.device.mtu - 20 - u32::from(ip)) as u16);
        let conn = match &syn {
            Some((syn, ecn)) => Connection::accept(&mut cx, syn, *ecn, ISS, mss, ip),
            None => Connection::connect(&mut cx, 80, 2000, ISS, mss, ip),
        };
        Self {
            conn,
            mib,
            mem,
            limits,
            now,
            setup: setup.clone(),
            pool,
            rng,
            written: 0,
            read: 0,
            echo: 0,
            line: String::new(),
            time_wait: None,
            device: None,
            events: 0,
        }
    }

    /// Returns a passively opened connection in ESTABLISHED. From here on the peer's window is
    /// `peer_window << wscale` unless the script sets another.
    pub(crate) fn established(setup: &Setup) -> Self {
        let mut bench = Self::accepting(setup);
        bench.play("> S. 0:0(0) ack 1\n< . 1:1(0) ack 1");
        assert_eq!(bench.conn.state(), State::Established);
        bench
    }

    /// Returns an established connection that delays its ACKs: the first segments of a connection
    /// are acknowledged one by one, and it has received these.
    pub(crate) fn warmed_up(setup: &Setup) -> Self {
        let mut bench = Self::established(setup);
        bench.play("< P. 1:1601(1600) ack 1 gro 100\n> . 1:1(0) ack 1601\nread 1600");
        bench
    }

    /// Sends ten segments with ECN (RFC 3168), as two super-segments.
    pub(crate) fn send_ten(&mut self) {
        self.play(
            "write 14600
             > P. 1:7301(7300) ack 1 ect0
             > P. 7301:14601(7300) ack 1 ect0",
        );
    }

    /// Plays a script.
    pub(crate) fn play(&mut self, script: &str) -> &mut Self {
        for line in script.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            line.clone_into(&mut self.line);
            self.step(line);
        }
        "the end of the script".clone_into(&mut self.line);
        self.assert_silent();
        self
    }

    fn step(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == ">" {
            let Some(segment) = self.conn.poll_transmit(cx!(self)) else {
                panic!("at {line:?}: nothing leaves");
            };
            self.complete(&segment);
            return self.compare(&segment, rest);
        }
        if !matches!(word, "<<" | "&") {
            self.assert_silent();
        }
        match word {
            "&" => {
                let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                self.call(word, rest);
            }
            "<" | "<<" => {
                let mut segment = self.parse(rest);
                self.conn.handle_segment(cx!(self), &mut segment);
            }
            _ if word.starts_with('+') => self.advance(span(&word[1..])),
            _ => self.call(word, rest),
        }
    }

    fn call(&mut self, word: &str, rest: &str) {
        let (args, expected) = rest.split_once('=').unwrap_or((rest, ""));
        let (args, expected) = (args.trim(), expected.trim());
        let number = || {
            args.split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0usize)
        };
        let result = match word {
            "write" => self.write(number(), args),
            "at_mark" => format!("{}", self.conn.at_mark()),
            "urgent" => format!("{}", self.conn.has_urgent()),
            "write_slice" => self.write_slice(number()),
            "read" => self.read(number()),
            "shutdown" => {
                self.conn.shutdown_write(cx!(self));
                String::new()
            }
            "shutdown_read" => {
                self.conn.shutdown_read(cx!(self));
                String::new()
            }
            "close" => {
                self.conn.close(cx!(self));
                String::new()
            }
            "abort" => {
                self.conn.abort(cx!(self));
                String::new()
            }
            "too_big" => {
                let (seq, mtu) = args.split_once(' ').expect("too_big SEQ MTU");
                let mtu = mtu.parse().expect("an MTU");
                let seq = ISS + seq.parse::<u32>().expect("a sequence number");
                self.conn
                    .handle_icmp(cx!(self), seq, IcmpError::TooBig { mtu });
                String::new()
            }
            "unreachable" => {
                let error = IcmpError::Unreachable(TcpError::HostUnreachable);
                self.conn
                    .handle_icmp(cx!(self), ISS + number() as u32, error);
                String::new()
            }
            "state" => format!("{:?}", self.conn.state()),
            "error" => format!("{:?}", self.conn.take_error()),
            "cwnd" => format!("{}", self.info().tcpi_snd_cwnd),
            "readable" => format!("{}", self.conn.poll_readable(&self.mem)),
            "writable" => format!("{}", self.conn.poll_writable(cx!(self))),
            "wakes" => {
                let Wakes { read, write } = self.conn.take_wakes();
                let told = [(read, "read"), (write, "write")];
                let told: Vec<_> = told.iter().filter(|t| t.0).map(|t| t.1).collect();
                told.join(" ")
            }
            "flushed" => format!("{}", self.conn.is_flushed()),
            "time_wait" => format!("{}", self.conn.take_time_wait().is_some()),
            "set" => self.set(args),
            "busy" => {
                self.device = Some(VecDeque::new());
                String::new()
            }
            "complete" => {
                self.complete_first();
                String::new()
            }
            // Virtual time passes without running the timers that fall due.
            "late" => {
                self.now += span(args);
                String::new()
            }
            "drop" => {
                let (seq, end) = args.split_once(' ').expect("drop SEQ END");
                self.drop_first(seq.parse().expect("SEQ"), end.parse().expect("END"));
                String::new()
            }
            _ => panic!("what is {word:?}?"),
        };
        // Without an expected value, `write` and `read` must transfer the whole length.
        let all = number().to_string();
        let quiet = matches!(word, "write" | "read") && expected.is_empty();
        let expected = if quiet { &all } else { expected };
        assert_eq!(result, expected, "at {:?}", self.line);
    }

    fn write(&mut self, len: usize, how: &str) -> String {
        let data = pattern(self.written, len);
        let flags = WriteFlags {
            more: how.ends_with("more"),
            eor: how.ends_with("eor"),
            oob: how.ends_with("oob"),
        };
        match self.conn.write_with(cx!(self), &data, flags) {
            Ok(n) => {
                self.written += n as u32;
                n.to_string()
            }
            Err(error) => format!("{error:?}"),
        }
    }

    fn write_slice(&mut self, len: usize) -> String {
        let data = Slice::copied_from(&pattern(self.written, len));
        match self.conn.write_slice(cx!(self), data, false) {
            Ok(()) => {
                self.written += len as u32;
                String::new()
            }
            Err((error, rest)) => {
                self.written += (len - rest.len()) as u32;
                format!("{error:?}")
            }
        }
    }

    fn read(&mut self, len: usize) -> String {
        let mut out = vec![0; len];
        match self.conn.read(cx!(self), &mut out) {
            Ok(n) => {
                assert_eq!(out[..n], pattern(self.read, n), "at {:?}", self.line);
                self.read += n as u32;
                n.to_string()
            }
            Err(error) => format!("{error:?}"),
        }
    }

    /// Delivers `bytes` of in-order data, rounded up to 60,000, and reads them at once.
    pub(crate) fn receive_stream(&mut self, bytes: u64) {
        let mut scratch = vec![0; 60_000];
        let data = Slice::copied_from(&scratch);
        for _ in 0..bytes.div_ceil(60_000) {
            let mut segment = self.parse(&format!("P. {0}:{0}(0) ack 1", self.read + 1));
            segment.payload = data.clone().into();
            segment.gso_size = 1460;
            segment.gso_segs = 42;
            self.conn.handle_segment(cx!(self), &mut segment);
            assert_eq!(self.conn.read(cx!(self), &mut scratch), Ok(60_000));
            self.read = self.read.wrapping_add(60_000);
            while self.next_out().is_some() {}
        }
    }

    fn set(&mut self, args: &str) -> String {
        let (name, value) = args.split_once(' ').expect("set NAME VALUE");
        let n: u64 = value.parse().expect("a number");
        let seconds = Nanos::from_secs(n);
        let option = match name {
            "nodelay" => SocketOption::TcpNodelay(n != 0),
            "cork" => SocketOption::TcpCork(n != 0),
            "quickack" => SocketOption::TcpQuickack(n != 0),
            "keepalive" => SocketOption::SoKeepalive(n != 0),
            "keepidle" => SocketOption::TcpKeepidle(seconds),
            "keepintvl" => SocketOption::TcpKeepintvl(seconds),
            "keepcnt" => SocketOption::TcpKeepcnt(n as u8),
            "user_timeout" => SocketOption::TcpUserTimeout(seconds),
            "linger" => SocketOption::SoLinger(Linger::For(seconds)),
            "notsent_lowat" => SocketOption::TcpNotsentLowat(n as u32),
            "sndbuf" => SocketOption::SoSndbuf(n as u32),
            "rcvbuf" => SocketOption::SoRcvbuf(n as u32),
            "rcvlowat" => SocketOption::SoRcvlowat(n as u32),
            "max_pacing_rate" => SocketOption::SoMaxPacingRate(n),
            _ => panic!("what is {name:?}?"),
        };
        match self.conn.set_option(cx!(self), option) {
            Ok(()) => String::new(),
            Err(error) => format!("{error:?}"),
        }
    }

    #[expect(
        clippy::unnecessary_mut_passed,
        reason = "one macro makes the context for all calls"
    )]
    pub(crate) fn info(&mut self) -> fullsend_tcp::TcpInfo {
        self.conn.info(cx!(self))
    }

    /// Returns the memory of the connection.
    #[expect(
        clippy::unnecessary_mut_passed,
        reason = "one macro makes the context for all calls"
    )]
    pub(crate) fn memory(&mut self) -> fullsend_tcp::SkMem {
        self.conn.inspect(cx!(self)).memory
    }

    /// Sets `TCP_CONGESTION`.
    pub(crate) fn congestion(&mut self, name: &str) {
        self.conn.set_congestion(cx!(self), name).expect(name);
    }

    pub(crate) fn report(&self) -> fullsend_tcp::FlowReport {
        self.conn.flow_report(self.now)
    }

    pub(crate) fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    /// Returns the segments sent in reply to `segment`, in script syntax.
    pub(crate) fn answers(&mut self, segment: &str) -> Vec<String> {
        self.deliver_line(segment);
        let all = std::iter::from_fn(|| self.next_out());
        let shown = all.map(|s| Self::show(&s).split(" | ").next().map(str::to_owned));
        shown.flatten().collect()
    }

    /// Takes the TIME-WAIT state from the connection, for the calls below.
    pub(crate) fn extract_time_wait(&mut self) {
        self.time_wait = self.conn.take_time_wait();
    }

    pub(crate) fn time_wait(&self) -> &TimeWait {
        self.time_wait.as_ref().expect("TIME-WAIT")
    }

    pub(crate) fn deliver_to_time_wait(&mut self, segment: &str) -> TimeWaitAction {
        let segment = self.parse(segment);
        let mut time_wait = self.time_wait.take().expect("TIME-WAIT");
        let verdict = time_wait.handle_segment(cx!(self), &segment);
        self.time_wait = Some(time_wait);
        verdict
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Returns the next segment to send, if any, after the checks that apply to every segment.
    pub(crate) fn next_out(&mut self) -> Option<SegmentOut> {
        let segment = self.conn.poll_transmit(cx!(self))?;
        self.count_event();
        self.complete(&segment);
        self.check(&segment);
        Some(segment)
    }

    /// Completes a segment at once, or queues it at a busy device.
    fn complete(&mut self, segment: &SegmentOut) {
        let truesize = segment.truesize;
        match &mut self.device {
            Some(device) => device.push_back(truesize),
            None => self.conn.handle_tx_complete(cx!(self), truesize),
        }
    }

    /// Completes the first segment that the device holds.
    fn complete_first(&mut self) {
        let first = self.device.as_mut().and_then(VecDeque::pop_front);
        let truesize = first.expect("something to complete");
        self.conn.handle_tx_complete(cx!(self), truesize);
    }

    /// Drops the first segment that the device holds, which covers `seq..end`.
    pub(crate) fn drop_first(&mut self, seq: u32, end: u32) {
        let first = self.device.as_mut().and_then(VecDeque::pop_front);
        let truesize = first.expect("something to drop");
        self.conn
            .handle_tx_dropped(cx!(self), truesize, ISS + seq, ISS + end);
    }

    /// Completes the first segment that the device holds.
    pub(crate) fn complete_one(&mut self) {
        self.complete_first();
    }

    /// Completes all segments that the device holds.
    pub(crate) fn complete_all(&mut self) {
        while self.device.as_ref().is_some_and(|d| !d.is_empty()) {
            self.complete_first();
        }
    }

    /// Converts one of our sequence numbers to the numbering of scripts.
    pub(crate) fn relative(seq: SeqNum) -> u32 {
        seq.since(ISS)
    }

    /// Returns the sequence number after the last byte of data sent.
    pub(crate) fn sent(&mut self) -> u32 {
        self.written + 1 - self.info().tcpi_notsent_bytes
    }

    /// Writes until the send buffer is full.
    pub(crate) fn fill(&mut self) {
        while self.try_write(100_000) {}
    }

    /// Writes up to `len` bytes. Returns whether any were accepted.
    pub(crate) fn try_write(&mut self, len: usize) -> bool {
        self.write(len, "") != "WouldBlock"
    }

    /// Sends data and acknowledges it until the send buffer is empty.
    pub(crate) fn drain(&mut self) {
        while !self.conn.is_flushed() {
            while self.next_out().is_some() {}
            let sent = self.sent();
            self.acknowledge(sent);
        }
    }

    /// Delivers a pure ACK.
    pub(crate) fn acknowledge(&mut self, ack: u32) {
        self.deliver_line(&format!(". 1:1(0) ack {ack}"));
    }

    /// Delivers the last ACK again, and discards the segments sent in reply.
    pub(crate) fn repeat_ack(&mut self) {
        let una = self.info().tcpi_bytes_acked as u32 + 1;
        self.acknowledge(una);
        while self.next_out().is_some() {}
    }

    /// Delivers a data segment with PSH.
    pub(crate) fn deliver_data(&mut self, seq: u32, len: u32) {
        self.deliver_line(&format!("P. {seq}:{}({len}) ack 1", seq + len));
    }

    /// Advances to the next deadline and runs its timer. Returns whether there was one.
    pub(crate) fn run_next_timer(&mut self) -> bool {
        let Some(at) = self.conn.poll_deadline() else {
            return false;
        };
        self.run_timer(at);
        true
    }

    fn run_timer(&mut self, at: Instant) {
        self.count_event();
        self.now = self.now.max(at);
        self.conn.handle_timeout(cx!(self));
    }

    fn count_event(&mut self) {
        self.events += 1;
        assert!(
            self.events < MAX_EVENTS && self.now < Instant::ZERO + MAX_TEST_TIME,
            "no end at {:?}, after {:?}: segments or timers go on and on",
            self.now,
            self.line
        );
    }

    /// Runs timers until one sends a segment. Returns it in script syntax.
    pub(crate) fn run_timers_until_output(&mut self) -> String {
        loop {
            assert!(self.run_next_timer(), "no timer");
            if let Some(segment) = self.next_out() {
                return Self::show(&segment);
            }
        }
    }

    /// Returns the seconds since the test began.
    pub(crate) fn elapsed_s(&self) -> u64 {
        self.now.as_millis() / 1000 - 100
    }

    /// Delivers a pure ACK with one SACK block.
    pub(crate) fn acknowledge_with_sack(&mut self, ack: u32, left: u32, right: u32) {
        self.deliver_line(&format!(". 1:1(0) ack {ack} <sack {left}:{right}>"));
    }

    /// Delivers a segment given in script syntax.
    pub(crate) fn deliver(&mut self, segment: &str) {
        self.deliver_line(segment);
    }

    fn deliver_line(&mut self, text: &str) {
        let mut segment = self.parse(text);
        self.conn.handle_segment(cx!(self), &mut segment);
    }

    fn assert_silent(&mut self) {
        if let Some(segment) = self.conn.poll_transmit(cx!(self)) {
            panic!("before {:?}: {} leaves", self.line, Self::show(&segment));
        }
        assert!(!self.conn.needs_transmit());
    }

    /// Advances by `span` and runs the timers that fall due. Segments may be sent only at its very
    /// end.
    pub(crate) fn advance(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(at) = self.conn.poll_deadline().filter(|&at| at <= end) {
            self.run_timer(at);
            if self.now < end {
                self.assert_silent();
            }
        }
        self.now = end;
    }

    /// Parses a segment in script syntax: `P. 1:1001(1000) ack 1 win 500 <sack 2001:3001,ts 5>`.
    fn parse(&mut self, text: &str) -> SegmentIn {
        let (head, options) = text.split_once('<').unwrap_or((text, ""));
        let mut words = head.split_whitespace();
        let flags = parse_flags(words.next().expect("flags"));
        let (from, len) = range(words.next().expect("SEQ:END(LEN)"));
        let mut repr = TcpRepr {
            src_port: 2000,
            dst_port: 80,
            seq: IRS + from,
            flags,
            window: WireWindow(self.setup.peer_window),
            ..TcpRepr::default()
        };
        let (mut size, mut ecn) = (0, EcnField::NotEct);
        while let Some(word) = words.next() {
            if let Some(field) = ECN.iter().find(|f| f.0 == word) {
                ecn = field.1;
                continue;
            }
            let value: u32 = words.next().and_then(|v| v.parse().ok()).expect("a number");
            match word {
                "ack" => repr.ack = ISS + value,
                "urg" => repr.urgent = value as u16,
                "win" => repr.window = WireWindow(value as u16),
                "gro" => size = value as u16,
                _ => panic!("what is {word:?} in {text:?}?"),
            }
        }
        self.parse_options(&mut repr, options.trim_end_matches('>'));
        let payload = pattern(from.wrapping_sub(1), len as usize);
        SegmentIn {
            repr,
            payload: Chain::from(Slice::copied_from(&payload)),
            gso_size: size,
            gso_segs: if size == 0 {
                1
            } else {
                len.div_ceil(size.into()) as u16
            },
            ecn,
        }
    }

    fn parse_options(&self, repr: &mut TcpRepr, text: &str) {
        let syn = repr.flags.contains(TcpFlags::SYN);
        if syn {
            repr.options = syn_options(&self.setup);
        }
        if self.setup.timestamps {
            let clock = self.now.as_millis() as u32 - 100_000;
            repr.options.timestamps = Some(Timestamps {
                val: PEER_CLOCK.wrapping_add(clock),
                ecr: if repr.flags.contains(TcpFlags::ACK) {
                    self.echo
                } else {
                    0
                },
            });
        }
        for option in text.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once(' ').unwrap_or((option, ""));
            match name {
                "sack" => {
                    let (left, right) = value.split_once(':').expect("LEFT:RIGHT");
                    let at = |n: &str| ISS + n.parse::<u32>().expect("a number");
                    repr.options.sack.push(SackBlock {
                        left: at(left),
                        right: at(right),
                    });
                }
                // The peer's TSval, as ms since the test began.
                "ts" => {
                    let ms: u32 = value.parse().expect("milliseconds");
                    let ts = repr.options.timestamps.as_mut().expect("timestamps");
                    ts.val = PEER_CLOCK.wrapping_add(ms);
                }
                // The TSecr: our TSval at a time in ms since the test began.
                "echo" => {
                    let ms: u32 = value.parse().expect("milliseconds");
                    let ts = repr.options.timestamps.as_mut().expect("timestamps");
                    ts.ecr = TS_OFFSET.wrapping_add(100_000 + ms);
                }
                // The TSecr 0: no echo.
                "no-echo" => {
                    let ts = repr.options.timestamps.as_mut().expect("timestamps");
                    ts.ecr = 0;
                }
                "none" => repr.options = TcpOptions::default(),
                _ => panic!("what is {option:?}?"),
            }
        }
    }

    fn compare(&mut self, segment: &SegmentOut, expected: &str) {
        let shown = Self::show(segment);
        let mut parts = shown.splitn(3, " | ");
        let (head, window, options) = (parts.next(), parts.next(), parts.next());
        let (expected_head, expected_options) = match expected.split_once('<') {
            Some((head, options)) => (head.trim(), Some(options.trim_end_matches('>'))),
            None => (expected.trim(), None),
        };
        let (expected_head, expected_window) = match expected_head.split_once(" win ") {
            Some((head, window)) => (head, Some(window)),
            None => (expected_head, None),
        };
        assert_eq!(head, Some(expected_head), "at {:?}", self.line);
        if expected_window.is_some() {
            assert_eq!(window, expected_window, "window at {:?}", self.line);
        }
        if expected_options.is_some() {
            assert_eq!(options, expected_options, "options at {:?}", self.line);
        }
        self.check(segment);
    }

    /// Checks the properties of every segment, and records its TSval for the peer to echo.
    fn check(&mut self, segment: &SegmentOut) {
        let len = segment.payload.len();
        let mut bytes = vec![0; len];
        segment.payload.copy_to(&mut bytes);
        let from = segment.repr.seq.since(ISS).wrapping_sub(1);
        assert_eq!(bytes, pattern(from, len), "data at {:?}", self.line);
        let segs = match segment.gso_size {
            0 => 1,
            size => len.div_ceil(size.into()),
        };
        assert_eq!(usize::from(segment.gso_segs), segs, "at {:?}", self.line);
        assert_eq!(segment.truesize > 0, len > 0, "at {:?}", self.line);
        if let Some(ts) = segment.repr.options.timestamps {
            self.echo = ts.val;
        }
    }

    pub(crate) fn show(segment: &SegmentOut) -> String {
        let repr = &segment.repr;
        let (from, len) = (repr.seq.since(ISS) as i32, segment.payload.len());
        let ack = if repr.flags.contains(TcpFlags::ACK) {
            format!(" ack {}", repr.ack.since(IRS))
        } else {
            String::new()
        };
        let urgent = match repr.urgent {
            0 => String::new(),
            pointer => format!(" urg {pointer}"),
        };
        let ecn = ECN.iter().find(|f| f.1 == segment.ecn);
        let ecn = ecn.map_or(String::new(), |f| format!(" {}", f.0));
        format!(
            "{} {from}:{}({len}){ack}{urgent}{ecn} | {} | {}",
            show_flags(repr.flags),
            from + len as i32,
            repr.window.0,
            show_options(&repr.options)
        )
    }
}

fn show_options(options: &TcpOptions) -> String {
    let mut shown = Vec::new();
    if let Some(mss) = options.mss {
        shown.push(format!("mss {mss}"));
    }
    if options.sack_permitted {
        shown.push("sackOK".to_owned());
    }
    if options.timestamps.is_some() {
        shown.push("ts".to_owned());
    }
    if let Some(shift) = options.window_scale {
        shown.push(format!("wscale {shift}"));
    }
    for block in options.sack.as_slice() {
        let (left, right) = (block.left.since(IRS), block.right.since(IRS));
        shown.push(format!("sack {left}:{right}"));
    }
    shown.join(",")
}

/// Returns the peer's SYN with these flags.
fn syn(setup: &Setup, flags: TcpFlags) -> TcpRepr {
    TcpRepr {
        src_port: 2000,
        dst_port: 80,
        seq: IRS,
        flags,
        window: WireWindow(setup.peer_window),
        options: syn_options(setup),
        ..TcpRepr::default()
    }
}

fn syn_options(setup: &Setup) -> TcpOptions {
    TcpOptions {
        mss: Some(setup.peer_mss),
        window_scale: setup.wscale,
        sack_permitted: setup.sack,
        timestamps: setup.timestamps.then_some(Timestamps {
            val: PEER_CLOCK,
            ecr: 0,
        }),
        ..TcpOptions::default()
    }
}

const FLAGS: [(char, TcpFlags); 9] = [
    ('F', TcpFlags::FIN),
    ('S', TcpFlags::SYN),
    ('R', TcpFlags::RST),
    ('P', TcpFlags::PSH),
    ('U', TcpFlags::URG),
    ('E', TcpFlags::ECE),
    ('W', TcpFlags::CWR),
    ('A', TcpFlags::AE),
    ('.', TcpFlags::ACK),
];

/// The names of ECN fields other than Not-ECT.
const ECN: [(&str, EcnField); 3] = [
    ("ect0", EcnField::Ect0),
    ("ect1", EcnField::Ect1),
    ("ce", EcnField::Ce),
];

fn parse_flags(text: &str) -> TcpFlags {
    let flag = |c| FLAGS.iter().find(|f| f.0 == c).expect("a flag").1;
    text.chars().fold(TcpFlags(0), |all, c| match c {
        '-' => all,
        c => all.union(flag(c)),
    })
}

fn show_flags(flags: TcpFlags) -> String {
    let set = FLAGS.iter().filter(|f| flags.contains(f.1));
    set.map(|f| f.0).collect()
}

/// Parses `1:1001(1000)` into the start and the length.
fn range(text: &str) -> (u32, u32) {
    let (from, rest) = text.split_once(':').expect("SEQ:END(LEN)");
    let (end, len) = rest
        .trim_end_matches(')')
        .split_once('(')
        .expect("END(LEN)");
    let [from, end, len] = [from, end, len].map(|n| n.parse::<u32>().expect("a number"));
    assert_eq!(from + len, end, "{text}");
    (from, len)
}

/// Parses `40ms`, `1.5s` or `250us`.
fn span(text: &str) -> Nanos {
    let split = text.find(|c: char| c.is_alphabetic()).expect("a unit");
    let (n, unit) = text.split_at(split);
    let n: f64 = n.parse().expect("a number");
    let ns = match unit {
        "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        _ => panic!("what is {unit:?}?"),
    };
    Nanos::from_nanos((n * ns) as u64)
}

/// Returns `len` bytes of the test stream, beginning at position `from`.
fn pattern(from: u32, len: usize) -> Vec<u8> {
    let at = |n: u32| (n ^ (n >> 8) ^ (n >> 16)) as u8;
    (0..len as u32).map(|i| at(from.wrapping_add(i))).collect()
}
