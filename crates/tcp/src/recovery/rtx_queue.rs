//! Transmit units sent and not yet acknowledged, and what is known of each (RFC 2018, RFC 6675).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use fullsend_buf::Chain;
use fullsend_units::{Instant, Mss, SeqNum};

mod ack;
mod delivery;
mod lost;
mod sack;
#[cfg(test)]
mod tests;

pub(crate) use ack::AckOutcome;
pub(crate) use delivery::Delivery;
pub(crate) use lost::Retransmit;

pub(crate) use sack::SackOutcome;

/// Entries that an empty queue keeps.
const KEPT_UNITS: usize = 1;

/// What was handed to IP at once: a SYN, text of one or more segments, a FIN.
#[derive(Debug)]
pub(crate) struct TransmitUnit {
    /// Sequence number of its first byte (of the SYN, if it is one).
    pub(crate) seq: SeqNum,
    /// Text.
    pub(crate) payload: Chain,
    /// It is (or begins with) a SYN.
    pub(crate) syn: bool,
    /// A FIN stands behind the text.
    pub(crate) fin: bool,
    /// When it was sent.
    pub(crate) sent_at: Instant,
    /// Bytes of memory charged for it.
    pub(crate) truesize: u32,
    /// Which of the units handed to the host it is.
    pub(crate) number: u16,
}

/// What is known of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Marks(u8);

impl Marks {
    const SYN: Self = Self(1);
    const FIN: Self = Self(2);
    /// The peer holds it (RFC 2018).
    const SACKED: Self = Self(4);
    /// Taken for lost; stays so while its retransmission is out.
    const LOST: Self = Self(8);
    /// A retransmission is out.
    const RETRANS: Self = Self(16);
    /// It was sent more than once, so its round trip is ambiguous (Karn).
    const EVER_RETRANS: Self = Self(32);

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Lost, and not yet sent again.
    const fn awaits_retransmission(self) -> bool {
        self.0 & (Self::LOST.0 | Self::RETRANS.0) == Self::LOST.0
    }
}

#[derive(Debug)]
struct Unit {
    payload: Chain,
    sent_at: Instant,
    seq: SeqNum,
    segs: u32,
    truesize: u32,
    /// Of its last copy.
    number: u16,
    marks: Marks,
}

impl Unit {
    /// Sequence space it takes.
    #[inline]
    fn len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.marks.has(Marks::SYN))
            + u32::from(self.marks.has(Marks::FIN))
    }

    #[inline]
    fn end(&self) -> SeqNum {
        self.seq + self.len()
    }
}

/// The retransmission queue with its scoreboard. Units are in sequence order without gaps.
///
/// Neighbours that are both SACKed become one unit, so that the work of an ACK is bounded by the
/// holes it finds, not by the window.
#[derive(Debug)]
pub(crate) struct RtxQueue {
    units: VecDeque<Unit>,
    mss: Mss,
    packets_out: u32,
    /// By SACK blocks.
    sacked_out: u32,
    /// By duplicate ACKs, without SACK.
    dupacks: u32,
    lost_out: u32,
    retrans_out: u32,
    /// Segments lost and not sent again.
    rtx_pending: u32,
    truesize: u32,
    /// End of the highest SACKed unit; meaningful while `sacked_out` is not 0.
    highest_sacked: SeqNum,
    /// Everything before it is SACKed or marked lost already.
    lost_edge: SeqNum,
    /// Nothing before it waits to be sent again.
    rtx_edge: SeqNum,
    /// Samples the delivery rate.
    delivery: Option<Box<Delivery>>,
}

impl RtxQueue {
    /// Empty.
    pub(crate) fn new(mss: Mss) -> Self {
        let zero = SeqNum::new(0);
        Self {
            units: VecDeque::new(),
            mss,
            packets_out: 0,
            sacked_out: 0,
            dupacks: 0,
            lost_out: 0,
            retrans_out: 0,
            rtx_pending: 0,
            truesize: 0,
            highest_sacked: zero,
            lost_edge: zero,
            rtx_edge: zero,
            delivery: None,
        }
    }

    /// Nothing outstanding.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Units outstanding.
    #[inline]
    pub(crate) fn units(&self) -> usize {
        self.units.len()
    }

    /// When the oldest unit was last sent.
    #[inline]
    pub(crate) fn head_sent_at(&self) -> Option<Instant> {
        self.units.front().map(|u| u.sent_at)
    }

    /// Segments outstanding.
    #[inline]
    pub(crate) fn packets_out(&self) -> u32 {
        self.packets_out
    }

    /// Segments the peer has SACKed (or duplicate ACKs stand for, without SACK).
    #[inline]
    pub(crate) fn sacked_out(&self) -> u32 {
        self.sacked_out + self.dupacks
    }

    /// Segments marked lost.
    #[inline]
    pub(crate) fn lost_out(&self) -> u32 {
        self.lost_out
    }

    /// Segments retransmitted and still out.
    #[inline]
    pub(crate) fn retrans_out(&self) -> u32 {
        self.retrans_out
    }

    /// RFC 6675 "pipe", in segments.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        (self.packets_out + self.retrans_out).saturating_sub(self.sacked_out() + self.lost_out)
    }

    /// Memory charged for all units.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        self.truesize as usize
    }

    /// Adds what was just sent for the first time. Units come in sequence order.
    #[inline(always)]
    pub(crate) fn push(&mut self, unit: TransmitUnit) {
        let TransmitUnit {
            seq,
            payload,
            syn,
            fin,
            sent_at,
            truesize,
            number,
        } = unit;
        if self.units.is_empty() {
            self.highest_sacked = seq;
            self.lost_edge = seq;
            self.rtx_edge = seq;
        }
        debug_assert!(self.units.back().is_none_or(|u| u.end() == seq));
        let segs = self.segments(payload.len() as u32);
        let idle = self.packets_out == 0;
        self.packets_out += segs;
        if self.delivery.is_some() {
            self.stamp_sent(sent_at, idle);
        }
        self.truesize += truesize;
        let mut marks = Marks::default();
        if syn {
            marks = marks.with(Marks::SYN);
        }
        if fin {
            marks = marks.with(Marks::FIN);
        }
        if self.units.capacity() == 0 {
            self.units.reserve_exact(1);
        }
        self.units.push_back(Unit {
            payload,
            sent_at,
            seq,
            segs,
            truesize,
            number,
            marks,
        });
    }

    /// The segment size changed: counts anew.
    pub(crate) fn set_mss(&mut self, mss: Mss) {
        if mss == self.mss {
            return;
        }
        self.mss = mss;
        self.recount();
    }

    /// Counts segments anew, by the present segment size.
    fn recount(&mut self) {
        self.packets_out = 0;
        self.sacked_out = 0;
        self.lost_out = 0;
        self.retrans_out = 0;
        self.rtx_pending = 0;
        for i in 0..self.units.len() {
            let text = self.units[i].payload.len() as u32;
            let (segs, marks) = (self.segments(text), self.units[i].marks);
            self.units[i].segs = segs;
            self.packets_out += segs;
            self.count(marks, segs);
        }
        self.dupacks = self.dupacks.min(self.packets_out);
    }

    /// Throws everything away.
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

    /// Segments that a unit with `text` bytes takes.
    #[inline]
    fn segments(&self, text: u32) -> u32 {
        if text <= self.mss.bytes() {
            1
        } else {
            self.mss.segments(text)
        }
    }

    /// Index of the first unit that ends after `seq`.
    fn index_after(&self, seq: SeqNum) -> usize {
        self.units.partition_point(|u| u.end().before_eq(seq))
    }

    /// Changes the marks of unit `i`, keeping the counts.
    fn remark(&mut self, i: usize, change: impl FnOnce(Marks) -> Marks) {
        let unit = &mut self.units[i];
        let (old, segs) = (unit.marks, unit.segs);
        let new = change(old);
        unit.marks = new;
        self.discount(old, segs);
        self.count(new, segs);
    }

    #[inline]
    fn count(&mut self, marks: Marks, segs: u32) {
        self.sacked_out += if marks.has(Marks::SACKED) { segs } else { 0 };
        self.lost_out += if marks.has(Marks::LOST) { segs } else { 0 };
        self.retrans_out += if marks.has(Marks::RETRANS) { segs } else { 0 };
        self.rtx_pending += if marks.awaits_retransmission() {
            segs
        } else {
            0
        };
    }

    /// Takes `segs` segments with these marks off the counts of marks.
    #[inline]
    fn discount(&mut self, marks: Marks, segs: u32) {
        self.sacked_out -= if marks.has(Marks::SACKED) { segs } else { 0 };
        self.lost_out -= if marks.has(Marks::LOST) { segs } else { 0 };
        self.retrans_out -= if marks.has(Marks::RETRANS) { segs } else { 0 };
        self.rtx_pending -= if marks.awaits_retransmission() {
            segs
        } else {
            0
        };
    }

    /// Cuts unit `i` so that it keeps `at` bytes of text (a multiple of the segment size, less
    /// than it has); the rest becomes unit `i + 1`.
    fn split(&mut self, i: usize, at: u32) {
        let mss = self.mss;
        let unit = &mut self.units[i];
        let head = unit.payload.split_to(at as usize);
        let rest = Unit {
            payload: core::mem::replace(&mut unit.payload, head),
            sent_at: unit.sent_at,
            seq: unit.seq + at,
            segs: 0,
            truesize: unit.truesize - unit.truesize / 2,
            number: unit.number,
            marks: unit.marks,
        };
        unit.truesize /= 2;
        unit.marks = unit.marks.without(Marks::FIN);
        let whole = unit.segs;
        unit.segs = mss.segments(at);
        let rest_segs = mss.segments(rest.payload.len() as u32).max(1);
        debug_assert_eq!(whole, unit.segs + rest_segs);
        if let Some(delivery) = &mut self.delivery {
            delivery.on_split(i, rest_segs);
        }
        self.units.insert(
            i + 1,
            Unit {
                segs: rest_segs,
                ..rest
            },
        );
    }

    /// Checks that the counts are those of the units.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check(&self) {
        let sum = |mark: fn(Marks) -> bool| -> u32 {
            self.units
                .iter()
                .filter(|u| mark(u.marks))
                .map(|u| u.segs)
                .sum()
        };
        assert_eq!(self.packets_out, sum(|_| true));
        assert_eq!(self.sacked_out, sum(|m| m.has(Marks::SACKED)));
        assert_eq!(self.lost_out, sum(|m| m.has(Marks::LOST)));
        assert_eq!(self.retrans_out, sum(|m| m.has(Marks::RETRANS)));
        assert_eq!(self.rtx_pending, sum(Marks::awaits_retransmission));
        assert_eq!(
            self.truesize,
            self.units.iter().map(|u| u.truesize).sum::<u32>()
        );
        assert!(self.dupacks <= self.packets_out);
        assert!(
            self.delivery
                .as_ref()
                .is_none_or(|d| d.is_for(self.units.len()))
        );
        let waiting = self.units.iter().find(|u| u.marks.awaits_retransmission());
        assert!(waiting.is_none_or(|u| u.end().after(self.rtx_edge)));
        for (unit, next) in self.units.iter().zip(self.units.iter().skip(1)) {
            assert_eq!(unit.end(), next.seq);
            let both = |mark| unit.marks.has(mark) && next.marks.has(mark);
            assert!(!both(Marks::SACKED), "SACKed neighbours are one unit");
        }
        for unit in &self.units {
            let text = unit.payload.len() as u32;
            let least = self.mss.segments(text).max(1);
            // Short segments inside a SACKed run still count each.
            let exact = unit.segs == least || unit.marks.has(Marks::SACKED);
            assert!(exact && unit.segs >= least);
            let dead = unit.marks.has(Marks::LOST) || unit.marks.has(Marks::RETRANS);
            assert!(!(unit.marks.has(Marks::SACKED) && dead));
        }
    }
}
