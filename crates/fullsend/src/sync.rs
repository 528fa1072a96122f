//! The primitives that `driver_waker.rs` uses. `crates/models` replaces them by loom's.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::Mutex;
