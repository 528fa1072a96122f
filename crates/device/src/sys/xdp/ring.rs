//! The rings of an `AF_XDP` socket: arrays with one producer and one consumer, one of which is the
//! kernel. Indices count all entries ever produced or consumed, and wrap around.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{off_t, xdp_ring_offset};

use super::Mapping;

/// A type of ring entries.
///
/// # Safety
/// Any bytes must be valid.
pub(crate) unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: integers.
unsafe impl Entry for libc::xdp_desc {}

/// The mapped memory of a ring.
pub(super) struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    /// Number of entries, a power of two.
    len: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        at: off_t,
        offsets: &xdp_ring_offset,
        len: u32,
    ) -> io::Result<Self> {
        assert!(len.is_power_of_two(), "the kernel has accepted the length");
        let entries = offsets.desc as usize;
        let mapping = Mapping::new(Some((socket, at)), entries + len as usize * size_of::<T>())?;
        let word = |offset: u64| {
            let offset = offset as usize;
            let inside = offset.is_multiple_of(4) && offset + 4 <= entries;
            inside.then_some(offset).ok_or(io::ErrorKind::InvalidData)
        };
        if !entries.is_multiple_of(align_of::<T>()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            producer: word(offsets.producer)?,
            consumer: word(offsets.consumer)?,
            flags: word(offsets.flags)?,
            mapping,
            entries,
            len,
            entry: PhantomData,
        })
    }

    /// Returns an index or the flags, at an offset that `map` has checked.
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the word lies within the mapping, is aligned, and both sides access it
        // atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.start.add(offset).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let place = (index & (self.len - 1)) as usize;
        // SAFETY: the mapping has `len` entries from `entries` on.
        unsafe { self.mapping.start.add(self.entries).cast::<T>().add(place) }
    }
}

/// A ring whose entries this process produces.
pub(crate) struct ProducerRing<T> {
    ring: Ring<T>,
    /// The number of entries written so far.
    written: u32,
    /// The number of entries that are visible to the kernel.
    published: u32,
}

impl<T: Entry> ProducerRing<T> {
    pub(super) const fn new(ring: Ring<T>) -> Self {
        Self {
            ring,
            written: 0,
            published: 0,
        }
    }

    /// Writes an entry, which becomes visible to the kernel with [`publish`](Self::publish). Returns
    /// `false` if the ring is full.
    pub(crate) fn push(&mut self, entry: T) -> bool {
        // Acquire: the kernel has read the old entry before it is overwritten.
        let consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        if self.written.wrapping_sub(consumed) >= self.ring.len {
            return false;
        }
        // SAFETY: the kernel has consumed this entry and sees the new one only when published.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        true
    }

    pub(crate) fn publish(&mut self) {
        if self.published == self.written {
            return;
        }
        self.published = self.written;
        // Release: the entries and their frames become visible to the kernel before the index.
        let producer = self.ring.word(self.ring.producer);
        producer.store(self.written, Ordering::Release);
    }

    /// Returns the number of entries that the kernel has not consumed.
    pub(crate) fn unconsumed(&self) -> u32 {
        let consumed = self.ring.word(self.ring.consumer).load(Ordering::Acquire);
        // A faulty kernel may report more entries consumed than produced: the result is at most a full
        // ring.
        self.written.wrapping_sub(consumed).min(self.ring.len)
    }

    /// Returns whether the kernel reads new entries only in a system call.
    pub(crate) fn needs_wakeup(&self) -> bool {
        let flags = self.ring.word(self.ring.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring whose entries the kernel produces.
pub(crate) struct ConsumerRing<T> {
    ring: Ring<T>,
    /// The number of entries read so far.
    read: u32,
    /// The number of entries that the kernel may overwrite.
    released: u32,
    /// The number of entries that the kernel had produced when it was last loaded.
    produced: u32,
}

impl<T: Entry> ConsumerRing<T> {
    pub(super) const fn new(ring: Ring<T>) -> Self {
        Self {
            ring,
            read: 0,
            released: 0,
            produced: 0,
        }
    }

    /// Returns the next entry, whose slot returns to the kernel with [`release`](Self::release).
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.read == self.produced {
            // Acquire: the entries and their frames are read after the index.
            self.produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
            if self.read == self.produced {
                return None;
            }
        }
        // SAFETY: the kernel has written this entry and leaves it alone until it is released.
        let entry = unsafe { self.ring.entry(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    pub(crate) fn release(&mut self) {
        if self.released == self.read {
            return;
        }
        self.released = self.read;
        // Release: the entries have been read before the kernel overwrites them.
        let consumer = self.ring.word(self.ring.consumer);
        consumer.store(self.read, Ordering::Release);
    }
}
