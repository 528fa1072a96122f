//! Retransmission: of lost ranges as super-segments, of the head, and of the tail as a probe.

use fullsend_offload::Chain;
use fullsend_wire::{Instant, Nanos, SeqNum};

use super::RtxQueue;
use super::ranges::Pos;
use super::scoreboard::{RetransState, Retransmission, Scoreboard};

/// A range to retransmit.
#[derive(Debug, Default)]
pub(crate) struct Retransmit {
    /// Sequence number of the first byte.
    pub(crate) seq: SeqNum,
    /// Data.
    pub(crate) payload: Chain,
    /// Segments on the wire.
    pub(crate) segs: u32,
    /// The range begins with our SYN.
    pub(crate) syn: bool,
    /// The range ends with our FIN.
    pub(crate) fin: bool,
    /// The range gets PSH: it is a run of segments, or its end had PSH.
    pub(crate) push: bool,
    /// Bytes of memory to charge the device for.
    pub(crate) truesize: u32,
    /// The time at which the last segment was first sent.
    pub(crate) first_sent: Instant,
}

impl RtxQueue {
    /// Returns the number of the last transmission of the data to be retransmitted next.
    pub(crate) fn next_lost_number(&self) -> Option<u16> {
        let board = self.board.as_ref()?;
        let (start, _) = board.lost.first()?;
        let entry = self.entries.get(self.index_after(board.seq(start)))?;
        Some(board.number_at(start, entry.number))
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
        let mut retransmit = Retransmit::default();
        let mut pos = start;
        let mut i = self.index_after(board.seq(start));
        // Adjacent lost data is sent as one super-segment.
        while pos < lost_end && retransmit.segs < limit {
            let entry = self.entries.get(i)?;
            if pos > start && in_host(board.number_at(pos, entry.number)) {
                break;
            }
            let end = self.piece_end(board, i, pos, lost_end, limit - retransmit.segs);
            self.add_piece(&mut retransmit, i, board.seq(pos), board.seq(end));
            pos = end;
            let whole = retransmit.payload.len() as u32 == retransmit.segs * self.mss.bytes();
            if !whole || retransmit.syn {
                break;
            }
            i += usize::from(board.seq(pos) == entry.end());
        }
        let range = (board.seq(start), board.seq(pos));
        self.record_retrans(now, range, number, RetransState::ForLost);
        Some(retransmit)
    }

    /// Returns the end of the piece of super-segment `i` from `pos` that may be sent now.
    fn piece_end(&self, board: &Scoreboard, i: usize, pos: Pos, lost_end: Pos, limit: u32) -> Pos {
        let entry = &self.entries[i];
        let before = self.seg_at(board.seq(pos)).wrapping_sub(entry.first_seg);
        let by_limit = board.pos(self.segment_end(i, before + limit));
        let by_retrans = match board.retrans_at(pos) {
            Some(retrans) => retrans.end,
            None => board
                .retransmissions
                .range(pos..)
                .next()
                .map_or(Pos::MAX, |c| *c.0),
        };
        by_limit.min(lost_end).min(by_retrans)
    }

    /// Appends the data of super-segment `i` between two sequence numbers.
    fn add_piece(&self, retransmit: &mut Retransmit, i: usize, from: SeqNum, to: SeqNum) {
        let entry = &self.entries[i];
        // A part of a segment that the peer has is not retransmitted.
        let start = from.latest(self.una.earliest(entry.end()));
        let skip = start.distance(entry.data_seq()).max(0) as usize;
        let end = to.earliest(entry.data_seq() + entry.payload.len() as u32);
        let len = end.distance(entry.data_seq() + skip as u32).max(0) as usize;
        retransmit.first_sent = entry.sent_at;
        if retransmit.segs == 0 {
            retransmit.seq = start;
            retransmit.syn = entry.syn && from == entry.seq;
        }
        retransmit.fin = entry.fin && to == entry.end();
        // The rest of such a segment is sent together with the next one.
        let segs = if start.after(from) {
            self.segments(len as u32)
        } else {
            self.segs_between(from, to).max(1)
        };
        // A run of segments has PSH, as when first sent.
        retransmit.push = segs > 1 || (entry.push && to == entry.end());
        retransmit.segs += segs;
        if len > 0 {
            retransmit.payload.append(entry.payload.range(skip, len));
            let share = u64::from(entry.truesize) * len as u64 / entry.payload.len() as u64;
            retransmit.truesize += (share as u32).max(1);
        }
    }

    /// Returns the send time of a retransmission that leaves `now`: later than all earlier ones.
    /// RFC 8985 6.2 assumes that segments of equal time were sent in sequence order,
    /// but a clock that is read once for a batch of ACKs gives one time to new data and to the
    /// retransmission after it. A nanosecond more keeps the order of sending in the time itself,
    /// so that no segment needs a number for it.
    fn retrans_sent_at(&self, board: &Scoreboard, now: Instant, start: Pos) -> Instant {
        const NEXT: Nanos = Nanos::from_nanos(1);
        let newest = self.entries.back().map_or(Instant::ZERO, |u| u.sent_at);
        let head = self.entries.front().map_or(Instant::ZERO, |u| u.sent_at);
        // Where the clock does not advance, round trips take no time, and all data older by that
        // nanosecond would be overdue.
        if head == newest && now <= newest {
            return now;
        }
        let (last, pos) = board.last_retrans;
        let last = if pos < start { last } else { last + NEXT };
        now.max(newest + NEXT).max(last)
    }

    /// Records the retransmission of a range, which replaces all earlier marks of the range.
    fn record_retrans(
        &mut self,
        now: Instant,
        range: (SeqNum, SeqNum),
        number: u16,
        state: RetransState,
    ) {
        let mut board = self.take_board();
        let (start, end) = (board.pos(range.0), board.pos(range.1));
        board.split_retrans(start);
        board.split_retrans(end);
        while let Some((&old, _)) = board.retransmissions.range(start..end).next() {
            self.end_retrans(&mut board, old);
            board.retransmissions.remove(&old);
        }
        let now = self.retrans_sent_at(&board, now, start);
        let (base, lost_pending) = (board.base, &mut board.lost_pending);
        let gone = |a, b| *lost_pending -= self.segs(base, a, b);
        board.lost.remove(start, end, gone);
        let segs = self.segs(base, start, end);
        board.lost_retransmitted += if state == RetransState::ForLost {
            segs
        } else {
            0
        };
        board.retrans_out += if state.is_in_retrans_out() { segs } else { 0 };
        let in_flight = board.in_flight(self.packets_out);
        let retrans = Retransmission {
            end,
            sent_at: now,
            number,
            state,
            snapshot: self.delivery.as_ref().map(|d| d.snapshot(in_flight)),
        };
        board.last_retrans = (now, start);
        board.retrans_in_flight.insert((now, start));
        board.retransmissions.insert(start, retrans);
        self.board = Some(board);
    }

    /// Takes the head for retransmission, lost or not (for a SYN), at most `limit` segments, and records
    /// its retransmission at `now`.
    pub(crate) fn retransmit_head(&mut self, now: Instant, limit: u32) -> Option<Retransmit> {
        let entry = self.entries.front()?;
        let (from, number) = (entry.seq, entry.number);
        let to = self.segment_end(0, limit.max(1));
        self.retransmit_range(now, 0, (from, to), number, RetransState::Spurious)
    }

    /// Takes the last segment for a tail loss probe (RFC 8985 7.3).
    pub(crate) fn probe_tail(&mut self, now: Instant, number: u16) -> Option<Retransmit> {
        let last = self.entries.len().checked_sub(1)?;
        let from = match self.entries[last].segs {
            1 => self.entries[last].seq,
            segs => self.segment_end(last, segs - 1),
        };
        let to = self.end();
        self.retransmit_range(now, last, (from, to), number, RetransState::Probe)
    }

    /// Returns the number of the last transmission of the last segment.
    pub(crate) fn tail_number(&self) -> Option<u16> {
        let entry = self.entries.back()?;
        let Some(board) = &self.board else {
            return Some(entry.number);
        };
        Some(board.number_at(board.pos(entry.end()) - 1, entry.number))
    }

    fn retransmit_range(
        &mut self,
        now: Instant,
        i: usize,
        (from, to): (SeqNum, SeqNum),
        number: u16,
        state: RetransState,
    ) -> Option<Retransmit> {
        let board = self.board.as_ref();
        if board.is_some_and(|b| b.sacked.at(b.pos(from)).is_some()) {
            return None;
        }
        let mut retransmit = Retransmit::default();
        self.add_piece(&mut retransmit, i, from, to);
        self.record_retrans(now, (from, to), number, state);
        Some(retransmit)
    }
}

#[cfg(test)]
mod tests;
