//! Selective acknowledgement (RFC 2018, RFC 2883).

use alloc::vec::Vec;

use fullsend_wire::tcp::SackBlock;
use fullsend_wire::{Instant, Nanos, SeqNum};

use super::RtxQueue;
use super::ranges::Pos;
use super::scoreboard::{RetransState, Retransmission, Scoreboard};

/// Most SACKed ranges. Another is ignored unless it joins one, which bounds the memory that a peer can
/// make us use.
pub(super) const MAX_SACKED_RANGES: usize = 16_384;

/// Most retransmitted ranges that one DSACK is compared with, which bounds the work for a forged one.
const MAX_DSACKED_RANGES: usize = 64;

/// Largest window (RFC 7323 2.3): no valid DSACK is longer or reaches further back.
const MAX_WINDOW: u32 = 1 << 30;

/// The effects of an ACK's SACK blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SackOutcome {
    /// Segments newly reported as delivered.
    pub(crate) delivered_segs: u32,
    /// Round trip time of the oldest of these that were sent only once, for the RTO.
    pub(crate) rtt: Option<Nanos>,
    /// Round trip time of the newest of these, for congestion control.
    pub(crate) rtt_newest: Option<Nanos>,
    /// The newest one overtook a segment that may still arrive, so its round trip is not the path's.
    pub(crate) overtook: bool,
    /// The lowest newly delivered segment that was sent only once.
    pub(crate) original: Option<SeqNum>,
    /// Number of segments by which `original` lies below the highest SACKed one because the path
    /// reorders; 0 if it does not.
    pub(crate) reordering_segs: u32,
    /// The first block if it is a DSACK (RFC 2883): data that arrived twice.
    pub(crate) dsack: Option<SackBlock>,
}

/// The sum over the blocks of one ACK.
#[derive(Default)]
struct SackTotals {
    segs: u32,
    oldest: Option<Instant>,
    newest: Option<Instant>,
    original: Option<Pos>,
    /// End of the highest new range that was sent only once.
    highest: Pos,
}

impl RtxQueue {
    /// Processes the SACK blocks of an ACK of `ack`, after [`ack`](Self::ack) has processed its
    /// cumulative part, unless later ACKs overtook it. Ignores blocks outside the outstanding data.
    #[cold]
    pub(crate) fn sack(&mut self, now: Instant, ack: SeqNum, blocks: &[SackBlock]) -> SackOutcome {
        let snd_una = self.una.latest(ack);
        let mut out = SackOutcome {
            dsack: dsack_of(ack, blocks),
            ..SackOutcome::default()
        };
        let rest = usize::from(out.dsack.is_some());
        if !blocks[rest..]
            .iter()
            .any(|block| self.is_valid_block(snd_una, *block))
        {
            return out;
        }
        let mut board = self.take_board();
        let highest = board.sacked.end();
        let acked = board.rack.begin_sack();
        let mut totals = SackTotals::default();
        for block in &blocks[rest..] {
            if self.is_valid_block(snd_una, *block) {
                self.sack_block(&mut board, *block, &mut totals);
            }
        }
        board.rack.end_sack(acked);
        out.delivered_segs = totals.segs;
        out.rtt = totals.oldest.map(|sent_at| now.since(sent_at));
        out.rtt_newest = totals.newest.map(|sent_at| now.since(sent_at));
        out.overtook = totals.highest > board.first_in_flight();
        out.original = totals.original.map(|pos| board.seq(pos));
        if let (Some(original), Some(highest)) = (totals.original, highest)
            && original < highest
        {
            let late = board.seq(highest).since(board.seq(original));
            out.reordering_segs = self.mss.segments(late);
        }
        self.put_board(board);
        out
    }

    /// Returns the number of retransmitted segments in the queue that a DSACK among `blocks`, of an ACK
    /// of `ack`, reports. To be called before [`ack`](Self::ack) removes them.
    #[cold]
    pub(crate) fn dsacked_retrans_segs(&self, ack: SeqNum, blocks: &[SackBlock]) -> u32 {
        let (Some(board), Some(range)) = (&self.board, dsack_of(ack, blocks)) else {
            return 0;
        };
        if range.right.before_eq(self.una) {
            return 0;
        }
        // A segment that arrived again only in part does not count.
        let left = board.pos(self.ceil(range.left.latest(self.una)));
        let right = board.pos(self.last_covered(range.right.earliest(self.end())));
        if left >= right {
            return 0;
        }
        let overlapping = (board.retransmissions.range(..right).rev())
            .take_while(|(_, retransmission)| retransmission.end > left)
            .take(MAX_DSACKED_RANGES);
        let segs = |(start, retransmission): (&Pos, &Retransmission)| {
            let (start, end) = (left.max(*start), right.min(retransmission.end));
            self.segs(board.base, start, end)
        };
        overlapping.map(segs).sum()
    }

    fn is_valid_block(&self, snd_una: SeqNum, block: SackBlock) -> bool {
        !self.entries.is_empty()
            && block.left.after(snd_una)
            && block.left.before(block.right)
            && block.right.before_eq(self.end())
    }

    fn sack_block(&mut self, board: &mut Scoreboard, block: SackBlock, totals: &mut SackTotals) {
        // A segment that is SACKed only in part does not count as SACKed.
        let left = board.pos(self.ceil(block.left));
        let right = board.pos(self.last_covered(block.right));
        if left >= right
            || (board.sacked.len() >= MAX_SACKED_RANGES && !touches_sacked(board, left, right))
        {
            return;
        }
        // Usually one range: what the block adds to that of the previous ACK.
        let mut added = Vec::new();
        board.sacked.insert(left, right, |a, b| added.push((a, b)));
        for (start, end) in added {
            self.sack_range(board, start, end, totals);
        }
    }

    /// Returns the end of the last segment that a block up to `right` covers whole. A FIN arrives with
    /// the data before it, though not every peer includes it in the block.
    fn last_covered(&self, right: SeqNum) -> SeqNum {
        let fin = self
            .entries
            .back()
            .is_some_and(|u| u.fin && !u.payload.is_empty());
        if right == self.end() || (fin && right + 1 == self.end()) {
            self.end()
        } else {
            self.floor(right)
        }
    }

    /// Records a newly SACKed range.
    fn sack_range(
        &mut self,
        board: &mut Scoreboard,
        start: Pos,
        end: Pos,
        totals: &mut SackTotals,
    ) {
        let segs = self.segs(board.base, start, end);
        board.sacked_out += segs;
        totals.segs += segs;
        let (base, lost_pending) = (board.base, &mut board.lost_pending);
        board
            .lost
            .remove(start, end, |a, b| *lost_pending -= self.segs(base, a, b));
        board.split_retrans(start);
        board.split_retrans(end);
        // The data between retransmissions was sent only once.
        let mut from = start;
        while let Some((&at, &retrans)) = board.retransmissions.range(from..end).next() {
            self.sack_original(board, from, at, totals);
            board
                .rack
                .record_retrans_sacked(retrans.sent_at, retrans.end);
            if let (Some(delivery), Some(snapshot)) = (&mut self.delivery, retrans.snapshot) {
                delivery.on_data_delivered(snapshot, retrans.sent_at, board.seq(retrans.end));
            }
            if retrans.state != RetransState::Done {
                self.end_retrans(board, at);
            }
            from = retrans.end;
        }
        self.sack_original(board, from, end, totals);
    }

    fn sack_original(
        &mut self,
        board: &mut Scoreboard,
        start: Pos,
        end: Pos,
        totals: &mut SackTotals,
    ) {
        if start >= end {
            return;
        }
        let first = self.index_after(board.seq(start));
        let last = self.index_after(board.seq(end) - 1);
        let (oldest, newest) = (self.entries[first].sent_at, self.entries[last].sent_at);
        totals.original = Some(totals.original.map_or(start, |n| n.min(start)));
        totals.highest = totals.highest.max(end);
        totals.oldest = Some(totals.oldest.map_or(oldest, |n| n.min(oldest)));
        totals.newest = Some(totals.newest.map_or(newest, |n| n.max(newest)));
        board.rack.record_delivered(newest, end);
        if let Some(delivery) = &mut self.delivery {
            delivery.on_entry_delivered(last, newest, board.seq(end));
        }
    }
}

/// Returns whether the range touches one that is SACKed already.
fn touches_sacked(board: &Scoreboard, left: Pos, right: Pos) -> bool {
    let sacked = &board.sacked;
    sacked.at(left).or_else(|| sacked.at(left - 1)).is_some()
        || sacked.next_start(left).is_some_and(|next| next <= right)
}

/// Returns the first block if it is a DSACK: it lies left of the cumulative ACK or within the second
/// block (RFC 2883 4).
fn dsack_of(snd_una: SeqNum, blocks: &[SackBlock]) -> Option<SackBlock> {
    let first = *blocks.first()?;
    if first.right.since(first.left).wrapping_sub(1) >= MAX_WINDOW {
        return None;
    }
    let old = snd_una.since(first.right) < MAX_WINDOW;
    let within = blocks.get(1).is_some_and(|second| {
        first.left.after_eq(second.left) && first.right.before_eq(second.right)
    });
    (old || within).then_some(first)
}

#[cfg(test)]
mod tests;
