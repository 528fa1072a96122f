//! The memory for data of the host's sockets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fullsend::{Pool, WriteBuf};
use tokio::time::sleep;

/// Time after which a refused allocation is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Size of the block for a read after a larger one was refused, bytes.
const SMALL_BYTES: usize = 2 << 10;

/// The stack's payload memory for the relays. If the system refuses an allocation, e.g. because of
/// `ulimit -v`, the process does not end, but the data stays in the host's socket.
pub(crate) struct PayloadMemory {
    pool: Pool,
    refused: AtomicU64,
}

impl PayloadMemory {
    pub(crate) const fn new(pool: Pool) -> Self {
        let refused = AtomicU64::new(0);
        Self { pool, refused }
    }

    /// Returns the pool itself, for its statistics.
    pub(crate) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the number of refused allocations.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Allocates a block for `want` bytes. Returns `None` if memory is refused.
    pub(crate) fn try_alloc(&self, want: usize) -> Option<WriteBuf> {
        let block = self.pool.try_alloc(want);
        if block.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        block
    }

    /// Allocates a block for `want` bytes, or while memory is refused a small one from the reserve, which
    /// it shares with the stack's connections. Returns `None` if the reserve is empty.
    pub(crate) fn try_alloc_any(&self, want: usize) -> Option<WriteBuf> {
        let small = || self.pool.try_alloc_from_reserve(want.min(SMALL_BYTES));
        self.try_alloc(want).or_else(small)
    }

    /// Waits before another attempt after memory was refused. The timer is allocated, so that a
    /// connection that never waits has no memory for it.
    pub(crate) async fn wait(&self) {
        Box::pin(sleep(RETRY_INTERVAL)).await;
    }

    /// Makes all later allocations fail. Returns all blocks of the reserve.
    #[cfg(test)]
    pub(crate) fn exhaust(&self) -> Vec<WriteBuf> {
        self.pool.set_reserve(usize::MAX);
        let sizes = [512, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];
        let of_size = |size| {
            let take = move || self.pool.try_alloc_from_reserve(size);
            std::iter::from_fn(take)
        };
        sizes.into_iter().flat_map(of_size).collect()
    }
}
