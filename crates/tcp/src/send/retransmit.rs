//! Sending again, by the rules of sending: as super-segments, within cwnd, the pacing rate and the
//! small queue, and not while the first copy has not left the host.

use fullsend_wire::tcp::TcpFlags;

use super::build::Draft;
use super::small_queue::Handout;
use crate::Cx;
use crate::connection::Connection;
use crate::recovery::{Phase, Retransmit};

impl Connection {
    #[inline(never)]
    pub(super) fn retransmission(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        let room = self.cwnd.cwnd.saturating_sub(self.snd.rtx.in_flight());
        if room == 0 || self.pacing_holds(cx) || self.first_copy_is_in_host(cx) {
            return None;
        }
        let mut limit = room.min(self.max_segs(cx));
        if cx.legacy.max_burst {
            limit = limit.min(self.flow(cx.now).latch_burst());
        }
        let len = limit.saturating_mul(self.snd.mss.bytes());
        if self.small_queue_holds(cx, len, Handout::Retransmission) {
            self.throttle(cx);
            return None;
        }
        let again = self.take_lost(cx, limit)?;
        self.count_retransmission(cx, &again);
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_add(again.truesize);
        let len = again.payload.len() as u32;
        let departure = self.depart(cx, len, again.segs);
        if again.seq == self.snd.una {
            // The repair deserves a round trip of its own before the timer judges it.
            self.arm_rto(cx);
        }
        let mut flags = TcpFlags::ACK;
        if len > 0 {
            flags = flags.union(TcpFlags::PSH);
        }
        if again.fin {
            flags = flags.union(TcpFlags::FIN);
        }
        Some(Draft {
            seq: again.seq,
            flags,
            payload: again.payload,
            segs: again.segs,
            truesize: again.truesize,
            departure,
            fresh: false,
        })
    }

    /// The next lost range, with a number of its own.
    fn take_lost(&mut self, cx: &Cx<'_>, limit: u32) -> Option<Retransmit> {
        let is_empty = self.snd.wmem_inflight == 0;
        let Some(flow) = &mut self.snd.flow else {
            // No text yet: nothing to ask the host for.
            return self.snd.rtx.next_retransmit(cx.now, limit, 0, |_| false);
        };
        let in_host = |number| !is_empty && flow.is_in_host(number);
        let number = flow.next_number();
        let again = self.snd.rtx.next_retransmit(cx.now, limit, number, in_host);
        if again.as_ref().is_some_and(|again| again.truesize > 0) {
            flow.on_handed_out();
        }
        again
    }

    /// What is to be sent again stands in the host's queues still: it is not lost but late, and
    /// its completion will ask once more.
    fn first_copy_is_in_host(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(flow) = &self.snd.flow else {
            return false;
        };
        let number = self.snd.rtx.next_lost_number();
        let in_host = self.snd.wmem_inflight > 0 && number.is_some_and(|n| flow.is_in_host(n));
        if in_host {
            cx.mib.spurious_rtx_host_queues += 1;
            self.throttle(cx);
        }
        in_host
    }

    fn count_retransmission(&mut self, cx: &mut Cx<'_>, again: &Retransmit) {
        cx.mib.retrans_segs += u64::from(again.segs);
        match self.recovery.phase() {
            Phase::Loss => cx.mib.slow_start_retrans += u64::from(again.segs),
            _ => cx.mib.fast_retrans += u64::from(again.segs),
        }
        self.stats.total_retrans = self.stats.total_retrans.wrapping_add(again.segs);
        self.stats.bytes_retrans += again.payload.len() as u64;
        let stamp = self.ts.value(cx.now);
        self.recovery.on_retransmit(stamp, again.segs);
    }
}
