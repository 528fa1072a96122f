//! A pool of blocks by size class, last in first out, with a bound on what it keeps.

use alloc::vec::Vec;
use core::fmt;

use crate::slice::{Block, Room};
use crate::sync::{Arc, Mutex};

/// Block capacities in bytes. 64 KiB holds the largest classic super-segment; 256 KiB is for
/// device reads and BIG TCP.
const CLASSES: [usize; 6] = [512, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// The free blocks, shared by the pool and every block that wants to come home.
pub(crate) struct Shelf {
    inner: Mutex<Blocks>,
    limit_bytes: usize,
}

/// One lock for all, since taking a lock costs more than what is done under it.
struct Blocks {
    free: [Vec<Arc<Block>>; CLASSES.len()],
    kept_bytes: usize,
    /// Set when the pool goes: blocks that come home later are freed.
    closed: bool,
}

impl Shelf {
    pub(crate) fn put(&self, block: Arc<Block>) {
        let capacity = block.capacity();
        let Some(class) = CLASSES.iter().position(|&c| c == capacity) else {
            return;
        };
        // Under contention freeing is cheaper than waiting.
        if let Some(mut inner) = self.inner.try_lock()
            && !inner.closed
            && inner.kept_bytes + capacity <= self.limit_bytes
        {
            inner.kept_bytes += capacity;
            inner.free[class].push(block);
        }
    }

    fn take(&self, class: usize) -> Option<Arc<Block>> {
        let mut inner = self.inner.lock();
        let block = inner.free[class].pop()?;
        inner.kept_bytes -= CLASSES[class];
        Some(block)
    }

    /// Frees what is kept, after the lock: a block that goes may be a pool's last handle.
    fn clear(&self, close: bool) {
        let mut inner = self.inner.lock();
        inner.closed |= close;
        inner.kept_bytes = 0;
        let blocks = core::mem::take(&mut inner.free);
        drop(inner);
        drop(blocks);
    }
}

/// The pool itself; closing it frees what it keeps, and breaks the shelf's circle of references.
struct Owner(Arc<Shelf>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.clear(true);
    }
}

/// Gives out memory to fill, and takes it back when its last reader is done.
///
/// Clones are handles to the same pool.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// What a pool holds at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolStats {
    /// Bytes in free blocks, ready for use.
    pub kept_bytes: usize,
    /// The most it keeps; what comes home beyond that is freed.
    pub limit_bytes: usize,
}

impl Pool {
    /// A pool that keeps at most `limit_bytes` of free memory.
    pub fn new(limit_bytes: usize) -> Self {
        let shelf = Shelf {
            inner: Mutex::new(Blocks {
                free: Default::default(),
                kept_bytes: 0,
                closed: false,
            }),
            limit_bytes,
        };
        Self {
            owner: Arc::new(Owner(Arc::new(shelf))),
        }
    }

    /// Empty memory for `want` bytes: the least size class that holds them, or the largest class
    /// when none does (fill several rooms then).
    pub fn room(&self, want: usize) -> Room {
        let class = CLASSES
            .iter()
            .position(|&c| c >= want)
            .unwrap_or(CLASSES.len() - 1);
        let shelf = &self.owner.0;
        let block = shelf
            .take(class)
            .unwrap_or_else(|| Arc::new(Block::owned(CLASSES[class], Some(shelf.clone()))));
        Room::new(block)
    }

    /// The capacity that [`room`](Self::room) would give for `want` bytes.
    pub fn capacity_for(want: usize) -> usize {
        CLASSES
            .into_iter()
            .find(|&c| c >= want)
            .unwrap_or(CLASSES[CLASSES.len() - 1])
    }

    /// Frees all memory that nobody uses.
    pub fn trim(&self) {
        self.owner.0.clear(false);
    }

    /// What the pool keeps now.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            kept_bytes: self.owner.0.inner.lock().kept_bytes,
            limit_bytes: self.owner.0.limit_bytes,
        }
    }
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
    fn oversize_requests_get_the_largest_class() {
        let pool = Pool::new(0);
        assert_eq!(pool.room(10 << 20).capacity(), 256 << 10);
        assert_eq!(Pool::capacity_for(10 << 20), 256 << 10);
        assert_eq!(Pool::capacity_for(1), 512);
    }
}
