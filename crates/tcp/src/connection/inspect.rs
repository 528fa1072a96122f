//! The values of a connection that tools show.

use fullsend_wire::Instant;

use super::Connection;
use crate::{Cx, FlowReport, Inspection, SkMem, TimerInfo, TimerKind};

impl Connection {
    /// Returns the report of this flow up to `now`.
    pub fn flow_report(&self, now: Instant) -> FlowReport {
        self.snd.flow_report(now)
    }

    /// Returns everything that a tool shows of a connection.
    pub fn inspect(&self, cx: &Cx<'_>) -> Inspection {
        let queued = u64::from(self.snd.bytes_in_flight()) + self.snd.unsent_bytes() as u64;
        Inspection {
            state: self.state(),
            recv_q: self.rcv.readable() as u64,
            send_q: queued,
            info: self.info(cx),
            memory: self.memory(),
            timer: self.timer_info(cx.now),
            congestion: self.congestion.algorithm().name(),
            congestion_info: self.cc_info(),
            nodelay: self.settings.nodelay,
            cork: self.settings.cork,
            report: self.flow_report(cx.now),
        }
    }

    /// Returns the memory that the connection holds.
    pub fn memory(&self) -> SkMem {
        SkMem {
            rmem_alloc: self.rcv.truesize() as u64,
            rcvbuf: self.rcv.rcvbuf().into(),
            wmem_alloc: self.snd.wmem_inflight().into(),
            sndbuf: self.snd.sndbuf().into(),
            wmem_queued: self.wmem_queued() as u64,
            truesize: self.truesize() as u64,
        }
    }

    fn timer_info(&self, now: Instant) -> Option<TimerInfo> {
        let at = self.timers.earliest();
        if at == Instant::FAR_FUTURE {
            return None;
        }
        let (kind, retransmits) = if self.timers.is_idle_first() {
            (TimerKind::Keepalive, self.timers.probes)
        } else if self.timers.is_window_probing() {
            (TimerKind::Persist, self.timers.probes)
        } else {
            (TimerKind::On, self.rtt.backoff())
        };
        Some(TimerInfo {
            kind,
            remaining: at.since(now),
            retransmits,
        })
    }
}
