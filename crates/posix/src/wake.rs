//! Wake-ups from the host: a queue that its wakers fill, with a waker for each handle and key.

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::task::Waker;

use fullsend_offload::Mutex;

use crate::Handle;

/// The kind of change that a wake reports, like the keys of the kernel's wait queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WakeKey {
    /// Data to read, or the end of the stream.
    Read,
    /// Room to write, or the end of a handshake.
    Write,
    /// Another change, which may concern every waiter.
    Any,
}

/// Wakes that have not been processed.
#[derive(Default, Debug)]
pub(crate) struct WakeQueue(Mutex<Vec<(Handle, WakeKey)>>);

impl WakeQueue {
    /// Queues a wake of `handle`, from any thread.
    pub(crate) fn push(&self, handle: Handle, key: WakeKey) {
        self.0.lock().push((handle, key));
    }

    /// Moves all wakes to `out`.
    pub(crate) fn drain(&self, out: &mut Vec<(Handle, WakeKey)>) {
        out.append(&mut self.0.lock());
    }
}

struct HandleWaker {
    queue: Arc<WakeQueue>,
    handle: Handle,
    key: WakeKey,
}

impl Wake for HandleWaker {
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
            Waker::from(Arc::new(HandleWaker { queue, handle, key }))
        };
        Self {
            read: waker(WakeKey::Read),
            write: waker(WakeKey::Write),
        }
    }
}
