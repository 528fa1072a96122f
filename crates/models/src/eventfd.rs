//! An eventfd: a counter that its reader waits for.

use crate::sync::{Condvar, Mutex};

/// The file.
#[derive(Debug, Default)]
pub struct EventFd {
    count: Mutex<u64>,
    readable: Condvar,
}

impl EventFd {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self::default())
    }

    pub fn signal(&self) {
        *self.count.lock() += 1;
        self.readable.notify_one();
    }

    pub fn drain(&self) {
        *self.count.lock() = 0;
    }

    /// `poll` without a timeout.
    pub fn wait(&self) {
        let mut count = self.count.lock();
        while *count == 0 {
            self.readable.wait(&mut count);
        }
    }
}
