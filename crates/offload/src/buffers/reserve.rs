//! Memory that a pool holds back, so that the process survives if the allocator fails.

use alloc::vec::Vec;

use super::slice::Block;
use super::sync::Arc;

/// Bytes that a pool holds back by default; see [`Pool::set_reserve`](crate::Pool::set_reserve).
/// They are never written, so that they take address space but no page.
const RESERVE_BYTES: usize = 2 << 20;

/// Block capacities in bytes. 64 KiB holds the largest classic super-segment; 256 KiB is for
/// device reads and BIG TCP.
pub(crate) const CLASSES: [usize; 6] = [512, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// Number of blocks of each class that the stock starts with: less than half of the reserve, so
/// that the rest stays for bookkeeping. The block of 256 KiB is for a device to receive into.
const STOCK: [usize; CLASSES.len()] = [256, 0, 96, 8, 0, 1];

/// Largest block that returns to the stock, apart from one of the largest class.
const MAX_STOCK_BLOCK: usize = 16 << 10;

/// Most bytes in the stock.
const MAX_STOCK_BYTES: usize = 1 << 20;

/// The memory of a pool beside its free blocks: the reserve, or the stock of blocks that replaces
/// it under memory pressure.
pub(crate) struct Reserve {
    bytes: usize,
    allocation: Vec<u8>,
    stock: [Vec<Arc<Block>>; CLASSES.len()],
    stock_bytes: usize,
}

impl Reserve {
    pub(crate) fn new() -> Self {
        Self {
            bytes: RESERVE_BYTES,
            allocation: Vec::new(),
            stock: Default::default(),
            stock_bytes: 0,
        }
    }

    /// Allocates the reserve unless it is allocated. Returns whether it is now.
    pub(crate) fn try_allocate(&mut self) -> bool {
        self.allocation.capacity() >= self.bytes
            || self.allocation.try_reserve_exact(self.bytes).is_ok()
    }

    /// Sets the size of the reserve in bytes. Returns whether it is allocated.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        self.bytes = bytes;
        if self.allocation.capacity() > bytes {
            self.allocation = Vec::new();
        }
        self.try_allocate()
    }

    /// Frees the reserve, for the stock and for other allocations.
    pub(crate) fn release(&mut self) {
        self.allocation = Vec::new();
    }

    /// Adds a block to the stock, or returns it if the stock has no use for it.
    pub(crate) fn put(&mut self, class: usize, block: Arc<Block>) -> Option<Arc<Block>> {
        let capacity = CLASSES[class];
        let useful = capacity <= MAX_STOCK_BLOCK || self.stock[class].len() < STOCK[class];
        if !useful || self.stock_bytes + capacity > MAX_STOCK_BYTES {
            return Some(block);
        }
        self.stock_bytes += capacity;
        self.stock[class].push(block);
        None
    }

    /// Removes a block of this class, of the next larger one, or else of the largest smaller one.
    pub(crate) fn take(&mut self, class: usize) -> Option<Arc<Block>> {
        let larger = (class + 1).min(CLASSES.len() - 1);
        let order = (class..=larger).chain((0..class).rev());
        for class in order {
            if let Some(block) = self.stock[class].pop() {
                self.stock_bytes -= CLASSES[class];
                return Some(block);
            }
        }
        None
    }

    /// Empties the stock and returns its blocks.
    pub(crate) fn take_stock(&mut self) -> [Vec<Arc<Block>>; CLASSES.len()] {
        self.stock_bytes = 0;
        core::mem::take(&mut self.stock)
    }
}

/// Returns the classes of the blocks that the stock starts with.
pub(crate) fn initial_stock() -> impl Iterator<Item = usize> {
    let counts = STOCK.into_iter().enumerate().rev();
    counts.flat_map(|(class, count)| core::iter::repeat_n(class, count))
}
