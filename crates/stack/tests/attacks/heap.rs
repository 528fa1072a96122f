//! A counting allocator: the heap memory of this thread, and its peak.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    // The test harness frees a thread's remaining memory after its thread-locals are gone.
    let _ = ALLOCATED.try_with(|allocated| {
        allocated.set(allocated.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(allocated.get())));
    });
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes that the thread holds.
pub(crate) fn allocated() -> isize {
    ALLOCATED.get()
}

/// Returns the peak since the last call.
pub(crate) fn take_peak() -> isize {
    PEAK.replace(allocated())
}
