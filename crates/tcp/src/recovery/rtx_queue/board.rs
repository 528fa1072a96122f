//! The scoreboard: the ranges of outstanding data that are SACKed, lost or retransmitted.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};

use fullsend_units::{Instant, SeqNum};

use super::RtxQueue;
use super::delivery::Stamp;
use super::rack::Rack;
use super::ranges::{Pos, RangeSet};

/// The state of the last retransmission of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// In flight, in place of a lost segment.
    Repair,
    /// In flight, but the segment that it replaces proved not to be lost.
    Needless,
    /// In flight, as a tail loss probe: its original is not known to be lost.
    Probe,
    /// Arrived, or lost.
    Over,
}

impl Way {
    /// Returns whether it counts as `retrans_out`.
    pub(super) const fn counts(self) -> bool {
        matches!(self, Self::Repair | Self::Needless)
    }
}

/// The last retransmission of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) end: Pos,
    pub(super) sent_at: Instant,
    /// Its number in the host's queues.
    pub(super) number: u16,
    pub(super) way: Way,
    pub(super) stamp: Option<Stamp>,
}

/// A sequence number and its position in the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    seq: SeqNum,
    pos: Pos,
}

impl Base {
    /// Returns the position of a sequence number, which must lie within half of the sequence space from
    /// `snd_una`.
    #[inline]
    pub(super) fn pos(self, seq: SeqNum) -> Pos {
        self.pos
            .wrapping_add_signed(i64::from(seq.distance(self.seq)))
    }

    #[inline]
    pub(super) fn seq(self, pos: Pos) -> SeqNum {
        let distance = pos.wrapping_sub(self.pos) as i64;
        if distance >= 0 {
            self.seq + distance as u32
        } else {
            self.seq - distance.unsigned_abs() as u32
        }
    }
}

/// The scoreboard, which exists while data is SACKed, lost or retransmitted, or RACK has a delivered
/// segment whose predecessors it must judge.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) base: Base,
    pub(super) sacked: RangeSet,
    /// Lost ranges that are not yet retransmitted.
    pub(super) lost: RangeSet,
    /// Retransmitted ranges by their start. They do not overlap.
    pub(super) copies: BTreeMap<Pos, Copy>,
    /// The retransmissions in flight, in the order of sending (RFC 8985 6.2).
    pub(super) under_way: BTreeSet<(Instant, Pos)>,
    /// The time and start of the last retransmission: see [`RtxQueue::after_all_sent`].
    pub(super) last_copy: (Instant, Pos),
    /// Segments SACKed.
    pub(super) sacked_out: u32,
    /// Segments that duplicate ACKs count, without SACK.
    pub(super) dupacks: u32,
    /// Segments of `lost`.
    pub(super) pending: u32,
    /// Lost segments whose retransmission is in flight.
    pub(super) repairing: u32,
    /// Retransmitted segments in flight, without tail loss probes.
    pub(super) retrans_out: u32,
    pub(super) rack: Rack,
}

/// Position of the first byte: not 0, so that data before it has a position, too.
const FIRST: Pos = 1 << 33;

impl Board {
    pub(super) fn new(una: SeqNum) -> Self {
        Self {
            base: Base {
                seq: una,
                pos: FIRST,
            },
            sacked: RangeSet::default(),
            lost: RangeSet::default(),
            copies: BTreeMap::new(),
            under_way: BTreeSet::new(),
            last_copy: (Instant::ZERO, 0),
            sacked_out: 0,
            dupacks: 0,
            pending: 0,
            repairing: 0,
            retrans_out: 0,
            rack: Rack::new(FIRST),
        }
    }

    #[inline]
    pub(super) fn pos(&self, seq: SeqNum) -> Pos {
        self.base.pos(seq)
    }

    #[inline]
    pub(super) fn seq(&self, pos: Pos) -> SeqNum {
        self.base.seq(pos)
    }

    /// Sets `snd_una` to `una`, so that positions stay comparable when sequence numbers wrap.
    pub(super) fn rebase(&mut self, una: SeqNum) {
        let pos = self.pos(una);
        self.base = Base { seq: una, pos };
    }

    /// Returns whether no range is marked.
    pub(super) fn is_void(&self) -> bool {
        self.sacked.is_empty()
            && self.lost.is_empty()
            && self.copies.is_empty()
            && self.dupacks == 0
            && !self.rack.is_pending()
    }

    #[inline]
    pub(super) fn lost_out(&self) -> u32 {
        self.pending + self.repairing
    }

    #[inline]
    pub(super) fn in_flight(&self, packets_out: u32) -> u32 {
        let left = self.sacked_out + self.dupacks + self.lost_out();
        (packets_out + self.retrans_out).saturating_sub(left)
    }

    /// Returns the retransmission that contains `pos`.
    pub(super) fn copy_at(&self, pos: Pos) -> Option<&Copy> {
        let (_, copy) = self.copies.range(..=pos).next_back()?;
        (pos < copy.end).then_some(copy)
    }

    /// Splits the retransmission that contains `pos`, so that none reaches across it.
    pub(super) fn cut_copies(&mut self, pos: Pos) {
        let Some((_, copy)) = self.copies.range_mut(..pos).next_back() else {
            return;
        };
        if copy.end <= pos {
            return;
        }
        let rest = *copy;
        copy.end = pos;
        self.copies.insert(pos, rest);
        if rest.way != Way::Over {
            self.under_way.insert((rest.sent_at, pos));
        }
    }

    /// Returns the range that contains `pos` and is SACKed, lost, or retransmitted and in flight.
    pub(super) fn mark_at(&self, pos: Pos) -> Option<(Pos, Pos)> {
        if let Some(range) = self.sacked.at(pos) {
            return Some(range);
        }
        if let Some(range) = self.lost.at(pos) {
            return Some(range);
        }
        let (&start, copy) = self.copies.range(..=pos).next_back()?;
        (pos < copy.end && copy.way != Way::Over).then_some((start, copy.end))
    }

    /// Returns the start of the next such range after `pos`, which must not be in one.
    pub(super) fn next_mark(&self, pos: Pos) -> Pos {
        let starts = [self.sacked.next_start(pos), self.lost.next_start(pos)];
        let first = starts.into_iter().flatten().min().unwrap_or(Pos::MAX);
        let mut copies = self.copies.range(pos..first);
        let copy = copies.find(|(_, c)| c.way != Way::Over);
        copy.map_or(first, |(&start, _)| start)
    }
}

impl RtxQueue {
    /// Takes the scoreboard out of the queue, or creates one. The caller puts it back with
    /// [`put_board`](Self::put_board).
    pub(super) fn take_board(&mut self) -> Box<Board> {
        let head = self.units.front().map_or(self.una, |u| u.seq);
        self.board
            .take()
            .unwrap_or_else(|| Box::new(Board::new(head)))
    }

    pub(super) fn put_board(&mut self, board: Box<Board>) {
        self.board = (!board.is_void()).then_some(board);
    }

    /// Returns the number of segments that begin within a range.
    pub(super) fn segs(&self, base: Base, start: Pos, end: Pos) -> u32 {
        self.segs_between(base.seq(start), base.seq(end))
    }

    /// Ends a retransmission in flight: it arrived or was lost.
    pub(super) fn end_copy(&self, board: &mut Board, start: Pos) {
        let Some(copy) = board.copies.get_mut(&start) else {
            return;
        };
        let (way, end, sent_at) = (copy.way, copy.end, copy.sent_at);
        copy.way = Way::Over;
        board.under_way.remove(&(sent_at, start));
        if way.counts() {
            let segs = self.segs(board.base, start, end);
            board.retrans_out -= segs;
            board.repairing -= if way == Way::Repair { segs } else { 0 };
        }
    }

    /// Recounts all segments with the present MSS.
    pub(super) fn recount(&self, board: &mut Board) {
        let segs = |(start, end)| self.segs(board.base, start, end);
        let sacked_out = board.sacked.iter().map(segs).sum();
        let pending = board.lost.iter().map(segs).sum();
        let count = |which: fn(Way) -> bool| -> u32 {
            let copies = board.copies.iter().filter(|(_, c)| which(c.way));
            copies.map(|(&start, c)| segs((start, c.end))).sum()
        };
        let (repairing, retrans_out) = (count(|w| w == Way::Repair), count(Way::counts));
        (board.sacked_out, board.pending) = (sacked_out, pending);
        (board.repairing, board.retrans_out) = (repairing, retrans_out);
        board.dupacks = board.dupacks.min(self.packets_out);
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_board(&self, board: &Board) {
        let counts = |b: &Board| (b.sacked_out, b.pending, b.repairing, b.retrans_out);
        let head = board.pos(self.units.front().map_or(self.una, |u| u.seq));
        let end = board.pos(self.end());
        assert!(!board.is_void());
        let segs = |(a, b)| self.segs(board.base, a, b);
        let sum = |which: fn(Way) -> bool| -> u32 {
            let copies = board.copies.iter().filter(|(_, c)| which(c.way));
            copies.map(|(&start, c)| segs((start, c.end))).sum()
        };
        let sacked: u32 = board.sacked.iter().map(segs).sum();
        let pending: u32 = board.lost.iter().map(segs).sum();
        let wanted = (sacked, pending, sum(|w| w == Way::Repair), sum(Way::counts));
        assert_eq!(counts(board), wanted);
        assert!(board.dupacks <= self.packets_out);
        self.check_grid(board);
        let mut last = head;
        for (&start, copy) in &board.copies {
            assert!(start >= last && copy.end > start && copy.end <= end);
            last = copy.end;
            let listed = board.under_way.contains(&(copy.sent_at, start));
            assert_eq!(listed, copy.way != Way::Over);
            if copy.way != Way::Over {
                assert!(board.sacked.at(start).is_none() && board.lost.at(start).is_none());
            }
        }
        let under_way = board.copies.values().filter(|c| c.way != Way::Over);
        assert_eq!(under_way.count(), board.under_way.len());
        for (start, to) in board.sacked.iter().chain(board.lost.iter()) {
            assert!(start >= head && to <= end);
        }
        for (start, to) in board.lost.iter() {
            assert!(board.sacked.at(start).is_none());
            assert!(board.sacked.next_start(start).is_none_or(|s| s >= to));
        }
    }

    /// Checks that every range begins and ends with a segment.
    #[cfg(any(test, debug_assertions))]
    fn check_grid(&self, board: &Board) {
        let copies = board.copies.iter().map(|(&start, c)| (start, c.end));
        for (start, end) in board.sacked.iter().chain(board.lost.iter()).chain(copies) {
            for seq in [start, end].map(|pos| board.seq(pos)) {
                assert_eq!(self.ceil(seq), seq, "within a segment");
            }
        }
    }
}

#[cfg(test)]
mod tests;
