//! RACK (RFC 8985): a segment is lost if one sent a reordering window later has arrived.

use fullsend_units::{Instant, Nanos, SeqNum};

use super::RtxQueue;
use super::board::{Board, Way};
use super::ranges::Pos;

/// Most steps of the search for the next segment that may be lost. Beyond them the timer is too late
/// rather than too early.
const STEPS: usize = 16;

/// The data that shows whether a retransmission or its original arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    pub(crate) now: Instant,
    pub(crate) min_rtt: Nanos,
    /// The latest time at which the segment that the ACK's timestamp echoes was sent.
    pub(crate) echoed: Option<Instant>,
}

/// The segments that RACK marked lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Overdue {
    /// Segments newly marked lost.
    pub(crate) lost_segs: u32,
    /// Of these, retransmissions.
    pub(crate) resent_segs: u32,
    /// When the remaining overtaken segments will be lost, unless they arrive.
    pub(crate) at: Option<Instant>,
}

/// The newest delivered segment: `RACK.xmit_ts`, `RACK.end_seq`, `RACK.rtt`.
#[derive(Debug)]
pub(super) struct Rack {
    newest: Option<(Instant, Pos)>,
    /// End and send time of the segment that sets `RACK.rtt`: the one with the highest sequence number
    /// that the present ACK delivered.
    latest: Option<(Pos, Instant)>,
    rtt: Nanos,
    sighting: Option<Sighting>,
    /// Something that was sent before `newest` is neither delivered nor lost.
    overtakes: bool,
    /// All data before it is SACKed, lost, or retransmitted.
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
    /// each one sets `RACK.rtt`, late ones included.
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

    /// Returns what the cumulative part of the ACK delivered. The caller passes it to
    /// [`end_sack`](Self::end_sack) after the ACK's SACK blocks.
    pub(super) fn begin_sack(&mut self) -> Option<(Pos, Instant)> {
        self.latest.take()
    }

    /// Lets the cumulative part of the ACK set `RACK.rtt` last, as on Linux.
    pub(super) fn end_sack(&mut self, acked: Option<(Pos, Instant)>) {
        self.latest = acked.or(self.latest);
    }

    /// Moves the newest delivered end to a segment border after a change of the MSS: the segment that
    /// it lies within has not arrived whole.
    pub(super) fn regrid(&mut self, head: Pos, down: impl Fn(Pos) -> Pos) {
        if let Some((_, end)) = &mut self.newest {
            *end = down(head.max(*end));
        }
        self.edge = head;
    }

    /// Records the cumulative acknowledgement of a retransmission, unless the ACK echoes an earlier
    /// timestamp: then the original arrived (RFC 8985 6.2 step 2).
    pub(super) fn note_copy_acked(&mut self, sent_at: Instant, end: Pos) {
        let echoed = self.sighting.and_then(|s| s.echoed);
        if echoed.is_none_or(|at| at >= sent_at) {
            self.note_copy(sent_at, end);
        }
    }

    /// Records a SACK of a retransmission, unless it was sent too recently to have arrived. (A timestamp
    /// never echoes SACKed data.)
    pub(super) fn note_copy(&mut self, sent_at: Instant, end: Pos) {
        let original = self.sighting.is_none_or(|s| {
            // A tolerance for clocks and timers.
            let least = s.min_rtt.saturating_sub(s.min_rtt / 16);
            s.now.since(sent_at) < least
        });
        if !original {
            self.note_arrival(sent_at, end);
        }
    }
}

impl Board {
    /// Returns the start of the first segment that is sent only once and not SACKed or lost.
    pub(super) fn first_in_flight(&mut self) -> Pos {
        while let Some((_, end)) = self.mark_at(self.rack.edge) {
            self.rack.edge = end;
        }
        self.rack.edge
    }
}

impl RtxQueue {
    /// Returns whether there is a scoreboard: data is SACKed, lost or retransmitted, or RACK has
    /// segments to judge.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.board.is_some()
    }

    /// Returns whether the oldest segment was sent more than once.
    pub(crate) fn head_was_resent(&self) -> bool {
        let head = self.units.front();
        let board = self.board.as_ref().zip(head);
        board.is_some_and(|(board, head)| board.copy_at(board.pos(head.seq)).is_some())
    }

    /// Returns the segments from `seq` to the end of the highest SACKed range; 0 if none is after it.
    pub(crate) fn segs_to_highest_sacked(&self, seq: SeqNum) -> u32 {
        let Some(board) = &self.board else {
            return 0;
        };
        let end = board.sacked.end().map(|pos| board.seq(pos));
        let end = end.filter(|end| end.after(seq));
        end.map_or(0, |end| self.mss.segments(end.since(seq)))
    }

    /// Sets the data by which retransmissions that the present ACK covers are judged. Called before the
    /// ACK is processed.
    pub(crate) fn sight(&mut self, sighting: Sighting) {
        if let Some(board) = &mut self.board {
            board.rack.sighting = Some(sighting);
            board.rack.latest = None;
        }
    }

    /// Marks as lost the segments that were sent before the newest delivered one, a round trip and
    /// `reo_wnd` ago (RFC 8985 6.2 step 5). The round trip counts as at least `least_rtt`.
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

    /// Returns the position up to which data that was sent only once left before `newest` and is due.
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
            // Of the data with the same send time, that before it in sequence order.
            let same = self.units.partition_point(|u| u.sent_at <= newest);
            limit = limit.max(end.min(start_of(same)));
        }
        limit
    }

    /// Marks as lost the data before `limit` that was sent only once and is not SACKed.
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

    /// Returns when the last segment that `newest` overtook was sent; `None` if none is in flight.
    fn last_overtaken(&self, board: &Board, newest: (Instant, Pos)) -> Option<Instant> {
        let mut copies = board.under_way.range(..newest).rev().take(STEPS);
        let end = |start| board.copies.get(&start).map_or(0, |copy| copy.end);
        let copy = copies.find(|&&(sent_at, start)| (sent_at, end(start)) < newest);
        let copy = copy.map(|&(sent_at, _)| sent_at);
        let limit = self.overtaken(board, newest, |_| true);
        copy.max(self.last_original(board, limit))
    }

    /// Returns when the last segment before `limit` was sent that was sent only once and is in flight.
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

    /// Marks a retransmission as lost.
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

    /// Marks data that was sent only once as lost.
    pub(super) fn mark_original_lost(&mut self, board: &mut Board, start: Pos, end: Pos) {
        board.pending += self.segs(board.base, start, end);
        board.lost.insert(start, end, |_, _| {});
        if self.delivery.is_some() {
            self.tell_delivery_lost(board, start, end);
        }
    }

    /// Reports lost data to the sampler, for each super-segment on its own.
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
