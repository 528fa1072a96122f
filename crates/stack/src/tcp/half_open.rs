//! Half-open connections (SYN-RECEIVED): the compact state that is kept of a SYN until its sender
//! has proved that it receives packets at its address (RFC 4987 3.3).

use fullsend_tcp::{SegmentIn, SynAckSent, Sysctl};
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};
use fullsend_wire::{EcnField, Instant, Nanos, SeqNum, WireWindow};

use super::syn_limit::SynBudget;
use crate::demux::FlowKey;

/// Initial timeout of the SYN-ACK (RFC 6298 2.1), doubled for each retransmission.
const FIRST_TIMEOUT: Nanos = Nanos::from_secs(1);

/// The flags of the ECN negotiation.
pub(super) const ECN: TcpFlags = TcpFlags::ECE.union(TcpFlags::CWR).union(TcpFlags::AE);

/// The fields of a SYN that completing the handshake needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SynSummary {
    pub(super) seq: SeqNum,
    ts_val: u32,
    window: u16,
    /// 0 means that the SYN had no MSS option.
    mss: u16,
    flags: TcpFlags,
    /// 255 means that the SYN had no window scale option.
    window_scale: u8,
    sack: bool,
    timestamps: bool,
    /// ECN field of the SYN's IP header.
    pub(super) ecn: EcnField,
    /// The budget that admitted the SYN. It is stored here because it fits into the padding.
    pub(super) budget: SynBudget,
}

const _: () = assert!(size_of::<SynSummary>() <= 20);

impl SynSummary {
    pub(super) fn of((syn, ecn): (&TcpRepr, EcnField), budget: SynBudget) -> Self {
        let options = &syn.options;
        Self {
            seq: syn.seq,
            ts_val: options.timestamps.map_or(0, |ts| ts.val),
            window: syn.window.0,
            mss: options.mss.unwrap_or(0),
            flags: syn.flags,
            window_scale: options.window_scale.unwrap_or(u8::MAX),
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
            ecn,
            budget,
        }
    }

    /// Rebuilds the SYN.
    pub(super) fn repr(&self, key: &FlowKey) -> TcpRepr {
        TcpRepr {
            src_port: key.remote_port,
            dst_port: key.local_port,
            seq: self.seq,
            flags: self.flags,
            window: WireWindow(self.window),
            options: TcpOptions {
                mss: (self.mss != 0).then_some(self.mss),
                window_scale: (self.window_scale != u8::MAX).then_some(self.window_scale),
                sack_permitted: self.sack,
                timestamps: self.timestamps.then_some(Timestamps {
                    val: self.ts_val,
                    ecr: 0,
                }),
                ..TcpOptions::default()
            },
            ..TcpRepr::default()
        }
    }
}

/// A half-open connection.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    pub(super) key: FlowKey,
    /// Slot of its listener.
    pub(super) listener: u32,
    pub(super) syn: SynSummary,
    pub(super) iss: SeqNum,
    /// The times at which the first SYN-ACK, and the last SYN-ACK or ACK, were sent.
    first_sent: Instant,
    last_sent: Instant,
    /// The time at which the SYN-ACK is retransmitted or the connection is dropped.
    pub(super) due: Instant,
    ts_offset: u32,
    /// The time at which an invalid segment was last answered, in milliseconds; 0 means never.
    answered_at_ms: u32,
    /// The window and the window scale that the SYN-ACK advertised.
    window: u16,
    window_scale: u8,
    pub(super) timeouts: u8,
    /// SYN-ACKs sent after the first one.
    repeats: u8,
    /// Whether the SYN was retransmitted without its ECN flags.
    ecn_withdrawn: bool,
    /// Whether the final ACK of the handshake was received, but the connection could not be queued
    /// for accept yet.
    pub(super) acked: bool,
}

// RFC 4987: the cost of a spoofed SYN. Its slots in the tables add some 50 bytes.
const _: () = assert!(size_of::<HalfOpen>() <= 112);

/// The way to process a segment for a half-open connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HalfOpenAction {
    Drop,
    /// A retransmission of the SYN: the SYN-ACK is retransmitted, too.
    RetransmitSynAck,
    /// An ACK with the current sequence numbers is sent (RFC 9293 3.10.7.4, first; RFC 5961).
    SendAck,
    /// The segment acknowledges data that was not sent: a RST is sent (RFC 9293 3.10.7.4, fifth).
    SendReset,
    /// The peer has reset the connection.
    Abort,
    /// The segment completes the handshake.
    Establish,
}

/// The reason why a segment is not acceptable, for the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RejectReason {
    None,
    /// The segment's timestamp is older than the last one (PAWS).
    OldTimestamp,
    /// The segment echoes a timestamp that no SYN-ACK had.
    UnknownEcho,
    /// The segment is a different SYN.
    DifferentSyn,
}

impl HalfOpen {
    /// Creates the state for the SYN-ACK `sent`, which has just been sent.
    pub(super) fn new(
        now: Instant,
        (key, listener): (FlowKey, u32),
        syn: SynSummary,
        sent: &TcpRepr,
        ts_offset: u32,
    ) -> Self {
        Self {
            key,
            listener,
            syn,
            iss: sent.seq,
            first_sent: now,
            last_sent: now,
            due: now + FIRST_TIMEOUT,
            ts_offset,
            answered_at_ms: 0,
            window: sent.window.0,
            window_scale: sent.options.window_scale.unwrap_or(0),
            timeouts: 0,
            repeats: 0,
            ecn_withdrawn: false,
            acked: false,
        }
    }

    /// Returns what the connection needs of the SYN-ACK to continue from here.
    pub(super) fn syn_ack_sent(&self) -> SynAckSent {
        // RFC 6298 3: an ACK occupies no sequence number, so that it makes no sample ambiguous.
        let is_repeated = self.repeats > 0;
        SynAckSent {
            first_at: self.first_sent,
            at: if is_repeated {
                self.last_sent
            } else {
                self.first_sent
            },
            ambiguous: is_repeated,
            window_scale: self.window_scale,
            repeats: self.repeats,
            timeouts: self.timeouts,
            ecn_withdrawn: self.ecn_withdrawn,
        }
    }

    /// Processes a timeout without retransmission: the peer has answered, and the host waits for
    /// data.
    pub(super) fn on_timeout_without_retransmit(&mut self, now: Instant, rto_max: Nanos) {
        self.timeouts = self.timeouts.saturating_add(1);
        self.rearm(now, rto_max);
    }

    /// Records a retransmission of the SYN-ACK; `by_timer` is whether a timeout caused it.
    pub(super) fn on_retransmit(&mut self, now: Instant, by_timer: bool, rto_max: Nanos) {
        self.timeouts = self.timeouts.saturating_add(u8::from(by_timer));
        self.repeats = self.repeats.saturating_add(1);
        self.last_sent = now;
        self.rearm(now, rto_max);
    }

    fn rearm(&mut self, now: Instant, rto_max: Nanos) {
        self.due = now + (FIRST_TIMEOUT * (1 << self.timeouts.min(7))).min(rto_max);
    }

    /// Returns whether the rate limit allows an answer to an invalid segment
    /// (`tcp_invalid_ratelimit`).
    pub(super) fn may_send_challenge_ack(&mut self, now: Instant, sysctl: &Sysctl) -> bool {
        let now_ms = now.as_millis() as u32;
        let since = now_ms.wrapping_sub(self.answered_at_ms);
        let allowed = self.answered_at_ms == 0 || since >= sysctl.tcp_invalid_ratelimit;
        if allowed {
            self.answered_at_ms = now_ms.max(1);
        }
        allowed
    }

    /// Determines how to process a segment.
    pub(super) fn classify(&mut self, segment: &SegmentIn) -> (HalfOpenAction, RejectReason) {
        let repr = &segment.repr;
        let flags = repr.flags;
        let rcv_nxt = self.syn.seq + 1;
        let reason = self.check_timestamp(repr);
        let has = |flag| flags.contains(flag);
        let is_syn = has(TcpFlags::SYN) && !flags.intersects(TcpFlags::ACK.union(TcpFlags::RST));
        if is_syn && repr.seq == self.syn.seq && reason != RejectReason::OldTimestamp {
            // RFC 9768 3.1.5: the SYN-ACK reflects the ECN field of the last SYN.
            if self.syn.flags.contains(TcpFlags::AE) {
                self.syn.ecn = segment.ecn;
            }
            self.ecn_withdrawn |= !flags.intersects(ECN);
            return (HalfOpenAction::RetransmitSynAck, RejectReason::None);
        }
        if has(TcpFlags::RST) {
            // RFC 5961 3.2.
            let action = match repr.seq {
                seq if seq == rcv_nxt => HalfOpenAction::Abort,
                seq if seq.in_window(rcv_nxt, self.window.into()) => HalfOpenAction::SendAck,
                _ => HalfOpenAction::Drop,
            };
            return (action, RejectReason::None);
        }
        if reason != RejectReason::None {
            return (HalfOpenAction::SendAck, reason);
        }
        if has(TcpFlags::SYN) {
            return (HalfOpenAction::SendAck, RejectReason::DifferentSyn);
        }
        if !self.is_in_window(repr.seq, segment.payload.len() as u32) {
            return (HalfOpenAction::SendAck, RejectReason::None);
        }
        if !has(TcpFlags::ACK) {
            return (HalfOpenAction::Drop, RejectReason::None);
        }
        if repr.ack != self.iss + 1 {
            return (HalfOpenAction::SendReset, RejectReason::None);
        }
        if let Some(ts) = repr
            .options
            .timestamps
            .filter(|_| repr.seq.before_eq(rcv_nxt))
        {
            self.syn.ts_val = ts.val;
        }
        (HalfOpenAction::Establish, RejectReason::None)
    }

    fn is_in_window(&self, seq: SeqNum, len: u32) -> bool {
        let (rcv_nxt, window) = (self.syn.seq + 1, self.window.into());
        // The right edge of the window is included: a peer that has filled the window sends its
        // ACKs there.
        seq.since(rcv_nxt) <= window || rcv_nxt.in_window(seq, len)
    }

    fn check_timestamp(&self, repr: &TcpRepr) -> RejectReason {
        let Some(ts) = repr.options.timestamps.filter(|_| self.syn.timestamps) else {
            return RejectReason::None;
        };
        // Some stacks send TSval 0 in their SYN, and their clock's afterwards.
        if self.syn.ts_val != 0 && (ts.val.wrapping_sub(self.syn.ts_val) as i32) < 0 {
            return RejectReason::OldTimestamp;
        }
        let sent = |at: Instant| (at.as_millis() as u32).wrapping_add(self.ts_offset);
        let (first, last) = (sent(self.first_sent), sent(self.last_sent));
        let echoes_ours = ts.ecr.wrapping_sub(first) <= last.wrapping_sub(first);
        if ts.ecr == 0 || echoes_ours || !repr.flags.contains(TcpFlags::ACK) {
            RejectReason::None
        } else {
            RejectReason::UnknownEcho
        }
    }

    /// Builds the ACK with the current sequence numbers.
    pub(super) fn build_ack(&mut self, now: Instant) -> TcpRepr {
        // The peer may echo the timestamp of this ACK, too.
        self.last_sent = now;
        TcpRepr {
            src_port: self.key.local_port,
            dst_port: self.key.remote_port,
            seq: self.iss + 1,
            ack: self.syn.seq + 1,
            flags: TcpFlags::ACK,
            // RFC 7323 2.3: the window is scaled, as in all segments after the SYNs.
            window: WireWindow(self.window >> self.window_scale.min(14)),
            options: TcpOptions {
                timestamps: self.syn.timestamps.then(|| Timestamps {
                    val: (now.as_millis() as u32).wrapping_add(self.ts_offset),
                    ecr: self.syn.ts_val,
                }),
                ..TcpOptions::default()
            },
            ..TcpRepr::default()
        }
    }
}
