//! Wake-ups after the lock is released: of tasks, the driver, the device's user, and the other end of an
//! in-process link.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use parking_lot::MutexGuard;

use super::{DriverWaker, Engine, Shard};

/// The waker that a device without a file wakes.
struct DeviceWaker(Arc<DriverWaker>);

impl Wake for DeviceWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

/// Returns a waker of the driver for a device.
pub(crate) fn device_waker(driver_waker: &Arc<DriverWaker>) -> Waker {
    Waker::from(Arc::new(DeviceWaker(driver_waker.clone())))
}

thread_local! {
    /// Spare vector for the wakers that are called after unlocking, to avoid an allocation per
    /// call.
    static WAKERS: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

impl Engine {
    /// Unlocks, then wakes the tasks that became ready under the lock, and the device's user. Returns
    /// whether there were any tasks.
    #[inline]
    pub(super) fn unlock_and_wake(
        &self,
        shard: MutexGuard<'_, Shard>,
        wake_driver: bool,
        flush_now: bool,
    ) -> bool {
        let woke = self.unlock_and_wake_tasks(shard, wake_driver, flush_now);
        if let Some(notify) = &self.notifier {
            notify();
        }
        woke
    }

    #[inline]
    fn unlock_and_wake_tasks(
        &self,
        shard: MutexGuard<'_, Shard>,
        wake_driver: bool,
        flush_now: bool,
    ) -> bool {
        let nothing_to_wake =
            !shard.host.has_wakers() && shard.flush_waiters.is_empty() && !wake_driver;
        if !nothing_to_wake
            || self
                .peer
                .get()
                .is_some_and(|(driver_waker, _)| driver_waker.has_deferred_wake())
        {
            return self.wake_after_unlock(shard, wake_driver, flush_now);
        }
        false
    }

    fn wake_after_unlock(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        wake_driver: bool,
        flush_now: bool,
    ) -> bool {
        let (mut wakers, mut spent) = (Vec::new(), Vec::new());
        if shard.host.has_wakers() {
            // Taken only when needed: the peer's engine, which may run below, uses it too.
            wakers = WAKERS.take();
            shard.host.take_replaced_wakers(&mut spent);
            shard.host.take_wakers(&mut wakers);
        }
        if !shard.flush_waiters.is_empty() && (shard.is_flushed() || shard.stop_reason.is_some()) {
            shard.flush_waiters.wake(&mut wakers);
        }
        if shard.stop_reason.is_some() {
            shard.close_waiters.wake(&mut wakers);
        }
        let now = shard.pump.now();
        drop(shard);
        drop(spent);
        if wake_driver {
            self.driver_waker.wake();
        }
        if let Some((driver_waker, peer)) = self.peer.get()
            && driver_waker.take_deferred_wake()
        {
            let delivered = flush_now && peer.upgrade().is_some_and(|peer| peer.try_deliver(now));
            if !delivered {
                driver_waker.wake();
            }
        }
        let woke = !wakers.is_empty();
        if woke {
            wakers.drain(..).for_each(Waker::wake);
            WAKERS.set(wakers);
        }
        woke
    }
}
