//! Waking of the driver by socket calls. `crates/models` tests every interleaving of this file.

use std::task::Waker;

use crate::sync::{AtomicBool, Mutex, Ordering};

/// A driver's wake-up signal, sent at most once for each of its polls, on its own cache lines: the
/// signals of a stack's shards are allocated one after the other and used by different processors.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct DriverWaker {
    /// Set from a wake-up until the driver's next poll begins.
    scheduled: AtomicBool,
    /// Set when the link has work for this driver, while the peer's engine was locked.
    deferred: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl DriverWaker {
    #[inline(never)]
    pub(crate) fn wake(&self) {
        if !self.scheduled.swap(true, Ordering::AcqRel)
            && let Some(waker) = &*self.waker.lock()
        {
            waker.wake_by_ref();
        }
    }

    /// Records a wake-up that the peer's engine must make after unlocking.
    pub(crate) fn defer_wake(&self) {
        self.deferred.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn has_deferred_wake(&self) -> bool {
        self.deferred.load(Ordering::Acquire)
    }

    pub(crate) fn take_deferred_wake(&self) -> bool {
        self.has_deferred_wake() && self.deferred.swap(false, Ordering::AcqRel)
    }

    /// Records that the driver's poll begins: a wake-up after this call causes another poll.
    pub(crate) fn begin_poll(&self, waker: &Waker) {
        let mut slot = self.waker.lock();
        if !slot.as_ref().is_some_and(|w| w.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
        drop(slot);
        // Work is queued under a lock before the wake-up, and the poll inspects it under that lock
        // after this swap: a wake-up that still finds `scheduled` set has its work processed by
        // this poll.
        self.scheduled.swap(false, Ordering::AcqRel);
    }
}
