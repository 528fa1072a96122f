//! How a user's call wakes the driver. `crates/models` tries every interleaving of this file.

use std::task::Waker;

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Wakes a driver, once however often it is asked before it runs.
#[derive(Default)]
pub(crate) struct Kick {
    /// From the kick until the driver begins its turn.
    scheduled: AtomicBool,
    /// The link said that the driver has work, while its neighbour held a lock.
    noted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Kick {
    pub(crate) fn kick(&self) {
        if !self.scheduled.swap(true, Ordering::AcqRel)
            && let Some(waker) = &*self.waker.lock()
        {
            waker.wake_by_ref();
        }
    }

    /// Remembers a kick for whoever holds the neighbour's lock, to give after letting go.
    pub(crate) fn note(&self) {
        self.noted.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn has_note(&self) -> bool {
        self.noted.load(Ordering::Acquire)
    }

    pub(crate) fn take_note(&self) -> bool {
        self.has_note() && self.noted.swap(false, Ordering::AcqRel)
    }

    /// The driver begins its turn: what is kicked from here on needs another one.
    pub(crate) fn begin_turn(&self, waker: &Waker) {
        let mut slot = self.waker.lock();
        if !slot.as_ref().is_some_and(|w| w.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
        drop(slot);
        // Work is queued under a lock before the kick and looked for under that lock after this:
        // a kick that still finds `scheduled` set has its work seen by this turn.
        self.scheduled.swap(false, Ordering::AcqRel);
    }
}
