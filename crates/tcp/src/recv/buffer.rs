//! A run of received data, held by reference where that wastes no memory.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use fullsend_wire::cold_path;

use fullsend_offload::{Chain, Pool, Slice, WriteBuf};

/// Largest slice that may be copied; a larger one is always kept by reference.
const MAX_COPY_BYTES: usize = 16 << 10;
/// Most memory that a slice may pin, as a multiple of its length.
const MAX_PIN_RATIO: usize = 4;
/// Most memory that the slices of a super-segment which share a block may pin, as a multiple of their
/// length together: a device without offloads reads many packets into one block.
const MAX_GROUP_PIN_RATIO: usize = 8;
/// Least bytes of a slice that is kept by reference because of the other slices in its block. Its
/// entry in the piece list is not counted as pinned memory.
const MIN_GROUP_SLICE: usize = 256;
/// Memory that a run may pin regardless of the ratio, so that the message that a request-response
/// flow is about to read is not copied twice.
const PIN_ALLOWANCE: usize = 64 << 10;
/// Size of a block into which small pieces are copied.
const COLLAPSE_BLOCK: usize = 4 << 10;
/// Entries of the piece list that an empty run keeps allocated.
const MIN_PIECES_CAPACITY: usize = 4;

/// Contiguous data: slices in order, then a block into which small pieces are copied.
///
/// Memory is bounded: one-byte segments, each in a block of its own, are copied together, so `n`
/// bytes of data pin less than `4 n` bytes plus a constant; `8 n` in slices of at least 256 bytes that
/// share blocks.
#[derive(Debug, Default)]
pub(super) struct DataRun {
    pieces: VecDeque<Slice>,
    /// The block for small pieces; boxed, since most connections never need it.
    copy_buf: Option<Box<WriteBuf>>,
    len: u32,
    /// Capacity of `copy_buf` and of the blocks that `pieces` pin. A block that neighbouring pieces
    /// share counts once.
    pinned: u32,
}

impl DataRun {
    /// Returns the number of bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there are no bytes.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of memory held.
    #[inline]
    pub(super) fn truesize(&self) -> usize {
        self.pinned as usize
    }

    /// Appends data. `frugal`: the ratio applies from the first byte on, and to each slice alone.
    #[inline]
    pub(super) fn push(&mut self, pool: &Pool, mut data: Chain, frugal: bool) {
        if let Some(only) = data.take_single() {
            return self.push_slice(pool, only, 0, frugal);
        }
        self.push_slices(pool, data, frugal);
    }

    /// Appends slices, of which neighbours may share a block.
    fn push_slices(&mut self, pool: &Pool, data: Chain, frugal: bool) {
        let mut slices = data.into_iter();
        let (mut group_len, mut group_left) = (0, 0);
        while let Some(slice) = slices.next() {
            if group_left == 0 {
                let rest = slices.as_slice().iter();
                let group = rest.take_while(|next| next.shares_block_with(&slice));
                (group_len, group_left) = group.fold((slice.len(), 1), |(len, count), next| {
                    (len + next.len(), count + 1)
                });
            }
            group_left -= 1;
            let is_alone = frugal || slice.len() < MIN_GROUP_SLICE;
            let group_len = if is_alone { 0 } else { group_len };
            self.push_slice(pool, slice, group_len, frugal);
        }
    }

    /// Appends a slice, whose neighbours in its block have `group_len` bytes with it; 0 for a slice
    /// without regard to others.
    #[inline(always)]
    fn push_slice(&mut self, pool: &Pool, slice: Slice, group_len: usize, frugal: bool) {
        self.len += slice.len() as u32;
        if self.copy_buf.is_some() {
            cold_path();
            return self.push_after_copy_buf(pool, slice, group_len);
        }
        let slice = match self.pieces.back_mut() {
            Some(last) => match last.try_join(slice) {
                Ok(()) => return,
                Err(slice) => slice,
            },
            None => slice,
        };
        let allowance = if frugal { 0 } else { PIN_ALLOWANCE };
        if is_wasteful(&slice, group_len) && self.pinned as usize + slice.pinned() > allowance {
            return self.push_copy(pool, slice);
        }
        self.push_reference(slice);
    }

    #[inline]
    fn push_reference(&mut self, slice: Slice) {
        if !is_in_block_of(self.pieces.back(), &slice) {
            self.pinned += slice.pinned() as u32;
        }
        self.pieces.push_back(slice);
    }

    fn push_after_copy_buf(&mut self, pool: &Pool, slice: Slice, group_len: usize) {
        if is_wasteful(&slice, group_len) {
            return self.push_copy(pool, slice);
        }
        self.freeze_copy_buf();
        self.push_reference(slice);
    }

    /// Appends a copy of a slice. Where the allocator refuses memory, keeps it by reference.
    fn push_copy(&mut self, pool: &Pool, mut slice: Slice) {
        while !slice.is_empty() {
            if self.copy_buf.as_ref().is_none_or(|r| r.remaining() == 0) {
                self.freeze_copy_buf();
                let Some(copy_buf) = pool.try_alloc(self.copy_block_len(slice.len())) else {
                    return self.push_reference(slice);
                };
                self.pinned += copy_buf.capacity() as u32;
                self.copy_buf = Some(Box::new(copy_buf));
            }
            let Some(copy_buf) = &mut self.copy_buf else {
                return;
            };
            let n = copy_buf.write(&slice);
            slice.advance(n);
        }
    }

    /// Returns the size of a new block: that of the piece at first, larger with more data.
    fn copy_block_len(&self, len: usize) -> usize {
        len.max(self.len().min(COLLAPSE_BLOCK))
    }

    fn freeze_copy_buf(&mut self) {
        if let Some(copy_buf) = self.copy_buf.take() {
            self.pinned -= copy_buf.capacity() as u32;
            self.push_reference(copy_buf.freeze());
        }
    }

    /// Appends all data of another run.
    pub(super) fn append(&mut self, mut other: Self) {
        self.freeze_copy_buf();
        other.freeze_copy_buf();
        self.len += other.len;
        self.pinned += other.pinned;
        if let Some(first) = other.pieces.front()
            && is_in_block_of(self.pieces.back(), first)
        {
            self.pinned -= first.pinned() as u32;
        }
        if self.pieces.len() < other.pieces.len() {
            while let Some(piece) = self.pieces.pop_back() {
                other.pieces.push_front(piece);
            }
            self.pieces = other.pieces;
        } else {
            self.pieces.append(&mut other.pieces);
        }
    }

    /// Drops the first `n` bytes.
    pub(super) fn advance(&mut self, n: usize) {
        let mut left = n.min(self.len());
        while left > 0 {
            left -= self.consume(left, |_| ());
        }
    }

    /// Drops all but the first `n` bytes.
    #[cold]
    pub(super) fn truncate(&mut self, n: usize) {
        if n >= self.len() {
            return;
        }
        let kept = self.read_chain(n);
        self.clear();
        for slice in kept {
            self.len += slice.len() as u32;
            self.push_reference(slice);
        }
    }

    /// Copies bytes to `out` and removes them. Returns how many.
    #[inline]
    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() && self.len > 0 {
            done += self.consume(out.len() - done, |bytes| {
                out[done..done + bytes.len()].copy_from_slice(bytes);
            });
        }
        done
    }

    /// Passes up to `max` bytes of the first piece to `sink` and removes them. Returns how many.
    #[inline]
    fn consume(&mut self, max: usize, sink: impl FnOnce(&[u8])) -> usize {
        if self.pieces.is_empty() {
            cold_path();
            self.freeze_copy_buf();
        }
        let Some(first) = self.pieces.front_mut() else {
            cold_path();
            return max;
        };
        let n = first.len().min(max);
        sink(&first[..n]);
        self.len -= n as u32;
        if n < first.len() {
            first.advance(n);
        } else {
            self.pop();
        }
        n
    }

    /// Removes and returns the first piece.
    #[inline(always)]
    fn pop(&mut self) -> Option<Slice> {
        let first = self.pieces.pop_front()?;
        if !is_in_block_of(self.pieces.front(), &first) {
            self.pinned -= first.pinned() as u32;
        }
        if self.pieces.is_empty() && self.pieces.capacity() > MIN_PIECES_CAPACITY {
            cold_path();
            self.pieces.shrink_to(MIN_PIECES_CAPACITY);
        }
        Some(first)
    }

    /// Removes up to `max` bytes without copying.
    pub(super) fn read_chain(&mut self, max: usize) -> Chain {
        let mut out = Chain::new();
        let mut left = max.min(self.len());
        self.len -= left as u32;
        while left > 0 {
            if self.pieces.is_empty() {
                self.freeze_copy_buf();
            }
            let Some(first) = self.pieces.front_mut() else {
                break;
            };
            if first.len() > left {
                out.push(first.split_to(left));
                break;
            }
            left -= first.len();
            out.extend(self.pop());
        }
        out
    }

    /// Removes the first slice, or its first `max` bytes. Copies it only if it was kept because of
    /// others in its block: the caller may keep it longer than those.
    pub(super) fn read_slice(&mut self, pool: &Pool, max: usize) -> Slice {
        if self.pieces.is_empty() {
            self.freeze_copy_buf();
        }
        let first = self.pieces.front().map_or(0, Slice::len);
        let mut chain = self.read_chain(first.min(max));
        let slice = chain.pop_front().unwrap_or_default();
        if slice.pinned() <= PIN_ALLOWANCE || !is_wasteful(&slice, 0) {
            return slice;
        }
        match pool.try_alloc(slice.len()) {
            Some(mut copy) if copy.capacity() >= slice.len() => {
                copy.write(&slice);
                copy.freeze()
            }
            _ => slice,
        }
    }

    /// Copies bytes to `out` without removing them. Returns how many.
    pub(super) fn peek(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        let copied = self
            .copy_buf
            .as_ref()
            .map_or(&[][..], |copy_buf| copy_buf.filled());
        let pieces = self.pieces.iter().map(Slice::as_slice);
        for piece in pieces.chain([copied]) {
            let n = piece.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&piece[..n]);
            done += n;
        }
        done
    }

    /// Discards all data.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Returns whether a slice pins much more memory than it has bytes, or than the `group_len` bytes of
/// it and its neighbours in the same block.
#[inline]
fn is_wasteful(slice: &Slice, group_len: usize) -> bool {
    slice.len() <= MAX_COPY_BYTES
        && slice.pinned() > (MAX_PIN_RATIO * slice.len()).max(MAX_GROUP_PIN_RATIO * group_len)
}

/// Returns whether `slice` is in the block of a neighbour.
#[inline]
fn is_in_block_of(neighbour: Option<&Slice>, slice: &Slice) -> bool {
    neighbour.is_some_and(|neighbour| neighbour.shares_block_with(slice))
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use fullsend_offload::{Pool, Slice};
    use proptest::prelude::*;

    use super::{DataRun, MIN_PIECES_CAPACITY, PIN_ALLOWANCE, is_wasteful};

    fn piece(pool: &Pool, block: usize, data: &[u8]) -> Slice {
        let mut buf = pool.alloc(block);
        buf.write(data);
        buf.freeze()
    }

    #[test]
    fn tiny_segments_in_large_blocks_pin_little() {
        let pool = Pool::new(0);
        let mut run = DataRun::default();
        for _ in 0..50_000 {
            run.push(&pool, piece(&pool, 65_536, b"x").into(), false);
        }
        assert_eq!(run.len(), 50_000);
        assert!(
            run.truesize() < 50_000 * 2 + PIN_ALLOWANCE,
            "{}",
            run.truesize()
        );
        let mut out = vec![0; 60_000];
        assert_eq!(run.read(&mut out), 50_000);
        assert!(out[..50_000].iter().all(|&b| b == b'x'));
        assert_eq!((run.truesize(), run.len()), (0, 0));
        assert!(run.pieces.capacity() <= 32);
    }

    #[test]
    fn one_message_waiting_is_not_copied() {
        let pool = Pool::new(0);
        let mut run = DataRun::default();
        let slice = piece(&pool, 65_536, b"hello");
        let memory = slice.as_ptr();
        run.push(&pool, slice.into(), false);
        assert_eq!(run.read_chain(100).slices()[0].as_ptr(), memory);
    }

    #[test]
    fn adjacent_slices_become_one_piece() {
        let pool = Pool::new(0);
        let whole = piece(&pool, 65_536, &alloc::vec![9; 60_000]);
        let mut run = DataRun::default();
        for i in 0..60 {
            run.push(&pool, whole.slice(i * 1000..(i + 1) * 1000).into(), false);
        }
        assert_eq!((run.pieces.len(), run.truesize()), (1, 65_536));
    }

    /// Returns packets that were read into one block of 256 KiB, with their headers between them.
    fn packets(pool: &Pool, count: usize, len: usize) -> fullsend_offload::Chain {
        let whole = piece(pool, 256 << 10, &vec![9; count * (len + 52)]);
        (0..count)
            .map(|i| whole.slice(i * (len + 52)..i * (len + 52) + len))
            .collect()
    }

    #[test]
    fn a_super_segment_of_packets_in_one_block_is_not_copied() {
        let pool = Pool::new(0);
        let mut run = DataRun::default();
        for (count, len, copied) in [(44, 1448, false), (10, 1448, true), (44, 100, true)] {
            let super_segment = packets(&pool, count, len);
            let first = super_segment.slices()[0].as_ptr();
            run.push(&pool, super_segment, false);
            assert_eq!(run.pinned >= 256 << 10, !copied, "{count} of {len}");
            let data = run.read_chain(len);
            assert_eq!(
                data.slices()[0].as_ptr() != first,
                copied,
                "{count} of {len}"
            );
            // A slice that the application may keep does not pin the block.
            assert!(run.read_slice(&pool, len).pinned() <= PIN_ALLOWANCE);
            run.advance(count * len);
            assert_eq!((run.truesize(), run.len()), (0, 0));
        }
        // Two parts of one block, then another block.
        let mut super_segment = packets(&pool, 64, 1400);
        let rest = super_segment.split_to(32 * 1400);
        for part in [rest, super_segment, packets(&pool, 40, 1400)] {
            run.push(&pool, part, false);
        }
        assert_eq!(run.truesize(), 2 * (256 << 10));
        run.advance(64 * 1400);
        assert_eq!(run.truesize(), 256 << 10);
        // Data out of order, and under memory pressure, is copied.
        let mut frugal = DataRun::default();
        frugal.push(&pool, packets(&pool, 44, 1448), true);
        assert!(frugal.truesize() < 2 * frugal.len());
    }

    #[test]
    fn small_pieces_are_copied_into_growing_blocks() {
        let pool = Pool::new(1 << 20);
        let mut run = DataRun::default();
        for _ in 0..20_000 {
            run.push(&pool, piece(&pool, 4096, b"x").into(), true);
        }
        assert!(run.pieces.len() < 16, "{}", run.pieces.len());
        assert!(run.truesize() < 40_000, "{}", run.truesize());
    }

    #[test]
    fn pieces_that_pin_more_than_four_times_their_length_are_wasteful() {
        let pool = Pool::new(0);
        for (len, wasteful) in [
            (100, true),
            (16_383, true),
            (16_384, false),
            (16_385, false),
        ] {
            let slice = piece(&pool, 65_536, &vec![1; len]);
            assert_eq!((slice.pinned(), is_wasteful(&slice, 0)), (65_536, wasteful));
        }
        let slice = piece(&pool, 131_072, &vec![1; 16_385]);
        assert!(!is_wasteful(&slice, 0), "too large to be copied");
    }

    /// Returns `n` pieces that are not joined, each in a chunk that it fills.
    fn pieces(pool: &Pool, n: usize) -> DataRun {
        let mut run = DataRun::default();
        for _ in 0..n {
            run.push(pool, piece(pool, 256, &[7; 256]).into(), false);
        }
        assert_eq!(run.pieces.len(), n);
        run
    }

    #[test]
    fn only_an_empty_run_shrinks_its_piece_list() {
        let pool = Pool::new(0);
        let mut run = pieces(&pool, 100);
        let before = run.pieces.capacity();
        let mut out = vec![0; 25_600];
        assert_eq!(run.read(&mut out[..256]), 256);
        assert_eq!(run.pieces.capacity(), before);
        assert_eq!(run.read(&mut out), 99 * 256);
        assert!(run.pieces.capacity() <= MIN_PIECES_CAPACITY);
    }

    #[test]
    fn reading_leaves_the_copy_buffer_in_use() {
        let pool = Pool::new(0);
        let mut run = pieces(&pool, 2);
        run.push(&pool, piece(&pool, 65_536, b"tail").into(), true);
        assert!(run.copy_buf.is_some());
        assert_eq!(run.read_slice(&pool, 1000).as_slice(), [7; 256]);
        assert_eq!(run.read_chain(256).len(), 256);
        assert!(run.copy_buf.is_some());
        assert_eq!(run.read_slice(&pool, 3).as_slice(), b"tai");
        assert_eq!(run.read_slice(&pool, 3).as_slice(), b"l");
        assert!(run.read_slice(&pool, 3).is_empty());
    }

    /// Returns `truesize` by its definition.
    fn truesize_of_pieces(run: &DataRun) -> usize {
        let mut pieces: Vec<&Slice> = run.pieces.iter().collect();
        pieces.dedup_by(|next, last| next.shares_block_with(last));
        let pinned: usize = pieces.into_iter().map(Slice::pinned).sum();
        pinned + run.copy_buf.as_ref().map_or(0, |buf| buf.capacity())
    }

    proptest! {
        #[test]
        fn behaves_as_a_byte_queue(ops in prop::collection::vec((0..8u8, 0..4000usize, any::<bool>()), 1..80)) {
            let pool = Pool::new(1 << 20);
            let mut run = DataRun::default();
            let mut model: Vec<u8> = Vec::new();
            let mut next = 0u8;
            for (op, n, flag) in ops {
                let mut data = |len: usize| -> Vec<u8> {
                    (0..len).map(|_| { next = next.wrapping_mul(5).wrapping_add(1); next }).collect()
                };
                let mut out = vec![0; n];
                match op {
                    0 if n % 2 == 0 => {
                        // Packets of one block, with gaps between them.
                        let data = data(n);
                        let whole = piece(&pool, 16 << 10, &data);
                        let slices = (0..n / 300).map(|i| whole.slice(i * 300..i * 300 + 280 - n % 60));
                        let chain: fullsend_offload::Chain = slices.collect();
                        model.extend(chain.slices().iter().flat_map(Slice::as_slice));
                        let (first, mut second) = (chain.len() / 2, chain);
                        run.push(&pool, second.split_to(first), flag);
                        run.push(&pool, second, flag);
                    }
                    0..3 => {
                        let data = data(if flag { n } else { n % 50 });
                        let block = if n % 3 == 0 { 65_536 } else { data.len() };
                        run.push(&pool, piece(&pool, block, &data).into(), flag);
                        model.extend(data);
                    }
                    3 => {
                        let mut other = DataRun::default();
                        for len in [n, 10, 20] {
                            let data = data(len);
                            other.push(&pool, piece(&pool, 65_536, &data).into(), flag);
                            model.extend(data);
                        }
                        run.append(other);
                    }
                    4 => {
                        let got = run.read(&mut out);
                        let want: Vec<u8> = model.drain(..n.min(model.len())).collect();
                        prop_assert_eq!(&out[..got], &want[..]);
                    }
                    5 => {
                        let chain = run.read_chain(n);
                        let want: Vec<u8> = model.drain(..n.min(model.len())).collect();
                        prop_assert_eq!(chain.len(), want.len());
                        chain.copy_to(&mut out);
                        prop_assert_eq!(&out[..want.len()], &want[..]);
                    }
                    6 => {
                        let got = run.peek(&mut out);
                        prop_assert_eq!(&out[..got], &model[..n.min(model.len())]);
                    }
                    _ => {
                        run.advance(n);
                        model.drain(..n.min(model.len()));
                    }
                }
                prop_assert_eq!(run.len(), model.len());
                prop_assert_eq!(run.is_empty(), model.is_empty());
                prop_assert_eq!(run.truesize(), truesize_of_pieces(&run));
            }
        }
    }
}
