//! Accurate ECN (RFC 9768): the flags AE, CWR and ECE count marked packets, so that the sender
//! learns of each.

use fullsend_wire::EcnField;
use fullsend_wire::tcp::{AccEcn, TcpFlags};

use super::bytes::Bytes;

/// The ACE field.
pub(super) const ACE: TcpFlags = TcpFlags::AE.union(TcpFlags::CWR).union(TcpFlags::ECE);
/// RFC 9768 3.2.1: counters of marked packets begin here, so that zeroed flags show.
const FIRST_COUNT: u32 = 5;
/// Segments of an acknowledgement that was put together of several on its way, or is of a
/// super-segment.
const MANY: u32 = 4;
/// The field counts modulo this.
const CYCLE: u32 = 8;

/// What is wrong with the path, as bits of `tcpi_accecn_fail_mode`.
pub(super) mod fail {
    /// The peer may not know what our flags count.
    pub(in crate::ecn) const ACE_SEND: u8 = 1;
    /// Something changes the flags, or the IP field, on their way to us.
    pub(in crate::ecn) const ACE_RECV: u8 = 2;
    /// Segments with our option are lost.
    pub(in crate::ecn) const OPTION_SEND: u8 = 4;
    /// The peer's option is not what it sent.
    pub(in crate::ecn) const OPTION_RECV: u8 = 8;
}

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
#[derive(Clone, Debug)]
pub(super) struct Accurate {
    /// Packets that came with CE; wraps.
    pub(super) received_ce: u32,
    /// Of those, not told yet.
    untold: u32,
    /// How text came last.
    last_field: EcnField,
    /// With which ECN field the peer's SYN or SYN-ACK came, while that is to be told.
    pub(super) handshake: Option<EcnField>,
    /// Segments that an acknowledgement usually is for, in 64ths; 0 before the first.
    usual_delivered: u32,
    /// Bits of [`fail`].
    pub(super) fails: u8,
    /// A count of the peer's has come.
    heard: bool,
    /// The segment at hand tells no count: it ends the handshake.
    pub(super) reflects: bool,
    /// The segment at hand has a later timestamp than those before.
    pub(super) later: bool,
    pub(super) bytes: Bytes,
}

impl Default for Accurate {
    fn default() -> Self {
        Self {
            received_ce: 0,
            untold: 0,
            // As nearly all text comes.
            last_field: EcnField::Ect0,
            handshake: None,
            usual_delivered: 0,
            fails: 0,
            heard: false,
            reflects: false,
            later: false,
            bytes: Bytes::default(),
        }
    }
}

/// An acknowledgement's part in telling of marks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Feedback {
    pub(super) flags: TcpFlags,
    /// Segments and bytes of ours that it is for.
    pub(super) delivered: u32,
    pub(super) delivered_bytes: u32,
    /// Bytes of these that were marked, where the option tells for sure.
    pub(super) ce_bytes: Option<u32>,
    /// Bytes of a full segment.
    pub(super) mss: u32,
    /// `delivered` is exact.
    pub(super) exact: bool,
}

impl Accurate {
    /// The path mangles the flags or the field: nothing of ours is ECN-capable, and what the peer
    /// tells is not heard. What we tell goes on.
    pub(super) const fn is_muted(&self) -> bool {
        self.fails & (fail::ACE_SEND | fail::ACE_RECV) != 0
    }

    /// `segs` packets arrived with this field and, together, `len` bytes of text. True: the peer
    /// should hear of it at once (RFC 9768 3.2.2.5.1).
    pub(super) fn on_packets(&mut self, field: EcnField, segs: u32, len: u32) -> bool {
        let ce = field == EcnField::Ce;
        if ce {
            self.received_ce = self.received_ce.wrapping_add(segs);
            self.untold = self.untold.saturating_add(segs);
        }
        if len == 0 {
            // Before the field has gone round. Acknowledgements of acknowledgements end, as each
            // tells of several.
            return self.untold >= CYCLE - 2;
        }
        self.bytes.on_text(field, len);
        let changed = core::mem::replace(&mut self.last_field, field) != field;
        if changed || ce {
            self.bytes.on_change();
        }
        changed || self.untold >= 2
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

    /// The first count behind the handshake: zero is hardly that of three marks, but of something
    /// that clears flags (RFC 9768 3.2.2.4), unless the option tells of marks.
    pub(super) fn hear_first(&mut self, flags: TcpFlags, option: Option<&AccEcn>) {
        if self.reflects || core::mem::replace(&mut self.heard, true) {
            return;
        }
        let mut counters = option.into_iter().flat_map(AccEcn::counters);
        let marked = counters.any(|(field, count)| field == EcnField::Ce && count > 0);
        if ace(flags) == 0 && !marked {
            self.fails |= fail::ACE_RECV;
        }
    }

    /// How many more of ours were marked, of `known` so far.
    pub(super) fn newly_marked(&mut self, known: u32, told: &Feedback) -> u32 {
        let usually_many = self.learn_delivered(told.delivered);
        let ace = ace(told.flags);
        let delta = ace.wrapping_sub(FIRST_COUNT).wrapping_sub(known) % CYCLE;
        if told.delivered < CYCLE {
            return delta;
        }
        // It may have gone round: as many as there can have been (RFC 9768 appendix A.2.1).
        let most = told.delivered - (told.delivered - delta) % CYCLE;
        match told.ce_bytes {
            Some(bytes) => told.by_bytes(delta, most, bytes),
            // A peer whose acknowledgements are always for many sends one before the count goes
            // round (RFC 9768 3.2.2.5.1). From another, some were lost.
            None if usually_many => delta,
            None => most,
        }
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

impl Feedback {
    /// Between the least and the most marked segments, what fits the marked bytes (RFC 9768
    /// appendix A.2.2).
    fn by_bytes(&self, least: u32, most: u32, bytes: u32) -> u32 {
        if bytes == 0 {
            return least;
        }
        if self.exact && self.delivered >= 2 * CYCLE {
            // Many segments: marked as many of them as of the bytes.
            if bytes >= self.delivered_bytes {
                return most;
            }
            let segs = u64::from(bytes) * u64::from(self.delivered);
            let segs = segs.div_ceil(self.delivered_bytes.into()) as u32;
            return most.min(least + segs / CYCLE * CYCLE);
        }
        // As many bytes as the least can hold, and not half of what the most would.
        let half = most.saturating_mul(self.mss) / 2;
        if bytes <= least.saturating_mul(self.mss) && bytes < half {
            least
        } else {
            most
        }
    }
}

#[cfg(test)]
mod tests;
