//! The end of a stack: waiting until written data is acknowledged, and stopping its shards.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use fullsend_device::Device;
use fullsend_stack::{WaitKey, WaitList, Waiter};
use parking_lot::MutexGuard;

use super::{Engine, Shard};
use crate::callbacks;

impl Engine {
    /// Polls until all written data of this shard has been acknowledged. A future that `has_waited`
    /// is also ready when another `shutdown` found this first and stopped the stack.
    fn poll_flushed(
        &self,
        cx: &mut Context<'_>,
        entry: &mut WaitListEntry<'_>,
        has_waited: bool,
    ) -> Poll<io::Result<()>> {
        let mut shard = self.lock_shard();
        if !(shard.was_flushed && has_waited) {
            shard.check_alive()?;
        }
        if shard.was_flushed || shard.is_flushed() {
            return Poll::Ready(Ok(()));
        }
        entry.register(cx, shard);
        Poll::Pending
    }

    /// Waits until the stack has stopped, and returns the reason.
    pub(crate) async fn closed(&self) -> io::Error {
        let mut entry = WaitListEntry::new(self, |shard| &mut shard.close_waiters);
        let poll = |cx: &mut Context<'_>| {
            let shard = self.lock_shard();
            if let Err(why) = shard.check_alive() {
                return Poll::Ready(why);
            }
            entry.register(cx, shard);
            Poll::Pending
        };
        poll_fn(poll).await
    }

    /// Waits until all written data of every shard has been acknowledged, then stops the stack.
    pub(crate) async fn flush_and_stop(&self) -> io::Result<()> {
        let engines = self.group.engines();
        let entry = |engine| WaitListEntry::new(engine, |shard| &mut shard.flush_waiters);
        let mut entries: Vec<_> = engines.iter().map(|engine| entry(engine)).collect();
        let mut has_waited = false;
        poll_fn(|cx| {
            let mut flushed = true;
            for (engine, entry) in engines.iter().zip(&mut entries) {
                match engine.poll_flushed(cx, entry, has_waited) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => flushed = false,
                }
                has_waited |= !flushed;
            }
            if flushed {
                Poll::Ready(io::Result::Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await?;
        for engine in &engines {
            engine.lock_shard().was_flushed = true;
        }
        self.stop(
            io::ErrorKind::ConnectionAborted,
            "the stack was shut down; build a new one",
        );
        Ok(())
    }

    /// Returns whether no handle of the stack is left and every connection has ended.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.group.is_abandoned(self)
    }

    /// Stops the stack: resets the connections of all its shards and makes every later call fail
    /// with `kind` and `why`, or with the reason of an earlier stop.
    pub(crate) fn stop(&self, kind: io::ErrorKind, why: &str) {
        #[cfg(feature = "control")]
        self.group.control.close_sockets();
        let reason = self.group.stop_reason(kind, why);
        // The first shard stops last: tasks that wait for the end of the stack wait there.
        for engine in self.group.engines().iter().rev() {
            engine.stop_shard(&reason);
        }
    }

    /// Stops this shard, and wakes its driver and all tasks that wait for it.
    fn stop_shard(&self, reason: &(io::ErrorKind, String)) {
        let (mut shard, now) = self.lock();
        if shard.stop_reason.is_none() {
            shard.stop_reason = Some(reason.clone());
            shard.host.abort_all(now);
            let _ = shard.transmit(now, &self.clock);
            shard.pump.device_mut().close();
        }
        self.unlock_and_wake(shard, true, false);
    }
}

/// A future's entry in one of the shard's own lists of waiting tasks. Dropping it removes the
/// entry.
struct WaitListEntry<'a> {
    engine: &'a Engine,
    list: fn(&mut Shard) -> &mut WaitList,
    key: WaitKey,
}

impl<'a> WaitListEntry<'a> {
    fn new(engine: &'a Engine, list: fn(&mut Shard) -> &mut WaitList) -> Self {
        Self {
            engine,
            list,
            key: WaitKey::default(),
        }
    }

    /// Adds the task of `cx` to the list, then unlocks.
    fn register(&mut self, cx: &Context<'_>, mut shard: MutexGuard<'_, Shard>) {
        // Declared first, so that it is dropped without the lock.
        let mut spent = Vec::new();
        let waiter = Waiter::future(cx.waker(), &mut self.key);
        (self.list)(&mut shard).register(waiter, &mut spent);
        drop(shard);
    }
}

impl Drop for WaitListEntry<'_> {
    fn drop(&mut self) {
        // A future dropped in a callback leaves its waker, as in `WaitRegistration`.
        if self.key.is_set() && !callbacks::are_running() {
            let waker = (self.list)(&mut self.engine.lock_shard()).remove(Some(&mut self.key));
            drop(waker);
        }
    }
}
