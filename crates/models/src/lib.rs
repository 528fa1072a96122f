//! Models for [loom](https://docs.rs/loom) of the code that threads share: the source files
//! themselves, with primitives whose interleavings are all tried.
//!
//! The files use the primitives of `crate::sync`: the real ones in their own crates, loom's here,
//! so that the files do not depend on the model.
// The unit tests in the included files need the test setup of their own crates.
#![cfg(not(test))]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "the files belong to other crates; a model uses only some of their items"
)]

extern crate alloc;

#[path = "../../fullsend/src/driver_waker.rs"]
pub mod async_driver_waker;
#[path = "../../offload/src/buffers/chain.rs"]
pub mod chain;
#[path = "../../blocking/src/driver_waker.rs"]
pub mod driver_waker;
pub mod eventfd;
#[path = "../../offload/src/buffers/loan.rs"]
pub mod loan;
pub mod models;
#[path = "../../offload/src/buffers/pool.rs"]
pub mod pool;
#[path = "../../offload/src/buffers/reserve.rs"]
pub mod reserve;
pub mod shard;
#[path = "../../offload/src/buffers/slice.rs"]
pub mod slice;
pub mod sync;
#[path = "../../blocking/src/wait.rs"]
pub mod wait;

pub use chain::Chain;
pub use loan::Loan;
pub use pool::Pool;
pub use slice::{Slice, WriteBuf};
