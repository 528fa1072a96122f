//! The primitives that `kick.rs` and `wait.rs` are made of; in `crates/models`, loom's stand in their
//! place.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::thread_local;

pub(crate) use parking_lot::{Condvar, MutexGuard};
