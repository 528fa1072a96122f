//! What a script says, as values.

use std::fmt;

use crate::error::Pos;
use crate::tcp_option::TcpOption;

/// Nanoseconds, of the script's clock (0 at its start) or between two events.
pub type Nanos = i64;

/// A whole script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// The `--key=value` lines.
    pub settings: Vec<Setting>,
    /// What happens, in order.
    pub events: Vec<Event>,
}

/// One `--key=value`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Where it is.
    pub pos: Pos,
    /// Without the dashes.
    pub key: String,
    /// Empty for a bare `--key`.
    pub value: String,
}

/// One line of the trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Where it begins.
    pub pos: Pos,
    /// When it is to happen.
    pub time: Time,
    /// Its text, white space folded, for the trace.
    pub text: String,
    /// What happens.
    pub action: Action,
}

/// When an event happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// `*`: whenever it does.
    Any,
    /// `1.5`: since the script's start.
    At(Nanos),
    /// `1.5~1.7`.
    Between(Nanos, Nanos),
    /// `+.1`: since the last event.
    After(Nanos),
    /// `+.1~+.2`.
    AfterBetween(Nanos, Nanos),
}

/// What an event does.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// `< ...`: a packet that comes from the remote end.
    Inject(Packet),
    /// `> ...`: a packet that the stack must send.
    Expect(Packet),
    /// A system call.
    Call(Call),
    /// A command between back quotes.
    Shell(String),
    /// `%{ ... }%`; also where the code begins.
    Code(String, Pos),
}

/// A packet.
#[derive(Clone, PartialEq, Debug)]
pub struct Packet {
    /// The IP header's part.
    pub ip: IpSpec,
    /// The rest.
    pub body: Body,
}

/// What a script says about an IP header: what is absent is not compared, and is zero when sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpSpec {
    /// ECN codepoint.
    pub ecn: Option<EcnSpec>,
    /// Type of service or traffic class, ECN bits included.
    pub tos: Option<u8>,
    /// TTL or hop limit.
    pub ttl: Option<u8>,
    /// IPv6 flow label.
    pub flow_label: Option<u32>,
}

/// Which ECN codepoint (RFC 3168 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EcnSpec {
    /// This one.
    Is(u8),
    /// ECT(0) or ECT(1).
    Ect01,
}

/// What follows the IP header.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// A segment.
    Tcp(Segment),
    /// A datagram of so many bytes.
    Udp(u16),
    /// An ICMP message.
    Icmp(Icmp),
}

/// A TCP segment.
#[derive(Clone, PartialEq, Debug)]
pub struct Segment {
    /// Flag bits, AE included.
    pub flags: u16,
    /// First sequence number, relative to the sender's ISN (absolute on its first SYN).
    pub seq: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Acknowledgement number, relative.
    pub ack: Option<u32>,
    /// Window as on the wire.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// The options in order; absent is `<...>`, any.
    pub options: Option<Vec<TcpOption>>,
}

/// An ICMP message, in its IPv4 or IPv6 form as the run has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Icmp {
    /// `unreachable`, `packet_too_big`, `time_exceeded`, `source_quench`...
    pub kind: String,
    /// `frag_needed`, `host_unreachable`...
    pub code: Option<String>,
    /// MTU told.
    pub mtu: Option<u32>,
    /// What the message quotes.
    pub quoted: Option<Quoted>,
}

/// The packet of ours that an ICMP message quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quoted {
    /// A segment: its relative sequence number and payload length.
    Tcp(u32, u32),
    /// A datagram of so many bytes.
    Udp(u16),
}

/// A system call.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// When it returns, if it blocks; as the event's time counts.
    pub end: Option<Nanos>,
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub args: Vec<Expr>,
    /// What it returns.
    pub result: Expr,
    /// The errno's name, for -1.
    pub errno: Option<String>,
}

/// An argument.
#[derive(Clone, PartialEq, Debug)]
pub struct Expr {
    /// Where it is.
    pub pos: Pos,
    /// What it is.
    pub kind: ExprKind,
}

/// The forms of an argument.
#[derive(Clone, PartialEq, Debug)]
pub enum ExprKind {
    /// `...`
    Any,
    /// A number.
    Int(i64),
    /// A name, of a constant or of a structure's part.
    Word(String),
    /// `"text"`.
    Text(Vec<u8>),
    /// `htons(8080)`.
    Apply(String, Vec<Expr>),
    /// `[a, b]`.
    Array(Vec<Expr>),
    /// `{name=value, value, name(n)=value}`.
    Struct(Vec<Field>),
    /// `a|b|c`.
    Or(Vec<Expr>),
}

/// A part of a structure.
#[derive(Clone, PartialEq, Debug)]
pub struct Field {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What stands in parentheses behind the name.
    pub count: Option<Expr>,
    /// Its value.
    pub value: Expr,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Any => f.write_str("*"),
            Self::At(at) => write!(f, "{}", Seconds(at)),
            Self::Between(from, to) => write!(f, "{}~{}", Seconds(from), Seconds(to)),
            Self::After(gap) => write!(f, "+{}", Seconds(gap)),
            Self::AfterBetween(from, to) => write!(f, "+{}~+{}", Seconds(from), Seconds(to)),
        }
    }
}

/// Nanoseconds shown as seconds with microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let micros = self.0.unsigned_abs() / 1000;
        write!(f, "{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}
