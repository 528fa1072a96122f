//! A timer of a driver that the caller provides.

use std::task::{Context, Poll};

use tokio::time::Instant;

/// A timer for the driver of a stack, which replaces tokio's: see
/// [`Builder::timer`](crate::Builder::timer).
///
/// ```
/// use std::task::{Context, Poll};
///
/// /// A timer that records what it waits for; a loop in the same program wakes the task.
/// #[derive(Default)]
/// struct Recorded {
///     deadline: Option<tokio::time::Instant>,
///     waker: Option<std::task::Waker>,
/// }
///
/// impl fullsend::DriverTimer for Recorded {
///     fn poll_until(
///         &mut self,
///         cx: &mut Context<'_>,
///         deadline: Option<tokio::time::Instant>,
///     ) -> Poll<()> {
///         if deadline.is_some_and(|at| at <= tokio::time::Instant::now()) {
///             return Poll::Ready(());
///         }
///         (self.deadline, self.waker) = (deadline, Some(cx.waker().clone()));
///         Poll::Pending
///     }
/// }
/// ```
pub trait DriverTimer: Send {
    /// Returns ready if `deadline` has passed. Otherwise arranges that the task of `cx` is woken at
    /// `deadline` (never for `None`), and returns pending.
    ///
    /// The driver calls it before each wait, with its next deadline, which replaces the one before.
    /// Time is that of `tokio::time::Instant`. The task may be woken at other times, too: when it is
    /// woken, the driver receives from a device without a file descriptor.
    fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()>;
}
