//! The scoreboard: the ranges of outstanding data that are SACKed, lost or retransmitted.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};

use fullsend_wire::{Instant, SeqNum};

use super::RtxQueue;
use super::delivery::SendSnapshot;
use super::rack::Rack;
use super::ranges::{Pos, RangeSet};

/// The state of the last retransmission of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RetransState {
    /// In flight, in place of a lost segment.
    ForLost,
    /// In flight, but the segment that it replaces proved not to be lost.
    Spurious,
    /// In flight, as a tail loss probe: its original is not known to be lost.
    Probe,
    /// Arrived, or lost.
    Done,
}

impl RetransState {
    /// Returns whether it counts as `retrans_out`.
    pub(super) const fn is_in_retrans_out(self) -> bool {
        matches!(self, Self::ForLost | Self::Spurious)
    }
}

/// The last retransmission of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retransmission {
    pub(super) end: Pos,
    pub(super) sent_at: Instant,
    /// The retransmission's number in the host's queues.
    pub(super) number: u16,
    pub(super) state: RetransState,
    pub(super) snapshot: Option<SendSnapshot>,
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
pub(super) struct Scoreboard {
    pub(super) base: Base,
    pub(super) sacked: RangeSet,
    /// Lost ranges that are not yet retransmitted.
    pub(super) lost: RangeSet,
    /// Retransmitted ranges by their start. They do not overlap.
    pub(super) retransmissions: BTreeMap<Pos, Retransmission>,
    /// The retransmissions in flight, in the order of sending (RFC 8985 6.2).
    pub(super) retrans_in_flight: BTreeSet<(Instant, Pos)>,
    /// The time and start of the last retransmission: see [`RtxQueue::retrans_sent_at`].
    pub(super) last_retrans: (Instant, Pos),
    /// Segments SACKed.
    pub(super) sacked_out: u32,
    /// Segments that duplicate ACKs count, without SACK.
    pub(super) dupacks: u32,
    /// Segments of `lost`.
    pub(super) lost_pending: u32,
    /// Lost segments whose retransmission is in flight.
    pub(super) lost_retransmitted: u32,
    /// Retransmitted segments in flight, without tail loss probes.
    pub(super) retrans_out: u32,
    pub(super) rack: Rack,
}

/// Position of the first byte: not 0, so that data before it has a position, too.
const FIRST: Pos = 1 << 33;

impl Scoreboard {
    pub(super) fn new(una: SeqNum) -> Self {
        Self {
            base: Base {
                seq: una,
                pos: FIRST,
            },
            sacked: RangeSet::default(),
            lost: RangeSet::default(),
            retransmissions: BTreeMap::new(),
            retrans_in_flight: BTreeSet::new(),
            last_retrans: (Instant::ZERO, 0),
            sacked_out: 0,
            dupacks: 0,
            lost_pending: 0,
            lost_retransmitted: 0,
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
    pub(super) fn is_empty(&self) -> bool {
        self.sacked.is_empty()
            && self.lost.is_empty()
            && self.retransmissions.is_empty()
            && self.dupacks == 0
            && !self.rack.has_pending_work()
    }

    #[inline]
    pub(super) fn lost_out(&self) -> u32 {
        self.lost_pending + self.lost_retransmitted
    }

    #[inline]
    pub(super) fn in_flight(&self, packets_out: u32) -> u32 {
        let left = self.sacked_out + self.dupacks + self.lost_out();
        (packets_out + self.retrans_out).saturating_sub(left)
    }

    /// Returns the retransmission that contains `pos`.
    pub(super) fn retrans_at(&self, pos: Pos) -> Option<&Retransmission> {
        let (_, retrans) = self.retransmissions.range(..=pos).next_back()?;
        (pos < retrans.end).then_some(retrans)
    }

    /// Splits the retransmission that contains `pos`, so that none reaches across it.
    pub(super) fn split_retrans(&mut self, pos: Pos) {
        let Some((_, retrans)) = self.retransmissions.range_mut(..pos).next_back() else {
            return;
        };
        if retrans.end <= pos {
            return;
        }
        let rest = *retrans;
        retrans.end = pos;
        self.retransmissions.insert(pos, rest);
        if rest.state != RetransState::Done {
            self.retrans_in_flight.insert((rest.sent_at, pos));
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
        let (&start, retrans) = self.retransmissions.range(..=pos).next_back()?;
        (pos < retrans.end && retrans.state != RetransState::Done).then_some((start, retrans.end))
    }

    /// Returns the start of the next such range after `pos`, which must not be in one.
    pub(super) fn next_mark(&self, pos: Pos) -> Pos {
        let starts = [self.sacked.next_start(pos), self.lost.next_start(pos)];
        let first = starts.into_iter().flatten().min().unwrap_or(Pos::MAX);
        let mut retransmissions = self.retransmissions.range(pos..first);
        let retrans = retransmissions.find(|(_, c)| c.state != RetransState::Done);
        retrans.map_or(first, |(&start, _)| start)
    }
}

impl RtxQueue {
    /// Takes the scoreboard out of the queue, or creates one. The caller puts it back with
    /// [`put_board`](Self::put_board).
    pub(super) fn take_board(&mut self) -> Box<Scoreboard> {
        let head = self.entries.front().map_or(self.una, |u| u.seq);
        self.board
            .take()
            .unwrap_or_else(|| Box::new(Scoreboard::new(head)))
    }

    pub(super) fn put_board(&mut self, board: Box<Scoreboard>) {
        self.board = (!board.is_empty()).then_some(board);
    }

    /// Returns the number of segments that begin within a range.
    pub(super) fn segs(&self, base: Base, start: Pos, end: Pos) -> u32 {
        self.segs_between(base.seq(start), base.seq(end))
    }

    /// Ends a retransmission in flight: it arrived or was lost.
    pub(super) fn end_retrans(&self, board: &mut Scoreboard, start: Pos) {
        let Some(retrans) = board.retransmissions.get_mut(&start) else {
            return;
        };
        let (state, end, sent_at) = (retrans.state, retrans.end, retrans.sent_at);
        retrans.state = RetransState::Done;
        board.retrans_in_flight.remove(&(sent_at, start));
        if state.is_in_retrans_out() {
            let segs = self.segs(board.base, start, end);
            board.retrans_out -= segs;
            board.lost_retransmitted -= if state == RetransState::ForLost {
                segs
            } else {
                0
            };
        }
    }

    /// Recounts all segments with the present MSS.
    pub(super) fn recount(&self, board: &mut Scoreboard) {
        let segs = |(start, end)| self.segs(board.base, start, end);
        let sacked_out = board.sacked.iter().map(segs).sum();
        let lost_pending = board.lost.iter().map(segs).sum();
        let count = |which: fn(RetransState) -> bool| -> u32 {
            let retransmissions = board.retransmissions.iter().filter(|(_, c)| which(c.state));
            retransmissions
                .map(|(&start, c)| segs((start, c.end)))
                .sum()
        };
        let (lost_retransmitted, retrans_out) = (
            count(|w| w == RetransState::ForLost),
            count(RetransState::is_in_retrans_out),
        );
        (board.sacked_out, board.lost_pending) = (sacked_out, lost_pending);
        (board.lost_retransmitted, board.retrans_out) = (lost_retransmitted, retrans_out);
        board.dupacks = board.dupacks.min(self.packets_out);
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_board(&self, board: &Scoreboard) {
        let counts = |b: &Scoreboard| {
            (
                b.sacked_out,
                b.lost_pending,
                b.lost_retransmitted,
                b.retrans_out,
            )
        };
        let head = board.pos(self.entries.front().map_or(self.una, |u| u.seq));
        let end = board.pos(self.end());
        assert!(!board.is_empty());
        let segs = |(a, b)| self.segs(board.base, a, b);
        let sum = |which: fn(RetransState) -> bool| -> u32 {
            let retransmissions = board.retransmissions.iter().filter(|(_, c)| which(c.state));
            retransmissions
                .map(|(&start, c)| segs((start, c.end)))
                .sum()
        };
        let sacked: u32 = board.sacked.iter().map(segs).sum();
        let lost_pending: u32 = board.lost.iter().map(segs).sum();
        let wanted = (
            sacked,
            lost_pending,
            sum(|w| w == RetransState::ForLost),
            sum(RetransState::is_in_retrans_out),
        );
        assert_eq!(counts(board), wanted);
        assert!(board.dupacks <= self.packets_out);
        self.check_alignment(board);
        let mut last = head;
        for (&start, retrans) in &board.retransmissions {
            assert!(start >= last && retrans.end > start && retrans.end <= end);
            last = retrans.end;
            let listed = board.retrans_in_flight.contains(&(retrans.sent_at, start));
            assert_eq!(listed, retrans.state != RetransState::Done);
            if retrans.state != RetransState::Done {
                assert!(board.sacked.at(start).is_none() && board.lost.at(start).is_none());
            }
        }
        let retrans_in_flight = board
            .retransmissions
            .values()
            .filter(|c| c.state != RetransState::Done);
        assert_eq!(retrans_in_flight.count(), board.retrans_in_flight.len());
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
    fn check_alignment(&self, board: &Scoreboard) {
        let retransmissions = board
            .retransmissions
            .iter()
            .map(|(&start, c)| (start, c.end));
        for (start, end) in board
            .sacked
            .iter()
            .chain(board.lost.iter())
            .chain(retransmissions)
        {
            for seq in [start, end].map(|pos| board.seq(pos)) {
                assert_eq!(self.ceil(seq), seq, "within a segment");
            }
        }
    }
}

#[cfg(test)]
mod tests;
