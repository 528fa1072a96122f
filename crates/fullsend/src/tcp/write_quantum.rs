//! A limit of the bytes that a task writes before other tasks run.
//!
//! tokio limits operations: after 128 of them, a task must yield. A writer of large messages can
//! copy megabytes in that time, which leave the processor's cache before they are sent or read in
//! the same process. A writer of small messages has written only a few kilobytes by then, in less
//! time than it takes to switch tasks and to send them; so most of its writes do not count.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// Bytes written before the task yields; one more write may exceed it. A common L2 cache of 1 MiB
/// holds them beside the buffers that the application writes from and reads into.
const QUANTUM: usize = 384 << 10;

/// Largest write that may be uncounted. The copy of a longer one takes as long as an operation of
/// another socket.
const UNCOUNTED_MAX_LEN: usize = 1 << 10;

/// Most writes between two that tokio counts. They are only appended to data that waits, which takes
/// 20 to 40 ns, so that a task still yields after some 50 us.
const MAX_UNCOUNTED: u8 = 15;

/// Bytes that the current task has written. Relaxed atomics are enough, as it is only a hint: as a
/// rule one task at a time writes to a stream.
#[derive(Default)]
pub(crate) struct WriteQuantum {
    written: AtomicUsize,
    /// Writes since the last one that tokio counted.
    uncounted: AtomicU8,
}

impl WriteQuantum {
    /// Returns whether a write of `len` bytes need not count as an operation if it is only appended
    /// to data that waits.
    #[inline]
    pub(crate) fn may_append_uncounted(&self, len: usize) -> bool {
        len <= UNCOUNTED_MAX_LEN
            && self.uncounted.load(Ordering::Relaxed) < MAX_UNCOUNTED
            && self.written.load(Ordering::Relaxed) < QUANTUM
    }

    /// Counts the bytes of a write that tokio does not count.
    #[inline]
    pub(crate) fn on_uncounted_append(&self, len: usize) {
        let uncounted = self.uncounted.load(Ordering::Relaxed);
        self.uncounted
            .store(uncounted.saturating_add(1), Ordering::Relaxed);
        let written = self.written.load(Ordering::Relaxed);
        self.written.store(written + len, Ordering::Relaxed);
    }

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
        self.uncounted.store(0, Ordering::Relaxed);
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

    #[test]
    fn tokio_counts_every_sixteenth_small_write_and_each_longer_one() {
        let write_quantum = WriteQuantum::default();
        let append_all = |len| {
            let mut appended = 0;
            while write_quantum.may_append_uncounted(len) {
                write_quantum.on_uncounted_append(len);
                appended += 1;
            }
            appended
        };
        assert_eq!(append_all(UNCOUNTED_MAX_LEN + 1), 0);
        for _ in 0..2 {
            assert_eq!(append_all(1), 15);
            write_quantum.count::<()>(&Poll::Ready(Ok(1)));
        }
        // Uncounted writes use up the quantum, too.
        write_quantum.count::<()>(&Poll::Ready(Ok(QUANTUM - 32 - 1024)));
        assert_eq!(append_all(UNCOUNTED_MAX_LEN), 1);
        let cx = Context::from_waker(Waker::noop());
        assert!(write_quantum.poll_available(&cx).is_pending());
    }
}
