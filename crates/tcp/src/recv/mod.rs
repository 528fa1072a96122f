//! The receiving side: received data, in order and out of order, the receive window, and when to send
//! ACKs.

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

/// Most duplicate ACKs for one batch of segments: a bound on what forged segments can draw.
const MOST_REPEATS: u8 = 32;

/// The result of inserting a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// In order: `rcv_nxt` advanced.
    InOrder {
        /// Bytes that became readable (FIN not counted).
        bytes: u32,
        /// The data closed or narrowed a hole, or out-of-order data remains: acknowledge at once
        /// (RFC 5681 4.2).
        had_gap: bool,
    },
    /// Out of order, and stored: acknowledge at once, with SACK.
    OutOfOrder,
    /// No new data (recorded for a DSACK): acknowledge at once.
    Duplicate,
    /// Dropped at the memory limit: acknowledge at once.
    Pruned,
}

/// Received data: the in-order part for the reader, and the out-of-order part.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    text: Text,
    /// Present while out-of-order data waits or a duplicate is to be reported.
    beyond: Option<Box<Beyond>>,
    rcv_nxt: SeqNum,
    fin_received: bool,
}

/// The state of a connection with out-of-order data, duplicates or an early FIN.
#[derive(Debug, Default)]
struct Beyond {
    reassembly: Reassembly,
    /// A range received twice, for the DSACK of the next ACK (RFC 2883).
    dsack: Option<SackBlock>,
    /// Sequence number of the first FIN behind `rcv_nxt` that arrived out of order. Unauthenticated:
    /// a FIN or data that arrives in order overrules it.
    fin_at: Option<SeqNum>,
    /// The segment of the FIN at `fin_at` carried no data.
    fin_is_bare: bool,
    /// Duplicate ACKs to send in addition to the one that is due.
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
    /// suppresses the real end: data over a FIN's place replaces the FIN, a FIN within out-of-order
    /// data is ignored, and a FIN in order always counts. Data that begins at a FIN's place wins over
    /// a FIN without data, whichever arrives first.
    fn note_fin(&mut self, seq: SeqNum, end: SeqNum, fin: bool, in_order: bool) -> bool {
        let replaces_start = self.fin_is_bare;
        self.fin_at
            .take_if(|at| at.before(end) && (seq.before(*at) || (replaces_start && seq == *at)));
        let bare = seq == end;
        if !fin || (!in_order && self.reassembly.is_over_fin(end, bare)) {
            return false;
        }
        match self.fin_at {
            // The peer retransmits a later FIN, which is not acknowledged.
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
    /// Returns an empty queue that expects `rcv_nxt` as its first byte.
    pub(crate) fn new(rcv_nxt: SeqNum) -> Self {
        Self {
            text: Text::default(),
            beyond: None,
            rcv_nxt,
            fin_received: false,
        }
    }

    /// Inserts data that begins at `seq` and does not exceed the window. Bytes before `rcv_nxt` and
    /// bytes already received are dropped (the first data wins). `fin`: a FIN follows the data.
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

    /// The slow path of [`insert`](Self::insert), with holes, duplicates or a FIN.
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
        // The stream is complete: as on Linux, duplicates are no longer reported, and data after the
        // FIN is dropped.
        if ends || beyond.is_idle() {
            self.beyond = None;
        }
    }

    /// Returns the next sequence number expected. A FIN counts once all data before it has arrived.
    #[inline]
    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    /// Returns whether the peer's FIN has been received in order, so that no more data will come.
    #[inline]
    pub(crate) fn fin_received(&self) -> bool {
        self.fin_received
    }

    /// Returns whether a FIN arrived out of order, and no out-of-order data with it.
    pub(crate) fn has_bare_fin(&self) -> bool {
        let beyond = self.beyond.as_ref();
        beyond.is_some_and(|b| b.fin_at.is_some() && b.reassembly.is_empty())
    }

    /// Returns the number of readable bytes.
    #[inline]
    pub(crate) fn readable(&self) -> usize {
        self.text.len()
    }

    /// Returns whether there are neither holes nor duplicates to report.
    #[inline]
    pub(crate) fn is_in_order(&self) -> bool {
        self.beyond.is_none()
    }

    /// Returns the end of the highest out-of-order data.
    pub(crate) fn last_beyond(&self) -> Option<SeqNum> {
        self.beyond.as_ref()?.reassembly.end()
    }

    /// Returns the sequence number after all that arrived out of order, a FIN included.
    pub(crate) fn beyond_end(&self) -> Option<SeqNum> {
        let beyond = self.beyond.as_ref()?;
        let fin_end = beyond.fin_at.map(|at| at + 1);
        match (beyond.reassembly.end(), fin_end) {
            (Some(data), Some(fin)) => Some(data.latest(fin)),
            (data, fin) => data.or(fin),
        }
    }

    /// Returns the number of out-of-order bytes.
    #[inline]
    pub(crate) fn out_of_order(&self) -> usize {
        self.beyond.as_ref().map_or(0, |b| b.reassembly.bytes())
    }

    /// Returns the number of bytes held, readable or out of order.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.readable() + self.out_of_order()
    }

    /// Returns the bytes of memory held for all received data.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        let beyond = self.beyond.as_ref();
        self.text.truesize() + beyond.map_or(0, |b| b.reassembly.truesize())
    }

    /// Discards out-of-order data, the highest first, until `bytes` of memory are free or none is left
    /// (RFC 2018 8 permits it). Returns whether there was any.
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

    /// Copies readable bytes to `out` and removes them.
    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        self.text.read(out)
    }

    /// Removes up to `max` readable bytes without copying.
    pub(crate) fn read_chain(&mut self, max: usize) -> Chain {
        self.text.read_chain(max)
    }

    /// Removes the first slice, or its first `max` bytes, without copying.
    pub(crate) fn read_slice(&mut self, max: usize) -> Slice {
        self.text.read_slice(max)
    }

    /// Copies readable bytes to `out` without removing them.
    pub(crate) fn peek(&self, out: &mut [u8]) -> usize {
        self.text.peek(out)
    }

    /// Discards all data, readable or out of order, since the reader is gone.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        if let Some(beyond) = &mut self.beyond {
            beyond.reassembly = Reassembly::default();
            if beyond.is_idle() {
                self.beyond = None;
            }
        }
    }

    /// Returns up to `max` SACK blocks for the next ACK, most recently changed first (RFC 2018 4). A
    /// recorded DSACK (RFC 2883) comes first and is removed.
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

    /// Requests another duplicate ACK for out-of-order data of one batch: a peer without SACK counts
    /// duplicate ACKs, so each segment needs its own (RFC 5681 4.2).
    pub(crate) fn repeat_ack(&mut self) {
        if let Some(beyond) = &mut self.beyond {
            beyond.repeats = beyond.repeats.saturating_add(1).min(MOST_REPEATS);
        }
    }

    /// Counts an ACK that leaves. Returns whether it is to be repeated.
    pub(crate) fn take_repeat(&mut self) -> bool {
        let repeats = self.beyond.as_mut().map(|beyond| &mut beyond.repeats);
        let again = repeats.filter(|repeats| **repeats > 0);
        again.map(|repeats| *repeats -= 1).is_some()
    }

    /// Records a duplicate left of the window, which [`insert`](Self::insert) does not get, for the
    /// next ACK's DSACK.
    pub(crate) fn note_duplicate(&mut self, range: SackBlock) {
        if range.left != range.right {
            self.beyond.get_or_insert_default().dsack = Some(range);
        }
    }
}
