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
    pub(crate) fn clear(&self) {
        if self.kicked.swap(false, Ordering::AcqRel) {
            self.file.drain();
        }
    }
}
