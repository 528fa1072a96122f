//! Accurate ECN (RFC 9768): the flags AE, CWR and ECE count marked packets, so that the sender
//! learns of every mark.

use fullsend_wire::EcnField;
use fullsend_wire::tcp::{AccEcn, TcpFlags};

use super::bytes::ByteCounters;

/// The ACE field.
pub(super) const ACE: TcpFlags = TcpFlags::AE.union(TcpFlags::CWR).union(TcpFlags::ECE);
/// Initial value of the counters of marked packets (RFC 9768 3.2.1), by which zeroed flags are
/// detected.
const FIRST_COUNT: u32 = 5;
/// Segments covered by an acknowledgement that was merged on the path, or is for a super-segment.
const MANY_SEGS: u32 = 4;
/// Modulus of the ACE counter.
const CYCLE: u32 = 8;

/// Faults of the path, as bits of `tcpi_accecn_fail_mode`.
pub(super) mod fail {
    /// The peer may not interpret our flags as a counter.
    pub(in crate::ecn) const ACE_SEND: u8 = 1;
    /// The path modifies the flags or the IP field of received segments.
    pub(in crate::ecn) const ACE_RECV: u8 = 2;
    /// Segments with our option are lost.
    pub(in crate::ecn) const OPTION_SEND: u8 = 4;
    /// The peer's option is modified on the path.
    pub(in crate::ecn) const OPTION_RECV: u8 = 8;
}

/// Returns the ACE field as a number.
pub(super) const fn ace(flags: TcpFlags) -> u32 {
    ((flags.0 & ACE.0) / TcpFlags::ECE.0) as u32
}

const fn flags(ace: u32) -> TcpFlags {
    TcpFlags((ace % CYCLE) as u16 * TcpFlags::ECE.0)
}

/// Returns the flags by which a segment of the handshake reflects the ECN field of the one before
/// it (RFC 9768 3.1.2, table 2).
pub(super) const fn reflection(field: EcnField) -> TcpFlags {
    flags(match field {
        EcnField::NotEct => 0b010,
        EcnField::Ect1 => 0b011,
        EcnField::Ect0 => 0b100,
        EcnField::Ce => 0b110,
    })
}

/// The packet counters of Accurate ECN, in both directions.
#[derive(Clone, Debug)]
pub(super) struct Accurate {
    /// Packets received with CE; wraps.
    pub(super) received_ce: u32,
    /// CE packets not reported yet.
    unreported_ce: u32,
    /// ECN field of the last data received.
    last_field: EcnField,
    /// ECN field of the peer's SYN or SYN-ACK, until it is reflected.
    pub(super) handshake: Option<EcnField>,
    /// Average number of segments that an acknowledgement covers, in 64ths; 0 before the first.
    average_delivered: u32,
    /// Bits of [`fail`].
    pub(super) fail_mode: u8,
    /// Whether a counter of the peer was received.
    counter_received: bool,
    /// Whether the present segment carries no counter, because it completes the handshake.
    pub(super) is_reflection: bool,
    /// Whether the present segment has a later timestamp than those before.
    pub(super) has_later_timestamp: bool,
    pub(super) bytes: ByteCounters,
}

impl Default for Accurate {
    fn default() -> Self {
        Self {
            received_ce: 0,
            unreported_ce: 0,
            // The usual field of data.
            last_field: EcnField::Ect0,
            handshake: None,
            average_delivered: 0,
            fail_mode: 0,
            counter_received: false,
            is_reflection: false,
            has_later_timestamp: false,
            bytes: ByteCounters::default(),
        }
    }
}

/// The feedback of one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Feedback {
    pub(super) flags: TcpFlags,
    /// Segments and bytes of ours that it newly covers.
    pub(super) delivered: u32,
    pub(super) delivered_bytes: u32,
    /// Marked bytes among these, if the option reports them without ambiguity.
    pub(super) ce_bytes: Option<u32>,
    /// Payload bytes of a full segment.
    pub(super) mss: u32,
    /// Whether `delivered` is exact.
    pub(super) exact: bool,
}

impl Accurate {
    /// Returns whether the path modifies the flags or the IP field: our segments are then not
    /// ECN-capable, and the peer's counters are ignored. Our own feedback continues.
    pub(super) const fn is_muted(&self) -> bool {
        self.fail_mode & (fail::ACE_SEND | fail::ACE_RECV) != 0
    }

    /// Counts `segs` packets received with this ECN field and `len` bytes of data in total. Returns
    /// whether to acknowledge them immediately (RFC 9768 3.2.2.5.1).
    pub(super) fn on_packets(&mut self, field: EcnField, segs: u32, len: u32) -> bool {
        let ce = field == EcnField::Ce;
        if ce {
            self.received_ce = self.received_ce.wrapping_add(segs);
            self.unreported_ce = self.unreported_ce.saturating_add(segs);
        }
        if len == 0 {
            // Before the counter wraps. Acknowledgements of acknowledgements end, as each reports
            // several packets.
            return self.unreported_ce >= CYCLE - 2;
        }
        self.bytes.on_data(field, len);
        let changed = core::mem::replace(&mut self.last_field, field) != field;
        if changed || ce {
            self.bytes.on_change();
        }
        changed || self.unreported_ce >= 2
    }

    /// Returns the ACE field of a segment to send; `bare` if it has no payload.
    pub(super) fn next_ace(&mut self, bare: bool) -> TcpFlags {
        match self.handshake.take() {
            // RFC 9768 3.2.2.1, table 3: the last segment of the handshake.
            Some(field) if bare => reflection(field),
            _ => {
                self.unreported_ce = 0;
                flags(self.received_ce.wrapping_add(FIRST_COUNT))
            }
        }
    }

    /// Checks the first counter after the handshake: zero is more likely a cleared field than three
    /// marks (RFC 9768 3.2.2.4), unless the option reports marks.
    pub(super) fn check_first_counter(&mut self, flags: TcpFlags, option: Option<&AccEcn>) {
        if self.is_reflection || core::mem::replace(&mut self.counter_received, true) {
            return;
        }
        let mut counters = option.into_iter().flat_map(AccEcn::counters);
        let marked = counters.any(|(field, count)| field == EcnField::Ce && count > 0);
        if ace(flags) == 0 && !marked {
            self.fail_mode |= fail::ACE_RECV;
        }
    }

    /// Returns how many more segments of ours were marked than the `known` ones.
    pub(super) fn newly_marked(&mut self, known: u32, feedback: &Feedback) -> u32 {
        let usually_many = self.update_average(feedback.delivered);
        let ace = ace(feedback.flags);
        let delta = ace.wrapping_sub(FIRST_COUNT).wrapping_sub(known) % CYCLE;
        if feedback.delivered < CYCLE {
            return delta;
        }
        // The counter may have wrapped: assume the largest possible number (RFC 9768 appendix
        // A.2.1).
        let most = feedback.delivered - (feedback.delivered - delta) % CYCLE;
        match feedback.ce_bytes {
            Some(bytes) => feedback.by_bytes(delta, most, bytes),
            // A peer whose acknowledgements always cover many segments sends one before the counter
            // wraps (RFC 9768 3.2.2.5.1). From another peer, acknowledgements were lost.
            None if usually_many => delta,
            None => most,
        }
    }

    /// Updates the average and returns whether acknowledgements usually cover many segments.
    fn update_average(&mut self, delivered: u32) -> bool {
        let now = delivered.min(1 << 16) * 64;
        self.average_delivered = match self.average_delivered {
            0 => now,
            usual => usual - usual / 64 + now / 64,
        };
        self.average_delivered > MANY_SEGS * 64
    }
}

impl Feedback {
    /// Returns the number of marked segments between `least` and `most` that fits the marked bytes
    /// (RFC 9768 appendix A.2.2).
    fn by_bytes(&self, least: u32, most: u32, bytes: u32) -> u32 {
        if bytes == 0 {
            return least;
        }
        if self.exact && self.delivered >= 2 * CYCLE {
            // With many segments, the marked share of segments equals that of bytes.
            if bytes >= self.delivered_bytes {
                return most;
            }
            let segs = u64::from(bytes) * u64::from(self.delivered);
            let segs = segs.div_ceil(self.delivered_bytes.into()) as u32;
            return most.min(least + segs / CYCLE * CYCLE);
        }
        // `least` if it can hold these bytes, and `most` would hold more than twice as many.
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
