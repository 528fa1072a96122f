//! Retransmission, under the limits of sending: as super-segments, within cwnd, the pacing rate and
//! TCP Small Queues, and not before the original has left the host.

use fullsend_units::Instant;
use fullsend_wire::tcp::TcpFlags;

use super::Blocked;
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
        if self.is_urgent() {
            limit = 1;
        }
        if cx.legacy.max_burst {
            limit = limit.min(self.flow(cx.now).latch_burst());
        }
        let len = limit.saturating_mul(self.snd.mss.bytes());
        if self.small_queue_holds(cx, len, Handout::Retransmission) {
            self.throttle(cx);
            return None;
        }
        let again = self.take_lost(cx, limit)?;
        let stamp_lag = self.count_retransmission(cx, &again);
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_add(again.truesize);
        let departure = self.depart(cx, again.payload.len() as u32, again.segs);
        if again.seq == self.snd.una {
            self.give_repair_time(cx);
        }
        Some(Draft {
            stamp_lag,
            ..draft_again(again, departure)
        })
    }

    /// Retransmits where F-RTO would have sent new data and none could be sent.
    #[cold]
    pub(super) fn repair_after_all(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        self.give_up_frto();
        if self.recovery.sends_new_first() {
            return None;
        }
        self.retransmission(cx)
    }

    /// Returns a tail loss probe (RFC 8985 7.3): one segment of new data, even beyond cwnd, else the
    /// last segment again.
    #[cold]
    pub(super) fn tail_probe(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        self.out.tail_probe = false;
        if self.snd.rtx.is_empty() || self.pacing_holds(cx) {
            return None;
        }
        let snd = &self.snd;
        // A FIN without data takes up one byte of the window.
        let least = snd.mss.bytes().min(snd.queue.len() as u32).max(1);
        if snd.has_unsent() && snd.usable_window() >= least {
            let grant = self.force_one().ok()?;
            let draft = self.send_text(cx, &grant);
            if self.snd.blocked != Blocked::Autocork {
                self.snd.blocked = Blocked::No;
            }
            self.on_tail_probed(cx, false);
            return Some(draft);
        }
        let again = self.repeat_tail(cx)?;
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_add(again.truesize);
        self.count_segs(cx, &again);
        let departure = self.depart(cx, again.payload.len() as u32, again.segs);
        self.on_tail_probed(cx, true);
        Some(draft_again(again, departure))
    }

    /// Returns the last segment for retransmission, unless it is still in the host's queues.
    fn repeat_tail(&mut self, cx: &mut Cx<'_>) -> Option<Retransmit> {
        let is_empty = self.snd.wmem_inflight == 0;
        let sent_at = self.departs_at(cx);
        let Some(flow) = &mut self.snd.flow else {
            return self.snd.rtx.probe_tail(sent_at, 0);
        };
        let last = self.snd.rtx.tail_number();
        if !is_empty && last.is_some_and(|number| flow.is_in_host(number)) {
            cx.mib.spurious_rtx_host_queues += 1;
            return None;
        }
        let again = self.snd.rtx.probe_tail(sent_at, flow.next_number())?;
        if again.truesize > 0 {
            flow.on_handed_out();
        }
        Some(again)
    }

    /// Takes the next lost range, under a number of its own in the host's queues.
    fn take_lost(&mut self, cx: &Cx<'_>, limit: u32) -> Option<Retransmit> {
        let is_empty = self.snd.wmem_inflight == 0;
        // RACK and the rate samples count from the departure.
        let sent_at = self.departs_at(cx);
        let Some(flow) = &mut self.snd.flow else {
            // Without data no segment has a number in the host's queues.
            return self.snd.rtx.next_retransmit(sent_at, limit, 0, |_| false);
        };
        let in_host = |number| !is_empty && flow.is_in_host(number);
        let number = flow.next_number();
        let again = self
            .snd
            .rtx
            .next_retransmit(sent_at, limit, number, in_host);
        if again.as_ref().is_some_and(|again| again.truesize > 0) {
            flow.on_handed_out();
        }
        again
    }

    /// Returns whether the original is still in the host's queues: it is late, not lost, and its
    /// completion triggers another attempt.
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

    /// Counts a retransmission. Returns how far its TSval is behind the clock, in ticks.
    fn count_retransmission(&mut self, cx: &mut Cx<'_>, again: &Retransmit) -> u32 {
        self.count_segs(cx, again);
        match self.recovery.phase() {
            Phase::Loss => cx.mib.slow_start_retrans += u64::from(again.segs),
            _ => cx.mib.fast_retrans += u64::from(again.segs),
        }
        if self.extras.is_some() {
            self.forget_mtu_probe();
        }
        let lag = self.stamp_lag(cx.now, again.first_sent);
        let stamp = self.ts.value(cx.now).wrapping_sub(lag);
        // After a timeout the echo must give a round trip, even if it may be an earlier one's.
        let others =
            self.recovery.phase() != Phase::Loss && self.snd.rtx.retrans_out() > again.segs;
        self.recovery.on_retransmit(stamp, lag, again.segs, others);
        lag
    }

    fn count_segs(&mut self, cx: &mut Cx<'_>, again: &Retransmit) {
        cx.mib.retrans_segs += u64::from(again.segs);
        self.stats.total_retrans = self.stats.total_retrans.wrapping_add(again.segs);
        self.stats.bytes_retrans += again.payload.len() as u64;
        if !again.payload.is_empty() {
            self.stats.data_segs_out = self.stats.data_segs_out.wrapping_add(again.segs);
        }
    }
}

fn draft_again(again: Retransmit, departure: Instant) -> Draft {
    let mut flags = TcpFlags::ACK;
    if again.push {
        flags = flags.union(TcpFlags::PSH);
    }
    if again.fin {
        flags = flags.union(TcpFlags::FIN);
    }
    Draft {
        seq: again.seq,
        flags,
        payload: again.payload,
        segs: again.segs,
        truesize: again.truesize,
        departure,
        stamp_lag: 0,
        fresh: false,
    }
}

#[cfg(test)]
mod tests;
