//! Models of the parts that threads share, for [loom](https://docs.rs/loom): the source files
//! themselves, over primitives whose every interleaving is tried.
//!
//! The files take their primitives from `crate::sync`, which is the real ones where they live and
//! loom's here; so nothing in them knows of the model.
// The included files' own unit tests need what their crates have for tests.
#![cfg(not(test))]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "the files are other crates', of which a model uses a part"
)]

extern crate alloc;

#[path = "../../fullsend/src/kick.rs"]
pub mod async_kick;
#[path = "../../buf/src/chain.rs"]
pub mod chain;
pub mod eventfd;
#[path = "../../blocking/src/kick.rs"]
pub mod kick;
#[path = "../../buf/src/loan.rs"]
pub mod loan;
pub mod models;
#[path = "../../buf/src/pool.rs"]
pub mod pool;
#[path = "../../buf/src/reserve.rs"]
pub mod reserve;
pub mod shard;
#[path = "../../buf/src/slice.rs"]
pub mod slice;
pub mod sync;
#[path = "../../blocking/src/wait.rs"]
pub mod wait;

pub use chain::Chain;
pub use loan::Loan;
pub use pool::Pool;
pub use slice::{Room, Slice};
