//! Payload memory: refcounted slices, chains of them, and the pool that they return to.
//!
//! A payload byte is copied once on the way in (into a [`Room`]) and once on the way out; between
//! the two, layers hand [`Chain`]s of [`Slice`]s to each other. When the last slice of a block
//! goes, its memory returns to the [`Pool`] it came from, last in first out, so that the next
//! write finds it warm in the cache.
//!
//! Where the allocator refuses, [`Pool::try_room`] and [`Slice::try_copied_from`] return `None`, and
//! the process survives. Small allocations of bookkeeping (a block's reference count, the entries of
//! a queue) still abort when they are refused; a pool holds back a reserve for them and frees it at
//! the first refusal.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod chain;
mod loan;
mod pool;
mod reserve;
mod slice;
mod sync;

pub use chain::Chain;
pub use loan::Loan;
pub use pool::{Pool, PoolStats};
pub use slice::{Room, Slice};
