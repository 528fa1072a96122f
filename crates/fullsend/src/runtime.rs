//! Access to the drivers of the tokio runtime that a stack needs; a missing driver is an error.

use std::io::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

use tokio::time::{Instant, Sleep};

/// Returns a timer of the current runtime.
///
/// # Errors
/// `Other` if the runtime has no time driver.
pub(crate) fn new_timer(at: Instant) -> Result<Pin<Box<Sleep>>> {
    let timer = with_driver("time", || Ok(tokio::time::sleep_until(at)))?;
    Ok(Box::pin(timer))
}

/// Calls `open`, which registers with the I/O driver of the current runtime.
///
/// # Errors
/// `Other` if the runtime has no I/O driver, and the errors of `open`.
pub(crate) fn with_io<T>(open: impl FnOnce() -> Result<T>) -> Result<T> {
    with_driver("io", open)
}

/// Calls `open`, which panics if the runtime does not have the driver, as tokio does not report that in
/// any other way. The panic's message still appears on standard error.
fn with_driver<T>(driver: &str, open: impl FnOnce() -> Result<T>) -> Result<T> {
    // Nothing is observed of what a panic has left: it precedes every registration.
    catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
        Err(Error::other(format!(
            "the tokio runtime has no {driver} driver, which the stack needs; call enable_{driver}() or \
             enable_all() on tokio::runtime::Builder"
        )))
    })
}
