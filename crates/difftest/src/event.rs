//! Events: socket calls and packets of the peer, with relative sequence numbers.

use std::fmt;

use fullsend_posix::abi::{
    IPPROTO_TCP, MSG_DONTWAIT, MSG_MORE, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SIOCINQ, SIOCOUTQ,
    SIOCOUTQNSD, SO_ERROR, SO_LINGER, SO_RCVLOWAT, SOL_SOCKET, TCP_CORK, TCP_NODELAY, TCP_QUICKACK,
};
use fullsend_script::tcp_option::TcpOption;
use fullsend_script::{WireSegment, segment_text};

pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;
pub(crate) const URG: u16 = 0x20;

/// The descriptor of a script's first socket.
const FIRST_FD: usize = 3;

/// A socket, numbered in the order of opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SocketIndex(pub(crate) usize);

impl fmt::Display for SocketIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", FIRST_FD + self.0)
    }
}

/// A call on a non-blocking socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SocketCall {
    Socket,
    Bind(SocketIndex),
    Listen(SocketIndex, i32),
    /// Connects to the peer.
    Connect(SocketIndex),
    Accept(SocketIndex),
    Send {
        fd: SocketIndex,
        len: usize,
        flags: i32,
    },
    Receive {
        fd: SocketIndex,
        len: usize,
        flags: i32,
    },
    Shutdown(SocketIndex, i32),
    Close(SocketIndex),
    /// `setsockopt` with an integer: level, name, value.
    Set(SocketIndex, i32, i32, i32),
    /// `SO_LINGER`: on or off, seconds.
    Linger(SocketIndex, i32, i32),
    /// `getsockopt` with an integer: level, name.
    Get(SocketIndex, i32, i32),
    Ioctl(SocketIndex, u32),
}

/// The timestamp echo of an injected segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Echo {
    Zero,
    /// The latest TSval of the side under test, plus an offset in its clock ticks.
    Latest(i32),
}

/// A segment of the peer. Sequence numbers are relative to the peer's ISN; the acknowledgement
/// number and SACK blocks to that of the side under test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InjectedSegment {
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    /// Options of a SYN, in order.
    pub(crate) options: Vec<TcpOption>,
    /// TSval, and the kind of echo.
    pub(crate) timestamp: Option<(u32, Echo)>,
    pub(crate) sack: Vec<(u32, u32)>,
}

/// A step of a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FuzzEvent {
    Call(SocketCall),
    Inject(InjectedSegment),
}

/// Returns whether `a` comes after `b` in sequence space.
pub(crate) fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Returns the byte of a stream at a relative sequence number, the same as in packet scripts.
pub(crate) fn pattern(seq: u32) -> u8 {
    (seq ^ seq >> 8 ^ seq >> 16) as u8
}

impl InjectedSegment {
    /// Returns the sequence number after the segment.
    pub(crate) fn end(&self) -> u32 {
        let flag = |bit| u32::from(self.flags & bit != 0);
        (self.seq.wrapping_add(self.len)).wrapping_add(flag(SYN) + flag(FIN))
    }

    /// Returns the segment for a side with initial sequence number `local_isn` and latest TSval
    /// `latest`.
    pub(crate) fn to_wire(&self, remote_isn: u32, local_isn: u32, latest: u32) -> WireSegment {
        let mut options = self.options.clone();
        if let Some((val, echo)) = self.timestamp {
            let ecr = match echo {
                Echo::Zero => 0,
                Echo::Latest(offset) => latest.wrapping_add_signed(offset),
            };
            let nops = [TcpOption::Nop, TcpOption::Nop];
            options.extend(nops);
            options.push(TcpOption::Timestamps { val, ecr });
        }
        if !self.sack.is_empty() {
            let blocks = self.sack.iter().map(|(left, right)| {
                let up = |n: u32| n.wrapping_add(local_isn);
                (up(*left), up(*right))
            });
            options.extend([TcpOption::Nop, TcpOption::Nop]);
            options.push(TcpOption::Sack(blocks.collect()));
        }
        let first = self.seq.wrapping_add(u32::from(self.flags & SYN != 0));
        let has_ack = self.flags & ACK != 0;
        WireSegment {
            src_port: 0,
            dst_port: 0,
            flags: self.flags,
            seq: self.seq.wrapping_add(remote_isn),
            ack: if has_ack {
                self.ack.wrapping_add(local_isn)
            } else {
                0
            },
            window: self.window,
            urgent: self.urgent,
            options,
            data: (0..self.len)
                .map(|i| pattern(first.wrapping_add(i)))
                .collect(),
        }
    }
}

/// Returns the names of a set of flags, joined by `|`.
fn flags_text(flags: i32) -> String {
    let names = [
        (MSG_PEEK, "MSG_PEEK"),
        (MSG_TRUNC, "MSG_TRUNC"),
        (MSG_WAITALL, "MSG_WAITALL"),
        (MSG_DONTWAIT, "MSG_DONTWAIT"),
        (MSG_MORE, "MSG_MORE"),
    ];
    let set: Vec<&str> = names
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    if set.is_empty() {
        "0".to_owned()
    } else {
        set.join("|")
    }
}

fn option_text(level: i32, name: i32) -> String {
    match (level, name) {
        (SOL_SOCKET, SO_ERROR) => "SOL_SOCKET, SO_ERROR".to_owned(),
        (SOL_SOCKET, SO_LINGER) => "SOL_SOCKET, SO_LINGER".to_owned(),
        (SOL_SOCKET, SO_RCVLOWAT) => "SOL_SOCKET, SO_RCVLOWAT".to_owned(),
        (IPPROTO_TCP, TCP_NODELAY) => "SOL_TCP, TCP_NODELAY".to_owned(),
        (IPPROTO_TCP, TCP_CORK) => "SOL_TCP, TCP_CORK".to_owned(),
        (IPPROTO_TCP, TCP_QUICKACK) => "SOL_TCP, TCP_QUICKACK".to_owned(),
        _ => format!("{level}, {name}"),
    }
}

impl SocketCall {
    /// Returns whether later events depend on the call, so that it must not be removed from a
    /// sequence.
    pub(crate) fn opens(&self) -> bool {
        matches!(
            self,
            Self::Socket | Self::Bind(_) | Self::Listen(..) | Self::Connect(_)
        )
    }

    /// Returns the socket that the call is made on.
    ///
    /// # Panics
    /// If the call is `socket`.
    pub(crate) fn fd(&self) -> SocketIndex {
        match *self {
            Self::Socket => panic!("socket() has no descriptor"),
            Self::Bind(fd)
            | Self::Listen(fd, _)
            | Self::Connect(fd)
            | Self::Accept(fd)
            | Self::Send { fd, .. }
            | Self::Receive { fd, .. }
            | Self::Shutdown(fd, _)
            | Self::Close(fd)
            | Self::Set(fd, ..)
            | Self::Linger(fd, ..)
            | Self::Get(fd, ..)
            | Self::Ioctl(fd, _) => fd,
        }
    }
}

impl fmt::Display for SocketCall {
    /// Writes the call in the syntax of scripts, without its result.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket => f.write_str("socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP)"),
            Self::Bind(fd) => write!(f, "bind({fd}, ..., ...)"),
            Self::Listen(fd, backlog) => write!(f, "listen({fd}, {backlog})"),
            Self::Connect(fd) => write!(f, "connect({fd}, ..., ...)"),
            Self::Accept(fd) => write!(f, "accept({fd}, ..., ...)"),
            Self::Send { fd, len, flags } => {
                write!(f, "send({fd}, ..., {len}, {})", flags_text(*flags))
            }
            Self::Receive { fd, len, flags } => {
                write!(f, "recv({fd}, ..., {len}, {})", flags_text(*flags))
            }
            Self::Shutdown(fd, how) => {
                let names = ["SHUT_RD", "SHUT_WR", "SHUT_RDWR"];
                let name = usize::try_from(*how).ok().and_then(|how| names.get(how));
                match name {
                    Some(name) => write!(f, "shutdown({fd}, {name})"),
                    None => write!(f, "shutdown({fd}, {how})"),
                }
            }
            Self::Close(fd) => write!(f, "close({fd})"),
            Self::Set(fd, level, name, value) => {
                let option = option_text(*level, *name);
                write!(f, "setsockopt({fd}, {option}, [{value}], 4)")
            }
            Self::Linger(fd, on, secs) => write!(
                f,
                "setsockopt({fd}, SOL_SOCKET, SO_LINGER, {{onoff={on}, linger={secs}}}, 8)"
            ),
            Self::Get(fd, level, name) => {
                let option = option_text(*level, *name);
                write!(f, "getsockopt({fd}, {option}, [...], [4])")
            }
            Self::Ioctl(fd, request) => {
                let name = match *request {
                    SIOCINQ => "SIOCINQ",
                    SIOCOUTQ => "SIOCOUTQ",
                    SIOCOUTQNSD => "SIOCOUTQNSD",
                    _ => "?",
                };
                write!(f, "ioctl({fd}, {name}, [...])")
            }
        }
    }
}

impl fmt::Display for FuzzEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call) => call.fmt(f),
            // TSvals of the side under test are shown as 100 (`EventOutcome` in `side.rs`).
            Self::Inject(inject) => write!(f, "< {}", segment_text(&inject.to_wire(0, 0, 100))),
        }
    }
}
