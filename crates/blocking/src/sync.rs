//! The primitives that `driver_waker.rs` and `wait.rs` use. `crates/models` replaces them by
//! loom's.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::thread_local;

pub(crate) use parking_lot::{Condvar, MutexGuard};
