//! The acknowledgement field (RFC 9293 3.10.7.4, fifth): delivered data, the send window, and what
//! both allow to be sent.

use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{Instant, Nanos, SeqNum, Window, WindowScale, cold_path};

use super::input::InvalidSegment;
use super::{Connection, State};
use crate::Cx;
use crate::congestion::{AckSample, RateSample};
use crate::recovery::{AckContext, AckOutcome, AckSummary, CaState, SackOutcome};
use crate::send::Reset;

/// The resolution of the timestamp clock.
const TICK: Nanos = Nanos::from_millis(1);

impl Connection {
    /// Completes the handshake in SYN-RECEIVED. Returns `false` if the segment needs no more
    /// processing.
    pub(crate) fn finish_handshake(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr) -> bool {
        let in_range = repr.ack.after(self.snd.una()) && repr.ack.before_eq(self.snd.nxt());
        if !in_range {
            self.snd
                .pending_mut()
                .request_reset(Reset::WithSeq(repr.ack));
            return false;
        }
        self.snd.pending_mut().cancel_syn();
        // RFC 7323 2.2: the window of a SYN is never scaled (simultaneous open).
        let scale = if repr.flags.contains(TcpFlags::SYN) {
            WindowScale::ZERO
        } else {
            self.snd.scale()
        };
        self.establish(cx, repr, repr.window.scaled(scale));
        true
    }

    /// Processes the ACK field. Returns `false` if the segment is to be dropped.
    #[inline(always)]
    pub(super) fn process_ack(
        &mut self,
        cx: &mut Cx<'_>,
        repr: &TcpRepr,
        has_data_or_fin: bool,
    ) -> bool {
        let ack = repr.ack;
        if ack.after(self.snd.nxt()) {
            cold_path();
            // RFC 9293 3.10.7.4: it acknowledges data that was never sent.
            return self.challenge_ack_field(cx);
        }
        if ack.before(self.snd.una()) {
            cold_path();
            // RFC 5961 5.2: the ACK is older than the largest window, or all data ever
            // acknowledged, can explain.
            let most = u64::from(self.snd.max_wnd()).min(self.acked_span()) as u32;
            if ack.before(self.snd.una() - most) {
                return self.challenge_ack_field(cx);
            }
            self.on_reordered_ack(cx, repr);
            return true;
        }
        self.snd.begin_ack(cx.legacy.in_force().max_burst);
        self.timers.probes = 0;
        let window_changed = self.update_window(cx, repr);
        let advanced = ack.after(self.snd.una());
        // With nothing in flight a DSACK may still report earlier data.
        let has_sack = !repr.options.sack.as_slice().is_empty();
        if advanced || has_sack || !self.recovery.rtx.is_empty() {
            if advanced && !has_sack && self.takes_ack_fast_path() {
                self.ack_fast_path(cx, repr);
            } else {
                cold_path();
                let duplicate = !advanced && !has_data_or_fin && !window_changed;
                self.update_scoreboard(cx, repr, duplicate);
            }
        }
        if advanced && self.user.writer_waiting {
            self.grow_sndbuf(cx);
            self.wake_writer_if_room(cx);
        }
        if self.state == State::Closed {
            cold_path();
            return true;
        }
        self.snd.on_limits_changed(self.recovery.rtx.has_lost());
        true
    }

    /// Returns the number of sequence numbers that the peer has acknowledged. A server's SYN is not
    /// counted: no segment of the peer in this connection acknowledges less.
    fn acked_span(&self) -> u64 {
        let syn = u64::from(self.user.active_open);
        let fin = u64::from(self.snd.is_fin_acked());
        self.stats.bytes_acked + syn + fin
    }

    /// Processes a reordered ACK. Its SACK blocks may report data received out of order (RFC 2018).
    #[cold]
    fn on_reordered_ack(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr) {
        self.snd.begin_ack(cx.legacy.in_force().max_burst);
        if !repr.options.sack.as_slice().is_empty() {
            self.update_scoreboard(cx, repr, false);
        }
        self.snd.on_limits_changed(self.recovery.rtx.has_lost());
    }

    fn challenge_ack_field(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.may_reject(cx, InvalidSegment::Challenge) {
            self.rcv.ack_now();
        }
        false
    }

    /// Updates the send window if the segment is not older than the last window update (RFC 9293
    /// 3.10.7.4). Returns whether the window differs from the known one, so that the ACK is no
    /// duplicate (RFC 5681 2).
    fn update_window(&mut self, cx: &Cx<'_>, repr: &TcpRepr) -> bool {
        if repr.flags.contains(TcpFlags::SYN) {
            cold_path();
            return false;
        }
        let Window(window) = repr.window.scaled(self.snd.scale());
        let changed = window != self.snd.wnd();
        if !self.snd.is_window_update(repr.seq, repr.ack, window) {
            return changed;
        }
        if self.snd.set_window(repr.seq, window) {
            cold_path();
            self.sync_mss(cx);
        }
        changed
    }

    /// Returns whether an ACK takes the fast path: nothing is lost, SACKed or probed for, and no
    /// rate samples are taken, so that the ACK only advances `snd_una`.
    #[inline(always)]
    fn takes_ack_fast_path(&self) -> bool {
        self.recovery.allows_fast_path()
            && !self.recovery.rtx.has_scoreboard()
            && self.recovery.rtx.delivery().is_none()
            && self.ecn.is_none()
    }

    /// Performs [`update_scoreboard`](Self::update_scoreboard) on the ACK fast path.
    #[inline(always)]
    fn ack_fast_path(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr) {
        let prior = self.timers.progress_at;
        let acked = self.recovery.rtx.ack_unmarked(cx.now, repr.ack);
        self.on_una_advanced(cx, repr.ack, acked.bytes, acked.fin);
        let (rtt, newest) = if let Some((oldest, newest)) = acked.rtts {
            (Some(oldest), Some(newest))
        } else {
            let echoed = self.echoed_rtt(cx, repr, acked.first_sent);
            (echoed, echoed)
        };
        if let Some(rtt) = rtt {
            self.on_rtt_sample(cx, rtt, false);
        } else if self.negotiated.timestamps {
            self.rtt.reset_backoff();
        }
        self.set_xmit_timer(cx);
        self.stats.delivered = self.stats.delivered.wrapping_add(acked.segs);
        self.grow_cwnd(cx, acked.segs, newest, prior);
        #[cfg(debug_assertions)]
        self.recovery.rtx.check();
    }

    /// Reports `segs` delivered segments to the congestion control, unless cwnd was not the limit
    /// (RFC 5681 4.1, RFC 7661).
    #[inline]
    fn grow_cwnd(&mut self, cx: &Cx<'_>, segs: u32, rtt: Option<Nanos>, prior: Instant) {
        if !self.congestion.was_cwnd_used() {
            return;
        }
        let sample = AckSample {
            now: cx.now,
            prior,
            acked_segs: segs,
            rtt,
            srtt: self.rtt.srtt().unwrap_or(Nanos::ZERO),
            snd_una: self.snd.una(),
            snd_nxt: self.snd.nxt(),
        };
        self.congestion.on_ack(&sample);
    }

    /// Advances `snd_una`, processes SACK blocks, and runs loss recovery and congestion control.
    fn update_scoreboard(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr, duplicate: bool) {
        let prior = self.timers.progress_at;
        self.check_app_limited();
        let prior_una = self.snd.una();
        let advanced = repr.ack.after(prior_una);
        let ambiguous = self.recovery.rtx.has_scoreboard() && self.match_echo(cx, repr);
        let blocks = repr.options.sack.as_slice();
        let has_blocks = self.negotiated.sack && !blocks.is_empty();
        let dsacked_retrans_segs = if has_blocks {
            self.recovery.rtx.dsacked_retrans_segs(repr.ack, blocks)
        } else {
            0
        };
        let outcome = if advanced {
            let outcome = self.recovery.rtx.ack(cx.now, repr.ack);
            self.on_una_advanced(cx, repr.ack, outcome.acked_bytes, outcome.fin);
            outcome
        } else {
            AckOutcome::default()
        };
        let sack = if has_blocks {
            self.recovery.rtx.sack(cx.now, repr.ack, blocks)
        } else {
            SackOutcome::default()
        };
        // A segment that elicited a DSACK lay outside the window, so the echoed timestamp is not
        // its own. The timestamp of a retransmission may be older than the retransmission.
        let may_predate = outcome.retransmitted && self.recovery.max_tsval_lag() > Nanos::ZERO;
        let is_unambiguous = sack.dsack.is_none() && !ambiguous && !may_predate;
        let echoed = self.echoed_rtt(cx, repr, outcome.first_sent.filter(|_| is_unambiguous));
        let rtt = outcome.rtt.or(sack.rtt).or(echoed);
        if let Some(rtt) = rtt {
            let is_exact = outcome.rtt.is_some() || (sack.rtt.is_some() && !sack.overtook);
            self.on_rtt_sample(cx, rtt, !is_exact);
        } else if advanced && self.negotiated.timestamps && !ambiguous {
            // Data is delivered, although this ACK gives no RTT sample.
            self.rtt.reset_backoff();
        }
        let summary = AckSummary {
            repr,
            ack: &outcome,
            sack: &sack,
            dsacked_retrans_segs,
            prior_una,
            advanced,
            duplicate,
        };
        let echo = self.ecn.is_some() && self.on_ecn_feedback(cx, &summary);
        let (arrived, timer_is_set) = if !echo && self.recovery.is_plain_ack(&summary) {
            self.recovery.on_delivered(cx.now, outcome.delivered_segs);
            (outcome.delivered_segs, false)
        } else {
            let (recovery, mut parts) = self.recovery_parts(cx);
            let arrived = recovery.on_ack(&mut parts, &summary, echo);
            let actions = parts.actions;
            (arrived, self.apply_recovery_actions(cx, actions))
        };
        self.recovery.rtx.end_ack();
        if !timer_is_set && (advanced || self.is_sack_older_than_head(cx, &sack)) {
            self.set_xmit_timer(cx);
        }
        self.stats.delivered = self.stats.delivered.wrapping_add(arrived);
        let delivered = outcome.delivered_segs + sack.delivered_segs;
        if self.recovery.rtx.delivery().is_some() {
            let sacked = sack.rtt_newest.filter(|_| !sack.overtook);
            self.report_rate_sample(cx, arrived, outcome.rtt_newest.or(sacked));
        } else if (advanced || self.is_sack_progress(cx, &sack)) && self.recovery.may_grow() {
            let rtt = outcome.rtt_newest.or(rtt);
            self.grow_cwnd(cx, delivered, rtt, prior);
        }
        #[cfg(debug_assertions)]
        self.recovery.rtx.check();
    }

    /// Returns whether newly SACKed data counts as progress: on a path that is known to reorder, it
    /// is as good as data in order.
    fn is_sack_progress(&self, cx: &Cx<'_>, sack: &SackOutcome) -> bool {
        sack.delivered_segs > 0 && self.recovery.reordering_segs() > cx.sysctl.tcp_reordering
    }

    /// Passes the delivery rate of the acknowledged flight to a congestion control that models the
    /// path.
    fn report_rate_sample(&mut self, cx: &mut Cx<'_>, arrived: u32, rtt: Option<Nanos>) {
        let send_quantum_segs = self.snd.max_segs(cx, self.path());
        let in_flight_segs = self.recovery.rtx.in_flight();
        let min_rtt = self.rtt.min_rtt().unwrap_or(Nanos::ZERO);
        let Some(delivery) = self.recovery.rtx.delivery_mut() else {
            return;
        };
        let sample = RateSample {
            now: cx.now,
            flight: delivery.take_sample(min_rtt),
            delivered_segs: delivery.delivered(),
            newly_delivered_segs: arrived,
            in_flight_segs,
            rtt,
            srtt: self.rtt.srtt().unwrap_or(Nanos::ZERO),
            cwnd_limited: self.congestion.is_cwnd_limited(),
            cwnd_used: self.congestion.was_cwnd_used(),
            in_recovery: self.recovery.ca_state() == CaState::Recovery,
            sack: self.negotiated.sack,
            send_quantum_segs,
            mss: self.snd.mss(),
        };
        self.congestion.on_rate_sample(&sample, cx.rng);
        if self.congestion.algorithm().is_self_limited() {
            self.recovery.rtx.mark_app_limited();
        }
    }

    /// Marks the flight as application-limited if nothing is left to send although the path would
    /// take more (draft-ietf-ccwg-bbr 4.1.2.4). To be called before any of these conditions
    /// changes.
    #[inline]
    pub(crate) fn check_app_limited(&mut self) {
        if self.recovery.rtx.delivery().is_none() {
            return;
        }
        cold_path();
        let snd = &mut self.snd;
        let limited = snd.unsent_bytes() < snd.mss().bytes() as usize
            && snd.wmem_inflight() == 0
            && self.recovery.rtx.in_flight() < self.congestion.cwnd()
            && !self.recovery.rtx.has_lost();
        if limited {
            self.recovery.rtx.mark_app_limited();
        }
    }

    /// Determines from the ACK's echoed timestamp which transmission of a segment arrived (RFC 8985
    /// 6.2 step 2). Returns whether the echo gives no RTT sample: it is that of an earlier
    /// transmission of the head, but the last one may have elicited it because the first answer was
    /// lost. A DSACK would distinguish them; without SACK this is Karn's case.
    #[cold]
    fn match_echo(&mut self, cx: &Cx<'_>, repr: &TcpRepr) -> bool {
        let echo = repr
            .options
            .timestamps
            .filter(|_| self.negotiated.timestamps);
        let since = self.recovery.rtx.head_first_sent_at();
        let age = echo
            .zip(since)
            .and_then(|(ts, since)| self.ts.since_echo(cx.now, ts.ecr, since));
        let lag = self.recovery.max_tsval_lag();
        let echoed = age.map(|age| cx.now - age.saturating_sub(TICK + lag));
        let min_rtt = self.rtt.min_rtt().unwrap_or(Nanos::ZERO);
        self.recovery.rtx.begin_ack(AckContext {
            now: cx.now,
            min_rtt,
            echoed,
        });
        let last = self.recovery.rtx.head_sent_at().zip(echoed);
        // Clocks and timers are not exact.
        let least = min_rtt.saturating_sub(min_rtt / 16);
        let early = last.is_some_and(|(sent, echoed)| echoed < sent && cx.now >= sent + least);
        early && !self.negotiated.sack
    }

    /// Returns whether newly SACKed data was sent before the last transmission of the head, so that
    /// the timer restarts now. If data sent later restarted it, the timer might never fire for the
    /// head.
    fn is_sack_older_than_head(&self, cx: &Cx<'_>, sack: &SackOutcome) -> bool {
        let head = self.recovery.rtx.head_sent_at();
        let rtt = sack.rtt.filter(|_| !self.recovery.rtx.is_empty());
        rtt.zip(head)
            .is_some_and(|(rtt, sent)| rtt > cx.now.since(sent))
    }

    /// Moves `snd_una` to `ack`, which acknowledges `bytes` of data and perhaps our FIN.
    #[inline]
    fn on_una_advanced(&mut self, cx: &mut Cx<'_>, ack: SeqNum, bytes: u32, fin: bool) {
        self.snd.advance_una(ack);
        self.stats.bytes_acked += u64::from(bytes);
        self.timers.progress_at = cx.now;
        self.timers.retransmits = 0;
        if self.uncommon.is_some() {
            cold_path();
            self.watch_acked(cx);
            self.check_mtu_probe(cx);
            self.on_urgent_acked();
            self.end_rto_recovery(cx.now);
        }
        if self.recovery.rtx.is_empty() && !self.snd.has_unsent() {
            self.snd.end_busy(cx.now);
        }
        if fin {
            cold_path();
            self.on_fin_acked(cx);
        }
    }

    /// Returns the RTT from the echoed timestamp (RFC 7323 4.1), which is unambiguous even after a
    /// retransmission. `since` is the time of the first transmission of the oldest data that the
    /// ACK covers.
    pub(super) fn echoed_rtt(
        &self,
        cx: &Cx<'_>,
        repr: &TcpRepr,
        since: Option<Instant>,
    ) -> Option<Nanos> {
        let ts = repr.options.timestamps?;
        let usable = self.negotiated.timestamps && ts.ecr != 0;
        let since = since.filter(|_| usable)?;
        self.ts.since_echo(cx.now, ts.ecr, since)
    }

    /// Processes the RTT of a segment. If it `overtook` others, it does not count for the minimum
    /// RTT: a single packet that took a shorter path would reduce RACK's reordering window and
    /// BBR's bandwidth-delay product for minutes.
    pub(crate) fn on_rtt_sample(&mut self, cx: &Cx<'_>, rtt: Nanos, overtook: bool) {
        self.rtt.on_sample(cx.now, rtt, overtook);
        self.rcv.on_rtt(rtt);
    }
}
