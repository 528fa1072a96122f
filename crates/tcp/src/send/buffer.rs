//! The send buffer: appending data, and how much it may hold (`SO_SNDBUF`).

use fullsend_offload::{Pool, Slice};

use super::{BlockedBy, Sender};

/// The `SO_SNDBUF` charge of a super-segment in addition to its data: a Linux 6 kernel's `sk_buff`
/// with room for headers and its table of fragments. Ours costs less, but applications have values
/// tuned on Linux, and the charge decides how many bytes a write accepts and which acknowledgement
/// wakes its writer.
const SUPER_SEGMENT_CHARGE_BYTES: usize = 832;

impl Sender {
    /// Returns the bytes that `SO_SNDBUF` bounds (`sk_wmem_queued`): data written and not
    /// acknowledged, and a charge for each super-segment. `others` is the number of super-segments in
    /// flight, plus the ends of unsent records. As on Linux, data counts by its length rather than by
    /// the block that holds it; `tcp_mem` counts blocks.
    #[inline]
    pub(crate) fn wmem_queued(&self, others: usize) -> usize {
        let bytes = self.bytes_in_flight() as usize + self.queue.len();
        let unsent = self.queue.super_segments(self.size_goal());
        bytes + (unsent + others) * SUPER_SEGMENT_CHARGE_BYTES
    }

    /// Returns the size of the send buffer in bytes.
    #[inline]
    pub(crate) fn sndbuf(&self) -> u32 {
        self.sndbuf
    }

    /// Sets the size of the send buffer, which then no longer grows by itself.
    pub(crate) fn set_sndbuf(&mut self, bytes: u32) {
        self.sndbuf = bytes;
        self.sndbuf_locked = true;
    }

    /// Returns whether the application set the size of the send buffer.
    pub(crate) fn is_sndbuf_locked(&self) -> bool {
        self.sndbuf_locked
    }

    /// Grows the send buffer to at least `bytes`.
    pub(crate) fn grow_sndbuf(&mut self, bytes: u32) {
        self.sndbuf = self.sndbuf.max(bytes);
    }

    /// Returns the size to which a write fills a super-segment.
    #[inline]
    pub(crate) fn size_goal(&self) -> usize {
        self.size_goal as usize
    }

    /// Appends `data` if it fits the last super-segment. Returns whether it did.
    #[inline]
    pub(super) fn try_append_to_tail(&mut self, data: &[u8]) -> bool {
        self.queue.try_append_to_tail(data, self.size_goal as usize)
    }

    /// Appends a copy of `data` in super-segments of `goal` bytes; returns the bytes copied, which
    /// are fewer only where the allocator refuses memory. `frugal`: allocates for `data` alone.
    #[inline]
    pub(crate) fn append(&mut self, pool: &Pool, data: &[u8], goal: usize, frugal: bool) -> usize {
        self.queue.append(pool, data, goal, frugal)
    }

    /// Appends `data` without copying it.
    pub(crate) fn append_slice(&mut self, data: Slice, goal: usize) {
        self.queue.append_slice(data, goal);
    }

    /// Returns how many bytes still fit the last super-segment, if it has `goal` bytes at most.
    #[inline]
    pub(crate) fn tail_room(&self, goal: usize) -> usize {
        self.queue.tail_room(goal)
    }

    /// Returns whether the unsent data beyond the first `skipped` bytes is one super-segment.
    #[inline]
    pub(crate) fn is_single_super_segment(&self, skipped: u32) -> bool {
        let tail = self.queue.tail_len();
        tail > 0 && self.queue.len() - skipped as usize == tail
    }

    /// Returns how many bytes fit the memory that is allocated already.
    pub(crate) fn allocated_room(&self) -> usize {
        self.queue.buf_remaining()
    }

    /// Returns whether TCP Small Queues held data at the last attempt to send.
    pub(crate) fn is_held_by_small_queue(&self) -> bool {
        self.blocked_by == BlockedBy::Tsq
    }

    /// Subtracts `len` bytes, which will be sent at once, from the last super-segment. There must be
    /// no other.
    pub(crate) fn shrink_tail(&mut self, len: u32) {
        self.queue.shrink_tail(len);
    }
}
