//! Loss marks by other rules than RACK's (RFC 6675, RFC 6582, RFC 6298 5.4), and their removal.

use fullsend_wire::{Instant, SeqNum, cold_path};

use super::RtxQueue;
use super::scoreboard::{RetransState, Scoreboard};

impl RtxQueue {
    /// Marks as lost the data with `dupthresh` SACKed segments above it (IsLost of RFC 6675). Returns
    /// the number of segments newly lost.
    pub(crate) fn mark_lost_by_sack(&mut self, dupthresh: u32) -> u32 {
        let dupthresh = dupthresh.max(1);
        let Some(mut board) = self.board.take() else {
            return 0;
        };
        let before = board.lost_pending;
        let (base, mut above) = (board.base, 0);
        let limit = board.sacked.iter().rev().find_map(|(start, end)| {
            above += self.segs(base, start, end);
            (above >= dupthresh).then_some(start)
        });
        if let Some(limit) = limit {
            self.mark_originals(&mut board, limit);
        }
        let lost = board.lost_pending - before;
        self.put_board(board);
        lost
    }

    /// Marks as lost the data from `seq` to `end`, which the host dropped. Returns the number of segments
    /// newly waiting for retransmission.
    pub(crate) fn mark_dropped(&mut self, seq: SeqNum, end: SeqNum) -> u32 {
        let Some(head) = self.entries.front() else {
            return 0;
        };
        // The MSS may have changed since: a segment lost in part is lost as a whole.
        let from = self.floor(seq.latest(head.seq));
        let to = self.ceil(end.earliest(self.end()));
        let mut board = self.take_board();
        let before = board.lost_pending;
        let (mut pos, to) = (board.pos(from), board.pos(to));
        while pos < to {
            let retrans = board.retransmissions.range(..=pos).next_back();
            let retrans = retrans.map(|(&start, retrans)| (start, retrans.end, retrans.state));
            if let Some((start, end, state)) = retrans
                && pos < end
                && state != RetransState::Done
            {
                self.mark_retrans_lost(&mut board, start);
                pos = end;
            } else if let Some((_, end)) = board.mark_at(pos) {
                pos = end;
            } else {
                let end = board.next_mark(pos).min(to);
                self.mark_original_lost(&mut board, pos, end);
                pos = end;
            }
        }
        let lost = board.lost_pending - before;
        self.put_board(board);
        lost
    }

    /// Marks the first segment lost (fast retransmit and partial ACKs, RFC 6582). Returns the number of
    /// segments newly lost, 0 or 1.
    pub(crate) fn mark_head_lost(&mut self) -> u32 {
        let Some(head) = self.entries.front() else {
            return 0;
        };
        let (start, end) = (head.seq, self.segment_end(0, 1));
        let mut board = self.take_board();
        let before = board.lost_pending;
        let (start, end) = (board.pos(start), board.pos(end));
        if board.mark_at(start).is_none() {
            let end = board.next_mark(start).min(end);
            self.mark_original_lost(&mut board, start, end);
        }
        let lost = board.lost_pending - before;
        self.put_board(board);
        lost
    }

    /// Returns the end of the first `segs` segments of super-segment `i`.
    pub(super) fn segment_end(&self, i: usize, segs: u32) -> SeqNum {
        let entry = &self.entries[i];
        if segs >= entry.segs {
            entry.end()
        } else {
            entry.data_seq() + segs * self.mss.bytes()
        }
    }

    /// Marks data lost after a retransmission timeout: the head, and data that is not SACKed and was sent
    /// no later than `cutoff` (RFC 8985 6.3). A SACKed head means that the receiver reneged (RFC 2018
    /// 8): then all data is lost, SACKed or not. Returns whether it reneged.
    pub(crate) fn mark_timed_out(&mut self, cutoff: Instant) -> bool {
        let Some(head) = self.entries.front() else {
            return false;
        };
        let (head, end) = (head.seq, self.end());
        let mut board = self.take_board();
        board.dupacks = 0;
        let start = board.pos(head);
        let reneged = board.sacked.at(board.pos(self.una.latest(head))).is_some();
        let mut limit = board.pos(end);
        if reneged {
            board.sacked.clear();
            board.sacked_out = 0;
        } else {
            let sent = self.entries.partition_point(|u| u.sent_at <= cutoff);
            let late = self.entries.get(sent).map_or(end, |u| u.seq);
            limit = board.pos(late.latest(self.segment_end(0, 1)));
        }
        let retransmissions = board.retrans_in_flight.iter();
        let old = retransmissions.filter(|&&(at, pos)| reneged || at <= cutoff || pos == start);
        let old: alloc::vec::Vec<_> = old.map(|&(_, pos)| pos).collect();
        for retrans in old {
            self.mark_retrans_lost(&mut board, retrans);
        }
        board.rack.scan_start = start;
        self.mark_originals(&mut board, limit);
        self.put_board(board);
        reneged
    }

    /// Marks all data lost that is not SACKed.
    pub(crate) fn mark_all_lost(&mut self) -> bool {
        self.mark_timed_out(Instant::FAR_FUTURE)
    }

    /// Removes all loss marks, to undo a spurious recovery.
    pub(crate) fn unmark_lost(&mut self) {
        let head = self.entries.front().map_or(self.una, |u| u.seq);
        let Some(mut board) = self.board.take() else {
            return;
        };
        board.lost.clear();
        board.lost_pending = 0;
        board.lost_retransmitted = 0;
        for retrans in board.retransmissions.values_mut() {
            if retrans.state == RetransState::ForLost {
                retrans.state = RetransState::Spurious;
            }
        }
        board.rack.scan_start = board.pos(head);
        self.put_board(board);
    }

    /// Returns whether lost data waits for retransmission.
    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        let Some(board) = &self.board else {
            return false;
        };
        cold_path();
        board.lost_pending > 0
    }
}

impl Scoreboard {
    /// Returns the number of the last transmission of the data at `pos`; `original`: that of the first.
    pub(super) fn number_at(&self, pos: super::ranges::Pos, original: u16) -> u16 {
        self.retrans_at(pos)
            .map_or(original, |retrans| retrans.number)
    }
}

#[cfg(test)]
mod tests;
