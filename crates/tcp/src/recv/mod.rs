//! The receiving side: received data, in order and out of order, the receive window, and when to send
//! ACKs.

use alloc::boxed::Box;

use fullsend_offload::{Chain, Pool, Slice};
use fullsend_wire::tcp::{SackBlock, SackBlocks};
use fullsend_wire::{SeqNum, cold_path};

mod ack_policy;
mod buffer;
mod ofo_queue;
mod receiver;
#[cfg(test)]
mod tests;
mod window;

use ack_policy::AckPolicy;
use buffer::DataRun;
use ofo_queue::OfoQueue;
pub(crate) use receiver::{DataArrival, HostWindowLimits, Receiver};
use window::RecvWindow;
pub(crate) use window::SegmentPosition;

/// Most duplicate ACKs for one batch of segments: a bound on what forged segments can draw.
const MAX_EXTRA_DUPACKS: u8 = 32;

/// The result of inserting a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InsertOutcome {
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
    data: DataRun,
    /// Present while out-of-order data waits or a duplicate is to be reported.
    ofo: Option<Box<OfoState>>,
    rcv_nxt: SeqNum,
    fin_received: bool,
}

/// The state of a connection with out-of-order data, duplicates or an early FIN.
#[derive(Debug, Default)]
struct OfoState {
    queue: OfoQueue,
    /// A range received twice, for the DSACK of the next ACK (RFC 2883).
    dsack: Option<SackBlock>,
    /// Sequence number of the first FIN behind `rcv_nxt` that arrived out of order. Unauthenticated:
    /// a FIN or data that arrives in order overrules it.
    fin_at: Option<SeqNum>,
    /// The segment of the FIN at `fin_at` carried no data.
    fin_without_data: bool,
    /// Duplicate ACKs to send in addition to the one that is due.
    extra_dupacks: u8,
}

impl OfoState {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.dsack.is_none() && self.fin_at.is_none()
    }

    /// Updates `fin_at` for a segment with the data `[seq, end)`, and with a FIN if `fin`. Returns
    /// whether that FIN was not known.
    ///
    /// Contradictions are resolved as on Linux, so that no segment injected into the window
    /// suppresses the real end: data over a FIN's place replaces the FIN, a FIN within out-of-order
    /// data is ignored, and a FIN in order always counts. Data that begins at a FIN's place wins over
    /// a FIN without data, whichever arrives first.
    fn record_fin(&mut self, seq: SeqNum, end: SeqNum, fin: bool, in_order: bool) -> bool {
        let replaces_start = self.fin_without_data;
        self.fin_at
            .take_if(|at| at.before(end) && (seq.before(*at) || (replaces_start && seq == *at)));
        let bare = seq == end;
        if !fin || (!in_order && self.queue.has_data_at_fin(end, bare)) {
            return false;
        }
        match self.fin_at {
            // The peer retransmits a later FIN, which is not acknowledged.
            Some(known) if known.before(end) => false,
            Some(known) if known == end => {
                self.fin_without_data &= bare;
                false
            }
            _ => {
                (self.fin_at, self.fin_without_data) = (Some(end), bare);
                true
            }
        }
    }
}

impl RecvQueue {
    /// Returns an empty queue that expects `rcv_nxt` as its first byte.
    pub(crate) fn new(rcv_nxt: SeqNum) -> Self {
        Self {
            data: DataRun::default(),
            ofo: None,
            rcv_nxt,
            fin_received: false,
        }
    }

    /// Inserts data that begins at `seq` and does not exceed the window. Bytes before `rcv_nxt` and
    /// bytes already received are dropped (the first data wins). `fin`: a FIN follows the data.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        pool: &Pool,
        seq: SeqNum,
        data: Chain,
        fin: bool,
    ) -> InsertOutcome {
        if seq == self.rcv_nxt && self.ofo.is_none() && !self.fin_received {
            let bytes = data.len() as u32;
            self.rcv_nxt += bytes;
            if fin {
                cold_path();
                self.fin_received = true;
                self.rcv_nxt += 1;
            }
            self.data.push(pool, data, false);
            return InsertOutcome::InOrder {
                bytes,
                had_gap: false,
            };
        }
        cold_path();
        self.insert_slow(pool, seq, data, fin)
    }

    /// The slow path of [`insert`](Self::insert), with holes, duplicates or a FIN.
    fn insert_slow(
        &mut self,
        pool: &Pool,
        mut seq: SeqNum,
        mut data: Chain,
        fin: bool,
    ) -> InsertOutcome {
        let sent = SackBlock {
            left: seq,
            right: seq + data.len() as u32 + u32::from(fin),
        };
        if self.fin_received || sent.right.before_eq(self.rcv_nxt) {
            self.record_duplicate(sent);
            return InsertOutcome::Duplicate;
        }
        let old = self.rcv_nxt;
        if seq.before(old) {
            let known = old.since(seq).min(data.len() as u32);
            self.record_duplicate(SackBlock {
                left: seq,
                right: seq + known,
            });
            data.advance(known as usize);
            seq += known;
        }
        let ofo = self.ofo.get_or_insert_default();
        let had_gap = !ofo.queue.is_empty();
        let in_order = seq == old;
        let fin_is_new = ofo.record_fin(seq, seq + data.len() as u32, fin, in_order);
        let stored = ofo.queue.insert(pool, seq, data, in_order);
        if stored.duplicate.is_some() {
            ofo.dsack = ofo.dsack.or(stored.duplicate);
        }
        self.advance_rcv_nxt();
        if self.rcv_nxt != old {
            let bytes = self.rcv_nxt.since(old) - u32::from(self.fin_received);
            return InsertOutcome::InOrder { bytes, had_gap };
        }
        match stored {
            _ if stored.new_bytes > 0 || fin_is_new => InsertOutcome::OutOfOrder,
            _ if stored.pruned => InsertOutcome::Pruned,
            _ => InsertOutcome::Duplicate,
        }
    }

    /// Moves data that has become in order to the reader, up to the peer's FIN.
    fn advance_rcv_nxt(&mut self) {
        let Some(ofo) = &mut self.ofo else {
            return;
        };
        while ofo.fin_at != Some(self.rcv_nxt)
            && let Some(mut run) = ofo.queue.take_in_order(self.rcv_nxt)
        {
            if let Some(end) = ofo.fin_at {
                run.truncate(end.since(self.rcv_nxt) as usize);
            }
            self.rcv_nxt += run.len() as u32;
            self.data.append(run);
        }
        let is_complete = ofo.fin_at == Some(self.rcv_nxt);
        if is_complete {
            self.fin_received = true;
            self.rcv_nxt += 1;
        }
        // The stream is complete: as on Linux, duplicates are no longer reported, and data after the
        // FIN is dropped.
        if is_complete || ofo.is_empty() {
            self.ofo = None;
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
    pub(crate) fn has_only_ofo_fin(&self) -> bool {
        let ofo = self.ofo.as_ref();
        ofo.is_some_and(|b| b.fin_at.is_some() && b.queue.is_empty())
    }

    /// Returns the number of readable bytes.
    #[inline]
    pub(crate) fn readable(&self) -> usize {
        self.data.len()
    }

    /// Returns whether there are neither holes nor duplicates to report.
    #[inline]
    pub(crate) fn is_in_order(&self) -> bool {
        self.ofo.is_none()
    }

    /// Returns the end of the highest out-of-order data.
    pub(crate) fn ofo_data_end(&self) -> Option<SeqNum> {
        self.ofo.as_ref()?.queue.end()
    }

    /// Returns the sequence number after all that arrived out of order, a FIN included.
    pub(crate) fn ofo_end(&self) -> Option<SeqNum> {
        let ofo = self.ofo.as_ref()?;
        let fin_end = ofo.fin_at.map(|at| at + 1);
        match (ofo.queue.end(), fin_end) {
            (Some(data), Some(fin)) => Some(data.latest(fin)),
            (data, fin) => data.or(fin),
        }
    }

    /// Returns the number of out-of-order bytes.
    #[inline]
    pub(crate) fn ofo_bytes(&self) -> usize {
        let Some(ofo) = &self.ofo else {
            return 0;
        };
        cold_path();
        ofo.queue.bytes()
    }

    /// Returns the number of bytes held, readable or out of order.
    #[inline]
    pub(crate) fn buffered(&self) -> usize {
        self.readable() + self.ofo_bytes()
    }

    /// Returns the bytes of memory held for all received data.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        let mut bytes = self.data.truesize();
        if let Some(ofo) = &self.ofo {
            cold_path();
            bytes += ofo.queue.truesize();
        }
        bytes
    }

    /// Discards out-of-order data, the highest first, until `bytes` of memory are free or none is left
    /// (RFC 2018 8 permits it). Returns whether there was any.
    pub(crate) fn prune(&mut self, bytes: usize) -> bool {
        let Some(ofo) = &mut self.ofo else {
            return false;
        };
        let pruned = ofo.queue.prune(bytes);
        if ofo.is_empty() {
            self.ofo = None;
        }
        pruned
    }

    /// Copies readable bytes to `out` and removes them.
    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        self.data.read(out)
    }

    /// Removes up to `max` readable bytes without copying.
    pub(crate) fn read_chain(&mut self, max: usize) -> Chain {
        self.data.read_chain(max)
    }

    /// Removes the first slice, or its first `max` bytes.
    pub(crate) fn read_slice(&mut self, pool: &Pool, max: usize) -> Slice {
        self.data.read_slice(pool, max)
    }

    /// Copies readable bytes to `out` without removing them.
    pub(crate) fn peek(&self, out: &mut [u8]) -> usize {
        self.data.peek(out)
    }

    /// Discards all data, readable or out of order, since the reader is gone.
    pub(crate) fn clear(&mut self) {
        self.data.clear();
        if let Some(ofo) = &mut self.ofo {
            ofo.queue = OfoQueue::default();
            if ofo.is_empty() {
                self.ofo = None;
            }
        }
    }

    /// Returns up to `max` SACK blocks for the next ACK, most recently changed first (RFC 2018 4). A
    /// recorded DSACK (RFC 2883) comes first and is removed.
    #[inline]
    pub(crate) fn take_sack_blocks(&mut self, max: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if let Some(ofo) = &mut self.ofo {
            if let Some(duplicate) = ofo.dsack.take() {
                blocks.push(duplicate);
            }
            ofo.queue.sack_blocks(&mut blocks, max);
            if ofo.is_empty() {
                self.ofo = None;
            }
        }
        blocks
    }

    /// Requests another duplicate ACK for out-of-order data of one batch: a peer without SACK counts
    /// duplicate ACKs, so each segment needs its own (RFC 5681 4.2).
    pub(crate) fn add_dupack(&mut self) {
        if let Some(ofo) = &mut self.ofo {
            ofo.extra_dupacks = ofo.extra_dupacks.saturating_add(1).min(MAX_EXTRA_DUPACKS);
        }
    }

    /// Counts an ACK that leaves. Returns whether it is to be repeated.
    pub(crate) fn take_dupack(&mut self) -> bool {
        let extra_dupacks = self.ofo.as_mut().map(|ofo| &mut ofo.extra_dupacks);
        let again = extra_dupacks.filter(|extra_dupacks| **extra_dupacks > 0);
        again.map(|extra_dupacks| *extra_dupacks -= 1).is_some()
    }

    /// Records a duplicate left of the window, which [`insert`](Self::insert) does not get, for the
    /// next ACK's DSACK.
    pub(crate) fn record_duplicate(&mut self, range: SackBlock) {
        if range.left != range.right {
            self.ofo.get_or_insert_default().dsack = Some(range);
        }
    }
}
