//! Pipes, through which `splice` moves data from one socket to another.

use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, pipe_with};

/// Empty pipes that are kept for the next use.
const MAX_KEPT: usize = 16;

/// A pipe.
pub(super) struct Pipe {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
}

/// The empty pipes of a gateway.
#[derive(Default)]
pub(crate) struct Pipes(Mutex<Vec<Pipe>>);

impl Pipes {
    /// Returns an empty pipe.
    ///
    /// # Errors
    /// The error of the operating system, e.g. for lack of descriptors.
    pub(super) fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.0.lock().pop() {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Pipe { read, write })
    }

    /// Keeps an empty pipe for the next use, or closes it.
    pub(super) fn put(&self, pipe: Pipe) {
        let mut kept = self.0.lock();
        if kept.len() < MAX_KEPT {
            kept.push(pipe);
        }
    }
}
