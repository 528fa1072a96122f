//! Explicit congestion notification (RFC 3168, RFC 9768): who may use it, what is marked, what is
//! told.

mod accurate;

use alloc::boxed::Box;

use fullsend_wire::EcnField;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use accurate::{ACE, Accurate, ace, reflection};

use crate::recovery::AckNews;
use crate::recv::Arrival;
use crate::{Connection, Cx, SegmentIn, SegmentOut, Sysctl};

/// ECN-setup SYN (RFC 3168 6.1.1).
const SETUP: TcpFlags = TcpFlags::ECE.union(TcpFlags::CWR);

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
}

impl Ecn {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// For an active open, if we are to ask for it.
    pub(crate) fn to_ask(sysctl: &Sysctl) -> Option<Box<Self>> {
        match sysctl.tcp_ecn {
            1 | 4 => Some(Box::new(Self::new(Mode::Classic))),
            3 => Some(Box::new(Self::new(Mode::Accurate))),
            _ => None,
        }
    }

    /// For a passive open, if the SYN asks for it.
    pub(crate) fn to_answer(sysctl: &Sysctl, syn: &TcpRepr, field: EcnField) -> Option<Box<Self>> {
        let asked = ace(syn.flags);
        // RFC 9768 3.1.1, 3.1.3: all three flags, and what may come to stand for more.
        if sysctl.tcp_ecn >= 3 && !matches!(asked, 0 | 0b011) {
            let mut ecn = Self::new(Mode::Accurate);
            ecn.hear_handshake(field);
            return Some(Box::new(ecn));
        }
        // RFC 3168 6.1.1: a SYN that is itself ECN-capable was changed on its way, or comes from a
        // host that takes the flags for others.
        let asked = syn.flags.contains(SETUP) && !field.is_capable();
        (asked && sysctl.tcp_ecn != 0).then(|| Box::new(Self::new(Mode::Classic)))
    }

    /// The peer's SYN or SYN-ACK came with this field.
    fn hear_handshake(&mut self, field: EcnField) {
        self.accurate.handshake = Some(field);
        self.accurate.received_ce = u32::from(field == EcnField::Ce);
    }

    /// The peer answered our SYN with `answer`, which came with `field`: false if it takes no part.
    pub(crate) fn hear_answer(&mut self, answer: &TcpRepr, field: EcnField) -> bool {
        let flags = answer.flags;
        if !flags.contains(TcpFlags::ACK) {
            // Both opened at once.
            self.mode = Mode::Classic;
            return flags.contains(SETUP);
        }
        if self.mode == Mode::Classic {
            return flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR);
        }
        match ace(flags) {
            // It knows nothing of ECN, or reflects what it does not know.
            0 | 0b111 => return false,
            // RFC 9768 3.1.2: it knows RFC 3168 only, or RFC 3540 too.
            0b001 | 0b101 => self.mode = Mode::Classic,
            _ => {
                self.accurate.hear_reflection(flags);
                self.hear_handshake(field);
            }
        }
        true
    }

    /// The handshake's last segment, for which ours was Not-ECT; `bare`: without text.
    pub(crate) fn hear_last(&mut self, segment: &TcpRepr, bare: bool) {
        self.accurate.handshake = None;
        let sacks = !segment.options.sack.as_slice().is_empty();
        if self.mode == Mode::Classic || !bare || sacks {
            return;
        }
        // RFC 9768 3.2.2.1, table 4: three values mean nothing yet.
        if !matches!(ace(segment.flags), 0b001 | 0b101 | 0b111) {
            self.accurate.hear_reflection(segment.flags);
        }
    }

    /// The flags of our SYN, or SYN-ACK; `earlier`: how often it was sent before.
    pub(crate) fn syn_flags(&self, sysctl: &Sysctl, syn_ack: bool, earlier: u32) -> TcpFlags {
        // RFC 3168 6.1.1.1, RFC 9768 3.1.4: something on the path may drop such SYNs. Accurate ECN
        // is asked for once more.
        let least = u32::from(self.mode == Mode::Accurate);
        let in_vain = earlier > least && sysctl.tcp_ecn_fallback;
        match (self.mode, syn_ack) {
            (Mode::Classic, true) => TcpFlags::ECE,
            _ if in_vain => TcpFlags::default(),
            (Mode::Classic, false) => SETUP,
            (Mode::Accurate, false) => ACE,
            (Mode::Accurate, true) => reflection(self.accurate.handshake.unwrap_or_default()),
        }
    }

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

    /// Segments of ours that arrived marked, or (RFC 3168) beside an echo; wraps.
    pub(crate) fn delivered_ce(&self) -> u32 {
        self.delivered_ce
    }

    /// Marks a segment that leaves; `fresh`: with text that was never sent before.
    fn mark(&mut self, segment: &mut SegmentOut, fresh: bool) {
        let flags = &mut segment.repr.flags;
        if self.mode == Mode::Accurate {
            // As every packet's mark is told, all may be marked.
            if !self.accurate.is_muted() {
                segment.ecn = EcnField::Ect0;
            }
            let told = self.accurate.tell(segment.payload.is_empty());
            *flags = flags.without(ACE).union(told);
            return;
        }
        // RFC 3168 6.1.4, 6.1.5: neither acknowledgements nor retransmissions are ECN-capable.
        if fresh {
            segment.ecn = EcnField::Ect0;
            if core::mem::take(&mut self.owes_cwr) {
                *flags = flags.union(TcpFlags::CWR);
            }
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

impl Connection {
    /// The ECN side of a segment that leaves with text for the first time (`fresh`), or otherwise.
    #[cold]
    pub(crate) fn mark_ecn(&mut self, segment: &mut SegmentOut, fresh: bool) {
        if let Some(ecn) = &mut self.ecn {
            // RFC 3168 6.1.6: probes of a closed window are not ECN-capable.
            let probe = fresh && self.snd.nxt.after(self.snd.una + self.snd.wnd);
            let fresh = fresh && !probe && !segment.payload.is_empty();
            ecn.mark(segment, fresh);
        }
    }

    /// The ECN side of an acceptable segment.
    #[cold]
    pub(crate) fn take_ecn(&mut self, segment: &SegmentIn) {
        let Some(ecn) = self.ecn.as_mut().filter(|ecn| ecn.mode == Mode::Accurate) else {
            return;
        };
        let (field, segs) = (segment.ecn, segment.gso_segs.max(1).into());
        let has_text = !segment.payload.is_empty();
        ecn.seen |= has_text && field.is_capable();
        if ecn.accurate.on_packets(field, segs, has_text) {
            self.rcv.ack.now();
            self.out.any = true;
        }
    }

    /// The ECN side of text that arrived.
    #[cold]
    pub(crate) fn take_ecn_of_text(&mut self, segment: &SegmentIn, arrival: Arrival) {
        let Some(ecn) = self.ecn.as_mut().filter(|ecn| ecn.mode == Mode::Classic) else {
            return;
        };
        // What came twice says nothing new of the path.
        let field = match arrival {
            Arrival::Duplicate | Arrival::Pruned => EcnField::Ect0,
            _ => segment.ecn,
        };
        if ecn.on_text(segment.repr.flags, field) {
            self.rcv.ack.quick();
        }
    }

    /// An ACK for what is in flight: true if it tells of marks (RFC 3168 6.1.2, RFC 9768
    /// 3.2.2.5.2).
    #[cold]
    pub(crate) fn take_feedback(&mut self, cx: &mut Cx<'_>, news: &AckNews<'_>) -> bool {
        let Some(ecn) = &mut self.ecn else {
            return false;
        };
        let (repr, advanced) = (news.repr, news.advanced);
        let delivered = news.ack.delivered_segs + news.sack.delivered_segs;
        let marked = match ecn.mode {
            Mode::Classic if repr.flags.contains(TcpFlags::SYN) => return false,
            Mode::Classic if !repr.flags.contains(TcpFlags::ECE) => return false,
            Mode::Classic => delivered,
            // An ACK that was overtaken counts less than we know.
            Mode::Accurate if !advanced && delivered == 0 => return false,
            Mode::Accurate => {
                let known = ecn.delivered_ce;
                match ecn.accurate.newly_marked(repr, known, delivered) {
                    0 => return false,
                    marked => marked,
                }
            }
        };
        ecn.delivered_ce = ecn.delivered_ce.wrapping_add(marked);
        cx.mib.delivered_ce += u64::from(marked);
        // The path did ask for less: no reduction is taken back.
        self.recovery.forget_undo();
        true
    }

    /// Units must be single segments: a cut would lose what they tell.
    #[inline]
    pub(crate) fn ecn_forbids_units(&self) -> bool {
        let ecn = self.ecn.as_ref();
        ecn.is_some_and(|ecn| ecn.mode == Mode::Accurate && ecn.accurate.tells_with_cwr())
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::EcnField;
    use fullsend_wire::tcp::{TcpFlags, TcpRepr};

    use super::{ACE, Ecn, Mode, SETUP};
    use crate::Sysctl;

    fn sysctl(tcp_ecn: u32) -> Sysctl {
        Sysctl {
            tcp_ecn,
            ..Sysctl::default()
        }
    }

    fn segment(flags: TcpFlags) -> TcpRepr {
        TcpRepr {
            flags,
            ..TcpRepr::default()
        }
    }

    #[test]
    fn the_sysctl_says_who_asks_and_who_answers() {
        let (no, classic, accurate) = (None, Some(Mode::Classic), Some(Mode::Accurate));
        // Asks; answers to a SYN of RFC 3168, and to one of RFC 9768.
        let rows = [
            [no, no, no],
            [classic, classic, classic],
            [no, classic, classic],
            [accurate, classic, accurate],
            [classic, classic, accurate],
            [no, classic, accurate],
        ];
        for (value, row) in rows.into_iter().enumerate() {
            let sysctl = sysctl(value as u32);
            let answer = |flags| {
                let syn = segment(TcpFlags::SYN.union(flags));
                Ecn::to_answer(&sysctl, &syn, EcnField::NotEct)
            };
            let modes = [Ecn::to_ask(&sysctl), answer(SETUP), answer(ACE)];
            assert_eq!(modes.map(|ecn| ecn.map(|ecn| ecn.mode)), row, "{value}");
        }
    }

    #[test]
    fn only_a_syn_with_both_flags_and_no_mark_asks() {
        let sysctl = sysctl(2);
        for flags in [TcpFlags::default(), TcpFlags::ECE, TcpFlags::CWR] {
            let syn = segment(TcpFlags::SYN.union(flags));
            assert!(Ecn::to_answer(&sysctl, &syn, EcnField::NotEct).is_none());
        }
        let syn = segment(TcpFlags::SYN.union(SETUP));
        for field in [EcnField::Ect0, EcnField::Ect1, EcnField::Ce] {
            assert!(Ecn::to_answer(&sysctl, &syn, field).is_none());
        }
    }

    #[test]
    fn an_answer_takes_part_with_ece_alone() {
        let ack = TcpFlags::SYN.union(TcpFlags::ACK);
        let accepted = |flags| Ecn::default().hear_answer(&segment(flags), EcnField::NotEct);
        assert!(accepted(ack.union(TcpFlags::ECE)));
        assert!(!accepted(ack));
        // A host that reflects what it does not know.
        assert!(!accepted(ack.union(SETUP)));
        assert!(accepted(TcpFlags::SYN.union(SETUP)));
        assert!(!accepted(TcpFlags::SYN.union(TcpFlags::ECE)));
    }

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
