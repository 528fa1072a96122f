//! Retransmission, under the limits of sending: as super-segments, within cwnd, the pacing rate and
//! TCP Small Queues, and not before the original has left the host.

use fullsend_wire::Instant;
use fullsend_wire::tcp::TcpFlags;

use super::BlockedBy;
use super::build::SegmentPlan;
use super::small_queue::Transmission;
use crate::Cx;
use crate::connection::Connection;
use crate::recovery::{CaState, Retransmit};

impl Connection {
    #[inline(never)]
    pub(super) fn retransmission(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        let room = self
            .congestion
            .cwnd()
            .saturating_sub(self.recovery.rtx.in_flight());
        if room == 0 || self.pacing_holds(cx) || self.is_original_in_host_queue(cx) {
            return None;
        }
        let mut limit = room.min(self.snd.max_segs(cx, self.path()));
        if self.is_urgent() {
            limit = 1;
        }
        if cx.legacy.in_force().max_burst {
            limit = limit.min(self.snd.flow(cx.now).limit_burst());
        }
        let len = limit.saturating_mul(self.snd.mss.bytes());
        if self.small_queue_holds(cx, len, Transmission::Retransmission) {
            self.snd.throttle(cx.mib);
            return None;
        }
        let retransmit = self.take_lost(cx, limit)?;
        let tsval_lag = self.count_retransmission(cx, &retransmit);
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_add(retransmit.truesize);
        let departure = self.schedule_retransmission(cx, &retransmit);
        if retransmit.seq == self.snd.una {
            self.restart_rto_for_head(cx);
        }
        Some(SegmentPlan {
            tsval_lag,
            ..retransmission_plan(retransmit, departure)
        })
    }

    /// Retransmits where F-RTO would have sent new data and none could be sent.
    #[cold]
    pub(super) fn retransmit_after_frto(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        self.recovery.end_frto(self.snd.nxt);
        if self.recovery.sends_new_data_first() {
            return None;
        }
        self.retransmission(cx)
    }

    /// Returns a tail loss probe (RFC 8985 7.3): one segment of new data, even beyond cwnd, else the
    /// last segment again.
    #[cold]
    pub(super) fn tail_probe(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        self.snd.pending.clear_tail_probe();
        if self.recovery.rtx.is_empty() || self.pacing_holds(cx) {
            return None;
        }
        let snd = &self.snd;
        // A FIN without data takes up one byte of the window.
        let least = snd.mss.bytes().min(snd.queue.len() as u32).max(1);
        if snd.has_unsent() && snd.usable_window() >= least {
            let decision = self.snd.force_one(self.record_left()).ok()?;
            let plan = self.send_data(cx, &decision);
            if self.snd.blocked_by != BlockedBy::Autocork {
                self.snd.blocked_by = BlockedBy::Nothing;
            }
            self.recovery.on_tail_probe_sent(self.snd.nxt, false);
            cx.mib.loss_probes += 1;
            self.arm_rto(cx);
            return Some(plan);
        }
        let retransmit = self.retransmit_tail(cx)?;
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_add(retransmit.truesize);
        self.count_segs(cx, &retransmit);
        let departure = self.schedule_retransmission(cx, &retransmit);
        self.recovery.on_tail_probe_sent(self.snd.nxt, true);
        cx.mib.loss_probes += 1;
        self.arm_rto(cx);
        Some(retransmission_plan(retransmit, departure))
    }

    fn schedule_retransmission(&mut self, cx: &Cx<'_>, retransmit: &Retransmit) -> Instant {
        let sent_segs = self.stats.data_segs_out;
        let size = (retransmit.payload.len() as u32, retransmit.segs);
        let (snd, path) = self.sender_and_path();
        snd.schedule_departure(cx, path, size, sent_segs)
    }

    /// Returns the last segment for retransmission, unless it is still in the host's queues.
    fn retransmit_tail(&mut self, cx: &mut Cx<'_>) -> Option<Retransmit> {
        let is_empty = self.snd.wmem_inflight == 0;
        let sent_at = self.snd.departure_time(cx);
        let Some(flow) = &mut self.snd.flow else {
            return self.recovery.rtx.probe_tail(sent_at, 0);
        };
        let last = self.recovery.rtx.tail_number();
        if !is_empty && last.is_some_and(|number| flow.is_in_host_queue(number)) {
            cx.mib.spurious_rtx_host_queues += 1;
            return None;
        }
        let retransmit = self.recovery.rtx.probe_tail(sent_at, flow.next_number())?;
        if retransmit.truesize > 0 {
            flow.on_enqueued();
        }
        Some(retransmit)
    }

    /// Takes the next lost range, under a number of its own in the host's queues.
    fn take_lost(&mut self, cx: &Cx<'_>, limit: u32) -> Option<Retransmit> {
        let is_empty = self.snd.wmem_inflight == 0;
        // RACK and the rate samples count from the departure.
        let sent_at = self.snd.departure_time(cx);
        let Some(flow) = &mut self.snd.flow else {
            // Without data no segment has a number in the host's queues.
            return self
                .recovery
                .rtx
                .next_retransmit(sent_at, limit, 0, |_| false);
        };
        let in_host_queue = |number| !is_empty && flow.is_in_host_queue(number);
        let number = flow.next_number();
        let retransmit = self
            .recovery
            .rtx
            .next_retransmit(sent_at, limit, number, in_host_queue);
        if retransmit
            .as_ref()
            .is_some_and(|retransmit| retransmit.truesize > 0)
        {
            flow.on_enqueued();
        }
        retransmit
    }

    /// Returns whether the original is still in the host's queues: it is late, not lost, and its
    /// completion triggers another attempt.
    fn is_original_in_host_queue(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(flow) = &self.snd.flow else {
            return false;
        };
        let number = self.recovery.rtx.next_lost_number();
        let in_host_queue =
            self.snd.wmem_inflight > 0 && number.is_some_and(|n| flow.is_in_host_queue(n));
        if in_host_queue {
            cx.mib.spurious_rtx_host_queues += 1;
            self.snd.throttle(cx.mib);
        }
        in_host_queue
    }

    /// Counts a retransmission. Returns how far its TSval is behind the clock, in ticks.
    fn count_retransmission(&mut self, cx: &mut Cx<'_>, retransmit: &Retransmit) -> u32 {
        self.count_segs(cx, retransmit);
        match self.recovery.ca_state() {
            CaState::Loss => cx.mib.slow_start_retrans += u64::from(retransmit.segs),
            _ => cx.mib.fast_retrans += u64::from(retransmit.segs),
        }
        if self.uncommon.is_some() {
            self.forget_mtu_probe();
        }
        let clock = self.ts.value(cx.now);
        // While the peer's window ends before what was sent, an ACK of ours leaves with a sequence
        // number at the hole, and its TSval becomes TS.Recent (RFC 7323 4.3). So it is the clock's.
        let may_lag = self.negotiated.sack
            && self.negotiated.timestamps
            && self.snd.acceptable_seq() == self.snd.nxt;
        let lag = if may_lag {
            let age = cx.now.since(retransmit.first_sent);
            self.recovery.tsval_lag(clock, self.rtt.srtt(), age)
        } else {
            0
        };
        let stamp = clock.wrapping_sub(lag);
        // After a timeout the echo must give a round trip, even if it may be an earlier one's.
        let others = self.recovery.ca_state() != CaState::Loss
            && self.recovery.rtx.retrans_out() > retransmit.segs;
        self.recovery
            .on_retransmit(stamp, lag, retransmit.segs, others);
        lag
    }

    fn count_segs(&mut self, cx: &mut Cx<'_>, retransmit: &Retransmit) {
        cx.mib.retrans_segs += u64::from(retransmit.segs);
        self.stats.total_retrans = self.stats.total_retrans.wrapping_add(retransmit.segs);
        self.stats.bytes_retrans += retransmit.payload.len() as u64;
        if !retransmit.payload.is_empty() {
            self.stats.data_segs_out = self.stats.data_segs_out.wrapping_add(retransmit.segs);
        }
    }
}

fn retransmission_plan(retransmit: Retransmit, departure: Instant) -> SegmentPlan {
    let mut flags = TcpFlags::ACK;
    if retransmit.push {
        flags = flags.union(TcpFlags::PSH);
    }
    if retransmit.fin {
        flags = flags.union(TcpFlags::FIN);
    }
    SegmentPlan {
        seq: retransmit.seq,
        flags,
        payload: retransmit.payload,
        segs: retransmit.segs,
        truesize: retransmit.truesize,
        departure,
        tsval_lag: 0,
        is_new_data: false,
    }
}

#[cfg(test)]
mod tests;
