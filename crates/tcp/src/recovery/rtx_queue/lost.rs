//! What is lost, and sending it again (RFC 6675, RFC 6582, RFC 6298 5.4).

use fullsend_buf::Chain;
use fullsend_units::{Instant, SeqNum};

use super::{Marks, RtxQueue};

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

impl RtxQueue {
    /// RFC 6675 IsLost: marks what has `dupthresh` segments SACKed above it. Segments newly lost.
    pub(crate) fn mark_lost_by_sack(&mut self, dupthresh: u32) -> u32 {
        let dupthresh = dupthresh.max(1);
        if self.sacked_out < dupthresh {
            return 0;
        }
        let mut edge = self.index_after(self.highest_sacked - 1) + 1;
        let mut above = 0;
        while above < dupthresh {
            edge -= 1;
            let unit = &self.units[edge];
            above += if unit.marks.has(Marks::SACKED) {
                unit.segs
            } else {
                0
            };
        }
        let edge_seq = self.units[edge].seq;
        if !edge_seq.after(self.lost_edge) {
            return 0;
        }
        let before = self.lost_out;
        for i in self.index_after(self.lost_edge)..edge {
            self.mark_lost(i);
        }
        self.lost_edge = edge_seq;
        self.lost_out - before
    }

    /// RFC 8985 6.2, for what was sent again: it is lost once more if something sent after
    /// `sent_before` has arrived, and it was sent before. Segments newly lost.
    pub(crate) fn mark_lost_retransmissions(&mut self, sent_before: Instant) -> u32 {
        if self.retrans_out == 0 {
            return 0;
        }
        let before = self.retrans_out;
        for i in 0..=self.index_after(self.rtx_edge - 1) {
            let Some(unit) = self.units.get(i) else {
                break;
            };
            if unit.marks.has(Marks::RETRANS) && unit.sent_at < sent_before {
                self.remark(i, |m| m.without(Marks::RETRANS).without(Marks::LOST));
                self.mark_lost(i);
            }
        }
        before - self.retrans_out
    }

    /// What lies between `seq` and `end` never left the host, or not again: it is lost, for sure.
    /// Segments newly waiting to be sent again.
    pub(crate) fn mark_dropped(&mut self, seq: SeqNum, end: SeqNum) -> u32 {
        let before = self.rtx_pending;
        for i in self.index_after(seq)..self.units.len() {
            let unit = &self.units[i];
            if unit.end().after(end) {
                break;
            }
            if unit.marks.has(Marks::RETRANS) {
                self.remark(i, |m| m.without(Marks::RETRANS).without(Marks::LOST));
            }
            self.mark_lost(i);
        }
        self.rtx_pending - before
    }

    /// RFC 6582: marks the first segment lost (fast retransmit, partial ACK). Segments newly
    /// lost (0 or 1).
    pub(crate) fn mark_head_lost(&mut self) -> u32 {
        let Some(i) = self.first_unsacked() else {
            return 0;
        };
        self.cut_segments(i, 1);
        let before = self.lost_out;
        self.mark_lost(i);
        self.lost_out - before
    }

    /// The retransmission timer fired: all that is not SACKed is lost, retransmissions too. A
    /// SACKed head means that the receiver reneged (RFC 2018 8): then SACK marks are void.
    pub(crate) fn mark_all_lost(&mut self) {
        let (Some(head), Some(last)) = (self.units.front(), self.units.back()) else {
            return;
        };
        let reneged = head.marks.has(Marks::SACKED);
        let (start, end) = (head.seq, last.end());
        for (i, unit) in self.units.iter_mut().enumerate() {
            if reneged {
                unit.marks = unit.marks.without(Marks::SACKED);
            }
            if !unit.marks.has(Marks::SACKED) {
                if let Some(delivery) = &mut self.delivery
                    && !unit.marks.awaits_retransmission()
                {
                    delivery.on_lost(i, unit.seq, unit.end(), unit.segs);
                }
                unit.marks = unit.marks.without(Marks::RETRANS).with(Marks::LOST);
            }
        }
        self.dupacks = 0;
        self.recount();
        self.lost_edge = end;
        self.rtx_edge = start;
    }

    /// Nothing is lost after all (undo of a spurious recovery).
    pub(crate) fn unmark_lost(&mut self) {
        for i in 0..self.units.len() {
            self.remark(i, |m| m.without(Marks::LOST));
        }
        if let Some(head) = self.units.front() {
            self.lost_edge = head.seq;
        }
    }

    /// Lost segments wait to be sent again.
    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        self.rtx_pending > 0
    }

    fn next_lost(&self) -> Option<usize> {
        if self.rtx_pending == 0 {
            return None;
        }
        let start = self.index_after(self.rtx_edge);
        (start..self.units.len()).find(|&i| self.units[i].marks.awaits_retransmission())
    }

    /// The number of the last copy of the unit that is to be sent again next.
    pub(crate) fn next_lost_number(&self) -> Option<u16> {
        self.next_lost().map(|i| self.units[i].number)
    }

    /// The next lost range to send again, at most `limit` segments; marks it as sent at `now`,
    /// with `number`. Units whose last copy is `in_host` do not join it.
    pub(crate) fn next_retransmit(
        &mut self,
        now: Instant,
        limit: u32,
        number: u16,
        in_host: impl Fn(u16) -> bool,
    ) -> Option<Retransmit> {
        if limit == 0 {
            return None;
        }
        let mut i = self.next_lost()?;
        self.cut_segments(i, limit);
        let mut again = self.resend(i, now, number);
        // Lost neighbours go out in one super-segment, as they first did.
        while let Some(next) = self.units.get(i + 1) {
            let whole = again.payload.len() as u32 == again.segs * self.mss.bytes();
            let room = limit - again.segs;
            let joins = next.marks.awaits_retransmission() && !in_host(next.number);
            if !joins || !whole || again.syn || room == 0 {
                break;
            }
            i += 1;
            self.cut_segments(i, room);
            let more = self.resend(i, now, number);
            again.payload.append(more.payload);
            again.segs += more.segs;
            again.fin = more.fin;
            again.truesize += more.truesize;
        }
        self.rtx_edge = self.units[i].end();
        Some(again)
    }

    /// The head once more, lost or not (SYN, a probe), at most `limit` segments; marks it as
    /// retransmitted at `now`.
    pub(crate) fn retransmit_head(&mut self, now: Instant, limit: u32) -> Option<Retransmit> {
        let i = self.first_unsacked()?;
        self.cut_segments(i, limit.max(1));
        let number = self.units[i].number;
        Some(self.resend(i, now, number))
    }

    fn first_unsacked(&self) -> Option<usize> {
        // SACKed units have no SACKed neighbours.
        (0..self.units.len().min(2)).find(|&i| !self.units[i].marks.has(Marks::SACKED))
    }

    fn mark_lost(&mut self, i: usize) {
        let unit = &self.units[i];
        if unit.marks.has(Marks::SACKED) || unit.marks.has(Marks::LOST) {
            return;
        }
        self.rtx_edge = self.rtx_edge.earliest(unit.seq);
        let (seq, end, segs) = (unit.seq, unit.end(), unit.segs);
        self.remark(i, |m| m.with(Marks::LOST));
        if let Some(delivery) = &mut self.delivery {
            delivery.on_lost(i, seq, end, segs);
        }
    }

    /// Cuts unit `i` down to `limit` segments if it has more.
    fn cut_segments(&mut self, i: usize, limit: u32) {
        if self.units[i].segs > limit {
            self.split(i, limit * self.mss.bytes());
        }
    }

    fn resend(&mut self, i: usize, now: Instant, number: u16) -> Retransmit {
        self.remark(i, |m| m.with(Marks::RETRANS).with(Marks::EVER_RETRANS));
        let in_flight = self.in_flight();
        if let Some(delivery) = &mut self.delivery {
            delivery.on_resent(i, in_flight);
        }
        let unit = &mut self.units[i];
        unit.sent_at = now;
        unit.number = number;
        Retransmit {
            seq: unit.seq,
            payload: unit.payload.clone(),
            segs: unit.segs,
            syn: unit.marks.has(Marks::SYN),
            fin: unit.marks.has(Marks::FIN),
            truesize: unit.truesize,
        }
    }
}
