//! Payload memory: refcounted slices, chains of slices, and the pool that their memory returns to.
//!
//! Memory comes in blocks of a few size classes. A [`WriteBuf`] is a new block with its write
//! position: the buffer that data is written to. [`WriteBuf::freeze`] makes it a [`Slice`], a
//! refcounted part of a block that is only read. A payload byte is copied once on the way in (into
//! a `WriteBuf`) and once on the way out; in between, layers pass [`Chain`]s of slices. When the
//! last slice of a block is dropped, the block returns to the free list of its [`Pool`], last in,
//! first out, so that the next write finds it in the cache.
//!
//! [`Pool::try_alloc`] and [`Slice::try_copied_from`] return `None` if the allocator fails. Small
//! allocations of bookkeeping (a block's reference count, the entries of a queue) still abort the
//! process if they fail; a pool holds a reserve for them, and frees it at the first failure.

mod chain;
mod loan;
mod pool;
mod reserve;
mod slice;
mod sync;

pub use chain::Chain;
pub use loan::Loan;
pub use pool::{Pool, PoolStats};
pub use slice::{Slice, WriteBuf};
pub use sync::Mutex;
