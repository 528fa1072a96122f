//! Cumulative acknowledgement.

use fullsend_units::{Instant, Nanos, SeqNum};

use super::{KEPT_UNITS, Marks, RtxQueue};

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
    /// A segment that was sent once and not SACKed, though later ones were: the path reorders.
    /// How many segments late, 0 if none.
    pub(crate) reordering_segs: u32,
    /// Our SYN was among it.
    pub(crate) syn: bool,
    /// Our FIN was among it.
    pub(crate) fin: bool,
    /// Memory charge released.
    pub(crate) truesize: u32,
}

/// Send times of what one ACK delivered.
#[derive(Clone, Copy)]
struct Sent {
    oldest: Instant,
    newest: Instant,
}

impl RtxQueue {
    /// Everything before `snd_una` has arrived.
    pub(crate) fn ack(&mut self, now: Instant, snd_una: SeqNum) -> AckOutcome {
        let mut out = AckOutcome::default();
        let mut sent = None;
        let highest = (self.sacked_out > 0).then_some(self.highest_sacked);
        while let Some(head) = self.units.front() {
            if head.end().after(snd_una) {
                break;
            }
            let (marks, segs, sent_at) = (head.marks, head.segs, head.sent_at);
            out.acked_bytes += head.payload.len() as u32;
            out.truesize += head.truesize;
            out.syn |= marks.has(Marks::SYN);
            out.fin |= marks.has(Marks::FIN);
            if let Some(highest) = highest
                && head.end().before_eq(highest)
                && !marks.has(Marks::SACKED.with(Marks::EVER_RETRANS))
            {
                let late = self.mss.segments(highest.since(head.seq));
                out.reordering_segs = out.reordering_segs.max(late);
            }
            let end = head.end();
            if let Some(delivery) = &mut self.delivery {
                if !marks.has(Marks::SACKED) {
                    delivery.on_arrived(0, sent_at, end);
                }
                delivery.on_retired();
            }
            self.units.pop_front();
            self.retire(marks, segs, sent_at, &mut out, &mut sent);
        }
        self.trim_head(snd_una, &mut out, &mut sent);
        self.truesize -= out.truesize;
        // Kept close behind, so that they stay comparable when the stream wraps.
        self.lost_edge = self.lost_edge.latest(snd_una);
        self.rtx_edge = self.rtx_edge.latest(snd_una);
        if self.dupacks > 0 {
            self.eat_dupacks(&mut out);
        }
        // Karn: an ACK that covers a retransmission may be for either copy, and what it
        // delivered beside it may have waited for it.
        if let Some(Sent { oldest, newest }) = sent
            && !out.retransmitted
        {
            out.rtt = Some(now.since(oldest));
            out.rtt_newest = Some(now.since(newest));
        }
        if self.units.is_empty() && self.units.capacity() > KEPT_UNITS {
            self.units.shrink_to(KEPT_UNITS);
        }
        out
    }

    /// Takes segments of the head off the counts.
    #[inline]
    fn retire(
        &mut self,
        marks: Marks,
        segs: u32,
        sent_at: Instant,
        out: &mut AckOutcome,
        sent: &mut Option<Sent>,
    ) {
        self.packets_out -= segs;
        out.acked_segs += segs;
        if marks.0 > Marks::FIN.0 | Marks::SYN.0 {
            self.discount(marks, segs);
            out.retransmitted |= marks.has(Marks::EVER_RETRANS);
            if marks.has(Marks::SACKED) {
                return;
            }
        }
        out.delivered_segs += segs;
        let oldest = sent.map_or(sent_at, |s| s.oldest.min(sent_at));
        let newest = sent.map_or(sent_at, |s| s.newest.max(sent_at));
        *sent = Some(Sent { oldest, newest });
    }

    /// The ACK reaches into the head: what it covers goes.
    fn trim_head(&mut self, snd_una: SeqNum, out: &mut AckOutcome, sent: &mut Option<Sent>) {
        let mss = self.mss;
        let Some(head) = self.units.front_mut() else {
            return;
        };
        if !snd_una.after(head.seq) {
            return;
        }
        let bytes = snd_una.since(head.seq).min(head.payload.len() as u32);
        head.payload.advance(bytes as usize);
        head.seq = snd_una;
        let left = mss.segments(head.payload.len() as u32).max(1);
        let gone = head.segs.saturating_sub(left);
        head.segs -= gone;
        let (marks, sent_at) = (head.marks, head.sent_at);
        out.acked_bytes += bytes;
        if gone > 0 {
            if let Some(delivery) = &mut self.delivery
                && !marks.has(Marks::SACKED)
            {
                delivery.on_arrived(0, sent_at, snd_una);
            }
            self.retire(marks, gone, sent_at, out, sent);
        }
    }

    /// Without SACK: of the segments that this ACK covers the first filled the hole, the others
    /// had announced themselves by duplicate ACKs.
    fn eat_dupacks(&mut self, out: &mut AckOutcome) {
        let known = self.dupacks.min(out.acked_segs.saturating_sub(1));
        self.dupacks = (self.dupacks - known).min(self.packets_out);
        out.delivered_segs -= known.min(out.delivered_segs);
    }

    /// A duplicate ACK arrived on a connection without SACK: one more segment has left the
    /// network (RFC 5681 3.2). Bounded, as a peer may send as many as it likes.
    pub(crate) fn on_dupack(&mut self) {
        let most = self.packets_out.saturating_sub(self.lost_out.max(1));
        self.dupacks = (self.dupacks + 1).min(most);
    }

    /// The duplicate ACKs' guesses are void (recovery ended, or new data was acknowledged before
    /// there were enough of them).
    pub(crate) fn forget_dupacks(&mut self) {
        self.dupacks = 0;
    }
}
