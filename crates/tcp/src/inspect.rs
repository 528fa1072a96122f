//! The state of a connection that tools show beyond `TCP_INFO`: the columns of `ss -mo`.

use fullsend_wire::Nanos;

use crate::congestion::CcInfo;
use crate::{FlowReport, State, TcpInfo};

/// The memory of one connection in bytes, under the names of `ss -m`'s `skmem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SkMem {
    /// `r`: held by data received and not read.
    pub rmem_alloc: u64,
    /// `rb`: the receive buffer.
    pub rcvbuf: u64,
    /// `t`: passed to the queue or device and not completed.
    pub wmem_alloc: u64,
    /// `tb`: the send buffer.
    pub sndbuf: u64,
    /// `w`: charged to `SO_SNDBUF` for data written and not acknowledged.
    pub wmem_queued: u64,
    /// The blocks that hold all of this data, which `tcp_mem` is charged for.
    pub truesize: u64,
}

/// The purpose of a connection's next timer, under the names of `ss -o`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimerKind {
    /// Retransmission.
    On,
    /// Keepalive probe, or the timeout of an orphan.
    Keepalive,
    /// The end of TIME-WAIT.
    TimeWait,
    /// Window probe.
    Persist,
}

impl TimerKind {
    /// Returns the name that `ss` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Keepalive => "keepalive",
            Self::TimeWait => "timewait",
            Self::Persist => "persist",
        }
    }
}

/// A running timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerInfo {
    /// The purpose of the timer.
    pub kind: TimerKind,
    /// Time until the timer fires.
    pub remaining: Nanos,
    /// Number of consecutive expirations of the timer.
    pub retransmits: u8,
}

/// A connection as `ss -tinmo` shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct Inspection {
    /// The state.
    pub state: State,
    /// Bytes received and not read.
    pub recv_q: u64,
    /// Bytes written and not acknowledged.
    pub send_q: u64,
    /// `TCP_INFO`.
    pub info: TcpInfo,
    /// The memory that the connection holds.
    pub memory: SkMem,
    /// The timer that fires next, except that of a delayed acknowledgement.
    pub timer: Option<TimerInfo>,
    /// `TCP_CONGESTION`.
    pub congestion: &'static str,
    /// The state of the congestion control.
    pub congestion_info: CcInfo,
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// The sends of the connection, and the rules that limited them.
    pub report: FlowReport,
}
