//! How a caller wakes the driver's thread. `crates/models` tries every interleaving of this file.

use std::io;

use crate::eventfd::EventFd;
use crate::sync::{AtomicBool, Ordering};

/// Wakes the driver, once however often it is asked before it wakes.
pub(crate) struct Kick {
    file: EventFd,
    kicked: AtomicBool,
}

impl Kick {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            file: EventFd::new()?,
            kicked: AtomicBool::new(false),
        })
    }

    /// The file that the driver waits on.
    pub(crate) fn file(&self) -> &EventFd {
        &self.file
    }

    pub(crate) fn kick(&self) {
        if !self.kicked.swap(true, Ordering::AcqRel) {
            self.file.signal();
        }
    }

    /// The driver begins a batch: work that is queued from here on needs another kick.
    ///
    /// It does not touch the file. A kick that comes between the two would lose its signal and still
    /// be marked, so that no later one would wake the driver; or leave its signal unmarked, so that
    /// the file would stay readable and the driver spin.
    pub(crate) fn begin_batch(&self) {
        // Reads what kicks wrote: a kick that still finds the mark has its work seen by this batch.
        self.kicked.swap(false, Ordering::AcqRel);
    }

    /// The file is readable: takes the signal. A batch must follow.
    pub(crate) fn take_signal(&self) {
        self.file.drain();
    }
}
