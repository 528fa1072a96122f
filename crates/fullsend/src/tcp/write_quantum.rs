//! A limit, in bytes, of what a task writes before other tasks run.
//!
//! tokio limits operations: after 128 of them, a task must yield. A writer of large messages can
//! copy megabytes in that time, which leave the processor's cache before they are sent or read in
//! the same process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// Bytes written before the task yields; one more write may exceed it. About what a common L2 cache
/// can hold beside other data.
const QUANTUM: usize = 768 << 10;

/// Bytes that the current task has written. Relaxed atomics are enough, as it is only a hint: as a
/// rule one task at a time writes to a stream.
#[derive(Default)]
pub(crate) struct WriteQuantum {
    written: AtomicUsize,
}

impl WriteQuantum {
    /// Returns pending when the quantum is used up, with the task woken again at once.
    #[inline]
    pub(crate) fn poll_available(&self, cx: &Context<'_>) -> Poll<()> {
        if self.written.load(Ordering::Relaxed) < QUANTUM {
            return Poll::Ready(());
        }
        self.written.store(0, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Starts a new quantum, after a read: the task then answers, and the reader controls how long
    /// the answers are.
    #[inline]
    pub(crate) fn restart(&self) {
        self.written.store(0, Ordering::Relaxed);
    }

    /// Counts the bytes of a completed write. A write that must wait lets other tasks run, so it
    /// starts a new quantum.
    #[inline]
    pub(crate) fn count<E>(&self, write: &Poll<Result<usize, E>>) {
        match write {
            Poll::Ready(Ok(n)) => {
                let written = self.written.load(Ordering::Relaxed);
                self.written.store(written + n, Ordering::Relaxed);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.restart(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_quantum_ends_exactly_after_its_bytes() {
        let (write_quantum, cx) = (WriteQuantum::default(), Context::from_waker(Waker::noop()));
        let count_written = |n| write_quantum.count::<()>(&Poll::Ready(Ok(n)));
        count_written(QUANTUM - 1);
        assert!(write_quantum.poll_available(&cx).is_ready());
        count_written(1);
        assert!(write_quantum.poll_available(&cx).is_pending());
        assert!(
            write_quantum.poll_available(&cx).is_ready(),
            "the next turn"
        );
        // A pending write starts a new quantum, too.
        count_written(QUANTUM);
        write_quantum.count::<()>(&Poll::Pending);
        assert!(write_quantum.poll_available(&cx).is_ready());
    }
}
