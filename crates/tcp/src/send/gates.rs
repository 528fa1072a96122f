//! The limits on sending new data, in the order of their checks: pacing, cwnd, the peer's window, the
//! size of a super-segment, Nagle or the wait for a larger super-segment, TCP Small Queues.

use fullsend_units::Nanos;

use super::SendLimit;
use super::nagle::{Nagle, small_outstanding};
use super::small_queue::Handout;
use super::split::{DeferInput, defers, split_point};
use crate::Cx;
use crate::connection::{Connection, Fin, ProbeNow, State};
use crate::recovery::Phase;

/// Longest time that a cork holds a partial segment (tcp(7)).
const CORK_CEILING: Nanos = Nanos::from_millis(200);

/// The reason why unsent data was not sent at the last attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocked {
    /// Data was sent, or there was none.
    No,
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
    No,
    /// Send data that Nagle or a cork holds: the cork's time is over, or `TCP_NODELAY` was set.
    Push,
    /// Send one segment, as far as the peer's window admits it (probe timer).
    Probe,
}

/// A permission to send new data now.
pub(super) struct Grant {
    /// Bytes; 0 for a FIN without data.
    pub(super) len: u32,
    /// The rule that determined the length.
    pub(super) limit: SendLimit,
    /// Bytes that the peer's window and cwnd admit.
    pub(super) headroom: u32,
    /// The data is sent as one segment of more than the MSS, to probe the path's MTU.
    pub(super) probes: bool,
}

/// The limits of the next super-segment's size.
struct Measures {
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
    pub(super) fn new_text(&mut self, cx: &mut Cx<'_>) -> Option<Grant> {
        let force = core::mem::take(&mut self.out.force);
        if !self.snd.has_unsent() {
            self.snd.blocked = Blocked::No;
            return None;
        }
        let admitted = match self.admit(cx) {
            Err(Blocked::Nagle) if force != Force::No => self.force_one(),
            Err(_) if force == Force::Probe && self.snd.rtx.is_empty() => self.force_one(),
            admitted => admitted,
        };
        match admitted {
            Ok(grant) => {
                if force == Force::Push && grant.len < self.snd.queue.len() as u32 {
                    // The request is for all that is queued.
                    self.out.force = force;
                }
                if self.snd.blocked != Blocked::Autocork {
                    self.snd.blocked = Blocked::No;
                }
                Some(grant)
            }
            Err(why) => {
                self.on_blocked(cx, why);
                self.out.probe |= force == Force::Probe;
                None
            }
        }
    }

    /// Checks the limits in their order and returns how much may be sent now.
    fn admit(&mut self, cx: &Cx<'_>) -> Result<Grant, Blocked> {
        if self.pacing_holds(cx) {
            return Err(Blocked::Pacing);
        }
        if self.snd.rtx.is_empty() && self.snd.usable_window() > 0 {
            self.restart_after_idle(cx);
        }
        let room = self.cwnd_room();
        if room == 0 {
            return Err(Blocked::Cwnd);
        }
        let window = self.snd.usable_window();
        let mut grant = Grant {
            len: 0,
            limit: SendLimit::Application,
            headroom: window.min(room.saturating_mul(self.snd.mss.bytes())),
            probes: false,
        };
        if self.snd.queue.is_empty() {
            // RFC 9293 3.4: a FIN takes up a sequence number, and so a byte of the window.
            return if window > 0 {
                Ok(grant)
            } else {
                Err(Blocked::Rwnd)
            };
        }
        if self.extras.is_some() {
            match self.mtu_probe_now(cx) {
                ProbeNow::No => {}
                ProbeNow::Wait => return Err(Blocked::Cwnd),
                ProbeNow::Send(len) => {
                    (grant.len, grant.probes) = (len, true);
                    return Ok(grant);
                }
            }
        }
        if self.goes_whole(cx, grant.headroom) {
            grant.len = self.snd.queue.len() as u32;
            return Ok(grant);
        }
        let measures = self.measure(cx, room)?;
        grant.len = self.size(cx, &measures, window)?;
        grant.limit = self.what_cut(grant.len, &measures);
        if self.small_queue_holds(cx, grant.len, Handout::First) {
            return Err(Blocked::Tsq);
        }
        Ok(grant)
    }

    /// Returns whether nothing is in flight and all queued data fits one super-segment, so that the
    /// remaining limits cannot hold or cut it.
    #[inline]
    fn goes_whole(&self, cx: &Cx<'_>, headroom: u32) -> bool {
        let snd = &self.snd;
        let most = (self.cwnd.cwnd / 2).max(1).min(cx.device.gso_max_segs);
        let most = headroom
            .min(most.saturating_mul(snd.mss.bytes()))
            .min(self.record_left());
        snd.rtx.is_empty()
            && snd.queue.len() as u32 <= most.min(snd.size_goal)
            && snd.size_goal_for == cx.device.gso_max_size
            && snd.blocked != Blocked::Autocork
            && !self.is_corked()
            && !self.is_urgent()
            && self.is_path_short(cx)
            && !(cx.legacy.split_tail || cx.legacy.max_burst)
    }

    /// Returns the number of segments that cwnd admits.
    #[inline]
    fn cwnd_room(&self) -> u32 {
        let in_flight = self.snd.rtx.in_flight();
        // A Fast Open server's SYN-ACK does not count against cwnd.
        let syn_ack = u32::from(self.state == State::SynReceived);
        (self.cwnd.cwnd + syn_ack).saturating_sub(in_flight)
    }

    #[inline]
    pub(crate) fn cwnd_room_bytes(&self) -> u32 {
        self.cwnd_room().saturating_mul(self.snd.mss.bytes())
    }

    #[inline]
    fn measure(&mut self, cx: &Cx<'_>, room: u32) -> Result<Measures, Blocked> {
        let corked = self.is_autocorked();
        let mut unsent = self.snd.queue.len() as u32;
        if corked {
            // Full segments ahead of the held super-segment may be sent.
            unsent -= self.snd.queue.tail_len() as u32;
            unsent -= unsent % self.snd.mss.bytes();
            if unsent == 0 {
                return Err(Blocked::Autocork);
            }
        } else {
            self.uncork_automatically();
        }
        let mut max_segs = self.max_segs(cx);
        if self.is_urgent() {
            max_segs = 1;
        }
        if cx.legacy.max_burst {
            let left = self.flow(cx.now).burst_segs();
            if left == 0 {
                return Err(Blocked::Burst);
            }
            max_segs = max_segs.min(left);
        }
        let quota = room.min((self.cwnd.cwnd / 2).max(1)).min(max_segs);
        Ok(Measures {
            unsent,
            corked,
            max_segs,
            quota,
        })
    }

    /// Returns the length of the next super-segment in bytes.
    #[inline]
    fn size(&self, cx: &Cx<'_>, at: &Measures, window: u32) -> Result<u32, Blocked> {
        let mss = self.snd.mss;
        // The super-segment takes as much of the queued data as it may carry.
        let record_left = self.record_left();
        let len = at.unsent.min(at.max_segs * mss.bytes()).min(record_left);
        let tail = len == at.unsent && !at.corked;
        // Sender's silly window syndrome avoidance (RFC 9293 3.8.6.2.1): a full segment, or all that
        // remains.
        if len.min(mss.bytes()) > window {
            return Err(Blocked::Rwnd);
        }
        let nagle = self.nagle();
        if len <= mss.bytes() {
            // RFC 9293 3.7.4 has no exception for urgent data, but all implementations send it at once.
            let last = tail && (self.snd.fin == Fin::Queued || self.is_urgent());
            let held = tail && !last && nagle.holds(len < mss.bytes());
            return if held { Err(Blocked::Nagle) } else { Ok(len) };
        }
        let ends = len == record_left || (tail && self.snd.fin == Fin::Queued);
        if self.defers(cx, (len, tail, ends), at.max_segs) {
            return Err(Blocked::Defer);
        }
        let split = split_point(len, window, mss, at.quota, tail, nagle).min(len);
        if cx.legacy.split_tail && split > mss.bytes() {
            return Ok(split - split % mss.bytes());
        }
        Ok(split)
    }

    fn nagle(&self) -> Nagle {
        let snd = &self.snd;
        Nagle {
            off: self.settings.nodelay,
            cork: self.is_corked(),
            in_flight: !snd.rtx.is_empty(),
            small_out: small_outstanding(snd.una, snd.sml, snd.nxt),
        }
    }

    /// Returns whether `TCP_CORK`, or `MSG_MORE` on the last write, holds partial segments.
    pub(crate) const fn is_corked(&self) -> bool {
        self.settings.cork || self.snd.more
    }

    /// Returns whether a super-segment of `len` bytes waits for a larger window. `tail`: no data is
    /// queued after it; `ends`: a FIN or a record's end follows it.
    fn defers(&self, cx: &Cx<'_>, (len, tail, ends): (u32, bool, bool), max_segs: u32) -> bool {
        let snd = &self.snd;
        let head_age = snd.rtx.head_sent_at().map(|at| cx.now.since(at));
        self.recovery.phase() < Phase::Recovery
            && defers(&DeferInput {
                len,
                tail,
                ends,
                mss: snd.mss,
                max_segs,
                send_win: snd.usable_window(),
                cong_win: self.cwnd_room_bytes(),
                snd_wnd: snd.wnd,
                cwnd_bytes: self.cwnd.cwnd.saturating_mul(snd.mss.bytes()),
                win_divisor: cx.sysctl.tcp_tso_win_divisor,
                since_last: cx.now.since(snd.last_sent),
                head_age,
                srtt: self.rtt.srtt().unwrap_or(Nanos::ZERO),
            })
    }

    /// Returns the permission to send one segment, as far as the peer's window admits it.
    pub(super) fn force_one(&self) -> Result<Grant, Blocked> {
        let unsent = self.snd.queue.len() as u32;
        let window = self.snd.usable_window();
        let len = unsent
            .min(window)
            .min(self.snd.mss.bytes())
            .min(self.record_left());
        if window == 0 {
            return Err(Blocked::Rwnd);
        }
        Ok(Grant {
            len,
            limit: if len == unsent {
                SendLimit::Application
            } else {
                SendLimit::Rwnd
            },
            headroom: len,
            probes: false,
        })
    }

    fn on_blocked(&mut self, cx: &mut Cx<'_>, why: Blocked) {
        let before = core::mem::replace(&mut self.snd.blocked, why);
        if self.snd.rtx.is_empty() {
            self.flow(cx.now).begin_busy(cx.now);
        }
        let limit = self.limit_of(why);
        self.report_held(cx.now, limit);
        if limit == SendLimit::Cwnd && (why == Blocked::Cwnd || self.is_cwnd_short()) {
            let packets_out = self.snd.rtx.packets_out();
            self.recovery.on_cwnd_blocked(self.snd.nxt, packets_out);
        }
        if why == Blocked::Tsq {
            self.throttle(cx);
        }
        // Unsent data always needs a pending event that sends it: an ACK, a completion, or a timer.
        if limit == SendLimit::Cork {
            self.arm_cork_ceiling(cx, before == Blocked::Nagle);
        } else if self.snd.rtx.is_empty() && why != Blocked::Pacing {
            self.arm_probe(cx);
        }
    }

    /// Returns whether cwnd does not admit all queued data.
    fn is_cwnd_short(&self) -> bool {
        self.cwnd_room_bytes() <= self.snd.queue.len() as u32
    }

    fn arm_cork_ceiling(&mut self, cx: &Cx<'_>, held_before: bool) {
        let flow = self.flow(cx.now);
        if !held_before || flow.wake_at <= cx.now || flow.wake_at > cx.now + CORK_CEILING {
            flow.wake_at = cx.now + CORK_CEILING;
        }
    }

    /// Sends data that waited for a time: of the pacing rate, or of a cork's limit.
    pub(crate) fn on_wake(&mut self) {
        if self.snd.blocked == Blocked::Nagle && self.is_corked() {
            self.out.force = self.out.force.max(Force::Push);
            // The writer has paused, so the data ends a burst.
            self.snd.pushed = self.snd.write_seq();
        }
        self.out.any = true;
    }

    /// Reduces cwnd after an idle period, which no longer validates it (RFC 2861, RFC 5681 4.1).
    fn restart_after_idle(&mut self, cx: &Cx<'_>) {
        if self.snd.rtx.is_app_limited() {
            self.cc.on_restart(&mut self.cwnd, cx.now);
        }
        let idle = cx.now.since(self.snd.last_sent);
        let rto = self.rtt.base_rto().nanos();
        if idle > rto && cx.sysctl.tcp_slow_start_after_idle && !self.cc.owns_cwnd() {
            self.cwnd.restart_after_idle(idle, rto);
            self.cc.on_idle_restart(&self.cwnd, idle);
            // Once for each idle period, even if the data is held by another limit.
            self.snd.last_sent = cx.now;
        }
    }

    /// Returns the rule that determined the length of a super-segment.
    fn what_cut(&self, len: u32, at: &Measures) -> SendLimit {
        let mss = self.snd.mss.bytes();
        match len {
            _ if len == at.unsent && at.corked => SendLimit::Autocork,
            _ if len == at.unsent => SendLimit::Application,
            _ if len == at.quota * mss && at.quota == at.max_segs => SendLimit::Size,
            _ if len == at.quota * mss => SendLimit::Cwnd,
            _ if at.unsent - len >= mss => SendLimit::Rwnd,
            _ => self.limit_of(Blocked::Nagle),
        }
    }

    /// Returns the name in reports of a reason for being held back.
    fn limit_of(&self, why: Blocked) -> SendLimit {
        match why {
            Blocked::No => SendLimit::Application,
            Blocked::Nagle if self.is_corked() => SendLimit::Cork,
            Blocked::Nagle => SendLimit::Nagle,
            Blocked::Autocork => SendLimit::Autocork,
            Blocked::Defer if self.snd.usable_window() < self.cwnd_room_bytes() => SendLimit::Rwnd,
            Blocked::Cwnd | Blocked::Defer => SendLimit::Cwnd,
            Blocked::Rwnd => SendLimit::Rwnd,
            Blocked::Pacing => SendLimit::Pacing,
            Blocked::Tsq => SendLimit::Tsq,
            Blocked::Burst => SendLimit::Size,
        }
    }
}

#[cfg(test)]
mod tests;
