//! A pool of blocks: a free list per size class, last in, first out, with a limit on free memory.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use super::reserve::{CLASSES, Reserve, initial_stock};
use super::slice::{Block, WriteBuf};
use super::sync::{Arc, Mutex};

/// Value of `kept_bytes` during memory pressure: no block fits beside it, so that `put` inspects
/// `under_pressure`.
const UNDER_PRESSURE: usize = usize::MAX / 2;

/// The free lists, shared by the pool and every block that returns to it.
pub(crate) struct FreeLists {
    inner: Mutex<FreeListsInner>,
    limit_bytes: usize,
    /// Memory pressure: the allocator failed. `free` is empty, and blocks return to the stock.
    under_pressure: AtomicBool,
}

/// The state under the lock; one lock for all, since locking costs more than the work under it.
struct FreeListsInner {
    free: [Vec<Arc<Block>>; CLASSES.len()],
    kept_bytes: usize,
    reserve: Reserve,
    /// Set when the pool is dropped: blocks that return later are freed.
    closed: bool,
}

impl FreeLists {
    pub(crate) fn put(&self, block: Arc<Block>) {
        let (capacity, class) = (block.capacity(), block.class());
        // Under contention, freeing costs less than waiting.
        if let Some(mut inner) = self.inner.try_lock()
            && !inner.closed
            && inner.kept_bytes + capacity <= self.limit_bytes
        {
            inner.kept_bytes += capacity;
            inner.free[class].push(block);
            return;
        }
        self.put_or_free(class, block);
    }

    #[cold]
    fn put_or_free(&self, class: usize, block: Arc<Block>) {
        if self.is_under_pressure() {
            self.put_stock(class, block);
        }
    }

    fn put_stock(&self, class: usize, block: Arc<Block>) {
        let mut inner = self.inner.lock();
        if inner.kept_bytes == UNDER_PRESSURE && !inner.closed {
            let refused = inner.reserve.put(class, block);
            drop(inner);
            drop(refused);
        }
    }

    fn is_under_pressure(&self) -> bool {
        self.under_pressure.load(Ordering::Relaxed)
    }

    fn take(&self, class: usize) -> Option<Arc<Block>> {
        let mut inner = self.inner.lock();
        let block = inner.free[class].pop()?;
        inner.kept_bytes -= CLASSES[class];
        Some(block)
    }

    /// Frees the free blocks, after unlocking: a block may have the last reference to a pool.
    fn clear(&self, close: bool) {
        let mut inner = self.inner.lock();
        inner.closed |= close;
        if inner.kept_bytes != UNDER_PRESSURE {
            inner.kept_bytes = 0;
        }
        let blocks = core::mem::take(&mut inner.free);
        let stock = close.then(|| inner.reserve.take_stock());
        drop(inner);
        drop((blocks, stock));
    }

    /// Ends memory pressure if the reserve can be allocated again. Returns whether there is none
    /// now.
    fn try_end_pressure(&self) -> bool {
        let mut inner = self.inner.lock();
        if !inner.reserve.try_allocate() {
            return false;
        }
        if inner.kept_bytes == UNDER_PRESSURE {
            inner.kept_bytes = 0;
            self.under_pressure.store(false, Ordering::Relaxed);
            let stock = inner.reserve.take_stock();
            drop(inner);
            stock
                .into_iter()
                .flatten()
                .for_each(|block| self.put(block));
        }
        true
    }
}

/// Allocates a block; if the allocator fails, memory pressure begins and the result is `None`.
#[cold]
fn allocate(free_lists: &Arc<FreeLists>, class: usize) -> Option<Arc<Block>> {
    let new = || Block::try_of_pool(class, free_lists).map(Arc::new);
    if !free_lists.is_under_pressure() {
        if let Some(block) = new() {
            return Some(block);
        }
        // Freeing the blocks of other classes may make room.
        free_lists.clear(false);
        if let Some(block) = new() {
            return Some(block);
        }
        begin_pressure(free_lists);
    } else if free_lists.try_end_pressure() {
        return new();
    }
    None
}

/// Starts memory pressure: replaces the reserve by a stock of blocks, and leaves the rest of it to
/// bookkeeping.
fn begin_pressure(free_lists: &Arc<FreeLists>) {
    let mut inner = free_lists.inner.lock();
    if inner.kept_bytes == UNDER_PRESSURE {
        return;
    }
    inner.kept_bytes = UNDER_PRESSURE;
    inner.reserve.release();
    free_lists.under_pressure.store(true, Ordering::Relaxed);
    let blocks = core::mem::take(&mut inner.free);
    drop(inner);
    drop(blocks);
    for class in initial_stock() {
        if let Some(block) = Block::try_of_pool(class, free_lists) {
            free_lists.put_stock(class, Arc::new(block));
        }
    }
}

/// The owner of the free lists; its drop frees them, which breaks their cycle of references.
struct PoolOwner(Arc<FreeLists>);

impl Drop for PoolOwner {
    fn drop(&mut self) {
        self.0.clear(true);
    }
}

/// A pool of memory blocks, to which a block returns when its last reader drops it.
///
/// Clones are handles to the same pool.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<PoolOwner>,
}

/// The memory that a pool keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes in free blocks.
    pub kept_bytes: usize,
    /// Most bytes in free blocks; blocks that return beyond that are freed.
    pub limit_bytes: usize,
}

impl Pool {
    /// Returns a pool that keeps at most `limit_bytes` of free memory.
    pub fn new(limit_bytes: usize) -> Self {
        let mut reserve = Reserve::new();
        let under_pressure = !reserve.try_allocate();
        let free_lists = FreeLists {
            inner: Mutex::new(FreeListsInner {
                free: Default::default(),
                kept_bytes: if under_pressure { UNDER_PRESSURE } else { 0 },
                reserve,
                closed: false,
            }),
            limit_bytes: limit_bytes.min(UNDER_PRESSURE - 1),
            under_pressure: AtomicBool::new(under_pressure),
        };
        Self {
            owner: Arc::new(PoolOwner(Arc::new(free_lists))),
        }
    }

    /// Returns an empty buffer for `want` bytes: a block of the smallest size class that holds
    /// them, or of the largest class if none does (use several buffers then).
    ///
    /// Aborts the process if the allocator fails, like most allocations in Rust; use
    /// [`try_alloc`](Self::try_alloc) where that must not happen.
    pub fn alloc(&self, want: usize) -> WriteBuf {
        let class = class_for(want);
        self.try_class(class).unwrap_or_else(|| {
            let block = Block::of_pool(Vec::new(), class, &self.owner.0);
            WriteBuf::new(Arc::new(block))
        })
    }

    /// Returns a buffer like [`alloc`](Self::alloc), or `None` if the allocator fails.
    ///
    /// A failure starts memory pressure: the pool frees its free blocks and its reserve
    /// ([`set_reserve`](Self::set_reserve)). Memory pressure ends when the reserve can be allocated
    /// again, which each call of this function and of [`try_end_pressure`](Self::try_end_pressure)
    /// tries.
    #[inline]
    pub fn try_alloc(&self, want: usize) -> Option<WriteBuf> {
        self.try_class(class_for(want))
    }

    /// Returns a buffer like [`try_alloc`](Self::try_alloc), but under memory pressure from a stock
    /// of at most 1 MiB of small blocks, with room for possibly fewer than `want` bytes.
    ///
    /// It is meant for data that a connection needs to make progress, and for packets that are not
    /// kept.
    pub fn try_alloc_from_reserve(&self, want: usize) -> Option<WriteBuf> {
        let class = class_for(want);
        self.try_class(class).or_else(|| {
            let mut inner = self.owner.0.inner.lock();
            inner.reserve.take(class).map(WriteBuf::new)
        })
    }

    #[inline]
    fn try_class(&self, class: usize) -> Option<WriteBuf> {
        let free_lists = &self.owner.0;
        let block = free_lists
            .take(class)
            .or_else(|| allocate(free_lists, class))?;
        Some(WriteBuf::new(block))
    }

    /// Returns whether the allocator failed, and the reserve could not be allocated since.
    #[inline]
    pub fn is_under_pressure(&self) -> bool {
        self.owner.0.is_under_pressure()
    }

    /// Tries to end memory pressure. Returns whether there is none now.
    pub fn try_end_pressure(&self) -> bool {
        self.owner.0.try_end_pressure()
    }

    /// Sets the size of the reserve in bytes; 2 MiB by default.
    ///
    /// The reserve takes address space but no memory. Memory pressure lasts while it cannot be
    /// allocated, so that [`usize::MAX`] makes all later allocations fail in a test.
    pub fn set_reserve(&self, bytes: usize) {
        let free_lists = &self.owner.0;
        let allocated = free_lists.inner.lock().reserve.resize(bytes);
        if allocated {
            free_lists.try_end_pressure();
        } else {
            begin_pressure(free_lists);
        }
    }

    /// Returns the capacity in bytes that [`alloc`](Self::alloc) would return for `want` bytes.
    pub fn capacity_for(want: usize) -> usize {
        CLASSES[class_for(want)]
    }

    /// Frees all free blocks.
    pub fn trim(&self) {
        self.owner.0.clear(false);
    }

    /// Returns the memory that the pool keeps now.
    pub fn stats(&self) -> PoolStats {
        let kept_bytes = self.owner.0.inner.lock().kept_bytes;
        PoolStats {
            // Under memory pressure the pool keeps nothing but the stock.
            kept_bytes: if kept_bytes == UNDER_PRESSURE {
                0
            } else {
                kept_bytes
            },
            limit_bytes: self.owner.0.limit_bytes,
        }
    }
}

/// Returns the smallest class that holds `want` bytes, or the largest class.
#[inline]
fn class_for(want: usize) -> usize {
    let class = CLASSES.iter().position(|&c| c >= want);
    class.unwrap_or(CLASSES.len() - 1)
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::Pool;

    #[test]
    fn a_dropped_block_is_reused() {
        let pool = Pool::new(1 << 20);
        let mut buf = pool.alloc(4096);
        buf.write(b"first");
        let slice = buf.freeze();
        let (other, memory) = (slice.clone(), slice.as_ptr());
        drop(slice);
        assert_eq!(pool.stats().kept_bytes, 0);
        drop(other);
        assert_eq!(pool.stats().kept_bytes, 4096);
        let mut again = pool.alloc(3000);
        assert_eq!((again.spare_mut().as_ptr(), again.len()), (memory, 0));
    }

    #[test]
    fn keeps_no_more_than_its_limit() {
        let pool = Pool::new(10_000);
        let bufs: Vec<_> = (0..10).map(|_| pool.alloc(4096)).collect();
        drop(bufs);
        assert_eq!(pool.stats().kept_bytes, 8192);
        pool.trim();
        assert_eq!(pool.stats().kept_bytes, 0);
    }

    #[test]
    fn memory_pressure_leaves_a_stock_and_ends() {
        let pool = Pool::new(1 << 20);
        drop(pool.alloc(64 << 10));
        assert!(pool.try_alloc(64 << 10).is_some());
        pool.set_reserve(usize::MAX);
        assert!(pool.is_under_pressure());
        assert!(pool.try_alloc(1).is_none());
        assert_eq!(pool.stats().kept_bytes, 0);
        // The stock is reused, and does not grow.
        let take = || {
            let bufs = core::iter::from_fn(|| pool.try_alloc_from_reserve(4096));
            let bufs: Vec<_> = bufs.collect();
            bufs.iter().map(crate::WriteBuf::capacity).sum::<usize>()
        };
        let stock = take();
        assert!(stock > 256 << 10 && stock < 1 << 20, "{stock} bytes");
        assert_eq!(take(), stock);
        assert_eq!(
            pool.try_alloc_from_reserve(256 << 10).unwrap().capacity(),
            256 << 10
        );
        pool.set_reserve(4096);
        assert!(!pool.is_under_pressure());
        assert_eq!(pool.try_alloc(64 << 10).unwrap().capacity(), 64 << 10);
    }

    #[test]
    fn oversize_requests_get_the_largest_class() {
        let pool = Pool::new(0);
        assert_eq!(pool.alloc(10 << 20).capacity(), 256 << 10);
        assert_eq!(Pool::capacity_for(10 << 20), 256 << 10);
        assert_eq!(Pool::capacity_for(1), 512);
    }
}
