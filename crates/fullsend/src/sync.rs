//! The primitives that `kick.rs` is made of; in `crates/models`, loom's stand in their place.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use parking_lot::Mutex;
