//! Explicit congestion notification (RFC 3168, RFC 8257, RFC 9768): who may use it, what is marked,
//! what is told.

mod accurate;
mod bytes;
mod mirror;
mod negotiation;
mod report;

use alloc::boxed::Box;

use fullsend_units::SeqNum;
use fullsend_wire::EcnField;
use fullsend_wire::tcp::{AccEcn, TcpFlags};

use accurate::{ACE, Accurate, Feedback, fail};
use mirror::Mirror;

use crate::connection::State;
use crate::recovery::{AckNews, Phase};
use crate::recv::Arrival;
use crate::{Connection, Cx, SegmentIn, SegmentOut, Sysctl};

/// How marks are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mode {
    /// RFC 3168: once a round trip.
    #[default]
    Classic,
    /// RFC 9768: each.
    Accurate,
}

/// What a connection keeps that uses ECN, or has asked for it; others have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ecn {
    mode: Mode,
    accurate: Accurate,
    /// CE arrived, and the peer has not said yet that it slows down: it is told with each segment
    /// (RFC 3168 6.1.3).
    demands_cwr: bool,
    /// cwnd was reduced: the next new text says so (RFC 3168 6.1.2).
    owes_cwr: bool,
    /// Text of an ECN-capable sender has arrived.
    seen: bool,
    /// Segments of ours that arrived marked, or (RFC 3168) beside an echo; wraps.
    delivered_ce: u32,
    /// The congestion control [lives on marks](crate::congestion::CongestionControl::needs_ecn).
    mirror: Option<Box<Mirror>>,
}

impl Ecn {
    /// The congestion window was reduced: the peer is to be told (RFC 3168 only).
    pub(crate) fn owe_cwr(&mut self) {
        self.owes_cwr = self.mode == Mode::Classic;
    }

    /// The reduction was taken back before anything was said of it.
    pub(crate) fn withdraw_cwr(&mut self) {
        self.owes_cwr = false;
    }

    /// Text of an ECN-capable sender has arrived.
    pub(crate) fn is_seen(&self) -> bool {
        self.seen
    }

    /// Marks a segment that leaves; `fresh`: with text that was never sent before.
    fn mark(&mut self, segment: &mut SegmentOut, fresh: bool) {
        let flags = &mut segment.repr.flags;
        if self.mode == Mode::Accurate {
            // As every packet's mark is told, all may be marked.
            if !self.accurate.is_muted() {
                segment.ecn = EcnField::Ect0;
            }
            return;
        }
        // RFC 3168 6.1.4, 6.1.5: neither acknowledgements nor retransmissions are ECN-capable. As on
        // Linux, all is that DCTCP sends.
        if fresh || self.mirror.is_some() {
            segment.ecn = EcnField::Ect0;
        }
        if fresh && core::mem::take(&mut self.owes_cwr) {
            *flags = flags.union(TcpFlags::CWR);
        }
        if self.demands_cwr {
            *flags = flags.union(TcpFlags::ECE);
        }
    }

    /// Text arrived. True: the sender should hear of it at once.
    fn on_text(&mut self, flags: TcpFlags, field: EcnField) -> bool {
        let mut urgent = false;
        if flags.contains(TcpFlags::CWR) {
            // Its window may be a single segment, which waits for this acknowledgement.
            self.demands_cwr = false;
            urgent = true;
        }
        match field {
            // A sender who marks its text does not mark retransmissions, so this is one.
            EcnField::NotEct => urgent |= self.seen,
            EcnField::Ce => {
                urgent |= !self.demands_cwr;
                self.demands_cwr = true;
                self.seen = true;
            }
            EcnField::Ect0 | EcnField::Ect1 => self.seen = true,
        }
        urgent
    }
}

impl Ecn {
    fn is_accurate(&self) -> bool {
        self.mode == Mode::Accurate
    }

    /// Our option may be sent.
    fn is_option_usable(&self, sysctl: &Sysctl) -> bool {
        let lost = self.accurate.fails & fail::OPTION_SEND != 0;
        self.is_accurate() && self.accurate.bytes.is_usable(sysctl, lost)
    }

    /// Bytes of options that text leaves room for.
    #[inline]
    pub(crate) fn option_bytes(&self) -> u32 {
        if self.accurate.bytes.is_reserved() {
            bytes::LEN
        } else {
            0
        }
    }

    /// A segment came with the option.
    fn see_option(&mut self, option: &AccEcn) {
        if !self.accurate.bytes.see(option) {
            self.accurate.fails |= fail::OPTION_RECV;
        }
    }
}

impl Connection {
    /// The ECN side of a segment that leaves with text for the first time (`fresh`), or otherwise.
    #[cold]
    pub(crate) fn mark_ecn(&mut self, cx: &Cx<'_>, segment: &mut SegmentOut, fresh: bool) {
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        // RFC 3168 6.1.6: probes of a closed window are not ECN-capable.
        let probe = fresh && self.snd.nxt.after(self.snd.una + self.snd.wnd);
        let fresh = fresh && !probe && !segment.payload.is_empty();
        ecn.mark(segment, fresh);
        let accurate = ecn.is_accurate();
        if ecn.mirror.is_some() {
            self.tell_past(segment);
        }
        // As on Linux, what answers once both have closed tells no counts.
        if accurate && self.state != State::Closed {
            self.tell_counts(cx, segment);
        }
    }

    /// ACE field and option.
    fn tell_counts(&mut self, cx: &Cx<'_>, segment: &mut SegmentOut) {
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        let usable = ecn.is_option_usable(cx.sysctl);
        let (accurate, repr) = (&mut ecn.accurate, &mut segment.repr);
        let bare = segment.payload.is_empty();
        // What the SYN-ACK reflects may be needed again.
        let opening = accurate
            .handshake
            .filter(|_| self.state == State::SynReceived);
        let told = accurate.tell(bare && opening.is_none());
        accurate.handshake = opening;
        repr.flags = repr.flags.without(ACE).union(told);
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
            bytes.tell(cx.now, &mut repr.options, duplicate);
        }
    }

    /// Text leaves room for the option if it is to be sent.
    #[cold]
    pub(crate) fn reserve_ecn_option(&mut self, cx: &Cx<'_>) {
        if let Some(ecn) = &mut self.ecn {
            let usable = ecn.is_option_usable(cx.sysctl);
            if ecn.accurate.bytes.reserve(usable) {
                self.sync_mss(cx);
            }
        }
    }

    /// The ECN side of an acceptable segment; `last`: it ends the handshake.
    #[cold]
    pub(crate) fn take_ecn(&mut self, cx: &Cx<'_>, segment: &SegmentIn, last: bool) {
        let (repr, field) = (&segment.repr, segment.ecn);
        let later = self.is_later(repr);
        let Some(ecn) = &mut self.ecn else {
            return;
        };
        (ecn.accurate.reflects, ecn.accurate.later) = (false, later);
        if last {
            let bare = segment.payload.is_empty();
            ecn.hear_last(cx.sysctl, (repr, field), bare, self.stats.total_retrans);
        }
        if !ecn.is_accurate() {
            return;
        }
        let option = repr.options.acc_ecn.as_ref();
        ecn.accurate.hear_first(repr.flags, option);
        if let Some(option) = option {
            ecn.see_option(option);
        }
        self.count_ecn(segment);
        self.reserve_ecn_option(cx);
    }

    /// Counts packets that arrived by their field.
    fn count_ecn(&mut self, segment: &SegmentIn) {
        let Some(ecn) = self.ecn.as_mut().filter(|ecn| ecn.is_accurate()) else {
            return;
        };
        let (field, segs) = (segment.ecn, segment.gso_segs.max(1).into());
        let len = segment.payload.len() as u32;
        ecn.seen |= len > 0 && field.is_capable();
        if ecn.accurate.on_packets(field, segs, len) {
            self.rcv.ack.now();
            self.out.any = true;
        }
    }

    /// Text that we have came again, left of the window.
    #[cold]
    pub(crate) fn take_ecn_of_old(&mut self, segment: &SegmentIn) {
        self.count_ecn(segment);
        self.note_lost_option(segment.repr.seq);
    }

    /// RFC 9768 3.2.3.2.2: if what told of a duplicate did not arrive, the option may be why.
    fn note_lost_option(&mut self, seq: SeqNum) {
        if let Some(ecn) = &mut self.ecn
            && ecn.accurate.bytes.is_told_again(seq)
        {
            ecn.accurate.fails |= fail::OPTION_SEND;
        }
    }

    /// A SYN-ACK for a connection that stands is answered as the first was (RFC 9768 3.2.2.1).
    #[cold]
    pub(crate) fn reflect_syn_again(&mut self, segment: &SegmentIn) {
        let repr = &segment.repr;
        let again = repr.flags.contains(TcpFlags::ACK) && repr.seq + 1 == self.rcv.queue.rcv_nxt();
        if let Some(ecn) = self.ecn.as_mut().filter(|ecn| ecn.is_accurate())
            && again
            && self.rcv.ack.is_due()
        {
            ecn.accurate.handshake = Some(segment.ecn);
            ecn.accurate.bytes.demand_one();
        }
    }

    /// The ECN side of text that arrived; before it `rcv_nxt` was the next byte.
    #[cold]
    pub(crate) fn take_ecn_of_text(
        &mut self,
        segment: &SegmentIn,
        arrival: Arrival,
        rcv_nxt: SeqNum,
    ) {
        if arrival == Arrival::Duplicate {
            self.note_lost_option(segment.repr.seq);
        }
        let Some(ecn) = self.ecn.as_mut().filter(|ecn| !ecn.is_accurate()) else {
            return;
        };
        // What came twice says nothing new of the path.
        let stale = matches!(arrival, Arrival::Duplicate | Arrival::Pruned);
        let flags = segment.repr.flags;
        if ecn.mirror.is_some() {
            let field = if stale { EcnField::NotEct } else { segment.ecn };
            return self.mirror_text(flags, field, rcv_nxt);
        }
        let field = if stale { EcnField::Ect0 } else { segment.ecn };
        if ecn.on_text(flags, field) {
            self.rcv.ack.quick();
        }
    }

    /// An ACK for what is in flight: true if it tells of marks (RFC 3168 6.1.2, RFC 9768
    /// 3.2.2.5.2).
    #[cold]
    pub(crate) fn take_feedback(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>) -> bool {
        let Some(ecn) = &self.ecn else {
            return false;
        };
        let (flags, mirrors) = (news.repr.flags, ecn.mirror.is_some());
        let told = match ecn.mode {
            _ if flags.contains(TcpFlags::SYN) => None,
            Mode::Accurate => Some(self.hear_counts(news)).filter(|marked| *marked > 0),
            // What the echo is for counts as marked.
            Mode::Classic => flags
                .contains(TcpFlags::ECE)
                .then_some(news.ack.delivered_segs + news.sack.delivered_segs),
        };
        if mirrors {
            self.tell_marks(news, told.unwrap_or(0));
        }
        let (Some(marked), Some(ecn)) = (told, &mut self.ecn) else {
            return false;
        };
        ecn.delivered_ce = ecn.delivered_ce.wrapping_add(marked);
        cx.mib.delivered_ce += u64::from(marked);
        // The path did ask for less: no reduction is taken back.
        self.recovery.forget_undo();
        true
    }

    /// Bytes of ours that an ACK says have arrived.
    fn delivered_bytes(&self, news: &AckNews<'_>) -> u32 {
        let bytes_of = |segs: u32| segs.saturating_mul(self.snd.mss.bytes());
        // Of what was SACKed before only segments are known.
        let acked = if news.ack.acked_segs == news.ack.delivered_segs {
            news.ack.acked_bytes
        } else {
            news.ack.acked_bytes.min(bytes_of(news.ack.delivered_segs))
        };
        acked.saturating_add(bytes_of(news.sack.delivered_segs))
    }

    /// Segments of ours that were marked, by what an ACK tells (RFC 9768 3.2.2.5.2).
    fn hear_counts(&mut self, news: &AckNews<'_>) -> u32 {
        let sent = self.snd.text_in_flight() - self.syn_in_flight();
        let sent = self.stats.bytes_acked + u64::from(sent);
        let (delivered_bytes, mss) = (self.delivered_bytes(news), self.snd.mss.bytes());
        let Some(ecn) = &mut self.ecn else {
            return 0;
        };
        let accurate = &mut ecn.accurate;
        let arrived = news.ack.delivered_segs + news.sack.delivered_segs;
        // An ACK that was overtaken counts less than we know.
        let in_order = news.advanced || arrived > 0 || accurate.later;
        if !in_order || accurate.is_muted() {
            return 0;
        }
        if accurate.bytes.is_too_late(sent) {
            accurate.fails |= fail::OPTION_RECV;
        }
        let mut told = Feedback {
            flags: news.repr.flags,
            delivered: arrived,
            delivered_bytes,
            ce_bytes: None,
            mss,
            exact: self.agreed.sack || matches!(self.recovery.phase(), Phase::Open | Phase::Cwr),
        };
        if accurate.fails & fail::OPTION_RECV == 0 {
            let option = news.repr.options.acc_ecn.as_ref();
            told.ce_bytes = accurate.bytes.hear(option, told.delivered_bytes);
        }
        if accurate.reflects {
            return 0;
        }
        let known = ecn.delivered_ce;
        accurate.newly_marked(known, &told)
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::EcnField;
    use fullsend_wire::tcp::TcpFlags;

    use super::Ecn;

    #[test]
    fn a_mark_is_told_until_the_peer_slows_down() {
        let mut ecn = Ecn::default();
        assert!(!ecn.on_text(TcpFlags::ACK, EcnField::Ect0));
        assert!(ecn.on_text(TcpFlags::ACK, EcnField::Ce) && ecn.demands_cwr);
        assert!(!ecn.on_text(TcpFlags::ACK, EcnField::Ce));
        assert!(!ecn.on_text(TcpFlags::ACK, EcnField::Ect0) && ecn.demands_cwr);
        assert!(ecn.on_text(TcpFlags::CWR, EcnField::Ect0) && !ecn.demands_cwr);
        // The very segment with CWR was marked: that is news.
        assert!(ecn.on_text(TcpFlags::CWR, EcnField::Ce) && ecn.demands_cwr);
    }
}
