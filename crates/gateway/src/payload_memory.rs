//! The memory that data of the host's sockets is read into.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fullsend::{Pool, WriteBuf};
use tokio::time::sleep;

/// How often an allocation that was refused is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Size of the block that a read gets where a larger one is refused, bytes.
const SMALL_BYTES: usize = 2 << 10;

/// The stack's payload memory as the relays use it. An allocation that the system refuses, e.g. because of
/// `ulimit -v`, does not end the process: the data stays in the host's socket.
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

    /// Returns how many allocations were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Allocates a block for `want` bytes. `None` if memory is refused.
    pub(crate) fn try_alloc(&self, want: usize) -> Option<WriteBuf> {
        let block = self.pool.try_alloc(want);
        if block.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        block
    }

    /// Allocates a block for `want` bytes, or a small one while memory is refused: the stack's connections
    /// share a reserve of these. `None` if there is none either.
    pub(crate) fn try_alloc_any(&self, want: usize) -> Option<WriteBuf> {
        let small = || self.pool.try_alloc_from_reserve(want.min(SMALL_BYTES));
        self.try_alloc(want).or_else(small)
    }

    /// Waits before another attempt after memory was refused. The timer is allocated, so that a
    /// connection that never waits holds no memory for it.
    pub(crate) async fn wait(&self) {
        Box::pin(sleep(RETRY_INTERVAL)).await;
    }

    /// Makes all later allocations fail, and returns all that the reserve has.
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
