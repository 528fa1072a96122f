//! The primitives that `kick.rs` uses. `crates/models` replaces them by loom's.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::Mutex;
