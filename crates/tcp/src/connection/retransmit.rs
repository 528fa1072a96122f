//! Retransmission, under the limits of sending: as super-segments, within cwnd, the pacing rate and
//! TCP Small Queues, and not before the original has left the host.

use fullsend_wire::Instant;
use fullsend_wire::tcp::TcpFlags;

use super::Connection;
use super::build::SegmentPlan;
use crate::Cx;
use crate::recovery::{CaState, Retransmit};
use crate::send::Transmission;

impl Connection {
    /// Returns the next lost data again, as far as the limits admit it.
    pub(crate) fn retransmission(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        let room = self
            .congestion
            .cwnd()
            .saturating_sub(self.recovery.rtx.in_flight());
        if room == 0
            || self.pacing_holds(cx)
            || self
                .snd
                .is_original_in_host_queue(cx.mib, &self.recovery.rtx)
        {
            return None;
        }
        let mut limit = room.min(self.snd.max_segs(cx, self.path()));
        if self.is_urgent() {
            limit = 1;
        }
        if cx.legacy.in_force().max_burst {
            limit = limit.min(self.snd.limit_burst(cx.now));
        }
        let len = limit.saturating_mul(self.snd.mss().bytes());
        if self.snd.small_queue_holds(
            cx,
            self.path(),
            (len, self.recovery.rtx.len()),
            Transmission::Retransmission,
        ) {
            self.snd.throttle(cx.mib);
            return None;
        }
        let retransmit = self.snd.take_lost(cx, &mut self.recovery.rtx, limit)?;
        let tsval_lag = self.count_retransmission(cx, &retransmit);
        self.snd.charge_wmem(retransmit.truesize);
        let departure = self.schedule_retransmission(cx, &retransmit);
        if retransmit.seq == self.snd.una() {
            self.restart_rto_for_head(cx);
        }
        Some(SegmentPlan {
            tsval_lag,
            ..retransmission_plan(retransmit, departure)
        })
    }

    /// Retransmits where F-RTO would have sent new data and none could be sent.
    #[cold]
    pub(crate) fn retransmit_after_frto(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        self.recovery.end_frto(self.snd.nxt());
        if self.recovery.sends_new_data_first() {
            return None;
        }
        self.retransmission(cx)
    }

    /// Returns a tail loss probe (RFC 8985 7.3): one segment of new data, even beyond cwnd, else
    /// the last segment again.
    #[cold]
    pub(crate) fn tail_probe(&mut self, cx: &mut Cx<'_>) -> Option<SegmentPlan> {
        self.snd.pending_mut().clear_tail_probe();
        if self.recovery.rtx.is_empty() || self.pacing_holds(cx) {
            return None;
        }
        let snd = &self.snd;
        // A FIN without data takes up one byte of the window.
        let least = snd.mss().bytes().min(snd.unsent_bytes() as u32).max(1);
        if snd.has_unsent() && snd.usable_window() >= least {
            let decision = self.snd.force_one(self.record_left()).ok()?;
            let plan = self.send_data(cx, &decision);
            self.snd.on_admitted();
            self.recovery.on_tail_probe_sent(self.snd.nxt(), false);
            cx.mib.loss_probes += 1;
            self.arm_rto(cx);
            return Some(plan);
        }
        let retransmit = self.snd.retransmit_tail(cx, &mut self.recovery.rtx)?;
        self.snd.charge_wmem(retransmit.truesize);
        self.count_segs(cx, &retransmit);
        let departure = self.schedule_retransmission(cx, &retransmit);
        self.recovery.on_tail_probe_sent(self.snd.nxt(), true);
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
            && self.snd.acceptable_seq() == self.snd.nxt();
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
