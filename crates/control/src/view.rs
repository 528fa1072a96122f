//! The contents of replies. Names and units never change.

use fullsend_stack::{LinkStats, OwnAddress, QdiscStats, SockStat, SocketInfo, SocketKind};
use fullsend_tcp::{FlowReport, Histogram, Inspection, SendLimit, SkMem, TimerInfo};
use serde::{Deserialize, Serialize};

/// All counters since the start of the stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// The time at which the stack was created, in ns since the Unix epoch, which identifies the stack.
    pub started: u64,
    /// Time since the stack was created, in ns.
    pub uptime_ns: u64,
    /// The names, as in `nstat`, and the values.
    pub counters: Vec<(String, u64)>,
}

/// Totals with the names of `/proc/net/sockstat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the kernel's names")]
pub struct SockStatView {
    pub inuse: u64,
    pub orphan: u64,
    pub tw: u64,
    pub alloc: u64,
    /// Memory in pages of 4096 bytes.
    pub mem: u64,
}

impl From<SockStat> for SockStatView {
    fn from(stat: SockStat) -> Self {
        Self {
            inuse: stat.inuse as u64,
            orphan: stat.orphan as u64,
            tw: stat.tw as u64,
            alloc: stat.alloc as u64,
            mem: stat.mem,
        }
    }
}

/// An address of the stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AddressView {
    /// The name of the address's link.
    pub link: String,
    /// The address with its prefix length.
    pub address: String,
    /// `tentative`, `preferred` or `dadfailed`, as `ip address` shows it.
    pub state: String,
}

impl AddressView {
    pub(crate) fn new(link: &str, own: &OwnAddress) -> Self {
        Self {
            link: link.to_owned(),
            address: own.cidr.to_string(),
            state: own.state.name().to_owned(),
        }
    }
}

/// Packets and bytes that passed a link since the start of the stack, including link headers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see fullsend_stack::LinkStats")]
pub struct LinkView {
    pub link: String,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_wire_packets: u64,
    pub tx_wire_bytes: u64,
}

impl LinkView {
    /// Returns the view of a link with its name.
    pub fn new(link: &str, stats: &LinkStats) -> Self {
        Self {
            link: link.to_owned(),
            rx_packets: stats.rx_packets,
            rx_bytes: stats.rx_bytes,
            tx_packets: stats.tx_packets,
            tx_bytes: stats.tx_bytes,
            tx_wire_packets: stats.tx_wire_packets,
            tx_wire_bytes: stats.tx_wire_bytes,
        }
    }
}

/// The queueing discipline in front of a link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see fullsend_stack::QdiscStats")]
pub struct QdiscView {
    pub link: String,
    /// The configuration in tc's syntax.
    pub config: String,
    pub sent_bytes: u64,
    pub sent_packets: u64,
    pub dropped: u64,
    pub overlimits: u64,
    pub backlog_bytes: u64,
    pub backlog_packets: u64,
    /// All statistics as `tc -s qdisc` prints them.
    pub text: String,
}

impl QdiscView {
    pub(crate) fn new(link: &str, stats: &QdiscStats) -> Self {
        Self {
            link: link.to_owned(),
            config: stats.config.to_string(),
            sent_bytes: stats.sent_bytes,
            sent_packets: stats.sent_packets,
            dropped: stats.dropped,
            overlimits: stats.overlimits,
            backlog_bytes: stats.backlog_bytes,
            backlog_packets: stats.backlog_packets.into(),
            text: stats.to_string(),
        }
    }
}

/// A socket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SocketView {
    /// The id for `set`; empty in TIME-WAIT.
    pub id: String,
    /// `tcp` or `udp`.
    pub netid: String,
    /// The state, with the names of `ss`.
    pub state: String,
    /// `user`, `listener`, `orphan` or `host`.
    pub owner: String,
    /// The local address and port.
    pub local: String,
    /// The peer's address and port.
    pub peer: Option<String>,
    /// Bytes that wait to be read; for a listener, connections that wait to be accepted.
    pub recv_q: u64,
    /// Bytes that are not acknowledged; for a listener, its backlog.
    pub send_q: u64,
    /// The next timer to fire.
    pub timer: Option<TimerView>,
    /// Memory of a connection. This and the following members are only present for connections.
    pub skmem: Option<SkMemView>,
    /// `TCP_CONGESTION`.
    pub congestion: Option<String>,
    /// State of the congestion control in the format of `ss -i`.
    pub congestion_info: Option<String>,
    /// `TCP_NODELAY`.
    #[serde(default)]
    pub nodelay: bool,
    /// `TCP_CORK`.
    #[serde(default)]
    pub cork: bool,
    /// `TCP_INFO`: names and values of its fields.
    pub tcp_info: Option<serde_json::Map<String, serde_json::Value>>,
    /// The sends of the connection and the limits that delayed them.
    pub why: Option<FlowReportView>,
}

/// A running timer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimerView {
    /// `on`, `keepalive`, `timewait` or `persist`.
    pub kind: String,
    /// Milliseconds until it fires.
    pub left_ms: u64,
    /// Number of consecutive expirations.
    pub retransmits: u8,
}

impl From<TimerInfo> for TimerView {
    fn from(timer: TimerInfo) -> Self {
        Self {
            kind: timer.kind.name().to_owned(),
            left_ms: timer.remaining.as_millis(),
            retransmits: timer.retransmits,
        }
    }
}

/// Memory of a connection, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see fullsend_tcp::SkMem")]
pub struct SkMemView {
    pub rmem_alloc: u64,
    pub rcvbuf: u64,
    pub wmem_alloc: u64,
    pub sndbuf: u64,
    pub wmem_queued: u64,
}

impl From<SkMem> for SkMemView {
    fn from(memory: SkMem) -> Self {
        Self {
            rmem_alloc: memory.rmem_alloc,
            rcvbuf: memory.rcvbuf,
            wmem_alloc: memory.wmem_alloc,
            sndbuf: memory.sndbuf,
            wmem_queued: memory.wmem_queued,
        }
    }
}

/// The data that a flow has sent, and the limits that delayed it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlowReportView {
    /// Distribution of the bytes of each transmission: lower bounds of power-of-two buckets, and
    /// counts.
    pub send_size: Vec<(u32, u32)>,
    /// Distribution of the bytes that the limits still allowed at each transmission, in the same
    /// format.
    pub headroom: Vec<(u32, u32)>,
    /// The limits that delayed the flow.
    pub limits: Vec<SendLimitView>,
    /// The limit that delays the flow now.
    pub held_by: Option<String>,
}

/// The effect of one limit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendLimitView {
    /// The name of the limit.
    pub limit: String,
    /// Number of transmissions whose size it determined.
    pub sends: u32,
    /// Time for which the limit delayed the flow, in ns.
    pub time_ns: u64,
}

impl From<&FlowReport> for FlowReportView {
    fn from(report: &FlowReport) -> Self {
        let buckets = |histogram: &Histogram| histogram.iter().collect();
        let part = |limit: SendLimit| SendLimitView {
            limit: limit.name().to_owned(),
            sends: report.sends(limit),
            time_ns: report.time(limit).as_nanos(),
        };
        Self {
            send_size: buckets(&report.send_size),
            headroom: buckets(&report.headroom),
            limits: SendLimit::ALL.into_iter().map(part).collect(),
            held_by: report.limited_by.map(|limit| limit.name().to_owned()),
        }
    }
}

impl From<SocketInfo> for SocketView {
    fn from(socket: SocketInfo) -> Self {
        let tcp = socket.tcp.as_deref();
        let fields = |tcp: &Inspection| {
            let fields = tcp.info.fields();
            fields
                .map(|(name, n)| (name.to_owned(), n.into()))
                .collect()
        };
        Self {
            id: match socket.id {
                0 => String::new(),
                id => format!("{id:x}"),
            },
            netid: match socket.kind {
                SocketKind::Udp => "udp".to_owned(),
                _ => "tcp".to_owned(),
            },
            state: socket.state.to_owned(),
            owner: socket.owner.name().to_owned(),
            local: socket.local.to_string(),
            peer: socket.remote.map(|addr| addr.to_string()),
            recv_q: socket.recv_q,
            send_q: socket.send_q,
            timer: socket.timer.map(TimerView::from),
            skmem: tcp.map(|tcp| tcp.memory.into()),
            congestion: tcp.map(|tcp| tcp.congestion.to_owned()),
            congestion_info: tcp
                .map(|tcp| tcp.congestion_info.to_string())
                .filter(|text| !text.is_empty()),
            nodelay: tcp.is_some_and(|tcp| tcp.nodelay),
            cork: tcp.is_some_and(|tcp| tcp.cork),
            tcp_info: tcp.map(fields),
            why: tcp.map(|tcp| FlowReportView::from(&tcp.report)),
        }
    }
}

/// The result of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CaptureSummary {
    /// Number of packets captured.
    pub packets: u64,
    /// Number of packets dropped because the client was too slow.
    pub dropped: u64,
}
