//! Accurate ECN (RFC 9768): the flags AE, CWR and ECE count marked packets, so that the sender
//! learns of each.
//!
//! The option with byte counters is neither sent nor read: RFC 9768 3.2.3 leaves both open.

use fullsend_wire::EcnField;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

/// The ACE field.
pub(super) const ACE: TcpFlags = TcpFlags::AE.union(TcpFlags::CWR).union(TcpFlags::ECE);
/// RFC 9768 3.2.1: counters of marked packets begin here, so that zeroed flags show.
const FIRST_COUNT: u32 = 5;
/// Segments of an acknowledgement that was put together of several on its way, or is of a
/// super-segment.
const MANY: u32 = 4;
/// The field counts modulo this.
const CYCLE: u32 = 8;

/// The ACE field as a number.
pub(super) const fn ace(flags: TcpFlags) -> u32 {
    ((flags.0 & ACE.0) / TcpFlags::ECE.0) as u32
}

const fn flags(ace: u32) -> TcpFlags {
    TcpFlags((ace % CYCLE) as u16 * TcpFlags::ECE.0)
}

/// RFC 9768 3.1.2, table 2: how a handshake's segment tells with which ECN field the one before it
/// came.
pub(super) const fn reflection(field: EcnField) -> TcpFlags {
    flags(match field {
        EcnField::NotEct => 0b010,
        EcnField::Ect1 => 0b011,
        EcnField::Ect0 => 0b100,
        EcnField::Ce => 0b110,
    })
}

/// What we count, and what we tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Accurate {
    /// Packets that came with CE; wraps.
    pub(super) received_ce: u32,
    /// Of those, not told yet.
    untold: u32,
    /// Text last came with CE.
    was_ce: bool,
    /// With which ECN field the peer's SYN or SYN-ACK came, while that is to be told.
    pub(super) handshake: Option<EcnField>,
    /// Segments that an acknowledgement usually is for, in 64ths; 0 before the first.
    usual_delivered: u32,
    /// The path mangles the flags or the field: nothing of ours is ECN-capable, and what the peer
    /// tells is not heard. What we tell goes on.
    muted: bool,
}

impl Accurate {
    /// The peer told that our SYN or SYN-ACK, which was not ECN-capable, came with another field
    /// (RFC 9768 3.2.2.3), or zeroed the flags (3.2.2.1).
    pub(super) const fn mute(&mut self) {
        self.muted = true;
    }

    pub(super) const fn is_muted(&self) -> bool {
        self.muted
    }

    /// A handshake's segment says this of the one that we sent, Not-ECT.
    pub(super) fn hear_reflection(&mut self, flags: TcpFlags) {
        if flags.0 & ACE.0 != reflection(EcnField::NotEct).0 {
            self.mute();
        }
    }

    /// `segs` packets arrived with this field. True: the peer should hear of it at once.
    pub(super) fn on_packets(&mut self, field: EcnField, segs: u32, has_text: bool) -> bool {
        let ce = field == EcnField::Ce;
        if ce {
            self.received_ce = self.received_ce.wrapping_add(segs);
            self.untold = self.untold.saturating_add(segs);
        }
        if !has_text {
            // RFC 9768 3.2.2.5.1: before the field has gone round. Acknowledgements of
            // acknowledgements end, as each tells of several.
            return self.untold >= CYCLE - 2;
        }
        // The first mark is told at once, then every second.
        let first = ce && !self.was_ce;
        self.was_ce = ce;
        first || self.untold >= 2
    }

    /// The ACE field of a segment that leaves; `bare`: without text.
    pub(super) fn tell(&mut self, bare: bool) -> TcpFlags {
        match self.handshake.take() {
            // RFC 9768 3.2.2.1, table 3: the handshake's last segment.
            Some(field) if bare => reflection(field),
            _ => {
                self.untold = 0;
                flags(self.received_ce.wrapping_add(FIRST_COUNT))
            }
        }
    }

    /// RFC 9768 3.2.2.5.2: a segment that is cut into several would lose its CWR flag on all but the
    /// first.
    pub(super) const fn tells_with_cwr(&self) -> bool {
        let ace = self.received_ce.wrapping_add(FIRST_COUNT);
        flags(ace).contains(TcpFlags::CWR)
    }

    /// How many more of ours were marked, of `known` so far, by what `segment` says, which is an
    /// acknowledgement of `delivered` segments.
    pub(super) fn newly_marked(&mut self, segment: &TcpRepr, known: u32, delivered: u32) -> u32 {
        if self.muted || segment.flags.contains(TcpFlags::SYN) {
            return 0;
        }
        let usually_many = self.learn_delivered(delivered);
        let told = ace(segment.flags).wrapping_sub(FIRST_COUNT);
        let delta = told.wrapping_sub(known) % CYCLE;
        // A peer whose acknowledgements are always for many sends one before the count goes round
        // (RFC 9768 3.2.2.5.1). From another, some were lost.
        if delivered < CYCLE || usually_many {
            return delta;
        }
        // It may have gone round: as many as there can have been (RFC 9768 appendix A.2.1).
        delivered - (delivered - delta) % CYCLE
    }

    /// True if acknowledgements are usually for many segments.
    fn learn_delivered(&mut self, delivered: u32) -> bool {
        let now = delivered.min(1 << 16) * 64;
        self.usual_delivered = match self.usual_delivered {
            0 => now,
            usual => usual - usual / 64 + now / 64,
        };
        self.usual_delivered > MANY * 64
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::EcnField;
    use fullsend_wire::tcp::{TcpFlags, TcpRepr};

    use super::{ACE, Accurate, ace, flags, reflection};

    fn segment(count: u32) -> TcpRepr {
        TcpRepr {
            flags: TcpFlags::ACK.union(flags(count)),
            ..TcpRepr::default()
        }
    }

    /// Table 2: AE, CWR and ECE in this order.
    #[test]
    fn the_handshake_tells_the_field_of_the_segment_before() {
        let fields = [
            EcnField::NotEct,
            EcnField::Ect1,
            EcnField::Ect0,
            EcnField::Ce,
        ];
        let told = fields.map(|field| ace(reflection(field)));
        assert_eq!(told, [0b010, 0b011, 0b100, 0b110]);
        assert_eq!(flags(7), ACE);
    }

    #[test]
    fn counts_begin_at_five_and_go_round() {
        let mut ecn = Accurate::default();
        assert_eq!(ace(ecn.tell(true)), 5);
        ecn.on_packets(EcnField::Ce, 3, true);
        assert_eq!(ace(ecn.tell(false)), 0);
        ecn.on_packets(EcnField::Ce, 9, true);
        assert_eq!(ace(ecn.tell(false)), 1);
        ecn.handshake = Some(EcnField::Ce);
        assert_eq!(ace(ecn.tell(true)), 0b110);
        assert_eq!(ace(ecn.tell(true)), 1);
    }

    #[test]
    fn marks_are_told_soon_but_acknowledgements_do_not_breed() {
        let mut ecn = Accurate::default();
        assert!(!ecn.on_packets(EcnField::Ect0, 2, true));
        assert!(ecn.on_packets(EcnField::Ce, 1, true));
        ecn.tell(true);
        let later = [(); 4].map(|()| {
            let now = ecn.on_packets(EcnField::Ce, 1, true);
            if now {
                ecn.tell(true);
            }
            now
        });
        assert_eq!(later, [false, true, false, true]);
        let bare = [(); 6].map(|()| ecn.on_packets(EcnField::Ce, 1, false));
        assert_eq!(bare, [false, false, false, false, false, true]);
    }

    #[test]
    fn a_count_that_may_have_gone_round_is_taken_for_the_most_it_can_be() {
        let mut ecn = Accurate::default();
        assert_eq!(ecn.newly_marked(&segment(5), 0, 2), 0);
        assert_eq!(ecn.newly_marked(&segment(7), 0, 2), 2);
        assert_eq!(ecn.newly_marked(&segment(5), 7, 3), 1);
        // Two, or ten.
        assert_eq!(ecn.newly_marked(&segment(7), 0, 12), 10);
        assert_eq!(ecn.newly_marked(&segment(7), 0, 9), 2);
        assert_eq!(ecn.newly_marked(&segment(5), 0, 7), 0);
        // But not where each acknowledgement is for many.
        let mut ecn = Accurate::default();
        assert_eq!(ecn.newly_marked(&segment(5), 0, 20), 0);
        assert_eq!(ecn.newly_marked(&segment(7), 0, 12), 2);
    }

    #[test]
    fn who_is_muted_hears_nothing_and_tells_on() {
        let mut ecn = Accurate::default();
        ecn.hear_reflection(reflection(EcnField::NotEct));
        assert!(!ecn.is_muted());
        ecn.hear_reflection(reflection(EcnField::Ce));
        assert!(ecn.is_muted());
        assert_eq!(ecn.newly_marked(&segment(7), 0, 2), 0);
        ecn.on_packets(EcnField::Ce, 1, true);
        assert_eq!(ace(ecn.tell(true)), 6);
    }
}
