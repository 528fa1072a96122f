//! The primitives that threads share a pool by; in `crates/models`, loom's stand in their place.

pub(crate) use alloc::sync::Arc;

pub(crate) use spin::Mutex;
