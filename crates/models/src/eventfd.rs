//! A model of an eventfd: a counter with a blocking reader.

use crate::sync::{Condvar, Mutex};

/// The counter of the file.
#[derive(Debug, Default)]
pub struct EventFd {
    count: Mutex<u64>,
    readable: Condvar,
}

impl EventFd {
    /// Returns a file whose counter is zero.
    ///
    /// # Errors
    /// None: the model always succeeds, unlike the kernel.
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

    /// Blocks until the counter is not zero, like `poll` without a timeout.
    pub fn wait(&self) {
        let mut count = self.count.lock();
        while *count == 0 {
            self.readable.wait(&mut count);
        }
    }
}
