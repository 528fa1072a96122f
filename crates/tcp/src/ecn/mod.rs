//! Explicit congestion notification (RFC 3168, RFC 8257, RFC 9768): negotiation, marking, feedback.

mod accurate;
mod bytes;
mod dctcp;
mod negotiation;
mod report;

use alloc::boxed::Box;

use fullsend_wire::tcp::{AccEcn, TcpFlags};
use fullsend_wire::{EcnField, SeqNum};

use accurate::{ACE, Accurate, Feedback, fail};
use dctcp::DctcpReceiver;

use crate::connection::State;
use crate::recovery::{AckSummary, CaState};
use crate::recv::InsertOutcome;
use crate::{Connection, Cx, SegmentIn, SegmentOut, Sysctl};

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
    /// ECN](crate::congestion::CongestionControl::needs_ecn).
    dctcp: Option<Box<DctcpReceiver>>,
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
    fn mark(&mut self, segment: &mut SegmentOut, is_new_data: bool) {
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
}

impl Ecn {
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
}

impl Connection {
    /// Sets the ECN fields of a segment; `is_new_data` if it carries data for the first time.
    #[cold]
    pub(crate) fn mark_ecn(&mut self, cx: &Cx<'_>, segment: &mut SegmentOut, is_new_data: bool) {
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        // RFC 3168 6.1.6: zero-window probes are not ECN-capable.
        let probe = is_new_data && self.snd.exceeds_window();
        let is_new_data = is_new_data && !probe && !segment.payload.is_empty();
        ecn.mark(segment, is_new_data);
        let accurate = ecn.is_accurate();
        if ecn.dctcp.is_some() {
            self.apply_due_ack(segment);
        }
        // As on Linux, an answer after both ends have closed carries no counts.
        if accurate && self.state != State::Closed {
            self.set_accecn_fields(cx, segment);
        }
    }

    /// Sets the ACE field and the AccECN option of a segment.
    fn set_accecn_fields(&mut self, cx: &Cx<'_>, segment: &mut SegmentOut) {
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        let usable = ecn.is_option_usable(cx.sysctl);
        let (accurate, repr) = (&mut ecn.accurate, &mut segment.repr);
        let bare = segment.payload.is_empty();
        // The SYN-ACK may be retransmitted, and needs the reflected codepoint again.
        let opening = accurate
            .handshake
            .filter(|_| self.state == State::SynReceived);
        let ace = accurate.next_ace(bare && opening.is_none());
        accurate.handshake = opening;
        repr.flags = repr.flags.without(ACE).union(ace);
        segment.repeats_cwr = segment.gso_segs > 1 && repr.flags.contains(TcpFlags::CWR);
        let bytes = &mut accurate.bytes;
        let srtt = self.rtt.srtt().unwrap_or_default();
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

    /// Reserves room for the AccECN option in data segments if it is to be sent.
    #[cold]
    pub(crate) fn reserve_ecn_option(&mut self, cx: &Cx<'_>) {
        if let Some(ecn) = &mut self.ecn {
            let usable = ecn.is_option_usable(cx.sysctl);
            if ecn.accurate.bytes.reserve(usable) {
                self.sync_mss(cx);
            }
        }
    }

    /// Processes the ECN fields of an acceptable segment; `last` if it completes the handshake.
    #[cold]
    pub(crate) fn on_ecn(&mut self, cx: &Cx<'_>, segment: &SegmentIn, last: bool) {
        let (repr, field) = (&segment.repr, segment.ecn);
        let has_later_timestamp = self.has_later_timestamp(repr);
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        (ecn.accurate.is_reflection, ecn.accurate.has_later_timestamp) =
            (false, has_later_timestamp);
        if last {
            let bare = segment.payload.is_empty();
            ecn.on_handshake_end(cx.sysctl, (repr, field), bare, self.stats.total_retrans);
        }
        if !ecn.is_accurate() {
            return;
        }
        let option = repr.options.acc_ecn.as_ref();
        ecn.accurate.check_first_counter(repr.flags, option);
        if let Some(option) = option {
            ecn.on_option(option);
        }
        self.count_ecn(segment);
        self.reserve_ecn_option(cx);
    }

    /// Counts received packets by their codepoint.
    fn count_ecn(&mut self, segment: &SegmentIn) {
        let Some(ecn) = self.ecn.as_mut().filter(|ecn| ecn.is_accurate()) else {
            return;
        };
        let (field, segs) = (segment.ecn, segment.gso_segs.max(1).into());
        let len = segment.payload.len() as u32;
        ecn.ect_seen |= len > 0 && field.is_capable();
        if ecn.accurate.on_packets(field, segs, len) {
            self.rcv.ack_now();
        }
    }

    /// Processes the ECN fields of data received before, left of the window.
    #[cold]
    pub(crate) fn on_old_data_ecn(&mut self, segment: &SegmentIn) {
        self.count_ecn(segment);
        self.detect_lost_option(segment.repr.seq);
    }

    /// Detects that the path may drop segments with the option (RFC 9768 3.2.3.2.2): data whose
    /// duplicate was reported together with the option arrived again.
    fn detect_lost_option(&mut self, seq: SeqNum) {
        if let Some(ecn) = &mut self.ecn
            && ecn.accurate.bytes.is_duplicate_report_lost(seq)
        {
            ecn.accurate.fail_mode |= fail::OPTION_SEND;
        }
    }

    /// Answers a SYN-ACK in a synchronized state as the first one was (RFC 9768 3.2.2.1).
    #[cold]
    pub(crate) fn reflect_repeated_syn_ack(&mut self, segment: &SegmentIn) {
        let repr = &segment.repr;
        let again = repr.flags.contains(TcpFlags::ACK) && repr.seq + 1 == self.rcv.nxt();
        if let Some(ecn) = self.ecn.as_mut().filter(|ecn| ecn.is_accurate())
            && again
            && self.rcv.is_ack_due()
        {
            ecn.accurate.handshake = Some(segment.ecn);
            ecn.accurate.bytes.demand_once();
        }
    }

    /// Processes the ECN fields of received data; `rcv_nxt` is its value before that data.
    #[cold]
    pub(crate) fn on_data_ecn(
        &mut self,
        segment: &SegmentIn,
        outcome: InsertOutcome,
        rcv_nxt: SeqNum,
    ) {
        if outcome == InsertOutcome::Duplicate {
            self.detect_lost_option(segment.repr.seq);
        }
        let Some(ecn) = self.ecn.as_mut().filter(|ecn| !ecn.is_accurate()) else {
            return;
        };
        // Data received twice reports nothing new about the path.
        let stale = matches!(outcome, InsertOutcome::Duplicate | InsertOutcome::Pruned);
        let flags = segment.repr.flags;
        if ecn.dctcp.is_some() {
            let field = if stale { EcnField::NotEct } else { segment.ecn };
            return self.on_dctcp_data(flags, field, rcv_nxt);
        }
        let field = if stale { EcnField::Ect0 } else { segment.ecn };
        if ecn.on_data(flags, field) {
            self.rcv.enter_quickack();
        }
    }

    /// Processes the ECN feedback of an ACK for data in flight. Returns whether it reports marks
    /// (RFC 3168 6.1.2, RFC 9768 3.2.2.5.2).
    #[cold]
    pub(crate) fn on_ecn_feedback(&mut self, cx: &mut Cx<'_>, summary: &AckSummary<'_>) -> bool {
        let Some(ecn) = &self.ecn else {
            return false;
        };
        let (flags, needs_marks) = (summary.repr.flags, ecn.dctcp.is_some());
        let marked = match ecn.mode {
            _ if flags.contains(TcpFlags::SYN) => None,
            Mode::Accurate => Some(self.count_marked(summary)).filter(|marked| *marked > 0),
            // All segments acknowledged with an echo count as marked.
            Mode::Classic => flags
                .contains(TcpFlags::ECE)
                .then_some(summary.ack.delivered_segs + summary.sack.delivered_segs),
        };
        if needs_marks {
            self.report_marks(summary, marked.unwrap_or(0));
        }
        let (Some(marked), Some(ecn)) = (marked, &mut self.ecn) else {
            return false;
        };
        ecn.delivered_ce = ecn.delivered_ce.wrapping_add(marked);
        cx.mib.delivered_ce += u64::from(marked);
        // The path is congested, so no reduction is undone.
        self.recovery.disarm_undo();
        true
    }

    /// Returns the bytes of ours that an ACK reports as delivered.
    fn delivered_bytes(&self, summary: &AckSummary<'_>) -> u32 {
        let bytes_of = |segs: u32| segs.saturating_mul(self.snd.mss().bytes());
        // Of data SACKed earlier only the number of segments is known.
        let acked = if summary.ack.acked_segs == summary.ack.delivered_segs {
            summary.ack.acked_bytes
        } else {
            summary
                .ack
                .acked_bytes
                .min(bytes_of(summary.ack.delivered_segs))
        };
        acked.saturating_add(bytes_of(summary.sack.delivered_segs))
    }

    /// Returns the number of our segments that an ACK reports as marked (RFC 9768 3.2.2.5.2).
    fn count_marked(&mut self, summary: &AckSummary<'_>) -> u32 {
        let sent = self.snd.bytes_in_flight() - self.syn_in_flight();
        let sent = self.stats.bytes_acked + u64::from(sent);
        let (delivered_bytes, mss) = (self.delivered_bytes(summary), self.snd.mss().bytes());
        let Some(ecn) = &mut self.ecn else {
            return 0;
        };
        let accurate = &mut ecn.accurate;
        let arrived = summary.ack.delivered_segs + summary.sack.delivered_segs;
        // A reordered ACK has a lower count than those received before.
        let in_order = summary.advanced || arrived > 0 || accurate.has_later_timestamp;
        if !in_order || accurate.is_muted() {
            return 0;
        }
        if accurate.bytes.is_too_late(sent) {
            accurate.fail_mode |= fail::OPTION_RECV;
        }
        let mut feedback = Feedback {
            flags: summary.repr.flags,
            delivered: arrived,
            delivered_bytes,
            ce_bytes: None,
            mss,
            exact: self.negotiated.sack
                || matches!(self.recovery.ca_state(), CaState::Open | CaState::Cwr),
        };
        if accurate.fail_mode & fail::OPTION_RECV == 0 {
            let option = summary.repr.options.acc_ecn.as_ref();
            feedback.ce_bytes = accurate.bytes.on_ack(option, feedback.delivered_bytes);
        }
        if accurate.is_reflection {
            return 0;
        }
        let known = ecn.delivered_ce;
        accurate.newly_marked(known, &feedback)
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
