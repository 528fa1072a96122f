//! RACK (RFC 8985): a segment is lost if one sent a reordering window later has arrived.

use fullsend_wire::{Instant, Nanos, SeqNum};

use super::RtxQueue;
use super::ranges::Pos;
use super::scoreboard::{RetransState, Scoreboard};

/// Most steps of the search for the next segment that may be lost. Beyond them the timer is too late
/// rather than too early.
const MAX_STEPS: usize = 16;

/// The data that shows whether a retransmission or its original arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckContext {
    pub(crate) now: Instant,
    pub(crate) min_rtt: Nanos,
    /// The latest time at which the segment that the ACK's timestamp echoes was sent.
    pub(crate) echoed: Option<Instant>,
}

/// The segments that RACK marked lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RackOutcome {
    /// Segments newly marked lost.
    pub(crate) lost_segs: u32,
    /// Retransmissions in `lost_segs`.
    pub(crate) lost_retrans_segs: u32,
    /// The time at which the remaining overtaken segments will be lost, unless they arrive.
    pub(crate) next_loss_at: Option<Instant>,
}

/// The newest delivered segment: `RACK.xmit_ts`, `RACK.end_seq`, `RACK.rtt`.
#[derive(Debug)]
pub(super) struct Rack {
    newest: Option<(Instant, Pos)>,
    /// End and send time of the segment that sets `RACK.rtt`: the one with the highest sequence number
    /// that the present ACK delivered.
    latest: Option<(Pos, Instant)>,
    rtt: Nanos,
    ack_context: Option<AckContext>,
    /// Something that was sent before `newest` is neither delivered nor lost.
    has_overtaken: bool,
    /// All data before it is SACKed, lost, or retransmitted.
    pub(super) scan_start: Pos,
}

impl Rack {
    pub(super) const fn new(scan_start: Pos) -> Self {
        Self {
            newest: None,
            latest: None,
            rtt: Nanos::ZERO,
            ack_context: None,
            has_overtaken: false,
            scan_start,
        }
    }

    /// Records that a segment sent at `sent_at` has arrived, and ends at `end`. RFC 8985 6.2 step 2:
    /// each one sets `RACK.rtt`, late ones included.
    pub(super) fn record_delivered(&mut self, sent_at: Instant, end: Pos) {
        if self.newest.is_none_or(|newest| newest < (sent_at, end)) {
            self.newest = Some((sent_at, end));
        }
        if self.latest.is_none_or(|(last, _)| last < end) {
            self.latest = Some((end, sent_at));
        }
    }

    /// Returns whether RACK has still to judge: by what the present ACK delivered, or by the time
    /// that passes.
    pub(super) fn has_pending_work(&self) -> bool {
        self.latest.is_some() || self.has_overtaken
    }

    /// The present ACK was judged. `has_outstanding`: data is outstanding.
    pub(super) fn end_ack(&mut self, has_outstanding: bool) {
        self.latest = None;
        self.has_overtaken &= has_outstanding;
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
    pub(super) fn realign(&mut self, head: Pos, down: impl Fn(Pos) -> Pos) {
        if let Some((_, end)) = &mut self.newest {
            *end = down(head.max(*end));
        }
        self.scan_start = head;
    }

    /// Records the cumulative acknowledgement of a retransmission, unless the ACK echoes an earlier
    /// timestamp: then the original arrived (RFC 8985 6.2 step 2).
    pub(super) fn record_retrans_acked(&mut self, sent_at: Instant, end: Pos) {
        let echoed = self.ack_context.and_then(|s| s.echoed);
        if echoed.is_none_or(|at| at >= sent_at) {
            self.record_retrans_sacked(sent_at, end);
        }
    }

    /// Records a SACK of a retransmission, unless it was sent too recently to have arrived. (A timestamp
    /// never echoes SACKed data.)
    pub(super) fn record_retrans_sacked(&mut self, sent_at: Instant, end: Pos) {
        let original = self.ack_context.is_none_or(|s| {
            // A tolerance for clocks and timers.
            let least = s.min_rtt.saturating_sub(s.min_rtt / 16);
            s.now.since(sent_at) < least
        });
        if !original {
            self.record_delivered(sent_at, end);
        }
    }
}

impl Scoreboard {
    /// Returns the start of the first segment that is sent only once and not SACKed or lost.
    pub(super) fn first_in_flight(&mut self) -> Pos {
        while let Some((_, end)) = self.mark_at(self.rack.scan_start) {
            self.rack.scan_start = end;
        }
        self.rack.scan_start
    }
}

impl RtxQueue {
    /// Returns whether there is a scoreboard: data is SACKed, lost or retransmitted, or RACK has
    /// segments to judge.
    #[inline]
    pub(crate) fn has_scoreboard(&self) -> bool {
        self.board.is_some()
    }

    /// Returns whether the oldest segment was sent more than once.
    pub(crate) fn head_was_retransmitted(&self) -> bool {
        let head = self.entries.front();
        let board = self.board.as_ref().zip(head);
        board.is_some_and(|(board, head)| board.retrans_at(board.pos(head.seq)).is_some())
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
    pub(crate) fn begin_ack(&mut self, ack_context: AckContext) {
        if let Some(board) = &mut self.board {
            board.rack.ack_context = Some(ack_context);
            board.rack.latest = None;
        }
    }

    /// Marks as lost the segments that were sent before the newest delivered one, a round trip and
    /// `reo_wnd` ago (RFC 8985 6.2 step 5). The round trip counts as at least `min_rack_rtt`.
    pub(crate) fn mark_overdue(
        &mut self,
        now: Instant,
        reo_wnd: Nanos,
        min_rack_rtt: Nanos,
    ) -> RackOutcome {
        let mut out = RackOutcome::default();
        let Some(mut board) = self.board.take() else {
            return out;
        };
        let rack = &mut board.rack;
        if let Some((_, at)) = rack.latest.take() {
            rack.rtt = now.since(at);
        }
        if let Some(newest) = rack.newest {
            let span = rack.rtt.max(min_rack_rtt) + reo_wnd;
            let due = |sent_at: Instant| now.since(sent_at) >= span;
            let lost_before = board.lost_pending;
            self.mark_overdue_retrans(&mut board, newest, due);
            out.lost_retrans_segs = board.lost_pending - lost_before;
            let limit = self.overtaken_end(&board, newest, due);
            self.mark_originals(&mut board, limit);
            out.lost_segs = board.lost_pending - lost_before;
            out.next_loss_at = self
                .last_overtaken_sent_at(&board, newest)
                .map(|at| at + span);
        }
        board.rack.has_overtaken = out.next_loss_at.is_some();
        self.put_board(board);
        out
    }

    fn mark_overdue_retrans(
        &mut self,
        board: &mut Scoreboard,
        newest: (Instant, Pos),
        due: impl Fn(Instant) -> bool,
    ) {
        while let Some(&(sent_at, start)) = board.retrans_in_flight.first() {
            let end = board.retransmissions.get(&start).map_or(start, |c| c.end);
            if !due(sent_at) || (sent_at, end) >= newest {
                break;
            }
            self.mark_retrans_lost(board, start);
        }
    }

    /// Returns the position up to which data that was sent only once left before `newest` and is due.
    fn overtaken_end(
        &self,
        board: &Scoreboard,
        (newest, end): (Instant, Pos),
        due: impl Fn(Instant) -> bool,
    ) -> Pos {
        let start_of = |i: usize| {
            let seq = self.entries.get(i).map_or(self.end(), |u| u.seq);
            board.pos(seq)
        };
        let sent_before = self
            .entries
            .partition_point(|u| u.sent_at < newest && due(u.sent_at));
        let mut limit = start_of(sent_before);
        if due(newest) {
            // Of the data with the same send time, that before it in sequence order.
            let same = self.entries.partition_point(|u| u.sent_at <= newest);
            limit = limit.max(end.min(start_of(same)));
        }
        limit
    }

    /// Marks as lost the data before `limit` that was sent only once and is not SACKed.
    pub(super) fn mark_originals(&mut self, board: &mut Scoreboard, limit: Pos) {
        let mut pos = board.rack.scan_start;
        while pos < limit {
            if let Some((_, end)) = board.mark_at(pos) {
                pos = end;
                continue;
            }
            let end = board.next_mark(pos).min(limit);
            self.mark_original_lost(board, pos, end);
            pos = end;
        }
        board.rack.scan_start = board.rack.scan_start.max(limit);
    }

    /// Returns when the last segment that `newest` overtook was sent; `None` if none is in flight.
    fn last_overtaken_sent_at(
        &self,
        board: &Scoreboard,
        newest: (Instant, Pos),
    ) -> Option<Instant> {
        let mut retransmissions = board
            .retrans_in_flight
            .range(..newest)
            .rev()
            .take(MAX_STEPS);
        let end = |start| {
            board
                .retransmissions
                .get(&start)
                .map_or(0, |retrans| retrans.end)
        };
        let retrans = retransmissions.find(|&&(sent_at, start)| (sent_at, end(start)) < newest);
        let retrans = retrans.map(|&(sent_at, _)| sent_at);
        let limit = self.overtaken_end(board, newest, |_| true);
        retrans.max(self.last_original_sent_at(board, limit))
    }

    /// Returns when the last segment before `limit` was sent that was sent only once and is in flight.
    fn last_original_sent_at(&self, board: &Scoreboard, limit: Pos) -> Option<Instant> {
        let mut pos = limit;
        for _ in 0..MAX_STEPS {
            if pos <= board.rack.scan_start {
                return None;
            }
            match board.mark_at(pos - 1) {
                Some((start, _)) => pos = start,
                None => break,
            }
        }
        if pos <= board.rack.scan_start {
            return None;
        }
        let entry = self.entries.get(self.index_after(board.seq(pos - 1)));
        entry.map(|u| u.sent_at)
    }

    /// Marks a retransmission as lost.
    pub(super) fn mark_retrans_lost(&mut self, board: &mut Scoreboard, start: Pos) {
        let Some(&retrans) = board.retransmissions.get(&start) else {
            return;
        };
        debug_assert!(retrans.state != RetransState::Done);
        self.end_retrans(board, start);
        let segs = self.segs(board.base, start, retrans.end);
        board.lost_pending += segs;
        board.lost.insert(start, retrans.end, |_, _| {});
        if let (Some(delivery), Some(snapshot)) = (&mut self.delivery, retrans.snapshot) {
            delivery.on_lost(snapshot, board.seq(start), board.seq(retrans.end), segs, 0);
        }
    }

    /// Marks data that was sent only once as lost.
    pub(super) fn mark_original_lost(&mut self, board: &mut Scoreboard, start: Pos, end: Pos) {
        board.lost_pending += self.segs(board.base, start, end);
        board.lost.insert(start, end, |_, _| {});
        if self.delivery.is_some() {
            self.report_lost_to_sampler(board, start, end);
        }
    }

    /// Reports lost data to the sampler, for each super-segment on its own.
    fn report_lost_to_sampler(&mut self, board: &Scoreboard, start: Pos, end: Pos) {
        let (mut from, end) = (board.seq(start), board.seq(end));
        let mut i = self.index_after(from);
        while from.before(end) {
            let Some(entry) = self.entries.get(i) else {
                return;
            };
            let to = entry.end().earliest(end);
            let segs = self.segs_between(from, to);
            let later_segs = self.segs_between(to, entry.end());
            if let Some(delivery) = &mut self.delivery {
                let snapshot = delivery.snapshot_of(i);
                delivery.on_lost(snapshot, from, to, segs, later_segs);
            }
            from = to;
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests;
