//! Synchronisation primitives of the pool; `crates/models` replaces them by loom's.

pub(crate) use alloc::sync::Arc;

pub(crate) use spin::Mutex;
