//! Negotiation of ECN (RFC 3168 6.1.1, RFC 9768 3.1): the flags of SYNs and their answers, and the
//! detection of paths that change them.

use alloc::boxed::Box;

use fullsend_wire::EcnField;
use fullsend_wire::tcp::{AccEcn, TcpFlags, TcpRepr};

use super::accurate::{ACE, ace, fail, reflection};
use super::{Ecn, Mode};
use crate::Sysctl;

/// ECN-setup SYN (RFC 3168 6.1.1).
const SETUP: TcpFlags = TcpFlags::ECE.union(TcpFlags::CWR);

/// SYN-ACKs that request or accept Accurate ECN before one is sent without it.
const TRIES: u32 = 2;

/// Returns whether a SYN requests Accurate ECN (RFC 9768 3.1.1, 3.1.3): all three flags, or a value
/// reserved for later use.
const fn requests_accurate(flags: TcpFlags) -> bool {
    !matches!(ace(flags), 0 | 0b011)
}

impl Ecn {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// Returns the state of an active open, if it requests ECN; `needs_ecn` if the congestion control
    /// requires it.
    pub(crate) fn for_connect(sysctl: &Sysctl, needs_ecn: bool) -> Option<Box<Self>> {
        let mode = match sysctl.tcp_ecn {
            3 => Mode::Accurate,
            1 | 4 => Mode::Classic,
            _ if needs_ecn => Mode::Classic,
            _ => return None,
        };
        let mut ecn = Self::new(mode);
        ecn.set_dctcp_receiver(needs_ecn);
        Some(Box::new(ecn))
    }

    /// Returns the state of a passive open, if the SYN requests ECN and the sysctl permits it;
    /// `needs_ecn` if the congestion control requires it.
    pub(crate) fn for_accept(
        sysctl: &Sysctl,
        (syn, field): (&TcpRepr, EcnField),
        needs_ecn: bool,
    ) -> Option<Box<Self>> {
        let mut ecn = Self::default();
        if sysctl.tcp_ecn >= 3 && requests_accurate(syn.flags) {
            ecn.mode = Mode::Accurate;
            ecn.accurate.handshake = Some(field);
        } else {
            // RFC 3168 6.1.1: a SYN that is itself ECN-capable was modified on the path, or comes
            // from a host that gives the flags another meaning. Or it is DCTCP's.
            let granted = needs_ecn || (sysctl.tcp_ecn != 0 && !field.is_capable());
            if !granted || !syn.flags.contains(SETUP) {
                return None;
            }
        }
        ecn.set_dctcp_receiver(needs_ecn);
        Some(Box::new(ecn))
    }

    /// Enables or disables the DCTCP receiver.
    pub(crate) fn set_dctcp_receiver(&mut self, needs_ecn: bool) {
        if !needs_ecn {
            self.dctcp = None;
        } else if self.dctcp.is_none() {
            self.dctcp = Some(Box::default());
        }
    }

    /// Returns the ECN field of a SYN or SYN-ACK with these flags. Linux: DCTCP's is ECN-capable
    /// like its data. Accurate ECN sends Not-ECT, so that the reflection detects any change.
    pub(crate) fn syn_field(&self, flags: TcpFlags) -> EcnField {
        let requests_ecn = self.mode == Mode::Classic && flags.contains(TcpFlags::ECE);
        if requests_ecn && self.dctcp.is_some() {
            EcnField::Ect0
        } else {
            EcnField::NotEct
        }
    }

    /// Processes a retransmission of the SYN that we answer.
    pub(crate) fn on_syn_retransmission(&mut self, flags: TcpFlags, field: EcnField) {
        self.accurate.handshake = Some(field);
        if ace(flags) == 0 {
            self.on_syn_without_ecn();
        }
    }

    /// Records that the SYN was also received without ECN flags: the peer may have fallen back (RFC
    /// 9768 3.1.5).
    pub(crate) fn on_syn_without_ecn(&mut self) {
        self.accurate.fail_mode |= fail::ACE_RECV;
    }

    /// Processes the peer's answer to our SYN. Returns `false` if it does not use ECN.
    pub(crate) fn on_syn_answer(
        &mut self,
        sysctl: &Sysctl,
        answer: &TcpRepr,
        field: EcnField,
    ) -> bool {
        let flags = answer.flags;
        if !flags.contains(TcpFlags::ACK) {
            return self.on_simultaneous_syn(flags, field);
        }
        if self.mode == Mode::Classic {
            return flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR);
        }
        match ace(flags) {
            // The peer does not support ECN, or reflects flags that it does not support.
            0 | 0b111 => return false,
            // RFC 9768 3.1.2: the peer supports RFC 3168 only.
            0b001 => self.mode = Mode::Classic,
            _ => self.on_syn_ack(sysctl, answer, field),
        }
        true
    }

    /// Processes the peer's SYN in a simultaneous open.
    fn on_simultaneous_syn(&mut self, flags: TcpFlags, field: EcnField) -> bool {
        if self.mode == Mode::Accurate && requests_accurate(flags) {
            self.accurate.handshake = Some(field);
            return true;
        }
        self.mode = Mode::Classic;
        flags.contains(SETUP)
    }

    /// Processes a SYN-ACK that accepts Accurate ECN.
    fn on_syn_ack(&mut self, sysctl: &Sysctl, answer: &TcpRepr, field: EcnField) {
        // RFC 9768 3.1.2, table 2: one value reflects nothing, and is reserved for later use.
        if ace(answer.flags) != 0b101 {
            self.on_reflection(sysctl, answer.flags);
        }
        let accurate = &mut self.accurate;
        accurate.handshake = Some(field);
        accurate.received_ce = u32::from(field == EcnField::Ce);
        if let Some(option) = &answer.options.acc_ecn {
            self.on_option(option);
        }
        let usable = self.is_option_usable(sysctl);
        self.accurate.bytes.reserve(usable);
    }

    /// Processes the segment that completes the handshake, for which our SYN or SYN-ACK was
    /// Not-ECT; `bare` if it has no payload, `repeats` is the number of our retransmissions.
    pub(super) fn on_handshake_end(
        &mut self,
        sysctl: &Sysctl,
        (segment, field): (&TcpRepr, EcnField),
        bare: bool,
        repeats: u32,
    ) {
        self.accurate.handshake = None;
        if self.mode == Mode::Classic {
            return;
        }
        if segment.flags.contains(TcpFlags::SYN) {
            // Simultaneous open.
            self.accurate.is_reflection = true;
            return self.on_syn_ack(sysctl, segment, field);
        }
        let sacks = !segment.options.sack.as_slice().is_empty();
        if repeats >= TRIES && sysctl.tcp_ecn_fallback {
            // RFC 9768 3.1.5: the peer may have received the SYN-ACK without Accurate ECN.
            self.accurate.fail_mode |= fail::ACE_SEND;
        }
        if !bare || sacks {
            return;
        }
        self.accurate.is_reflection = true;
        // RFC 9768 3.2.2.1, table 4: three values have no meaning yet.
        if !matches!(ace(segment.flags), 0b001 | 0b101 | 0b111) {
            self.on_reflection(sysctl, segment.flags);
        }
    }

    /// Processes the reflection of our SYN or SYN-ACK, which was Not-ECT. Another codepoint was
    /// modified on the path (RFC 9768 3.2.2.3), as were zeroed flags (3.2.2.1).
    fn on_reflection(&mut self, sysctl: &Sysctl, flags: TcpFlags) {
        let reflected = flags.0 & ACE.0;
        if reflected == reflection(EcnField::NotEct).0 {
            return;
        }
        if reflected == 0 || sysctl.tcp_ecn_fallback {
            self.accurate.fail_mode |= fail::ACE_RECV | fail::OPTION_RECV;
        } else if reflected == reflection(EcnField::Ce).0 {
            self.delivered_ce = self.delivered_ce.wrapping_add(1);
        }
    }

    /// Returns the flags of our SYN or SYN-ACK after `earlier` transmissions.
    pub(crate) fn syn_flags(&self, sysctl: &Sysctl, syn_ack: bool, earlier: u32) -> TcpFlags {
        // RFC 3168 6.1.1.1, RFC 9768 3.1.4: a middlebox may drop such SYNs. Accurate ECN is
        // requested once more.
        let tries = if self.mode == Mode::Accurate {
            TRIES
        } else {
            1
        };
        let falls_back = earlier >= tries && sysctl.tcp_ecn_fallback;
        match (self.mode, syn_ack) {
            (Mode::Classic, true) => TcpFlags::ECE,
            _ if falls_back => TcpFlags::default(),
            (Mode::Classic, false) => SETUP,
            (Mode::Accurate, false) => ACE,
            (Mode::Accurate, true) => reflection(self.accurate.handshake.unwrap_or_default()),
        }
    }

    /// Returns the AccECN option of our first SYN-ACK. Retransmissions omit it, as a middlebox may
    /// drop segments with it (RFC 9768 3.2.3.2.2).
    pub(crate) fn syn_ack_option(&self, sysctl: &Sysctl, earlier: u32) -> Option<AccEcn> {
        let sent = self.mode == Mode::Accurate && earlier == 0 && sysctl.tcp_ecn_option != 0;
        sent.then(|| self.accurate.bytes.option())
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
    fn tcp_ecn_selects_requests_and_answers() {
        let (no, classic, accurate) = (None, Some(Mode::Classic), Some(Mode::Accurate));
        // Columns: active open; passive open from a SYN of RFC 3168, and from one of RFC 9768.
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
                Ecn::for_accept(&sysctl, (&syn, EcnField::NotEct), false)
            };
            let modes = [Ecn::for_connect(&sysctl, false), answer(SETUP), answer(ACE)];
            assert_eq!(modes.map(|ecn| ecn.map(|ecn| ecn.mode)), row, "{value}");
        }
    }

    /// Linux's `TCP_CONG_NEEDS_ECN`.
    #[test]
    fn congestion_control_that_needs_ecn_overrides_tcp_ecn() {
        let (classic, accurate) = (Some(Mode::Classic), Some(Mode::Accurate));
        for value in 0..=5 {
            let sysctl = sysctl(value);
            let syn = segment(TcpFlags::SYN.union(SETUP));
            let answer = Ecn::for_accept(&sysctl, (&syn, EcnField::Ect0), true);
            assert_eq!(answer.as_ref().map(|ecn| ecn.mode), classic, "{value}");
            let request = Ecn::for_connect(&sysctl, true);
            let mode = if value == 3 { accurate } else { classic };
            assert_eq!(request.as_ref().map(|ecn| ecn.mode), mode, "{value}");
            let bare = segment(TcpFlags::SYN);
            assert!(Ecn::for_accept(&sysctl, (&bare, EcnField::Ect0), true).is_none());
        }
    }

    #[test]
    fn only_a_not_ect_syn_with_both_flags_requests_ecn() {
        let sysctl = sysctl(2);
        for flags in [TcpFlags::default(), TcpFlags::ECE, TcpFlags::CWR] {
            let syn = segment(TcpFlags::SYN.union(flags));
            assert!(Ecn::for_accept(&sysctl, (&syn, EcnField::NotEct), false).is_none());
        }
        let syn = segment(TcpFlags::SYN.union(SETUP));
        for field in [EcnField::Ect0, EcnField::Ect1, EcnField::Ce] {
            assert!(Ecn::for_accept(&sysctl, (&syn, field), false).is_none());
        }
    }

    #[test]
    fn syn_ack_accepts_with_ece_alone() {
        let sysctl = sysctl(1);
        let ack = TcpFlags::SYN.union(TcpFlags::ACK);
        let accepted =
            |flags| Ecn::default().on_syn_answer(&sysctl, &segment(flags), EcnField::NotEct);
        assert!(accepted(ack.union(TcpFlags::ECE)));
        assert!(!accepted(ack));
        // A host that reflects flags that it does not support.
        assert!(!accepted(ack.union(SETUP)));
        assert!(accepted(TcpFlags::SYN.union(SETUP)));
        assert!(!accepted(TcpFlags::SYN.union(TcpFlags::ECE)));
    }

    #[test]
    fn changed_reflection_mutes_unless_fallback_is_off() {
        for (fallback, reflected, muted, marked) in [
            (true, 0b010, false, 0),
            (true, 0b110, true, 0),
            (false, 0b110, false, 1),
            (false, 0b100, false, 0),
            (false, 0, true, 0),
        ] {
            let sysctl = Sysctl {
                tcp_ecn_fallback: fallback,
                ..sysctl(3)
            };
            let mut ecn = Ecn::new(Mode::Accurate);
            let last = segment(TcpFlags(TcpFlags::ACK.0 | (reflected * TcpFlags::ECE.0)));
            ecn.on_handshake_end(&sysctl, (&last, EcnField::Ect0), true, 0);
            assert!(ecn.accurate.is_reflection);
            assert_eq!((ecn.accurate.is_muted(), ecn.delivered_ce), (muted, marked));
        }
    }
}
