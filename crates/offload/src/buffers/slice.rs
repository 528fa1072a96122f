//! Blocks of memory, the buffer that writes one, and the slices that read parts of it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, Range};

use bytes::Bytes;

use super::pool::FreeLists;
use super::reserve::CLASSES;
use super::sync::{Arc, LoanArc};
use crate::Loan;

/// The memory of a block.
enum Memory {
    /// Memory of a pool, or of the block alone.
    Owned(Box<[u8]>),
    /// Memory that the application shares and does not change (`write_bytes`).
    Shared(Bytes),
    /// Memory that the application gets back when no slice refers to it.
    Loan(LoanArc<dyn Loan>),
}

/// A block of memory that slices share.
pub(crate) struct Block {
    memory: Memory,
    /// Length of the memory in bytes.
    capacity: u32,
    /// Size class of a pool's block.
    class: u8,
    free_lists: Option<Arc<FreeLists>>,
}

impl Block {
    /// Returns a block of zeros for a pool, or `None` if the allocator fails.
    pub(crate) fn try_of_pool(class: usize, free_lists: &Arc<FreeLists>) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(CLASSES[class]).ok()?;
        Some(Self::of_pool(bytes, class, free_lists))
    }

    /// Returns a block of zeros for a pool, in `bytes`, which are empty.
    pub(crate) fn of_pool(mut bytes: Vec<u8>, class: usize, free_lists: &Arc<FreeLists>) -> Self {
        bytes.resize(CLASSES[class], 0);
        Self {
            capacity: CLASSES[class] as u32,
            class: class as u8,
            free_lists: Some(free_lists.clone()),
            memory: Memory::Owned(bytes.into_boxed_slice()),
        }
    }

    /// Returns a block outside of any pool.
    fn lone(memory: Memory, capacity: u32) -> Self {
        Self {
            memory,
            capacity,
            class: 0,
            free_lists: None,
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Owned(bytes) => bytes,
            Memory::Shared(bytes) => bytes,
            Memory::Loan(loan) => loan.bytes(),
        }
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Returns the size class of a pool's block.
    #[inline]
    pub(crate) fn class(&self) -> usize {
        usize::from(self.class)
    }
}

/// Drops a reference to a block; the last one returns the block to its free list.
#[inline]
fn release(block: Arc<Block>) {
    // The only reference cannot race: no other thread can clone it.
    if Arc::strong_count(&block) == 1
        && let Some(free_lists) = block.free_lists.clone()
    {
        free_lists.put(block);
    }
}

/// A write buffer with one owner, filled from the front.
///
/// ```
/// let pool = fullsend_offload::Pool::new(1 << 20);
/// let mut buf = pool.alloc(5);
/// assert_eq!(buf.write(b"hello"), 5);
/// assert_eq!(&*buf.freeze(), b"hello");
/// ```
pub struct WriteBuf {
    /// `None` only in `drop`.
    block: Option<Arc<Block>>,
    filled: u32,
}

impl WriteBuf {
    pub(crate) fn new(block: Arc<Block>) -> Self {
        Self {
            block: Some(block),
            filled: 0,
        }
    }

    /// Returns the size of the buffer in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, |b| b.capacity())
    }

    /// Returns the number of bytes written.
    #[inline]
    pub fn len(&self) -> usize {
        self.filled as usize
    }

    /// Returns whether no byte is written yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the number of bytes that still fit.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Returns the bytes written.
    pub fn filled(&self) -> &[u8] {
        self.block
            .as_ref()
            .map_or(&[], |b| &b.bytes()[..self.filled as usize])
    }

    /// Returns the unwritten part; after writing to it, call [`advance`](Self::advance).
    #[inline]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let filled = self.filled as usize;
        // A write buffer has the only reference to its block, and only pools create write buffers.
        match self.block.as_mut().and_then(Arc::get_mut) {
            Some(Block {
                memory: Memory::Owned(bytes),
                ..
            }) => &mut bytes[filled..],
            _ => &mut [],
        }
    }

    /// Marks `n` bytes as written, after they were written through [`spare_mut`](Self::spare_mut).
    ///
    /// # Panics
    /// If fewer than `n` bytes fit.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.remaining());
        self.filled += n as u32;
    }

    /// Copies as many bytes of `data` as fit, and returns their number.
    #[inline]
    pub fn write(&mut self, data: &[u8]) -> usize {
        let spare = self.spare_mut();
        let n = data.len().min(spare.len());
        spare[..n].copy_from_slice(&data[..n]);
        self.filled += n as u32;
        n
    }

    /// Discards the bytes written.
    #[inline]
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Returns the bytes written as a slice, which can be shared.
    #[inline]
    pub fn freeze(mut self) -> Slice {
        let slice = Slice {
            block: self.block.take(),
            off: 0,
            len: self.filled,
        };
        // `block` is `None` now. This spares the call of `drop`, which would test it.
        core::mem::forget(self);
        slice
    }
}

impl Drop for WriteBuf {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            release(block);
        }
    }
}

impl fmt::Debug for WriteBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteBuf({} of {})", self.len(), self.capacity())
    }
}

/// A read-only part of a block; clones share the memory.
#[derive(Clone, Default)]
pub struct Slice {
    /// `None` for the empty default, and in `drop`.
    block: Option<Arc<Block>>,
    off: u32,
    pub(crate) len: u32,
}

impl Slice {
    /// Returns a copy of `data` in its own memory, outside of any pool.
    pub fn copied_from(data: &[u8]) -> Self {
        Self::from(Bytes::copy_from_slice(data))
    }

    /// Returns a copy of several pieces of data, or `None` if the allocator fails.
    ///
    /// # Panics
    /// If the pieces have 4 GiB or more.
    pub fn try_copied_from<'a>(
        parts: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    ) -> Option<Self> {
        let parts = parts.into_iter();
        let mut all = Vec::new();
        all.try_reserve_exact(parts.clone().map(<[u8]>::len).sum())
            .ok()?;
        parts.for_each(|part| all.extend_from_slice(part));
        Some(Self::from(Bytes::from(all)))
    }

    /// Returns a slice of memory on loan; the loan is dropped with its last slice.
    ///
    /// # Panics
    /// If the loan has 4 GiB or more; lend it in parts.
    pub fn lend(loan: LoanArc<dyn Loan>) -> Self {
        let len = u32::try_from(loan.bytes().len()).expect("a slice is shorter than 4 GiB");
        let block = Block::lone(Memory::Loan(loan), len);
        Self {
            block: Some(Arc::new(block)),
            off: 0,
            len,
        }
    }

    /// Returns the loan that this slice refers to.
    pub(crate) fn loan(&self) -> Option<&dyn Loan> {
        match &self.block.as_ref()?.memory {
            Memory::Loan(loan) => Some(&**loan),
            Memory::Owned(_) | Memory::Shared(_) => None,
        }
    }

    /// Returns whether the memory is on loan.
    #[inline]
    pub(crate) fn is_loan(&self) -> bool {
        self.loan().is_some()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the slice has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let off = self.off as usize;
        self.block
            .as_ref()
            .map_or(&[], |b| &b.bytes()[off..off + self.len as usize])
    }

    /// Returns the bytes of memory that this slice keeps allocated: those of its whole block.
    pub fn pinned(&self) -> usize {
        self.block.as_ref().map_or(0, |b| b.capacity())
    }

    /// Returns a part of this slice, which shares its memory.
    ///
    /// # Panics
    /// If the range ends after the slice.
    #[inline]
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len());
        Self {
            block: self.block.clone(),
            off: self.off + range.start as u32,
            len: (range.end - range.start) as u32,
        }
    }

    /// Removes the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len());
        self.off += n as u32;
        self.len -= n as u32;
    }

    /// Keeps only the first `n` bytes; no effect if there are fewer.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n as u32);
    }

    /// Removes the first `n` bytes and returns them as a slice.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    #[inline]
    #[must_use]
    pub fn split_to(&mut self, n: usize) -> Self {
        let head = self.slice(0..n);
        self.advance(n);
        head
    }

    /// Appends `next` if it follows this slice directly in the same block.
    ///
    /// # Errors
    /// Returns `next` otherwise.
    #[inline]
    pub fn try_join(&mut self, next: Self) -> Result<(), Self> {
        if !self.is_contiguous_with(&next) {
            return Err(next);
        }
        self.len += next.len;
        Ok(())
    }

    /// Returns whether both slices keep the same memory allocated, so that the second one pins no
    /// more.
    #[inline]
    #[must_use]
    pub fn shares_block_with(&self, other: &Self) -> bool {
        match (&self.block, &other.block) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Returns whether `next` follows this slice directly in the same block.
    #[inline]
    pub(crate) fn is_contiguous_with(&self, next: &Self) -> bool {
        match (&self.block, &next.block) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) && self.off + self.len == next.off,
            _ => false,
        }
    }

    /// Returns the bytes as `Bytes`, without a copy: the block stays allocated until they are
    /// dropped.
    ///
    /// Memory on loan is copied, since `Bytes` keeps an address and a [`Loan`] may move.
    pub fn into_bytes(self) -> Bytes {
        match self.block.as_deref() {
            Some(Block {
                memory: Memory::Shared(bytes),
                ..
            }) => bytes.slice(self.off as usize..(self.off + self.len) as usize),
            Some(Block {
                memory: Memory::Loan(loan),
                ..
            }) => {
                let copy = Bytes::copy_from_slice(&self);
                loan.on_copied();
                copy
            }
            _ => Bytes::from_owner(self),
        }
    }
}

impl From<Bytes> for Slice {
    /// Shares `bytes` without copying them.
    ///
    /// # Panics
    /// If there are 4 GiB or more; convert them in parts.
    fn from(bytes: Bytes) -> Self {
        let len = u32::try_from(bytes.len()).expect("a slice is shorter than 4 GiB");
        if len == 0 {
            return Self::default();
        }
        let block = Arc::new(Block::lone(Memory::Shared(bytes), len));
        Self {
            block: Some(block),
            off: 0,
            len,
        }
    }
}

impl Drop for Slice {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            release(block);
        }
    }
}

impl Deref for Slice {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for Slice {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Slice {}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::Slice;
    use crate::Pool;

    #[test]
    fn only_adjacent_slices_of_a_block_are_joined() {
        let pool = Pool::new(1 << 20);
        let mut buf = pool.alloc(100);
        buf.write(&[7; 100]);
        let whole = buf.freeze();
        let (mut a, b, c) = (whole.slice(0..10), whole.slice(10..30), whole.slice(40..50));
        assert!(a.try_join(b).is_ok());
        assert_eq!(a.len(), 30);
        assert!(a.try_join(c).is_err());
        assert!(a.try_join(Slice::copied_from(b"x")).is_err());
    }

    #[test]
    fn into_bytes_of_shared_memory_does_not_copy() {
        let bytes = Bytes::from_static(b"abcdef");
        let slice = Slice::from(bytes.clone());
        let part = slice.slice(2..4).into_bytes();
        assert_eq!(&*part, b"cd");
        assert_eq!(part.as_ptr(), bytes[2..].as_ptr());
    }

    #[test]
    fn pooled_slice_outlives_its_pool() {
        let pool = Pool::new(1 << 20);
        let mut buf = pool.alloc(3);
        buf.write(b"xyz");
        let bytes = buf.freeze().into_bytes();
        drop(pool);
        assert_eq!(&*bytes, b"xyz");
    }
}
