//! Explicit congestion notification (RFC 3168): who may use it, what is marked, what is told.

use alloc::boxed::Box;

use fullsend_wire::EcnField;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use crate::recv::Arrival;
use crate::{Connection, Cx, SegmentIn, SegmentOut, Sysctl};

/// ECN-setup SYN (RFC 3168 6.1.1).
const SETUP: TcpFlags = TcpFlags::ECE.union(TcpFlags::CWR);

/// What a connection keeps that uses ECN, or has asked for it; others have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ecn {
    /// CE arrived, and the peer has not said yet that it slows down: it is told with each segment
    /// (RFC 3168 6.1.3).
    demands_cwr: bool,
    /// cwnd was reduced: the next new text says so (RFC 3168 6.1.2).
    owes_cwr: bool,
    /// Text of an ECN-capable sender has arrived.
    seen: bool,
    /// Segments that arrived beside an echo; wraps.
    delivered_ce: u32,
}

impl Ecn {
    /// For an active open, if we are to ask for it.
    pub(crate) fn to_ask(sysctl: &Sysctl) -> Option<Box<Self>> {
        (sysctl.tcp_ecn == 1).then(Box::default)
    }

    /// For a passive open, if the SYN asks for it. RFC 3168 6.1.1: a SYN that is itself
    /// ECN-capable was changed on its way, or comes from a host that takes the flags for others.
    pub(crate) fn to_answer(sysctl: &Sysctl, syn: &TcpRepr, field: EcnField) -> Option<Box<Self>> {
        let asked = syn.flags.contains(SETUP) && !field.is_capable();
        (asked && sysctl.tcp_ecn != 0).then(Box::default)
    }

    /// The peer answered our SYN with `answer`: it takes part.
    pub(crate) fn is_accepted_by(answer: &TcpRepr) -> bool {
        let flags = answer.flags;
        if flags.contains(TcpFlags::ACK) {
            flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR)
        } else {
            // Both opened at once.
            flags.contains(SETUP)
        }
    }

    /// The flags of our SYN, or SYN-ACK; `first`: it was not sent before.
    pub(crate) fn syn_flags(sysctl: &Sysctl, syn_ack: bool, first: bool) -> TcpFlags {
        match (syn_ack, first) {
            (true, _) => TcpFlags::ECE,
            // RFC 3168 6.1.1.1: something on the path may drop such SYNs.
            (false, false) if sysctl.tcp_ecn_fallback => TcpFlags::default(),
            (false, _) => SETUP,
        }
    }

    /// The congestion window was reduced: the peer is to be told.
    pub(crate) fn owe_cwr(&mut self) {
        self.owes_cwr = true;
    }

    /// The reduction was taken back before anything was said of it.
    pub(crate) fn withdraw_cwr(&mut self) {
        self.owes_cwr = false;
    }

    /// Text of an ECN-capable sender has arrived.
    pub(crate) fn is_seen(&self) -> bool {
        self.seen
    }

    /// Segments delivered beside an echo; wraps.
    pub(crate) fn delivered_ce(&self) -> u32 {
        self.delivered_ce
    }

    /// Marks a segment that leaves; `fresh`: with text that was never sent before.
    fn mark(&mut self, segment: &mut SegmentOut, fresh: bool) {
        let flags = &mut segment.repr.flags;
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

    /// The ECN side of text that arrived.
    #[cold]
    pub(crate) fn take_ecn_of_text(&mut self, segment: &SegmentIn, arrival: Arrival) {
        let Some(ecn) = &mut self.ecn else {
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

    /// An ACK for what is in flight: true if the peer echoes a mark (RFC 3168 6.1.2).
    #[inline]
    pub(crate) fn is_ecn_echo(&self, repr: &TcpRepr) -> bool {
        repr.flags.contains(TcpFlags::ECE)
            && self.ecn.is_some()
            && !repr.flags.contains(TcpFlags::SYN)
    }

    /// `delivered` segments arrived beside an echo.
    #[cold]
    pub(crate) fn take_echo(&mut self, cx: &mut Cx<'_>, delivered: u32) {
        // The path did ask for less: no reduction is taken back.
        self.recovery.forget_undo();
        if let Some(ecn) = &mut self.ecn {
            ecn.delivered_ce = ecn.delivered_ce.wrapping_add(delivered);
            cx.mib.delivered_ce += u64::from(delivered);
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::EcnField;
    use fullsend_wire::tcp::{TcpFlags, TcpRepr};

    use super::{Ecn, SETUP};
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
        let syn = segment(TcpFlags::SYN.union(SETUP));
        for (value, asks, answers) in [(0, false, false), (1, true, true), (2, false, true)] {
            let sysctl = sysctl(value);
            assert_eq!(Ecn::to_ask(&sysctl).is_some(), asks);
            let answer = Ecn::to_answer(&sysctl, &syn, EcnField::NotEct);
            assert_eq!(answer.is_some(), answers);
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
        let accepted = |flags| Ecn::is_accepted_by(&segment(flags));
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
