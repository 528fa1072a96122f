//! Changes of the MSS: the segment borders of outstanding data and of the scoreboard move.

use alloc::vec::Vec;

use fullsend_wire::Mss;

use super::RtxQueue;
use super::ranges::Pos;
use super::scoreboard::{RetransState, Retransmission, Scoreboard};

impl RtxQueue {
    /// Sets the MSS and recounts all segments.
    pub(crate) fn set_mss(&mut self, mss: Mss) {
        if mss == self.mss {
            return;
        }
        self.mss = mss;
        let una = self.una;
        if let Some(head) = self.entries.front_mut()
            && una.after(head.data_seq())
        {
            // Segments begin at the next byte that the peer expects.
            let gone = una.since(head.seq).min(head.payload.len() as u32);
            head.payload.advance(gone as usize);
            head.seq += gone;
        }
        let mut count = self.entries.front().map_or(0, |head| head.first_seg);
        self.packets_out = 0;
        for i in 0..self.entries.len() {
            let segs = self.segments(self.entries[i].payload.len() as u32);
            let entry = &mut self.entries[i];
            (entry.segs, entry.first_seg) = (segs, count);
            count = count.wrapping_add(segs);
            self.packets_out += segs;
        }
        if let Some(mut board) = self.board.take() {
            self.realign(&mut board);
            self.recount(&mut board);
            self.put_board(board);
        }
    }

    /// Moves the borders of ranges to those of segments: only whole segments are SACKed; one that is
    /// lost or in flight in part is so as a whole.
    fn realign(&self, board: &mut Scoreboard) {
        let (base, end) = (board.base, board.pos(self.end()));
        let up = |pos: Pos| base.pos(self.ceil(base.seq(pos)));
        let down = |pos: Pos| base.pos(self.floor(base.seq(pos)));
        let head = self.entries.front().map_or(end, |u| base.pos(u.seq));
        let sacked: Vec<_> = board.sacked.iter().collect();
        let lost: Vec<_> = board.lost.iter().collect();
        let retransmissions: Vec<_> = core::mem::take(&mut board.retransmissions)
            .into_iter()
            .collect();
        board.sacked.clear();
        board.lost.clear();
        board.retrans_in_flight.clear();
        for (start, to) in sacked {
            let to = if to == end { end } else { down(to) };
            board.sacked.insert(up(start.max(head)), to, |_, _| {});
        }
        for (start, to) in lost {
            board.lost.insert(down(start.max(head)), up(to), |_, _| {});
        }
        let mut from = head;
        for (start, retrans) in retransmissions {
            let (start, end) = (down(start.max(from)).max(from), up(retrans.end));
            if start < end {
                add_retrans(board, start, Retransmission { end, ..retrans });
                from = end;
            }
        }
        let sacked: Vec<_> = board.sacked.iter().collect();
        for (start, to) in sacked {
            board.lost.remove(start, to, |_, _| {});
        }
        board.rack.realign(head, down);
    }
}

/// Adds a retransmission. If a part of it is SACKed or lost, no part of it counts as in flight.
fn add_retrans(board: &mut Scoreboard, start: Pos, mut retrans: Retransmission) {
    if retrans.state != RetransState::Done {
        if board.mark_at(start).is_none() && board.next_mark(start) >= retrans.end {
            board.retrans_in_flight.insert((retrans.sent_at, start));
        } else {
            retrans.state = RetransState::Done;
            board.lost.insert(start, retrans.end, |_, _| {});
        }
    }
    board.retransmissions.insert(start, retrans);
}

#[cfg(test)]
mod tests;
