//! The queue of a [`TcpSet`](super::TcpSet)'s connections to be served, and the task that serves them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// A queue of the keys of connections. Each key is in it at most once.
#[derive(Default)]
pub(super) struct ReadyQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    keys: VecDeque<usize>,
    /// Whether each key is in the queue, indexed by key.
    is_queued: Vec<bool>,
    /// The task that waits for a key.
    task: Option<Waker>,
}

impl QueueState {
    fn push(&mut self, key: usize) {
        if key >= self.is_queued.len() {
            self.is_queued.resize(key + 1, false);
        }
        if !std::mem::replace(&mut self.is_queued[key], true) {
            self.keys.push_back(key);
        }
    }
}

impl ReadyQueue {
    /// Adds a key, and wakes the task that waits.
    pub(super) fn push(&self, key: usize) {
        let mut state = self.0.lock();
        state.push(key);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Adds keys for the task that calls, which is not woken. Leaves `keys` empty.
    pub(super) fn requeue(&self, keys: &mut Vec<usize>) {
        if keys.is_empty() {
            return;
        }
        let mut state = self.0.lock();
        for key in keys.drain(..) {
            state.push(key);
        }
    }

    /// Moves up to `max` keys to `batch`, in the order in which they were added. If there are none,
    /// the task of `cx` is woken when there is one.
    pub(super) fn poll_take(
        &self,
        cx: &Context<'_>,
        max: usize,
        batch: &mut VecDeque<usize>,
    ) -> Poll<()> {
        let mut state = self.0.lock();
        if state.keys.is_empty() {
            // A replaced waker may be the last reference to a task that owns this set, or another one
            // that calls `push` when it is dropped: drop it without the lock.
            let replaced = match &state.task {
                Some(task) if task.will_wake(cx.waker()) => None,
                _ => state.task.replace(cx.waker().clone()),
            };
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        let take = max.min(state.keys.len());
        for _ in 0..take {
            let Some(key) = state.keys.pop_front() else {
                break;
            };
            state.is_queued[key] = false;
            batch.push_back(key);
        }
        Poll::Ready(())
    }

    /// Returns a waker that adds `key`.
    pub(super) fn waker(self: &Arc<Self>, key: usize) -> Waker {
        let queue = self.clone();
        Arc::new(KeyWaker { queue, key }).into()
    }
}

struct KeyWaker {
    queue: Arc<ReadyQueue>,
    key: usize,
}

impl Wake for KeyWaker {
    fn wake(self: Arc<Self>) {
        self.queue.push(self.key);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue.push(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::ReadyQueue;

    #[test]
    fn keys_are_queued_once_and_taken_in_order() {
        let queue = Arc::new(ReadyQueue::default());
        let cx = Context::from_waker(Waker::noop());
        let mut batch = VecDeque::new();
        assert_eq!(queue.poll_take(&cx, 2, &mut batch), Poll::Pending);
        let waker = queue.waker(7);
        waker.wake_by_ref();
        queue.push(3);
        waker.wake_by_ref();
        queue.requeue(&mut vec![5, 3]);
        assert_eq!(queue.poll_take(&cx, 2, &mut batch), Poll::Ready(()));
        assert_eq!(batch, [7, 3]);
        waker.wake();
        assert_eq!(queue.poll_take(&cx, 9, &mut batch), Poll::Ready(()));
        assert_eq!(batch, [7, 3, 5, 7]);
        assert_eq!(queue.poll_take(&cx, 9, &mut batch), Poll::Pending);
    }
}
