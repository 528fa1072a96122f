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
use fullsend_wire::Instant;

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

/// The event that a thread sleeps for.
#[derive(Clone, Copy)]
pub(crate) enum WaitFor<'a> {
    /// Any of these handles becomes ready.
    Handles(&'a [Handle]),
    /// All written data of every connection is acknowledged.
    Flush,
}

/// All waiting threads.
#[derive(Default)]
pub(crate) struct Sleepers {
    /// Sleepers by the handles that they wait for.
    by_handle: BTreeMap<Handle, Vec<Arc<Sleeper>>>,
    /// Sleepers with a timeout.
    by_timeout: Vec<(Instant, Arc<Sleeper>)>,
    /// Sleepers that wait until all written data is acknowledged.
    until_flushed: Vec<Arc<Sleeper>>,
    /// Becomes readable when any handle becomes ready.
    event_fd: Option<EventFd>,
}

impl Sleepers {
    /// Wakes the sleepers that wait for any of the handles.
    pub(crate) fn wake(&mut self, ready: &[Handle]) {
        for handle in ready {
            for sleeper in self.by_handle.get(handle).into_iter().flatten() {
                wake_sleeper(sleeper);
            }
        }
        self.signal();
    }

    /// Wakes the sleepers whose timeout has expired.
    pub(crate) fn wake_expired(&mut self, now: Instant) {
        let due = self.by_timeout.iter().filter(|(at, _)| *at <= now);
        due.for_each(|(_, sleeper)| wake_sleeper(sleeper));
    }

    /// Wakes all sleepers.
    pub(crate) fn wake_all(&mut self) {
        self.by_handle
            .values()
            .flatten()
            .for_each(|s| wake_sleeper(s));
        self.wake_flushed();
        self.signal();
    }

    /// Returns whether a thread waits until all written data is acknowledged.
    pub(crate) fn awaits_flush(&self) -> bool {
        !self.until_flushed.is_empty()
    }

    /// Wakes the sleepers that wait until all written data is acknowledged.
    pub(crate) fn wake_flushed(&mut self) {
        self.until_flushed.iter().for_each(|s| wake_sleeper(s));
    }

    /// Returns whether a woken thread has not run since.
    pub(crate) fn has_woken(&self) -> bool {
        let woken = |s: &Arc<Sleeper>| s.woken.load(Ordering::Relaxed);
        self.by_handle.values().flatten().any(woken)
            || self.by_timeout.iter().any(|(_, s)| woken(s))
            || self.until_flushed.iter().any(woken)
    }

    /// Returns whether a thread waits.
    pub(crate) fn has_sleepers(&self) -> bool {
        !self.by_handle.is_empty() || !self.by_timeout.is_empty() || self.awaits_flush()
    }

    /// Returns the earliest timeout.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.by_timeout.iter().map(|(at, _)| *at).min()
    }

    /// Returns a file that becomes readable when any handle becomes ready. The first call creates
    /// it.
    pub(crate) fn event_fd(&mut self) -> io::Result<&EventFd> {
        if self.event_fd.is_none() {
            self.event_fd = Some(EventFd::new()?);
        }
        self.event_fd
            .as_ref()
            .ok_or(io::ErrorKind::OutOfMemory.into())
    }

    fn signal(&self) {
        if let Some(event_fd) = &self.event_fd {
            event_fd.signal();
        }
    }

    fn add(&mut self, on: WaitFor<'_>, deadline: Option<Instant>, sleeper: &Arc<Sleeper>) {
        match on {
            WaitFor::Handles(handles) => {
                for &handle in handles {
                    let list = self.by_handle.entry(handle).or_default();
                    list.push(sleeper.clone());
                }
            }
            WaitFor::Flush => self.until_flushed.push(sleeper.clone()),
        }
        self.by_timeout
            .extend(deadline.map(|at| (at, sleeper.clone())));
    }

    fn remove(&mut self, on: WaitFor<'_>, sleeper: &Arc<Sleeper>) {
        let others = |s: &Arc<Sleeper>| !Arc::ptr_eq(s, sleeper);
        match on {
            WaitFor::Handles(handles) => {
                for handle in handles {
                    if let Some(list) = self.by_handle.get_mut(handle) {
                        list.retain(others);
                        if list.is_empty() {
                            self.by_handle.remove(handle);
                        }
                    }
                }
            }
            WaitFor::Flush => self.until_flushed.retain(others),
        }
        self.by_timeout.retain(|(_, s)| others(s));
    }
}

fn wake_sleeper(sleeper: &Sleeper) {
    sleeper.woken.store(true, Ordering::Relaxed);
    sleeper.condvar.notify_one();
}

/// Unlocks the shard and sleeps until the event `on`, or until `deadline`.
/// `real_now` is the current time of a real clock; on a manual clock [`Sleepers::wake_expired`]
/// ends the sleep.
pub(crate) fn sleep(
    shard: &mut MutexGuard<'_, Shard>,
    on: WaitFor<'_>,
    deadline: Option<Instant>,
    real_now: Option<Instant>,
) {
    let sleeper = SLEEPER.with(Cell::take).unwrap_or_default();
    sleeper.woken.store(false, Ordering::Relaxed);
    shard.sleepers.add(on, deadline, &sleeper);
    while !sleeper.woken.load(Ordering::Relaxed) {
        match (deadline, real_now) {
            (Some(deadline), Some(now)) => {
                let span = deadline.since(now);
                sleeper.condvar.wait_for(shard, span.into());
                // The caller checks the clock.
                break;
            }
            _ => sleeper.condvar.wait(shard),
        }
    }
    shard.sleepers.remove(on, &sleeper);
    SLEEPER.with(|slot| slot.set(Some(sleeper)));
}
