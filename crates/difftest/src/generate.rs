//! Generation of random events that suit the state of the connection.

use fullsend_posix::abi::{
    IPPROTO_TCP, MSG_MORE, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SIOCINQ, SIOCOUTQ, SIOCOUTQNSD,
    SO_ERROR, SO_RCVLOWAT, SOL_SOCKET, TCP_CORK, TCP_NODELAY, TCP_QUICKACK,
};
use fullsend_script::tcp_option::TcpOption;
use fullsend_wire::{Rng, Seed};

use crate::event::{
    ACK, Echo, FIN, FuzzEvent, InjectedSegment, PSH, RST, SYN, SocketCall, SocketIndex, URG,
};
use crate::model::{PeerModel, SocketKind};
use crate::side::EventOutcome;

/// Upper bound of the number of events after the opening.
const LONGEST: u64 = 30;

/// A generator of one sequence.
pub(crate) struct Generator {
    rng: Rng,
    model: PeerModel,
    /// The remaining events that open the connection, in reverse order.
    opening: Vec<HandshakeStep>,
    left: u64,
}

/// A step of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HandshakeStep {
    Socket,
    Option,
    Bind,
    Listen,
    Connect,
    Syn,
    SynAck,
    Ack,
    Accept,
}

const PASSIVE: [HandshakeStep; 7] = [
    HandshakeStep::Socket,
    HandshakeStep::Bind,
    HandshakeStep::Option,
    HandshakeStep::Listen,
    HandshakeStep::Syn,
    HandshakeStep::Ack,
    HandshakeStep::Accept,
];
const ACTIVE: [HandshakeStep; 5] = [
    HandshakeStep::Socket,
    HandshakeStep::Option,
    HandshakeStep::Bind,
    HandshakeStep::Connect,
    HandshakeStep::SynAck,
];
const SIMULTANEOUS: [HandshakeStep; 6] = [
    HandshakeStep::Socket,
    HandshakeStep::Option,
    HandshakeStep::Bind,
    HandshakeStep::Connect,
    HandshakeStep::Syn,
    HandshakeStep::SynAck,
];

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(Seed::from_u64(seed));
        let kind: &[HandshakeStep] = match rng.below(20) {
            0..11 => &PASSIVE,
            11..18 => &ACTIVE,
            _ => &SIMULTANEOUS,
        };
        let opening = kind.iter().rev().copied().collect();
        let left = 2 + rng.below(LONGEST);
        Self {
            rng,
            model: PeerModel::new(),
            opening,
            left,
        }
    }

    /// Updates the model with the outcome of an event.
    pub(crate) fn update(&mut self, event: &FuzzEvent, outcome: &EventOutcome) {
        self.model.update(event, outcome);
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len() as u64) as usize]
    }

    /// Returns the next event, or `None` at the end of the sequence.
    pub(crate) fn next(&mut self) -> Option<FuzzEvent> {
        let may_interleave = !matches!(
            self.opening.last(),
            Some(
                HandshakeStep::Socket
                    | HandshakeStep::Bind
                    | HandshakeStep::Listen
                    | HandshakeStep::Option
            )
        );
        let interleaves = may_interleave && self.chance(4);
        if !self.opening.is_empty() && !interleaves {
            let step = self.opening.pop()?;
            return match self.open(step) {
                Some(event) => Some(event),
                None => self.next(),
            };
        }
        self.left = self.left.checked_sub(1)?;
        if self.left == 0 {
            return None;
        }
        Some(if self.chance(42) {
            self.call()
        } else {
            FuzzEvent::Inject(self.segment())
        })
    }

    fn open(&mut self, step: HandshakeStep) -> Option<FuzzEvent> {
        let fd = SocketIndex(0);
        Some(match step {
            HandshakeStep::Socket => FuzzEvent::Call(SocketCall::Socket),
            HandshakeStep::Bind => FuzzEvent::Call(SocketCall::Bind(fd)),
            HandshakeStep::Listen => FuzzEvent::Call(SocketCall::Listen(fd, 5)),
            HandshakeStep::Connect => FuzzEvent::Call(SocketCall::Connect(fd)),
            HandshakeStep::Accept => FuzzEvent::Call(SocketCall::Accept(fd)),
            HandshakeStep::Option => {
                if self.chance(60) {
                    return None;
                }
                FuzzEvent::Call(self.option(fd))
            }
            HandshakeStep::Syn => FuzzEvent::Inject(self.syn(SYN)),
            HandshakeStep::SynAck => FuzzEvent::Inject(self.syn(SYN | ACK)),
            HandshakeStep::Ack => {
                let mut ack = self.pure_ack();
                if self.chance(15) {
                    ack.len = self.length();
                }
                FuzzEvent::Inject(ack)
            }
        })
    }

    fn syn(&mut self, flags: u16) -> InjectedSegment {
        let mut options = Vec::new();
        if self.chance(90) {
            let mss = self.pick(&[536, 1000, 1460, 1460, 1460, 100, 9000]);
            options.push(TcpOption::Mss(mss));
        }
        if self.chance(70) {
            options.extend([TcpOption::Nop, TcpOption::Nop, TcpOption::SackPermitted]);
        }
        if self.chance(70) {
            let shift = self.pick(&[0, 1, 7, 7, 7, 14]);
            options.extend([TcpOption::Nop, TcpOption::WindowScale(shift)]);
        }
        let echo = if flags & ACK != 0 {
            Echo::Latest(0)
        } else {
            Echo::Zero
        };
        let timestamp = self.chance(60).then_some((self.model.timestamp, echo));
        let fin = if self.chance(2) { FIN } else { 0 };
        InjectedSegment {
            flags: flags | fin,
            seq: 0,
            len: if self.chance(6) { self.length() } else { 0 },
            ack: if self.chance(95) { 1 } else { self.ack() },
            // Half of the largest window limits the segment size. With windows below two segments,
            // segments differ by when a write was split.
            window: self.pick(&[65535, 65535, 65535, 30_000]),
            urgent: 0,
            options,
            timestamp,
            sack: Vec::new(),
        }
    }

    /// Returns an ACK of everything received.
    fn pure_ack(&mut self) -> InjectedSegment {
        let model = &self.model;
        let timestamp = model
            .timestamps
            .then_some((model.timestamp, Echo::Latest(0)));
        InjectedSegment {
            flags: ACK,
            seq: model.rcv_nxt.max(u32::from(model.has_isn)),
            len: 0,
            ack: model.snd_max,
            window: 65535,
            urgent: 0,
            options: Vec::new(),
            timestamp,
            sack: Vec::new(),
        }
    }

    fn length(&mut self) -> u32 {
        self.pick(&[1, 1, 2, 10, 10, 100, 500, 1000, 1448])
    }

    /// Returns a segment of the peer, mostly one that a correct peer could send.
    fn segment(&mut self) -> InjectedSegment {
        let mut segment = self.pure_ack();
        if self.chance(6) && !self.model.has_isn {
            return self.syn(SYN);
        }
        if self.chance(50) {
            segment.len = self.length();
        }
        segment.seq = self.seq(segment.len);
        segment.ack = self.ack();
        segment.window = self.pick(&[65535, 65535, 65535, 5000, 512, 10, 1, 0]);
        segment.flags = self.flags(segment.len);
        if segment.flags & SYN != 0 {
            // A smaller window would limit the segment size, as in `syn`.
            segment.window = 65535;
        }
        if segment.flags & URG != 0 {
            let len = segment.len as u64;
            segment.urgent = self.rng.below(len + 3) as u16;
        }
        self.timestamp(&mut segment);
        if self.model.sack && segment.flags & (SYN | RST) == 0 && self.chance(15) {
            segment.sack = self.sack();
        }
        segment
    }

    fn flags(&mut self, len: u32) -> u16 {
        let push = if len > 0 && self.chance(50) { PSH } else { 0 };
        push | match self.rng.below(100) {
            0..10 => ACK | FIN,
            10..12 => RST,
            12..14 => RST | ACK,
            14..16 => SYN,
            16..18 => SYN | ACK,
            18..20 => ACK | URG,
            20 => 0,
            21 => FIN,
            22 => SYN | FIN,
            _ => ACK,
        }
    }

    fn seq(&mut self, len: u32) -> u32 {
        let base = self.model.rcv_nxt;
        let (window, max) = (self.model.rcv_wnd, self.model.peer_max);
        match self.rng.below(100) {
            0..60 => base,
            60..66 => base.wrapping_add(self.pick(&[1, 2, 10, 100, 1000])),
            66..72 => base.wrapping_sub(self.pick(&[1, 2, 10, 100, 1000])),
            72..78 => base.wrapping_sub(len),
            78..86 => max,
            86..90 => max.wrapping_add(self.pick(&[1, 10, 100])),
            90..92 => base.wrapping_add(window),
            92..94 => base.wrapping_add(window).wrapping_sub(len),
            94..96 => base.wrapping_add(window).wrapping_add(self.pick(&[1, 2])),
            96..98 => max.wrapping_sub(1),
            _ => self.rng.next_u32(),
        }
    }

    fn ack(&mut self) -> u32 {
        let (una, max) = (self.model.acked, self.model.snd_max);
        match self.rng.below(100) {
            0..60 => max,
            60..72 => una,
            72..84 => {
                let count = self.model.edges.len() as u64;
                if count == 0 {
                    return max;
                }
                // The end of one of the last segments.
                let back = self.rng.below(count.min(12));
                self.model.edges[(count - 1 - back) as usize]
            }
            84..88 => {
                let span = u64::from(max.wrapping_sub(una)) + 1;
                una.wrapping_add(self.rng.below(span.min(1 << 20)) as u32)
            }
            88..91 => max.wrapping_add(1),
            91..94 => una.wrapping_sub(1),
            94..96 => max.wrapping_add(self.pick(&[2, 100, 10_000])),
            96..98 => una.wrapping_sub(self.pick(&[100, 100_000])),
            _ => self.rng.next_u32(),
        }
    }

    fn timestamp(&mut self, segment: &mut InjectedSegment) {
        if !self.model.timestamps {
            if self.chance(3) {
                segment.timestamp = Some((self.model.timestamp, Echo::Latest(0)));
            }
            return;
        }
        let now = self.model.timestamp;
        let val = match self.rng.below(100) {
            0..30 => now,
            30..88 => now.wrapping_add(2),
            // Not one tick older: Linux accepts that, RFC 7323 5.3 does not.
            88..94 => now.wrapping_sub(self.pick(&[100, 1000, 100_000])),
            94..96 => now.wrapping_add(100),
            96..98 => now.wrapping_add(0x9000_0000),
            _ => 0,
        };
        let echo = match self.rng.below(100) {
            0..94 => Echo::Latest(0),
            94..96 => Echo::Zero,
            96..98 => Echo::Latest(1000),
            _ => Echo::Latest(-1),
        };
        segment.timestamp = (!self.chance(3)).then_some((val, echo));
    }

    fn sack(&mut self) -> Vec<(u32, u32)> {
        let count = 1 + self.rng.below(2);
        (0..count).map(|_| self.sack_block()).collect()
    }

    fn sack_block(&mut self) -> (u32, u32) {
        let (una, max) = (self.model.acked, self.model.snd_max);
        let edges: Vec<u32> = (self.model.edges.iter().copied())
            .filter(|edge| edge.wrapping_sub(una) as i32 >= 0)
            .collect();
        if edges.len() >= 2 && self.chance(70) {
            let left = self.rng.below(edges.len() as u64 - 1) as usize;
            let right = left + 1 + self.rng.below((edges.len() - left - 1) as u64) as usize;
            return (edges[left], edges[right]);
        }
        let near =
            |rng: &mut Rng, at: u32| at.wrapping_add(rng.below(200) as u32).wrapping_sub(100);
        match self.rng.below(4) {
            0 => (near(&mut self.rng, una), near(&mut self.rng, max)),
            1 => (max, max.wrapping_add(100)),
            2 => (una.wrapping_sub(100), una),
            _ => (near(&mut self.rng, max), near(&mut self.rng, una)),
        }
    }

    /// Returns a call on one of the sockets, mostly on the connection.
    fn call(&mut self) -> FuzzEvent {
        let open = |kind| {
            let sockets = self.model.sockets.iter().enumerate();
            let found = sockets.filter(move |(_, socket)| **socket == kind);
            found
                .map(|(index, _)| SocketIndex(index))
                .collect::<Vec<_>>()
        };
        let (streams, listeners) = (open(SocketKind::Stream), open(SocketKind::Listener));
        if !listeners.is_empty() && (streams.is_empty() || self.chance(10)) {
            let fd = self.pick(&listeners);
            return FuzzEvent::Call(match self.rng.below(20) {
                0..14 => SocketCall::Accept(fd),
                14 => SocketCall::Shutdown(fd, self.rng.below(3) as i32),
                15 => SocketCall::Close(fd),
                16 => SocketCall::Get(fd, SOL_SOCKET, SO_ERROR),
                17 => SocketCall::Receive {
                    fd,
                    len: 10,
                    flags: 0,
                },
                18 => SocketCall::Connect(fd),
                _ => self.option(fd),
            });
        }
        let Some(fd) = (!streams.is_empty()).then(|| self.pick(&streams)) else {
            return FuzzEvent::Inject(self.segment());
        };
        FuzzEvent::Call(self.stream_call(fd))
    }

    fn stream_call(&mut self, fd: SocketIndex) -> SocketCall {
        match self.rng.below(100) {
            0..38 => SocketCall::Send {
                fd,
                len: self.pick(&[0, 1, 10, 10, 100, 1000, 1460, 3000, 6000, 20_000]),
                flags: self.pick(&[0, 0, 0, 0, MSG_MORE]),
            },
            38..68 => SocketCall::Receive {
                fd,
                len: self.pick(&[0, 1, 10, 100, 1000, 100_000, 100_000]),
                flags: self.pick(&[0, 0, 0, 0, 0, MSG_PEEK, MSG_TRUNC, MSG_WAITALL]),
            },
            68..76 => SocketCall::Shutdown(fd, self.pick(&[0, 1, 1, 1, 2, 3])),
            76..81 => SocketCall::Close(fd),
            // With non-zero seconds the kernel's close() would block.
            81..84 => SocketCall::Linger(fd, self.pick(&[0, 1, 1]), 0),
            84..90 => self.option(fd),
            90..93 => SocketCall::Get(fd, SOL_SOCKET, SO_ERROR),
            93..98 => {
                let request = self.pick(&[SIOCINQ, SIOCOUTQ, SIOCOUTQNSD]);
                SocketCall::Ioctl(fd, request)
            }
            98 => SocketCall::Connect(fd),
            _ => SocketCall::Accept(fd),
        }
    }

    fn option(&mut self, fd: SocketIndex) -> SocketCall {
        let on = self.rng.below(2) as i32;
        match self.rng.below(5) {
            0 | 1 => SocketCall::Set(fd, IPPROTO_TCP, TCP_NODELAY, on),
            2 => SocketCall::Set(fd, IPPROTO_TCP, TCP_CORK, on),
            3 => SocketCall::Set(fd, IPPROTO_TCP, TCP_QUICKACK, on),
            _ => SocketCall::Set(fd, SOL_SOCKET, SO_RCVLOWAT, self.pick(&[1, 100, 1000])),
        }
    }
}
