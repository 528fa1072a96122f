//! How much a task may write before other tasks run.
//!
//! tokio counts operations: 128 of them, and a task must wait for its next turn. A writer of large
//! messages so copies megabytes at once, and when its data is sent, or read in the same process, it
//! has left the processor's cache. This counts bytes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// Bytes that a task writes in one turn, or a message more: what a common L2 cache holds beside
/// other things.
const QUANTUM: usize = 768 << 10;

/// Bytes written by the task that has its turn. Only a hint: of a stream's writers as a rule just
/// one is at work.
#[derive(Default)]
pub(crate) struct Turn {
    written: AtomicUsize,
}

impl Turn {
    /// Pending, with the task woken again, when its turn is over.
    #[inline]
    pub(crate) fn poll_go_on(&self, cx: &Context<'_>) -> Poll<()> {
        if self.written.load(Ordering::Relaxed) < QUANTUM {
            return Poll::Ready(());
        }
        self.written.store(0, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A read: its writer answers, and answers are as large as the reader lets them be.
    #[inline]
    pub(crate) fn begin(&self) {
        self.written.store(0, Ordering::Relaxed);
    }

    /// What a write came to.
    #[inline]
    pub(crate) fn count<E>(&self, write: &Poll<Result<usize, E>>) {
        match write {
            Poll::Ready(Ok(n)) => {
                let written = self.written.load(Ordering::Relaxed);
                self.written.store(written + n, Ordering::Relaxed);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.begin(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_turn_ends_after_its_bytes_and_not_before() {
        let (turn, cx) = (Turn::default(), Context::from_waker(Waker::noop()));
        let wrote = |n| turn.count::<()>(&Poll::Ready(Ok(n)));
        wrote(QUANTUM - 1);
        assert!(turn.poll_go_on(&cx).is_ready());
        wrote(1);
        assert!(turn.poll_go_on(&cx).is_pending());
        assert!(turn.poll_go_on(&cx).is_ready(), "the next turn");
        // Waiting for room lets others run, too.
        wrote(QUANTUM);
        turn.count::<()>(&Poll::Pending);
        assert!(turn.poll_go_on(&cx).is_ready());
    }
}
