//! Retransmission: of lost ranges as super-segments, of the head, and of the tail as a probe.

use fullsend_buf::Chain;
use fullsend_units::{Instant, Nanos, SeqNum};

use super::RtxQueue;
use super::board::{Board, Copy, Way};
use super::ranges::Pos;

/// A range to retransmit.
#[derive(Debug, Default)]
pub(crate) struct Retransmit {
    /// Sequence number of its first byte.
    pub(crate) seq: SeqNum,
    /// Data.
    pub(crate) payload: Chain,
    /// Segments on the wire.
    pub(crate) segs: u32,
    /// It begins with our SYN.
    pub(crate) syn: bool,
    /// It ends with our FIN.
    pub(crate) fin: bool,
    /// It gets PSH: it is a run of segments, or its end had PSH.
    pub(crate) push: bool,
    /// Bytes of memory to charge the device for.
    pub(crate) truesize: u32,
    /// When its last segment was first sent.
    pub(crate) first_sent: Instant,
}

impl RtxQueue {
    /// Returns the number of the last transmission of the data to be retransmitted next.
    pub(crate) fn next_lost_number(&self) -> Option<u16> {
        let board = self.board.as_ref()?;
        let (start, _) = board.lost.first()?;
        let unit = self.units.get(self.index_after(board.seq(start)))?;
        Some(board.number_at(start, unit.number))
    }

    /// Takes the next lost range to retransmit, at most `limit` segments, and records its retransmission
    /// at `now` under `number`. Data whose last transmission is still `in_host` does not join it.
    pub(crate) fn next_retransmit(
        &mut self,
        now: Instant,
        limit: u32,
        number: u16,
        in_host: impl Fn(u16) -> bool,
    ) -> Option<Retransmit> {
        let board = self.board.as_deref()?;
        let (start, lost_end) = board.lost.first().filter(|_| limit > 0)?;
        let mut again = Retransmit::default();
        let mut pos = start;
        let mut i = self.index_after(board.seq(start));
        // Adjacent lost data is sent as one super-segment.
        while pos < lost_end && again.segs < limit {
            let unit = self.units.get(i)?;
            if pos > start && in_host(board.number_at(pos, unit.number)) {
                break;
            }
            let end = self.piece_end(board, i, pos, lost_end, limit - again.segs);
            self.add_piece(&mut again, i, board.seq(pos), board.seq(end));
            pos = end;
            let whole = again.payload.len() as u32 == again.segs * self.mss.bytes();
            if !whole || again.syn {
                break;
            }
            i += usize::from(board.seq(pos) == unit.end());
        }
        let range = (board.seq(start), board.seq(pos));
        self.enter_copy(now, range, number, Way::Repair);
        Some(again)
    }

    /// Returns the end of the piece of super-segment `i` from `pos` that may be sent now.
    fn piece_end(&self, board: &Board, i: usize, pos: Pos, lost_end: Pos, limit: u32) -> Pos {
        let unit = &self.units[i];
        let before = self.seg_at(board.seq(pos)).wrapping_sub(unit.first_seg);
        let by_limit = board.pos(self.segment_end(i, before + limit));
        let by_copy = match board.copy_at(pos) {
            Some(copy) => copy.end,
            None => board.copies.range(pos..).next().map_or(Pos::MAX, |c| *c.0),
        };
        by_limit.min(lost_end).min(by_copy)
    }

    /// Appends the data of super-segment `i` between two sequence numbers.
    fn add_piece(&self, again: &mut Retransmit, i: usize, from: SeqNum, to: SeqNum) {
        let unit = &self.units[i];
        // A part of a segment that the peer has is not retransmitted.
        let start = from.latest(self.una.earliest(unit.end()));
        let skip = start.distance(unit.text()).max(0) as usize;
        let end = to.earliest(unit.text() + unit.payload.len() as u32);
        let len = end.distance(unit.text() + skip as u32).max(0) as usize;
        again.first_sent = unit.sent_at;
        if again.segs == 0 {
            again.seq = start;
            again.syn = unit.syn && from == unit.seq;
        }
        again.fin = unit.fin && to == unit.end();
        // The rest of such a segment is sent together with the next one.
        let segs = if start.after(from) {
            self.segments(len as u32)
        } else {
            self.segs_between(from, to).max(1)
        };
        // A run of segments has PSH, as when first sent.
        again.push = segs > 1 || (unit.push && to == unit.end());
        again.segs += segs;
        if len > 0 {
            again.payload.append(unit.payload.range(skip, len));
            let share = u64::from(unit.truesize) * len as u64 / unit.payload.len() as u64;
            again.truesize += (share as u32).max(1);
        }
    }

    /// Returns the send time of a retransmission that leaves `now`: later than all earlier ones.
    /// RFC 8985 6.2 takes segments of equal time for sent in the order of their sequence numbers,
    /// but a clock that is read once for a batch of ACKs gives one time to new data and to the
    /// retransmission behind it. A nanosecond more keeps the order of sending in the time itself,
    /// so that no segment needs a number for it.
    fn after_all_sent(&self, board: &Board, now: Instant, start: Pos) -> Instant {
        const NEXT: Nanos = Nanos::from_nanos(1);
        let newest = self.units.back().map_or(Instant::ZERO, |u| u.sent_at);
        let head = self.units.front().map_or(Instant::ZERO, |u| u.sent_at);
        // Where the clock does not advance, round trips take no time, and all data older by that
        // nanosecond would be overdue.
        if head == newest && now <= newest {
            return now;
        }
        let (last, pos) = board.last_copy;
        let last = if pos < start { last } else { last + NEXT };
        now.max(newest + NEXT).max(last)
    }

    /// Records the retransmission of a range, which replaces all earlier marks of the range.
    fn enter_copy(&mut self, now: Instant, range: (SeqNum, SeqNum), number: u16, way: Way) {
        let mut board = self.take_board();
        let (start, end) = (board.pos(range.0), board.pos(range.1));
        board.cut_copies(start);
        board.cut_copies(end);
        while let Some((&old, _)) = board.copies.range(start..end).next() {
            self.end_copy(&mut board, old);
            board.copies.remove(&old);
        }
        let now = self.after_all_sent(&board, now, start);
        let (base, pending) = (board.base, &mut board.pending);
        let gone = |a, b| *pending -= self.segs(base, a, b);
        board.lost.remove(start, end, gone);
        let segs = self.segs(base, start, end);
        board.repairing += if way == Way::Repair { segs } else { 0 };
        board.retrans_out += if way.counts() { segs } else { 0 };
        let in_flight = board.in_flight(self.packets_out);
        let copy = Copy {
            end,
            sent_at: now,
            number,
            way,
            stamp: self.delivery.as_ref().map(|d| d.stamp(in_flight)),
        };
        board.last_copy = (now, start);
        board.under_way.insert((now, start));
        board.copies.insert(start, copy);
        self.board = Some(board);
    }

    /// Takes the head for retransmission, lost or not (for a SYN), at most `limit` segments, and records
    /// its retransmission at `now`.
    pub(crate) fn retransmit_head(&mut self, now: Instant, limit: u32) -> Option<Retransmit> {
        let unit = self.units.front()?;
        let (from, number) = (unit.seq, unit.number);
        let to = self.segment_end(0, limit.max(1));
        self.resend(now, 0, (from, to), number, Way::Needless)
    }

    /// Takes the last segment for a tail loss probe (RFC 8985 7.3).
    pub(crate) fn probe_tail(&mut self, now: Instant, number: u16) -> Option<Retransmit> {
        let last = self.units.len().checked_sub(1)?;
        let from = match self.units[last].segs {
            1 => self.units[last].seq,
            segs => self.segment_end(last, segs - 1),
        };
        let to = self.end();
        self.resend(now, last, (from, to), number, Way::Probe)
    }

    /// Returns the number of the last transmission of the last segment.
    pub(crate) fn tail_number(&self) -> Option<u16> {
        let unit = self.units.back()?;
        let Some(board) = &self.board else {
            return Some(unit.number);
        };
        Some(board.number_at(board.pos(unit.end()) - 1, unit.number))
    }

    fn resend(
        &mut self,
        now: Instant,
        i: usize,
        (from, to): (SeqNum, SeqNum),
        number: u16,
        way: Way,
    ) -> Option<Retransmit> {
        let board = self.board.as_ref();
        if board.is_some_and(|b| b.sacked.at(b.pos(from)).is_some()) {
            return None;
        }
        let mut again = Retransmit::default();
        self.add_piece(&mut again, i, from, to);
        self.enter_copy(now, (from, to), number, way);
        Some(again)
    }
}

#[cfg(test)]
mod tests;
