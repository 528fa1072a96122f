//! Readiness of the sockets of all protocols, as tokio defines it.
//!
//! A socket of tokio's is ready from an event of the kernel until a call on it would block, whatever
//! was read or written in between. The host knows whether a socket is ready now; [`StickyReadiness`]
//! adds the readiness that was reported before.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use fullsend_stack::Interest as HostInterest;
use tokio::io::{Interest, Ready};
use tokio::task::coop::poll_proceed;

/// The directions in which the socket was ready or a call has succeeded, and no call would have blocked
/// since.
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

/// Converts the readiness of a socket to the result of a poll. A socket that is not ready must have
/// registered the task's waker.
#[inline]
pub(crate) fn poll_of(is_ready: io::Result<bool>) -> Poll<io::Result<()>> {
    match is_ready {
        Ok(true) => Poll::Ready(Ok(())),
        Ok(false) => Poll::Pending,
        Err(error) => Poll::Ready(Err(error)),
    }
}

/// Calls `poll` as a part of the task's budget of cooperative scheduling; a task that has used it up
/// yields instead. As in tokio, functions that poll for readiness are a part of the budget, and
/// futures that wait for it are not: the call that they precede is, or it ends when it would block.
#[inline]
pub(crate) fn poll_within_budget<R>(
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<R>,
) -> Poll<R> {
    let coop = ready!(poll_proceed(cx));
    let done = ready!(poll(cx));
    coop.made_progress();
    Poll::Ready(done)
}

/// Calls `f` whenever `ready` returns for the interest, until it does not return `WouldBlock`. The call is
/// a part of the task's budget. `ready_now` returns which directions the host has reported as ready.
pub(crate) async fn call_when_ready<R, F>(
    interest: Interest,
    ready: impl Fn(Interest) -> F,
    ready_now: impl Fn() -> io::Result<Ready>,
    mut f: impl FnMut() -> io::Result<R>,
) -> io::Result<R>
where
    F: Future<Output = io::Result<Ready>>,
{
    let mut awaited = interest;
    loop {
        ready(awaited).await?;
        let coop = poll_fn(poll_proceed).await;
        match f() {
            // Another task has received the data, or `f` waits for something else.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                drop(coop);
                tokio::task::yield_now().await;
                // A direction that is ready nevertheless is not what `f` waits for.
                awaited = without(interest, ready_now()?).unwrap_or(interest);
            }
            done => {
                coop.made_progress();
                return done;
            }
        }
    }
}

/// Returns the directions of `interest` that are not ready, or `None` if there are none.
fn without(interest: Interest, ready: Ready) -> Option<Interest> {
    let mut rest = Some(interest);
    for (direction, is_ready) in [
        (Interest::READABLE, ready.is_readable()),
        (Interest::WRITABLE, ready.is_writable()),
    ] {
        if is_ready {
            rest = rest?.remove(direction);
        }
    }
    rest.filter(|rest| rest.is_readable() || rest.is_writable())
}
