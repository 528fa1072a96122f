//! Futures that wait for a socket, and take their wakers back when they are dropped.

use std::task::Context;

use fullsend_stack::{WaitKey, WaitOn, Waiter};

use crate::engine::Engine;

/// A future's wait for one thing. Part of the future, so that dropping the future ends it.
pub(crate) struct Waiting<'a> {
    engine: &'a Engine,
    on: WaitOn,
    key: WaitKey,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(engine: &'a Engine, on: WaitOn) -> Self {
        Self {
            engine,
            on,
            key: WaitKey::default(),
        }
    }

    /// Where the future stands.
    #[allow(
        clippy::unnecessary_wraps,
        reason = "what polls take, which callers without a future give none of"
    )]
    pub(crate) const fn key(&mut self) -> Option<&mut WaitKey> {
        Some(&mut self.key)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.key.is_set() {
            self.engine.stop_waiting(self.on, &mut self.key);
        }
    }
}

/// The task of `cx`, which waits as the future under `key`, or without one as a caller that polls.
#[inline]
pub(crate) fn waiter<'a>(cx: &'a Context<'_>, key: &'a mut Option<&mut WaitKey>) -> Waiter<'a> {
    match key.as_deref_mut() {
        Some(key) => Waiter::future(cx.waker(), key),
        None => Waiter::polled(cx.waker()),
    }
}
