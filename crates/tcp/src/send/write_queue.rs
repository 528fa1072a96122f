//! Text written and not yet sent, gathered into transmit units.

use fullsend_buf::{Chain, Pool, Slice};

/// Text on its way from the queue into a transmit unit.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The bytes.
    pub(crate) payload: Chain,
    /// Bytes of memory charged for them.
    pub(crate) truesize: u32,
}

/// Unsent text. A transmit unit is filled up to `size_goal` before the next begins; taking may
/// join units or cut them (spec: "grow" and split), so beside the bytes only the tail unit's
/// length is kept.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {}

#[allow(
    unused_variables,
    clippy::needless_pass_by_value,
    reason = "bodies land next"
)]
impl WriteQueue {
    /// Empty.
    pub(crate) const fn new() -> Self {
        Self {}
    }

    /// Bytes queued (`write_seq - snd_nxt`).
    #[inline]
    pub(crate) fn len(&self) -> usize {
        todo!()
    }

    /// Nothing queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        todo!()
    }

    /// Bytes in the last transmit unit (autocork's "tail TU").
    #[inline]
    pub(crate) fn tail_len(&self) -> usize {
        todo!()
    }

    /// Bytes of memory charged for what is queued.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        todo!()
    }

    /// Bytes that still fit into the tail transmit unit; 0: the next byte begins a new one, for
    /// which the caller tests the memory limits (spec 3).
    #[inline]
    pub(crate) fn tail_room(&self, size_goal: usize) -> usize {
        todo!()
    }

    /// Copies `data` in, all of it (bound it by memory first, one unit at a time if need be:
    /// [`tail_room`](Self::tail_room)).
    pub(crate) fn append(&mut self, pool: &Pool, data: &[u8], size_goal: usize) {
        todo!()
    }

    /// Appends lent memory without copying.
    pub(crate) fn append_slice(&mut self, data: Slice, size_goal: usize) {
        todo!()
    }

    /// Takes up to `limit` bytes off the front; fewer only when fewer are queued.
    pub(crate) fn take(&mut self, limit: usize) -> Taken {
        todo!()
    }

    /// Throws everything away.
    pub(crate) fn clear(&mut self) {
        todo!()
    }
}
