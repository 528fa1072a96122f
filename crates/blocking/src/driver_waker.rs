//! Waking of the driver's thread by calls. `crates/models` tests every interleaving of this file.

use std::io;

use crate::eventfd::EventFd;
use crate::sync::{AtomicBool, Ordering};

/// The driver's wake-up signal, sent at most once for each of its batches.
pub(crate) struct DriverWaker {
    file: EventFd,
    signalled: AtomicBool,
}

impl DriverWaker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            file: EventFd::new()?,
            signalled: AtomicBool::new(false),
        })
    }

    /// Returns the file that the driver waits on.
    pub(crate) fn file(&self) -> &EventFd {
        &self.file
    }

    pub(crate) fn wake(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            self.file.signal();
        }
    }

    /// Records that the driver begins a batch: work queued after this call needs another wake-up.
    ///
    /// It does not read the file. If it did, a wake-up between the two steps would either lose its
    /// signal and stay marked, so that no later one would wake the driver, or leave its signal
    /// unmarked, so that the file would stay readable and the driver would spin.
    pub(crate) fn begin_batch(&self) {
        // Synchronizes with wake-ups: one that still finds the mark has its work processed by this
        // batch.
        self.signalled.swap(false, Ordering::AcqRel);
    }

    /// Reads the signal of the readable file. A batch must follow.
    pub(crate) fn take_signal(&self) {
        self.file.drain();
    }
}
