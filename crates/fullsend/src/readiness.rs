//! Readiness of the sockets of all protocols, as tokio defines it.
//!
//! A socket of tokio's is ready from an event of the kernel until a call on it would block, whatever
//! was read or written in between. The host knows whether a socket is ready now; [`StickyReadiness`]
//! adds the readiness that was reported before.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use fullsend_stack::Interest as HostInterest;
use tokio::io::{Interest, Ready};
use tokio::task::coop::poll_proceed;

/// The directions in which a call has succeeded, or the socket was ready, since a call would have
/// blocked.
#[derive(Debug, Default)]
pub(crate) struct StickyReadiness {
    readable: AtomicBool,
    writable: AtomicBool,
}

impl StickyReadiness {
    const fn flag(&self, direction: HostInterest) -> &AtomicBool {
        match direction {
            HostInterest::Read => &self.readable,
            HostInterest::Write => &self.writable,
        }
    }

    /// Returns whether the direction is still ready.
    #[inline]
    pub(crate) fn is_set(&self, direction: HostInterest) -> bool {
        self.flag(direction).load(Ordering::Relaxed)
    }

    /// Records that the socket is ready, or that a call has succeeded.
    #[inline]
    pub(crate) fn set(&self, direction: HostInterest) {
        if !self.is_set(direction) {
            self.flag(direction).store(true, Ordering::Relaxed);
        }
    }

    /// Records that a call would block.
    #[inline]
    pub(crate) fn clear(&self, direction: HostInterest) {
        self.flag(direction).store(false, Ordering::Relaxed);
    }

    /// Records the result of a call that does not wait, and returns it.
    #[inline]
    pub(crate) fn record<R>(
        &self,
        direction: HostInterest,
        result: io::Result<R>,
    ) -> io::Result<R> {
        match &result {
            Ok(_) => self.set(direction),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.clear(direction),
            Err(_) => {}
        }
        result
    }

    /// Records the result of a poll function that has transferred `len` of at most `most` bytes. As in
    /// tokio, a transfer that is incomplete shows that the next call would block.
    #[inline]
    pub(crate) fn record_transfer(&self, direction: HostInterest, len: usize, most: usize) {
        if 0 < len && len < most {
            self.clear(direction);
        }
    }

    /// Records the result of an application's closure that was called for `interest`.
    pub(crate) fn record_call<R>(
        &self,
        interest: Interest,
        result: io::Result<R>,
    ) -> io::Result<R> {
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::WouldBlock
        {
            if interest.is_readable() {
                self.clear(HostInterest::Read);
            }
            if interest.is_writable() {
                self.clear(HostInterest::Write);
            }
        }
        result
    }
}

/// Polls `is_ready`, which registers the task's waker if the socket is not ready. A task that has used
/// up its budget of cooperative scheduling yields instead.
#[inline]
pub(crate) fn poll_ready(
    cx: &mut Context<'_>,
    is_ready: impl FnOnce(&Context<'_>) -> io::Result<bool>,
) -> Poll<io::Result<()>> {
    let coop = ready!(poll_proceed(cx));
    if !is_ready(cx)? {
        return Poll::Pending;
    }
    coop.made_progress();
    Poll::Ready(Ok(()))
}

/// Calls `f` whenever `ready` returns, until it does not return `WouldBlock`.
pub(crate) async fn call_when_ready<R, F>(
    ready: impl Fn() -> F,
    mut f: impl FnMut() -> io::Result<R>,
) -> io::Result<R>
where
    F: Future<Output = io::Result<Ready>>,
{
    loop {
        ready().await?;
        match f() {
            // Another task has received the data, or `f` waits for something else.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::task::yield_now().await;
            }
            done => return done,
        }
    }
}
