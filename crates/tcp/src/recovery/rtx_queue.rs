//! The retransmission queue: super-segments that are sent and not yet acknowledged, and their scoreboard
//! (RFC 2018, RFC 6675).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use fullsend_offload::{Chain, Slice};
use fullsend_wire::{Instant, Mss, SeqNum, cold_path};

mod ack;
mod delivery;
mod lost;
mod rack;
mod ranges;
mod realign;
mod retransmit;
mod sack;
mod scoreboard;
#[cfg(test)]
mod tests;

pub(crate) use ack::AckOutcome;
pub(crate) use delivery::DeliverySampler;
pub(crate) use rack::AckContext;
#[cfg(test)]
use rack::RackOutcome;
pub(crate) use retransmit::Retransmit;
pub(crate) use sack::SackOutcome;
use scoreboard::Scoreboard;

/// Entries that an empty queue keeps allocated.
const MIN_CAPACITY: usize = 1;

/// A super-segment as given to IP: a SYN, data of one or more segments, a FIN.
#[derive(Debug)]
pub(crate) struct SuperSegment {
    /// Sequence number of the first byte, or of the SYN.
    pub(crate) seq: SeqNum,
    /// The data after the SYN.
    pub(crate) payload: Chain,
    /// The super-segment begins with a SYN.
    pub(crate) syn: bool,
    /// A FIN follows the data.
    pub(crate) fin: bool,
    /// The super-segment was sent with PSH.
    pub(crate) push: bool,
    /// The time at which the super-segment was sent.
    pub(crate) sent_at: Instant,
    /// Bytes of memory charged for it.
    pub(crate) truesize: u32,
    /// The super-segment's number in the host's queues.
    pub(crate) number: u16,
}

/// A super-segment as first sent. Its segments begin at `seq` and at each multiple of the MSS from there.
#[derive(Debug)]
struct RtxEntry {
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

impl RtxEntry {
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
    fn data_seq(&self) -> SeqNum {
        self.seq + u32::from(self.syn)
    }
}

/// The retransmission queue: super-segments in sequence order without gaps, and a scoreboard while data
/// is SACKed, lost or retransmitted. Super-segments are never cut or joined. The scoreboard holds
/// ranges, so the work for an ACK depends on its changes, not on the window.
#[derive(Debug)]
pub(crate) struct RtxQueue {
    entries: VecDeque<RtxEntry>,
    mss: Mss,
    packets_out: u32,
    truesize: u32,
    /// `snd_una`.
    una: SeqNum,
    board: Option<Box<Scoreboard>>,
    /// The sampler of the delivery rate.
    delivery: Option<Box<DeliverySampler>>,
}

impl RtxQueue {
    /// Returns an empty queue.
    pub(crate) fn new(mss: Mss) -> Self {
        Self {
            entries: VecDeque::new(),
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
        self.entries.is_empty()
    }

    /// Returns the number of super-segments outstanding.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns when the oldest segment was last sent.
    #[inline]
    pub(crate) fn head_sent_at(&self) -> Option<Instant> {
        let head = self.entries.front()?;
        let retrans = self
            .board
            .as_ref()
            .and_then(|b| b.retrans_at(b.pos(head.seq)));
        Some(retrans.map_or(head.sent_at, |retrans| retrans.sent_at))
    }

    /// Returns when the oldest segment was first sent.
    pub(crate) fn head_first_sent_at(&self) -> Option<Instant> {
        self.entries.front().map(|head| head.sent_at)
    }

    /// Returns the bytes of memory that the first slice of the oldest super-segment pins.
    #[inline]
    pub(crate) fn head_pinned_bytes(&self) -> usize {
        let first = self
            .entries
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
            Some(board) => {
                cold_path();
                board.in_flight(self.packets_out)
            }
        }
    }

    /// Returns the bytes of memory charged for all outstanding data.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        self.truesize as usize
    }

    /// Appends a super-segment that is sent for the first time.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: SuperSegment) {
        let SuperSegment {
            seq,
            payload,
            syn,
            fin,
            push,
            mut sent_at,
            truesize,
            number,
        } = entry;
        if let Some(board) = &self.board {
            cold_path();
            // Not earlier than a retransmission that left before it.
            sent_at = sent_at.max(board.last_retrans.0);
        }
        debug_assert!(self.entries.back().is_none_or(|u| u.end() == seq));
        let segs = self.segments(payload.len() as u32);
        let first_seg = if let Some(head) = self.entries.front() {
            head.first_seg.wrapping_add(self.packets_out)
        } else {
            self.una = seq;
            0
        };
        let idle = self.packets_out == 0;
        self.packets_out += segs;
        if self.delivery.is_some() {
            cold_path();
            self.record_sent(sent_at, idle);
        }
        self.truesize += truesize;
        if self.entries.capacity() == 0 {
            cold_path();
            self.entries.reserve_exact(1);
        }
        self.entries.push_back(RtxEntry {
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

    /// Returns the number of segments of a super-segment with `data_len` bytes of data.
    #[inline]
    fn segments(&self, data_len: u32) -> u32 {
        self.mss.segments(data_len).max(1)
    }

    /// Returns the index of the first super-segment that ends after `seq`.
    fn index_after(&self, seq: SeqNum) -> usize {
        self.entries.partition_point(|u| u.end().before_eq(seq))
    }

    /// Returns the number of segments that begin before `seq`, counted as [`RtxEntry::first_seg`] is.
    fn seg_at(&self, seq: SeqNum) -> u32 {
        let i = self.index_after(seq);
        let Some(entry) = self.entries.get(i) else {
            let last = self.entries.back();
            return last.map_or(0, |u| u.first_seg.wrapping_add(u.segs));
        };
        let inside = seq.distance(entry.data_seq()).max(0) as u32;
        let inside = inside.div_ceil(self.mss.bytes()).min(entry.segs);
        entry.first_seg.wrapping_add(inside)
    }

    /// Returns the number of segments that begin within a range.
    fn segs_between(&self, start: SeqNum, end: SeqNum) -> u32 {
        self.seg_at(end).wrapping_sub(self.seg_at(start))
    }

    /// Returns the sequence number after the last super-segment.
    fn end(&self) -> SeqNum {
        self.entries.back().map_or(self.una, RtxEntry::end)
    }

    /// Returns the first segment border at or after `seq`.
    fn ceil(&self, seq: SeqNum) -> SeqNum {
        let Some(entry) = self.entries.get(self.index_after(seq)) else {
            return seq;
        };
        let inside = seq.distance(entry.data_seq());
        if inside <= 0 {
            return if seq == entry.seq {
                seq
            } else {
                entry.data_seq()
            };
        }
        let up = (inside as u32).next_multiple_of(self.mss.bytes());
        if up < entry.payload.len() as u32 {
            entry.data_seq() + up
        } else {
            entry.end()
        }
    }

    /// Returns the last segment border at or before `seq`.
    fn floor(&self, seq: SeqNum) -> SeqNum {
        let Some(entry) = self.entries.get(self.index_after(seq)) else {
            return seq;
        };
        let inside = seq.distance(entry.data_seq());
        if inside < self.mss.bytes() as i32 {
            return entry.seq;
        }
        // A FIN belongs to the last segment.
        let inside = (inside as u32).min(entry.payload.len().saturating_sub(1) as u32);
        entry.data_seq() + inside / self.mss.bytes() * self.mss.bytes()
    }

    /// Checks that the counts match the super-segments and ranges.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check(&self) {
        let segs: u32 = self.entries.iter().map(|u| u.segs).sum();
        assert_eq!(self.packets_out, segs);
        let truesize: u32 = self.entries.iter().map(|u| u.truesize).sum();
        assert_eq!(self.truesize, truesize);
        let delivery = self.delivery.as_ref();
        assert!(delivery.is_none_or(|d| d.has_len(self.entries.len())));
        for entry in &self.entries {
            assert_eq!(entry.segs, self.segments(entry.payload.len() as u32));
        }
        for (entry, next) in self.entries.iter().zip(self.entries.iter().skip(1)) {
            assert_eq!(entry.end(), next.seq);
            assert_eq!(entry.first_seg.wrapping_add(entry.segs), next.first_seg);
        }
        if let Some(board) = &self.board {
            self.check_board(board);
        }
    }
}
