//! Waiting until a socket is ready, for the sockets of all protocols.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::Ready;
use tokio::task::coop::poll_proceed;

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
