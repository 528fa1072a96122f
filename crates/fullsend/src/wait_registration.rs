//! Waker registrations of futures that wait for a socket; dropping the future removes them.

use std::task::Context;

use fullsend_stack::{WaitKey, WaitOn, Waiter};

use crate::callbacks;
use crate::engine::Engine;

/// A future's registration for one event. Dropping it, with the future, removes the waker.
pub(crate) struct WaitRegistration<'a> {
    engine: &'a Engine,
    on: WaitOn,
    key: WaitKey,
}

impl<'a> WaitRegistration<'a> {
    pub(crate) fn new(engine: &'a Engine, on: WaitOn) -> Self {
        Self {
            engine,
            on,
            key: WaitKey::default(),
        }
    }

    /// Returns the key of the future's registration.
    #[allow(
        clippy::unnecessary_wraps,
        reason = "callers without a future pass `None`"
    )]
    pub(crate) const fn key(&mut self) -> Option<&mut WaitKey> {
        Some(&mut self.key)
    }
}

impl Drop for WaitRegistration<'_> {
    fn drop(&mut self) {
        // A future that is dropped in a callback leaves its waker, which is woken once.
        if self.key.is_set() && !callbacks::are_running() {
            self.engine.stop_waiting(self.on, &mut self.key);
        }
    }
}

/// Returns the waiter for the task of `cx`: the future under `key`, or a poll function without one.
#[inline]
pub(crate) fn waiter<'a>(cx: &'a Context<'_>, key: &'a mut Option<&mut WaitKey>) -> Waiter<'a> {
    match key.as_deref_mut() {
        Some(key) => Waiter::future(cx.waker(), key),
        None => Waiter::polled(cx.waker()),
    }
}
