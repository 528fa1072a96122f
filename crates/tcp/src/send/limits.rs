//! The limits on sending new data, in the order of their checks: pacing, cwnd, the peer's window, the
//! size of a super-segment, Nagle or the wait for a larger super-segment, TCP Small Queues.

use fullsend_wire::{Instant, Nanos};

use super::FinState;
use super::autosize::is_path_short;
use super::nagle::{Nagle, small_outstanding};
use super::small_queue::Transmission;
use super::split::{DeferInput, should_defer, split_point};
use super::{SendLimit, Sender};
use crate::Cx;
use crate::connection::{Connection, MtuProbeDecision, State};
use crate::recovery::CaState;

/// Longest time that a cork holds a partial segment (tcp(7)).
const MAX_CORK_TIME: Nanos = Nanos::from_millis(200);

/// The reason why unsent data was not sent at the last attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockedBy {
    /// Data was sent, or there was none.
    Nothing,
    /// Nagle, or a cork.
    Nagle,
    /// Autocorking: the last, partial super-segment waits for a completion.
    Autocork,
    /// The congestion window.
    Cwnd,
    /// The peer's window.
    Rwnd,
    /// The pacing rate.
    Pacing,
    /// A larger super-segment will be possible soon.
    Defer,
    /// TCP Small Queues: enough of this flow is in the host's queues.
    Tsq,
    /// [`crate::legacy::Legacy::max_burst`].
    Burst,
}

/// A request to send data that a limit holds back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Force {
    #[default]
    None,
    /// Send data that Nagle or a cork holds: the cork's time is over, or `TCP_NODELAY` was set.
    Push,
    /// Send one segment, as far as the peer's window admits it (probe timer).
    Probe,
}

/// A permission to send new data now.
pub(super) struct SendDecision {
    /// Bytes; 0 for a FIN without data.
    pub(super) len: u32,
    /// The rule that determined the length.
    pub(super) limit: SendLimit,
    /// Bytes that the peer's window and cwnd admit.
    pub(super) headroom: u32,
    /// The data is sent as one segment of more than the MSS, to probe the path's MTU.
    pub(super) is_mtu_probe: bool,
}

/// The limits of the next super-segment's size.
struct SizeLimits {
    /// Unsent bytes, without those that autocorking holds.
    unsent: u32,
    /// Autocorking holds the last super-segment.
    corked: bool,
    /// Most segments of a super-segment.
    max_segs: u32,
    /// Most segments that cwnd admits, at most `max_segs`.
    quota: u32,
}

impl Connection {
    /// Returns the new data to send now, if the limits admit any.
    #[inline(always)]
    pub(super) fn new_data(&mut self, cx: &mut Cx<'_>) -> Option<SendDecision> {
        let force = self.snd.pending.take_force();
        if !self.snd.has_unsent() {
            self.snd.blocked_by = BlockedBy::Nothing;
            return None;
        }
        let decision = match self.may_send(cx) {
            Err(BlockedBy::Nagle) if force != Force::None => self.snd.force_one(self.record_left()),
            Err(_) if force == Force::Probe && self.recovery.rtx.is_empty() => {
                self.snd.force_one(self.record_left())
            }
            decision => decision,
        };
        match decision {
            Ok(decision) => {
                if force == Force::Push && decision.len < self.snd.queue.len() as u32 {
                    // The request is for all that is queued.
                    self.snd.pending.request_forced(force);
                }
                if self.snd.blocked_by != BlockedBy::Autocork {
                    self.snd.blocked_by = BlockedBy::Nothing;
                }
                Some(decision)
            }
            Err(reason) => {
                self.on_blocked(cx, reason);
                if force == Force::Probe {
                    self.snd.pending.request_probe();
                }
                None
            }
        }
    }

    /// Returns whether data must wait for its departure time here, and arms the timer for it.
    #[inline]
    pub(crate) fn pacing_holds(&mut self, cx: &Cx<'_>) -> bool {
        let (snd, path) = self.sender_and_path();
        snd.pacing_holds(cx, path)
    }

    /// Returns whether TCP Small Queues defers `len` more bytes.
    #[inline]
    pub(super) fn small_queue_holds(
        &self,
        cx: &Cx<'_>,
        len: u32,
        transmission: Transmission,
    ) -> bool {
        let size = (len, self.recovery.rtx.len());
        self.snd
            .small_queue_holds(cx, self.path(), size, transmission)
    }

    /// Checks the limits in their order and returns how much may be sent now.
    fn may_send(&mut self, cx: &Cx<'_>) -> Result<SendDecision, BlockedBy> {
        if self.pacing_holds(cx) {
            return Err(BlockedBy::Pacing);
        }
        if self.recovery.rtx.is_empty() && self.snd.usable_window() > 0 {
            self.restart_after_idle(cx);
        }
        let room = self.cwnd_room();
        if room == 0 {
            return Err(BlockedBy::Cwnd);
        }
        let window = self.snd.usable_window();
        let mut decision = SendDecision {
            len: 0,
            limit: SendLimit::Application,
            headroom: window.min(room.saturating_mul(self.snd.mss.bytes())),
            is_mtu_probe: false,
        };
        if self.snd.queue.is_empty() {
            // RFC 9293 3.4: a FIN takes up a sequence number, and so a byte of the window.
            return if window > 0 {
                Ok(decision)
            } else {
                Err(BlockedBy::Rwnd)
            };
        }
        if self.uncommon.is_some() {
            match self.decide_mtu_probe(cx) {
                MtuProbeDecision::Skip => {}
                MtuProbeDecision::Wait => return Err(BlockedBy::Cwnd),
                MtuProbeDecision::Send(len) => {
                    (decision.len, decision.is_mtu_probe) = (len, true);
                    return Ok(decision);
                }
            }
        }
        if self.is_sendable_whole(cx, decision.headroom) {
            decision.len = self.snd.queue.len() as u32;
            return Ok(decision);
        }
        let limits = self.size_limits(cx, room)?;
        decision.len = self.super_segment_len(cx, &limits, window)?;
        decision.limit = self.length_limit(decision.len, &limits);
        if self.small_queue_holds(cx, decision.len, Transmission::First) {
            return Err(BlockedBy::Tsq);
        }
        Ok(decision)
    }

    /// Returns whether nothing is in flight and all queued data fits one super-segment, so that the
    /// remaining limits cannot hold or cut it.
    #[inline]
    fn is_sendable_whole(&self, cx: &Cx<'_>, headroom: u32) -> bool {
        let snd = &self.snd;
        let most = (self.congestion.cwnd() / 2)
            .max(1)
            .min(cx.device.gso_max_segs);
        let most = headroom
            .min(most.saturating_mul(snd.mss.bytes()))
            .min(self.record_left());
        self.recovery.rtx.is_empty()
            && snd.queue.len() as u32 <= most.min(snd.size_goal)
            && snd.size_goal_for == cx.device.gso_max_size
            && snd.blocked_by != BlockedBy::Autocork
            && !self.is_corked()
            && !self.is_urgent()
            && is_path_short(cx, self.path())
            && !(cx.legacy.in_force().split_tail || cx.legacy.in_force().max_burst)
    }

    /// Returns the number of segments that cwnd admits.
    #[inline]
    fn cwnd_room(&self) -> u32 {
        let in_flight = self.recovery.rtx.in_flight();
        // A Fast Open server's SYN-ACK does not count against cwnd.
        let syn_ack = u32::from(self.state == State::SynReceived);
        (self.congestion.cwnd() + syn_ack).saturating_sub(in_flight)
    }

    #[inline]
    pub(crate) fn cwnd_room_bytes(&self) -> u32 {
        self.cwnd_room().saturating_mul(self.snd.mss.bytes())
    }

    #[inline]
    fn size_limits(&mut self, cx: &Cx<'_>, room: u32) -> Result<SizeLimits, BlockedBy> {
        let corked = self.snd.is_autocorked();
        let mut unsent = self.snd.queue.len() as u32;
        if corked {
            // Full segments ahead of the held super-segment may be sent.
            unsent -= self.snd.queue.tail_len() as u32;
            unsent -= unsent % self.snd.mss.bytes();
            if unsent == 0 {
                return Err(BlockedBy::Autocork);
            }
        } else {
            self.snd.end_autocork();
        }
        let mut max_segs = self.snd.max_segs(cx, self.path());
        if self.is_urgent() {
            max_segs = 1;
        }
        if cx.legacy.in_force().max_burst {
            let left = self.snd.flow(cx.now).burst_segs();
            if left == 0 {
                return Err(BlockedBy::Burst);
            }
            max_segs = max_segs.min(left);
        }
        let quota = room.min((self.congestion.cwnd() / 2).max(1)).min(max_segs);
        Ok(SizeLimits {
            unsent,
            corked,
            max_segs,
            quota,
        })
    }

    /// Returns the length of the next super-segment in bytes.
    #[inline]
    fn super_segment_len(
        &self,
        cx: &Cx<'_>,
        limits: &SizeLimits,
        window: u32,
    ) -> Result<u32, BlockedBy> {
        let mss = self.snd.mss;
        // The super-segment takes as much of the queued data as it may carry.
        let record_left = self.record_left();
        let len = limits
            .unsent
            .min(limits.max_segs * mss.bytes())
            .min(record_left);
        let tail = len == limits.unsent && !limits.corked;
        // Sender's silly window syndrome avoidance (RFC 9293 3.8.6.2.1): a full segment, or all that
        // remains.
        if len.min(mss.bytes()) > window {
            return Err(BlockedBy::Rwnd);
        }
        let nagle = self.nagle();
        if len <= mss.bytes() {
            // RFC 9293 3.7.4 has no exception for urgent data, but all implementations send it at once.
            let last = tail && (self.snd.fin == FinState::Queued || self.is_urgent());
            let held = tail && !last && nagle.holds(len < mss.bytes());
            return if held { Err(BlockedBy::Nagle) } else { Ok(len) };
        }
        let ends = len == record_left || (tail && self.snd.fin == FinState::Queued);
        if self.should_defer(cx, (len, tail, ends), limits.max_segs) {
            return Err(BlockedBy::Defer);
        }
        let split = split_point(len, window, mss, limits.quota, tail, nagle).min(len);
        if cx.legacy.in_force().split_tail && split > mss.bytes() {
            return Ok(split - split % mss.bytes());
        }
        Ok(split)
    }

    fn nagle(&self) -> Nagle {
        let snd = &self.snd;
        Nagle {
            off: self.settings.nodelay,
            cork: self.is_corked(),
            in_flight: !self.recovery.rtx.is_empty(),
            small_out: small_outstanding(snd.una, snd.sml, snd.nxt),
        }
    }

    /// Returns whether `TCP_CORK`, or `MSG_MORE` on the last write, holds partial segments.
    pub(crate) const fn is_corked(&self) -> bool {
        self.settings.cork || self.snd.msg_more
    }

    /// Returns whether a super-segment of `len` bytes waits for a larger window. `tail`: no data is
    /// queued after it; `ends`: a FIN or a record's end follows it.
    fn should_defer(
        &self,
        cx: &Cx<'_>,
        (len, tail, ends): (u32, bool, bool),
        max_segs: u32,
    ) -> bool {
        let snd = &self.snd;
        let head_age = self.recovery.rtx.head_sent_at().map(|at| cx.now.since(at));
        self.recovery.ca_state() < CaState::Recovery
            && should_defer(&DeferInput {
                len,
                tail,
                ends,
                mss: snd.mss,
                max_segs,
                send_win: snd.usable_window(),
                cong_win: self.cwnd_room_bytes(),
                snd_wnd: snd.wnd,
                cwnd_bytes: self.congestion.cwnd().saturating_mul(snd.mss.bytes()),
                win_divisor: cx.sysctl.tcp_tso_win_divisor,
                since_last: cx.now.since(snd.last_sent),
                head_age,
                srtt: self.rtt.srtt().unwrap_or(Nanos::ZERO),
            })
    }

    fn on_blocked(&mut self, cx: &mut Cx<'_>, reason: BlockedBy) {
        let before = core::mem::replace(&mut self.snd.blocked_by, reason);
        if self.recovery.rtx.is_empty() {
            self.snd.flow(cx.now).begin_busy(cx.now);
        }
        let limit = self.limit_of(reason);
        self.snd.report_limit(cx.now, limit);
        if limit == SendLimit::Cwnd && (reason == BlockedBy::Cwnd || self.is_cwnd_short()) {
            let packets_out = self.recovery.rtx.packets_out();
            self.recovery
                .on_cwnd_blocked(&mut self.congestion, self.snd.nxt, packets_out);
        }
        if reason == BlockedBy::Tsq {
            self.snd.throttle(cx.mib);
        }
        // Unsent data always needs a pending event that sends it: an ACK, a completion, or a timer.
        if limit == SendLimit::Cork {
            self.snd.arm_cork_timer(cx.now, before == BlockedBy::Nagle);
        } else if self.recovery.rtx.is_empty() && reason != BlockedBy::Pacing {
            self.arm_window_probe(cx);
        }
    }

    /// Returns whether cwnd does not admit all queued data.
    fn is_cwnd_short(&self) -> bool {
        self.cwnd_room_bytes() <= self.snd.queue.len() as u32
    }

    /// Reduces cwnd after an idle period, which no longer validates it (RFC 2861, RFC 5681 4.1).
    fn restart_after_idle(&mut self, cx: &Cx<'_>) {
        if self.recovery.rtx.is_app_limited() {
            self.congestion.on_tx_start(cx.now);
        }
        let idle = cx.now.since(self.snd.last_sent);
        let rto = self.rtt.base_rto().nanos();
        if idle > rto
            && cx.sysctl.tcp_slow_start_after_idle
            && !self.congestion.algorithm().owns_cwnd()
        {
            self.congestion.restart_after_idle(idle, rto);
            // Once for each idle period, even if the data is held by another limit.
            self.snd.last_sent = cx.now;
        }
    }

    /// Returns the rule that determined the length of a super-segment.
    fn length_limit(&self, len: u32, limits: &SizeLimits) -> SendLimit {
        let mss = self.snd.mss.bytes();
        match len {
            _ if len == limits.unsent && limits.corked => SendLimit::Autocork,
            _ if len == limits.unsent => SendLimit::Application,
            _ if len == limits.quota * mss && limits.quota == limits.max_segs => SendLimit::Size,
            _ if len == limits.quota * mss => SendLimit::Cwnd,
            _ if limits.unsent - len >= mss => SendLimit::Rwnd,
            _ => self.limit_of(BlockedBy::Nagle),
        }
    }

    /// Returns the name in reports of a reason for being held back.
    fn limit_of(&self, reason: BlockedBy) -> SendLimit {
        match reason {
            BlockedBy::Nothing => SendLimit::Application,
            BlockedBy::Nagle if self.is_corked() => SendLimit::Cork,
            BlockedBy::Nagle => SendLimit::Nagle,
            BlockedBy::Autocork => SendLimit::Autocork,
            BlockedBy::Defer if self.snd.usable_window() < self.cwnd_room_bytes() => {
                SendLimit::Rwnd
            }
            BlockedBy::Cwnd | BlockedBy::Defer => SendLimit::Cwnd,
            BlockedBy::Rwnd => SendLimit::Rwnd,
            BlockedBy::Pacing => SendLimit::Pacing,
            BlockedBy::Tsq => SendLimit::Tsq,
            BlockedBy::Burst => SendLimit::Size,
        }
    }
}

impl Sender {
    /// Returns the permission to send one segment, as far as the peer's window admits it.
    pub(super) fn force_one(&self, record_left: u32) -> Result<SendDecision, BlockedBy> {
        let unsent = self.queue.len() as u32;
        let window = self.usable_window();
        let len = unsent.min(window).min(self.mss.bytes()).min(record_left);
        if window == 0 {
            return Err(BlockedBy::Rwnd);
        }
        Ok(SendDecision {
            len,
            limit: if len == unsent {
                SendLimit::Application
            } else {
                SendLimit::Rwnd
            },
            headroom: len,
            is_mtu_probe: false,
        })
    }

    /// Arms the timer that ends a cork's wait. `held_before`: the wait has begun already.
    fn arm_cork_timer(&mut self, now: Instant, held_before: bool) {
        let flow = self.flow(now);
        let (at, latest) = (flow.send_timer(), now + MAX_CORK_TIME);
        if !held_before || at <= now || at > latest {
            flow.set_send_timer(latest);
        }
    }
}

#[cfg(test)]
mod tests;
