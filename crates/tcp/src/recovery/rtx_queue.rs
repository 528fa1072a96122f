//! The retransmission queue: super-segments that are sent and not yet acknowledged, and their scoreboard
//! (RFC 2018, RFC 6675).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use fullsend_buf::{Chain, Slice};
use fullsend_units::{Instant, Mss, SeqNum};

mod ack;
mod board;
mod delivery;
mod lost;
mod rack;
mod ranges;
mod regrid;
mod resend;
mod sack;
#[cfg(test)]
mod tests;

pub(crate) use ack::AckOutcome;
use board::Board;
pub(crate) use delivery::Delivery;
#[cfg(test)]
use rack::Overdue;
pub(crate) use rack::Sighting;
pub(crate) use resend::Retransmit;
pub(crate) use sack::SackOutcome;

/// Entries that an empty queue keeps allocated.
const KEPT_UNITS: usize = 1;

/// A super-segment as given to IP: a SYN, data of one or more segments, a FIN.
#[derive(Debug)]
pub(crate) struct TransmitUnit {
    /// Sequence number of its first byte, or of its SYN.
    pub(crate) seq: SeqNum,
    /// Data.
    pub(crate) payload: Chain,
    /// It begins with a SYN.
    pub(crate) syn: bool,
    /// A FIN follows the data.
    pub(crate) fin: bool,
    /// It was sent with PSH.
    pub(crate) push: bool,
    /// When it was sent.
    pub(crate) sent_at: Instant,
    /// Bytes of memory charged for it.
    pub(crate) truesize: u32,
    /// Its number in the host's queues.
    pub(crate) number: u16,
}

/// A super-segment as first sent. Its segments begin at `seq` and at each multiple of the MSS from there.
#[derive(Debug)]
struct Unit {
    payload: Chain,
    sent_at: Instant,
    seq: SeqNum,
    /// Number of segments sent before it; wraps.
    first_seg: u32,
    segs: u32,
    truesize: u32,
    number: u16,
    syn: bool,
    fin: bool,
    push: bool,
}

impl Unit {
    /// Returns the sequence space that it occupies.
    #[inline]
    fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.syn) + u32::from(self.fin)
    }

    #[inline]
    fn end(&self) -> SeqNum {
        self.seq + self.len()
    }

    /// Returns the sequence number of its first byte of data.
    #[inline]
    fn text(&self) -> SeqNum {
        self.seq + u32::from(self.syn)
    }
}

/// The retransmission queue: super-segments in sequence order without gaps, and a scoreboard while data
/// is SACKed, lost or retransmitted. Super-segments are never cut or joined. The scoreboard holds
/// ranges, so the work for an ACK depends on its changes, not on the window.
#[derive(Debug)]
pub(crate) struct RtxQueue {
    units: VecDeque<Unit>,
    mss: Mss,
    packets_out: u32,
    truesize: u32,
    /// `snd_una`.
    una: SeqNum,
    board: Option<Box<Board>>,
    /// The sampler of the delivery rate.
    delivery: Option<Box<Delivery>>,
}

impl RtxQueue {
    /// Returns an empty queue.
    pub(crate) fn new(mss: Mss) -> Self {
        Self {
            units: VecDeque::new(),
            mss,
            packets_out: 0,
            truesize: 0,
            una: SeqNum::new(0),
            board: None,
            delivery: None,
        }
    }

    /// Returns whether no data is outstanding.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Returns the number of super-segments outstanding.
    #[inline]
    pub(crate) fn units(&self) -> usize {
        self.units.len()
    }

    /// Returns when the oldest segment was last sent.
    #[inline]
    pub(crate) fn head_sent_at(&self) -> Option<Instant> {
        let head = self.units.front()?;
        let copy = self.board.as_ref().and_then(|b| b.copy_at(b.pos(head.seq)));
        Some(copy.map_or(head.sent_at, |copy| copy.sent_at))
    }

    /// Returns when the oldest segment was first sent.
    pub(crate) fn head_first_sent_at(&self) -> Option<Instant> {
        self.units.front().map(|head| head.sent_at)
    }

    /// Returns the bytes of memory that the first slice of the oldest super-segment pins.
    #[inline]
    pub(crate) fn head_pins(&self) -> usize {
        let first = self
            .units
            .front()
            .and_then(|head| head.payload.slices().first());
        first.map_or(0, Slice::pinned)
    }

    /// Returns the number of segments outstanding.
    #[inline]
    pub(crate) fn packets_out(&self) -> u32 {
        self.packets_out
    }

    /// Returns the number of segments that are SACKed, or without SACK counted by duplicate ACKs.
    #[inline]
    pub(crate) fn sacked_out(&self) -> u32 {
        self.board.as_ref().map_or(0, |b| b.sacked_out + b.dupacks)
    }

    /// Returns the number of segments marked lost.
    #[inline]
    pub(crate) fn lost_out(&self) -> u32 {
        self.board.as_ref().map_or(0, |b| b.lost_out())
    }

    /// Returns the number of retransmitted segments in flight.
    #[inline]
    pub(crate) fn retrans_out(&self) -> u32 {
        self.board.as_ref().map_or(0, |b| b.retrans_out)
    }

    /// Returns the segments in flight ("pipe" of RFC 6675).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        match &self.board {
            None => self.packets_out,
            Some(board) => board.in_flight(self.packets_out),
        }
    }

    /// Returns the bytes of memory charged for all outstanding data.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        self.truesize as usize
    }

    /// Appends a super-segment that is sent for the first time.
    #[inline(always)]
    pub(crate) fn push(&mut self, unit: TransmitUnit) {
        let TransmitUnit {
            seq,
            payload,
            syn,
            fin,
            push,
            mut sent_at,
            truesize,
            number,
        } = unit;
        if let Some(board) = &self.board {
            // Not earlier than a retransmission that left before it.
            sent_at = sent_at.max(board.last_copy.0);
        }
        debug_assert!(self.units.back().is_none_or(|u| u.end() == seq));
        let segs = self.segments(payload.len() as u32);
        let first_seg = if let Some(head) = self.units.front() {
            head.first_seg.wrapping_add(self.packets_out)
        } else {
            self.una = seq;
            0
        };
        let idle = self.packets_out == 0;
        self.packets_out += segs;
        if self.delivery.is_some() {
            self.stamp_sent(sent_at, idle);
        }
        self.truesize += truesize;
        if self.units.capacity() == 0 {
            self.units.reserve_exact(1);
        }
        self.units.push_back(Unit {
            payload,
            sent_at,
            seq,
            first_seg,
            segs,
            truesize,
            number,
            syn,
            fin,
            push,
        });
    }

    /// Discards all data.
    pub(crate) fn clear(&mut self) {
        let mut delivery = self.delivery.take();
        if let Some(delivery) = &mut delivery {
            delivery.clear();
        }
        *self = Self {
            delivery,
            ..Self::new(self.mss)
        };
    }

    /// Returns the number of segments of a super-segment with `text` bytes of data.
    #[inline]
    fn segments(&self, text: u32) -> u32 {
        if text <= self.mss.bytes() {
            1
        } else {
            self.mss.segments(text)
        }
    }

    /// Returns the index of the first super-segment that ends after `seq`.
    fn index_after(&self, seq: SeqNum) -> usize {
        self.units.partition_point(|u| u.end().before_eq(seq))
    }

    /// Returns the number of segments that begin before `seq`, counted as [`Unit::first_seg`] is.
    fn seg_at(&self, seq: SeqNum) -> u32 {
        let i = self.index_after(seq);
        let Some(unit) = self.units.get(i) else {
            let last = self.units.back();
            return last.map_or(0, |u| u.first_seg.wrapping_add(u.segs));
        };
        let inside = seq.distance(unit.text()).max(0) as u32;
        let inside = inside.div_ceil(self.mss.bytes()).min(unit.segs);
        unit.first_seg.wrapping_add(inside)
    }

    /// Returns the number of segments that begin within a range.
    fn segs_between(&self, start: SeqNum, end: SeqNum) -> u32 {
        self.seg_at(end).wrapping_sub(self.seg_at(start))
    }

    /// Returns the sequence number after the last super-segment.
    fn end(&self) -> SeqNum {
        self.units.back().map_or(self.una, Unit::end)
    }

    /// Returns the first segment border at or after `seq`.
    fn ceil(&self, seq: SeqNum) -> SeqNum {
        let Some(unit) = self.units.get(self.index_after(seq)) else {
            return seq;
        };
        let inside = seq.distance(unit.text());
        if inside <= 0 {
            return if seq == unit.seq { seq } else { unit.text() };
        }
        let up = (inside as u32).next_multiple_of(self.mss.bytes());
        if up < unit.payload.len() as u32 {
            unit.text() + up
        } else {
            unit.end()
        }
    }

    /// Returns the last segment border at or before `seq`.
    fn floor(&self, seq: SeqNum) -> SeqNum {
        let Some(unit) = self.units.get(self.index_after(seq)) else {
            return seq;
        };
        let inside = seq.distance(unit.text());
        if inside < self.mss.bytes() as i32 {
            return unit.seq;
        }
        // A FIN belongs to the last segment.
        let inside = (inside as u32).min(unit.payload.len().saturating_sub(1) as u32);
        unit.text() + inside / self.mss.bytes() * self.mss.bytes()
    }

    /// Checks that the counts match the super-segments and ranges.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check(&self) {
        let segs: u32 = self.units.iter().map(|u| u.segs).sum();
        assert_eq!(self.packets_out, segs);
        let truesize: u32 = self.units.iter().map(|u| u.truesize).sum();
        assert_eq!(self.truesize, truesize);
        let delivery = self.delivery.as_ref();
        assert!(delivery.is_none_or(|d| d.is_for(self.units.len())));
        for unit in &self.units {
            assert_eq!(unit.segs, self.segments(unit.payload.len() as u32));
        }
        for (unit, next) in self.units.iter().zip(self.units.iter().skip(1)) {
            assert_eq!(unit.end(), next.seq);
            assert_eq!(unit.first_seg.wrapping_add(unit.segs), next.first_seg);
        }
        if let Some(board) = &self.board {
            self.check_board(board);
        }
    }
}
