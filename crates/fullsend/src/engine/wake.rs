//! Wake-ups after the lock is released: of tasks, the driver, the device's user, and the other end of an
//! in-process link.

use std::cell::Cell;
use std::mem;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use fullsend_wire::Instant;
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

impl Shard {
    /// Takes the wakers of the tasks that wait for the end of the stack if it has stopped, and of those
    /// that wait for the acknowledgement of all written data if that is acknowledged or will never be.
    #[cold]
    fn take_shutdown_wakers(&mut self) {
        let has_stopped = self.stop_reason.is_some();
        if has_stopped || self.is_flushed() {
            self.flush_waiters.wake(&mut self.wakers);
        }
        if has_stopped {
            self.close_waiters.wake(&mut self.wakers);
        }
    }
}

/// The other end of an in-process link.
pub(super) struct Peer {
    pub(super) driver_waker: Arc<DriverWaker>,
    pub(super) engine: Weak<Engine>,
}

thread_local! {
    /// Spare vector, which replaces that of a shard while the wakers in it are called. It avoids an
    /// allocation for each call.
    static WAKERS: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

/// Removes and returns several wakers, and leaves the spare vector.
#[inline(never)]
fn take_all(wakers: &mut Vec<Waker>) -> Vec<Waker> {
    mem::replace(wakers, WAKERS.take())
}

/// Wakes several tasks.
#[inline(never)]
fn wake_all(mut wakers: Vec<Waker>) {
    wakers.drain(..).for_each(Waker::wake);
    WAKERS.set(wakers);
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
        let has_tasks = shard.host.has_wakers() || !shard.flush_waiters.is_empty();
        if has_tasks || wake_driver {
            return self.wake_after_unlock(shard, wake_driver, flush_now);
        }
        if let Some(peer) = self.peer_with_work() {
            let now = shard.pump.now();
            drop(shard);
            Self::wake_peer(peer, now, flush_now);
        }
        false
    }

    fn wake_after_unlock(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        wake_driver: bool,
        flush_now: bool,
    ) -> bool {
        let mut spent = Vec::new();
        let Shard { host, wakers, .. } = &mut *shard;
        if host.has_wakers() {
            host.take_replaced_wakers(&mut spent);
            host.take_wakers(wakers);
        }
        if !shard.flush_waiters.is_empty() || shard.stop_reason.is_some() {
            shard.take_shutdown_wakers();
        }
        let wakers = &mut shard.wakers;
        // Most often there is one, and the vector stays with the shard.
        let last = wakers.pop();
        let others = (!wakers.is_empty()).then(|| take_all(wakers));
        let now = shard.pump.now();
        drop(shard);
        drop(spent);
        if wake_driver {
            self.driver_waker.wake();
        }
        if let Some(peer) = self.peer_with_work() {
            Self::wake_peer(peer, now, flush_now);
        }
        if let Some(others) = others {
            wake_all(others);
        }
        let Some(last) = last else {
            return false;
        };
        last.wake();
        true
    }

    /// Returns the other end of the link if it has received packets since its driver was last woken.
    #[inline]
    fn peer_with_work(&self) -> Option<&Peer> {
        self.peer
            .get()
            .filter(|peer| peer.driver_waker.has_deferred_wake())
    }

    /// Lets the other end of the link receive the packets sent at `now`: within this call if
    /// `flush_now` and its shard is not locked, and by its driver otherwise.
    fn wake_peer(peer: &Peer, now: Instant, flush_now: bool) {
        if !peer.driver_waker.take_deferred_wake() {
            return;
        }
        if flush_now
            && let Some(engine) = peer.engine.upgrade()
            && engine.try_deliver(now)
        {
            return;
        }
        peer.driver_waker.wake();
    }
}
