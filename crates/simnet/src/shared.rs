//! The network and its clock, which the machines of all hosts share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use fullsend_wire::{Instant, Nanos};
use parking_lot::{Mutex, MutexGuard};

use crate::kernel::Kernel;

/// The network and its clock, which only the scheduler's loop advances.
pub(crate) struct Shared {
    /// The time since the start, in ns.
    now: AtomicU64,
    kernel: Mutex<Kernel>,
}

impl Shared {
    /// Returns a network at time zero.
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self {
            now: AtomicU64::new(0),
            kernel: Mutex::new(kernel),
        }
    }

    /// Locks the network. No other lock may be acquired while it is locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock()
    }

    /// Returns the time since the start.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    pub(crate) fn set_now(&self, now: Instant) {
        self.now.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Processes the due events, and wakes the drivers of the affected stacks. Returns whether any was
    /// woken.
    pub(crate) fn run_due(&self, now: Instant) -> bool {
        let mut wakers = Vec::new();
        self.lock().run_due(now, &mut wakers);
        let woke = !wakers.is_empty();
        wakers.into_iter().for_each(Waker::wake);
        woke
    }

    /// Returns the time of the next event, and the span within which no host can affect another.
    pub(crate) fn next_event(&self) -> (Option<Instant>, Nanos) {
        let mut kernel = self.lock();
        (kernel.agenda.next_at(), kernel.lookahead())
    }

    /// Ignores later packets of the stacks, and releases the references to their runtimes, which in turn
    /// refer to this network.
    pub(crate) fn close(&self) {
        let mut kernel = self.lock();
        kernel.closed = true;
        let drivers = kernel.cards.iter_mut().map(|card| card.driver.take());
        let drivers: Vec<_> = drivers.collect();
        let released = (drivers, kernel.observer.take());
        // Destructors may use the network.
        drop(kernel);
        drop(released);
    }
}
