//! ECN within the connection: the values that it reads of other parts, and what it requires of
//! them.

use fullsend_wire::SeqNum;
use fullsend_wire::tcp::TcpFlags;

use super::{Connection, State};
use crate::congestion::CcInfo;
use crate::ecn::{AckDemand, Ecn, FeedbackCx};
use crate::recovery::{AckSummary, CaState};
use crate::recv::InsertOutcome;
use crate::{Cx, SegmentIn, SegmentOut};

impl Connection {
    /// Sets the ECN fields of a segment; `is_new_data` if it carries data for the first time.
    #[cold]
    pub(crate) fn mark_ecn(&mut self, cx: &Cx<'_>, segment: &mut SegmentOut, is_new_data: bool) {
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        // RFC 3168 6.1.6: zero-window probes are not ECN-capable.
        let probe = is_new_data && self.snd.exceeds_window();
        ecn.mark(
            segment,
            is_new_data && !probe && !segment.payload.is_empty(),
        );
        if ecn.apply_due_ack(segment, self.rcv.scale()) {
            self.rcv.ack_now();
        }
        // As on Linux, an answer after both ends have closed carries no counts.
        if self.state != State::Closed {
            let srtt = self.rtt.srtt().unwrap_or_default();
            ecn.set_accurate_fields(cx, segment, self.state == State::SynReceived, srtt);
        }
    }

    /// Reserves room for the AccECN option in data segments if it is to be sent.
    #[cold]
    pub(super) fn reserve_ecn_option(&mut self, cx: &Cx<'_>) {
        let ecn = self.ecn.as_mut();
        if ecn.is_some_and(|ecn| ecn.reserve_option(cx.sysctl)) {
            self.sync_mss(cx);
        }
    }

    /// Processes the ECN fields of an acceptable segment; `last` if it completes the handshake.
    #[cold]
    pub(super) fn on_ecn(&mut self, cx: &Cx<'_>, segment: &SegmentIn, last: bool) {
        let has_later_timestamp = self.has_later_timestamp(&segment.repr);
        let repeats = last.then_some(self.stats.total_retrans);
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        if ecn.on_segment(cx.sysctl, segment, has_later_timestamp, repeats) {
            self.rcv.ack_now();
        }
        self.reserve_ecn_option(cx);
    }

    /// Processes the ECN fields of data received before, left of the window.
    #[cold]
    pub(super) fn on_old_data_ecn(&mut self, segment: &SegmentIn) {
        let ecn = self.ecn.as_mut();
        if ecn.is_some_and(|ecn| ecn.on_old_data(segment)) {
            self.rcv.ack_now();
        }
    }

    /// Answers a SYN-ACK in a synchronized state as the first one was (RFC 9768 3.2.2.1).
    #[cold]
    pub(super) fn reflect_repeated_syn_ack(&mut self, segment: &SegmentIn) {
        let repr = &segment.repr;
        let again = repr.flags.contains(TcpFlags::ACK) && repr.seq + 1 == self.rcv.nxt();
        if let Some(ecn) = self.ecn.as_mut()
            && again
            && self.rcv.is_ack_due()
        {
            ecn.reflect_repeated_syn_ack(segment.ecn);
        }
    }

    /// Processes the ECN fields of received data; `rcv_nxt` is its value before that data.
    #[cold]
    pub(super) fn on_data_ecn(
        &mut self,
        segment: &SegmentIn,
        outcome: InsertOutcome,
        rcv_nxt: SeqNum,
    ) {
        let unacked_end = rcv_nxt.after(self.rcv.last_acked()).then_some(rcv_nxt);
        let ecn = self.ecn.as_mut();
        match ecn.map(|ecn| ecn.on_received(segment, outcome, unacked_end)) {
            Some(AckDemand::Now) => self.rcv.ack_now(),
            Some(AckDemand::Quickack) => self.rcv.enter_quickack(),
            Some(AckDemand::Normal) | None => {}
        }
    }

    /// Processes the ECN feedback of an ACK for data in flight. Returns whether it reports marks.
    #[cold]
    pub(super) fn on_ecn_feedback(&mut self, cx: &mut Cx<'_>, summary: &AckSummary<'_>) -> bool {
        let in_flight = self.snd.bytes_in_flight() - self.syn_in_flight();
        let Some(ecn) = &mut self.ecn else {
            return false;
        };
        let feedback = FeedbackCx {
            summary,
            mss: self.snd.mss(),
            sent_bytes: self.stats.bytes_acked + u64::from(in_flight),
            is_exact: self.negotiated.sack
                || matches!(self.recovery.ca_state(), CaState::Open | CaState::Cwr),
        };
        let marked = ecn.on_feedback(&feedback);
        if ecn.counts_marked_share() {
            let (una, nxt) = (self.snd.una(), self.snd.nxt());
            let sample = feedback.mark_sample(marked.unwrap_or(0), una, nxt);
            self.congestion.on_marks(&sample);
        }
        let Some(marked) = marked else {
            return false;
        };
        cx.mib.delivered_ce += u64::from(marked);
        // The path is congested, so no reduction is undone.
        self.recovery.disarm_undo();
        true
    }

    /// Adapts ECN to a newly selected congestion control, or to the end of the handshake.
    #[cold]
    pub(super) fn adapt_ecn(&mut self, cx: &Cx<'_>) {
        let needs_ecn = self.congestion.algorithm().needs_ecn();
        if self.state == State::SynSent && self.recovery.rtx.is_empty() {
            // The SYN with the request is not sent yet.
            self.ecn = Ecn::for_connect(cx.sysctl, needs_ecn);
            return;
        }
        match &mut self.ecn {
            Some(ecn) => ecn.set_dctcp_receiver(needs_ecn),
            None if needs_ecn && self.state.is_synchronized() => self.congestion.disable_ecn(),
            None => {}
        }
    }

    /// Returns the state of the congestion control (`TCP_CC_INFO`).
    pub fn cc_info(&self) -> CcInfo {
        let mut info = self.congestion.algorithm().info();
        if let CcInfo::Dctcp { ce_state, .. } = &mut info {
            *ce_state = self.ecn.as_ref().is_some_and(|ecn| ecn.is_ce_state());
        }
        info
    }
}
