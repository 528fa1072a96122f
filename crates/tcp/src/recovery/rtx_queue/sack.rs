//! Selective acknowledgement (RFC 2018, RFC 2883).

use fullsend_units::{Instant, Nanos, SeqNum};
use fullsend_wire::tcp::SackBlock;

use super::{Marks, RtxQueue};

/// With this many units no SACK block cuts one any more (it marks the whole ones it covers):
/// bounds the memory and time a hostile peer can cost.
pub(super) const MAX_UNITS_FOR_SPLIT: usize = 1024;

/// RFC 7323 2.3: no window is larger, so no honest duplicate report is, nor reaches further back.
const MAX_WINDOW: u32 = 1 << 30;

/// What SACK blocks did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SackOutcome {
    /// Segments newly known to have arrived.
    pub(crate) delivered_segs: u32,
    /// Round trip of the newest of these, `None` where ambiguous.
    pub(crate) rtt: Option<Nanos>,
    /// A never retransmitted segment below the highest SACKed one arrived: the path reorders.
    /// How many segments late, 0 if none.
    pub(crate) reordering_segs: u32,
    /// The first block was a duplicate report (RFC 2883): data that we sent twice without need.
    pub(crate) dsack: Option<SackBlock>,
}

impl RtxQueue {
    /// Takes in the SACK blocks of an ACK whose cumulative part has already gone through
    /// [`ack`](Self::ack). Blocks outside what is outstanding are ignored.
    pub(crate) fn sack(
        &mut self,
        now: Instant,
        snd_una: SeqNum,
        blocks: &[SackBlock],
    ) -> SackOutcome {
        let mut out = SackOutcome {
            dsack: dsack_of(snd_una, blocks),
            ..SackOutcome::default()
        };
        let rest = usize::from(out.dsack.is_some());
        let highest_before = (self.sacked_out > 0).then_some(self.highest_sacked);
        let mut newest = None;
        for block in &blocks[rest..] {
            if self.is_sensible(snd_una, *block) {
                self.sack_block(*block, highest_before, &mut out, &mut newest);
            }
        }
        out.rtt = newest.map(|sent_at| now.since(sent_at));
        out
    }

    fn is_sensible(&self, snd_una: SeqNum, block: SackBlock) -> bool {
        let Some(last) = self.units.back() else {
            return false;
        };
        block.left.after(snd_una)
            && block.left.before(block.right)
            && block.right.before_eq(last.end())
    }

    fn sack_block(
        &mut self,
        block: SackBlock,
        highest_before: Option<SeqNum>,
        out: &mut SackOutcome,
        newest: &mut Option<Instant>,
    ) {
        let first = self.first_covered(block.left);
        let mut i = first;
        while let Some(unit) = self.units.get(i) {
            if unit.end().after(block.right) && !self.cut_to(i, block.right) {
                break;
            }
            let unit = &self.units[i];
            if !unit.marks.has(Marks::SACKED) {
                out.delivered_segs += unit.segs;
                if !unit.marks.has(Marks::EVER_RETRANS) {
                    *newest = Some(newest.map_or(unit.sent_at, |n| n.max(unit.sent_at)));
                    let late = highest_before
                        .filter(|high| unit.end().before_eq(*high))
                        .map_or(0, |high| self.mss.segments(high.since(unit.seq)));
                    out.reordering_segs = out.reordering_segs.max(late);
                }
                let (end, sent_at) = (unit.end(), unit.sent_at);
                if let Some(delivery) = &mut self.delivery {
                    delivery.on_arrived(i, sent_at, end);
                }
                if self.sacked_out == 0 || end.after(self.highest_sacked) {
                    self.highest_sacked = end;
                }
                self.remark(i, |m| {
                    m.without(Marks::LOST.with(Marks::RETRANS))
                        .with(Marks::SACKED)
                });
            }
            i += 1;
        }
        self.join_sacked(first, i);
    }

    /// Index of the first unit that a block from `left` covers, cut off there if need be.
    fn first_covered(&mut self, left: SeqNum) -> usize {
        let i = self.index_after(left);
        let Some(unit) = self.units.get(i) else {
            return i;
        };
        if !left.after(unit.seq) || unit.marks.has(Marks::SACKED) {
            return i;
        }
        // A segment of which only a part is SACKed is not.
        let at = left.since(unit.seq).next_multiple_of(self.mss.bytes());
        if at < unit.payload.len() as u32 && self.units.len() < MAX_UNITS_FOR_SPLIT {
            self.split(i, at);
        }
        i + 1
    }

    /// Cuts unit `i`, which reaches beyond `right`, so that it does not; false if nothing of it
    /// is left then, or nothing is new in it.
    fn cut_to(&mut self, i: usize, right: SeqNum) -> bool {
        let unit = &self.units[i];
        if unit.marks.has(Marks::SACKED) || !right.after(unit.seq) {
            return false;
        }
        let mss = self.mss.bytes();
        let at = right.since(unit.seq) / mss * mss;
        if at == 0 || at >= unit.payload.len() as u32 || self.units.len() >= MAX_UNITS_FOR_SPLIT {
            return false;
        }
        self.split(i, at);
        true
    }

    /// Makes one unit of the SACKed units `from..to` and SACKed neighbours.
    fn join_sacked(&mut self, from: usize, to: usize) {
        if from >= to {
            return;
        }
        let sacked =
            |q: &Self, i: usize| q.units.get(i).is_some_and(|u| u.marks.has(Marks::SACKED));
        let first = if from > 0 && sacked(self, from - 1) {
            from - 1
        } else {
            from
        };
        let end = if sacked(self, to) { to + 1 } else { to };
        if end - first < 2 {
            return;
        }
        let mut removed = self.units.drain(first + 1..end);
        // The drain holds the queue; gather before touching the run's first unit.
        let Some(mut joined) = removed.next() else {
            return;
        };
        for next in removed {
            joined.payload.append(next.payload);
            joined.sent_at = joined.sent_at.max(next.sent_at);
            joined.segs += next.segs;
            joined.truesize += next.truesize;
            joined.marks = joined.marks.with(next.marks);
        }
        let run = &mut self.units[first];
        run.payload.append(joined.payload);
        run.sent_at = run.sent_at.max(joined.sent_at);
        run.segs += joined.segs;
        run.truesize += joined.truesize;
        run.marks = run.marks.with(joined.marks);
        if let Some(delivery) = &mut self.delivery {
            delivery.on_joined(first + 1, end);
        }
    }
}

/// RFC 2883 4: the first block reports a duplicate if it lies left of the cumulative ACK or
/// within the second block.
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
