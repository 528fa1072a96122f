//! What a connection shows of itself beyond `TCP_INFO`: the columns of `ss -mo`.

use fullsend_units::{Instant, Nanos};

use crate::congestion::CcInfo;
use crate::{Connection, Cx, FlowReport, State, TcpInfo};

/// Memory of one connection, bytes, under the names of `ss -m`'s `skmem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SkMem {
    /// `r`: held by what arrived and is not read.
    pub rmem_alloc: u64,
    /// `rb`: receive buffer.
    pub rcvbuf: u64,
    /// `t`: handed to the queue or device, and not completed.
    pub wmem_alloc: u64,
    /// `tb`: send buffer.
    pub sndbuf: u64,
    /// `w`: what was written and is not acknowledged, as `SO_SNDBUF` is charged for it.
    pub wmem_queued: u64,
    /// The blocks that all of it lies in, which `tcp_mem` is charged for.
    pub truesize: u64,
}

/// What a connection's next timer is for, in the words of `ss -o`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerKind {
    /// Retransmission.
    On,
    /// Keepalive probe, or the end of an orphan.
    Keepalive,
    /// The end of TIME-WAIT.
    TimeWait,
    /// Window probe.
    Persist,
}

impl TimerKind {
    /// As `ss` prints it.
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
    /// What it is for.
    pub kind: TimerKind,
    /// Until it fires.
    pub left: Nanos,
    /// How often it has fired in a row.
    pub retransmits: u8,
}

/// A connection, as `ss -tinmo` shows one.
#[derive(Clone, PartialEq, Debug)]
pub struct Inspection {
    /// Where it stands.
    pub state: State,
    /// Bytes that arrived and are not read.
    pub recv_q: u64,
    /// Bytes written and not acknowledged.
    pub send_q: u64,
    /// `TCP_INFO`.
    pub info: TcpInfo,
    /// Its memory.
    pub memory: SkMem,
    /// The timer that fires next, other than that of a delayed acknowledgement.
    pub timer: Option<TimerInfo>,
    /// `TCP_CONGESTION`.
    pub congestion: &'static str,
    /// What it tells of itself.
    pub congestion_info: CcInfo,
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// What it sent, and what held it back.
    pub report: FlowReport,
}

impl Connection {
    /// Everything that a tool shows of a connection.
    pub fn inspect(&self, cx: &Cx<'_>) -> Inspection {
        let queued = u64::from(self.snd.text_in_flight()) + self.snd.queue.len() as u64;
        Inspection {
            state: self.state(),
            recv_q: self.rcv.queue.readable() as u64,
            send_q: queued,
            info: self.info(cx),
            memory: self.memory(),
            timer: self.timer_info(cx.now),
            congestion: self.cc.name(),
            congestion_info: self.cc_info(),
            nodelay: self.settings.nodelay,
            cork: self.settings.cork,
            report: self.flow_report(cx.now),
        }
    }

    /// What it holds.
    pub fn memory(&self) -> SkMem {
        SkMem {
            rmem_alloc: self.rcv.queue.truesize() as u64,
            rcvbuf: self.rcv.window.rcvbuf().into(),
            wmem_alloc: self.snd.wmem_inflight.into(),
            sndbuf: self.snd.sndbuf.into(),
            wmem_queued: self.wmem_queued() as u64,
            truesize: self.truesize() as u64,
        }
    }

    fn timer_info(&self, now: Instant) -> Option<TimerInfo> {
        let at = self.timers.first();
        if at == Instant::FAR_FUTURE {
            return None;
        }
        let (kind, retransmits) = if self.timers.is_idle_first() {
            (TimerKind::Keepalive, self.timers.probes)
        } else if self.timers.is_probing() {
            (TimerKind::Persist, self.timers.probes)
        } else {
            (TimerKind::On, self.rtt.backoff())
        };
        Some(TimerInfo {
            kind,
            left: at.since(now),
            retransmits,
        })
    }
}
