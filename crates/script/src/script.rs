//! The parsed form of a script.

use std::fmt;

use crate::error::Pos;
use crate::tcp_option::TcpOption;

/// Nanoseconds of the script's clock (0 at its start), or between two events.
pub type Nanos = i64;

/// A script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// The `--key=value` lines.
    pub settings: Vec<Setting>,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// A `--key=value` line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Position of the line.
    pub pos: Pos,
    /// The key, without the dashes.
    pub key: String,
    /// The value; empty for a bare `--key`.
    pub value: String,
}

/// One event of the trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Position of its start.
    pub pos: Pos,
    /// The time of the event.
    pub time: Time,
    /// The event's source text with white space folded, for the trace.
    pub text: String,
    /// The action.
    pub action: Action,
}

/// The time of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// `*`: any time.
    Any,
    /// `1.5`: time since the script's start.
    At(Nanos),
    /// `1.5~1.7`: a range of times since the script's start.
    Between(Nanos, Nanos),
    /// `+.1`: time since the last event.
    After(Nanos),
    /// `+.1~+.2`: a range of times since the last event.
    AfterBetween(Nanos, Nanos),
}

/// The action of an event.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// `< ...`: a packet from the remote end.
    Inject(Packet),
    /// `> ...`: a packet that the stack must send.
    Expect(Packet),
    /// A system call.
    Call(Call),
    /// A command between back quotes.
    Shell(String),
    /// `%{ ... }%`: a code block, with its position.
    Code(String, Pos),
}

/// A packet.
#[derive(Clone, PartialEq, Debug)]
pub struct Packet {
    /// Fields of the IP header.
    pub ip: IpSpec,
    /// The part after the IP header.
    pub body: Body,
}

/// The fields of an IP header; an absent field is not compared, and is zero when sent.
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

/// An ECN codepoint (RFC 3168 5) to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EcnSpec {
    /// The codepoint with this number.
    Is(u8),
    /// ECT(0) or ECT(1).
    Ect01,
}

/// The part of a packet after the IP header.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// A TCP segment.
    Tcp(Segment),
    /// A UDP datagram with this payload length in bytes.
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
    /// Length of the payload, in bytes.
    pub len: u32,
    /// Acknowledgement number, relative.
    pub ack: Option<u32>,
    /// Window field, not scaled.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// The options in order; `None` is `<...>`, any options.
    pub options: Option<Vec<TcpOption>>,
}

/// An ICMP message, sent in the form of the run's IP version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Icmp {
    /// `unreachable`, `packet_too_big`, `time_exceeded`, `source_quench`...
    pub kind: String,
    /// `frag_needed`, `host_unreachable`...
    pub code: Option<String>,
    /// The MTU field, in bytes.
    pub mtu: Option<u32>,
    /// The packet that the message quotes.
    pub quoted: Option<Quoted>,
}

/// The packet of the stack that an ICMP message quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quoted {
    /// A segment: its relative sequence number and payload length.
    Tcp(u32, u32),
    /// A datagram with this payload length in bytes.
    Udp(u16),
}

/// A system call.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// The time at which a blocking call returns, of the same kind as the event's time.
    pub end: Option<Nanos>,
    /// The function's name.
    pub name: String,
    /// The arguments.
    pub args: Vec<Expr>,
    /// The expected result.
    pub result: Expr,
    /// The name of the errno, if the result is -1.
    pub errno: Option<String>,
}

/// An argument, or a part of one.
#[derive(Clone, PartialEq, Debug)]
pub struct Expr {
    /// The position of the expression.
    pub pos: Pos,
    /// The form and value of the expression.
    pub kind: ExprKind,
}

/// The forms of an argument.
#[derive(Clone, PartialEq, Debug)]
pub enum ExprKind {
    /// `...`: any value.
    Any,
    /// A number.
    Int(i64),
    /// The name of a constant or of a field.
    Word(String),
    /// `"text"`: a string of bytes.
    Text(Vec<u8>),
    /// `htons(8080)`: a function applied to arguments.
    Apply(String, Vec<Expr>),
    /// `[a, b]`: an array.
    Array(Vec<Expr>),
    /// `{name=value, value, name(n)=value}`: a structure.
    Struct(Vec<Field>),
    /// `a|b|c`: flags.
    Or(Vec<Expr>),
}

/// A field of a structure.
#[derive(Clone, PartialEq, Debug)]
pub struct Field {
    /// The field's name, if it has one.
    pub name: Option<String>,
    /// The number in parentheses after the name.
    pub count: Option<Expr>,
    /// The field's value.
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

/// A time in nanoseconds, formatted as seconds with microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let micros = self.0.unsigned_abs() / 1000;
        write!(f, "{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}
