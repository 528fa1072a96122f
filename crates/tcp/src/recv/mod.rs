//! The receiving side: what arrived, in order and not, and how much more may come.

mod buffer;
mod reassembly;
mod window;

use fullsend_buf::{Chain, Pool};
use fullsend_units::SeqNum;
use fullsend_wire::tcp::{SackBlock, SackBlocks};

pub(crate) use window::RecvWindow;

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
pub(crate) struct RecvQueue {}

#[allow(
    unused_variables,
    clippy::needless_pass_by_value,
    reason = "bodies land next"
)]
impl RecvQueue {
    /// Nothing received; the first byte will be `rcv_nxt`.
    pub(crate) fn new(rcv_nxt: SeqNum) -> Self {
        todo!()
    }

    /// Takes in text that begins at `seq`, already trimmed to the window on its right. Bytes
    /// before `rcv_nxt` and bytes already held are dropped (first data wins). `fin`: the
    /// sender's stream ends behind this text.
    pub(crate) fn insert(&mut self, pool: &Pool, seq: SeqNum, text: Chain, fin: bool) -> Arrival {
        todo!()
    }

    /// Next sequence number expected; a received FIN is counted once all before it is here.
    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        todo!()
    }

    /// The peer's FIN has been reached: no more data will come.
    pub(crate) fn fin_received(&self) -> bool {
        todo!()
    }

    /// Bytes that can be read.
    pub(crate) fn readable(&self) -> usize {
        todo!()
    }

    /// Bytes waiting behind holes.
    pub(crate) fn out_of_order(&self) -> usize {
        todo!()
    }

    /// Bytes of memory held for all of this.
    pub(crate) fn truesize(&self) -> usize {
        todo!()
    }

    /// Copies bytes out and forgets them.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        todo!()
    }

    /// Takes up to `max` bytes out without copying.
    pub(crate) fn read_chain(&mut self, max: usize) -> Chain {
        todo!()
    }

    /// Copies bytes, leaving them.
    pub(crate) fn peek(&self, out: &mut [u8]) -> usize {
        todo!()
    }

    /// Throws away all that is readable and waiting (the reader is gone).
    pub(crate) fn clear(&mut self) {
        todo!()
    }

    /// SACK blocks for the next ACK, most recently changed first (RFC 2018 4), a noted DSACK
    /// (RFC 2883) before them and forgotten by this call. `max`: 3 with timestamps, else 4.
    pub(crate) fn take_sack_blocks(&mut self, max: usize) -> SackBlocks {
        todo!()
    }

    /// Notes a range received twice that never reached [`insert`](Self::insert) (wholly left of
    /// the window), for the next ACK's DSACK.
    pub(crate) fn note_duplicate(&mut self, range: SackBlock) {
        todo!()
    }
}
