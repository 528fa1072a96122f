//! RACK (RFC 8985): what was sent a reordering window before something that has arrived is lost.

use fullsend_units::{Instant, Nanos, SeqNum};

use super::RtxQueue;
use super::board::{Board, Way};
use super::ranges::Pos;

/// How far to look for what might yet be found lost; beyond, the answer errs on the late side.
const STEPS: usize = 16;

/// What tells whether a retransmission arrived, or its original.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub(crate) now: Instant,
    pub(crate) min_rtt: Nanos,
    /// When what the ACK's timestamp echoes was sent, at the latest.
    pub(crate) echoed: Option<Instant>,
}

/// What RACK found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Overdue {
    /// Segments newly marked lost.
    pub(crate) lost_segs: u32,
    /// Of these, retransmissions.
    pub(crate) resent_segs: u32,
    /// When the rest of what was overtaken will be lost, if it has not arrived.
    pub(crate) at: Option<Instant>,
}

/// The newest of what has arrived: `RACK.xmit_ts`, `RACK.end_seq`, `RACK.rtt`.
#[derive(Debug)]
pub(super) struct Rack {
    newest: Option<(Instant, Pos)>,
    /// The segment that sets `RACK.rtt`: the last one in the stream of those that the present ACK
    /// delivered, its end and when it was sent.
    latest: Option<(Pos, Instant)>,
    rtt: Nanos,
    sighting: Option<Sighting>,
    /// Something that was sent before `newest` is neither delivered nor lost.
    overtakes: bool,
    /// Nothing before it is still in its first flight.
    pub(super) edge: Pos,
}

impl Rack {
    pub(super) const fn new(edge: Pos) -> Self {
        Self {
            newest: None,
            latest: None,
            rtt: Nanos::ZERO,
            sighting: None,
            overtakes: false,
            edge,
        }
    }

    /// Records that a segment sent at `sent_at` has arrived, and ends at `end`. RFC 8985 6.2 step 2:
    /// each one sets `RACK.rtt`, the late ones too.
    pub(super) fn note_arrival(&mut self, sent_at: Instant, end: Pos) {
        if self.newest.is_none_or(|newest| newest < (sent_at, end)) {
            self.newest = Some((sent_at, end));
        }
        if self.latest.is_none_or(|(last, _)| last < end) {
            self.latest = Some((end, sent_at));
        }
    }

    /// Returns whether RACK has still to judge: by what the present ACK delivered, or by the time
    /// that passes.
    pub(super) fn is_pending(&self) -> bool {
        self.latest.is_some() || self.overtakes
    }

    /// The present ACK was judged. `is_out`: data is outstanding.
    pub(super) fn end_ack(&mut self, is_out: bool) {
        self.latest = None;
        self.overtakes &= is_out;
    }

    /// Returns what the cumulative part of the ACK delivered. To be given to
    /// [`end_sack`](Self::end_sack) after its SACK blocks.
    pub(super) fn begin_sack(&mut self) -> Option<(Pos, Instant)> {
        self.latest.take()
    }

    /// What the ACK delivered cumulatively comes last, as on Linux: `RACK.rtt` is its own.
    pub(super) fn end_sack(&mut self, acked: Option<(Pos, Instant)>) {
        self.latest = acked.or(self.latest);
    }

    /// Segments begin elsewhere now: of the one that it ends within not all has arrived.
    pub(super) fn regrid(&mut self, head: Pos, down: impl Fn(Pos) -> Pos) {
        if let Some((_, end)) = &mut self.newest {
            *end = down(head.max(*end));
        }
        self.edge = head;
    }

    /// Something that was sent again is acknowledged. If the ACK echoes what was sent before, it
    /// is for an earlier copy (RFC 8985 6.2 step 2).
    pub(super) fn note_copy_acked(&mut self, sent_at: Instant, end: Pos) {
        let echoed = self.sighting.and_then(|s| s.echoed);
        if echoed.is_none_or(|at| at >= sent_at) {
            self.note_copy(sent_at, end);
        }
    }

    /// Something that was sent again has arrived. If too little time has passed since for that to
    /// be the last copy, it tells nothing. (What is SACKed is never what a timestamp echoes.)
    pub(super) fn note_copy(&mut self, sent_at: Instant, end: Pos) {
        let original = self.sighting.is_none_or(|s| {
            // Clocks and timers are not exact.
            let least = s.min_rtt.saturating_sub(s.min_rtt / 16);
            s.now.since(sent_at) < least
        });
        if !original {
            self.note_arrival(sent_at, end);
        }
    }
}

impl Board {
    /// Where the first segment begins that is in its first flight and was not SACKed.
    pub(super) fn first_in_flight(&mut self) -> Pos {
        while let Some((_, end)) = self.mark_at(self.rack.edge) {
            self.rack.edge = end;
        }
        self.rack.edge
    }
}

impl RtxQueue {
    /// Something is SACKed, lost or sent again.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.board.is_some()
    }

    /// The oldest segment was sent more than once.
    pub(crate) fn head_was_resent(&self) -> bool {
        let head = self.units.front();
        let board = self.board.as_ref().zip(head);
        board.is_some_and(|(board, head)| board.copy_at(board.pos(head.seq)).is_some())
    }

    /// Segments from `seq` to the end of what is SACKed; 0 if nothing is, behind it.
    pub(crate) fn segs_to_highest_sacked(&self, seq: SeqNum) -> u32 {
        let Some(board) = &self.board else {
            return 0;
        };
        let end = board.sacked.end().map(|pos| board.seq(pos));
        let end = end.filter(|end| end.after(seq));
        end.map_or(0, |end| self.mss.segments(end.since(seq)))
    }

    /// What the present ACK tells of retransmissions. To be called before it is taken in.
    pub(crate) fn sight(&mut self, sighting: Sighting) {
        if let Some(board) = &mut self.board {
            board.rack.sighting = Some(sighting);
            board.rack.latest = None;
        }
    }

    /// RFC 8985 6.2 step 5: marks as lost what was sent before the newest of what has arrived,
    /// and `reo_wnd` ago beyond a round trip, which takes `least_rtt` or more.
    pub(crate) fn mark_overdue(
        &mut self,
        now: Instant,
        reo_wnd: Nanos,
        least_rtt: Nanos,
    ) -> Overdue {
        let mut out = Overdue::default();
        let Some(mut board) = self.board.take() else {
            return out;
        };
        let rack = &mut board.rack;
        if let Some((_, at)) = rack.latest.take() {
            rack.rtt = now.since(at);
        }
        if let Some(newest) = rack.newest {
            let span = rack.rtt.max(least_rtt) + reo_wnd;
            let due = |sent_at: Instant| now.since(sent_at) >= span;
            let lost_before = board.pending;
            self.mark_overdue_copies(&mut board, newest, due);
            out.resent_segs = board.pending - lost_before;
            let limit = self.overtaken(&board, newest, due);
            self.mark_originals(&mut board, limit);
            out.lost_segs = board.pending - lost_before;
            out.at = self.last_overtaken(&board, newest).map(|at| at + span);
        }
        board.rack.overtakes = out.at.is_some();
        self.put_board(board);
        out
    }

    fn mark_overdue_copies(
        &mut self,
        board: &mut Board,
        newest: (Instant, Pos),
        due: impl Fn(Instant) -> bool,
    ) {
        while let Some(&(sent_at, start)) = board.under_way.first() {
            let end = board.copies.get(&start).map_or(start, |c| c.end);
            if !due(sent_at) || (sent_at, end) >= newest {
                break;
            }
            self.mark_copy_lost(board, start);
        }
    }

    /// Up to where text in its first flight was sent before `newest`, and is due.
    fn overtaken(
        &self,
        board: &Board,
        (newest, end): (Instant, Pos),
        due: impl Fn(Instant) -> bool,
    ) -> Pos {
        let start_of = |i: usize| {
            let seq = self.units.get(i).map_or(self.end(), |u| u.seq);
            board.pos(seq)
        };
        let sent_before = self
            .units
            .partition_point(|u| u.sent_at < newest && due(u.sent_at));
        let mut limit = start_of(sent_before);
        if due(newest) {
            // Of what left at the same time, what stands before it.
            let same = self.units.partition_point(|u| u.sent_at <= newest);
            limit = limit.max(end.min(start_of(same)));
        }
        limit
    }

    /// Marks lost what is in its first flight before `limit`.
    pub(super) fn mark_originals(&mut self, board: &mut Board, limit: Pos) {
        let mut pos = board.rack.edge;
        while pos < limit {
            if let Some((_, end)) = board.mark_at(pos) {
                pos = end;
                continue;
            }
            let end = board.next_mark(pos).min(limit);
            self.mark_original_lost(board, pos, end);
            pos = end;
        }
        board.rack.edge = board.rack.edge.max(limit);
    }

    /// When the last of what `newest` overtook was sent; `None` if nothing of it is out.
    fn last_overtaken(&self, board: &Board, newest: (Instant, Pos)) -> Option<Instant> {
        let mut copies = board.under_way.range(..newest).rev().take(STEPS);
        let end = |start| board.copies.get(&start).map_or(0, |copy| copy.end);
        let copy = copies.find(|&&(sent_at, start)| (sent_at, end(start)) < newest);
        let copy = copy.map(|&(sent_at, _)| sent_at);
        let limit = self.overtaken(board, newest, |_| true);
        copy.max(self.last_original(board, limit))
    }

    /// When the last was sent of what is in its first flight before `limit`.
    fn last_original(&self, board: &Board, limit: Pos) -> Option<Instant> {
        let mut pos = limit;
        for _ in 0..STEPS {
            if pos <= board.rack.edge {
                return None;
            }
            match board.mark_at(pos - 1) {
                Some((start, _)) => pos = start,
                None => break,
            }
        }
        if pos <= board.rack.edge {
            return None;
        }
        let unit = self.units.get(self.index_after(board.seq(pos - 1)));
        unit.map(|u| u.sent_at)
    }

    /// A copy was lost, too.
    pub(super) fn mark_copy_lost(&mut self, board: &mut Board, start: Pos) {
        let Some(&copy) = board.copies.get(&start) else {
            return;
        };
        debug_assert!(copy.way != Way::Over);
        self.end_copy(board, start);
        let segs = self.segs(board.base, start, copy.end);
        board.pending += segs;
        board.lost.insert(start, copy.end, |_, _| {});
        if let (Some(delivery), Some(stamp)) = (&mut self.delivery, copy.stamp) {
            delivery.on_lost(stamp, board.seq(start), board.seq(copy.end), segs, 0);
        }
    }

    /// Text in its first flight is lost.
    pub(super) fn mark_original_lost(&mut self, board: &mut Board, start: Pos, end: Pos) {
        board.pending += self.segs(board.base, start, end);
        board.lost.insert(start, end, |_, _| {});
        if self.delivery.is_some() {
            self.tell_delivery_lost(board, start, end);
        }
    }

    /// Each unit has a sample of its own.
    fn tell_delivery_lost(&mut self, board: &Board, start: Pos, end: Pos) {
        let (mut from, end) = (board.seq(start), board.seq(end));
        let mut i = self.index_after(from);
        while from.before(end) {
            let Some(unit) = self.units.get(i) else {
                return;
            };
            let to = unit.end().earliest(end);
            let segs = self.segs_between(from, to);
            let behind = self.segs_between(to, unit.end());
            if let Some(delivery) = &mut self.delivery {
                let stamp = delivery.stamp_of(i);
                delivery.on_lost(stamp, from, to, segs, behind);
            }
            from = to;
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests;
