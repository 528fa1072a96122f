//! Passes the packets in the outbox of a user-driven stack to the program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fullsend_offload::Packet;
use parking_lot::ReentrantMutex;

use crate::user_driven::Outbox;

type OutputFn = Box<dyn Fn(&Packet) + Send + Sync>;

/// The caller of the program's `output` for each packet of an outbox: on one thread at a time, so
/// that packets keep their order, and without the stack's lock.
#[derive(Default)]
pub(crate) struct OutboxDrainer {
    output: OnceLock<OutputFn>,
    /// Set while a thread empties the outbox. The thread checks the outbox again after clearing it,
    /// so that packets that others queued in between are passed on too.
    busy: AtomicBool,
    /// Held from taking a packet to the return of `output`. Reentrant, since `output` may call the
    /// stack.
    output_lock: ReentrantMutex<()>,
}

/// A guard that clears the flag when dropped, even if `output` panics.
struct BusyGuard<'a>(&'a AtomicBool);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl OutboxDrainer {
    /// Sets `output`. A second call has no effect.
    pub(crate) fn set(&self, output: OutputFn) {
        let _ = self.output.set(output);
    }

    /// Empties the outbox. Returns false if it is empty, if no `output` is set, or if another thread
    /// empties it.
    pub(crate) fn drain_outbox(&self, outbox: &Outbox) -> bool {
        let Some(output) = self.output.get().filter(|_| !outbox.is_empty()) else {
            return false;
        };
        if self.busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        let _busy_guard = BusyGuard(&self.busy);
        loop {
            let _output_guard = self.output_lock.lock();
            let Some((_, packet)) = outbox.take() else {
                return true;
            };
            output(&packet);
        }
    }

    /// Returns whether the outbox has packets and the program has an `output`.
    pub(crate) fn has_work(&self, outbox: &Outbox) -> bool {
        self.output.get().is_some() && !outbox.is_empty()
    }

    /// Waits until a running `output` call of another thread has returned, so that the caller may
    /// free memory that earlier packets refer to. Deadlocks if the caller holds a lock that
    /// `output` takes.
    pub(crate) fn wait_for_output(&self) {
        drop(self.output_lock.lock());
    }
}
