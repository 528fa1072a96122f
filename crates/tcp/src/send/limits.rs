//! The limits on sending new data: cwnd, the peer's window, the size of a super-segment, Nagle or
//! the wait for a larger super-segment, TCP Small Queues. `Connection::may_send` is their order; it
//! checks pacing first.

use fullsend_wire::{Instant, Nanos};

use super::FinState;
use super::autosize::is_path_short;
use super::nagle::{Nagle, small_outstanding};
use super::small_queue::Transmission;
use super::split::{DeferInput, should_defer, split_point};
use super::{Path, SendLimit, Sender};
use crate::Cx;
use crate::recovery::{CaState, Recovery};

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

/// A permission to send new data now.
pub(crate) struct SendDecision {
    /// Bytes; 0 for a FIN without data.
    pub(crate) len: u32,
    /// The rule that determined the length.
    pub(crate) limit: SendLimit,
    /// Bytes that the peer's window and cwnd admit.
    pub(crate) headroom: u32,
    /// The data is sent as one segment of more than the MSS, to probe the path's MTU.
    pub(crate) is_mtu_probe: bool,
}

/// The values of the connection's other parts on which the limits of new data depend.
#[derive(Clone, Copy)]
pub(crate) struct SendCx<'a> {
    pub(crate) path: Path<'a>,
    pub(crate) recovery: &'a Recovery,
    /// `TCP_NODELAY`.
    pub(crate) nodelay: bool,
    /// `TCP_CORK`.
    pub(crate) cork: bool,
    /// Urgent data was sent and is not acknowledged.
    pub(crate) is_urgent: bool,
    /// Bytes from `SND.NXT` to the end of the first record.
    pub(crate) record_left: u32,
    /// Segments in flight that do not count against cwnd: a Fast Open server's SYN-ACK.
    pub(crate) uncounted_segs: u32,
}

impl SendCx<'_> {
    /// Returns the number of segments that cwnd admits.
    #[inline]
    pub(crate) fn cwnd_room(self) -> u32 {
        let in_flight = self.recovery.rtx.in_flight();
        (self.path.congestion.cwnd() + self.uncounted_segs).saturating_sub(in_flight)
    }
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

impl Sender {
    /// Checks cwnd and the peer's window. Returns the permission to send up to both; its length is
    /// not determined yet.
    #[inline]
    pub(crate) fn check_windows(&self, send: SendCx<'_>) -> Result<SendDecision, BlockedBy> {
        let room = self.cwnd_room_bytes(send);
        if room == 0 {
            return Err(BlockedBy::Cwnd);
        }
        let window = self.usable_window();
        // RFC 9293 3.4: a FIN takes up a sequence number, and so a byte of the window.
        if window == 0 && self.queue.is_empty() {
            return Err(BlockedBy::Rwnd);
        }
        Ok(SendDecision {
            len: 0,
            limit: SendLimit::Application,
            headroom: window.min(room),
            is_mtu_probe: false,
        })
    }

    /// Determines the length of the next super-segment by the limits after cwnd and the window, in
    /// their order. The caller has handled what is sent whole
    /// ([`is_sendable_whole`](Self::is_sendable_whole)).
    pub(crate) fn size_super_segment(
        &mut self,
        cx: &Cx<'_>,
        send: SendCx<'_>,
        mut decision: SendDecision,
    ) -> Result<SendDecision, BlockedBy> {
        let limits = self.size_limits(cx, send, send.cwnd_room())?;
        decision.len = self.super_segment_len(cx, send, &limits, self.usable_window())?;
        decision.limit = self.length_limit(send, decision.len, &limits);
        let size = (decision.len, send.recovery.rtx.len());
        if self.small_queue_holds(cx, send.path, size, Transmission::First) {
            return Err(BlockedBy::Tsq);
        }
        Ok(decision)
    }

    /// Returns whether nothing is in flight and all queued data fits one super-segment, so that the
    /// remaining limits cannot hold or cut it.
    #[inline]
    pub(crate) fn is_sendable_whole(&self, cx: &Cx<'_>, send: SendCx<'_>, headroom: u32) -> bool {
        let snd = self;
        let most = (send.path.congestion.cwnd() / 2)
            .max(1)
            .min(cx.device.gso_max_segs);
        let most = headroom
            .min(most.saturating_mul(snd.mss.bytes()))
            .min(send.record_left);
        send.recovery.rtx.is_empty()
            && snd.queue.len() as u32 <= most.min(snd.size_goal)
            && snd.size_goal_for == cx.device.gso_max_size
            && snd.blocked_by != BlockedBy::Autocork
            && !self.is_corked(send.cork)
            && !send.is_urgent
            && is_path_short(cx, send.path)
            && !(cx.legacy.in_force().split_tail || cx.legacy.in_force().max_burst)
    }

    /// Returns the bytes that cwnd admits.
    #[inline]
    pub(crate) fn cwnd_room_bytes(&self, send: SendCx<'_>) -> u32 {
        send.cwnd_room().saturating_mul(self.mss.bytes())
    }

    #[inline]
    fn size_limits(
        &mut self,
        cx: &Cx<'_>,
        send: SendCx<'_>,
        room: u32,
    ) -> Result<SizeLimits, BlockedBy> {
        let corked = self.is_autocorked();
        let mut unsent = self.queue.len() as u32;
        if corked {
            // Full segments ahead of the held super-segment may be sent.
            unsent -= self.queue.tail_len() as u32;
            unsent -= unsent % self.mss.bytes();
            if unsent == 0 {
                return Err(BlockedBy::Autocork);
            }
        } else {
            self.end_autocork();
        }
        let mut max_segs = self.max_segs(cx, send.path);
        if send.is_urgent {
            max_segs = 1;
        }
        if cx.legacy.in_force().max_burst {
            let left = self.flow(cx.now).burst_segs();
            if left == 0 {
                return Err(BlockedBy::Burst);
            }
            max_segs = max_segs.min(left);
        }
        let quota = room
            .min((send.path.congestion.cwnd() / 2).max(1))
            .min(max_segs);
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
        send: SendCx<'_>,
        limits: &SizeLimits,
        window: u32,
    ) -> Result<u32, BlockedBy> {
        let mss = self.mss;
        // The super-segment takes as much of the queued data as it may carry.
        let record_left = send.record_left;
        let len = limits
            .unsent
            .min(limits.max_segs * mss.bytes())
            .min(record_left);
        let tail = len == limits.unsent && !limits.corked;
        // Sender's silly window syndrome avoidance (RFC 9293 3.8.6.2.1): a full segment, or all
        // that remains.
        if len.min(mss.bytes()) > window {
            return Err(BlockedBy::Rwnd);
        }
        let nagle = self.nagle(send);
        if len <= mss.bytes() {
            // RFC 9293 3.7.4 has no exception for urgent data, but all implementations send it at
            // once.
            let last = tail && (self.fin == FinState::Queued || send.is_urgent);
            let held = tail && !last && nagle.holds(len < mss.bytes());
            return if held { Err(BlockedBy::Nagle) } else { Ok(len) };
        }
        let ends = len == record_left || (tail && self.fin == FinState::Queued);
        if self.should_defer(cx, send, (len, tail, ends), limits.max_segs) {
            return Err(BlockedBy::Defer);
        }
        let split = split_point(len, window, mss, limits.quota, tail, nagle).min(len);
        if cx.legacy.in_force().split_tail && split > mss.bytes() {
            return Ok(split - split % mss.bytes());
        }
        Ok(split)
    }

    fn nagle(&self, send: SendCx<'_>) -> Nagle {
        let snd = self;
        Nagle {
            off: send.nodelay,
            cork: self.is_corked(send.cork),
            in_flight: !send.recovery.rtx.is_empty(),
            small_out: small_outstanding(snd.una, snd.sml, snd.nxt),
        }
    }

    /// Returns whether `TCP_CORK`, or `MSG_MORE` on the last write, holds partial segments.
    pub(super) const fn is_corked(&self, cork: bool) -> bool {
        cork || self.msg_more
    }

    /// Returns whether a super-segment of `len` bytes waits for a larger window. `tail`: no data is
    /// queued after it; `ends`: a FIN or a record's end follows it.
    fn should_defer(
        &self,
        cx: &Cx<'_>,
        send: SendCx<'_>,
        (len, tail, ends): (u32, bool, bool),
        max_segs: u32,
    ) -> bool {
        let snd = self;
        let head_age = send.recovery.rtx.head_sent_at().map(|at| cx.now.since(at));
        send.recovery.ca_state() < CaState::Recovery
            && should_defer(&DeferInput {
                len,
                tail,
                ends,
                mss: snd.mss,
                max_segs,
                send_win: snd.usable_window(),
                cong_win: self.cwnd_room_bytes(send),
                snd_wnd: snd.wnd,
                cwnd_bytes: send.path.congestion.cwnd().saturating_mul(snd.mss.bytes()),
                win_divisor: cx.sysctl.tcp_tso_win_divisor,
                since_last: cx.now.since(snd.last_sent),
                head_age,
                srtt: send.path.rtt.srtt().unwrap_or(Nanos::ZERO),
            })
    }

    /// Records the reason why unsent data waits, and arms the timer of a cork. Returns the reason's
    /// name in reports.
    pub(crate) fn on_blocked(
        &mut self,
        cx: &mut Cx<'_>,
        send: SendCx<'_>,
        reason: BlockedBy,
    ) -> SendLimit {
        let before = core::mem::replace(&mut self.blocked_by, reason);
        if send.recovery.rtx.is_empty() {
            self.flow(cx.now).begin_busy(cx.now);
        }
        let limit = self.limit_of(send, reason);
        self.report_limit(cx.now, limit);
        if reason == BlockedBy::Tsq {
            self.throttle(cx.mib);
        }
        if limit == SendLimit::Cork {
            self.arm_cork_timer(cx.now, before == BlockedBy::Nagle);
        }
        limit
    }

    /// Records that nothing waits.
    #[inline]
    pub(crate) fn end_wait(&mut self) {
        self.blocked_by = BlockedBy::Nothing;
    }

    /// Records that data is sent: the rest waits for no limit but autocorking, which a completion
    /// ends.
    #[inline]
    pub(crate) fn on_admitted(&mut self) {
        if self.blocked_by != BlockedBy::Autocork {
            self.blocked_by = BlockedBy::Nothing;
        }
    }

    /// Ends an idle period without sending.
    pub(crate) fn end_idle(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// Returns whether cwnd does not admit all queued data.
    pub(crate) fn is_cwnd_short(&self, send: SendCx<'_>) -> bool {
        self.cwnd_room_bytes(send) <= self.queue.len() as u32
    }

    /// Returns the rule that determined the length of a super-segment.
    fn length_limit(&self, send: SendCx<'_>, len: u32, limits: &SizeLimits) -> SendLimit {
        let mss = self.mss.bytes();
        match len {
            _ if len == limits.unsent && limits.corked => SendLimit::Autocork,
            _ if len == limits.unsent => SendLimit::Application,
            _ if len == limits.quota * mss && limits.quota == limits.max_segs => SendLimit::Size,
            _ if len == limits.quota * mss => SendLimit::Cwnd,
            _ if limits.unsent - len >= mss => SendLimit::Rwnd,
            _ => self.limit_of(send, BlockedBy::Nagle),
        }
    }

    /// Returns the name in reports of a reason for being held back.
    fn limit_of(&self, send: SendCx<'_>, reason: BlockedBy) -> SendLimit {
        match reason {
            BlockedBy::Nothing => SendLimit::Application,
            BlockedBy::Nagle if self.is_corked(send.cork) => SendLimit::Cork,
            BlockedBy::Nagle => SendLimit::Nagle,
            BlockedBy::Autocork => SendLimit::Autocork,
            BlockedBy::Defer if self.usable_window() < self.cwnd_room_bytes(send) => {
                SendLimit::Rwnd
            }
            BlockedBy::Cwnd | BlockedBy::Defer => SendLimit::Cwnd,
            BlockedBy::Rwnd => SendLimit::Rwnd,
            BlockedBy::Pacing => SendLimit::Pacing,
            BlockedBy::Tsq => SendLimit::Tsq,
            BlockedBy::Burst => SendLimit::Size,
        }
    }

    /// Returns the permission to send one segment, as far as the peer's window admits it.
    pub(crate) fn force_one(&self, record_left: u32) -> Result<SendDecision, BlockedBy> {
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
