//! The receiving side: what arrived, in order and not, and how much more may come.

use alloc::boxed::Box;

use fullsend_buf::{Chain, Pool, Slice};
use fullsend_units::SeqNum;
use fullsend_wire::tcp::{SackBlock, SackBlocks};

mod ack_policy;
mod buffer;
mod reassembly;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use ack_policy::AckPolicy;
use buffer::Text;
use reassembly::Reassembly;
pub(crate) use window::{Ask, Place, RecvWindow, Squeeze};

/// Duplicate ACKs of one batch: what a stranger's segments can draw has a bound.
const MOST_REPEATS: u8 = 32;

/// What became of an arriving segment's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// In order: `rcv_nxt` moved on by this many bytes (FIN not counted).
    InOrder {
        /// Bytes that the reader can now read in addition.
        bytes: u32,
        /// A hole was closed or narrowed, or out-of-order data still waits: acknowledge at once
        /// (RFC 5681 4.2).
        had_gap: bool,
    },
    /// Behind a hole: stored; acknowledge at once, with SACK.
    OutOfOrder,
    /// Nothing new in it (a DSACK is noted): acknowledge at once.
    Duplicate,
    /// Memory bound reached: dropped unseen; acknowledge at once.
    Pruned,
}

/// Received text: the in-order part for the reader and the pieces behind holes.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    text: Text,
    /// There while something waits behind a hole, or is to be told.
    beyond: Option<Box<Beyond>>,
    rcv_nxt: SeqNum,
    fin_received: bool,
}

/// What only a connection with holes, duplicates or an early FIN needs.
#[derive(Debug, Default)]
struct Beyond {
    reassembly: Reassembly,
    /// RFC 2883: a range received twice, for the next ACK.
    dsack: Option<SackBlock>,
    /// Sequence number of the first FIN behind `rcv_nxt` that arrived out of order. Unauthenticated:
    /// a FIN or data that arrives in order overrules it.
    fin_at: Option<SeqNum>,
    /// The segment of the FIN at `fin_at` carried no data.
    fin_is_bare: bool,
    /// Duplicate ACKs to send beside the one that is due.
    repeats: u8,
}

impl Beyond {
    fn is_idle(&self) -> bool {
        self.reassembly.is_empty() && self.dsack.is_none() && self.fin_at.is_none()
    }

    /// Updates `fin_at` for a segment with the data `[seq, end)`, and with a FIN if `fin`. Returns
    /// whether that FIN was not known.
    ///
    /// Contradictions are resolved as on Linux, so that no segment injected into the window
    /// suppresses the real end: data over a FIN's place replaces the FIN, a FIN among data that
    /// waits already is ignored, and a FIN in order always counts. Data that begins at a FIN's
    /// place wins over a FIN without data, whichever arrives first.
    fn note_fin(&mut self, seq: SeqNum, end: SeqNum, fin: bool, in_order: bool) -> bool {
        let replaces_start = self.fin_is_bare;
        self.fin_at
            .take_if(|at| at.before(end) && (seq.before(*at) || (replaces_start && seq == *at)));
        let bare = seq == end;
        if !fin || (!in_order && self.reassembly.is_over_fin(end, bare)) {
            return false;
        }
        match self.fin_at {
            // A later one comes again: it is not acknowledged.
            Some(known) if known.before(end) => false,
            Some(known) if known == end => {
                self.fin_is_bare &= bare;
                false
            }
            _ => {
                (self.fin_at, self.fin_is_bare) = (Some(end), bare);
                true
            }
        }
    }
}

impl RecvQueue {
    /// Nothing received; the first byte will be `rcv_nxt`.
    pub(crate) fn new(rcv_nxt: SeqNum) -> Self {
        Self {
            text: Text::default(),
            beyond: None,
            rcv_nxt,
            fin_received: false,
        }
    }

    /// Takes in text that begins at `seq`, already trimmed to the window on its right. Bytes
    /// before `rcv_nxt` and bytes already held are dropped (first data wins). `fin`: the
    /// sender's stream ends behind this text.
    #[inline]
    pub(crate) fn insert(&mut self, pool: &Pool, seq: SeqNum, text: Chain, fin: bool) -> Arrival {
        if seq == self.rcv_nxt && self.beyond.is_none() && !self.fin_received {
            let bytes = text.len() as u32;
            self.rcv_nxt += bytes;
            if fin {
                self.fin_received = true;
                self.rcv_nxt += 1;
            }
            self.text.push(pool, text, false);
            return Arrival::InOrder {
                bytes,
                had_gap: false,
            };
        }
        self.insert_beside(pool, seq, text, fin)
    }

    /// [`insert`](Self::insert) where there are holes, duplicates or an end.
    fn insert_beside(
        &mut self,
        pool: &Pool,
        mut seq: SeqNum,
        mut text: Chain,
        fin: bool,
    ) -> Arrival {
        let sent = SackBlock {
            left: seq,
            right: seq + text.len() as u32 + u32::from(fin),
        };
        if self.fin_received || sent.right.before_eq(self.rcv_nxt) {
            self.note_duplicate(sent);
            return Arrival::Duplicate;
        }
        let old = self.rcv_nxt;
        if seq.before(old) {
            let known = old.since(seq).min(text.len() as u32);
            self.note_duplicate(SackBlock {
                left: seq,
                right: seq + known,
            });
            text.advance(known as usize);
            seq += known;
        }
        let beyond = self.beyond.get_or_insert_default();
        let had_gap = !beyond.reassembly.is_empty();
        let in_order = seq == old;
        let fin_is_new = beyond.note_fin(seq, seq + text.len() as u32, fin, in_order);
        let stored = beyond.reassembly.insert(pool, seq, text, in_order);
        if stored.duplicate.is_some() {
            beyond.dsack = beyond.dsack.or(stored.duplicate);
        }
        self.advance_over_ready();
        if self.rcv_nxt != old {
            let bytes = self.rcv_nxt.since(old) - u32::from(self.fin_received);
            return Arrival::InOrder { bytes, had_gap };
        }
        match stored {
            _ if stored.new_bytes > 0 || fin_is_new => Arrival::OutOfOrder,
            _ if stored.pruned => Arrival::Pruned,
            _ => Arrival::Duplicate,
        }
    }

    /// Moves data that has become in order to the reader, up to the peer's FIN.
    fn advance_over_ready(&mut self) {
        let Some(beyond) = &mut self.beyond else {
            return;
        };
        while beyond.fin_at != Some(self.rcv_nxt)
            && let Some(mut run) = beyond.reassembly.take_ready(self.rcv_nxt)
        {
            if let Some(end) = beyond.fin_at {
                run.truncate(end.since(self.rcv_nxt) as usize);
            }
            self.rcv_nxt += run.len() as u32;
            self.text.append(run);
        }
        let ends = beyond.fin_at == Some(self.rcv_nxt);
        if ends {
            self.fin_received = true;
            self.rcv_nxt += 1;
        }
        // The stream is complete: Linux reports no duplicates any more, and drops data behind the
        // FIN.
        if ends || beyond.is_idle() {
            self.beyond = None;
        }
    }

    /// Next sequence number expected; a received FIN is counted once all before it is here.
    #[inline]
    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    /// The peer's FIN has been reached: no more data will come.
    #[inline]
    pub(crate) fn fin_received(&self) -> bool {
        self.fin_received
    }

    /// The peer's FIN came, but nothing of what lies before it.
    pub(crate) fn has_bare_fin(&self) -> bool {
        let beyond = self.beyond.as_ref();
        beyond.is_some_and(|b| b.fin_at.is_some() && b.reassembly.is_empty())
    }

    /// Bytes that can be read.
    #[inline]
    pub(crate) fn readable(&self) -> usize {
        self.text.len()
    }

    /// There are no holes, and nothing came twice that the peer was not told of.
    #[inline]
    pub(crate) fn is_in_order(&self) -> bool {
        self.beyond.is_none()
    }

    /// The end of the furthest text behind holes.
    pub(crate) fn last_beyond(&self) -> Option<SeqNum> {
        self.beyond.as_ref()?.reassembly.end()
    }

    /// Returns the sequence number behind all that waits out of order, a FIN included.
    pub(crate) fn beyond_end(&self) -> Option<SeqNum> {
        let beyond = self.beyond.as_ref()?;
        let fin_end = beyond.fin_at.map(|at| at + 1);
        match (beyond.reassembly.end(), fin_end) {
            (Some(data), Some(fin)) => Some(data.latest(fin)),
            (data, fin) => data.or(fin),
        }
    }

    /// Bytes waiting behind holes.
    #[inline]
    pub(crate) fn out_of_order(&self) -> usize {
        self.beyond.as_ref().map_or(0, |b| b.reassembly.bytes())
    }

    /// Bytes waiting for the reader, or behind holes.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.readable() + self.out_of_order()
    }

    /// Bytes of memory held for all of this.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        let beyond = self.beyond.as_ref();
        self.text.truesize() + beyond.map_or(0, |b| b.reassembly.truesize())
    }

    /// Throws away text behind holes, the furthest first, until this much memory is free or none
    /// is left (RFC 2018 8 lets us); false if there was none.
    pub(crate) fn prune(&mut self, bytes: usize) -> bool {
        let Some(beyond) = &mut self.beyond else {
            return false;
        };
        let pruned = beyond.reassembly.prune(bytes);
        if beyond.is_idle() {
            self.beyond = None;
        }
        pruned
    }

    /// Copies bytes out and forgets them.
    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        self.text.read(out)
    }

    /// Takes up to `max` bytes out without copying.
    pub(crate) fn read_chain(&mut self, max: usize) -> Chain {
        self.text.read_chain(max)
    }

    /// Takes the first piece of memory out, or its first `max` bytes.
    pub(crate) fn read_slice(&mut self, max: usize) -> Slice {
        self.text.read_slice(max)
    }

    /// Copies bytes, leaving them.
    pub(crate) fn peek(&self, out: &mut [u8]) -> usize {
        self.text.peek(out)
    }

    /// Throws away all that is readable and waiting (the reader is gone).
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        if let Some(beyond) = &mut self.beyond {
            beyond.reassembly = Reassembly::default();
            if beyond.is_idle() {
                self.beyond = None;
            }
        }
    }

    /// SACK blocks for the next ACK, most recently changed first (RFC 2018 4), a noted DSACK
    /// (RFC 2883) before them and forgotten by this call. `max`: 3 with timestamps, else 4.
    #[inline]
    pub(crate) fn take_sack_blocks(&mut self, max: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if let Some(beyond) = &mut self.beyond {
            if let Some(duplicate) = beyond.dsack.take() {
                blocks.push(duplicate);
            }
            beyond.reassembly.sack_blocks(&mut blocks, max);
            if beyond.is_idle() {
                self.beyond = None;
            }
        }
        blocks
    }

    /// Text waits behind a hole that came in one batch with other such text: a peer without SACK
    /// counts duplicate ACKs, so each has its own (RFC 5681 4.2).
    pub(crate) fn repeat_ack(&mut self) {
        if let Some(beyond) = &mut self.beyond {
            beyond.repeats = beyond.repeats.saturating_add(1).min(MOST_REPEATS);
        }
    }

    /// An ACK leaves: true if the same is to be sent once more.
    pub(crate) fn take_repeat(&mut self) -> bool {
        let repeats = self.beyond.as_mut().map(|beyond| &mut beyond.repeats);
        let again = repeats.filter(|repeats| **repeats > 0);
        again.map(|repeats| *repeats -= 1).is_some()
    }

    /// Notes a range received twice that never reached [`insert`](Self::insert) (wholly left of
    /// the window), for the next ACK's DSACK.
    pub(crate) fn note_duplicate(&mut self, range: SackBlock) {
        if range.left != range.right {
            self.beyond.get_or_insert_default().dsack = Some(range);
        }
    }
}
