//! Sequences of slices: payload that passes between the layers without a copy.

use core::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::Slice;

/// A sequence of bytes that consists of slices.
///
/// Adjacent slices of one block are joined, so that a super-segment that was segmented and
/// coalesced within one process is one slice again.
#[derive(Default)]
pub struct Chain {
    slices: SmallVec<[Slice; 2]>,
    len: usize,
}

impl Chain {
    /// Returns an empty chain.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the chain has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slices, in order; none of them is empty.
    #[inline]
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Removes and returns the slice of a chain that has exactly one, as most chains have.
    #[inline]
    pub fn take_single(&mut self) -> Option<Slice> {
        if self.slices.len() != 1 {
            return None;
        }
        self.len = 0;
        self.slices.pop()
    }

    /// Appends a slice; an empty one is ignored.
    #[inline]
    pub fn push(&mut self, slice: Slice) {
        if slice.is_empty() {
            return;
        }
        self.len += slice.len();
        if let Some(last) = self.slices.last_mut()
            && last.is_contiguous_with(&slice)
        {
            last.len += slice.len;
            return;
        }
        self.slices.push(slice);
    }

    /// Appends the slices of another chain.
    pub fn append(&mut self, other: Self) {
        for slice in other.slices {
            self.push(slice);
        }
    }

    /// Appends the bytes of `other` after its first `skip` bytes, and leaves `other` in an
    /// unspecified state: it may only be dropped.
    ///
    /// Costs less than [`advance`](Self::advance) and [`append`](Self::append) for the usual chain
    /// of one slice.
    ///
    /// # Panics
    /// If `other` has fewer than `skip` bytes.
    #[inline]
    pub fn append_skipping(&mut self, other: &mut Self, skip: usize) {
        if other.slices.len() != 1 {
            return self.append_slices(other, skip);
        }
        let Some(mut next) = other.slices.pop() else {
            return;
        };
        next.advance(skip);
        if next.is_empty() {
            return;
        }
        self.len += next.len();
        if let Some(last) = self.slices.last_mut()
            && last.is_contiguous_with(&next)
        {
            last.len += next.len;
            return;
        }
        if self.slices.len() == self.slices.capacity() {
            self.reserve_more();
        }
        self.slices.push(next);
    }

    fn append_slices(&mut self, other: &mut Self, skip: usize) {
        other.advance(skip);
        self.append(core::mem::take(other));
    }

    /// Reserves many entries: a chain that is coalesced packet by packet will be long.
    fn reserve_more(&mut self) {
        let more = match self.slices.len() {
            len @ ..16 => 16 - len,
            len => len.max(32),
        };
        self.slices.reserve_exact(more);
    }

    /// Removes the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len());
        self.len -= n;
        match self.slices.first_mut() {
            Some(first) if n < first.len() => first.advance(n),
            _ => self.drop_front(n),
        }
    }

    /// Removes the first `n` bytes, which include at least one whole slice.
    fn drop_front(&mut self, n: usize) {
        let mut left = n;
        let mut removed = 0;
        for slice in &mut self.slices {
            if left < slice.len() {
                slice.advance(left);
                break;
            }
            left -= slice.len();
            removed += 1;
        }
        if removed == self.slices.len() {
            self.slices.clear();
        } else if removed > 0 {
            self.slices.drain(..removed);
        }
    }

    /// Keeps only the first `n` bytes; no effect if there are fewer.
    pub fn truncate(&mut self, n: usize) {
        if n >= self.len() {
            return;
        }
        let mut left = n;
        let mut keep = 0;
        for slice in &mut self.slices {
            if left == 0 {
                break;
            }
            slice.truncate(left);
            left -= slice.len();
            keep += 1;
        }
        self.slices.truncate(keep);
        self.len = n;
    }

    /// Returns `len` bytes from `start` as a chain that shares the memory.
    ///
    /// # Panics
    /// If the range ends after the chain.
    #[must_use]
    pub fn range(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len());
        let mut out = Self::new();
        let (mut skip, mut left) = (start, len);
        for slice in &self.slices {
            if left == 0 {
                break;
            }
            if skip >= slice.len() {
                skip -= slice.len();
                continue;
            }
            let take = left.min(slice.len() - skip);
            out.push(slice.slice(skip..skip + take));
            skip = 0;
            left -= take;
        }
        out
    }

    /// Removes the first `n` bytes and returns them as a chain.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    #[must_use]
    pub fn split_to(&mut self, n: usize) -> Self {
        if n == self.len() {
            return core::mem::take(self);
        }
        let head = self.range(0, n);
        self.advance(n);
        head
    }

    /// Removes and returns the first slice.
    pub fn pop_front(&mut self) -> Option<Slice> {
        if self.slices.is_empty() {
            return None;
        }
        let first = self.slices.remove(0);
        self.len -= first.len();
        Some(first)
    }

    /// Copies bytes from the front into `out` without removing them; returns their number.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in &self.slices {
            let n = slice.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&slice[..n]);
            done += n;
            if done == out.len() {
                break;
            }
        }
        done
    }

    /// Removes all bytes, but keeps the allocation.
    pub fn clear(&mut self) {
        self.slices.clear();
        self.len = 0;
    }

    /// Returns the bytes of memory that this chain keeps allocated; a block counts once per slice.
    pub fn pinned(&self) -> usize {
        self.slices.iter().map(Slice::pinned).sum()
    }

    /// Copies the bytes if the chain keeps more than `ratio` times its length allocated. Call it for
    /// data that waits: packets that share the block of one read keep all of that block.
    ///
    /// ```
    /// use fullsend_offload::{Chain, Pool};
    ///
    /// let mut buf = Pool::new(1 << 20).alloc(64 << 10);
    /// buf.write(b"one short packet of many");
    /// let mut chain = Chain::from(buf.freeze());
    /// chain.limit_pinned(8);
    /// assert_eq!((chain.len(), chain.pinned()), (24, 24));
    /// ```
    pub fn limit_pinned(&mut self, ratio: usize) {
        if self.pinned() > ratio * self.len() {
            let slices = self.slices.iter();
            *self = slices.map(|slice| Slice::copied_from(slice)).collect();
        }
    }
}

impl Clone for Chain {
    #[inline]
    fn clone(&self) -> Self {
        match self.slices() {
            [only] => only.clone().into(),
            slices => slices.iter().cloned().collect(),
        }
    }
}

impl From<Slice> for Chain {
    #[inline]
    fn from(slice: Slice) -> Self {
        let len = slice.len();
        let mut slices = SmallVec::new();
        if len != 0 {
            slices.push(slice);
        }
        Self { slices, len }
    }
}

impl From<Bytes> for Chain {
    fn from(bytes: Bytes) -> Self {
        Slice::from(bytes).into()
    }
}

impl FromIterator<Slice> for Chain {
    fn from_iter<I: IntoIterator<Item = Slice>>(slices: I) -> Self {
        let mut chain = Self::new();
        chain.extend(slices);
        chain
    }
}

impl IntoIterator for Chain {
    type Item = Slice;
    type IntoIter = smallvec::IntoIter<[Slice; 2]>;

    /// Returns an iterator over the slices, in order.
    fn into_iter(self) -> Self::IntoIter {
        self.slices.into_iter()
    }
}

impl Extend<Slice> for Chain {
    fn extend<I: IntoIterator<Item = Slice>>(&mut self, slices: I) {
        slices.into_iter().for_each(|s| self.push(s));
    }
}

impl PartialEq for Chain {
    fn eq(&self, other: &Self) -> bool {
        fn bytes(chain: &Chain) -> impl Iterator<Item = &u8> {
            chain.slices.iter().flat_map(Slice::as_slice)
        }
        self.len == other.len && bytes(self).eq(bytes(other))
    }
}

impl Eq for Chain {}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} bytes in {})", self.len, self.slices.len())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::Chain;
    use crate::{Pool, Slice};

    fn bytes_of(chain: &Chain) -> Vec<u8> {
        let mut out = alloc::vec![0; chain.len()];
        assert_eq!(chain.copy_to(&mut out), chain.len());
        out
    }

    #[test]
    fn adjacent_slices_of_a_block_are_joined() {
        let mut buf = Pool::new(0).alloc(5000);
        let data: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        buf.write(&data);
        let whole = buf.freeze();
        let chain: Chain = (0..5)
            .map(|i| whole.slice(i * 1000..(i + 1) * 1000))
            .collect();
        assert_eq!(chain.slices().len(), 1);
        assert_eq!(bytes_of(&chain), data);
    }

    proptest! {
        /// Every operation has the same effect on the chain as on a vector.
        #[test]
        fn behaves_as_a_vector(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            cuts in prop::collection::vec((0..6u8, any::<prop::sample::Index>()), 0..10),
        ) {
            let mut model: Vec<u8> = pieces.concat();
            let mut chain: Chain = pieces.iter().map(|p| Slice::copied_from(p)).collect();
            for (op, at) in cuts {
                let n = at.index(model.len() + 1);
                match op {
                    0 => { chain.advance(n); model.drain(..n); }
                    1 => { chain.truncate(n); model.truncate(n); }
                    2 => {
                        let head = chain.split_to(n);
                        prop_assert_eq!(bytes_of(&head), model.drain(..n).collect::<Vec<_>>());
                    }
                    3 => prop_assert_eq!(bytes_of(&chain.range(n, model.len() - n)), &model[n..]),
                    4 => {
                        // The two parts join if they are adjacent in memory and no byte is skipped.
                        let skip = n % 2 * (model.len() - n).min(1);
                        let mut head = chain.split_to(n);
                        head.append_skipping(&mut chain, skip);
                        chain = head;
                        model.drain(n..n + skip);
                    }
                    _ => if let Some(first) = chain.pop_front() {
                        let removed: Vec<u8> = model.drain(..first.len()).collect();
                        prop_assert_eq!(&*first, removed);
                    }
                }
                prop_assert_eq!(bytes_of(&chain), &model[..]);
                prop_assert!(chain.slices().iter().all(|s| !s.is_empty()));
            }
        }
    }
}
