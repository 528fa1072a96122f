//! The application's callbacks that run while a shard is locked.
//!
//! A callback that waited for the lock of its own shard would wait forever, and two threads whose
//! callbacks use each other's shards might. So no shard is locked in a callback: calls of sockets
//! panic, and sockets that are dropped are closed after it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether this thread runs callbacks.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    /// Calls that this thread makes after the running callbacks.
    static DEFERRED: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

/// The value of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Panics if this thread runs a callback.
#[inline]
pub(crate) fn assert_none() {
    assert!(
        !RUNNING.get(),
        "a socket or stack was used in a callback of TcpSet::serve, which has locked a stack; use \
         the SetStream there, and other sockets after `serve` has returned"
    );
}

/// Returns whether this thread runs a callback.
#[inline]
pub(crate) fn are_running() -> bool {
    RUNNING.get()
}

/// Runs callbacks, and returns the value of a panic of one of them.
pub(crate) fn run(callbacks: impl FnOnce()) -> Result<(), Panic> {
    RUNNING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(callbacks));
    RUNNING.set(false);
    outcome
}

/// Makes the calls that callbacks have deferred. Must be called without the lock of any shard.
pub(crate) fn run_deferred() {
    // An entry may drop further sockets.
    for deferred in DEFERRED.take() {
        deferred();
    }
}

/// Calls `call` after the callbacks that this thread runs.
pub(crate) fn defer(call: impl FnOnce() + 'static) {
    DEFERRED.with_borrow_mut(|deferred| deferred.push(Box::new(call)));
}
