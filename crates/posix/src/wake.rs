//! Who is told of what: one queue that the host's wakers fill, a waker for each handle and key.

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::task::Waker;

use spin::Mutex;

use crate::Handle;

/// What kind of change a wake speaks of, as the kernel's wait queues are keyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// More to read, or an end.
    Read,
    /// Room to write, or a connect's end.
    Write,
    /// Something else: whoever is interested should look.
    Any,
}

/// Wakes that have happened and nobody has looked at.
#[derive(Default, Debug)]
pub(crate) struct WakeQueue(Mutex<Vec<(Handle, Key)>>);

impl WakeQueue {
    /// Queues a wake of `handle`, from any thread.
    pub(crate) fn push(&self, handle: Handle, key: Key) {
        self.0.lock().push((handle, key));
    }

    /// Moves all to `out`.
    pub(crate) fn drain(&self, out: &mut Vec<(Handle, Key)>) {
        out.append(&mut self.0.lock());
    }
}

struct Target {
    queue: Arc<WakeQueue>,
    handle: Handle,
    key: Key,
}

impl Wake for Target {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue.push(self.handle, self.key);
    }
}

/// The wakers of one handle.
#[derive(Clone, Debug)]
pub(crate) struct Wakers {
    pub(crate) read: Waker,
    pub(crate) write: Waker,
}

impl Wakers {
    pub(crate) fn new(queue: &Arc<WakeQueue>, handle: Handle) -> Self {
        let waker = |key| {
            let queue = Arc::clone(queue);
            Waker::from(Arc::new(Target { queue, handle, key }))
        };
        Self {
            read: waker(Key::Read),
            write: waker(Key::Write),
        }
    }
}
