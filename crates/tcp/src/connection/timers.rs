//! Timers: retransmission (RFC 6298), zero-window probes (RFC 9293 3.8.6.1), keepalive (RFC 9293
//! 3.8.4), the timeout of an orphan.

use fullsend_wire::{Instant, Nanos, cold_path};

use super::{Connection, State};
use crate::recovery::CaState;
use crate::rtt::Rto;
use crate::send::Reset;
use crate::{Cx, TcpError};

/// The purpose of the retransmission timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RtxKind {
    /// Data is in flight.
    Rto,
    /// Data is in flight, and its tail may have been lost (RFC 8985 7.2).
    TailProbe,
    /// Segments were overtaken, and may still arrive (RFC 8985 6.2).
    Reordering,
    /// Nothing is in flight, and data waits for window or for a cork.
    WindowProbe,
}

/// The deadlines (`FAR_FUTURE`: none) and the times they derive from.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    rtx: Instant,
    /// Keepalive of a live connection, or the timeout of an orphan in FIN-WAIT-2.
    idle: Instant,
    rtx_kind: RtxKind,
    /// Window or keepalive probes since the last segment of the peer; saturates at 255.
    pub(super) probes: u8,
    /// The time at which the last acceptable segment arrived.
    pub(super) received_at: Instant,
    /// Since when the data in flight (or waiting for window) has made no progress.
    pub(super) progress_at: Instant,
    /// Retransmission timeouts since the last progress (`icsk_retransmits`).
    pub(super) retransmits: u8,
    /// The first repetition of the SYN follows a RST to a half-open peer and does not indicate a
    /// loss.
    pub(super) syn_after_reset: bool,
    /// The time at which an unacceptable segment was last answered (RFC 5961 10), in milliseconds; 0:
    /// never.
    pub(super) rejected_at_ms: u32,
}

impl Timers {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            rtx: Instant::FAR_FUTURE,
            idle: Instant::FAR_FUTURE,
            rtx_kind: RtxKind::Rto,
            probes: 0,
            received_at: now,
            progress_at: now,
            retransmits: 0,
            syn_after_reset: false,
            rejected_at_ms: 0,
        }
    }

    #[inline]
    pub(crate) fn earliest(&self) -> Instant {
        self.rtx.min(self.idle)
    }

    /// Returns whether the keepalive or orphan timer fires before the retransmission timer.
    pub(crate) fn is_idle_first(&self) -> bool {
        self.idle < self.rtx
    }

    #[inline]
    pub(crate) fn stop_rtx(&mut self) {
        self.rtx = Instant::FAR_FUTURE;
        self.rtx_kind = RtxKind::Rto;
    }

    pub(crate) fn stop_all(&mut self) {
        self.stop_rtx();
        self.idle = Instant::FAR_FUTURE;
    }

    pub(crate) fn set_idle(&mut self, at: Instant) {
        self.idle = at;
    }

    #[inline]
    pub(crate) fn is_window_probing(&self) -> bool {
        self.rtx_kind == RtxKind::WindowProbe && self.rtx != Instant::FAR_FUTURE
    }
}

impl Connection {
    /// Runs the timers that have expired. To be called when `poll_deadline` has passed.
    pub fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        if self.rcv.on_ack_timer(cx.now) {
            cx.mib.delayed_acks += 1;
        }
        if self.timers.rtx <= cx.now {
            self.timers.rtx = Instant::FAR_FUTURE;
            match self.timers.rtx_kind {
                RtxKind::Rto => self.on_rto(cx),
                RtxKind::TailProbe => self.on_tail_probe_timer(cx),
                RtxKind::Reordering => self.on_reordering_timer(cx),
                RtxKind::WindowProbe => self.on_window_probe_timer(cx),
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
        self.snd.on_timer(cx.now, self.settings.cork);
        self.charge(cx);
    }

    /// Starts the retransmission timer, which runs while data is in flight (RFC 6298 5.1).
    pub(crate) fn arm_rto(&mut self, cx: &Cx<'_>) {
        self.timers.rtx_kind = RtxKind::Rto;
        self.timers.rtx = self.bounded_by_user_timeout(cx, self.rtt.rto());
    }

    /// Restarts the timer after an ACK advanced `snd_una`, or when data is sent while none was in
    /// flight (RFC 6298 5.2, 5.3). A tail loss probe comes first if one may be sent.
    #[inline]
    pub(crate) fn set_xmit_timer(&mut self, cx: &Cx<'_>) {
        if self.recovery.rtx.is_empty() {
            self.timers.stop_rtx();
            return;
        }
        let rto_at = cx.now + self.rtt.rto().nanos();
        if !self.arm_tail_probe(cx, rto_at) {
            cold_path();
            self.rearm_rto(cx);
        }
    }

    /// Restarts the retransmission timer if no probe comes first. After a probe or reordering timer
    /// it counts from the transmission of the head, as the time since then has already passed.
    pub(crate) fn rearm_rto(&mut self, cx: &Cx<'_>) {
        if self.recovery.rtx.is_empty() {
            self.timers.stop_rtx();
        } else if self.timers.rtx_kind == RtxKind::Rto && !self.restarts_early() {
            self.arm_rto(cx);
        } else {
            self.arm_rto_at(cx, self.recovery.head_rto_at(&self.rtt, cx.now));
        }
    }

    /// Returns whether the timer counts from the transmission of the head rather than from the last
    /// ACK (RFC 7765): too little is in flight for fast retransmit, and nothing is left to send.
    /// Tail loss probes serve better where they are allowed; this is for connections without SACK,
    /// or with probes disabled.
    fn restarts_early(&self) -> bool {
        const RRTHRESH: u32 = 4;
        let unsent = self.snd.mss().segments(self.snd.unsent_bytes() as u32);
        self.recovery.ca_state() < CaState::Recovery
            && self.recovery.rtx.packets_out() < RRTHRESH
            && unsent < RRTHRESH
    }

    /// Sets the retransmission timer to `at`.
    pub(crate) fn arm_rto_at(&mut self, cx: &Cx<'_>, at: Instant) {
        self.timers.rtx_kind = RtxKind::Rto;
        self.timers.rtx = self.within_user_timeout(cx, at.max(cx.now));
    }

    /// Arms the probe timer, counted from now, if a probe may be sent; never later than `rto_at`,
    /// the retransmission timeout. Returns whether it did.
    #[inline]
    fn arm_tail_probe(&mut self, cx: &Cx<'_>, rto_at: Instant) -> bool {
        let parts = (&self.rtt, self.negotiated.sack);
        let Some(at) = self.recovery.tail_probe_at(cx, parts, cx.now, rto_at) else {
            return false;
        };
        self.set_tail_probe_timer(cx, at);
        true
    }

    #[inline]
    pub(crate) fn set_tail_probe_timer(&mut self, cx: &Cx<'_>, at: Instant) {
        self.timers.rtx_kind = RtxKind::TailProbe;
        self.timers.rtx = at + self.snd.pacing_delay(cx.now);
    }

    /// Repeats the SYN at `at` if the timer would fire later. An earlier timer is kept, so that no
    /// sequence of calls delays the SYN.
    pub(crate) fn advance_syn_timer(&mut self, cx: &Cx<'_>, at: Instant) {
        if at < self.timers.rtx {
            self.timers.syn_after_reset = true;
            self.arm_rto_at(cx, at);
        }
    }

    /// Sets the time at which overtaken segments count as lost.
    pub(crate) fn arm_reordering(&mut self, cx: &Cx<'_>, at: Instant) {
        self.timers.rtx_kind = RtxKind::Reordering;
        self.timers.rtx = at.max(cx.now);
    }

    /// Restarts the timer after a retransmission of the head, to allow it a round trip of its own.
    pub(crate) fn restart_rto_for_head(&mut self, cx: &Cx<'_>) {
        if self.timers.rtx_kind != RtxKind::Reordering {
            self.arm_rto(cx);
        }
    }

    /// Moves the tail loss probe earlier after data was sent after a single segment: the probe
    /// need not allow for a delayed ACK any more.
    pub(crate) fn advance_tail_probe_timer(&mut self, cx: &Cx<'_>) {
        if self.timers.rtx_kind == RtxKind::TailProbe {
            self.arm_tail_probe(cx, self.recovery.head_rto_at(&self.rtt, cx.now));
        }
    }

    /// Starts the probe timer while data waits and nothing is in flight, so that no ACK will come.
    pub(crate) fn arm_window_probe(&mut self, cx: &Cx<'_>) {
        if self.timers.is_window_probing() {
            return;
        }
        if self.timers.rtx_kind != RtxKind::WindowProbe {
            self.timers.progress_at = cx.now;
        }
        self.timers.rtx_kind = RtxKind::WindowProbe;
        self.timers.rtx = self.bounded_by_user_timeout(cx, self.rtt.rto());
    }

    /// Returns the time after `rto`, bounded by the user timeout (RFC 5482).
    fn bounded_by_user_timeout(&self, cx: &Cx<'_>, rto: Rto) -> Instant {
        self.within_user_timeout(cx, cx.now + rto.nanos() + self.snd.pacing_delay(cx.now))
    }

    fn within_user_timeout(&self, cx: &Cx<'_>, at: Instant) -> Instant {
        match self.settings.user_timeout() {
            Nanos::ZERO => at,
            timeout => at.min((self.timers.progress_at + timeout).max(cx.now)),
        }
    }

    fn on_rto(&mut self, cx: &mut Cx<'_>) {
        if self.recovery.rtx.is_empty() {
            return;
        }
        let has_timed_out = self.has_timed_out(cx);
        if self.uncommon.is_some() {
            self.fastopen_timeout(has_timed_out);
        }
        if has_timed_out {
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
            self.on_recovery_timeout(cx);
            self.snd.pending_mut().retry();
        } else {
            // RFC 6298 5.7: the data that a Fast Open server sent after its SYN-ACK is lost, too.
            if self.timers.retransmits == 1 && self.is_fastopen_child() {
                self.on_recovery_timeout(cx);
            }
            self.snd.pending_mut().request_syn();
        }
        self.timers.retransmits = self.timers.retransmits.saturating_add(1);
        if !self.is_thin(cx) && !self.is_syn_linear(cx) {
            // RFC 6298 5.5, 5.6.
            self.rtt.back_off();
        }
        self.arm_rto(cx);
    }

    /// Counts a timeout by the recovery phase that it ended.
    fn count_failure(&self, cx: &mut Cx<'_>) {
        let mib = &mut *cx.mib;
        let failures = match (self.recovery.ca_state(), self.negotiated.sack) {
            (CaState::Recovery, true) => &mut mib.sack_recovery_fail,
            (CaState::Recovery, false) => &mut mib.reno_recovery_fail,
            (CaState::Loss, _) => &mut mib.loss_failures,
            _ if self.recovery.rtx.sacked_out() == 0 => return,
            (_, true) => &mut mib.sack_failures,
            (_, false) => &mut mib.reno_failures,
        };
        *failures += 1;
    }

    /// Returns whether `tcp_thin_linear_timeouts` applies: with so few segments in flight, fast
    /// retransmit never starts.
    fn is_thin(&self, cx: &Cx<'_>) -> bool {
        const LINEAR_RETRIES: u8 = 6;
        cx.sysctl.tcp_thin_linear_timeouts
            && self.state == State::Established
            && self.recovery.rtx.packets_out() < 4
            && self.congestion.ssthresh() != u32::MAX
            && self.timers.retransmits <= LINEAR_RETRIES
    }

    /// Returns whether `tcp_syn_linear_timeouts` applies: the first SYNs have equal intervals.
    fn is_syn_linear(&self, cx: &Cx<'_>) -> bool {
        let linear = cx.sysctl.tcp_syn_linear_timeouts;
        self.state == State::SynSent && u32::from(self.timers.retransmits) <= linear
    }

    /// Returns whether the connection fails because of too many or too long retries.
    fn has_timed_out(&self, cx: &Cx<'_>) -> bool {
        let fired = u32::from(self.rtt.backoff());
        let stalled = cx.now.since(self.timers.progress_at);
        let user_timeout = self.settings.user_timeout();
        if user_timeout != Nanos::ZERO && stalled >= user_timeout {
            return true;
        }
        match self.state {
            State::SynSent | State::SynReceived if self.user.active_open => {
                self.has_open_timed_out(cx, stalled)
            }
            // Linux: a Fast Open server retries once more, as the application may have the
            // connection.
            State::SynReceived => {
                let child = u32::from(self.is_fastopen_child());
                fired >= self.settings.synack_retries(cx.sysctl, child)
            }
            _ if user_timeout != Nanos::ZERO => false,
            // RFC 9293 3.8.6.1: a peer that shrank its window and answers keeps the connection
            // open, as does one that never opened it.
            _ if self.snd.wnd() == 0 && !self.user.orphan => {
                let silent = cx.now.since(self.timers.received_at);
                silent.min(stalled) > self.rtt.rto_max() * 2
            }
            _ => stalled >= retries_time(self.retries(cx), self.rtt.rto_max()),
        }
    }

    /// Returns whether an active open fails: after `tcp_syn_retries` or `TCP_SYNCNT` retries, and
    /// without a user timeout also after the time that these take.
    fn has_open_timed_out(&self, cx: &Cx<'_>, stalled: Nanos) -> bool {
        let retries = self.settings.syn_retries(cx.sysctl);
        let retransmits = u32::from(self.timers.retransmits);
        // The linear timeouts come in addition to the retries, but not to their total time.
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

    /// Sends a zero-window probe, or ends the connection (RFC 9293 3.8.6.1).
    fn on_window_probe_timer(&mut self, cx: &mut Cx<'_>) {
        if !self.recovery.rtx.is_empty() || !self.snd.has_unsent() {
            return;
        }
        let user_timeout = self.settings.user_timeout();
        let stalled = cx.now.since(self.timers.progress_at);
        let too_long = user_timeout != Nanos::ZERO && stalled >= user_timeout;
        // A peer that answers may keep its window closed for ever. Not that of an orphan, whose
        // memory nothing else would free.
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
        self.snd.pending_mut().request_probe_data();
    }

    /// Starts the keepalive timer if keepalive is enabled.
    pub(crate) fn arm_keepalive(&mut self, cx: &Cx<'_>) {
        let live = self.state.is_synchronized();
        self.timers.idle = if self.settings.keepalive && live {
            self.timers.received_at + self.settings.keepidle(cx.sysctl)
        } else {
            Instant::FAR_FUTURE
        };
    }

    fn on_keepalive(&mut self, cx: &mut Cx<'_>) {
        if !self.settings.keepalive || !self.state.is_synchronized() {
            return;
        }
        let idle = cx.now.since(self.timers.received_at);
        let busy = !self.recovery.rtx.is_empty() || self.snd.has_unsent();
        if busy || idle < self.settings.keepidle(cx.sysctl) {
            // Meanwhile retransmissions or probes detect a dead peer.
            let base = if busy {
                cx.now
            } else {
                self.timers.received_at
            };
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
            self.snd.pending_mut().request_reset(Reset::Abort);
            self.time_out(cx);
            return;
        }
        cx.mib.keep_alive += 1;
        // `TCP_USER_TIMEOUT` bounds the probes by time, not by number.
        self.timers.probes = self.timers.probes.saturating_add(1);
        self.snd.pending_mut().request_probe();
        self.timers.idle = cx.now + self.settings.keepintvl(cx.sysctl);
    }
}

/// Returns the time that `retries` retransmissions take if the least timeout doubles each time. A
/// limit by time, so that a long RTO does not multiply it.
pub(super) fn retries_time(retries: u32, rto_max: Nanos) -> Nanos {
    backoff_time(Rto::MIN, retries, rto_max)
}

/// Returns the total wait of a first transmission and `retries` retransmissions, if the first waits
/// `first` and each of the others twice as long as the one before, at most `rto_max`.
fn backoff_time(first: Nanos, retries: u32, rto_max: Nanos) -> Nanos {
    (0..=retries)
        .map(|n| (first * (1u64 << n.min(20))).min(rto_max))
        .fold(Nanos::ZERO, |sum, rto| sum + rto)
}

#[cfg(test)]
mod tests {
    use fullsend_wire::Nanos;

    use super::retries_time;

    #[test]
    fn default_timeouts_match_linux() {
        let max = Nanos::from_secs(120);
        assert_eq!(retries_time(15, max).as_millis(), 924_600);
        assert_eq!(retries_time(8, max).as_millis(), 102_200);
    }
}
