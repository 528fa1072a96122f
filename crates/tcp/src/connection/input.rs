//! Processing of received segments (RFC 9293 3.10.7): the order of processing, and the
//! acceptability checks. The payload and FIN of an acceptable segment follow in `payload.rs`.

use fullsend_wire::tcp::{SackBlock, TcpFlags, TcpRepr};
use fullsend_wire::{Instant, SeqNum, Window, cold_path};

use super::{Connection, State, TsState};
use crate::recv::SegmentPosition;
use crate::{Cx, SegmentIn, TcpError};

/// RFC 7323 5.5: after 24 days without traffic the timestamp clock may have wrapped.
const TS_RECENT_VALID_S: u32 = 24 * 24 * 3600;

/// Ticks by which an acceptable timestamp may be older than the last one. Matches Linux: data sent just
/// before a retransmission may arrive just after it.
const PAWS_WINDOW_TICKS: i32 = 1;

/// Least distance from `rcv_nxt`, in bytes, at which a segment can be the peer's own
/// retransmission, whatever our window.
const MIN_NEAR_BYTES: u32 = 65_536;

/// The reason for answering an unacceptable segment. Answers that the rate limit withholds are counted
/// for each reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InvalidSegment {
    /// The segment lies outside the window.
    Sequence,
    /// The timestamp is old.
    Paws,
    /// A challenge ACK is due (RFC 5961).
    Challenge,
}

impl Connection {
    /// Processes a segment of this connection (RFC 9293 3.10.7). Takes its payload.
    pub fn handle_segment(&mut self, cx: &mut Cx<'_>, segment: &mut SegmentIn) {
        let segs = u32::from(segment.gso_segs.max(1));
        cx.mib.in_segs += u64::from(segs);
        self.stats.segs_in = self.stats.segs_in.wrapping_add(segs);
        match self.state {
            State::SynSent => {
                cold_path();
                self.segment_in_syn_sent(cx, segment);
            }
            State::Closed => cold_path(),
            _ => self.segment_in_other_states(cx, segment),
        }
        self.charge(cx);
    }

    fn segment_in_other_states(&mut self, cx: &mut Cx<'_>, segment: &mut SegmentIn) {
        // RFC 9293 3.10.7.4, fifth: a segment without ACK is dropped. Matches Linux in that it is
        // not answered either, wherever it lies.
        let answered = TcpFlags::ACK.union(TcpFlags::SYN).union(TcpFlags::RST);
        if !segment.repr.flags.intersects(answered) || !self.is_acceptable(cx, segment) {
            cold_path();
            return;
        }
        let repr = &segment.repr;
        let last = self.state == State::SynReceived;
        if last {
            cold_path();
            if !self.finish_handshake(cx, repr) {
                return;
            }
        }
        if self.ecn.is_some() {
            self.on_ecn(cx, segment, last);
        }
        self.timers.received_at = cx.now;
        let has_payload = !segment.payload.is_empty();
        let fin = repr.flags.contains(TcpFlags::FIN);
        if !self.process_ack(cx, repr, has_payload || fin) {
            cold_path();
            return;
        }
        // Only for accepted segments: a forged timestamp would make all later ones look old.
        self.record_timestamp(cx.now, &segment.repr);
        if segment.repr.flags.contains(TcpFlags::URG) {
            cold_path();
            self.on_urgent(&segment.repr);
        }
        if has_payload || fin {
            let payload = core::mem::take(&mut segment.payload);
            self.on_payload(cx, segment, payload, fin);
        }
    }

    /// Performs the first four steps of RFC 9293 3.10.7.4, with the additions of RFC 7323 and RFC
    /// 5961: timestamp, sequence number, RST, SYN.
    fn is_acceptable(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn) -> bool {
        let repr = &segment.repr;
        if repr.flags.intersects(TcpFlags::SYN.union(TcpFlags::RST)) {
            cold_path();
            return self.is_control_acceptable(cx, segment);
        }
        if self.has_old_timestamp(cx.now, repr) {
            cold_path();
            if !self.is_reordered_ack(segment) {
                self.on_old_timestamp(cx, segment);
                return false;
            }
        }
        let position = self.position(segment);
        match position {
            SegmentPosition::Within => {}
            SegmentPosition::Before if self.is_retransmission(segment) => {
                self.on_retransmission(cx, segment);
            }
            position => {
                cold_path();
                cx.mib.beyond_window += u64::from(position == SegmentPosition::Beyond);
                self.reject(cx, segment, InvalidSegment::Sequence);
            }
        }
        position == SegmentPosition::Within
    }

    /// Answers a segment with an old timestamp (RFC 7323 5.3 R1). Matches Linux in that a pure ACK
    /// that was reordered, or reports nothing new, is not answered.
    #[cold]
    fn on_old_timestamp(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn) {
        cx.mib.paws_estab += 1;
        let repr = &segment.repr;
        let rcv_nxt = self.rcv.nxt();
        let pure = segment.payload.is_empty() && !repr.flags.contains(TcpFlags::FIN);
        let known = repr.seq == rcv_nxt && self.is_redundant_ack(repr);
        if !pure || !(known || repr.seq.before(rcv_nxt)) {
            self.reject(cx, segment, InvalidSegment::Paws);
        }
    }

    /// Returns whether an ACK acknowledges no new data and changes no window.
    fn is_redundant_ack(&self, repr: &TcpRepr) -> bool {
        let Window(window) = repr.window.scaled(self.snd.scale());
        repr.ack == self.snd.una() && !self.snd.is_window_update(repr.seq, repr.ack, window)
    }

    /// Returns whether everything in a segment was received before, but some of it was not
    /// acknowledged yet when the peer sent it, by the ACKs that the peer can have received.
    fn is_retransmission(&self, segment: &SegmentIn) -> bool {
        let end = segment.repr.seq + segment_len(segment);
        end.after_eq(self.rcv.last_acked())
    }

    /// Processes the ACK field and the timestamp of retransmitted data. RFC 9293 3.10.7.4 drops
    /// such segments; Linux does not: their acknowledgement may be the only one.
    #[cold]
    fn on_retransmission(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn) {
        let bare = segment.payload.is_empty() && !segment.repr.flags.contains(TcpFlags::FIN);
        if self.state == State::SynReceived && !self.finish_handshake(cx, &segment.repr) {
            return;
        }
        self.timers.received_at = cx.now;
        if !self.process_ack(cx, &segment.repr, !bare) {
            // RFC 5961 5.2: the challenge ACK is the only answer.
            return;
        }
        self.record_timestamp(cx.now, &segment.repr);
        if !bare && self.state != State::Closed {
            self.reject(cx, segment, InvalidSegment::Sequence);
        }
    }

    /// Returns the position of a segment relative to the receive window.
    #[inline]
    fn position(&self, segment: &SegmentIn) -> SegmentPosition {
        let fin = segment.repr.flags.contains(TcpFlags::FIN);
        let range = (segment.repr.seq, segment_len(segment), fin);
        let furthest = || self.uncommon.as_ref()?.former_right_edge;
        self.rcv.position(range, furthest)
    }

    /// Performs the checks of [`is_acceptable`](Self::is_acceptable) for RST and SYN.
    #[cold]
    fn is_control_acceptable(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn) -> bool {
        let repr = &segment.repr;
        let rcv_nxt = self.rcv.nxt();
        if repr.flags.contains(TcpFlags::RST) {
            if self.is_exact_reset(repr.seq) {
                self.on_reset(cx);
            } else if self.position(segment) == SegmentPosition::Within {
                if self.uncommon.is_some() {
                    self.fastopen_unexpected_reset();
                }
                self.reject(cx, segment, InvalidSegment::Challenge);
            }
            return false;
        }
        if self.is_simultaneous_syn_ack(segment) && !self.has_old_timestamp(cx.now, repr) {
            // Simultaneous open: the peer's SYN-ACK repeats its SYN and acknowledges ours.
            return true;
        }
        let acks_syn = repr.flags.contains(TcpFlags::ACK) && repr.ack == self.snd.nxt();
        if self.state == State::SynReceived && repr.seq + 1 == rcv_nxt && !acks_syn {
            // The peer retransmitted its SYN: our SYN-ACK was lost.
            if let Some(ecn) = &mut self.ecn {
                ecn.on_syn_retransmission(repr.flags, segment.ecn);
            }
            self.snd.pending_mut().request_syn();
            return false;
        }
        // RFC 5961 4.2: whatever its sequence number. A peer that has restarted answers the
        // challenge ACK with the RST that ends this connection.
        cx.mib.syn_challenge += 1;
        self.reject(cx, segment, InvalidSegment::Challenge);
        if self.ecn.is_some() {
            self.reflect_repeated_syn_ack(segment);
        }
        false
    }

    /// Returns whether a RST has exactly the expected sequence number (RFC 5961 3.2).
    fn is_exact_reset(&self, seq: SeqNum) -> bool {
        let rcv = &self.rcv;
        // Matches Linux: a peer resets after the last data that it sent, which SACK blocks have
        // reported as received; some peers reset with the number of the FIN that they have sent.
        // Without SACK the peer learns nothing about data out of order, and only `rcv_nxt` counts.
        let behind_fin = rcv.fin_received() && seq + 1 == rcv.nxt();
        let behind_gap = self.negotiated.sack && rcv.ofo_end() == Some(seq);
        seq == rcv.nxt() || behind_fin || behind_gap
    }

    /// Returns whether the segment is the bare SYN-ACK of a simultaneous open. As on Linux, one
    /// with data or a FIN elicits an ACK, and the peer sends them again without the SYN.
    fn is_simultaneous_syn_ack(&self, segment: &SegmentIn) -> bool {
        let repr = &segment.repr;
        self.state == State::SynReceived
            && repr.flags.contains(TcpFlags::SYN.union(TcpFlags::ACK))
            && segment_len(segment) == 1
            && repr.seq + 1 == self.rcv.nxt()
            && repr.ack == self.snd.nxt()
    }

    /// Returns whether the timestamp is old (RFC 7323 5.3 R1).
    fn has_old_timestamp(&self, now: Instant, repr: &TcpRepr) -> bool {
        let Some(ts) = repr.options.timestamps else {
            return false;
        };
        if !self.negotiated.timestamps || !self.ts.has_recent {
            return false;
        }
        let older = (ts.val.wrapping_sub(self.ts.recent) as i32) < -PAWS_WINDOW_TICKS;
        if !older {
            return false;
        }
        cold_path();
        seconds(now).wrapping_sub(self.ts.recent_at_s) < TS_RECENT_VALID_S
    }

    /// Returns whether the segment is a duplicate ACK that was reordered: it opens no window and
    /// acknowledges nothing new, but its SACK blocks may. As on Linux it is accepted if it is not
    /// older than 1.2 RTO.
    #[cold]
    fn is_reordered_ack(&self, segment: &SegmentIn) -> bool {
        let repr = &segment.repr;
        let Some(ts) = repr.options.timestamps else {
            return false;
        };
        let age_ms = self.ts.recent.wrapping_sub(ts.val);
        segment_len(segment) == 0
            && repr.seq == self.rcv.nxt()
            && self.is_redundant_ack(repr)
            && u64::from(age_ms) <= self.rtt.base_rto().nanos().as_millis() * 6 / 5
    }

    /// Returns whether the segment has a later timestamp than all before.
    pub(crate) fn has_later_timestamp(&self, repr: &TcpRepr) -> bool {
        let ts = repr
            .options
            .timestamps
            .filter(|_| self.negotiated.timestamps);
        ts.is_some_and(|ts| (ts.val.wrapping_sub(self.ts.recent) as i32) > 0)
    }

    /// Records the timestamp of an accepted segment (RFC 7323 4.3 (2)).
    fn record_timestamp(&mut self, now: Instant, repr: &TcpRepr) {
        if let Some(ts) = repr.options.timestamps
            && self.negotiated.timestamps
            && repr.seq.before_eq(self.rcv.last_acked())
        {
            self.ts.update_recent(now, ts.val);
        }
    }

    /// Processes an accepted RST.
    fn on_reset(&mut self, cx: &mut Cx<'_>) {
        let error = match self.state {
            // The application already has the connection.
            State::SynReceived if self.is_fastopen_child() => TcpError::ConnectionReset,
            State::SynReceived => {
                cx.mib.attempt_fails += 1;
                TcpError::ConnectionRefused
            }
            // RFC 9293 3.10.7.4: the peer has closed, and only the exchange of FINs is unfinished.
            State::Closing | State::LastAck => {
                self.transition(State::Closed);
                // An ACK would only draw another RST.
                self.rcv.cancel_ack();
                self.finish();
                return;
            }
            state => {
                if matches!(state, State::Established | State::CloseWait) {
                    cx.mib.estab_resets += 1;
                }
                if state == State::CloseWait {
                    TcpError::BrokenPipe
                } else {
                    TcpError::ConnectionReset
                }
            }
        };
        self.fail(error);
    }

    /// Answers an unacceptable segment with an ACK, so that a legitimate peer can resynchronize.
    /// Answers to segments without data are rate limited (RFC 5961 10).
    pub(crate) fn reject(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn, reason: InvalidSegment) {
        let is_plausible = reason != InvalidSegment::Challenge
            && !segment.payload.is_empty()
            && self.is_near_window(segment.repr.seq);
        if is_plausible {
            self.record_duplicate(cx, segment);
        } else if !self.may_reject(cx, reason) {
            return;
        }
        self.rcv.ack_now();
    }

    /// Returns whether data at `seq` may come from the peer itself: a retransmission of received
    /// data, or a probe beyond a closed window. The guess of a blind attacker rarely lies in this
    /// range.
    fn is_near_window(&self, seq: SeqNum) -> bool {
        let rcv_nxt = self.rcv.nxt();
        let furthest = self.uncommon.as_ref().and_then(|e| e.former_right_edge);
        let withdrawn = furthest.map_or(0, |edge| edge.distance(rcv_nxt).max(0) as u32);
        let window = self
            .rcv
            .largest_offered()
            .max(withdrawn)
            .max(MIN_NEAR_BYTES);
        seq.in_window(rcv_nxt - window, 3 * window)
    }

    pub(crate) fn may_reject(&mut self, cx: &mut Cx<'_>, reason: InvalidSegment) -> bool {
        let now_ms = cx.now.as_millis() as u32;
        let last_ms = self.timers.rejected_at_ms;
        let recent = last_ms != 0 && now_ms.wrapping_sub(last_ms) < cx.sysctl.tcp_invalid_ratelimit;
        let challenge = reason == InvalidSegment::Challenge;
        let most = cx.sysctl.tcp_challenge_ack_limit;
        if recent || (challenge && !cx.limits.may_challenge(cx.now, cx.rng, most)) {
            let skipped = match reason {
                InvalidSegment::Sequence => &mut cx.mib.ack_skipped_seq,
                InvalidSegment::Paws => &mut cx.mib.ack_skipped_paws,
                InvalidSegment::Challenge => &mut cx.mib.ack_skipped_challenge,
            };
            *skipped += 1;
            return false;
        }
        cx.mib.challenge_ack += u64::from(challenge);
        self.timers.rejected_at_ms = now_ms.max(1);
        true
    }

    /// Records data received twice for a DSACK (RFC 2883).
    fn record_duplicate(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn) {
        let rcv_nxt = self.rcv.nxt();
        let left = segment.repr.seq;
        let right = left + segment.payload.len() as u32;
        if !left.before(rcv_nxt) {
            return;
        }
        if self.ecn.is_some() {
            self.on_old_data_ecn(segment);
        }
        cx.mib.delayed_ack_lost += 1;
        self.rcv.enter_quickack();
        if self.negotiated.sack && cx.sysctl.tcp_dsack {
            cx.mib.dsack_old_sent += 1;
            let right = right.earliest(rcv_nxt);
            self.rcv.record_duplicate(SackBlock { left, right });
        }
    }
}

impl TsState {
    /// Records the TSval of an acceptable segment unless it is older than the last.
    pub(crate) fn update_recent(&mut self, now: Instant, val: u32) {
        if self.has_recent && (val.wrapping_sub(self.recent) as i32) < 0 {
            cold_path();
            let age_s = seconds(now).wrapping_sub(self.recent_at_s);
            if age_s < TS_RECENT_VALID_S {
                return;
            }
        }
        self.recent = val;
        self.recent_at_s = seconds(now);
        // Some stacks send TSval 0 in their SYN, and their clock's afterwards.
        self.has_recent = val != 0;
    }
}

/// Returns the length of a segment in sequence space: payload, SYN and FIN.
fn segment_len(segment: &SegmentIn) -> u32 {
    let flags = segment.repr.flags;
    segment.payload.len() as u32
        + u32::from(flags.contains(TcpFlags::SYN))
        + u32::from(flags.contains(TcpFlags::FIN))
}

fn seconds(now: Instant) -> u32 {
    (now.as_millis() / 1000) as u32
}
