//! Half-open connections (SYN-RECEIVED) in their small form: all that is kept of a SYN until its
//! sender has shown that it gets our answers (RFC 4987 3.3).

use fullsend_tcp::{SegmentIn, SynAckSent, Sysctl};
use fullsend_units::{Instant, Nanos, SeqNum, WireWindow};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

use super::syn_limit::Budget;
use crate::demux::FlowKey;

/// Before the SYN-ACK is sent again for the first time (RFC 6298 2.1), doubled each time.
const FIRST_TIMEOUT: Nanos = Nanos::from_secs(1);

/// The flags that ask for ECN.
pub(super) const ECN: TcpFlags = TcpFlags::ECE.union(TcpFlags::CWR).union(TcpFlags::AE);

/// A SYN without what nobody needs of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SynSummary {
    pub(super) seq: SeqNum,
    ts_val: u32,
    window: u16,
    /// 0: not told.
    mss: u16,
    flags: TcpFlags,
    /// 255: not offered.
    window_scale: u8,
    sack: bool,
    timestamps: bool,
    /// Of the SYN's IP header.
    pub(super) ecn: EcnField,
    /// The budget that admitted the SYN. It lies here as here it takes no memory.
    pub(super) budget: Budget,
}

const _: () = assert!(size_of::<SynSummary>() <= 20);

impl SynSummary {
    pub(super) fn of((syn, ecn): (&TcpRepr, EcnField), budget: Budget) -> Self {
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

    /// The SYN again.
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
pub(crate) struct Request {
    pub(super) key: FlowKey,
    /// Its listener's slot.
    pub(super) listener: u32,
    pub(super) syn: SynSummary,
    pub(super) iss: SeqNum,
    /// Of the SYN-ACKs, the first and the last.
    first_sent: Instant,
    last_sent: Instant,
    /// When the SYN-ACK goes once more, or all is given up.
    pub(super) due: Instant,
    ts_offset: u32,
    /// When a bad segment was last answered, in milliseconds; 0: never.
    answered_at_ms: u32,
    /// What the SYN-ACK says.
    window: u16,
    window_scale: u8,
    pub(super) timeouts: u8,
    sent_again: bool,
    /// SYN-ACKs but the first.
    repeats: u8,
    /// The SYN came again without its ECN flags.
    ecn_withdrawn: bool,
    /// The handshake's last ACK has come, but nobody made room in the accept queue.
    pub(super) acked: bool,
}

// RFC 4987: what a spoofed SYN costs. Its slots in the tables come to some 50 bytes more.
const _: () = assert!(size_of::<Request>() <= 112);

/// What to do with a segment for a half-open connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Drop,
    /// The SYN came again: so does our SYN-ACK.
    Repeat,
    /// Say where we are (RFC 9293 3.10.7.4, first; RFC 5961).
    Acknowledge,
    /// It acknowledges what we never sent: a RST (RFC 9293 3.10.7.4, fifth).
    Reset,
    /// The peer takes its SYN back.
    Forget,
    /// The handshake's last step.
    Establish,
}

/// Why a segment was not taken, for the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// PAWS.
    Stale,
    /// It echoes a timestamp that no SYN-ACK had.
    Echo,
    /// A SYN that is another.
    OtherSyn,
}

impl Request {
    /// The SYN-ACK `sent` has just been sent.
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
            sent_again: false,
            repeats: 0,
            ecn_withdrawn: false,
            acked: false,
        }
    }

    /// What a connection needs to know to go on from here.
    pub(super) fn syn_ack_sent(&self) -> SynAckSent {
        SynAckSent {
            first_at: self.first_sent,
            at: self.last_sent,
            ambiguous: self.sent_again,
            window_scale: self.window_scale,
            repeats: self.repeats,
            timeouts: self.timeouts,
            ecn_withdrawn: self.ecn_withdrawn,
        }
    }

    /// It is not sent again though the time has come: its peer has answered, and text is waited
    /// for.
    pub(super) fn on_silent_timeout(&mut self, now: Instant, rto_max: Nanos) {
        self.timeouts = self.timeouts.saturating_add(1);
        self.rearm(now, rto_max);
    }

    /// The SYN-ACK was sent again; `by_timer`: because nobody answered.
    pub(super) fn on_repeat(&mut self, now: Instant, by_timer: bool, rto_max: Nanos) {
        self.timeouts = self.timeouts.saturating_add(u8::from(by_timer));
        self.repeats = self.repeats.saturating_add(1);
        self.last_sent = now;
        self.sent_again = true;
        self.rearm(now, rto_max);
    }

    fn rearm(&mut self, now: Instant, rto_max: Nanos) {
        self.due = now + (FIRST_TIMEOUT * (1 << self.timeouts.min(7))).min(rto_max);
    }

    /// Whether bad segments were not answered lately (`tcp_invalid_ratelimit`).
    pub(super) fn may_answer(&mut self, now: Instant, sysctl: &Sysctl) -> bool {
        let now_ms = now.as_millis() as u32;
        let since = now_ms.wrapping_sub(self.answered_at_ms);
        let may = self.answered_at_ms == 0 || since >= sysctl.tcp_invalid_ratelimit;
        if may {
            self.answered_at_ms = now_ms.max(1);
        }
        may
    }

    /// Judges a segment.
    pub(super) fn judge(&mut self, segment: &SegmentIn) -> (Verdict, Fault) {
        let repr = &segment.repr;
        let flags = repr.flags;
        let rcv_nxt = self.syn.seq + 1;
        let fault = self.timestamp_fault(repr);
        let is = |flag| flags.contains(flag);
        let plain_syn = is(TcpFlags::SYN) && !flags.intersects(TcpFlags::ACK.union(TcpFlags::RST));
        if plain_syn && repr.seq == self.syn.seq && fault != Fault::Stale {
            // RFC 9768 3.1.5: the last one is answered.
            if self.syn.flags.contains(TcpFlags::AE) {
                self.syn.ecn = segment.ecn;
            }
            self.ecn_withdrawn |= !flags.intersects(ECN);
            return (Verdict::Repeat, Fault::None);
        }
        if is(TcpFlags::RST) {
            // RFC 5961 3.2.
            let verdict = match repr.seq {
                seq if seq == rcv_nxt => Verdict::Forget,
                seq if seq.in_window(rcv_nxt, self.window.into()) => Verdict::Acknowledge,
                _ => Verdict::Drop,
            };
            return (verdict, Fault::None);
        }
        if fault != Fault::None {
            return (Verdict::Acknowledge, fault);
        }
        if is(TcpFlags::SYN) {
            return (Verdict::Acknowledge, Fault::OtherSyn);
        }
        if !self.is_in_window(repr.seq, segment.payload.len() as u32) {
            return (Verdict::Acknowledge, Fault::None);
        }
        if !is(TcpFlags::ACK) {
            return (Verdict::Drop, Fault::None);
        }
        if repr.ack != self.iss + 1 {
            return (Verdict::Reset, Fault::None);
        }
        if let Some(ts) = repr
            .options
            .timestamps
            .filter(|_| repr.seq.before_eq(rcv_nxt))
        {
            self.syn.ts_val = ts.val;
        }
        (Verdict::Establish, Fault::None)
    }

    fn is_in_window(&self, seq: SeqNum, len: u32) -> bool {
        let (rcv_nxt, window) = (self.syn.seq + 1, self.window.into());
        // With the edge itself, where the ACKs of a peer that has filled the window stand.
        seq.since(rcv_nxt) <= window || rcv_nxt.in_window(seq, len)
    }

    fn timestamp_fault(&self, repr: &TcpRepr) -> Fault {
        let Some(ts) = repr.options.timestamps.filter(|_| self.syn.timestamps) else {
            return Fault::None;
        };
        if (ts.val.wrapping_sub(self.syn.ts_val) as i32) < 0 {
            return Fault::Stale;
        }
        let sent = |at: Instant| (at.as_millis() as u32).wrapping_add(self.ts_offset);
        let (first, last) = (sent(self.first_sent), sent(self.last_sent));
        let echoes = ts.ecr.wrapping_sub(first) <= last.wrapping_sub(first);
        if ts.ecr == 0 || echoes || !repr.flags.contains(TcpFlags::ACK) {
            Fault::None
        } else {
            Fault::Echo
        }
    }

    /// The ACK that says where we are.
    pub(super) fn acknowledgement(&mut self, now: Instant) -> TcpRepr {
        // The peer may echo this one, too.
        self.last_sent = now;
        self.sent_again = true;
        TcpRepr {
            src_port: self.key.local_port,
            dst_port: self.key.remote_port,
            seq: self.iss + 1,
            ack: self.syn.seq + 1,
            flags: TcpFlags::ACK,
            // RFC 7323 2.3: scaled, as the handshake's SYNs are over.
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
