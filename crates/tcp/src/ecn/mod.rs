//! Explicit congestion notification (RFC 3168, RFC 8257, RFC 9768): negotiation, marking, feedback.

mod accurate;
mod bytes;
mod dctcp;
mod negotiation;
mod report;

use alloc::boxed::Box;

use fullsend_wire::tcp::{AccEcn, TcpFlags};
use fullsend_wire::{EcnField, Mss, Nanos, SeqNum};

use accurate::{ACE, Accurate, Feedback, fail};
use dctcp::DctcpReceiver;

use crate::recovery::AckSummary;
use crate::recv::InsertOutcome;
use crate::{Cx, SegmentIn, SegmentOut, Sysctl};

/// The form of the feedback about marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mode {
    /// RFC 3168: an echo, at most once per round trip.
    #[default]
    Classic,
    /// RFC 9768: a count of all marks.
    Accurate,
}

/// The state of a connection that uses ECN or has requested it; others have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ecn {
    mode: Mode,
    accurate: Accurate,
    /// CE was received and the peer has not sent CWR yet: each segment carries ECE (RFC 3168
    /// 6.1.3).
    demands_cwr: bool,
    /// cwnd was reduced: the next new data carries CWR (RFC 3168 6.1.2).
    cwr_queued: bool,
    /// Whether data with an ECN-capable codepoint was received.
    ect_seen: bool,
    /// Segments of ours that were delivered with a mark, or (RFC 3168) acknowledged together with
    /// an echo; wraps.
    delivered_ce: u32,
    /// Present if the congestion control [needs
    /// ECN](crate::congestion::Algorithm::needs_ecn).
    dctcp: Option<Box<DctcpReceiver>>,
}

/// The acknowledgement that received data requires because of its mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckDemand {
    /// The mark requires no other acknowledgement than unmarked data does.
    Normal,
    /// Acknowledge this segment immediately.
    Now,
    /// Acknowledge this segment and the next ones immediately.
    Quickack,
}

/// An ACK, and the values of other parts that its feedback is interpreted with.
pub(crate) struct FeedbackCx<'a> {
    pub(crate) summary: &'a AckSummary<'a>,
    pub(crate) mss: Mss,
    /// Bytes ever sent.
    pub(crate) sent_bytes: u64,
    /// Whether the number of segments that the ACK delivers is exact.
    pub(crate) is_exact: bool,
}

impl Ecn {
    /// Requests CWR on the next new data after a reduction of cwnd (RFC 3168 only).
    pub(crate) fn queue_cwr(&mut self) {
        self.cwr_queued = self.mode == Mode::Classic;
    }

    /// Cancels a pending CWR after the reduction was undone.
    pub(crate) fn withdraw_cwr(&mut self) {
        self.cwr_queued = false;
    }

    /// Returns whether data with an ECN-capable codepoint was received.
    pub(crate) fn is_ect_seen(&self) -> bool {
        self.ect_seen
    }

    /// Sets the IP field and the flags of a segment; `is_new_data` if it carries new data.
    pub(crate) fn mark(&mut self, segment: &mut SegmentOut, is_new_data: bool) {
        let flags = &mut segment.repr.flags;
        if self.mode == Mode::Accurate {
            // All segments may be ECN-capable, as the peer reports every mark.
            if !self.accurate.is_muted() {
                segment.ecn = EcnField::Ect0;
            }
            return;
        }
        // RFC 3168 6.1.4, 6.1.5: neither acknowledgements nor retransmissions are ECN-capable. As
        // on Linux, all segments of DCTCP are.
        if is_new_data || self.dctcp.is_some() {
            segment.ecn = EcnField::Ect0;
        }
        if is_new_data && core::mem::take(&mut self.cwr_queued) {
            *flags = flags.union(TcpFlags::CWR);
        }
        if self.demands_cwr {
            *flags = flags.union(TcpFlags::ECE);
        }
    }

    /// Processes the mark and flags of received data. Returns whether to acknowledge it
    /// immediately.
    fn on_data(&mut self, flags: TcpFlags, field: EcnField) -> bool {
        let mut ack_now = false;
        if flags.contains(TcpFlags::CWR) {
            // The sender's window may be a single segment, which waits for this acknowledgement.
            self.demands_cwr = false;
            ack_now = true;
        }
        match field {
            // A sender of ECN-capable data does not mark retransmissions, so this is one.
            EcnField::NotEct => ack_now |= self.ect_seen,
            EcnField::Ce => {
                ack_now |= !self.demands_cwr;
                self.demands_cwr = true;
                self.ect_seen = true;
            }
            EcnField::Ect0 | EcnField::Ect1 => self.ect_seen = true,
        }
        ack_now
    }

    fn is_accurate(&self) -> bool {
        self.mode == Mode::Accurate
    }

    /// Returns whether our AccECN option may be sent.
    fn is_option_usable(&self, sysctl: &Sysctl) -> bool {
        let lost = self.accurate.fail_mode & fail::OPTION_SEND != 0;
        self.is_accurate() && self.accurate.bytes.is_usable(sysctl, lost)
    }

    /// Returns the option bytes that every data segment reserves.
    #[inline]
    pub(crate) fn option_bytes(&self) -> u32 {
        if self.accurate.bytes.is_reserved() {
            bytes::OPTION_LEN
        } else {
            0
        }
    }

    /// Processes a received AccECN option.
    fn on_option(&mut self, option: &AccEcn) {
        if !self.accurate.bytes.on_option(option) {
            self.accurate.fail_mode |= fail::OPTION_RECV;
        }
    }

    /// Sets the ACE field and the AccECN option of a segment. `opening`: it is a SYN-ACK, which may
    /// be retransmitted and needs the reflected codepoint again.
    pub(crate) fn set_accurate_fields(
        &mut self,
        cx: &Cx<'_>,
        segment: &mut SegmentOut,
        opening: bool,
        srtt: Nanos,
    ) {
        if !self.is_accurate() {
            return;
        }
        let usable = self.is_option_usable(cx.sysctl);
        let (accurate, repr) = (&mut self.accurate, &mut segment.repr);
        let bare = segment.payload.is_empty();
        let opening = accurate.handshake.filter(|_| opening);
        let ace = accurate.next_ace(bare && opening.is_none());
        accurate.handshake = opening;
        repr.flags = repr.flags.without(ACE).union(ace);
        segment.repeats_cwr = segment.gso_segs > 1 && repr.flags.contains(TcpFlags::CWR);
        let bytes = &mut accurate.bytes;
        if usable && (bare || bytes.is_reserved()) && bytes.is_due(cx.sysctl, cx.now, srtt) {
            let duplicate = match repr.options.sack.as_slice() {
                [first, ..] if first.left.before(repr.ack) => true,
                [first, second, ..] => first
                    .left
                    .in_window(second.left, second.right.since(second.left)),
                _ => false,
            };
            bytes.add_option(cx.now, &mut repr.options, duplicate);
        }
    }

    /// Reserves room for the AccECN option in data segments if it is to be sent. Returns whether
    /// their size changed.
    pub(crate) fn reserve_option(&mut self, sysctl: &Sysctl) -> bool {
        let usable = self.is_option_usable(sysctl);
        self.accurate.bytes.reserve(usable)
    }

    /// Begins the processing of an acceptable segment. `has_later_timestamp`: its timestamp is later
    /// than those before. `handshake_repeats`: it completes the handshake, after that number of our
    /// retransmissions. Returns whether to acknowledge it immediately.
    pub(crate) fn on_segment(
        &mut self,
        sysctl: &Sysctl,
        segment: &SegmentIn,
        has_later_timestamp: bool,
        handshake_repeats: Option<u32>,
    ) -> bool {
        let (repr, field) = (&segment.repr, segment.ecn);
        self.accurate.is_reflection = false;
        self.accurate.has_later_timestamp = has_later_timestamp;
        if let Some(repeats) = handshake_repeats {
            let bare = segment.payload.is_empty();
            self.on_handshake_end(sysctl, (repr, field), bare, repeats);
        }
        if !self.is_accurate() {
            return false;
        }
        let option = repr.options.acc_ecn.as_ref();
        self.accurate.check_first_counter(repr.flags, option);
        if let Some(option) = option {
            self.on_option(option);
        }
        self.count(segment)
    }

    /// Counts received packets by their codepoint. Returns whether to acknowledge them immediately.
    fn count(&mut self, segment: &SegmentIn) -> bool {
        if !self.is_accurate() {
            return false;
        }
        let (field, segs) = (segment.ecn, segment.gso_segs.max(1).into());
        let len = segment.payload.len() as u32;
        self.ect_seen |= len > 0 && field.is_capable();
        self.accurate.on_packets(field, segs, len)
    }

    /// Processes data received before, left of the window. Returns whether to acknowledge it
    /// immediately.
    pub(crate) fn on_old_data(&mut self, segment: &SegmentIn) -> bool {
        let ack_now = self.count(segment);
        self.detect_lost_option(segment.repr.seq);
        ack_now
    }

    /// Detects that the path may drop segments with the option (RFC 9768 3.2.3.2.2): data whose
    /// duplicate was reported together with the option arrived again.
    fn detect_lost_option(&mut self, seq: SeqNum) {
        if self.accurate.bytes.is_duplicate_report_lost(seq) {
            self.accurate.fail_mode |= fail::OPTION_SEND;
        }
    }

    /// Answers a SYN-ACK in a synchronized state as the first one was (RFC 9768 3.2.2.1).
    pub(crate) fn reflect_repeated_syn_ack(&mut self, field: EcnField) {
        if self.is_accurate() {
            self.accurate.handshake = Some(field);
            self.accurate.bytes.demand_once();
        }
    }

    /// Processes received data that ends after the left edge of the window. `unacked_end`: the end of
    /// earlier data that is not acknowledged yet. Returns the acknowledgement that it requires.
    pub(crate) fn on_received(
        &mut self,
        segment: &SegmentIn,
        outcome: InsertOutcome,
        unacked_end: Option<SeqNum>,
    ) -> AckDemand {
        if outcome == InsertOutcome::Duplicate {
            self.detect_lost_option(segment.repr.seq);
        }
        if self.is_accurate() {
            // Its packet is counted by `on_segment`.
            return AckDemand::Normal;
        }
        // Data received twice reports nothing new about the path.
        let stale = matches!(outcome, InsertOutcome::Duplicate | InsertOutcome::Pruned);
        let flags = segment.repr.flags;
        if self.dctcp.is_some() {
            let field = if stale { EcnField::NotEct } else { segment.ecn };
            return if self.on_dctcp_data(flags, field, unacked_end) {
                AckDemand::Now
            } else {
                AckDemand::Normal
            };
        }
        let field = if stale { EcnField::Ect0 } else { segment.ecn };
        if self.on_data(flags, field) {
            AckDemand::Quickack
        } else {
            AckDemand::Normal
        }
    }

    /// Processes the feedback of an ACK for data in flight. Returns the number of segments that it
    /// reports as marked, if any (RFC 3168 6.1.2, RFC 9768 3.2.2.5.2).
    pub(crate) fn on_feedback(&mut self, cx: &FeedbackCx<'_>) -> Option<u32> {
        let flags = cx.summary.repr.flags;
        let marked = match self.mode {
            _ if flags.contains(TcpFlags::SYN) => None,
            Mode::Accurate => Some(self.count_marked(cx)).filter(|marked| *marked > 0),
            // All segments acknowledged with an echo count as marked.
            Mode::Classic => flags
                .contains(TcpFlags::ECE)
                .then_some(cx.summary.delivered_segs()),
        };
        self.delivered_ce = self.delivered_ce.wrapping_add(marked.unwrap_or(0));
        marked
    }

    /// Returns the number of our segments that an ACK reports as marked (RFC 9768 3.2.2.5.2).
    fn count_marked(&mut self, cx: &FeedbackCx<'_>) -> u32 {
        let summary = cx.summary;
        let accurate = &mut self.accurate;
        let arrived = summary.delivered_segs();
        // A reordered ACK has a lower count than those received before.
        let in_order = summary.advanced || arrived > 0 || accurate.has_later_timestamp;
        if !in_order || accurate.is_muted() {
            return 0;
        }
        if accurate.bytes.is_too_late(cx.sent_bytes) {
            accurate.fail_mode |= fail::OPTION_RECV;
        }
        let mut feedback = Feedback {
            flags: summary.repr.flags,
            delivered: arrived,
            delivered_bytes: summary.delivered_bytes(cx.mss),
            ce_bytes: None,
            mss: cx.mss.bytes(),
            exact: cx.is_exact,
        };
        if accurate.fail_mode & fail::OPTION_RECV == 0 {
            let option = summary.repr.options.acc_ecn.as_ref();
            feedback.ce_bytes = accurate.bytes.on_ack(option, feedback.delivered_bytes);
        }
        if accurate.is_reflection {
            return 0;
        }
        accurate.newly_marked(self.delivered_ce, &feedback)
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::EcnField;
    use fullsend_wire::tcp::TcpFlags;

    use super::Ecn;

    #[test]
    fn ece_is_sent_until_cwr() {
        let mut ecn = Ecn::default();
        assert!(!ecn.on_data(TcpFlags::ACK, EcnField::Ect0));
        assert!(ecn.on_data(TcpFlags::ACK, EcnField::Ce) && ecn.demands_cwr);
        assert!(!ecn.on_data(TcpFlags::ACK, EcnField::Ce));
        assert!(!ecn.on_data(TcpFlags::ACK, EcnField::Ect0) && ecn.demands_cwr);
        assert!(ecn.on_data(TcpFlags::CWR, EcnField::Ect0) && !ecn.demands_cwr);
        // The segment with CWR is marked itself, which is a new mark.
        assert!(ecn.on_data(TcpFlags::CWR, EcnField::Ce) && ecn.demands_cwr);
    }
}
