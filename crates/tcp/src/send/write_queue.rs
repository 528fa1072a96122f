//! The queue of unsent data, gathered into super-segments.

use alloc::collections::VecDeque;
use fullsend_wire::cold_path;

use fullsend_offload::{Chain, Pool, Slice, WriteBuf};

#[cfg(test)]
mod tests;

/// Memory charged for a super-segment beside its payload: its entries in queues and device rings.
pub(crate) const SUPER_SEGMENT_OVERHEAD_BYTES: u32 = 256;

/// Growth of a tail block that filled up before any of it was sent.
const BLOCK_GROWTH: usize = 4;

/// Entries that an empty queue keeps, so that a request-response flow does not allocate.
const KEPT_SLICES: usize = 4;

/// Data taken from the queue for one super-segment.
#[derive(Debug)]
pub(crate) struct TakenData {
    /// The bytes.
    pub(crate) payload: Chain,
    /// Bytes of memory charged for the data, overhead included.
    pub(crate) truesize: u32,
}

#[derive(Debug)]
struct QueuedSlice {
    slice: Slice,
    charge: u32,
}

/// A queue of unsent data. Writes fill a super-segment up to `size_goal` before the next begins.
/// Taking may join or cut super-segments, so only the last one's length is kept.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    slices: VecDeque<QueuedSlice>,
    /// The buffer that writes fill, after all slices. Never empty.
    buf: Option<WriteBuf>,
    len: u32,
    tail_len: u32,
    truesize: u32,
    /// Bytes queued when data was last taken: the expected size of the next block.
    last_queued: u32,
}

impl WriteQueue {
    /// Returns an empty queue.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns the bytes queued (`write_seq - snd_nxt`).
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether no data is queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of the last super-segment, which writes still fill.
    #[inline]
    pub(crate) fn tail_len(&self) -> usize {
        self.tail_len as usize
    }

    /// Returns the bytes of memory charged for the queued data.
    #[inline]
    pub(crate) fn truesize(&self) -> usize {
        self.truesize as usize
    }

    /// Returns the number of super-segments that hold the queued data, without regard to records.
    #[inline]
    pub(crate) fn super_segments(&self, size_goal: usize) -> usize {
        let tail = usize::from(self.tail_len > 0);
        match self.len - self.tail_len {
            0 => tail,
            before => tail + (before as usize).div_ceil(size_goal.max(1)),
        }
    }

    /// Subtracts `len` bytes, which will be sent at once, from the last super-segment. There must be
    /// no other.
    pub(crate) fn shrink_tail(&mut self, len: u32) {
        self.tail_len = self.tail_len.saturating_sub(len);
    }

    /// Returns how many bytes still fit the last super-segment. With 0 the next byte begins a new one,
    /// for which the caller checks the memory limits.
    #[inline]
    pub(crate) fn tail_room(&self, size_goal: usize) -> usize {
        if self.tail_len == 0 {
            return 0;
        }
        size_goal.saturating_sub(self.tail_len())
    }

    /// Appends `data` if it fits the last super-segment and the block that is being filled. Returns
    /// whether it did.
    #[inline]
    pub(super) fn try_append_to_tail(&mut self, data: &[u8], size_goal: usize) -> bool {
        if let Some(buf) = &mut self.buf
            && self.tail_len > 0
            && data.len() <= size_goal.saturating_sub(self.tail_len as usize)
            && data.len() <= buf.remaining()
        {
            buf.write(data);
            self.len += data.len() as u32;
            self.tail_len += data.len() as u32;
            return true;
        }
        false
    }

    /// Returns how many bytes fit the block that is being filled.
    pub(crate) fn buf_remaining(&self) -> usize {
        self.buf.as_ref().map_or(0, WriteBuf::remaining)
    }

    /// Appends a copy of `data` and returns the number of bytes copied, which is less only where the
    /// allocator refuses memory. The caller bounds `data` by the memory limits, if need be one
    /// super-segment at a time ([`tail_room`](Self::tail_room)). `frugal`: allocates for `data` alone,
    /// not for writes that may follow, and may use the pool's reserve.
    pub(crate) fn append(
        &mut self,
        pool: &Pool,
        mut data: &[u8],
        size_goal: usize,
        frugal: bool,
    ) -> usize {
        let size_goal = size_goal.max(1);
        let len = data.len();
        while !data.is_empty() {
            if self.tail_len() >= size_goal {
                self.begin_super_segment(size_goal);
            }
            let tail_left = size_goal - self.tail_len();
            if self.buf.as_ref().is_none_or(|r| r.remaining() == 0) {
                self.open_buf(pool, data.len(), tail_left, frugal);
            }
            let Some(buf) = &mut self.buf else { break };
            let fits = data.len().min(tail_left);
            let n = buf.write(&data[..fits]);
            self.len += n as u32;
            self.tail_len += n as u32;
            data = &data[n..];
        }
        len - data.len()
    }

    /// Begins a new super-segment. Closes a block that could hold only a small part of it, so that
    /// most super-segments are one slice.
    fn begin_super_segment(&mut self, size_goal: usize) {
        self.tail_len = 0;
        if self
            .buf
            .as_ref()
            .is_some_and(|r| r.remaining() < size_goal / 4)
        {
            self.close_buf();
        }
    }

    /// Allocates a block for a write of `want` bytes: of the size that was queued last time, larger if
    /// this super-segment already filled a block, never larger than it can use. There is none if the
    /// allocator refuses.
    fn open_buf(&mut self, pool: &Pool, want: usize, tail_left: usize, frugal: bool) {
        let mut filled_up = 0;
        if let Some(full) = &self.buf {
            filled_up = full.capacity();
            self.close_buf();
        }
        let guess = if frugal {
            0
        } else {
            (filled_up * BLOCK_GROWTH).max(self.last_queued as usize)
        };
        let want = want.max(guess).min(tail_left);
        let buf = if frugal {
            pool.try_alloc_from_reserve(want)
        } else {
            pool.try_alloc(want)
        };
        self.truesize += buf.as_ref().map_or(0, WriteBuf::capacity) as u32;
        self.buf = buf;
    }

    fn close_buf(&mut self) {
        if let Some(buf) = self.buf.take() {
            let charge = buf.capacity() as u32;
            self.slices.push_back(QueuedSlice {
                slice: buf.freeze(),
                charge,
            });
        }
    }

    /// Ends the last super-segment: the next byte begins a new one.
    pub(crate) fn end_super_segment(&mut self) {
        self.tail_len = 0;
    }

    /// Appends lent memory without copying.
    pub(crate) fn append_slice(&mut self, data: Slice, size_goal: usize) {
        if data.is_empty() {
            return;
        }
        self.close_buf();
        let len = data.len() as u32;
        let goal = size_goal.max(1) as u32;
        let tail = self.tail_len % goal + len % goal;
        self.tail_len = if tail > goal || tail == 0 {
            tail.abs_diff(goal)
        } else {
            tail
        };
        self.len += len;
        self.truesize += len;
        self.slices.push_back(QueuedSlice {
            slice: data,
            charge: len,
        });
    }

    /// Takes up to `limit` bytes off the front; fewer only when fewer are queued.
    #[inline]
    pub(crate) fn take(&mut self, limit: usize) -> TakenData {
        if self.slices.is_empty()
            && self.len as usize <= limit
            && let Some(buf) = self.buf.take()
        {
            return self.take_buf(buf);
        }
        self.take_slices(limit)
    }

    /// Takes all queued data, which is the one block that was still being filled.
    #[inline]
    fn take_buf(&mut self, buf: WriteBuf) -> TakenData {
        let charge = core::mem::take(&mut self.truesize);
        debug_assert_eq!(charge, buf.capacity() as u32);
        self.last_queued = core::mem::take(&mut self.len);
        self.tail_len = 0;
        self.shrink_capacity();
        TakenData {
            payload: buf.freeze().into(),
            truesize: charge + SUPER_SEGMENT_OVERHEAD_BYTES,
        }
    }

    fn take_slices(&mut self, limit: usize) -> TakenData {
        let n = self.len.min(u32::try_from(limit).unwrap_or(u32::MAX));
        let mut taken = TakenData {
            payload: Chain::new(),
            truesize: SUPER_SEGMENT_OVERHEAD_BYTES,
        };
        self.last_queued = self.len;
        let mut left = n as usize;
        while left > 0 {
            let (slice, charge) = match self.slices.front_mut() {
                Some(entry) if entry.slice.len() > left => {
                    let charge = entry.charge.min(left as u32);
                    entry.charge -= charge;
                    (entry.slice.split_to(left), charge)
                }
                Some(_) => match self.slices.pop_front() {
                    Some(entry) => (entry.slice, entry.charge),
                    None => break,
                },
                None if self.buf.is_some() => {
                    self.close_buf();
                    continue;
                }
                None => break,
            };
            left -= slice.len();
            self.truesize -= charge;
            taken.truesize += charge;
            taken.payload.push(slice);
        }
        self.len -= n;
        self.tail_len = self.tail_len.min(self.len);
        if self.len == 0 {
            self.shrink_capacity();
        }
        taken
    }

    #[inline]
    fn shrink_capacity(&mut self) {
        if self.slices.capacity() > KEPT_SLICES {
            cold_path();
            self.slices.shrink_to(KEPT_SLICES);
        }
    }

    /// Discards all data.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}
