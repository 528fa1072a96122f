//! Timers: retransmission (RFC 6298), zero-window probes (RFC 9293 3.8.6.1), keepalive
//! (RFC 9293 3.8.4), the end of an orphan.

use fullsend_units::{Instant, Nanos};

use super::{Connection, Reset, State};
use crate::recovery::Phase;
use crate::rtt::Rto;
use crate::send::Force;
use crate::{Cx, TcpError};

/// What the retransmission timer stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RtxKind {
    /// Something is in flight.
    Rto,
    /// The same, and its tail may have been lost (RFC 8985 7.2).
    TailProbe,
    /// Something was overtaken, and may still arrive (RFC 8985 6.2).
    Reordering,
    /// Text waits though nothing is in flight: for window, for a cork.
    Probe,
}

/// Deadlines (`FAR_FUTURE`: none) and the times they derive from.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    rtx: Instant,
    /// Keepalive of a live connection; the end of an orphan in FIN-WAIT-2.
    idle: Instant,
    kind: RtxKind,
    /// Probes, of either kind, since the peer was last heard; 255 stands for more.
    pub(crate) probes: u8,
    /// When an acceptable segment last arrived.
    pub(crate) heard_at: Instant,
    /// Since when what is in flight (or waits for window) has made no progress.
    pub(crate) progress_at: Instant,
    /// Retransmission timeouts since the last progress (`icsk_retransmits`).
    pub(crate) retransmits: u8,
    /// The first repetition of the SYN follows a RST to a half-open peer: it is not a lost SYN.
    pub(crate) syn_after_reset: bool,
    /// When a bad segment was last answered (RFC 5961 10), in milliseconds; 0: never.
    pub(crate) complained_at_ms: u32,
}

impl Timers {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            rtx: Instant::FAR_FUTURE,
            idle: Instant::FAR_FUTURE,
            kind: RtxKind::Rto,
            probes: 0,
            heard_at: now,
            progress_at: now,
            retransmits: 0,
            syn_after_reset: false,
            complained_at_ms: 0,
        }
    }

    #[inline]
    pub(crate) fn first(&self) -> Instant {
        self.rtx.min(self.idle)
    }

    /// The keepalive timer, or that of an orphan's end, comes before the retransmission timer.
    pub(crate) fn is_idle_first(&self) -> bool {
        self.idle < self.rtx
    }

    #[inline]
    pub(crate) fn rtx_off(&mut self) {
        self.rtx = Instant::FAR_FUTURE;
        self.kind = RtxKind::Rto;
    }

    pub(crate) fn all_off(&mut self) {
        self.rtx_off();
        self.idle = Instant::FAR_FUTURE;
    }

    pub(crate) fn set_idle(&mut self, at: Instant) {
        self.idle = at;
    }

    #[inline]
    pub(crate) fn is_probing(&self) -> bool {
        self.kind == RtxKind::Probe && self.rtx != Instant::FAR_FUTURE
    }
}

impl Connection {
    /// `poll_deadline` has passed.
    pub fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        if self.rcv.ack.on_timer(cx.now) {
            cx.mib.delayed_acks += 1;
            self.out.any = true;
        }
        if self.timers.rtx <= cx.now {
            self.timers.rtx = Instant::FAR_FUTURE;
            match self.timers.kind {
                RtxKind::Rto => self.on_rto(cx),
                RtxKind::TailProbe => self.on_probe_of_tail_timer(cx),
                RtxKind::Reordering => self.on_reordering_timer(cx),
                RtxKind::Probe => self.on_probe_timer(cx),
            }
        }
        if self.timers.idle <= cx.now {
            self.timers.idle = Instant::FAR_FUTURE;
            if self.state == State::FinWait2 && self.user.orphan {
                self.transition(State::Closed);
                self.finish();
            } else {
                self.on_keepalive(cx);
            }
        }
        if let Some(flow) = &mut self.snd.flow
            && flow.wake_at <= cx.now
        {
            flow.wake_at = Instant::FAR_FUTURE;
            self.on_wake();
        }
        self.charge(cx);
    }

    /// RFC 6298 5.1: the timer runs while something is in flight.
    pub(crate) fn arm_rto(&mut self, cx: &Cx<'_>) {
        self.timers.kind = RtxKind::Rto;
        self.timers.rtx = self.bounded_by_user_timeout(cx, self.rtt.rto());
    }

    /// RFC 6298 5.2, 5.3: an ACK moved `snd_una`, or text leaves where none was in flight. A tail
    /// loss probe comes first where one may be sent.
    #[inline]
    pub(crate) fn set_xmit_timer(&mut self, cx: &Cx<'_>) {
        if self.snd.rtx.is_empty() {
            self.timers.rtx_off();
            return;
        }
        let rto_at = cx.now + self.rtt.rto().nanos();
        if !self.arm_probe_of_tail(cx, cx.now, rto_at) {
            self.rearm_rto(cx);
        }
    }

    /// The retransmission timer, where no probe is to come first. Behind a probe or reordering
    /// timer it counts from when the head was sent: that time has passed.
    pub(crate) fn rearm_rto(&mut self, cx: &Cx<'_>) {
        if self.snd.rtx.is_empty() {
            self.timers.rtx_off();
        } else if self.timers.kind == RtxKind::Rto && !self.restarts_early() {
            self.arm_rto(cx);
        } else {
            self.arm_rto_at(cx, self.head_rto_at(cx.now));
        }
    }

    /// RFC 7765: with too little in flight for fast retransmit, and nothing to send, the timer
    /// counts from the head's departure and not from the last ACK. Probes do better where they
    /// may be sent; this is for connections without SACK, and those with probes switched off.
    fn restarts_early(&self) -> bool {
        const RRTHRESH: u32 = 4;
        let unsent = self.snd.mss.segments(self.snd.queue.len() as u32);
        self.recovery.phase() < Phase::Recovery
            && self.snd.rtx.packets_out() < RRTHRESH
            && unsent < RRTHRESH
    }

    /// The retransmission timer, at a time.
    pub(crate) fn arm_rto_at(&mut self, cx: &Cx<'_>, at: Instant) {
        self.timers.kind = RtxKind::Rto;
        self.timers.rtx = self.within_user_timeout(cx, at.max(cx.now));
    }

    #[inline]
    pub(crate) fn set_probe_timer(&mut self, cx: &Cx<'_>, at: Instant) {
        self.timers.kind = RtxKind::TailProbe;
        self.timers.rtx = at + self.pacing_delay(cx.now);
    }

    /// Repeats the SYN at `at` instead of later. A timer that fires before then stays, so that no
    /// sequence of calls delays the SYN.
    pub(crate) fn hasten_syn(&mut self, cx: &Cx<'_>, at: Instant) {
        if at < self.timers.rtx {
            self.timers.syn_after_reset = true;
            self.arm_rto_at(cx, at);
        }
    }

    /// What was overtaken is lost at this time if it has not arrived.
    pub(crate) fn arm_reordering(&mut self, cx: &Cx<'_>, at: Instant) {
        self.timers.kind = RtxKind::Reordering;
        self.timers.rtx = at.max(cx.now);
    }

    /// RFC 2018 8: the head was SACKed and is not acknowledged. If that stays so for half a round
    /// trip, the receiver has thrown it away.
    #[cold]
    pub(crate) fn suspect_reneging(&mut self, cx: &Cx<'_>) {
        let patience = self.rtt.srtt().unwrap_or_default() / 2;
        self.arm_rto_at(cx, cx.now + patience.max(Nanos::from_millis(10)));
    }

    /// The head is being repaired: it deserves a round trip of its own before the timer judges it.
    pub(crate) fn give_repair_time(&mut self, cx: &Cx<'_>) {
        if self.timers.kind != RtxKind::Reordering {
            self.arm_rto(cx);
        }
    }

    /// Text was sent behind a single segment: its probe need not wait for a delayed ACK.
    pub(crate) fn hasten_probe(&mut self, cx: &Cx<'_>) {
        if self.timers.kind == RtxKind::TailProbe {
            self.arm_probe_of_tail(cx, cx.now, self.head_rto_at(cx.now));
        }
    }

    /// Text waits while nothing is in flight, so no ACK will come by itself.
    pub(crate) fn arm_probe(&mut self, cx: &Cx<'_>) {
        if self.timers.is_probing() {
            return;
        }
        if self.timers.kind != RtxKind::Probe {
            self.timers.progress_at = cx.now;
        }
        self.timers.kind = RtxKind::Probe;
        self.timers.rtx = self.bounded_by_user_timeout(cx, self.rtt.rto());
    }

    /// RFC 5482: give up in time.
    fn bounded_by_user_timeout(&self, cx: &Cx<'_>, rto: Rto) -> Instant {
        self.within_user_timeout(cx, cx.now + rto.nanos() + self.pacing_delay(cx.now))
    }

    fn within_user_timeout(&self, cx: &Cx<'_>, at: Instant) -> Instant {
        match self.settings.user_timeout() {
            Nanos::ZERO => at,
            timeout => at.min((self.timers.progress_at + timeout).max(cx.now)),
        }
    }

    fn on_rto(&mut self, cx: &mut Cx<'_>) {
        if self.snd.rtx.is_empty() {
            return;
        }
        let gave_up = self.gave_up(cx);
        if self.extras.is_some() {
            self.fastopen_timeout(gave_up);
        }
        if gave_up {
            self.time_out(cx);
            return;
        }
        self.count_rto(cx.now);
        cx.mib.timeouts += 1;
        self.check_app_limited();
        if self.state.is_synchronized() {
            if self.timers.retransmits == 0 {
                self.count_failure(cx);
            }
            self.suspect_black_hole(cx);
            self.enter_loss(cx);
        } else {
            // RFC 6298 5.7: what a Fast Open server sent behind its SYN-ACK is lost, too.
            if self.timers.retransmits == 1 && self.is_fastopen_child() {
                self.enter_loss(cx);
            }
            self.out.syn = true;
        }
        self.timers.retransmits = self.timers.retransmits.saturating_add(1);
        if !self.is_thin(cx) && !self.is_syn_linear(cx) {
            // RFC 6298 5.5, 5.6.
            self.rtt.back_off();
        }
        self.arm_rto(cx);
        self.out.any = true;
    }

    /// A timeout ends what was under way.
    fn count_failure(&self, cx: &mut Cx<'_>) {
        let mib = &mut *cx.mib;
        let failures = match (self.recovery.phase(), self.agreed.sack) {
            (Phase::Recovery, true) => &mut mib.sack_recovery_fail,
            (Phase::Recovery, false) => &mut mib.reno_recovery_fail,
            (Phase::Loss, _) => &mut mib.loss_failures,
            _ if self.snd.rtx.sacked_out() == 0 => return,
            (_, true) => &mut mib.sack_failures,
            (_, false) => &mut mib.reno_failures,
        };
        *failures += 1;
    }

    /// `tcp_thin_linear_timeouts`: so little is in flight that it never sees fast retransmit.
    fn is_thin(&self, cx: &Cx<'_>) -> bool {
        const LINEAR_RETRIES: u8 = 6;
        cx.sysctl.tcp_thin_linear_timeouts
            && self.state == State::Established
            && self.snd.rtx.packets_out() < 4
            && self.cwnd.ssthresh != u32::MAX
            && self.timers.retransmits <= LINEAR_RETRIES
    }

    /// `tcp_syn_linear_timeouts`: the first SYNs go at an even pace.
    fn is_syn_linear(&self, cx: &Cx<'_>) -> bool {
        let linear = cx.sysctl.tcp_syn_linear_timeouts;
        self.state == State::SynSent && u32::from(self.timers.retransmits) <= linear
    }

    /// Retried for long enough.
    fn gave_up(&self, cx: &Cx<'_>) -> bool {
        let fired = u32::from(self.rtt.backoff());
        let stalled = cx.now.since(self.timers.progress_at);
        let user_timeout = self.settings.user_timeout();
        if user_timeout != Nanos::ZERO && stalled >= user_timeout {
            return true;
        }
        match self.state {
            State::SynSent | State::SynReceived if self.user.connects => {
                self.gave_up_opening(cx, stalled)
            }
            // Linux: a Fast Open server tries once more, as its user may have the connection.
            State::SynReceived => {
                let child = u32::from(self.is_fastopen_child());
                fired >= self.settings.synack_retries(cx.sysctl, child)
            }
            _ if user_timeout != Nanos::ZERO => false,
            // RFC 9293 3.8.6.1: a peer that took its window back and answers keeps the connection
            // open, as one does that never opened it.
            _ if self.snd.wnd == 0 && !self.user.orphan => {
                let silent = cx.now.since(self.timers.heard_at);
                silent.min(stalled) > self.rtt.rto_max() * 2
            }
            _ => stalled >= retries_time(self.retries(cx), self.rtt.rto_max()),
        }
    }

    /// An active open was retried for long enough: `tcp_syn_retries` or `TCP_SYNCNT` times, and if
    /// there is no user timeout, for the time that so many take.
    fn gave_up_opening(&self, cx: &Cx<'_>, stalled: Nanos) -> bool {
        let retries = self.settings.syn_retries(cx.sysctl);
        let retransmits = u32::from(self.timers.retransmits);
        // The linear timeouts come on top of the retries, but may not take longer.
        let linear = match self.state {
            State::SynSent => cx.sysctl.tcp_syn_linear_timeouts,
            _ => 0,
        };
        let span = backoff_time(Rto::INITIAL.nanos(), retries, self.rtt.rto_max());
        let bounded = self.settings.user_timeout() == Nanos::ZERO && retransmits > 0;
        retransmits >= retries + linear || (bounded && stalled >= span)
    }

    fn retries(&self, cx: &Cx<'_>) -> u32 {
        if self.user.orphan {
            cx.sysctl.tcp_orphan_retries.min(cx.sysctl.tcp_retries2)
        } else {
            cx.sysctl.tcp_retries2
        }
    }

    fn time_out(&mut self, cx: &mut Cx<'_>) {
        cx.mib.abort_on_timeout += 1;
        if !self.state.is_synchronized() {
            cx.mib.attempt_fails += 1;
        }
        self.fail(TcpError::TimedOut);
    }

    /// RFC 9293 3.8.6.1.
    fn on_probe_timer(&mut self, cx: &mut Cx<'_>) {
        if !self.snd.rtx.is_empty() || !self.snd.has_unsent() {
            return;
        }
        let user_timeout = self.settings.user_timeout();
        let stalled = cx.now.since(self.timers.progress_at);
        let too_long = user_timeout != Nanos::ZERO && stalled >= user_timeout;
        // A peer that answers may keep its window closed for ever, but not that of an orphan,
        // whose memory nobody else would free.
        let tries = if self.user.orphan {
            self.rtt.backoff()
        } else {
            self.timers.probes
        };
        if too_long || u32::from(tries) >= self.retries(cx) {
            self.time_out(cx);
            return;
        }
        self.timers.probes = self.timers.probes.saturating_add(1);
        self.rtt.back_off();
        self.out.force = Force::Probe;
        self.out.any = true;
    }

    /// Begins to wait for silence, if the user asked for it.
    pub(crate) fn arm_keepalive(&mut self, cx: &Cx<'_>) {
        let live = self.state.is_synchronized();
        self.timers.idle = if self.settings.keepalive && live {
            self.timers.heard_at + self.settings.keepidle(cx.sysctl)
        } else {
            Instant::FAR_FUTURE
        };
    }

    fn on_keepalive(&mut self, cx: &mut Cx<'_>) {
        if !self.settings.keepalive || !self.state.is_synchronized() {
            return;
        }
        let idle = cx.now.since(self.timers.heard_at);
        let busy = !self.snd.rtx.is_empty() || self.snd.has_unsent();
        if busy || idle < self.settings.keepidle(cx.sysctl) {
            // Retransmissions or probes watch the peer meanwhile.
            let base = if busy { cx.now } else { self.timers.heard_at };
            self.timers.idle = base + self.settings.keepidle(cx.sysctl);
            return;
        }
        let probes = u32::from(self.timers.probes);
        let user_timeout = self.settings.user_timeout();
        let silent = if user_timeout == Nanos::ZERO {
            probes >= self.settings.keepcnt(cx.sysctl)
        } else {
            probes > 0 && idle >= user_timeout
        };
        if silent {
            self.out.reset = Some(Reset::Abort);
            self.out.any = true;
            self.time_out(cx);
            return;
        }
        cx.mib.keep_alive += 1;
        // `TCP_USER_TIMEOUT` bounds them by time, not by number.
        self.timers.probes = self.timers.probes.saturating_add(1);
        self.out.probe = true;
        self.out.any = true;
        self.timers.idle = cx.now + self.settings.keepintvl(cx.sysctl);
    }
}

/// How long `retries` retransmissions take with the least timeout doubling from each to the next:
/// counts become times, so that a long RTO does not multiply the user's patience.
pub(super) fn retries_time(retries: u32, rto_max: Nanos) -> Nanos {
    backoff_time(Rto::MIN, retries, rto_max)
}

/// Returns how long a first transmission and `retries` retransmissions wait together, if the first
/// waits `first` and each of the others twice as long as the one before, at most `rto_max`.
fn backoff_time(first: Nanos, retries: u32, rto_max: Nanos) -> Nanos {
    (0..=retries)
        .map(|n| (first * (1u64 << n.min(20))).min(rto_max))
        .fold(Nanos::ZERO, |sum, rto| sum + rto)
}

#[cfg(test)]
mod tests {
    use fullsend_units::Nanos;

    use super::retries_time;

    #[test]
    fn default_patience_is_that_of_linux() {
        let max = Nanos::from_secs(120);
        assert_eq!(retries_time(15, max).as_millis(), 924_600);
        assert_eq!(retries_time(8, max).as_millis(), 102_200);
    }
}
