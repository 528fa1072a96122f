//! Prefetching of memory into the CPU cache, without `unsafe`.

use core::hint::black_box;

/// Reads `value` ahead of its use, so that its cache line is loaded while other work is done.
///
/// The read cannot be optimised away, and nothing depends on its result: the processor continues until
/// its reorder window is full, and the cache misses of several calls overlap. One call for each cache
/// line is enough.
#[inline]
pub fn prefetch<T: Copy>(value: &T) {
    black_box(*value);
}
