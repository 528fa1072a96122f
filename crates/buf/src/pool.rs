//! A pool of blocks: a free list per size class, last in, first out, with a limit on free memory.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::reserve::{CLASSES, Reserve, first_stock};
use crate::slice::{Block, Room};
use crate::sync::{Arc, Mutex};

/// Value of `kept_bytes` during memory pressure: no block fits beside it, so that `put` inspects
/// `short`.
const SHORTAGE: usize = usize::MAX / 2;

/// The free lists, shared by the pool and every block that returns to it.
pub(crate) struct Shelf {
    inner: Mutex<Blocks>,
    limit_bytes: usize,
    /// Memory pressure: the allocator failed. `free` is empty, and blocks return to the stock.
    short: AtomicBool,
}

/// The state under the lock; one lock for all, since locking costs more than the work under it.
struct Blocks {
    free: [Vec<Arc<Block>>; CLASSES.len()],
    kept_bytes: usize,
    reserve: Reserve,
    /// Set when the pool is dropped: blocks that return later are freed.
    closed: bool,
}

impl Shelf {
    pub(crate) fn put(&self, block: Arc<Block>) {
        let capacity = block.capacity();
        let Some(class) = CLASSES.iter().position(|&c| c == capacity) else {
            return;
        };
        // Under contention, freeing costs less than waiting.
        if let Some(mut inner) = self.inner.try_lock()
            && !inner.closed
            && inner.kept_bytes + capacity <= self.limit_bytes
        {
            inner.kept_bytes += capacity;
            inner.free[class].push(block);
            return;
        }
        if self.is_short() {
            self.put_in_stock(class, block);
        }
    }

    #[cold]
    fn put_in_stock(&self, class: usize, block: Arc<Block>) {
        let mut inner = self.inner.lock();
        if inner.kept_bytes == SHORTAGE && !inner.closed {
            let refused = inner.reserve.put(class, block);
            drop(inner);
            drop(refused);
        }
    }

    fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
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
        if inner.kept_bytes != SHORTAGE {
            inner.kept_bytes = 0;
        }
        let blocks = core::mem::take(&mut inner.free);
        let stock = close.then(|| inner.reserve.take_stock());
        drop(inner);
        drop((blocks, stock));
    }

    /// Ends memory pressure if the reserve can be allocated again. Returns whether there is none now.
    fn end_shortage(&self) -> bool {
        let mut inner = self.inner.lock();
        if !inner.reserve.hold() {
            return false;
        }
        if inner.kept_bytes == SHORTAGE {
            inner.kept_bytes = 0;
            self.short.store(false, Ordering::Relaxed);
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
#[inline(never)]
fn allocate(shelf: &Arc<Shelf>, class: usize) -> Option<Arc<Block>> {
    let new = || Block::try_owned(CLASSES[class], Some(shelf.clone())).map(Arc::new);
    if !shelf.is_short() {
        if let Some(block) = new() {
            return Some(block);
        }
        // Freeing the blocks of other classes may make room.
        shelf.clear(false);
        if let Some(block) = new() {
            return Some(block);
        }
        begin_shortage(shelf);
    } else if shelf.end_shortage() {
        return new();
    }
    None
}

/// Starts memory pressure: replaces the reserve by a stock of blocks, and leaves the rest of it to
/// bookkeeping.
#[cold]
fn begin_shortage(shelf: &Arc<Shelf>) {
    let mut inner = shelf.inner.lock();
    if inner.kept_bytes == SHORTAGE {
        return;
    }
    inner.kept_bytes = SHORTAGE;
    inner.reserve.release();
    shelf.short.store(true, Ordering::Relaxed);
    let blocks = core::mem::take(&mut inner.free);
    drop(inner);
    drop(blocks);
    for class in first_stock() {
        if let Some(block) = Block::try_owned(CLASSES[class], Some(shelf.clone())) {
            shelf.put_in_stock(class, Arc::new(block));
        }
    }
}

/// The owner of the free lists; its drop frees them, which breaks their cycle of references.
struct Owner(Arc<Shelf>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.clear(true);
    }
}

/// A pool of memory blocks, to which a block returns when its last reader drops it.
///
/// Clones are handles to the same pool.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// The memory that a pool keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
        let short = !reserve.hold();
        let shelf = Shelf {
            inner: Mutex::new(Blocks {
                free: Default::default(),
                kept_bytes: if short { SHORTAGE } else { 0 },
                reserve,
                closed: false,
            }),
            limit_bytes: limit_bytes.min(SHORTAGE - 1),
            short: AtomicBool::new(short),
        };
        Self {
            owner: Arc::new(Owner(Arc::new(shelf))),
        }
    }

    /// Returns an empty buffer for `want` bytes: a block of the smallest size class that holds them, or
    /// of the largest class if none does (use several buffers then).
    ///
    /// Aborts the process if the allocator fails, like most allocations in Rust; use
    /// [`try_room`](Self::try_room) where that must not happen.
    pub fn room(&self, want: usize) -> Room {
        let class = class_for(want);
        self.try_class(class).unwrap_or_else(|| {
            let block = Block::owned(CLASSES[class], Some(self.owner.0.clone()));
            Room::new(Arc::new(block))
        })
    }

    /// Returns a buffer like [`room`](Self::room), or `None` if the allocator fails.
    ///
    /// A failure starts memory pressure: the pool frees its free blocks and its reserve
    /// ([`set_reserve`](Self::set_reserve)). Memory pressure ends when the reserve can be allocated
    /// again, which each call of this function and of [`end_shortage`](Self::end_shortage) tries.
    #[inline]
    pub fn try_room(&self, want: usize) -> Option<Room> {
        self.try_class(class_for(want))
    }

    /// Returns a buffer like [`try_room`](Self::try_room), but under memory pressure from a stock of at
    /// most 1 MiB of small blocks, with room for possibly fewer than `want` bytes.
    ///
    /// It is meant for data that a connection needs to make progress, and for packets that are not kept.
    pub fn try_room_from_reserve(&self, want: usize) -> Option<Room> {
        let class = class_for(want);
        self.try_class(class).or_else(|| {
            let mut inner = self.owner.0.inner.lock();
            inner.reserve.take(class).map(Room::new)
        })
    }

    #[inline]
    fn try_class(&self, class: usize) -> Option<Room> {
        let shelf = &self.owner.0;
        let block = shelf.take(class).or_else(|| allocate(shelf, class))?;
        Some(Room::new(block))
    }

    /// Returns whether the allocator failed, and the reserve could not be allocated since.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.owner.0.is_short()
    }

    /// Tries to end memory pressure. Returns whether there is none now.
    #[cold]
    pub fn end_shortage(&self) -> bool {
        self.owner.0.end_shortage()
    }

    /// Sets the size of the reserve in bytes; 2 MiB by default.
    ///
    /// The reserve takes address space but no memory. Memory pressure lasts while it cannot be
    /// allocated, so that [`usize::MAX`] makes all later allocations fail in a test.
    pub fn set_reserve(&self, bytes: usize) {
        let shelf = &self.owner.0;
        let held = shelf.inner.lock().reserve.resize(bytes);
        if held {
            shelf.end_shortage();
        } else {
            begin_shortage(shelf);
        }
    }

    /// Returns the capacity in bytes that [`room`](Self::room) would return for `want` bytes.
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
            kept_bytes: if kept_bytes == SHORTAGE {
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
    fn memory_comes_home_and_is_used_again() {
        let pool = Pool::new(1 << 20);
        let mut room = pool.room(4096);
        room.extend(b"first");
        let slice = room.freeze();
        let (other, memory) = (slice.clone(), slice.as_ptr());
        drop(slice);
        assert_eq!(pool.stats().kept_bytes, 0);
        drop(other);
        assert_eq!(pool.stats().kept_bytes, 4096);
        let mut again = pool.room(3000);
        assert_eq!((again.spare_mut().as_ptr(), again.len()), (memory, 0));
    }

    #[test]
    fn keeps_no_more_than_its_limit() {
        let pool = Pool::new(10_000);
        let rooms: Vec<_> = (0..10).map(|_| pool.room(4096)).collect();
        drop(rooms);
        assert_eq!(pool.stats().kept_bytes, 8192);
        pool.trim();
        assert_eq!(pool.stats().kept_bytes, 0);
    }

    #[test]
    fn a_shortage_leaves_a_stock_and_ends() {
        let pool = Pool::new(1 << 20);
        drop(pool.room(64 << 10));
        assert!(pool.try_room(64 << 10).is_some());
        pool.set_reserve(usize::MAX);
        assert!(pool.is_short());
        assert!(pool.try_room(1).is_none());
        assert_eq!(pool.stats().kept_bytes, 0);
        // The stock is reused, and does not grow.
        let take = || {
            let rooms = core::iter::from_fn(|| pool.try_room_from_reserve(4096));
            let rooms: Vec<_> = rooms.collect();
            rooms.iter().map(crate::Room::capacity).sum::<usize>()
        };
        let stock = take();
        assert!(stock > 256 << 10 && stock < 1 << 20, "{stock} bytes");
        assert_eq!(take(), stock);
        assert_eq!(
            pool.try_room_from_reserve(256 << 10).unwrap().capacity(),
            256 << 10
        );
        pool.set_reserve(4096);
        assert!(!pool.is_short());
        assert_eq!(pool.try_room(64 << 10).unwrap().capacity(), 64 << 10);
    }

    #[test]
    fn oversize_requests_get_the_largest_class() {
        let pool = Pool::new(0);
        assert_eq!(pool.room(10 << 20).capacity(), 256 << 10);
        assert_eq!(Pool::capacity_for(10 << 20), 256 << 10);
        assert_eq!(Pool::capacity_for(1), 512);
    }
}
