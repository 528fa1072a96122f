//! Who empties the outbox of a stack that is driven by hand.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fullsend_offload::Packet;
use parking_lot::ReentrantMutex;

use crate::hand::Outbox;

type Output = Box<dyn Fn(&Packet) + Send + Sync>;

/// Gives packets to the program: one thread at a time, so that they keep their order, and without
/// the stack's lock.
#[derive(Default)]
pub(crate) struct Carrier {
    output: OnceLock<Output>,
    /// A thread empties the outbox, and looks into it once more after it has cleared this: packets
    /// put there before are carried.
    busy: AtomicBool,
    /// Held while the program has a packet. The program may call the stack meanwhile.
    hand: ReentrantMutex<()>,
}

/// Clears the flag even if the program panics.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Carrier {
    pub(crate) fn set(&self, output: Output) {
        let _ = self.output.set(output);
    }

    /// Empties the outbox. Returns false if there is nothing to do, or another thread does it.
    pub(crate) fn carry(&self, outbox: &Outbox) -> bool {
        let Some(output) = self.output.get().filter(|_| !outbox.is_empty()) else {
            return false;
        };
        if self.busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        let _busy = Busy(&self.busy);
        loop {
            let _hand = self.hand.lock();
            let Some((_, packet)) = outbox.take() else {
                return true;
            };
            output(&packet);
        }
    }

    /// Returns whether there are packets that the program wants.
    pub(crate) fn has_work(&self, outbox: &Outbox) -> bool {
        self.output.get().is_some() && !outbox.is_empty()
    }

    /// Waits until no other thread gives the program a packet that left the outbox before.
    pub(crate) fn wait_for_hand(&self) {
        drop(self.hand.lock());
    }
}
