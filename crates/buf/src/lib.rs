//! Payload memory: refcounted slices, chains of them, and the pool that they return to.
//!
//! A payload byte is copied once on the way in (into a [`Room`]) and once on the way out; between
//! the two, layers hand [`Chain`]s of [`Slice`]s to each other. When the last slice of a block
//! goes, its memory returns to the [`Pool`] it came from, last in first out, so that the next
//! write finds it warm in the cache.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod chain;
mod loan;
mod pool;
mod slice;
mod sync;

pub use chain::Chain;
pub use loan::Loan;
pub use pool::{Pool, PoolStats};
pub use slice::{Room, Slice};
