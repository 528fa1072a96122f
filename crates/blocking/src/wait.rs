//! The threads that wait in a call, by the handles that they wait for, protected by the stack's
//! lock. `crates/models` tests every interleaving of this file.
#![allow(
    clippy::missing_const_for_thread_local,
    reason = "loom's thread_local! has no such form"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;

use fullsend_posix::Handle;
use fullsend_units::Instant;

use crate::eventfd::EventFd;
use crate::shard::Shard;
use crate::sync::{Arc, AtomicBool, Condvar, MutexGuard, Ordering, thread_local};

/// A waiting thread.
#[derive(Default)]
struct Sleeper {
    condvar: Condvar,
    /// Set when one of its handles became ready, or its timeout has expired.
    woken: AtomicBool,
}

thread_local! {
    /// The sleeper of this thread; `None` while the thread sleeps.
    static SLEEPER: Cell<Option<Arc<Sleeper>>> = Cell::new(None);
}

/// All waiting threads.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Sleepers by the handles that they wait for.
    by_handle: BTreeMap<Handle, Vec<Arc<Sleeper>>>,
    /// Sleepers with a timeout.
    timed: Vec<(Instant, Arc<Sleeper>)>,
    /// Becomes readable when any handle becomes ready.
    event: Option<EventFd>,
}

impl Waiting {
    /// Wakes the sleepers that wait for any of the handles.
    pub(crate) fn wake(&mut self, ready: &[Handle]) {
        for handle in ready {
            for sleeper in self.by_handle.get(handle).into_iter().flatten() {
                rouse(sleeper);
            }
        }
        self.signal();
    }

    /// Wakes the sleepers whose timeout has expired.
    pub(crate) fn time_out(&mut self, now: Instant) {
        let due = self.timed.iter().filter(|(at, _)| *at <= now);
        due.for_each(|(_, sleeper)| rouse(sleeper));
    }

    /// Wakes all sleepers.
    pub(crate) fn wake_all(&mut self) {
        self.by_handle.values().flatten().for_each(|s| rouse(s));
        self.signal();
    }

    /// Returns whether a woken thread has not run since.
    pub(crate) fn has_woken(&self) -> bool {
        let woken = |s: &Arc<Sleeper>| s.woken.load(Ordering::Relaxed);
        self.by_handle.values().flatten().any(woken) || self.timed.iter().any(|(_, s)| woken(s))
    }

    /// Returns whether a thread waits.
    pub(crate) fn has_sleepers(&self) -> bool {
        !self.by_handle.is_empty() || !self.timed.is_empty()
    }

    /// Returns the earliest timeout.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timed.iter().map(|(at, _)| *at).min()
    }

    /// Returns a file that becomes readable when any handle becomes ready. The first call creates
    /// it.
    pub(crate) fn event(&mut self) -> io::Result<&EventFd> {
        if self.event.is_none() {
            self.event = Some(EventFd::new()?);
        }
        self.event.as_ref().ok_or(io::ErrorKind::OutOfMemory.into())
    }

    fn signal(&self) {
        if let Some(event) = &self.event {
            event.signal();
        }
    }

    fn enter(&mut self, on: &[Handle], until: Option<Instant>, sleeper: &Arc<Sleeper>) {
        for &handle in on {
            let list = self.by_handle.entry(handle).or_default();
            list.push(sleeper.clone());
        }
        self.timed.extend(until.map(|at| (at, sleeper.clone())));
    }

    fn leave(&mut self, on: &[Handle], sleeper: &Arc<Sleeper>) {
        let others = |s: &Arc<Sleeper>| !Arc::ptr_eq(s, sleeper);
        for handle in on {
            if let Some(list) = self.by_handle.get_mut(handle) {
                list.retain(others);
                if list.is_empty() {
                    self.by_handle.remove(handle);
                }
            }
        }
        self.timed.retain(|(_, s)| others(s));
    }
}

fn rouse(sleeper: &Sleeper) {
    sleeper.woken.store(true, Ordering::Relaxed);
    sleeper.condvar.notify_one();
}

/// Unlocks the shard and sleeps until one of `on` becomes ready, or until `until`. `real` is the
/// current time of a real clock; on a manual clock [`Waiting::time_out`] ends the sleep.
pub(crate) fn sleep(
    shard: &mut MutexGuard<'_, Shard>,
    on: &[Handle],
    until: Option<Instant>,
    real: Option<Instant>,
) {
    let sleeper = SLEEPER.with(Cell::take).unwrap_or_default();
    sleeper.woken.store(false, Ordering::Relaxed);
    shard.waiting.enter(on, until, &sleeper);
    while !sleeper.woken.load(Ordering::Relaxed) {
        match (until, real) {
            (Some(until), Some(now)) => {
                let span = until.since(now);
                sleeper.condvar.wait_for(shard, span.into());
                // The caller checks the clock.
                break;
            }
            _ => sleeper.condvar.wait(shard),
        }
    }
    shard.waiting.leave(on, &sleeper);
    SLEEPER.with(|slot| slot.set(Some(sleeper)));
}
