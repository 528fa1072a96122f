//! Transmit units sent and not yet acknowledged, and what is known of each (RFC 2018, RFC 6675).

use fullsend_buf::Chain;
use fullsend_units::{Instant, Mss, Nanos, SeqNum};
use fullsend_wire::tcp::SackBlock;

/// What was handed to IP at once: a SYN, text of one or more segments, a FIN.
#[derive(Debug)]
pub(crate) struct TransmitUnit {
    /// Sequence number of its first byte (of the SYN, if it is one).
    pub(crate) seq: SeqNum,
    /// Text.
    pub(crate) payload: Chain,
    /// It is (or begins with) a SYN.
    pub(crate) syn: bool,
    /// A FIN stands behind the text.
    pub(crate) fin: bool,
    /// When it was last sent.
    pub(crate) sent_at: Instant,
    /// Bytes of memory charged for it.
    pub(crate) truesize: u32,
}

/// What a cumulative ACK did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AckOutcome {
    /// Segments no longer outstanding, those SACKed earlier included.
    pub(crate) acked_segs: u32,
    /// Of these, not SACKed earlier: newly delivered.
    pub(crate) delivered_segs: u32,
    /// Bytes of text no longer outstanding.
    pub(crate) acked_bytes: u32,
    /// Round trip of the oldest unit that this ACK delivered, for the RTO; `None` where a
    /// retransmission makes it ambiguous (Karn).
    pub(crate) rtt: Option<Nanos>,
    /// Round trip of the newest one, free of the peer's ACK delay, for congestion control.
    pub(crate) rtt_newest: Option<Nanos>,
    /// Something that had been retransmitted was among it.
    pub(crate) retransmitted: bool,
    /// Our SYN was among it.
    pub(crate) syn: bool,
    /// Our FIN was among it.
    pub(crate) fin: bool,
    /// Memory charge released.
    pub(crate) truesize: u32,
}

/// What SACK blocks did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SackOutcome {
    /// Segments newly known to have arrived.
    pub(crate) delivered_segs: u32,
    /// Round trip of the oldest of these, `None` where ambiguous.
    pub(crate) rtt: Option<Nanos>,
    /// A never retransmitted segment below the highest SACKed one arrived: the path reorders.
    /// How many segments late, 0 if none.
    pub(crate) reordering_segs: u32,
    /// The first block was a duplicate report (RFC 2883): data that we sent twice without need.
    pub(crate) dsack: Option<SackBlock>,
}

/// A range to send again.
#[derive(Debug)]
pub(crate) struct Retransmit {
    /// Sequence number of its first byte.
    pub(crate) seq: SeqNum,
    /// Text.
    pub(crate) payload: Chain,
    /// Segments.
    pub(crate) segs: u32,
    /// It begins with our SYN.
    pub(crate) syn: bool,
    /// It ends with our FIN.
    pub(crate) fin: bool,
    /// Bytes of memory to charge the device for.
    pub(crate) truesize: u32,
}

/// The retransmission queue with its scoreboard.
#[derive(Debug)]
pub(crate) struct RtxQueue {}

#[allow(
    unused_variables,
    clippy::needless_pass_by_value,
    reason = "bodies land next"
)]
impl RtxQueue {
    /// Empty.
    pub(crate) fn new(mss: Mss) -> Self {
        todo!()
    }

    /// Nothing outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        todo!()
    }

    /// Transmit units outstanding (spec 2: TSQ lets 0 or 1 pass).
    pub(crate) fn units(&self) -> usize {
        todo!()
    }

    /// When the oldest unit was last sent.
    pub(crate) fn head_sent_at(&self) -> Option<Instant> {
        todo!()
    }

    /// Segments outstanding.
    pub(crate) fn packets_out(&self) -> u32 {
        todo!()
    }

    /// Segments the peer has SACKed (or duplicate ACKs stand for, without SACK).
    pub(crate) fn sacked_out(&self) -> u32 {
        todo!()
    }

    /// Segments marked lost.
    pub(crate) fn lost_out(&self) -> u32 {
        todo!()
    }

    /// Segments retransmitted and still out.
    pub(crate) fn retrans_out(&self) -> u32 {
        todo!()
    }

    /// RFC 6675 "pipe", in segments.
    pub(crate) fn in_flight(&self) -> u32 {
        todo!()
    }

    /// Memory charged for all units.
    pub(crate) fn truesize(&self) -> usize {
        todo!()
    }

    /// Adds what was just sent for the first time. Units come in sequence order.
    pub(crate) fn push(&mut self, unit: TransmitUnit) {
        todo!()
    }

    /// Everything before `snd_una` has arrived.
    pub(crate) fn ack(&mut self, now: Instant, snd_una: SeqNum) -> AckOutcome {
        todo!()
    }

    /// Takes in the SACK blocks of an ACK whose cumulative part has already gone through
    /// [`ack`](Self::ack). Blocks outside `snd_una..snd_nxt` are ignored.
    pub(crate) fn sack(
        &mut self,
        now: Instant,
        snd_una: SeqNum,
        blocks: &[SackBlock],
    ) -> SackOutcome {
        todo!()
    }

    /// A duplicate ACK arrived on a connection without SACK: one more segment has left the
    /// network (RFC 5681 3.2).
    pub(crate) fn on_dupack(&mut self) {
        todo!()
    }

    /// The duplicate ACKs' guesses are void (new data was acknowledged, or recovery ended).
    pub(crate) fn forget_dupacks(&mut self) {
        todo!()
    }

    /// RFC 6675 IsLost: marks what has `dupthresh` segments SACKed above it. Segments newly lost.
    pub(crate) fn mark_lost_by_sack(&mut self, dupthresh: u32) -> u32 {
        todo!()
    }

    /// RFC 6582: marks the first segment lost (fast retransmit, partial ACK). Segments newly
    /// lost (0 or 1).
    pub(crate) fn mark_head_lost(&mut self) -> u32 {
        todo!()
    }

    /// The retransmission timer fired: all that is not SACKed is lost, retransmissions too. A
    /// SACKed head means that the receiver reneged (RFC 2018 8): then SACK marks are void.
    pub(crate) fn mark_all_lost(&mut self) {
        todo!()
    }

    /// Nothing is lost after all (undo of a spurious recovery).
    pub(crate) fn unmark_lost(&mut self) {
        todo!()
    }

    /// Lost segments wait to be sent again.
    pub(crate) fn has_lost(&self) -> bool {
        todo!()
    }

    /// The next lost range to send again, at most `limit` segments; marks it as sent at `now`.
    pub(crate) fn next_retransmit(&mut self, now: Instant, limit: u32) -> Option<Retransmit> {
        todo!()
    }

    /// The head once more, lost or not (RTO without `mark_all_lost`, SYN, keepalive), at most
    /// `limit` segments; marks it as retransmitted at `now`.
    pub(crate) fn retransmit_head(&mut self, now: Instant, limit: u32) -> Option<Retransmit> {
        todo!()
    }

    /// The last segment once more (tail loss probe).
    pub(crate) fn retransmit_tail(&mut self, now: Instant) -> Option<Retransmit> {
        todo!()
    }

    /// The segment size changed: counts anew.
    pub(crate) fn set_mss(&mut self, mss: Mss) {
        todo!()
    }

    /// Throws everything away.
    pub(crate) fn clear(&mut self) {
        todo!()
    }
}
